"""Tests that each call has a response, whatever its tool raises, returns or prints."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import functools
import http.client
import io
import itertools
import json
import os
import subprocess
import sys
import threading
import unittest
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Callable
from unittest import mock

SOURCE = Path(__file__).parent.parent / "src"
sys.path.insert(0, str(SOURCE))

from turnwheel_tools import Call, Result, ToolError, Tools  # noqa: E402
from turnwheel_tools import server as mcp  # noqa: E402
from turnwheel_tools.tools import dump_json  # noqa: E402


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnprintableToolError(Unprintable, ToolError):
    pass


@dataclass
class Node:
    next: Any = None


@dataclass
class Exiting:
    value: int = 0

    def __post_init__(self) -> None:
        sys.exit("bad")


def in_thread(work: Callable[[], Any]) -> Any:
    """The value of the work in a thread, as the servers run calls."""
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    return values[0] if values else "no response"


def message_of_call(name: str = "f", **arguments: Any) -> dict[str, Any]:
    meta = {"turnwheel/effectId": name, "progressToken": 1}
    return {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": meta}}


def respond(function: Callable[..., Any], message: dict[str, Any] | None = None) -> Any:
    """The response to a call of the function, after its way through UTF-8 and strict JSON."""
    tools = Tools()
    tools.shows_exceptions = True
    tools.tool(function, name="f")
    message = message or message_of_call()
    call = mcp.new_call(message, lambda _: None)
    with mock.patch("sys.stderr", io.StringIO()):
        response = in_thread(lambda: dump_json(mcp.respond(tools, message, call)))

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(response.encode(), parse_constant=refuse)


def raising(error: BaseException) -> Callable[[], Any]:
    def function() -> None:
        raise error

    return function


class FailuresTest(unittest.TestCase):
    def test_all_exceptions_are_errors(self) -> None:
        async def exit_async() -> None:
            await asyncio.sleep(0)
            sys.exit(3)

        async def cancel_own_task() -> None:
            task = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task

        for function, text in [
            (lambda: sys.exit("gone"), "SystemExit: gone"),
            (lambda: argparse.ArgumentParser().parse_args(["--none"]), "SystemExit: 2"),
            (raising(GeneratorExit()), "GeneratorExit: "),
            (raising(KeyboardInterrupt()), "KeyboardInterrupt: "),
            (raising(asyncio.CancelledError()), "CancelledError: "),
            (raising(Unprintable()), "Unprintable: Unprintable"),
            (raising(ValueError("name \udcff")), "ValueError: name \ufffd"),
            (exit_async, "SystemExit: 3"),
            (cancel_own_task, "CancelledError: "),
        ]:
            with self.subTest(text=text):
                self.assertEqual(respond(function)["error"], {"code": -32603, "message": f"f failed: {text}"})
        result = respond(raising(UnprintableToolError()))["result"]
        self.assertEqual((result["isError"], result["content"][0]["text"]), (True, "UnprintableToolError"))

    def test_interrupt_of_the_main_thread_stays(self) -> None:
        tools = Tools()
        tools.tool(raising(KeyboardInterrupt()), name="f")
        with self.assertRaises(KeyboardInterrupt):
            tools.call("f", {}, Call("a", lambda *_: None))

    def test_error_does_not_need_the_standard_error(self) -> None:
        closed = io.StringIO()
        closed.close()
        tools = Tools()
        tools.tool(raising(ValueError("x")), name="f")
        with mock.patch("sys.stderr", closed):
            response = in_thread(lambda: mcp.respond(tools, message_of_call(), Call("a", lambda *_: None)))
        self.assertEqual(response["error"]["message"], "f failed: ValueError")

    def test_odd_arguments_reach_no_tool(self) -> None:
        deep: list[Any] = []
        for _ in range(5_000):
            deep = [deep]
        for arguments in [{"value": deep}, ["value"], "value"]:
            message = message_of_call()
            message["params"]["arguments"] = arguments
            self.assertTrue(respond(lambda value: "called", message)["result"]["isError"])

        def take(value: Exiting) -> str:
            return "called"

        result = respond(take, message_of_call(value={}))["result"]
        self.assertEqual((result["isError"], result["content"][0]["text"]), (True, "Validation failed: bad"))
        for params, code in [({"name": {}}, -32603), (["f"], -32602), ({"name": "f", "_meta": "x"}, None)]:
            response = respond(lambda: "called", {"id": 1, "method": "tools/call", "params": params})
            self.assertEqual(response.get("error", {}).get("code"), code, params)


class ResultsTest(unittest.TestCase):
    def test_results_are_strict_json(self) -> None:
        async def finish() -> str:
            return "done"

        async def items() -> Any:
            yield 1
            yield 2

        # A decorator that hides that the function is asynchronous.
        hidden = functools.wraps(finish)(lambda: finish())
        for value, expected in [
            ("name \udc80", "name \ufffd"),
            ("pair \ud83d\ude00", "pair \U0001f600"),
            (["name \udc80"], '["name \ufffd"]'),
            ({"name \udc80": "\ud83d"}, {"name \ufffd": "\ufffd"}),
            ({"n": float("nan"), "i": [float("-inf")]}, {"n": "NaN", "i": ["-Infinity"]}),
            ({"b": b"\xff", "d": datetime.date(2030, 1, 2), "n": Decimal("0.1")}, {"b": "b'\\xff'", "d": "2030-01-02", "n": 0.1}),
            ({"s": {2, 1}, "i": 10**400}, {"s": [1, 2], "i": 10**400}),
            ((it * 2 for it in [1, 2]), "[2, 4]"),
            ({"map": map(str, [1])}, {"map": ["1"]}),
            ({"n": itertools.count()}, {"n": "count(0)"}),
            (lambda: items(), "[1, 2]"),
            (hidden, "done"),
            (Result([{"type": "text", "text": "\udc80"}], {"n": Decimal("NaN")}), {"n": "NaN"}),
        ]:
            with self.subTest(expected=expected):
                result = respond(value if callable(value) else lambda: value)["result"]
                self.assertFalse(result["isError"])
                shown = result.get("structuredContent", result["content"][0]["text"])
                self.assertEqual(shown, expected)
        self.assertEqual(sorted(json.loads(respond(lambda: {1, "a"})["result"]["content"][0]["text"]), key=str), [1, "a"])

    def test_values_without_json_are_errors(self) -> None:
        cycle: dict[str, Any] = {}
        cycle["self"] = cycle
        node = Node()
        node.next = node
        for value in [cycle, node, Unprintable(), {(1, 2): 3}, Result([cycle]), Result([{"x": Unprintable()}])]:
            error = respond(lambda value=value: value)["error"]
            self.assertEqual(error["code"], -32603)
            self.assertIn("f failed: ", error["message"])

    def test_exceptions_of_generators_are_those_of_the_tool(self) -> None:
        def fail() -> Any:
            yield 1
            raise ToolError("no money")

        result = respond(fail)["result"]
        self.assertEqual((result["isError"], result["content"][0]["text"]), (True, "no money"))

    def test_thread_of_an_async_tool_delays_no_response(self) -> None:
        end = threading.Event()
        self.addCleanup(end.set)

        async def leave_thread() -> str:
            asyncio.get_running_loop().run_in_executor(None, end.wait)
            return "done"

        async def time_out() -> None:
            await asyncio.wait_for(asyncio.shield(asyncio.get_running_loop().run_in_executor(None, end.wait)), 0.01)

        self.assertEqual(respond(leave_thread)["result"]["content"][0]["text"], "done")
        self.assertIn("TimeoutError", respond(time_out)["error"]["message"])


class HttpTest(unittest.TestCase):
    def test_each_call_has_a_response(self) -> None:
        tools = Tools()
        tools.tool(lambda: ["name \udc80"], name="list")
        tools.tool(lambda: sys.exit(1), name="exit")

        @tools.tool
        def report(call: Call) -> str:
            call.progress("file \udc80", float("nan"))
            return "done"

        server = mcp.http_server(tools, ("127.0.0.1", 0), "", needs_principal=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

        def post(body: str) -> tuple[int, list[Any]]:
            connection = http.client.HTTPConnection(*server.server_address, timeout=60)
            connection.request("POST", "/mcp", body)
            response = connection.getresponse()
            lines = [line for line in response.read().decode().splitlines() if line]
            return response.status, [json.loads(line.removeprefix("data: ")) for line in lines]

        with mock.patch("sys.stderr", io.StringIO()):
            self.assertEqual(post(json.dumps(message_of_call("exit")))[1][0]["error"]["message"], "exit failed: SystemExit")
        self.assertEqual(post(json.dumps(message_of_call("list")))[1][0]["result"]["content"][0]["text"], '["name \ufffd"]')
        progress, result = post(json.dumps(message_of_call("report")))[1]
        self.assertEqual((progress["params"]["message"], progress["params"]["progress"]), ("file \ufffd", "NaN"))
        self.assertEqual(result["result"]["content"][0]["text"], "done")
        self.assertEqual(post("[" * 100_000 + "]" * 100_000), (400, []))


PROGRAM = '''
import asyncio, os, subprocess, sys
print("printed before the start", end="")
from turnwheel_tools import Tools

tools = Tools()

@tools.tool
def echo(text: str) -> str:
    return text

@tools.tool
def leave() -> str:
    sys.exit("gone")

@tools.tool(effect="read")
async def leave_task() -> str:
    async def stay() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    tools.task = asyncio.ensure_future(stay())
    await asyncio.sleep(0)
    return "done"

@tools.tool
def list_files() -> list:
    return ["name \\udc80"]

@tools.tool
def print_texts() -> str:
    print("printed")
    os.write(1, b"written without an end of line")
    subprocess.run([sys.executable, "-c", "print('child', end='')"], check=True)
    return "done"

@tools.tool
def read_input() -> str:
    subprocess.run([sys.executable, "-c", "import sys; sys.stdin.read()"], check=True)
    return input()

@tools.tool
def leave_child() -> str:
    return str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)

@tools.tool
def close_output() -> str:
    sys.stdout.close()
    os.close(1)
    return "closed"

@tools.tool
def close_errors() -> str:
    sys.stderr.close()
    raise ValueError("\\xfc")

tools.run([])
'''


class StdioTest(unittest.TestCase):
    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "", **environment}
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.kill)
        # A call without a response ends the test with the program.
        limit = threading.Timer(60, child.kill)
        limit.start()
        self.addCleanup(limit.cancel)
        return child

    def send(self, child: subprocess.Popen[bytes], line: bytes) -> Any:
        child.stdin.write(line + b"\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    def call(self, child: subprocess.Popen[bytes], name: str, **arguments: str) -> Any:
        response = self.send(child, json.dumps(message_of_call(name, **arguments), ensure_ascii=False).encode())
        self.assertEqual(response["id"], name)
        return response["error"]["message"] if "error" in response else response["result"]["content"][0]["text"]

    def test_each_call_has_a_response(self) -> None:
        child = self.start()
        pid = int(self.call(child, "leave_child"))
        self.addCleanup(os.kill, pid, 9)
        for name, expected in [
            ("leave", "leave failed: SystemExit: gone"),
            ("list_files", '["name \ufffd"]'),
            ("print_texts", "done"),
            ("read_input", "read_input failed: EOFError: EOF when reading a line"),
            ("close_output", "closed"),
            ("close_errors", "close_errors failed: ValueError: \xfc"),
            ("leave", "leave failed: SystemExit: gone"),
        ]:
            with self.subTest(name=name):
                self.assertEqual(self.call(child, name), expected)
        for line in [b"{", b"[1]", b"\xff", b'{"id": [1], "method": "ping"}']:
            self.assertEqual(self.send(child, b"\n" + line)["error"]["code"], -32600)
        self.assertEqual(self.call(child, "echo", text="x\u2028y"), "x\u2028y")
        # The output ends with the program, although its child lives.
        child.stdin.close()
        self.assertEqual(child.stdout.read(), b"")
        self.assertEqual(child.wait(), 0)

    def test_task_that_stays_delays_no_end(self) -> None:
        child = self.start()
        for _ in range(3):
            self.assertEqual(self.call(child, "leave_task"), "done")
        child.stdin.close()
        # The limit of the test would end a wait for each task.
        self.assertEqual((child.stdout.read(), child.wait()), (b"", 0))

    def test_messages_are_utf_8_in_any_locale(self) -> None:
        for environment in [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}]:
            child = self.start(**environment)
            self.assertEqual(self.call(child, "echo", text="\xfc \u20ac"), "\xfc \u20ac")
            child.stdin.close()
            self.assertEqual((child.stdout.read(), child.wait()), (b"", 0))


if __name__ == "__main__":
    unittest.main()
