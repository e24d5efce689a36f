#!/usr/bin/env python3
"""A plugin for Turnwheel over HTTP: it counts the model calls of a conversation in its state, and offers the tool
`list_payments` once a payment was sent.

Requires Python 3.8 or later and no packages. Explained in README.md.

    HOOK_SECRET=whsec_… python3 server.py --port 8702
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY_BYTES_MAX = 256 * 1024


def prepare(hook):
    """The same hook may arrive again: the new state depends only on the state in the request."""
    calls = hook.get("state", {}).get("calls", 0) + 1
    results = [message for message in hook["lastMessages"] if message["role"] == "toolResult"]
    has_paid = any(message["toolName"] == "send_payment" and not message["isError"] for message in results)
    return {
        "state": {"calls": calls},
        "context": [{"text": f"This is model call {calls} of the conversation.", "volatile": True}],
        "tools": ["list_payments"] if has_paid else [],
    }


def sign(key, message_id, timestamp, body):
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def is_genuine(key, headers, body):
    timestamp = headers.get("webhook-timestamp", "")
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > 300:
        return False
    expected = sign(key, headers.get("webhook-id", ""), timestamp, body)
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(expected, signature) for signature in given)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    key = b""

    def do_POST(self):
        length = int(self.headers.get("content-length", "0"))
        if length > BODY_BYTES_MAX:
            return self.respond(413, b"", {"connection": "close"})
        body = self.rfile.read(length)
        if not is_genuine(self.key, self.headers, body):
            return self.respond(401, b"", {})
        hook = json.loads(body)
        result = json.dumps(prepare(hook) if hook["event"] == "prepare" else {}).encode()
        timestamp = str(int(time.time()))
        headers = {
            "content-type": "application/json",
            "webhook-id": hook["hookId"],
            "webhook-timestamp": timestamp,
            "webhook-signature": sign(self.key, hook["hookId"], timestamp, result),
        }
        return self.respond(200, result, headers)

    def respond(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8702)
    port = parser.parse_args().port
    secret = os.environ.get("HOOK_SECRET", "")
    if not secret.startswith("whsec_"):
        sys.exit('Set HOOK_SECRET. `echo "whsec_$(head -c 24 /dev/urandom | base64)"` makes one.')
    Handler.key = base64.b64decode(secret[len("whsec_") :])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
