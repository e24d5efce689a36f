// Purpose: the branches of a conversation: continue from another entry, fork, edit and resend, label.
import { conversationPath, get, post, send } from "../lib/api.js";
import { dateTime, plural, visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { conversationHref, go } from "../lib/router.js";
import { announce, dialog, isReadOnly, showToast } from "../lib/state.js";
import { Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { closeDialog } from "../parts/dialog.js";
import { Icon } from "../parts/icon.js";
import { editAndResend } from "../parts/resend.js";

/** @param {{store: any}} props */
export default function Tree({ store }) {
  const conversation = store.conversation.value;
  const { data, error, reload } = useResource(() => get(`${store.path}/tree`, { limit: 100 }), [store.id, conversation?.leafId, conversation?.lastEventId]);
  const [detail, setDetail] = useState(null);
  if (error && !data) return html`<div class="page"><${ProblemNote} error=${error} onRetry=${reload} /></div>`;
  if (!data) return html`<div class="page"><${Loading} /></div>`;
  if (data.items.length === 0) return html`<${Empty} title="No entries yet" />`;
  const rows = treeRows(data.items);
  const branches = rows.filter(({ node }) => node.children.length === 0).length;
  return html`<div class="page narrow">
    <header class="page-head"><p class="muted">${plural(data.entries, "entry", "entries")} in ${plural(branches, "branch", "branches")}. The model reads the marked path.</p></header>
    ${detail?.writesLeft?.length ? html`<${WritesLeft} writes=${detail.writesLeft} />` : ""}
    <ul class="tree" aria-label="Branches">${rows.map(({ node, depth }) => html`<${Node} key=${node.id} node=${node} depth=${depth} store=${store} leafId=${data.leafId}
      isIdle=${conversation?.state === "idle"} onMoved=${(moved) => (setDetail(moved), store.refresh(), reload())} />`)}</ul>
    ${data.isCut || data.continuation ? html`<p class="muted small">The tree is cut: it has more entries than this view shows.</p>` : ""}
  </div>`;
}

/** Nodes in the order of the tree; a fork indents its branches, a chain does not. */
function treeRows(items) {
  const byId = new Map(items.map((node) => [node.id, node]));
  const isChild = new Set(items.flatMap((node) => node.children));
  const rows = [];
  const stack = items.filter((node) => !isChild.has(node.id)).reverse().map((node) => ({ node, depth: 0 }));
  while (stack.length) {
    const row = stack.pop();
    rows.push(row);
    const children = row.node.children.map((id) => byId.get(id)).filter(Boolean);
    const depth = row.depth + (children.length > 1 ? 1 : 0);
    for (const node of children.reverse()) stack.push({ node, depth });
  }
  return rows;
}

const NAMES = { user: "User", assistant: "Model", toolResult: "Result", prompt: "Start of a prompt", prompt_end: "End of a prompt", label: "Label", compaction: "Compaction", branch_summary: "Summary of a branch", request: "Approval request", decision: "Decision", tool_started: "Tool call" };

function Node({ node, depth, store, leafId, isIdle, onMoved }) {
  const title = NAMES[node.role] ?? NAMES[node.type] ?? visible(node.type).replaceAll("_", " ");
  const canAct = isIdle && !isReadOnly();
  const edit = async () => {
    const entry = await findEntry(store, node.id);
    if (entry) editAndResend(store, entry);
    else showToast("The entry could not be read");
  };
  return html`<li class="tree-node ${node.onPath ? "on-path" : ""}" style=${{ marginLeft: `${Math.min(depth, 8) * 1.5}rem` }} data-row data-entry=${node.id}>
    <span class="tree-mark" aria-hidden="true"></span>
    <div class="grow"><p><strong>${title}</strong> <bdi>${visible(node.preview ?? "")}</bdi> ${node.label ? html`<span class="badge info"><${Icon} name="branch" />${visible(node.label)}</span>` : ""}
      ${node.id === leafId ? html`<span class="badge good">Current</span>` : ""}${node.onPath ? html`<span class="sr-only">on the path</span>` : ""}</p>
      <p class="small muted">${dateTime(node.timestamp)}</p></div>
    <details class="menu"><summary class="button small quiet">Actions<span class="sr-only"> for ${title} ${visible(node.preview ?? "")}</span></summary>
      <div class="menu-items" onClick=${(event) => event.currentTarget.closest("details").removeAttribute("open")}>
        ${canAct && node.id !== leafId ? html`<button type="button" class="menu-item" onClick=${() => move(store, node, onMoved)}>Continue from here</button>` : ""}
        ${canAct && node.role === "user" ? html`<button type="button" class="menu-item" onClick=${edit}>Edit and resend</button>` : ""}
        ${isReadOnly() ? "" : html`<button type="button" class="menu-item" onClick=${() => fork(store, node)}>Fork into a new conversation</button>
        <button type="button" class="menu-item" onClick=${() => label(store, node, onMoved)}>${node.label ? "Change the label" : "Label"}</button>`}
      </div></details>
  </li>`;
}

async function findEntry(store, id) {
  for (let first = store.firstLoaded(); ; ) {
    const entry = store.entries.value.find((other) => other.id === id);
    if (entry || first <= 1) return entry;
    await store.ensure(first - 1);
    const next = store.firstLoaded();
    if (next === first) return undefined;
    first = next;
  }
}

async function move(store, node, onMoved) {
  try {
    const moved = await post(`${store.path}/leaf`, { entryId: node.id });
    announce("The conversation continues from this entry");
    onMoved(moved);
  } catch (error) {
    showToast(error.message);
  }
}

async function fork(store, node) {
  try {
    const { conversation } = await post(`${store.path}/fork`, { entryId: node.id, position: "at" });
    showToast("Forked into a new conversation");
    go(conversationHref(conversation.id).slice(1));
  } catch (error) {
    showToast(error.message);
  }
}

function label(store, node, onDone) {
  dialog.value = { title: "Label", content: html`<${LabelForm} store=${store} node=${node} onDone=${onDone} />` };
}

function LabelForm({ store, node, onDone }) {
  const [text, setText] = useState(node.label ?? "");
  const [error, setError] = useState(null);
  const save = async (event) => {
    event.preventDefault();
    try {
      await send("PUT", `${conversationPath(store.id)}/entries/${encodeURIComponent(node.id)}/label`, { body: { label: text } });
      closeDialog();
      onDone({});
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<form onSubmit=${save}><label class="field">Label of this entry; empty removes it<input type="text" value=${text} maxlength="200" onInput=${(event) => setText(event.currentTarget.value)} /></label>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    <div class="actions end"><button type="button" class="button" onClick=${closeDialog}>Cancel</button><button type="submit" class="button primary">Save</button></div></form>`;
}

function WritesLeft({ writes }) {
  return html`<div class="note warning" role="status"><${Icon} name="warning" /><div class="grow"><p class="note-title">${plural(writes.length, "write")} on the branch left behind stay done</p>
    ${writes.map((write) => html`<p class="small mono">${visible(write.tool)} ${visible(write.outcome)} ${visible(write.effectId)}</p>`)}</div></div>`;
}
