// Purpose: turns the stored entries of a conversation into the messages and tool cards of the chat. Pure.

/**
 * @typedef {{key: string, name: string, args: any, toolCallId: string, starts: any[], result?: any, requests: any[],
 *   decisions: any[], entry: any}} ToolCall
 * @typedef {{kind: string, key: string, [member: string]: any}} ChatItem
 */

/**
 * Entries on the path from the leaf back to the oldest loaded one, oldest first.
 * @param {any[]} entries sorted by `seq`
 * @param {string | null | undefined} leafId
 */
export function pathOf(entries, leafId) {
  const byId = new Map(entries.map((entry) => [entry.id, entry]));
  const newest = entries.at(-1);
  let entry = byId.get(leafId ?? "") ?? newest;
  // An entry newer than the leaf that was read continues it: the conversation record is one read behind.
  if (entry && newest && continues(byId, newest, entry)) entry = newest;
  const path = [];
  for (; entry; entry = byId.get(entry.parentId)) path.push(entry);
  return path.reverse();
}

function continues(byId, newest, leaf) {
  for (let entry = newest; entry && entry.seq >= leaf.seq; entry = byId.get(entry.parentId)) {
    if (entry === leaf) return true;
  }
  return false;
}

/** @param {any} call @param {string} [toolCallId] @param {string} [promptId] @returns {string} key of a tool call */
function callKey(call, toolCallId, promptId) {
  return call && call.answer !== undefined ? `${call.answer}/${call.index ?? 0}` : `${promptId}/${toolCallId}`;
}

/**
 * The calls of all entries by key, with everything that belongs to each.
 * @param {any[]} entries
 * @returns {Map<string, ToolCall>}
 */
export function toolCalls(entries) {
  const calls = new Map();
  const byToolCallId = new Map();
  const requestCalls = new Map();
  const find = (call, toolCallId) => calls.get(callKey(call)) ?? byToolCallId.get(toolCallId);
  for (const entry of entries) {
    if (entry.type === "message" && entry.message.role === "assistant") {
      addCalls(entry, calls, byToolCallId);
    } else if (entry.type === "tool_started") {
      find(entry.call, entry.toolCallId)?.starts.push(entry);
    } else if (entry.type === "message" && entry.message.role === "toolResult") {
      const call = find(entry.call, entry.message.toolCallId);
      if (call) Object.assign(call, { result: entry.message, resultEntry: entry });
    } else if (entry.type === "tool_returned") {
      const call = find(entry.call, entry.message.toolCallId);
      if (call && !call.result) Object.assign(call, { result: entry.message, resultEntry: entry });
    } else if (entry.type === "request") {
      const call = find(entry.request.call, entry.request.toolCallId);
      call?.requests.push(entry.request);
      if (call) requestCalls.set(entry.request.id, call);
    } else if (entry.type === "decision") {
      requestCalls.get(entry.decision.approvalId)?.decisions.push(entry.decision);
    }
  }
  return calls;
}

function addCalls(entry, calls, byToolCallId) {
  const blocks = (entry.message.content ?? []).filter((block) => block.type === "toolCall");
  blocks.forEach((block, index) => {
    const key = `${entry.seq}/${index}`;
    const call = { key, name: block.name, args: block.arguments, toolCallId: block.id, entry };
    calls.set(key, { ...call, starts: [], requests: [], decisions: [] });
    byToolCallId.set(block.id, calls.get(key));
  });
}

/**
 * The chat of a path: one item per message, notice or file, oldest first.
 * @param {any[]} path entries from `pathOf`
 * @param {Map<string, ToolCall>} calls
 * @returns {ChatItem[]}
 */
export function chatItems(path, calls) {
  const items = [];
  const decisions = new Map();
  for (const entry of path) if (entry.type === "decision") decisions.set(entry.decision.approvalId, entry.decision);
  for (const entry of path) {
    const item = chatItem(entry, calls, decisions);
    if (item) items.push({ key: entry.id, entry, ...item });
  }
  return items;
}

function chatItem(entry, calls, decisions) {
  switch (entry.type) {
    case "prompt":
      return { kind: "prompt" };
    case "message":
      return messageItem(entry, calls);
    case "custom_message":
      return entry.display ? { kind: "custom", content: entry.content, name: entry.customType } : null;
    case "request": {
      const { request } = entry;
      const isOfCall = request.toolCallId && (request.kind === "tool" || request.kind === "outcome");
      return isOfCall ? null : { kind: "request", request, decision: decisions.get(request.id) };
    }
    case "output":
      return { kind: "output", output: entry.output ?? entry };
    case "compaction":
    case "branch_summary":
      return { kind: "summary", summary: entry.summary };
    case "prompt_end":
      return entry.state === "completed" && !entry.incomplete ? null : { kind: "end" };
    case "lost_call":
      return { kind: "lost" };
    default:
      return null;
  }
}

function messageItem(entry, calls) {
  const { message } = entry;
  if (message.role === "user") return { kind: "user", content: message.content };
  if (message.role === "custom") return message.display ? { kind: "custom", content: message.content, name: message.customType } : null;
  if (message.role === "bashExecution") return { kind: "shell", message };
  if (message.role !== "assistant") return null;
  const blocks = [];
  let index = 0;
  for (const block of message.content ?? []) {
    if (block.type === "toolCall") blocks.push({ type: "toolCall", call: calls.get(`${entry.seq}/${index++}`) });
    else blocks.push(block);
  }
  return { kind: "assistant", blocks, message, isDiscarded: entry.isRetried === true };
}

/** @param {ToolCall} call @returns {"waiting" | "unknown" | "rejected" | "failed" | "done" | "running" | "pending"} */
export function callState(call) {
  const { result, requests, decisions, starts } = call;
  const undecided = requests.find((request) => !decisions.some((decision) => decision.approvalId === request.id));
  if (result?.rejected) return "rejected";
  if (result) return result.isError ? "failed" : "done";
  if (undecided) return undecided.kind === "outcome" ? "unknown" : "waiting";
  return starts.length ? "running" : "pending";
}

/** Appends a piece of a model response to the blocks of a message: the reducer of docs/events.md. */
export function appendDelta(blocks, { type, contentIndex: index, delta, content, id, toolName, toolCall }) {
  const next = [...blocks];
  const block = blocks[index];
  if (type === "text_start") next[index] = { type: "text", text: "" };
  if (type === "text_delta" && block) next[index] = { ...block, text: block.text + delta };
  if (type === "text_end") next[index] = { type: "text", text: content };
  if (type === "thinking_start") next[index] = { type: "thinking", thinking: "" };
  if (type === "thinking_delta" && block) next[index] = { ...block, thinking: block.thinking + delta };
  if (type === "thinking_end") next[index] = { type: "thinking", thinking: content };
  if (type === "toolcall_start") next[index] = { type: "toolCall", id, name: toolName, arguments: {}, partial: "" };
  if (type === "toolcall_delta" && block) next[index] = { ...block, partial: (block.partial ?? "") + delta };
  if (type === "toolcall_end") next[index] = toolCall;
  return next;
}
