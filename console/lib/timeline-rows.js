// Purpose: turns stored entries into the rows of the timeline. Pure.
import { stringify } from "./exact-json.js";
import { contentText, duration, millis, shorten, visible } from "./format.js";
import { callState, toolCalls } from "./transcript.js";

/**
 * @typedef {{key: string, seq: number, kind: string, icon: string, title: string, summary?: string, at?: string, ms?: number,
 *   tokens?: number, cost?: number, state?: string, isProblem?: boolean, isDetail?: boolean, entry?: any, call?: any,
 *   decision?: any, isMissing?: boolean}} Row
 */

export const FILTERS = [["all", "All"], ["model", "Model"], ["tool", "Tools"], ["approval", "Approvals"], ["problem", "Problems"]];

/**
 * All rows in the order of `seq`; an entry that is not loaded is a row with `isMissing`.
 * @param {any[]} entries sorted by `seq`
 * @param {number} total newest `seq`
 * @returns {Row[]}
 */
export function timelineRows(entries, total) {
  const calls = toolCalls(entries);
  const context = { calls, decisions: new Map(), callOf: callsByEntry(calls), inputs: new Set(), requestCalls: requestCalls(calls) };
  for (const entry of entries) if (entry.type === "decision") context.decisions.set(entry.decision.approvalId, entry.decision);
  const rows = [];
  let seq = 1;
  for (const entry of entries) {
    for (; seq < entry.seq; seq += 1) rows.push(missingRow(seq));
    seq = entry.seq + 1;
    const row = rowOf(entry, context);
    if (row) rows.push({ key: entry.id, seq: entry.seq, at: entry.timestamp, entry, ...row });
  }
  for (; seq <= total; seq += 1) rows.push(missingRow(seq));
  return rows;
}

/** One object per `seq`, for all conversations: a long one has thousands of them. @type {Row[]} */
const missingRows = [];

function missingRow(seq) {
  missingRows[seq] ??= { key: `missing-${seq}`, seq, kind: "missing", icon: "more", title: "", isMissing: true };
  return missingRows[seq];
}

/** Rows that pass the filter, the level of detail and the search. @param {Row[]} rows */
export function filterRows(rows, { filter, isDetailed, text }) {
  const words = text.trim().toLowerCase();
  if (filter === "all" && isDetailed && !words) return rows;
  return rows.filter((row) => {
    if (row.isMissing) return filter === "all" && !words;
    if (row.isDetail && !isDetailed && !words) return false;
    if (filter === "problem" ? !row.isProblem : filter !== "all" && row.kind !== filter) return false;
    return !words || searchText(row).includes(words);
  });
}

function searchText(row) {
  return `${row.title} ${row.summary ?? ""} ${stringify(row.entry)} ${row.call ? stringify([row.call.args, row.call.result]) : ""}`.toLowerCase();
}

/** The call of each entry that starts it first, and of each result without a start. */
function callsByEntry(calls) {
  const map = new Map();
  for (const call of calls.values()) {
    const first = call.starts[0] ?? call.resultEntry;
    if (first) map.set(first.id, call);
  }
  return map;
}

function requestCalls(calls) {
  const map = new Map();
  for (const call of calls.values()) for (const request of call.requests) map.set(request.id, call);
  return map;
}

function rowOf(entry, context) {
  switch (entry.type) {
    case "prompt":
      return { kind: "prompt", icon: "chats", title: "Prompt", summary: `${entry.source ?? ""}, model ${visible(entry.model)}`, isDetail: false };
    case "message":
      return messageRow(entry, context);
    case "tool_started":
    case "tool_returned":
      return toolRow(entry, context);
    case "request":
      return requestRow(entry, context);
    case "decision":
      return null; // part of the row of its request
    case "prompt_end":
      return endRow(entry);
    default:
      return otherRow(entry);
  }
}

function messageRow(entry, context) {
  const { message } = entry;
  if (message.role === "toolResult") return toolRow(entry, context);
  if (message.role === "assistant") return modelRow(entry);
  if (message.role === "user") {
    const isSteer = context.inputs.has(entry.promptId);
    context.inputs.add(entry.promptId);
    return { kind: "input", icon: "user", title: isSteer ? "Steering input" : "Input", summary: line(contentText(message.content)) };
  }
  return { kind: "input", icon: "chats", title: visible(message.customType ?? message.role), summary: line(contentText(message.content ?? message.summary ?? message.command)) };
}

