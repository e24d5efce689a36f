"""Tools for Turnwheel agents: functions that a durable agent calls over MCP."""

from .tools import Call, Cancelled, Result, ToolError, Tools

__all__ = ["Call", "Cancelled", "Result", "ToolError", "Tools"]
