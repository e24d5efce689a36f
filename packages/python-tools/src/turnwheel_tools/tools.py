"""Functions as tools: their definitions, their calls and their results."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import enum
import inspect
import json
import sys
import threading
import traceback
import types
import typing
from decimal import Decimal
from typing import Any, Awaitable, Callable, Literal

from .schema import convert_members, object_schema

Effect = Literal["read", "idempotent", "write"]
#: Results that are kept for repeated calls.
RESULTS_MAX = 1_000


class ToolError(Exception):
    """An error result: the model reads its text. Raise it if the call had no effect."""


class Cancelled(Exception):
    """The caller does not wait any more."""


@dataclasses.dataclass
class Result:
    """A result with content blocks of MCP, for images and other content."""

    content: list[dict[str, Any]]
    structured: dict[str, Any] | None = None
    is_error: bool = False


class Call:
    """The call that runs: a parameter of this type receives it."""

    def __init__(self, effect_id: str | None, notify: Callable[..., None]) -> None:
        #: Idempotency key: equal for every attempt of the call, and after a crash of either side.
        self.effect_id = effect_id
        self._notify = notify
        self._cancelled = threading.Event()
        self._on_cancel: Callable[[], None] | None = None

    def progress(self, message: str, progress: float | None = None, total: float | None = None) -> None:
        """Shows the user how far the call is."""
        self._notify(message, progress, total)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check_cancelled(self) -> None:
        """Raises Cancelled once the caller does not wait any more."""
        if self.is_cancelled:
            raise Cancelled

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleeps for the time, or until the call is cancelled. True if it is cancelled."""
        self._cancelled.wait(seconds)
        # At the end of the time another thread may have cancelled before this one ran again.
        return self.is_cancelled

    def cancel(self) -> None:
        self._cancelled.set()
        if self._on_cancel:
            self._on_cancel()


class Tool:
    """A function with its definition."""

    def __init__(self, function: Callable[..., Any], name: str, effect: Effect) -> None:
        self.function, self.name, self.effect = function, name, effect
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        self.call_parameter = next((it.name for it in parameters if hints.get(it.name) is Call), None)
        self.fields = {
            it.name: (hints.get(it.name, Any), it.default is inspect.Parameter.empty)
            for it in parameters
            if it.name != self.call_parameter
        }

    def define(self, title: str | None, description: str | None, approval: Any) -> dict[str, Any]:
        definitions: dict[str, Any] = {}
        schema = object_schema(self.fields, definitions)
        if definitions:
            schema["$defs"] = definitions
        definition = {
            "name": self.name,
            "description": description or inspect.getdoc(self.function) or "",
            "inputSchema": schema,
            "annotations": {
                "readOnlyHint": self.effect == "read",
                "idempotentHint": self.effect in ("read", "idempotent"),
            },
        }
        if title:
            definition["title"] = title
        if approval:
            definition["_meta"] = {"turnwheel/approval": approval}
        return definition

    def run(self, arguments: dict[str, Any], call: Call) -> Any:
        if self.call_parameter:
            arguments = {**arguments, self.call_parameter: call}
        value = self.function(**arguments)
        if inspect.isasyncgen(value):
            value = _collect(value)
        return _run_async(value, call) if inspect.isawaitable(value) else value