function modelRow(entry) {
  const { message } = entry;
  const isFailed = message.stopReason === "error";
  const names = (message.content ?? []).filter((block) => block.type === "toolCall").map((block) => block.name);
  const text = contentText(message.content) || (names.length ? `requests ${names.join(", ")}` : "");
  return {
    kind: "model",
    icon: "model",
    title: visible(message.model),
    summary: line(isFailed ? message.errorMessage : text),
    ms: entry.startedAt ? message.timestamp - entry.startedAt : undefined,
    tokens: message.usage?.totalTokens,
    cost: message.usage?.cost?.total,
    state: isFailed ? (entry.isRetried ? "retried" : "failed") : message.stopReason === "aborted" ? "aborted" : "done",
    isProblem: isFailed || message.stopReason === "length",
  };
}

function toolRow(entry, { callOf }) {
  const call = callOf.get(entry.id);
  if (!call) return null; // a further attempt or the result: part of the row of its call
  const state = callState(call);
  const start = call.starts[0];
  const end = call.resultEntry;
  return {
    kind: "tool",
    icon: "tool",
    title: visible(call.name),
    summary: line(stringify(call.args ?? {})),
    ms: start && end ? millis(end.timestamp) - millis(start.timestamp) : undefined,
    state,
    attempts: call.starts.length,
    effect: start?.effect,
    isProblem: ["failed", "rejected", "unknown"].includes(state) || call.starts.length > 1,
    call,
  };
}

function requestRow(entry, { decisions, requestCalls }) {
  const { request } = entry;
  const decision = decisions.get(request.id);
  const waited = decision ? duration(millis(decision.decidedAt) - millis(request.requestedAt)) : "";
  const verdict = decision ? `${visible(decision.decision).replaceAll("_", " ")} by ${visible(decision.decidedBy)}` : "undecided";
  return {
    kind: "approval",
    icon: request.kind === "outcome" ? "question" : "approvals",
    title: visible(request.title),
    summary: line([request.reason, waited ? `${verdict}, waited ${waited} for approval` : verdict].filter(Boolean).join(" · ")),
    state: decision ? (decision.decision === "reject" ? "rejected" : "done") : "waiting",
    isProblem: request.kind === "outcome" || decision?.decision === "reject",
    call: requestCalls.get(request.id),
    decision,
  };
}

function endRow(entry) {
  const summary = entry.error?.message ?? entry.incomplete?.message ?? visible(entry.stopReason ?? "");
  const isProblem = entry.state !== "completed" || Boolean(entry.incomplete);
  return { kind: "end", icon: isProblem ? "warning" : "check", title: `Prompt ${visible(entry.state)}`, summary: line(summary), state: entry.state, isProblem, isDetail: !isProblem };
}

const OTHERS = {
  compaction: ["compact", "Compaction", (entry) => entry.summary],
  branch_summary: ["branch", "Summary of a branch", (entry) => entry.summary],
  failed_summary: ["warning", "Summary failed", () => ""],
  lost_call: ["restart", "Model call lost with its process", (entry) => `about ${entry.estimate?.totalTokens ?? 0} tokens`],
  model_change: ["model", "Model changed", (entry) => entry.modelId ?? entry.model],
  thinking_level_change: ["model", "Thinking level changed", (entry) => entry.thinkingLevel],
  label: ["branch", "Label", (entry) => entry.label ?? "removed"],
  session_info: ["edit", "Name changed", (entry) => entry.name ?? "removed"],
  output: ["file", "File for the user", (entry) => entry.output?.path ?? ""],
  custom: ["chats", "Data of an extension", (entry) => entry.customType],
  custom_message: ["chats", "Message of a program", (entry) => contentText(entry.content)],
  frame: ["skills", "Instructions and tools for the model", (entry) => (entry.tools ?? []).map((tool) => tool.name).join(", ")],
};
const PROBLEMS = ["failed_summary", "lost_call"];
const DETAILS = ["label", "session_info", "custom", "frame", "protocol"];

function otherRow(entry) {
  const [icon, title, summary] = OTHERS[entry.type] ?? ["more", visible(entry.type), () => ""];
  return { kind: "other", icon, title, summary: line(summary(entry)), isProblem: PROBLEMS.includes(entry.type), isDetail: DETAILS.includes(entry.type) || !OTHERS[entry.type] };
}

function line(text) {
  return shorten(visible(text ?? "").replace(/\s+/g, " ").trim(), 240);
}
