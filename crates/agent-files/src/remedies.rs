//! Remedies for keys and tools of other agent formats.

use crate::fields::Remedies;

/// Keys of the Azure Functions agents runtime and of other agent formats.
pub(super) const FRONT_MATTER_REMEDIES: Remedies<'static> = &[
    (
        "trigger",
        "a key of the Azure Functions agents runtime; here prompts come by HTTP, queue or schedule, without a key in the file",
    ),
    (
        "builtin_endpoints",
        "a key of the Azure Functions agents runtime; here every agent has the HTTP API",
    ),
    (
        "mcp",
        "a key of the Azure Functions agents runtime; here write `- mcp: SERVER` under `tools`, and the server into mcp.json",
    ),
    ("subagents", NO_SUB_AGENTS),
    ("subAgents", NO_SUB_AGENTS),
    ("sub_agents", NO_SUB_AGENTS),
    ("agents", NO_SUB_AGENTS),
    ("handoffs", NO_SUB_AGENTS),
    ("web_search", NO_SEARCH),
    ("code_interpreter", RUN_CODE),
    ("instructions", "write the instructions below the front matter"),
    (
        "system_prompt",
        "write the instructions below the front matter, and other parts in `systemPrompt`",
    ),
];

/// Names that are tools or keys of tools elsewhere.
pub(super) const TOOL_REMEDIES: Remedies<'static> = &[
    ("bash", NO_SHELL),
    ("shell", NO_SHELL),
    ("code_interpreter", RUN_CODE),
    ("python", RUN_CODE),
    ("execute_code", RUN_CODE),
    ("search", NO_SEARCH),
    ("web_search", NO_SEARCH),
    ("websearch", NO_SEARCH),
    ("web_search_preview", NO_SEARCH),
    ("file_search", NO_SEARCH),
    ("web_fetch", READ_PAGES),
    ("fetch", READ_PAGES),
    ("agent", NO_SUB_AGENTS),
    ("subagent", NO_SUB_AGENTS),
    ("task", NO_SUB_AGENTS),
    ("handoff", NO_SUB_AGENTS),
];

const NO_SEARCH: &str = "there is no search tool: write an HTTP tool (`- http:`) that calls a search service, see \"Web search\" in docs/agent-files.md";
const RUN_CODE: &str = "write `bash` or `shell`, which run commands in a sandbox and need TURNWHEEL_SHELL, see docs/shell.md";
const READ_PAGES: &str =
    "write `scrape`, which reads a page of the web, or an HTTP tool (`- http:`)";
const NO_SUB_AGENTS: &str = "Turnwheel has no sub-agents: an agent calls another one with an HTTP tool (`- http:`), see \"Calling another agent\" in docs/agent-files.md";

const NO_SHELL: &str = "shell tools need TURNWHEEL_SHELL: `sandbox` on a developer's Linux machine, `sessions` in Azure";
