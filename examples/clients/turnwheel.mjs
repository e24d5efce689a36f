// Client of Turnwheel for Node and browsers: prompts, decisions, events and a view of the conversation.
// Imports nothing. `turnwheel.d.mts` has the types. Explained in docs/clients.md.

const ATTEMPTS_MAX = 6;
const TEMPORARY = [408, 429, 500, 502, 503, 504];
/** The server sends the event `ping` after 15 s without another, so a silent connection is dead. */
const SILENCE_MAX_MS = 45_000;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class ApiError extends Error {
  constructor(status, problem, retryAfter) {
    super(`${status || ""} ${problem.detail ?? problem.title ?? ""}`.trim());
    Object.assign(this, { status, problem, retryAfter });
  }
}

/** Canonical text of a number: sign, digits without leading and trailing zeros, exponent. */
function normalText(number) {
  const parts = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/i.exec(number);
  if (!parts) return number; // Infinity
  const [, sign, whole, fraction = "", power = 0] = parts;
  const digits = (whole + fraction).replace(/^0+/, "");
  let end = digits.length;
  while (digits[end - 1] === "0") end -= 1;
  return end && `${sign}${digits.slice(0, end)}e${Number(power) + digits.length - fraction.length}`;
}

const isExact = (number) => normalText(number) === normalText(String(Number(number)));

/**
 * As `JSON.parse`. A number that JavaScript would round becomes a value of `JSON.rawJSON`, which `JSON.stringify` writes with
 * each digit. Engines without it, such as Node 20, get an error: they would show another number than the one that is sent.
 */
export function parse(text) {
  if (JSON.rawJSON) {
    const isRounded = (value, source) => typeof value === "number" && !isExact(source);
    return JSON.parse(text, (_, value, { source }) => (isRounded(value, source) ? JSON.rawJSON(source) : value));
  }
  const value = JSON.parse(text);
  for (const [token] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g)) {
    if (token[0] === '"' || isExact(token)) continue;
    throw new ApiError(0, { detail: `JavaScript would round ${token.slice(0, 100)}: use Node 21 or a newer browser` });
  }
  return value;
}

/** Throws the problem document of an unsuccessful response. */
async function check(response) {
  if (response.ok) return response;
  const text = await response.text();
  let problem = { detail: text };
  try {
    problem = parse(text);
  } catch (error) {
    // Text that is no JSON: the Functions host or a proxy responded, not Turnwheel. The host's 401 has an empty body.
    if (error instanceof ApiError) {
      // Another member has a number that `parse` refuses.
      const { type, title, status, detail } = JSON.parse(text);
      problem = { type, title, status, detail };
    }
  }
  throw new ApiError(response.status, problem, Number(response.headers.get("retry-after")) || undefined);
}

/** Sends a request and returns its JSON. Repeats it after temporary failures: use only repeatable requests. */
export async function send(api, path, { method = "GET", headers = {}, body } = {}) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await fetch(api.base + path, {
        method,
        headers: { ...api.headers, ...(body ? { "content-type": "application/json" } : {}), ...headers },
        body: body && JSON.stringify(body),
      });
      return parse(await (await check(response)).text());
    } catch (error) {
      const isFinal = error instanceof ApiError && !TEMPORARY.includes(error.status);
      if (isFinal || attempt === ATTEMPTS_MAX) throw error;
      await sleep((error.retryAfter ?? 2 ** (attempt - 1)) * 1_000);
    }
  }
}

/** Starts a prompt. The key makes repetitions harmless: they return the first response. */
export function startPrompt(api, { agent, input, key }) {
  return send(api, "/api/prompts", { method: "POST", headers: { "idempotency-key": key }, body: { agent, input } });
}

/** Decides an approval request. The same decision may be sent again. */
export function decide(api, approval, decision) {
  const path = `/api/conversations/${approval.conversationId}/approvals/${approval.id}`;
  return send(api, path, { method: "POST", body: { decision } });
}

/** Parses server-sent events. An incomplete frame at the end of a cut connection is discarded. */
async function* frames(response, onChunk) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onChunk();
    text += decoder.decode(value, { stream: true });
    const complete = text.split("\n\n");
    text = complete.pop();
    for (const frame of complete) {
      // `s`: data may contain U+2028 and U+2029, which `.` does not match otherwise.
      const fields = frame.split("\n").map((line) => /^(\w+): ?(.*)$/s.exec(line));
      yield Object.fromEntries(fields.filter(Boolean).map(([, name, value]) => [name, value]));
    }
  }
}

/**
 * Yields the events of a conversation until nothing runs in it. Reconnects after the last stored event.
 * Events that come from the store have an `id`: with `after` a later call continues there.
 * In Azure an open stream keeps an instance billed.
 */
