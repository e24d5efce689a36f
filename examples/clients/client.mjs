#!/usr/bin/env node
// Sends a prompt to an agent, follows its events, decides its approval requests and prints the result.
// Requires Node 18.3 or later and no packages. Explained in docs/clients.md.
//
//   node client.mjs --agent payments-clerk --input "Pay 250 to Ada" --decide approve

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const ATTEMPTS_MAX = 6;
const TEMPORARY = [408, 429, 500, 502, 503, 504];
/** The server sends a comment every 15 s, so a silent connection is dead. */
const SILENCE_MAX_MS = 45_000;

class ApiError extends Error {
  constructor(status, problem, retryAfter) {
    super(`${status} ${problem.detail ?? problem.title ?? ""}`.trim());
    Object.assign(this, { status, problem, retryAfter });
  }
}

/** Throws the problem document of an unsuccessful response. */
async function check(response) {
  if (response.ok) return response;
  const text = await response.text();
  let problem = { detail: text };
  try {
    problem = JSON.parse(text);
  } catch {
    // A proxy responded, not Turnwheel.
  }
  throw new ApiError(response.status, problem, Number(response.headers.get("retry-after")) || undefined);
}

/** Sends a request and returns its JSON. Repeats it after temporary failures: use only repeatable requests. */
async function send(api, path, { method = "GET", headers = {}, body } = {}) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await fetch(api.base + path, {
        method,
        headers: { ...api.headers, ...(body ? { "content-type": "application/json" } : {}), ...headers },
        body: body && JSON.stringify(body),
      });
      return await (await check(response)).json();
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
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of response.body) {
    onChunk();
    text += decoder.decode(chunk, { stream: true });
    const complete = text.split("\n\n");
    text = complete.pop();
    for (const frame of complete) {
      const fields = frame.split("\n").map((line) => /^(\w+): ?(.*)$/.exec(line));
      yield Object.fromEntries(fields.filter(Boolean).map(([, name, value]) => [name, value]));
    }
  }
}

/**
 * Yields the events of a conversation until nothing runs in it. Reconnects after the last stored event.
 * In Azure an open stream keeps an instance billed.
 */
export async function* events(api, conversationId) {
  let lastId = "0";
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
        if (frame.data) yield JSON.parse(frame.data);
      }
    } catch (error) {
      if (error instanceof ApiError && !TEMPORARY.includes(error.status)) throw error;
      console.error(`events: ${error.message}; reconnecting after event ${lastId}`);
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
  return { isRunning: false, prompts: new Map(), messages: new Map(), approvals: new Map(), toolCalls: new Map() };
}

export function reduce(view, event) {
  const { type, promptId, messageId } = event;
  const prompt = view.prompts.get(promptId);
  switch (type) {
    case "agent_start":
      view.isRunning = true;
      break;
    case "agent_settled":
      view.isRunning = false;
      view.toolCalls.clear();
      break;

    case "message_start": // also a live message that begins again: it replaces the old one
    case "message_end":
      view.messages.set(messageId, event.message);
      break;
    case "message_snapshot":
      if (view.messages.has(messageId)) view.messages.get(messageId).content = event.content;
      break;
    case "message_update":
      if (view.messages.has(messageId)) append(view.messages.get(messageId).content, event.assistantMessageEvent);
      break;
    case "message_reset":
      view.messages.delete(messageId);
      break;

    case "tool_execution_start":
    case "tool_execution_update":
      view.toolCalls.set(event.toolCallId, event);
      break;
    case "tool_execution_end":
      view.toolCalls.delete(event.toolCallId);
      break;

    case "prompt.created":
      view.prompts.set(promptId, { state: "running", output: [] });
      break;
    case "prompt.output":
      prompt?.output.push(event.output);
      break;
    case "prompt.output-updated":
      if (prompt) replaceOutput(prompt.output, event.output);
      break;
    case "prompt.approval-requested":
      if (event.approval) view.approvals.set(event.approval.id, event.approval);
      break;
    case "prompt.approval-settled":
      if (event.approval) view.approvals.delete(event.approval.id);
      break;
    case "prompt.completed":
    case "prompt.error":
      if (prompt) Object.assign(prompt, { state: event.state, stopReason: event.stopReason, error: event.error });
      break;
  }
}

