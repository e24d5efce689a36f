#!/usr/bin/env python3
"""Sends a prompt to an agent, follows its events, decides its approval requests and prints the result.

Requires Python 3.8 or later and no packages. Explained in docs/clients.md.

    python3 client.py --agent payments-clerk --input "Pay 250 to Ada" --decide approve
"""

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
import uuid
from decimal import Decimal

ATTEMPTS_MAX = 6
TEMPORARY = {408, 429, 500, 502, 503, 504}
# The server sends the event `ping` after 15 s without another, so a silent connection is dead.
SILENCE_MAX = 45
# Longer than the longest `?wait`.
RESPONSE_MAX = 90


def parse(text):
    """As `json.loads`, with each digit: a number that a float would round is a Decimal. Integers are exact."""

    def number(digits):
        rounded = float(digits)
        exact = Decimal(digits)
        return rounded if Decimal(repr(rounded)) == exact else exact

    return json.loads(text, parse_float=number)


def to_json(value):
    """The JSON to print. A Decimal is a text, because `json` would round a number."""
    return json.dumps(value, default=str)


class ApiError(Exception):
    def __init__(self, error):
        text = error.read().decode("utf-8", "replace")
        try:
            self.problem = parse(text)
        except ValueError:  # a proxy responded, not Turnwheel
            self.problem = {"detail": text}
        self.status = error.code
        retry_after = error.headers.get("retry-after", "")
        self.retry_after = int(retry_after) if retry_after.isdigit() else None
        super().__init__(f"{self.status} {self.problem.get('detail') or self.problem.get('title') or ''}".strip())

    @property
    def is_temporary(self):
        return self.status in TEMPORARY


