// Purpose: the list of conversations with state, reason, age and cost; filters; the paging.
import { get } from "../lib/api.js";
import { visible } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { route, setQuery } from "../lib/router.js";
import { isReadOnly, pollInterval } from "../lib/state.js";
import { Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { Icon } from "../parts/icon.js";
import { Row } from "../parts/row.js";

const STATES = [["", "All states"], ["running", "Running"], ["waiting_for_approval", "Waiting for approval"], ["idle", "Idle"], ["failed", "Last prompt failed"]];
const PAGE = 50;

/** Reads a page. @param {URLSearchParams} filters @param {string} [continuation] */
async function readPage(filters, continuation) {
  const query = { limit: PAGE, continuation };
  for (const name of ["state", "agent", "q", "order"]) query[name] = filters.get(name);
  return get("/conversations", query);
}

export default function Conversations() {
  const filters = route.value.query;
  const key = filters.toString();
  const first = useResource(() => readPage(filters), [key], pollInterval());
  const [more, setMore] = useState({ items: [], continuation: null, error: null });
  useEffect(() => setMore({ items: [], continuation: null, error: null }), [key]);
  const continuation = more.items.length ? more.continuation : first.data?.continuation;
  const loadMore = async () => {
    try {
      const page = await readPage(filters, continuation);
      setMore({ items: [...more.items, ...page.items], continuation: page.continuation, error: null });
    } catch (error) {
      setMore({ ...more, error });
    }
  };
  const seen = new Set();
  const items = [...(first.data?.items ?? []), ...more.items].filter(({ id }) => !seen.has(id) && seen.add(id));
  return html`<section class="page">
    <header class="page-head"><h1>Conversations</h1><a class="button primary" href="#/new"><${Icon} name="plus" />New conversation</a></header>
    <${Filters} filters=${filters} />
    ${first.error ? html`<${ProblemNote} error=${first.error} onRetry=${first.reload} />` : ""}
    ${!first.data && !first.error ? html`<${Loading} rows=${8} />` : ""}
    ${first.data && items.length === 0 ? html`<${NoConversations} filters=${filters} />` : ""}
    ${items.length ? html`<ul class="rows conversations" aria-label="Conversations">${items.map((item) => html`<${Row} key=${item.id} item=${item} />`)}</ul>` : ""}
    ${more.error ? html`<${ProblemNote} error=${more.error} onRetry=${loadMore} />` : ""}
    ${continuation ? html`<p class="center"><button type="button" class="button" onClick=${loadMore}>Load older conversations</button></p>` : ""}
  </section>`;
}

function Filters({ filters }) {
  const [text, setText] = useState(filters.get("q") ?? "");
  useEffect(() => {
    const timer = setTimeout(() => text !== (filters.get("q") ?? "") && setQuery({ q: text }), 300);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<div class="filters">
    <label class="field inline grow"><span class="sr-only">Search by name or text</span>
      <input type="search" data-search placeholder="Search by name or text" value=${text} onInput=${(event) => setText(event.currentTarget.value)} /></label>
    <label class="field inline"><span class="sr-only">State</span>
      <select value=${filters.get("state") ?? ""} onChange=${(event) => setQuery({ state: event.currentTarget.value })}>
        ${STATES.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
      </select></label>
    <label class="field inline"><span class="sr-only">Order</span>
      <select value=${filters.get("order") ?? ""} onChange=${(event) => setQuery({ order: event.currentTarget.value })}>
        <option value="">Newest first</option><option value="updatedAt">Last changed first</option>
      </select></label>
    <label class="field inline"><span class="sr-only">Agent</span>
      <input type="text" class="short" placeholder="Agent" value=${filters.get("agent") ?? ""} onChange=${(event) => setQuery({ agent: event.currentTarget.value.trim() })} /></label>
    ${isReadOnly() ? html`<label class="field inline"><span class="sr-only">User</span>
      <input type="text" class="short" placeholder="User" value=${filters.get("user") ?? ""} onChange=${(event) => setQuery({ user: event.currentTarget.value.trim() })} /></label>` : ""}
  </div>`;
}

function NoConversations({ filters }) {
  const wanted = ["q", "state", "agent", "user"].map((name) => filters.get(name)).filter(Boolean);
  if (wanted.length) {
    const text = wanted.join(", ");
    return html`<${Empty} title=${`Nothing matches “${visible(text)}”.`}><button type="button" class="button" onClick=${() => setQuery({ q: "", state: "", agent: "", user: "" })}>Clear the filter</button><//>`;
  }
  return html`<${Empty} title="No conversations yet"><p>An agent starts one with its first prompt.</p>
    <p><a class="button primary" href="#/new">Start a conversation</a></p><//>`;
}
