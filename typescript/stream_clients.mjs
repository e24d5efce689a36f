// Cuts recorded event streams at every byte and prints what clients of other people lose and
// repeat when they connect again. Argument: a file with `[{ name, whole, rests }]`; `rests[n]` is the
// stream after event n.

import fs from "node:fs";
import { fetchEventSource } from "@microsoft/fetch-event-source";
import { EventSource } from "eventsource";
import { EventSourceParserStream } from "eventsource-parser/stream";

// No client waits before it connects again. fetch-event-source expects a browser.
globalThis.setTimeout = (call) => setImmediate(call);
globalThis.clearTimeout = (timer) => clearImmediate(timer);
globalThis.window = { setTimeout, clearTimeout };
globalThis.document = { addEventListener() {}, removeEventListener() {} };

const URL = "http://127.0.0.1/events";

/**
 * The first response ends early, by its end or by a broken connection; the second one is the rest, and the third one is
 * the end.
 */
class Server {
  requests = 0;

  constructor(recording, cut, isClean) {
    Object.assign(this, { recording, cut, isClean });
  }

  fetch = async (_, { headers }) => {
    this.requests += 1;
    if (this.requests > 2) return new Response(null, { status: 204 });
    const isFirst = this.requests === 1;
    const after = Number(new Headers(headers).get("last-event-id") ?? 0);
    const chunk = isFirst ? this.recording.whole.subarray(0, this.cut) : this.recording.rests[after];
    const chunks = chunk.length > 0 ? [chunk] : [];
    const pull = (controller) => {
      if (chunks.length > 0) controller.enqueue(chunks.pop());
      else if (isFirst && !this.isClean) controller.error(new TypeError("the connection was reset"));
      else controller.close();
    };
    const body = new ReadableStream({ pull }, { highWaterMark: 0 });
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  };
}

/** Connects again after each end, with the id that `read` kept. */
async function readAgain(server, read) {
  const received = [];
  const position = { id: "0" };
  for (;;) {
    const response = await server.fetch(URL, { headers: { "last-event-id": position.id } });
    if (response.status === 204) return received;
    try {
      for await (const message of read(response.body, position)) received.push(message);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
    }
  }
}

/** Names and values of the complete lines; `undefined` is the empty line at the end of a frame. */
async function* fields(body) {
  let rest = "";
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const [, name, value] = /^([^:]*):? ?([^]*)$/.exec(line);
      yield line === "" ? undefined : { name, value };
    }
  }
}

/** Section 9.2.6 of the HTML standard. */
async function* readAsBrowser(body, position) {
  let [id, data] = [position.id, ""];
  for await (const field of fields(body)) {
    if (field?.name === "id") id = field.value;
    if (field?.name === "data") data += field.value;
    if (field) continue;
    position.id = id;
    if (data) yield { id, data };
    data = "";
  }
}

/** `SSEDecoder` of httpx-sse: each frame is an event with the id of the newest `id:`. */
async function* readAsHttpx(body, position) {
  let [id, data] = ["", ""];
  for await (const field of fields(body)) {
    if (field?.name === "id") id = field.value;
    if (field?.name === "data") data += field.value;
    if (field) continue;
    position.id = id || position.id;
    if (data) yield { id, data };
    data = "";
  }
}

/** `SseParser` of .NET: `LastEventId` is the newest `id:`, `EventId` that of the item. */
const readAsDotnet = (property) =>
  async function* (body, position) {
    let [id, data] = [undefined, ""];
    for await (const field of fields(body)) {
      if (field?.name === "id") {
        id = field.value;
        if (property === "LastEventId") position.id = id;
      }
      if (field?.name === "data") data += field.value;
      if (field) continue;
      if (data) {
        if (property === "EventId") position.id = id ?? position.id;
        yield { id, data };
      }
      [id, data] = [undefined, ""];
    }
  };

async function* readWithParser(body, position) {
  const text = body.pipeThrough(new TextDecoderStream());
  for await (const message of text.pipeThrough(new EventSourceParserStream())) {
    position.id = message.id ?? position.id;
    yield message;
  }
}

