"""Cuts recorded event streams at every byte and prints what httpx-sse loses and repeats when its client
connects again as in docs/clients-python.md. Argument: a file as that of typescript/stream_clients.mjs."""

import json
import re
import sys

import httpx
from httpx_sse import connect_sse


class Cut(httpx.SyncByteStream):
    def __init__(self, content, is_clean):
        self.content, self.is_clean = content, is_clean

    def __iter__(self):
        if self.content:
            yield self.content
        if not self.is_clean:
            raise httpx.ReadError("the connection was reset")


def read(recording, cut, is_clean):
    """The ids of the received events."""
    bodies = [Cut(recording["whole"].encode()[:cut], is_clean)]

    def serve(request):
        after = int(request.headers["last-event-id"])
        body = bodies.pop() if bodies else Cut(recording["rests"][after].encode(), True)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)

    api = httpx.Client(transport=httpx.MockTransport(serve), base_url="http://127.0.0.1")
    last_id, received = "0", []
    for _ in range(2):
        try:
            with connect_sse(api, "GET", "/events", headers={"last-event-id": last_id}) as stream:
                for event in stream.iter_sse():
                    last_id = event.id or last_id
                    if event.data:
                        received.append(event.id)
        except httpx.TransportError:
            pass
    return received


results = []
for recording in json.load(open(sys.argv[1], encoding="utf-8")):
    ids = set(re.findall(r"^id: (\d+)$", recording["whole"], re.MULTILINE))
    size = len(recording["whole"].encode())
    result = {"recording": recording["name"], "client": "httpx-sse", "bytes": size, "cuts": 0, "lost": [], "repeated": 0}
    for cut in range(size + 1):
        received = read(recording, cut, cut % 2 == 0)
        result["cuts"] += 1
        result["repeated"] += len(received) - len(set(received))
        if ids - set(received):
            result["lost"].append(cut)
    results.append(result)
print(json.dumps(results))