class Api:
    def __init__(self, base, headers):
        self.base = base.rstrip("/")
        self.headers = headers

    def open(self, path, method="GET", headers=None, body=None, timeout=RESPONSE_MAX):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method)
        content_type = {} if body is None else {"content-type": "application/json"}
        for name, value in {**self.headers, **content_type, **(headers or {})}.items():
            request.add_header(name, value)
        try:
            return urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            raise ApiError(error) from None

    def send(self, path, method="GET", headers=None, body=None):
        """Returns the JSON. Repeats the request after temporary failures: use only repeatable requests."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                with self.open(path, method, headers, body) as response:
                    return parse(response.read())
            except (ApiError, OSError, http.client.HTTPException) as error:
                is_final = isinstance(error, ApiError) and not error.is_temporary
                if is_final or attempt == ATTEMPTS_MAX:
                    raise
                time.sleep(getattr(error, "retry_after", None) or 2 ** (attempt - 1))

    def start_prompt(self, agent, text, key):
        """Starts a prompt. The key makes repetitions harmless: they return the first response."""
        body = {"input": text} if agent is None else {"agent": agent, "input": text}
        return self.send("/api/prompts", "POST", {"idempotency-key": key}, body)

    def decide(self, approval, decision):
        """Decides an approval request. The same decision may be sent again."""
        path = f"/api/conversations/{approval['conversationId']}/approvals/{approval['id']}"
        return self.send(path, "POST", body={"decision": decision})

    def events(self, conversation_id):
        """Yields the events until nothing runs. Reconnects after the last stored event.

        In Azure an open stream keeps an instance billed.
        """
        last_id, delay = "0", 1.0
        while True:
            try:
                headers = {"accept": "text/event-stream", "last-event-id": last_id}
                path = f"/api/conversations/{conversation_id}/events?until=settled"
                with self.open(path, headers=headers, timeout=SILENCE_MAX) as response:
                    if response.status == 204:  # nothing runs, and there are no new events
                        return
                    for frame in frames(response):
                        delay = int(frame["retry"]) / 1000 if "retry" in frame else delay
                        last_id = frame.get("id", last_id)
                        if "data" in frame:
                            yield parse(frame["data"])
            except (ApiError, OSError, http.client.HTTPException) as error:
                if isinstance(error, ApiError) and not error.is_temporary:
                    raise
                log(f"events: {error}; reconnecting after event {last_id}")
                time.sleep(getattr(error, "retry_after", None) or 0)
            time.sleep(delay)


def frames(response):
    """Parses server-sent events. An incomplete frame at the end of a cut connection is discarded."""
    frame = {}
    for line in response:
        line = line.decode("utf-8")
        if not line.endswith("\n"):
            return
        line = line.rstrip("\r\n")
        if not line:
            yield frame
            frame = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            frame[name] = value[1:] if value.startswith(" ") else value


def empty_view():
    return {"isRunning": False, "prompts": {}, "messages": {}, "approvals": {}, "toolCalls": {}}


def reduce(view, event):
    """The reducer of docs/events.md."""
    kind, prompt = event["type"], view["prompts"].get(event.get("promptId"))
    message = view["messages"].get(event.get("messageId"))
    approval = event.get("approval")
    if kind == "agent_start":
        view["isRunning"] = True
    elif kind == "agent_settled":
        view["isRunning"] = False
        view["toolCalls"].clear()
    elif kind in ("message_start", "message_end"):
        view["messages"][event["messageId"]] = event["message"]
    elif kind == "message_snapshot" and message:
        message["content"] = event["content"]
    elif kind == "message_update" and message:
        append(message["content"], event["assistantMessageEvent"])
    elif kind == "message_reset":
        view["messages"].pop(event["messageId"], None)
    elif kind in ("tool_execution_start", "tool_execution_update"):
        view["toolCalls"][event["toolCallId"]] = event
    elif kind == "tool_execution_end":
        view["toolCalls"].pop(event["toolCallId"], None)
    elif kind == "prompt.created":
        view["prompts"][event["promptId"]] = {"state": "running", "output": []}
    elif kind == "prompt.output" and prompt:
        prompt["output"].append(event["output"])
    elif kind == "prompt.output-updated" and prompt:
        replace_output(prompt["output"], event["output"])
    elif kind == "prompt.approval-requested" and approval:
        view["approvals"][approval["id"]] = approval
    elif kind == "prompt.approval-settled" and approval:
        view["approvals"].pop(approval["id"], None)
    elif kind in ("prompt.completed", "prompt.error") and prompt:
        prompt.update(state=event.get("state"), stopReason=event.get("stopReason"), error=event.get("error"))


def append(blocks, update):
    index, kind = update["contentIndex"], update["type"]
    while len(blocks) <= index:
        blocks.append({"type": "text", "text": ""})
    if kind == "text_start":
        blocks[index] = {"type": "text", "text": ""}
    elif kind == "text_delta":
        blocks[index]["text"] += update["delta"]
    elif kind == "text_end":
        blocks[index] = {"type": "text", "text": update["content"]}
    elif kind == "thinking_start":
        blocks[index] = {"type": "thinking", "thinking": ""}
    elif kind == "thinking_delta":
        blocks[index]["thinking"] += update["delta"]
    elif kind == "thinking_end":
        blocks[index] = {"type": "thinking", "thinking": update["content"]}
    elif kind == "toolcall_start":
        blocks[index] = {"type": "toolCall", "id": update["id"], "name": update["toolName"], "arguments": {}}
    elif kind == "toolcall_end":
        blocks[index] = update["toolCall"]  # before, the deltas are pieces of JSON


def replace_output(outputs, output):
    """Models may repeat the id of a tool call, so a pending output has precedence."""
    same = [index for index, other in enumerate(outputs) if other["id"] == output["id"]]
    pending = [index for index in same if outputs[index].get("result", {}).get("type") == "pending"]
    if same:
        outputs[pending[0] if pending else same[-1]] = output


def log(text, end="\n"):
    """Prints what happens, on the error stream."""
    print(text, end=end, file=sys.stderr, flush=True)


def report(event):
    update = event.get("assistantMessageEvent") or {}
    if update.get("type") == "text_delta":
        log(update["delta"], end="")
    elif update.get("type") == "text_end":
        log("")
    elif event["type"] == "tool_execution_start":
        log(f"{event['toolName']} {to_json(event['args'])}")
    elif event["type"] == "auto_retry_start":
        log(f"{event['errorMessage']}: retry in {event['delayMs']} ms")


def decide_if_asked(api, approval, decision):
    log(f"approval requested: {approval['title']} {approval['reason']}")
    if decision not in approval["decisions"]:
        log(f"waiting for an approver's decision: {', '.join(approval['decisions'])}")
        return
    try:
        api.decide(approval, decision)
    except ApiError as error:
        # 409: already decided differently. 410: expired. Both have their own events.
        if error.status not in (409, 410):
            raise
        log(str(error))


def main():
    parser = argparse.ArgumentParser(description="Sends a prompt to an agent and follows it to its end.")
    parser.add_argument("--url", default="http://127.0.0.1:7071")
    parser.add_argument("--agent")
    parser.add_argument("--input", required=True)
    parser.add_argument("--decide", help="decision on approval requests, such as approve or reject")
    parser.add_argument("--key", default=str(uuid.uuid4()), help="idempotency key")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    headers = dict([part.strip() for part in header.split(":", 1)] for header in options.header)
    api = Api(options.url, headers)
    started = api.start_prompt(options.agent, options.input, options.key)
    conversation_id, prompt_id = started["conversationId"], started["promptId"]
    log(f"conversation {conversation_id}, prompt {prompt_id}, key {options.key}")
    view = empty_view()
    for event in api.events(conversation_id):
        reduce(view, event)
        report(event)
        if event["type"] == "prompt.approval-requested" and event["approval"]:
            decide_if_asked(api, event["approval"], options.decide)
        if event["type"] in ("prompt.completed", "prompt.error") and event.get("promptId") == prompt_id:
            break
    prompt = api.send(f"/api/conversations/{conversation_id}/prompts/{prompt_id}")
    texts = [output["content"] for output in prompt["output"] if output["type"] == "text"]
    text = texts[-1] if texts else ""
    messages = list(view["messages"].values())
    result = {"conversationId": conversation_id, "prompt": prompt, "text": text, "messages": messages}
    print(to_json(result) if options.json else text)
    if prompt.get("error"):
        log(f"{prompt['error']['type']}: {prompt['error']['message']}")
    return 0 if prompt["state"] == "completed" else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ApiError, OSError, http.client.HTTPException) as failure:
        log(str(failure))
        sys.exit(1)
