// Purpose: starts the console: the frame of the page, the navigation, the caller, the views.
import { get } from "./lib/api.js";
import { effect, html, render, useEffect, useRef } from "./lib/html.js";
import { listenToKeys, KEYS } from "./lib/keyboard.js";
import { route } from "./lib/router.js";
import { announce, announcement, applyTheme, approvalCount, dialog, isOutdated, lostSince, me, meProblem, needsSignIn, pollInterval, preferences, setPreferences, toast } from "./lib/state.js";
import { visible } from "./lib/format.js";
import { Dialog } from "./parts/dialog.js";
import { Icon } from "./parts/icon.js";
import { Lazy } from "./parts/lazy.js";

const VIEWS = {
  start: () => import("./views/start.js"),
  new: () => import("./views/start.js"),
  c: () => import("./views/conversations.js"),
  conversation: () => import("./views/conversation.js"),
  approvals: () => import("./views/approvals.js"),
  schedules: () => import("./views/schedules.js"),
  usage: () => import("./views/usage.js"),
  agents: () => import("./views/agents.js"),
  memory: () => import("./views/memory.js"),
  skills: () => import("./views/skills.js"),
  health: () => import("./views/health.js"),
  more: () => import("./views/more.js"),
  signin: () => import("./views/signin.js"),
};

const NAVIGATION = [
  ["start", "#/", "Start", "start"],
  ["c", "#/c", "Conversations", "chats"],
  ["approvals", "#/approvals", "Approvals", "approvals"],
  ["schedules", "#/schedules", "Schedules", "schedules"],
  ["usage", "#/usage", "Usage", "usage"],
  ["agents", "#/agents", "Agents", "agents"],
  ["memory", "#/memory", "Memory", "memory"],
  ["skills", "#/skills", "Skills", "skills"],
  ["health", "#/health", "Health", "health"],
];
/** The views of the bar at the bottom of a phone. */
const BAR = ["c", "approvals", "usage"];
const build = document.querySelector('meta[name="build"]')?.getAttribute("content") ?? "";

function App() {
  const { view, id, tab } = route.value;
  const current = needsSignIn.value ? "signin" : view === "c" && id ? "conversation" : VIEWS[view] ? view : "start";
  useEffect(() => {
    const name = NAVIGATION.find(([key]) => key === (view === "conversation" ? "c" : view))?.[2] ?? "Turnwheel";
    document.title = `${approvalCount.value ? `(${approvalCount.value}) ` : ""}${name} · Turnwheel`;
  }, [view, approvalCount.value]);
  const viewKey = `${current}/${current === "conversation" || current === "agents" ? id : ""}`;
  const shownKey = useRef(viewKey);
  useEffect(() => {
    // The link that had the focus may be gone: screen readers and the keyboard continue in the new view.
    if (shownKey.current !== viewKey) document.getElementById("main")?.focus({ preventScroll: true });
    shownKey.current = viewKey;
  }, [viewKey]);
  return html`<div class="app">
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <${Navigation} view=${view} />
    <main id="main" tabindex="-1">
      <${Banners} />
      <${Lazy} key=${viewKey} load=${VIEWS[current]} props=${{ id, tab }} />
    </main>
    <${BottomBar} view=${view} />
    <${Dialog} />
    <div class="sr-only" role="status" aria-live="polite">${announcement.value}</div>
    ${toast.value ? html`<div class="toast" aria-hidden="true">${visible(toast.value)}</div>` : ""}
  </div>`;
}

function Navigation({ view }) {
  const caller = me.value;
  return html`<nav class="nav" aria-label="Views">
    <a class="brand" href="#/"><${Mark} /><span>Turnwheel</span></a>
    <a class="button primary new" href="#/new"><${Icon} name="plus" />New conversation</a>
    <ul>${NAVIGATION.map(([key, href, label, icon]) => html`<li><a href=${href} aria-current=${key === view ? "page" : undefined}>
      <${Icon} name=${icon} /><span>${label}</span>${key === "approvals" ? html`<${Count} />` : ""}</a></li>`)}</ul>
    <div class="nav-foot">
      <${ThemeButton} />
      <button type="button" class="nav-button" onClick=${showKeys}><${Icon} name="keyboard" /><span>Keys</span></button>
      ${caller ? html`<p class="small muted identity"><${Icon} name="user" /><span><bdi>${visible(caller.userId)}</bdi>${caller.tenantId && caller.tenantId !== "default" ? html` · <bdi>${visible(caller.tenantId)}</bdi>` : ""}</span></p>` : ""}
      ${caller?.version ? html`<p class="small muted version">Version ${visible(caller.version)}</p>` : ""}
    </div>
  </nav>`;
}

