"""Tests of the package, without Turnwheel: `python3 -m unittest discover tests`."""

from __future__ import annotations

import enum
import http.client
import importlib.util
import io
import json
import sys
import threading
import unittest
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from turnwheel_tools import Call, Cancelled, Result, ToolError, Tools  # noqa: E402
from turnwheel_tools import server as mcp  # noqa: E402
from turnwheel_tools.schema import convert, schema_of  # noqa: E402


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    name: str
    size: Size = Size.SMALL
    tags: list[str] = field(default_factory=list)


class Place(TypedDict, total=False):
    city: str


def rpc(tools: Tools, method: str, params: dict[str, Any] | None = None, call: Call | None = None) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    response = mcp.respond(tools, message, call or Call(None, lambda *_: None))
    return response.get("result") or response["error"]


def call(tools: Tools, name: str, arguments: dict[str, Any], effect_id: str | None = None) -> Any:
    params = {"name": name, "arguments": arguments}
    return rpc(tools, "tools/call", params, Call(effect_id, lambda *_: None))


class SchemaTest(unittest.TestCase):
    def test_types_have_schemas_and_are_converted(self) -> None:
        item = {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "size": {"enum": ["s", "l"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
        for kind, schema, given, expected in [
            (str, {"type": "string"}, "x", "x"),
            (int, {"type": "integer"}, Decimal("2.0"), 2),
            (float, {"type": "number"}, 2, 2.0),
            (Decimal, {"type": "number"}, Decimal("12345678901234567890.10"), Decimal("12345678901234567890.10")),
            (Any, {}, {"a": [Decimal("0.5")]}, {"a": [0.5]}),
            (Literal["a", 2], {"enum": ["a", 2]}, 2, 2),
            (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
            (Annotated[bool, "Whether"], {"type": "boolean", "description": "Whether"}, True, True),
            (set[int], {"type": "array", "items": {"type": "integer"}}, [1, 1], {1}),
            (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": 1}),
            (Item, item, {"name": "n", "size": "l"}, Item("n", Size.LARGE)),
        ]:
            with self.subTest(kind=kind):
                self.assertEqual(schema_of(kind, {}), schema)
                self.assertEqual(convert(kind, given, "x"), expected)

    def test_other_values_are_refused(self) -> None:
        for kind, given in [
            (str, 1), (int, True), (int, Decimal("1.5")), (float, "1"), (Literal[1], True), (Size, "x"),
            (list[int], ["x"]), (int | None, "x"), (Item, {}), (Item, {"name": "n", "other": 1}), (Place, {"town": "x"}),
        ]:
            with self.subTest(kind=kind), self.assertRaises((TypeError, ValueError)):
                convert(kind, given, "x")

    def test_type_without_schema_is_a_mistake_of_the_program(self) -> None:
        for kind in (object, dict[int, str], tuple[int, str]):
            with self.subTest(kind=kind), self.assertRaises(TypeError):
                schema_of(kind, {})

    @unittest.skipUnless(importlib.util.find_spec("pydantic"), "pydantic is not installed")
    def test_pydantic_models_are_arguments(self) -> None:
        from pydantic import BaseModel, Field, create_model

        inner = create_model("Inner", n=(int, Field(ge=1)))
        outer: type[BaseModel] = create_model("Outer", inner=(inner, ...))
        tools = Tools()

        def add(order, count: int = 1):
            return order.inner.n + count

        add.__annotations__["order"] = outer
        tools.tool(add, effect="read")
        schema = tools.definitions[0]["inputSchema"]
        self.assertEqual(schema["$defs"]["Inner"]["properties"]["n"]["minimum"], 1)
        self.assertEqual(call(tools, "add", {"order": {"inner": {"n": 2}}})["content"][0]["text"], "3")
        self.assertTrue(call(tools, "add", {"order": {"inner": {"n": 0}}})["isError"])


class ToolsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.tools = Tools("shop", "1")
        self.calls = 0

    def test_definition_has_effect_and_approval(self) -> None:
        rule = {"when": {"properties": {"amount": {"exclusiveMinimum": 100}}}, "reason": "Above 100."}

        @self.tools.tool(effect="idempotent", approval=rule, title="Pays")
        def pay(amount: int, call: Call) -> None:
            """Pays."""

        listed = rpc(self.tools, "tools/list")["tools"]
        self.assertEqual(listed[0]["_meta"], {"turnwheel/approval": rule})
        self.assertEqual(listed[0]["annotations"], {"readOnlyHint": False, "idempotentHint": True})
        self.assertEqual((listed[0]["title"], listed[0]["description"]), ("Pays", "Pays."))
        self.assertEqual(list(listed[0]["inputSchema"]["properties"]), ["amount"])
        with self.assertRaises(ValueError):
            self.tools.tool(pay, effect="idempotent")
        for mistake in ({"effect": "none"}, {"approval": "sometimes"}):
            with self.assertRaises(ValueError):
                self.tools.tool(lambda: None, name="x", **mistake)

    def call_with_amount(self, kind: Any, digits: str) -> Any:
        """The result of a call whose message has these digits."""
        tools = Tools()

        def pay(amount) -> str:
            self.calls += 1
            return f"paid {amount}"

        pay.__annotations__["amount"] = kind
        tools.tool(pay)
        text = '{"id": 1, "method": "tools/call", "params": {"name": "pay", "arguments": {"amount": %s}}}'
        return mcp.respond(tools, mcp.parse(text % digits), Call("a", lambda *_: None))["result"]

    def test_number_that_a_float_would_round_is_refused_or_exact(self) -> None:
        long, whole, size = "100.00000000000000000001", "9007199254740993", TypedDict("Size", {"n": float})
        for kind, digits in [
            (float, long), (Any, long), (float, whole), (dict, '{"n": [%s]}' % long), (list[float], f"[{whole}]"),
            (float | None, long), (size, '{"n": %s}' % whole), (float, "1e-400"), (Any, "0.1000000000000000055511151231"),
        ]:
            with self.subTest(kind=kind, digits=digits):
                result = self.call_with_amount(kind, digits)
                self.assertTrue(result["isError"], result)
                self.assertIn("a float would round", result["content"][0]["text"])
        self.assertEqual(self.calls, 0)
        for kind, digits, expected in [
            (Decimal, long, long), (Decimal, whole, whole), (int, whole, whole), (Any, whole, whole), (int, "2.0", "2"),
            (float, "100.10", "100.1"), (float, "1e21", "1e+21"), (Any, "-0.0", "-0.0"), (float | Decimal, long, long),
        ]:
            with self.subTest(kind=kind, digits=digits):
                self.assertEqual(self.call_with_amount(kind, digits)["content"][0]["text"], f"paid {expected}")

    def test_number_without_room_in_any_type_is_refused(self) -> None:
        number = "1e-99999999999999999999"
        for kind in (Decimal, float, int, str, Any, dict, list[float], float | None, float | Decimal):
            digits = {dict: '{"n": %s}', list[float]: "[%s]"}.get(kind, "%s") % number
            with self.subTest(kind=kind):
                result = self.call_with_amount(kind, digits)
                self.assertTrue(result["isError"], result)
                self.assertIn("Validation failed", result["content"][0]["text"])
        self.assertTrue(self.call_with_amount(float, "1" * 5_000)["isError"])
        self.assertEqual(self.calls, 0)

    @unittest.skipUnless(importlib.util.find_spec("pydantic"), "pydantic is not installed")
    def test_pydantic_rounds_no_number(self) -> None:
        from pydantic import create_model

        for digits in ("100.00000000000000000001", "9007199254740993", "1e-99999999999999999999"):
            rounding = create_model("Rounding", n=(float, ...))
            result = self.call_with_amount(rounding, '{"n": %s}' % digits)
            self.assertEqual((result["isError"], self.calls), (True, 0), result)
        exact = create_model("Exact", n=(Decimal, ...), m=(int, ...))
        result = self.call_with_amount(exact, '{"n": 100.00000000000000000001, "m": 9007199254740993}')
        self.assertEqual(result["content"][0]["text"], "paid n=Decimal('100.00000000000000000001') m=9007199254740993")

    def test_repeated_call_has_the_first_result(self) -> None:
        @self.tools.tool
        def pay(amount: int) -> str:
            self.calls += 1
            return f"payment {self.calls}"

        results = [call(self.tools, "pay", {"amount": 1}, key) for key in ("a", "a", "b", "a", None)]
        texts = [result["content"][0]["text"] for result in results]
        self.assertEqual(texts, ["payment 1", "payment 1", "payment 2", "payment 1", "payment 3"])

    def test_repeated_call_joins_the_one_under_way(self) -> None:
        begun, end = threading.Event(), threading.Event()

        @self.tools.tool
        def pay() -> str:
            self.calls += 1
            begun.set()
            end.wait(60)
            return "paid"

        results: list[Any] = []
        threads = [threading.Thread(target=lambda: results.append(call(self.tools, "pay", {}, "a"))) for _ in "ab"]
        threads[0].start()
        begun.wait(60)
        threads[1].start()
        end.set()
        for thread in threads:
            thread.join(60)
        self.assertEqual((self.calls, [it["content"][0]["text"] for it in results]), (1, ["paid", "paid"]))

    def test_failed_call_runs_again(self) -> None:
        @self.tools.tool
        def pay() -> str:
            self.calls += 1
            raise ToolError("no money") if self.calls == 1 else RuntimeError("secret")

        self.assertEqual(call(self.tools, "pay", {}, "a"), {"content": [{"type": "text", "text": "no money"}], "isError": True})
        with mock.patch("sys.stderr", io.StringIO()) as errors:
            error = call(self.tools, "pay", {}, "a")
        self.assertEqual(error, {"code": -32603, "message": "pay failed: RuntimeError"})
        self.assertIn("secret", errors.getvalue())

    def test_results_of_all_kinds(self) -> None:
        image = {"type": "image", "data": "", "mimeType": "image/png"}
        for value, text, structured in [
            (None, None, None), ("x", "x", None), ([1], "[1]", None),
            (Item("n"), '{"name": "n", "size": "s", "tags": []}', {"name": "n", "size": "s", "tags": []}),
            ({"d": Decimal("0.10"), "e": Decimal("1.00000000000000000001")}, None, {"d": 0.1, "e": "1.00000000000000000001"}),
            (Result([image], {"a": 1}), None, {"a": 1}),
        ]:
            tools = Tools()
            tools.tool(lambda value=value: value, name="f", effect="read")
            result = call(tools, "f", {})
            self.assertEqual(result.get("structuredContent"), structured)
            if text is not None:
                self.assertEqual(result["content"][0]["text"], text)

    def test_cancelled_calls_end(self) -> None:
        import asyncio

        @self.tools.tool
        def wait(call: Call) -> str:
            call.wait_cancelled(60)
            call.check_cancelled()
            return "not cancelled"

        @self.tools.tool
        async def sleep() -> str:
            await asyncio.sleep(60)
            return "not cancelled"

        for name in ("wait", "sleep"):
            running = Call("a", lambda *_: None)
            threading.Timer(0.05, running.cancel).start()
            params = {"name": name, "arguments": {}}
            self.assertEqual(rpc(self.tools, "tools/call", params, running)["code"], -32800)
        with self.assertRaises(Cancelled):
            running.check_cancelled()

    def test_unknown_method_and_tool_are_errors(self) -> None:
        self.assertEqual(rpc(self.tools, "resources/list")["code"], -32601)
        self.assertEqual(call(self.tools, "none", {})["code"], -32602)
        self.assertEqual(rpc(self.tools, "initialize", {"protocolVersion": "x"})["protocolVersion"], "x")

    def test_calls_over_http_report_progress(self) -> None:
        @self.tools.tool
        def pay(call: Call) -> str:
            call.progress("checking", 1, 2)
            return call.effect_id or ""

        server = mcp.http_server(self.tools, ("127.0.0.1", 0), "token", needs_principal=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

        def post(message: Any, **headers: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection(*server.server_address)
            connection.request("POST", "/mcp", json.dumps(message), {"Authorization": "Bearer token", **headers})
            response = connection.getresponse()
            return response.status, response.read().decode()

        meta = {"progressToken": 7, "turnwheel/effectId": "e1"}
        request = {"id": 1, "method": "tools/call", "params": {"name": "pay", "_meta": meta}}
        status, text = post(request)
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
        self.assertEqual(status, 200)
        self.assertEqual(events[0]["params"], {"progressToken": 7, "progress": 1, "message": "checking", "total": 2})
        self.assertEqual(events[1]["result"]["content"][0]["text"], "e1")
        self.assertEqual(post({"method": "notifications/initialized"}), (202, ""))
        self.assertEqual(json.loads(post({"id": 2, "method": "ping"})[1])["result"], {})
        self.assertEqual(post(request, Authorization="Bearer other")[0], 401)
        self.assertEqual(post(request, Origin="https://a.example")[0], 403)
        self.assertEqual(post([1])[0], 400)

    def test_host_of_functions_needs_a_checked_caller(self) -> None:
        server = mcp.http_server(self.tools, ("127.0.0.1", 0), "", needs_principal=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        for headers, expected in [({}, 401), ({"X-MS-CLIENT-PRINCIPAL-ID": "app"}, 200)]:
            connection = http.client.HTTPConnection(*server.server_address)
            connection.request("POST", "/", json.dumps({"id": 1, "method": "ping"}), headers)
            self.assertEqual(connection.getresponse().status, expected)
        with self.assertRaises(SystemExit):
            mcp.run(self.tools, ["--http", "0.0.0.0:0"])


if __name__ == "__main__":
    unittest.main()
