// Purpose: the detail panel of a timeline row. It reads and never changes anything.
import { get } from "../lib/api.js";
import { stringify } from "../lib/exact-json.js";
import { contentText, cost, dateTime, duration, json, millis, plural, preciseClock, tokens, visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { Markdown } from "../lib/markdown.js";
import { pathOf } from "../lib/transcript.js";
import { Arguments, CopyButton, Fact, Json, Loading, ProblemNote, State } from "./basic.js";
import { Icon } from "./icon.js";
import { decisionText, Result } from "./message.js";

/** @param {{row: any, store: any, close: () => void}} props */
export function Detail({ row, store, close }) {
  const { entry, call } = row;
  return html`<aside class="detail" aria-label="Detail">
    <header><div class="grow"><p class="small muted">Entry ${row.seq}, ${dateTime(row.at)}, ${preciseClock(row.at)}</p><h2><bdi>${row.title}</bdi></h2></div>
      <button type="button" class="button small quiet" onClick=${close}><${Icon} name="cross" />Close</button></header>
    ${row.kind === "model" ? html`<${ModelDetail} entry=${entry} store=${store} />` : ""}
    ${call ? html`<${CallDetail} call=${call} store=${store} />` : ""}
    ${row.kind === "approval" ? html`<${RequestDetail} request=${entry.request} decision=${row.decision} />` : ""}
    ${!call && row.kind !== "model" && row.kind !== "approval" ? html`<${OtherDetail} entry=${entry} />` : ""}
    <details class="context"><summary>Stored entry</summary><div class="actions"><${CopyButton} text=${json(entry)} /><${CopyButton} text=${entry.id} label="Copy id" /></div><${Json} value=${entry} label="Stored entry" /></details>
  </aside>`;
}

function OtherDetail({ entry }) {
  const text = entry.summary ?? entry.error?.message ?? contentText(entry.message?.content ?? entry.content);
  return text ? html`<${Markdown} text=${text} />` : "";
}

function ModelDetail({ entry, store }) {
  const { message } = entry;
  const { usage = {} } = message;
  const latency = entry.startedAt ? message.timestamp - entry.startedAt : NaN;
  return html`<dl class="facts">
      <${Fact} label="Input" value=${tokens(usage.input)} />
      <${Fact} label="From cache" value=${tokens(usage.cacheRead)} />
      <${Fact} label="Output" value=${tokens(usage.output)} />
      <${Fact} label="Reasoning" value=${tokens(usage.reasoning)} />
      <${Fact} label="Cost" value=${cost(usage.cost?.total)} />
      <${Fact} label="Latency" value=${Number.isFinite(latency) ? duration(latency) : "unknown"} />
    </dl>
    <p class="small muted">Provider ${visible(message.provider)}, stop reason ${visible(message.stopReason)}, revision of the agent <span class="mono">${visible(entry.revision ?? "unknown")}</span></p>
    ${message.errorMessage ? html`<p class="bad-text">${visible(message.errorMessage)}</p>` : ""}
    ${(message.content ?? []).map((block) =>
      block.type === "text"
        ? html`<${Markdown} text=${block.text} />`
        : block.type === "thinking"
          ? html`<details class="thinking"><summary>Thinking</summary><p class="plain">${visible(block.thinking)}</p></details>`
          : block.type === "toolCall"
            ? html`<h4>Calls <code>${visible(block.name)}</code></h4><${Arguments} value=${block.arguments} />`
            : null)}
    <${ModelInput} entry=${entry} store=${store} />`;
}

/** What the model saw: instructions, tools, and the messages before this response. */
function ModelInput({ entry, store }) {
  const [input, setInput] = useState(null);
  const [error, setError] = useState(null);
  const load = async () => {
    setError(null);
    try {
      await loadPath(store, entry);
      const agentName = store.conversation.value.agent;
      const [agent, models] = await Promise.all([
        get(`/agents/${encodeURIComponent(agentName)}`).catch((problem) => (problem.status === 404 ? null : Promise.reject(problem))),
        get("/models").catch(() => ({ items: [] })),
      ]);
      const frame = await loadFrame(store, entry);
      const path = pathOf(store.entries.value.filter((other) => other.seq < entry.seq), entry.parentId);
      const model = models.items.find(({ id }) => id === entry.message.model);
      setInput({ ...modelInput(path), agent, window: model?.contextWindow, ...frame });
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<details class="context model-input" onToggle=${(event) => event.currentTarget.open && !input && load()}>
    <summary>What the model saw</summary>
    ${error ? html`<${ProblemNote} error=${error} onRetry=${load} />` : ""}
    ${!input && !error ? html`<${Loading} rows=${2} />` : ""}
    ${input ? html`<${ModelInputBody} input=${input} entry=${entry} />` : ""}
  </details>`;
}

/** The messages of a response begin at the last compaction before it, or at the first entry. */
async function loadPath(store, entry) {
  for (let seq = entry.seq; seq > 1; ) {
    await store.ensure(seq);
    const loaded = store.entries.value.filter((other) => other.seq < entry.seq);
    const path = pathOf(loaded, entry.parentId);
    const first = path[0];
    if (!first || first.parentId === null || path.some((other) => other.type === "compaction")) return;
    if (first.seq >= seq) return;
    seq = first.seq - 1;
  }
}

/** The frame of a response, and its stored document. Without one `missing` is the reason. */
async function loadFrame(store, entry) {
  if (entry.frame === undefined) return {};
  await store.ensure(entry.frame);
  const frame = store.entries.value.find((other) => other.seq === entry.frame);
  if (!frame?.document) return { frame };
  try {
    return { frame, document: await get(`${store.path}/frames/${encodeURIComponent(frame.document)}`) };
  } catch (problem) {
    if (![403, 404].includes(problem.status)) throw problem;
    return { frame, missing: problem.status === 404 ? "The stored frame of this call is missing" : undefined };
  }
}

/** @param {any[]} path @returns {{messages: any[], summary?: string}} */
function modelInput(path) {
  const compaction = path.findLast((entry) => entry.type === "compaction");
  const start = compaction ? Math.max(0, path.findIndex((entry) => entry.id === compaction.firstKeptEntryId)) : 0;
  const messages = path.slice(start).filter((entry) => ["message", "custom_message"].includes(entry.type) && !entry.isRetried);
  return { messages, summary: compaction?.summary };
}

function ModelInputBody({ input, entry }) {
  const { agent, messages, summary, window, frame, document, missing } = input;
  const used = (entry.message.usage?.input ?? 0) + (entry.message.usage?.cacheRead ?? 0);
  const isOther = !document && agent && entry.revision && agent.revision && agent.revision !== entry.revision;
  const instructions = document?.systemPrompt ?? agent?.instructions;
  const offered = Array.isArray(document?.tools) ? document.tools.filter((tool) => frame.tools.some((other) => other.name === tool?.name)) : undefined;
  const tools = offered ?? agent?.toolDefinitions ?? [];
  return html`<div class="stack tight">
    <p class="small">${tokens(used)} input tokens${window ? html` of a context window of ${tokens(window)} (${Math.round((100 * used) / window)} %)` : ""}.</p>
    ${window ? html`<meter min="0" max=${window} value=${used} aria-label="Share of the context window">${used}</meter>` : ""}
    ${missing ? html`<p class="small warning-text">${missing}: the texts below are those of the agent now.</p>` : ""}
    ${isOther ? html`<p class="small warning-text">The agent has changed since: the instructions below are of revision ${agent.revision}.</p>` : ""}
    ${frame?.systemPromptSeq ? html`<p class="small">An extension replaced the instructions: entry ${frame.systemPromptSeq}.</p>` : ""}
    ${instructions ? html`<details open><summary>Instructions</summary><p class="plain small">${visible(instructions)}</p></details>` : ""}
    ${frame?.contributions?.map((part) => html`<details><summary>Text of ${visible(part.by)}</summary><p class="plain small">${visible(part.text)}</p></details>`)}
    ${tools.length ? html`<details><summary>${plural(tools.length, "tool")}</summary>${tools.map((tool) => html`<p class="small"><code>${visible(tool.name)}</code> ${visible(tool.description)}</p>`)}</details>` : ""}
    ${summary ? html`<details><summary>Summary of older messages</summary><p class="plain small">${visible(summary)}</p></details>` : ""}
    <details open><summary>${plural(messages.length, "message")}</summary>${messages.map((other) => html`<${InputMessage} key=${other.id} entry=${other} />`)}</details>
  </div>`;
}

function InputMessage({ entry }) {
  const message = entry.message ?? { role: "custom", content: entry.content };
  const calls = Array.isArray(message.content) ? message.content.filter((block) => block.type === "toolCall") : [];
  const role = { user: "User", assistant: "Model", toolResult: `Result of ${message.toolName}` }[message.role] ?? message.role;
  return html`<div class="input-message"><h4>${visible(role)}</h4>
    ${contentText(message.content) ? html`<p class="plain small">${visible(contentText(message.content))}</p>` : ""}
    ${calls.map((call) => html`<p class="mono small">${visible(call.name)} ${visible(stringify(call.arguments))}</p>`)}</div>`;
}

function CallDetail({ call, store }) {
  const attempts = call.result?.attempts ?? call.result?.details?.attempts ?? [];
  return html`<h4>Arguments</h4><${Arguments} value=${call.args} />
    ${call.result ? html`<h4>Result</h4><${Result} message=${call.result} store=${store} />` : ""}
    ${call.starts.length ? html`<h4>Attempts</h4><ul class="plain-list small">${call.starts.map((start) => html`<li><span class="mono">${preciseClock(start.timestamp)}</span> attempt ${start.attempt}, effect ${visible(start.effect ?? "unknown")}, id <span class="mono">${visible(start.effectId)}</span></li>`)}</ul>` : ""}
    ${Array.isArray(attempts) && attempts.length ? html`<h4>Requests</h4><ul class="plain-list small">${attempts.map((attempt) => html`<li><span class="mono">${preciseClock(attempt.at)}</span> ${visible(attempt.status ?? attempt.error)} ${duration(attempt.durationMs)}</li>`)}</ul>` : ""}
    ${call.resultEntry && call.starts[0] ? html`<p class="small muted">Duration ${duration(millis(call.resultEntry.timestamp) - millis(call.starts[0].timestamp))}</p>` : ""}
    ${call.decisions.map((decision) => html`<p class="small">${decisionText(decision)}</p>`)}`;
}

function RequestDetail({ request, decision }) {
  return html`<p>${visible(request.reason)}</p>
    <dl class="details">
      <div><dt>Kind</dt><dd>${visible(request.kind)}</dd></div>
      ${request.destination ? html`<div><dt>Destination</dt><dd class="mono">${visible([request.destination.method, request.destination.host ?? request.destination.server, request.destination.tool].filter(Boolean).join(" "))}</dd></div>` : ""}
      <div><dt>Approvers</dt><dd>${visible((request.approvers ?? []).join(", "))}</dd></div>
      <div><dt>Requested</dt><dd>${dateTime(request.requestedAt)}</dd></div>
      ${request.expiresAt ? html`<div><dt>Expires</dt><dd>${dateTime(request.expiresAt)}</dd></div>` : ""}
      <div><dt>Decision</dt><dd>${decision ? decisionText(decision) : html`<${State} state="waiting" />`}</dd></div>
    </dl>`;
}