/** The sign of Turnwheel: a wheel with one open turn. */
function Mark() {
  return html`<svg class="mark" viewBox="0 0 24 24" aria-hidden="true"><path d="M20.500 12A8.500 8.500 0 1 1 12 3.500" /><path d="M12 3.500h4.500M14.600 1.200l2.500 2.300-2.500 2.300" /><circle cx="12" cy="12" r="2.600" /></svg>`;
}

function Count() {
  return approvalCount.value ? html`<span class="count">${approvalCount.value}<span class="sr-only"> undecided</span></span>` : null;
}

function ThemeButton() {
  const { theme } = preferences.value;
  const next = { auto: "light", light: "dark", dark: "auto" }[theme];
  const label = { auto: "Automatic", light: "Light", dark: "Dark" };
  return html`<button type="button" class="nav-button" onClick=${() => (setPreferences({ theme: next }), announce(`Theme ${label[next]}`))}>
    <${Icon} name="theme" /><span>Theme: ${label[theme]}</span></button>`;
}

function BottomBar({ view }) {
  const items = NAVIGATION.filter(([key]) => BAR.includes(key));
  return html`<nav class="bar" aria-label="Main views">
    ${items.map(([key, href, label, icon]) => html`<a href=${href} aria-current=${key === view ? "page" : undefined}>
      <${Icon} name=${icon} /><span>${key === "c" ? "Chats" : label}</span>${key === "approvals" ? html`<${Count} />` : ""}</a>`)}
    <a href="#/more" aria-current=${!BAR.includes(view) ? "page" : undefined}><${Icon} name="more" /><span>More</span></a>
  </nav>`;
}

function Banners() {
  return html`${isOutdated.value ? html`<p class="banner" role="status">Turnwheel was updated. <button type="button" class="button small" onClick=${() => location.reload()}>Reload</button></p>` : ""}
    ${me.value?.auth === "keys" ? html`<p class="banner quiet">All holders of a key are one user.</p>` : ""}
    ${meProblem.value && !needsSignIn.value ? html`<p class="banner" role="status">${visible(meProblem.value.members?.title ?? "The server does not respond")}. ${visible(meProblem.value.members?.detail ?? "")}</p>` : ""}`;
}

function showKeys() {
  dialog.value = {
    title: "Keys",
    content: html`<dl class="keys">${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
      <label class="check"><input type="checkbox" checked=${preferences.value.singleKeys} onChange=${(event) => setPreferences({ singleKeys: event.currentTarget.checked })} /> Single keys</label>
      <label class="check"><input type="checkbox" checked=${preferences.value.enterWhileRunning === "followUp"} onChange=${(event) => setPreferences({ enterWhileRunning: event.currentTarget.checked ? "followUp" : "steer" })} /> While a prompt runs, Enter queues instead of steering</label>
      <div class="actions end"><button type="button" class="button" onClick=${() => (dialog.value = null)}>Close</button></div>`,
  };
}

/** Reads the caller. A server without this route still gives a usable page. */
export async function readCaller() {
  try {
    me.value = await get("/me");
    meProblem.value = null;
    needsSignIn.value = false;
  } catch (error) {
    if (error.status === 405 || error.status === 404) me.value ??= { userId: "default", roles: [], auth: "header", features: [] };
    else if (error.status !== 401) meProblem.value = error;
  }
}

/** The page names its build; after an interruption the server may serve another one. */
async function checkBuild() {
  try {
    const text = await (await fetch("/api/console/", { cache: "no-cache" })).text();
    const current = /<meta name="build" content="([^"]*)"/.exec(text)?.[1];
    if (build && current && current !== build) isOutdated.value = true;
  } catch {
    // The connection is lost again; the next recovery checks.
  }
}

async function readApprovalCount() {
  if (document.visibilityState === "hidden" || needsSignIn.value || route.value.view === "approvals") return;
  try {
    const { items, continuation } = await get("/approvals", { limit: 100 });
    const count = items.length + (continuation ? 1 : 0);
    if (approvalCount.value !== null && count > approvalCount.value) announce("Approval needed");
    approvalCount.value = count;
  } catch {
    // The views show problems; the number is only a hint.
  }
}

let wasLost = false;
effect(() => {
  if (wasLost && lostSince.value === null) checkBuild().then(readCaller);
  wasLost = lostSince.value !== null;
});
applyTheme();
listenToKeys(showKeys);
await readCaller();
render(html`<${App} />`, document.getElementById("app"));
readApprovalCount();
// The list of a view polls at its own pace; the number in the navigation needs less.
setInterval(() => (route.value.view !== "c" || route.value.id) && readApprovalCount(), 4 * pollInterval());
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && (checkBuild(), readApprovalCount()));
