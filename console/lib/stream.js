// Purpose: reads the event stream of a conversation, notices a silent one and connects again.
import { conversationPath, credentials, Problem, queryString, viewAs } from "./api.js";
import { parse } from "./exact-json.js";
import { lostSince } from "./state.js";

/** The server sends `ping` each 15 s: a stream without a byte for this time is dead. */
const SILENCE_MS = 35_000;
/** A stream without a first byte after this time does not get through a proxy: poll instead. */
const FIRST_BYTE_MS = 20_000;
const POLL_MS = 2_000;
const RECONNECT_MS = 1_000;

/** Streams of all tabs together: a browser opens six connections to a host over HTTP/1.1, and requests need some. */
const STREAMS_MAX = 4;

/**
 * Runs `work` while this tab has one of the streams that the tabs of a browser share.
 * @param {() => Promise<void>} work
 * @returns {Promise<boolean>} false if other tabs have all of them
 */
export async function withStream(work) {
  if (!navigator.locks) return work().then(() => true);
  for (let number = 0; number < STREAMS_MAX; number += 1) {
    const isTaken = await navigator.locks.request(`turnwheel-stream-${number}`, { ifAvailable: true }, async (lock) => {
      if (!lock) return false;
      await work();
      return true;
    });
    if (isTaken) return true;
  }
  return false;
}

/**
 * Follows a conversation until `signal` is aborted, or until it is settled if `untilSettled`.
 * @param {string} id
 * @param {{after: number, untilSettled: boolean, signal: AbortSignal,
 *   onEvent: (event: any, id: number | null) => void, onState: (state: "open" | "lost" | "settled") => void}} options
 */
export async function follow(id, options) {
  const { signal, onState, untilSettled } = options;
  let last = options.after;
  let isPolling = false;
  const take = (event, eventId) => {
    if (eventId !== null) last = eventId;
    if (event) options.onEvent(event, eventId);
  };
  while (!signal.aborted) {
    const query = queryString({ ...(isPolling ? { follow: false } : untilSettled ? { until: "settled" } : {}), ...viewAs() });
    const end = await readOnce(`/api${conversationPath(id)}/events${query}`, last, signal, take, onState);
    if (signal.aborted) return;
    if (end === "settled") return onState("settled");
    if (end instanceof Problem) throw end;
    if (end === "no-byte") isPolling = true;
    if (end !== "ended") {
      lostSince.value ??= Date.now();
      onState("lost");
    }
    await new Promise((resolve) => setTimeout(resolve, isPolling ? POLL_MS : RECONNECT_MS));
  }
}

/** @returns {Promise<"ended" | "lost" | "no-byte" | "settled" | Problem>} how the stream ended */
async function readOnce(url, last, signal, take, onState) {
  const connection = new AbortController();
  const stop = () => connection.abort();
  signal.addEventListener("abort", stop);
  let isSilent = false;
  let hasBytes = false;
  let timer = setTimeout(() => (isSilent = true, stop()), FIRST_BYTE_MS);
  try {
    const headers = { accept: "text/event-stream", "last-event-id": String(last), ...credentials() };
    const response = await fetch(url, { headers, signal: connection.signal, cache: "no-store" });
    if (response.status === 204) return "settled";
    if (response.status >= 400 && response.status < 500 && response.status !== 429) return await problemOf(response);
    if (!response.ok || !response.body) return "lost";
    lostSince.value = null;
    onState("open");
    const reader = response.body.getReader();
    const parser = frameParser(take);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "ended";
      hasBytes = true;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      parser(value);
    }
  } catch {
    return isSilent && !hasBytes ? "no-byte" : "lost";
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    connection.abort();
  }
}

async function problemOf(response) {
  const members = await response.text().then(parse).catch(() => ({}));
  return new Problem({ title: response.statusText, ...members, status: response.status });
}

/**
 * Parser of server-sent events. An incomplete frame stays in the buffer and is lost with its stream, so its event
 * comes again after the reconnect.
 * @param {(event: any, id: number | null) => void} take
 * @returns {(bytes: Uint8Array) => void}
 */
export function frameParser(take) {
  const decoder = new TextDecoder();
  let buffer = "";
  return (bytes) => {
    buffer += decoder.decode(bytes, { stream: true });
    for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
      const frame = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      takeFrame(frame, take);
    }
  };
}

function takeFrame(frame, take) {
  let id = null;
  const data = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith("id:")) id = Number(line.slice(3).trim());
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  if (id === null && data.length === 0) return;
  take(data.length ? parse(data.join("\n")) : null, Number.isInteger(id) ? id : null);
}