function append(blocks, { type, contentIndex: index, delta, content, id, toolName, toolCall }) {
  const block = blocks[index];
  if (type === "text_start") blocks[index] = { type: "text", text: "" };
  if (type === "text_delta" && block) block.text += delta;
  if (type === "text_end") blocks[index] = { type: "text", text: content };
  if (type === "thinking_start") blocks[index] = { type: "thinking", thinking: "" };
  if (type === "thinking_delta" && block) block.thinking += delta;
  if (type === "thinking_end") blocks[index] = { type: "thinking", thinking: content };
  if (type === "toolcall_start") blocks[index] = { type: "toolCall", id, name: toolName, arguments: {} };
  if (type === "toolcall_end") blocks[index] = toolCall; // before, the deltas are pieces of JSON
}

/** Models may repeat the id of a tool call, so a pending output has precedence. */
function replaceOutput(outputs, output) {
  const isPending = (other) => other.id === output.id && other.result?.type === "pending";
  const last = outputs.map((other) => other.id).lastIndexOf(output.id);
  const pending = outputs.findIndex(isPending);
  if (last >= 0) outputs[pending >= 0 ? pending : last] = output;
}
// End of the reducer.

/** Prints what happens, on the error stream. */
function report(event) {
  const update = event.assistantMessageEvent;
  if (update?.type === "text_delta") process.stderr.write(update.delta);
  if (update?.type === "text_end") process.stderr.write("\n");
  if (event.type === "tool_execution_start") console.error(`${event.toolName} ${JSON.stringify(event.args)}`);
  if (event.type === "auto_retry_start") console.error(`${event.errorMessage}: retry in ${event.delayMs} ms`);
}

async function decideIfAsked(api, approval, decision) {
  console.error(`approval requested: ${approval.title} ${approval.reason}`);
  if (!approval.decisions.includes(decision)) {
    console.error(`waiting for an approver's decision: ${approval.decisions.join(", ")}`);
    return;
  }
  try {
    await decide(api, approval, decision);
  } catch (error) {
    // 409: already decided differently. 410: expired. Both have their own events.
    if (![409, 410].includes(error.status)) throw error;
    console.error(error.message);
  }
}

function options() {
  const { values } = parseArgs({
    options: {
      url: { type: "string", default: "http://127.0.0.1:7071" },
      agent: { type: "string" },
      input: { type: "string" },
      decide: { type: "string" },
      key: { type: "string", default: randomUUID() },
      header: { type: "string", multiple: true, default: [] },
      json: { type: "boolean", default: false },
    },
  });
  if (!values.input) throw new Error("--input TEXT is required");
  const headers = values.header.map((header) => header.split(/:\s*(.*)/s).slice(0, 2));
  return { ...values, api: { base: values.url.replace(/\/$/, ""), headers: Object.fromEntries(headers) } };
}

async function main() {
  const { api, agent, input, decide: decision, key, json } = options();
  const { conversationId, promptId } = await startPrompt(api, { agent, input, key });
  console.error(`conversation ${conversationId}, prompt ${promptId}, key ${key}`);
  const view = emptyView();
  for await (const event of events(api, conversationId)) {
    reduce(view, event);
    report(event);
    if (event.type === "prompt.approval-requested" && event.approval) {
      await decideIfAsked(api, event.approval, decision);
    }
    const isEnd = event.type === "prompt.completed" || event.type === "prompt.error";
    if (isEnd && event.promptId === promptId) break;
  }
  const prompt = await send(api, `/api/conversations/${conversationId}/prompts/${promptId}`);
  const text = prompt.output.filter((output) => output.type === "text").at(-1)?.content ?? "";
  const messages = [...view.messages.values()];
  console.log(json ? JSON.stringify({ conversationId, prompt, text, messages }) : text);
  if (prompt.error) console.error(`${prompt.error.type}: ${prompt.error.message}`);
  return prompt.state === "completed" ? 0 : 1;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  main().then(
    (code) => {
      process.exitCode = code;
    },
    (error) => {
      console.error(error.message);
      process.exitCode = 1;
    },
  );
}
