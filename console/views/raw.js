// Purpose: the stored entries and events as JSON, and each request of this page as a shell command.
import { curl, requestLog } from "../lib/api.js";
import { clock, json } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { CopyButton, Empty, Json } from "../parts/basic.js";

/** Newest entries shown at once; the timeline shows any of them. */
const ENTRIES_MAX = 50;

/** @param {{store: any}} props */
export default function Raw({ store }) {
  const [part, setPart] = useState("entries");
  const parts = [["entries", "Entries"], ["conversation", "Conversation"], ["why", "Why"], ["requests", "Requests of this page"]];
  return html`<div class="page">
    <div class="segments" role="group" aria-label="Part">${parts.map(([key, label]) => html`<button type="button" class="segment" aria-pressed=${part === key} onClick=${() => setPart(key)}>${label}</button>`)}</div>
    ${part === "entries" ? html`<${Entries} entries=${store.entries.value} />` : ""}
    ${part === "conversation" ? html`<${Json} value=${store.conversation.value} label="Conversation" />` : ""}
    ${part === "why" ? html`<${Json} value=${store.why.value} label="Why" />` : ""}
    ${part === "requests" ? html`<${Requests} />` : ""}
  </div>`;
}

function Entries({ entries }) {
  const newest = entries.slice(-ENTRIES_MAX).reverse();
  if (newest.length === 0) return html`<${Empty} title="No entries yet" />`;
  return html`<p class="small muted">The newest ${newest.length} of ${entries.at(-1).seq} entries.</p>
    <div class="actions"><${CopyButton} text=${json(newest)} label="Copy these entries" /></div>
    ${newest.map((entry) => html`<details key=${entry.id} class="raw-entry" data-row><summary><span class="mono">${entry.seq}</span> ${entry.type}${entry.message ? ` ${entry.message.role}` : ""} <span class="muted">${clock(entry.timestamp)}</span></summary><${Json} value=${entry} label=${`Entry ${entry.seq}`} /></details>`)}`;
}

function Requests() {
  const [requests, setRequests] = useState([...requestLog]);
  return html`<div class="actions"><button type="button" class="button small" onClick=${() => setRequests([...requestLog])}>Read again</button></div>
    <ul class="rows">${requests.map((request) => html`<li class="row request" data-row><span class="mono grow">${request.method} ${request.path}</span>
      <span class="numeric">${request.status}</span><span class="numeric muted">${request.ms} ms</span><${CopyButton} text=${curl(request)} label="cURL" quiet /></li>`)}</ul>`;
}
