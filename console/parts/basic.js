// Purpose: small parts of all views: states, problems, waiting, copy buttons, JSON, tabs.
import { isStructure } from "../lib/exact-json.js";
import { age, dateTime, json, visible } from "../lib/format.js";
import { html, signal, useEffect, useState } from "../lib/html.js";
import { copy } from "../lib/state.js";
import { Icon } from "./icon.js";

/** The time that ages are relative to; it moves while the page is visible. */
const now = signal(Date.now());
setInterval(() => {
  if (document.visibilityState === "visible") now.value = Date.now();
}, 15_000);

const STATES = {
  idle: ["Idle", "quiet", "check"],
  running: ["Running", "info", "restart"],
  waiting_for_approval: ["Waiting for approval", "warning", "approvals"],
  completed: ["Completed", "good", "check"],
  failed: ["Failed", "bad", "cross"],
  aborted: ["Aborted", "quiet", "stop"],
  waiting: ["Waiting for approval", "warning", "approvals"],
  unknown: ["Outcome unknown", "bad", "question"],
  rejected: ["Rejected", "bad", "cross"],
  done: ["Done", "good", "check"],
  pending: ["Not started", "quiet", "clock"],
};

/** A state as text, icon and colour. @param {{state: string, label?: string}} props */
export function State({ state, label }) {
  const [text, tone, icon] = STATES[state] ?? [state.replaceAll("_", " "), "quiet", "clock"];
  return html`<span class="badge ${tone}"><${Icon} name=${icon} />${label ?? text}</span>`;
}

/** @param {{at: string | number | undefined}} props a relative time; the whole time as title */
export function Age({ at }) {
  if (!at) return null;
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return null;
  return html`<time datetime=${date.toISOString()} title=${dateTime(at)}>${age(at, Math.max(now.value, Math.min(date.getTime(), Date.now())))}</time>`;
}

/** @param {{error: any, onRetry?: () => void}} props a problem exactly as the server describes it */
export function ProblemNote({ error, onRetry }) {
  const members = error?.members ?? { title: "Error", detail: String(error?.message ?? error) };
  const hints = {
    401: "Sign in, and read again.",
    403: "Your roles do not permit this.",
    404: "It does not exist, or it belongs to another user.",
  };
  return html`<div class="note bad" role="alert">
    <${Icon} name="warning" />
    <div class="grow">
      <p class="note-title">${visible(members.title)}${members.status ? html` <span class="muted">${members.status}</span>` : ""}</p>
      ${members.detail ? html`<p>${visible(members.detail)}</p>` : html`<p>${hints[members.status] ?? ""}</p>`}
      ${(members.errors ?? []).map((fault) => html`<p class="mono small">${visible(fault.pointer)}: ${visible(fault.detail)}</p>`)}
      ${members.traceId ? html`<p class="small muted">Trace <span class="mono">${members.traceId}</span></p>` : ""}
    </div>
    ${onRetry ? html`<button type="button" class="button" onClick=${onRetry}>Retry</button>` : ""}
  </div>`;
}

/** Rows that show that something loads: nothing for 150 ms, and a sentence after 5 s. @param {{rows?: number}} props */
export function Loading({ rows = 3 }) {
  const [phase, setPhase] = useState(0);
  useEffect(() => {
    const timers = [setTimeout(setPhase, 150, 1), setTimeout(setPhase, 5_000, 2), setTimeout(setPhase, 20_000, 3)];
    return () => timers.forEach(clearTimeout);
  }, []);
  if (phase === 0) return html`<div class="loading" aria-busy="true"></div>`;
  return html`<div class="loading" aria-busy="true">
    ${Array.from({ length: rows }, () => html`<div class="skeleton"></div>`)}
    ${phase > 1 ? html`<p class="muted" role="status">Still waiting for the store…</p>` : ""}
    ${phase > 2 ? html`<p class="muted">A browser opens six connections to one host. Other tabs of this console may use all of them: close some.</p>` : ""}
  </div>`;
}

/** @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;
}

/** @param {{text: string, label?: string, quiet?: boolean}} props */
export function CopyButton({ text, label = "Copy", quiet = false }) {
  return html`<button type="button" class="button small ${quiet ? "quiet" : ""}" onClick=${() => copy(text)}>
    <${Icon} name="copy" />${label}
  </button>`;
}

/** @param {{value: any, label?: string}} props JSON as text; long values are cut until requested */
export function Json({ value, label }) {
  const [isWhole, setWhole] = useState(false);
  const text = visible(typeof value === "string" ? value : json(value));
  const isLong = text.length > 12_000;
  return html`<div class="json">
    <pre class="code" tabindex="0" role="region" aria-label=${label ?? "JSON"}>${isLong && !isWhole ? text.slice(0, 12_000) : text}</pre>
    ${isLong && !isWhole
      ? html`<button type="button" class="button small" onClick=${() => setWhole(true)}>Show all ${Math.round(text.length / 1_000)} KB</button>`
      : ""}
  </div>`;
}

/** Arguments of a tool call, one row each, with exact JSON values: `"250"` and 250 differ, and numbers have each digit. @param {{value: any}} props */
export function Arguments({ value }) {
  if (!isStructure(value) || Array.isArray(value)) return html`<${Json} value=${value} label="Arguments" />`;
  const entries = Object.entries(value);
  if (entries.length === 0) return html`<p class="muted small">No arguments</p>`;
  return html`<dl class="arguments">
    ${entries.map(([name, argument]) => html`<div>
      <dt><bdi>${visible(name)}</bdi></dt>
      <dd class="mono"><bdi>${visible(json(argument))}</bdi></dd>
    </div>`)}
  </dl>`;
}

/** @param {{items: [string, string][], current: string, href: (key: string) => string, label: string}} props */
export function Tabs({ items, current, href, label }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${items.map(([key, text]) => html`<a href=${href(key)} aria-current=${key === current ? "page" : undefined}>${text}</a>`)}
  </nav>`;
}

/** @param {{label: string, value: any, title?: string}} props */
export function Fact({ label, value, title }) {
  return html`<div class="fact" title=${title}><dt>${label}</dt><dd>${value}</dd></div>`;
}

/**
 * Reads once when shown, and again every `interval` ms while the page is visible.
 * @param {() => Promise<any>} read
 * @param {any[]} inputs
 * @param {number} [interval] 0 reads once
 */
export function useResource(read, inputs, interval = 0) {
  const [resource, setResource] = useState({ data: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    const load = () =>
      read().then(
        (data) => isCurrent && setResource({ data, error: null }),
        (error) => isCurrent && setResource((before) => ({ ...before, error })),
      );
    load();
    const onVisible = () => document.visibilityState === "visible" && interval && load();
    document.addEventListener("visibilitychange", onVisible);
    const timer = interval ? setInterval(() => document.visibilityState === "visible" && load(), interval) : 0;
    return () => {
      isCurrent = false;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [...inputs, round, interval]);
  return { ...resource, reload: () => setRound(round + 1), set: (data) => setResource({ data, error: null }) };
}