export async function* events(api, conversationId, { after = 0 } = {}) {
  let lastId = String(after);
  let delay = 1_000;
  for (;;) {
    const connection = new AbortController();
    let timer;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => connection.abort(), SILENCE_MAX_MS);
    };
    try {
      watch();
      const response = await fetch(`${api.base}/api/conversations/${conversationId}/events?until=settled`, {
        headers: { ...api.headers, accept: "text/event-stream", "last-event-id": lastId },
        signal: connection.signal,
      });
      if (response.status === 204) return; // nothing runs, and there are no new events
      for await (const frame of frames(await check(response), watch)) {
        if (frame.retry) delay = Number(frame.retry);
        if (frame.id) lastId = frame.id;
        if (frame.data) yield { ...parse(frame.data), ...(frame.id && { id: Number(frame.id) }) };
      }
    } catch (error) {
      if (error instanceof ApiError && !TEMPORARY.includes(error.status)) throw error;
      api.onReconnect?.(error, lastId);
      if (error.retryAfter) await sleep(error.retryAfter * 1_000);
    } finally {
      clearTimeout(timer);
      connection.abort();
    }
    await sleep(delay);
  }
}

// The reducer of docs/events.md.
export function emptyView() {
  const maps = { prompts: new Map(), messages: new Map(), inputs: new Map(), approvals: new Map(), toolCalls: new Map() };
  return { isRunning: false, ...maps };
}

/** Returns the next view, or the same one if nothing changes. It changes neither the view nor the event. */
export function reduce(view, event) {
  const { type, promptId, messageId, inputId } = event;
  const prompt = view.prompts.get(promptId);
  const message = view.messages.get(messageId);
  const withPrompt = (changes) => ({ ...view, prompts: put(view.prompts, promptId, { ...prompt, ...changes }) });
  const withMessage = (message) => ({ ...view, messages: put(view.messages, messageId, message) });
  switch (type) {
    case "agent_start":
      return { ...view, isRunning: true };
    case "agent_settled":
      return { ...view, isRunning: false, toolCalls: new Map() };

    case "message_start": // also a live message that begins again: it replaces the old one
    case "message_end":
      return { ...withMessage(event.message), inputs: without(view.inputs, inputId) };
    case "message_snapshot":
      return message ? withMessage({ ...message, content: event.content }) : view;
    case "message_update":
      return message
        ? withMessage({ ...message, content: append(message.content, event.assistantMessageEvent) })
        : view;
    case "message_reset":
      return { ...view, messages: without(view.messages, messageId) };

    case "input_queued":
    case "input_changed": // an input that has joined meanwhile has its message
      return event.item?.state === "queued" ? { ...view, inputs: put(view.inputs, inputId, event.item) } : view;
    case "input_cleared":
      return { ...view, inputs: without(view.inputs, inputId) };

    case "tool_execution_start":
    case "tool_execution_update":
      return { ...view, toolCalls: put(view.toolCalls, event.toolCallId, event) };
    case "tool_execution_end":
      return { ...view, toolCalls: without(view.toolCalls, event.toolCallId) };

    case "prompt.created":
      return withPrompt({ state: "running", output: [] });
    case "prompt.output":
      return prompt ? withPrompt({ output: [...prompt.output, event.output] }) : view;
    case "prompt.output-updated":
      return prompt ? withPrompt({ output: replaceOutput(prompt.output, event.output) }) : view;
    case "prompt.approval-requested":
      if (!event.approval) return view;
      return { ...view, approvals: put(view.approvals, event.approval.id, event.approval) };
    case "prompt.approval-settled":
      return { ...view, approvals: without(view.approvals, event.approval?.id) };
    case "prompt.completed":
    case "prompt.error":
      if (!prompt) return view;
      return withPrompt({ state: event.state, stopReason: event.stopReason, error: event.error });
  }
  return view;
}

function put(map, key, value) {
  return new Map(map).set(key, value);
}

function without(map, key) {
  if (!map.has(key)) return map;
  const rest = new Map(map);
  rest.delete(key);
  return rest;
}

function append(blocks, { type, contentIndex: index, delta, content, id, toolName, toolCall }) {
  const next = [...blocks];
  const block = blocks[index];
  if (type === "text_start") next[index] = { type: "text", text: "" };
  if (type === "text_delta" && block) next[index] = { ...block, text: block.text + delta };
  if (type === "text_end") next[index] = { type: "text", text: content };
  if (type === "thinking_start") next[index] = { type: "thinking", thinking: "" };
  if (type === "thinking_delta" && block) next[index] = { ...block, thinking: block.thinking + delta };
  if (type === "thinking_end") next[index] = { type: "thinking", thinking: content };
  if (type === "toolcall_start") next[index] = { type: "toolCall", id, name: toolName, arguments: {} };
  if (type === "toolcall_end") next[index] = toolCall; // before, the deltas are pieces of JSON
  return next;
}

/** Models may repeat the id of a tool call, so a pending output has precedence. */
function replaceOutput(outputs, output) {
  const isPending = (other) => other.id === output.id && other.result?.type === "pending";
  const last = outputs.map((other) => other.id).lastIndexOf(output.id);
  const pending = outputs.findIndex(isPending);
  const index = pending >= 0 ? pending : last;
  return outputs.map((other, position) => (position === index ? output : other));
}
// End of the reducer.
