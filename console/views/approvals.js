// Purpose: the inbox of approval requests, oldest first, each with its exact arguments.
import { conversationPath, get, list } from "../lib/api.js";
import { contentText, shorten, visible } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { approvalCount, pollInterval } from "../lib/state.js";
import { ApprovalCard } from "../parts/approval.js";
import { Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";

export default function Approvals() {
  const { data, error, reload } = useResource(() => list("/approvals", {}, 200), [], pollInterval());
  // A decided card stays until the reader leaves, so that the outcome can be read.
  const [kept, setKept] = useState([]);
  useEffect(() => {
    if (!data) return;
    approvalCount.value = data.items.length;
    const known = new Set(kept.map(({ id }) => id));
    const added = data.items.filter(({ id }) => !known.has(id));
    if (added.length) setKept([...kept, ...added]);
  }, [data]);
  const [decided, setDecided] = useState(new Set());
  const open = new Set((data?.items ?? []).map(({ id }) => id));
  const shown = kept.filter(({ id }) => open.has(id) || decided.has(id));
  return html`<section class="page narrow">
    <header class="page-head"><h1>Approvals</h1></header>
    ${error ? html`<${ProblemNote} error=${error} onRetry=${reload} />` : ""}
    ${!data && !error ? html`<${Loading} rows=${4} />` : ""}
    ${data && shown.length === 0 ? html`<${Empty} title="Nothing waits for your decision"><p>Requests appear here when an agent wants to run a tool that needs an approval.</p><//>` : ""}
    <div class="stack">${shown.map((approval) => html`<div key=${approval.id} data-row data-approval=${approval.id}>
      <${ApprovalCard} approval=${approval} showConversation onDecided=${() => (setDecided(new Set([...decided, approval.id])), reload())} />
      <${LastMessages} approval=${approval} /></div>`)}</div>
    ${data?.isCut ? html`<p class="muted">Only the oldest 200 requests are shown.</p>` : ""}
  </section>`;
}

/** The last three messages before the request, on demand: they cost a read each. */
function LastMessages({ approval }) {
  const [messages, setMessages] = useState(null);
  const [error, setError] = useState(null);
  const load = async (event) => {
    if (!event.currentTarget.open || messages) return;
    try {
      const path = conversationPath(approval.conversationId);
      const total = (await get(path)).seq ?? (await get(`${path}/stats`)).entries;
      const { items } = await get(`${path}/entries`, { afterSeq: Math.max(0, total - 12), limit: 12 });
      setMessages(items.filter(({ type, message }) => type === "message" && contentText(message.content)).slice(-3));
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<details class="context" onToggle=${load}><summary>Last messages</summary>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    ${messages?.map(({ id, message }) => html`<p key=${id} class="plain small"><strong>${{ user: "User", assistant: "Model", toolResult: "Tool" }[message.role] ?? ""}</strong> <bdi>${visible(shorten(contentText(message.content), 600))}</bdi></p>`)}
    ${messages?.length === 0 ? html`<p class="muted small">No messages</p>` : ""}
  </details>`;
}