const readWithEventSource = (server) =>
  new Promise((resolve) => {
    const received = [];
    const source = new EventSource(URL, { fetch: server.fetch });
    for (const name of server.recording.names) {
      source.addEventListener(name, ({ data, lastEventId }) => received.push({ id: lastEventId, data }));
    }
    source.addEventListener("error", () => source.readyState === source.CLOSED && resolve(received));
  });

/** `isAdvised`: with the setting of `docs/clients.md`. */
const readWithFetchEventSource = (isAdvised) => async (server) => {
  const received = [];
  const end = new AbortController();
  let lastId = "0";
  const fetch = async (url, init) => {
    const headers = isAdvised ? { ...init.headers, "last-event-id": lastId } : init.headers;
    const response = await server.fetch(url, { ...init, headers });
    if (response.status === 204) end.abort();
    return response;
  };
  await fetchEventSource(URL, {
    fetch,
    signal: end.signal,
    openWhenHidden: true,
    onmessage: ({ id, data }) => {
      lastId = id || lastId;
      if (data) received.push({ id, data });
    },
    onclose: () => {
      throw new Error("connect again");
    },
  });
  return received;
};

const CLIENTS = {
  eventsource: readWithEventSource,
  "eventsource-parser": (server) => readAgain(server, readWithParser),
  "fetch-event-source": readWithFetchEventSource(true),
  browser: (server) => readAgain(server, readAsBrowser),
  "httpx-sse": (server) => readAgain(server, readAsHttpx),
  "SseItem.EventId": (server) => readAgain(server, readAsDotnet("EventId")),
  "SseParser.LastEventId": (server) => readAgain(server, readAsDotnet("LastEventId")),
  "fetch-event-source without its setting": readWithFetchEventSource(false),
};

/** The members by which a client knows a live event and the stored one as the same. */
function identity(data) {
  const { type, promptId, turn, messageId } = JSON.parse(data);
  return JSON.stringify([type, promptId, turn, messageId]);
}

/** Numbers of the stored events that were not received, and the number of repeated ones. */
function compare(recording, received) {
  const ids = received.map(({ id, data }) => (recording.ids.get(data) === id ? id : undefined));
  const numbered = new Set(ids.filter((id) => id));
  const live = new Set(received.filter((_, index) => !ids[index]).map(({ data }) => identity(data)));
  const isReceived = ({ id, data }) =>
    numbered.has(id) || (recording.confirmed.has(id) && live.has(identity(data)));
  const lost = recording.stored.filter((event) => !isReceived(event)).map(({ id }) => id);
  return { lost, repeated: ids.filter((id) => id).length - numbered.size };
}

function framesOf(text) {
  return text.split("\n\n").map((frame) => {
    const valueOf = (name) => new RegExp(`(?:^|\\n)${name}: ([^\\n]*)`).exec(frame)?.[1];
    return { id: valueOf("id"), event: valueOf("event"), data: valueOf("data") };
  });
}

function load({ name, whole, rests }) {
  const stored = framesOf(rests[0]).filter(({ id, data }) => id && data);
  const sent = framesOf(whole);
  // Some data of the protocol depends on the position from which a stream begins.
  const later = rests.flatMap(framesOf);
  const encoder = new TextEncoder();
  return {
    name,
    whole: encoder.encode(whole),
    rests: rests.map((rest) => encoder.encode(rest)),
    names: new Set([...sent, ...later].map(({ event }) => event).filter((event) => event)),
    stored,
    ids: new Map([...sent, ...later].map(({ id, data }) => [data, id])),
    confirmed: new Set(sent.filter(({ id, data }) => id && !data).map(({ id }) => id)),
  };
}

const results = [];
for (const recording of JSON.parse(fs.readFileSync(process.argv[2], "utf8")).map(load)) {
  for (const [client, read] of Object.entries(CLIENTS)) {
    const result = { recording: recording.name, client, bytes: recording.whole.length, cuts: 0, lost: [], repeated: 0 };
    for (let cut = 0; cut <= recording.whole.length; cut += 1) {
      const received = await read(new Server(recording, cut, cut % 2 === 0));
      const { lost, repeated } = compare(recording, received);
      result.cuts += 1;
      if (lost.length > 0) result.lost.push(cut);
      result.repeated += repeated;
    }
    results.push(result);
  }
}
console.log(JSON.stringify(results));