async def _collect(items: typing.AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def _run_async(work: Awaitable[Any], call: Call) -> Any:
    """The value of the work. The end of its event loop, which waits for threads, delays no response."""
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    async def settle() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        call._on_cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            call.check_cancelled()
            outcome.set_result(await task)
        except Exception as error:
            outcome.set_exception(error)
        except asyncio.CancelledError:
            if not call.is_cancelled:
                raise
            outcome.set_exception(Cancelled())
        finally:
            call._on_cancel = None

    def run() -> None:
        try:
            asyncio.run(settle())
        except BaseException as error:
            if not outcome.done():
                outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result()


class RpcError(Exception):
    """An error response of JSON-RPC."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Tools:
    """The tools of a program."""

    def __init__(self, name: str = "tools", version: str = "0") -> None:
        self.name, self.version = name, version
        self.tools: dict[str, Tool] = {}
        self.definitions: list[dict[str, Any]] = []
        #: True if the model may read the texts of exceptions.
        self.shows_exceptions = False
        self._results: collections.OrderedDict[Any, concurrent.futures.Future[Any]]
        self._results = collections.OrderedDict()
        self._lock = threading.Lock()

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        *,
        effect: Effect = "write",
        approval: bool | str | dict[str, Any] | None = None,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> Any:
        """Makes a function a tool.

        effect: `read` and `idempotent` calls may be repeated; a `write` never is.
        approval: `"always"`, or `{"when": JSON Schema of arguments, "reason": text}`.
        """
        if effect not in typing.get_args(Effect):
            raise ValueError(f"effect is one of {', '.join(typing.get_args(Effect))}")
        if not (approval in (None, False, True, "always") or isinstance(approval, dict)):
            raise ValueError('approval is "always" or a dict with `when` and `reason`')

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            tool = Tool(function, name or function.__name__, effect)
            if tool.name in self.tools:
                raise ValueError(f"there are two tools {tool.name}")
            self.definitions.append(tool.define(title, description, approval))
            self.tools[tool.name] = tool
            return function

        return register if function is None else register(function)

    def run(self, arguments: list[str] | None = None) -> None:
        """Serves the tools: on standard input and output, or with `--http [HOST:]PORT` over HTTP."""
        from .server import run

        run(self, sys.argv[1:] if arguments is None else arguments)

    def call(self, name: str, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """The result of a call, as MCP has it. A repeated call has the result of the first one."""
        tool = self.tools.get(name)
        if tool is None:
            raise RpcError(-32602, f"there is no tool {name}")
        try:
            arguments = convert_members(tool.fields, arguments, "arguments")
        except BaseException as error:
            if is_interrupt(error):
                raise
            return _text_result(f"Validation failed: {_text_of(error)}", is_error=True)
        if tool.effect == "read" or call.effect_id is None:
            return self._run(tool, arguments, call)
        key = (name, call.effect_id)
        with self._lock:
            earlier = self._results.get(key)
            if earlier is None:
                self._results[key] = running = concurrent.futures.Future()
        if earlier is not None:
            return earlier.result()
        return self._run_once(tool, arguments, call, key, running)

    def _run_once(
        self, tool: Tool, arguments: dict[str, Any], call: Call, key: Any, running: Any
    ) -> dict[str, Any]:
        try:
            result = self._run(tool, arguments, call)
        except BaseException as error:
            running.set_exception(error)
            self._forget(key)
            raise
        running.set_result(result)
        if result["isError"]:
            # Another attempt may succeed.
            self._forget(key)
        with self._lock:
            while len(self._results) > RESULTS_MAX and next(iter(self._results.values())).done():
                self._results.popitem(last=False)
        return result

    def _forget(self, key: Any) -> None:
        with self._lock:
            self._results.pop(key, None)

    def _run(self, tool: Tool, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        try:
            return _convert_result(tool.run(arguments, call))
        except ToolError as error:
            return _text_result(_text_of(error), is_error=True)
        except Cancelled:
            raise RpcError(-32800, "the call was cancelled") from None
        # Also the SystemExit of `sys.exit` and argparse. The caller must know that the work may be half done.
        except BaseException as error:
            if is_interrupt(error):
                raise
            with contextlib.suppress(Exception):  # A tool may have closed the standard error.
                traceback.print_exc()
            text = f"{tool.name} failed: {type(error).__name__}"
            raise RpcError(-32603, f"{text}: {_text_of(error)}" if self.shows_exceptions else text) from error


def is_interrupt(error: BaseException) -> bool:
    """True if a signal ends the program. In other threads only a tool raises KeyboardInterrupt."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return type(error).__name__


def _convert_result(value: Any) -> dict[str, Any]:
    if isinstance(value, Result):
        result = {"content": value.content, "isError": bool(value.is_error)}
        return plain(result if value.structured is None else {**result, "structuredContent": value.structured})
    if value is None or isinstance(value, str):
        return _text_result(value or "", is_error=False)
    data = plain(value)
    result = _text_result(dump_json(data), is_error=False)
    return {**result, "structuredContent": data} if isinstance(data, dict) else result


def plain(value: Any) -> Any:
    """The value as strict JSON has it: NaN and infinity are texts."""
    return json.loads(dump_json(value), parse_constant=str)


def _text_result(text: str, *, is_error: bool) -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    return {"content": content, "isError": is_error}


def dump_json(value: Any) -> str:
    text = json.dumps(value, default=_jsonable, ensure_ascii=False)
    # UTF-8 and strict JSON have no lone surrogates: names of files that are no UTF-8 contain U+FFFD instead.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Decimal):
        number = float(Decimal(value))
        return number if Decimal(repr(number)) == value else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        with contextlib.suppress(TypeError):
            return sorted(value)
    # Other iterators, such as open files and cursors, are values of their own, and may have no end.
    if isinstance(value, (set, frozenset, types.GeneratorType, map, filter, zip)):
        return list(value)
    return str(value)
