// Purpose: the timeline of a conversation: a windowed list of all entries, filters, search, and the detail panel.
import { clock, cost, dateTime, duration, plural, preciseClock, tokens } from "../lib/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { setKeyActions } from "../lib/keyboard.js";
import { copy, preferences, setPreferences } from "../lib/state.js";
import { FILTERS, filterRows, timelineRows } from "../lib/timeline-rows.js";
import { Empty, State } from "../parts/basic.js";
import { Icon } from "../parts/icon.js";
import { Detail } from "../parts/detail.js";

const PAGE_ROWS = 25;
const ROW_HEIGHT = 37;
/** Pixels beyond the viewport in which pages are drawn. */
const NEAR = 300;

/** @param {{store: any}} props */
export default function Timeline({ store }) {
  const [filter, setFilter] = useState("all");
  const [text, setText] = useState("");
  const [selected, setSelected] = useState(null);
  const isDetailed = preferences.value.detailed;
  const entries = store.entries.value;
  const total = store.total.value;
  const all = useMemo(() => timelineRows(entries, total), [entries, total]);
  const rows = useMemo(() => filterRows(all, { filter, isDetailed, text }), [all, filter, isDetailed, text]);
  const needsAll = filter !== "all" || text.trim() !== "";
  const loading = useAllEntries(store, needsAll);
  const scroller = useRef(null);
  const chosen = selected ? all.find((row) => row.key === selected) : undefined;
  const move = (find) => {
    const next = find(rows, rows.findIndex((row) => row.key === selected));
    if (next) select(next.key);
  };
  const select = (key) => {
    setSelected(key);
    requestAnimationFrame(() => showRow(scroller.current, rows, key));
  };
  useEffect(() => setKeyActions({
    next: () => move((list, at) => list[Math.min(list.length - 1, at + 1)]),
    previous: () => move((list, at) => list[Math.max(0, (at < 0 ? list.length : at) - 1)]),
    nextProblem: () => move((list, at) => list.slice(at + 1).find((row) => row.isProblem)),
    previousProblem: () => move((list, at) => list.slice(0, at < 0 ? undefined : at).findLast((row) => row.isProblem)),
    detail: () => setSelected(selected ? null : rows.at(-1)?.key),
    copy: () => selected ?? store.id,
  }), [rows, selected]);
  return html`<div class="timeline-view">
    <div class="timeline-tools">
      <div class="segments" role="group" aria-label="Filter">${FILTERS.map(([key, label]) => html`<button type="button" class="segment" aria-pressed=${filter === key} onClick=${() => setFilter(key)}>${label}</button>`)}</div>
      <input type="search" data-search aria-label="Search in the timeline" placeholder="Search" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
      <label class="check inline"><input type="checkbox" checked=${isDetailed} onChange=${(event) => setPreferences({ detailed: event.currentTarget.checked })} /> Detailed</label>
      <button type="button" class="button small quiet" onClick=${() => copy(asText(rows))}><${Icon} name="copy" />Copy as text</button>
      <span class="small muted" role="status">${loading || plural(rows.filter((row) => !row.isMissing).length, "row")}</span>
    </div>
    <div class="timeline-body ${chosen ? "with-detail" : ""}">
      ${rows.length === 0 && !loading
        ? html`<${Empty} title=${needsAll ? "Nothing matches." : "No entries yet"}>${needsAll ? html`<button type="button" class="button" onClick=${() => (setFilter("all"), setText(""))}>Clear the filter</button>` : ""}<//>`
        : html`<${WindowedList} rows=${rows} total=${rows.length} scroller=${scroller} store=${store} selected=${selected} select=${setSelected} />`}
      ${chosen ? html`<${Detail} key=${chosen.key} row=${chosen} store=${store} rows=${all} close=${() => setSelected(null)} />` : ""}
    </div>
  </div>`;
}

/** Loads all entries once a filter or search needs them. @returns {string} progress, empty when complete */
function useAllEntries(store, isNeeded) {
  const [progress, setProgress] = useState("");
  useEffect(() => {
    if (!isNeeded) return undefined;
    let isCurrent = true;
    const onProgress = (left) => {
      if (isCurrent) setProgress(`Reading entries, ${left} to go`);
      return isCurrent;
    };
    store.loadAll(onProgress).then(() => isCurrent && setProgress(""), (error) => isCurrent && setProgress(error.message));
    return () => (isCurrent = false);
  }, [isNeeded, store]);
  return progress;
}

/** Pages of 25 rows; only pages near the viewport have elements, the others keep their height. */
function WindowedList({ rows, scroller, store, selected, select }) {
  const heights = useRef(new Map());
  const pageCount = Math.ceil(rows.length / PAGE_ROWS);
  const heightOf = (page) => heights.current.get(page) ?? rowsOf(rows, page).length * ROW_HEIGHT;
  const [range, setRange] = useState({ first: pageCount - 2, last: pageCount - 1 });
  const isAtEnd = useRef(true);
  /** Draws only when other pages come near: most scroll events change nothing. */
  const measure = () => {
    const { scrollTop, clientHeight, scrollHeight } = scroller.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40;
    let first = pageCount - 1;
    let last = 0;
    for (let page = 0, top = 0; page < pageCount; page += 1) {
      const end = top + heightOf(page);
      if (end > scrollTop - NEAR && top < scrollTop + clientHeight + NEAR) [first, last] = [Math.min(first, page), page];
      top = end;
    }
    setRange((before) => (before.first === first && before.last === last ? before : { first, last }));
  };
  useEffect(() => {
    heights.current.clear();
    const element = scroller.current;
    if (isAtEnd.current) element.scrollTop = element.scrollHeight;
    measure();
  }, [rows.length]);
  const space = (from, to) => {
    let height = 0;
    for (let page = from; page < to; page += 1) height += heightOf(page);
    return height ? html`<div key=${`space-${from === 0 ? "before" : "after"}`} style=${{ height: `${height}px` }}></div>` : null;
  };
  const first = Math.max(0, Math.min(range.first, pageCount - 1));
  const last = Math.min(range.last, pageCount - 1);
  const pages = [];
  for (let page = first; page <= last; page += 1) {
    pages.push(html`<${Page} key=${page} page=${page} rows=${rows} store=${store} selected=${selected} select=${select} heights=${heights} />`);
  }
  return html`<div class="timeline-scroll" ref=${scroller} onScroll=${measure} tabindex="0" role="feed" aria-label="Timeline" aria-busy="false">
    ${space(0, first)}${pages}${space(last + 1, pageCount)}</div>`;
}

const rowsOf = (rows, page) => rows.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS);

function Page({ page, rows, store, selected, select, heights }) {
  const element = useRef(null);
  const shown = rowsOf(rows, page);
  useEffect(() => {
    for (const seq of new Set(shown.filter((row) => row.isMissing).map((row) => row.seq))) store.ensure(seq);
  }, [shown.length, shown[0]?.key]);
  useEffect(() => {
    if (element.current) heights.current.set(page, element.current.offsetHeight);
  });
  return html`<div ref=${element} class="timeline-page">${shown.map((row, index) => html`<${TimelineRow} key=${row.key} row=${row}
    position=${page * PAGE_ROWS + index + 1} size=${rows.length} isSelected=${row.key === selected} select=${select} />`)}</div>`;
}

function TimelineRow({ row, position, size, isSelected, select }) {
  if (row.isMissing) return html`<div class="timeline-row missing"></div>`;
  const label = `${row.title}${row.summary ? `, ${row.summary}` : ""}`;
  return html`<article class="timeline-row kind-${row.kind} ${row.isProblem ? "problem" : ""}" aria-posinset=${position} aria-setsize=${size} aria-label=${label} data-row data-kind=${row.kind}>
    <button type="button" class="timeline-button" aria-pressed=${isSelected} onClick=${() => select(isSelected ? null : row.key)}>
      <time title=${dateTime(row.at)}>${clock(row.at)}</time>
      <${Icon} name=${row.icon} />
      <span class="timeline-text"><strong><bdi>${row.title}</bdi></strong> <span class="muted"><bdi>${row.summary}</bdi></span></span>
      <span class="timeline-numbers">${row.attempts > 1 ? html`<span>${row.attempts} attempts</span>` : ""}${row.tokens ? html`<span>${tokens(row.tokens)} tok</span>` : ""}${row.cost ? html`<span>${cost(row.cost)}</span>` : ""}<span>${row.ms === undefined ? "" : duration(row.ms)}</span></span>
      <span class="timeline-state">${row.state ? html`<${State} state=${row.state === "retried" ? "failed" : row.state} label=${row.state === "retried" ? "Retried" : undefined} />` : ""}</span>
    </button>
  </article>`;
}

function showRow(scroller, rows, key) {
  if (!scroller) return;
  const index = rows.findIndex((row) => row.key === key);
  const target = scroller.querySelector(`[aria-posinset="${index + 1}"]`);
  if (target) {
    target.scrollIntoView({ block: "nearest" });
    target.querySelector("button")?.focus({ preventScroll: true });
  } else {
    scroller.scrollTop = Math.max(0, index * ROW_HEIGHT - scroller.clientHeight / 2);
  }
}

function asText(rows) {
  return rows.filter((row) => !row.isMissing)
    .map((row) => [preciseClock(row.at), row.title, row.summary, row.state ?? "", row.ms === undefined ? "" : duration(row.ms)].filter(Boolean).join("\t"))
    .join("\n");
}
