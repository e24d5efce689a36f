"""The tools as an MCP server: on standard input and output, or over streamable HTTP."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, Callable

from .schema import parse_exact_number
from .tools import Call, RpcError, Tools, dump_json, is_interrupt, plain

#: Time for calls under way after the end of the standard input.
END_SECONDS = 30
BODY_BYTES_MAX = 5_000_000
Send = Callable[[str], None]


def run(tools: Tools, arguments: list[str]) -> None:
    port = os.environ.get("FUNCTIONS_CUSTOMHANDLER_PORT")
    if arguments[:1] == ["--http"] and len(arguments) == 2:
        serve_http(tools, *_address(arguments[1]), is_behind_host=False)
    elif port and not arguments:
        serve_http(tools, "127.0.0.1", int(port), is_behind_host=True)
    elif arguments:
        sys.exit("without arguments: standard input and output; --http [HOST:]PORT: HTTP")
    else:
        serve_stdio(tools)


def parse(text: str | bytes) -> dict[str, Any]:
    message = json.loads(text, parse_float=parse_exact_number, parse_int=parse_exact_number)
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return message


def respond(tools: Tools, message: dict[str, Any], call: Call) -> dict[str, Any]:
    """The response to a request."""
    response = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        return {**response, "result": _result(tools, message.get("method"), _members(message, "params"), call)}
    except RpcError as error:
        return {**response, "error": {"code": error.code, "message": str(error)}}
    except BaseException as error:
        if is_interrupt(error):
            raise
        return {**response, "error": {"code": -32603, "message": f"internal error: {type(error).__name__}"}}


def _members(message: dict[str, Any], name: str) -> dict[str, Any]:
    """The member of the message, if it is an object; otherwise an empty one."""
    value = message.get(name)
    return value if isinstance(value, dict) else {}


def _result(tools: Tools, method: Any, params: dict[str, Any], call: Call) -> dict[str, Any]:
    if method == "initialize":
        server = {"name": tools.name, "version": tools.version}
        version = params.get("protocolVersion", "2025-06-18")
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": tools.definitions}
    if method == "tools/call":
        return tools.call(params.get("name", ""), params.get("arguments") or {}, call)
    raise RpcError(-32601, f"there is no method {method}")


def new_call(message: dict[str, Any], send: Send) -> Call:
    meta = _members(_members(message, "params"), "_meta")
    token = meta.get("progressToken")

    def notify(text: str, progress: float | None, total: float | None) -> None:
        nonlocal count
        count += 1
        params = {"progressToken": token, "progress": progress or count, "message": text}
        if total is not None:
            params["total"] = total
        if token is not None:
            send(dump_json(plain({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})))

    count = 0
    return Call(meta.get("turnwheel/effectId"), notify)


def serve_stdio(tools: Tools) -> None:
    # A program that a tool starts must not end the group of this one.
    has_own_group = os.environ.pop("TURNWHEEL_TOOLS_OWN_GROUP", None) is not None
    source, output = _take_standard_streams()
    tools.shows_exceptions = True
    calls: dict[Any, Call] = {}
    #: Threads of calls without a response.
    threads: set[threading.Thread] = set()
    lock = threading.Lock()

    def send(text: str) -> None:
        # If the caller has ended, it knows that the outcome is unknown.
        with contextlib.suppress(OSError), lock:
            output.write(f"{text}\n".encode())
            output.flush()

    def answer(message: dict[str, Any], call: Call) -> None:
        response = respond(tools, message, call)
        calls.pop(message["id"], None)
        send(dump_json(response))
        threads.discard(threading.current_thread())

    def accept(message: dict[str, Any]) -> None:
        if message.get("method") == "notifications/cancelled":
            call = calls.get(_members(message, "params").get("requestId"))
            if call:
                call.cancel()
        elif "id" in message and "method" in message:
            calls[message["id"]] = call = new_call(message, send)
            thread = threading.Thread(target=answer, args=(message, call), daemon=True)
            threads.add(thread)
            thread.start()

    for line in filter(bytes.strip, source):
        message: dict[str, Any] = {"id": None}
        # A message that cannot be read ends no other call.
        try:
            message = parse(line)
            accept(message)
        except Exception as error:
            problem = {"code": -32600, "message": f"the message cannot be read: {type(error).__name__}"}
            if "id" in message:
                send(dump_json({"jsonrpc": "2.0", "id": message["id"], "error": problem}))
    deadline = time.monotonic() + END_SECONDS
    for thread in list(threads):
        thread.join(max(0, deadline - time.monotonic()))
    # Ends the processes that tools have started.
    if has_own_group and os.name == "posix":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output for messages only. Tools and their child processes print to the standard error, and read nothing."""
    source, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    return source, output


def serve_http(tools: Tools, host: str, port: int, *, is_behind_host: bool) -> None:
    token = os.environ.get("TURNWHEEL_TOOLS_TOKEN", "")
    if not token and not is_behind_host and host not in ("127.0.0.1", "::1", "localhost"):
        sys.exit("set TURNWHEEL_TOOLS_TOKEN: other machines reach this address")
    server = http_server(tools, (host, port), token, needs_principal=is_behind_host and not token)
    print(f"listening on {host}:{server.server_address[1]}", file=sys.stderr, flush=True)
    server.serve_forever()


def http_server(
    tools: Tools, address: tuple[str, int], token: str, *, needs_principal: bool
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if not self._is_allowed():
                return self._respond(401, b"")
            if size > BODY_BYTES_MAX or self.headers.get("Origin"):
                return self._respond(413 if size > BODY_BYTES_MAX else 403, b"")
            try:
                message = parse(self.rfile.read(size))
            except (ValueError, RecursionError):
                return self._respond(400, b"")
            if "id" not in message or "method" not in message:
                return self._respond(202, b"")
            if message["method"] != "tools/call":
                response = respond(tools, message, new_call(message, lambda _: None))
                return self._respond(200, dump_json(response).encode())
            self._stream(message)

        def _is_allowed(self) -> bool:
            given = self.headers.get("Authorization", "").encode()
            if token:
                return hmac.compare_digest(given, f"Bearer {token}".encode())
            # App Service has checked the token of Entra, and sets this header.
            return not needs_principal or bool(self.headers.get("X-MS-CLIENT-PRINCIPAL-ID"))

        def _respond(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, message: dict[str, Any]) -> None:
            """Sends the progress and the result of a call as events."""
            sent: queue.Queue[str | None] = queue.Queue()
            call = new_call(message, sent.put)

            def run() -> None:
                sent.put(dump_json(respond(tools, message, call)))
                sent.put(None)

            threading.Thread(target=run, daemon=True).start()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                self._send_events(sent)
            except OSError:
                call.cancel()

        def _send_events(self, sent: queue.Queue[str | None]) -> None:
            """Sends the texts until the queue has None."""
            while True:
                try:
                    text = sent.get(timeout=0.2)
                except queue.Empty:
                    if self._is_closed():
                        raise ConnectionResetError from None
                    continue
                if text is None:
                    return
                self.wfile.write(f"data: {text}\n\n".encode())
                self.wfile.flush()

        def _is_closed(self) -> bool:
            # Not `select`, which fails for more than 1,024 open files.
            self.connection.setblocking(False)
            try:
                return not self.connection.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return False
            finally:
                self.connection.setblocking(True)

        def log_message(self, *_: Any) -> None:
            pass

    ThreadingHTTPServer.daemon_threads = True
    return ThreadingHTTPServer(address, Handler)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)
