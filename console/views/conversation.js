// Purpose: one conversation: its header with state and reason, and the tabs.
import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { cost, duration, dateTime, tokens, visible } from "../lib/format.js";
import { openConversation } from "../lib/conversation.js";
import { post } from "../lib/api.js";
import { setKeyActions } from "../lib/keyboard.js";
import { conversationHref } from "../lib/router.js";
import { announce, isReadOnly, showToast } from "../lib/state.js";
import { Age, Loading, ProblemNote, State, Tabs } from "../parts/basic.js";
import { requestAbort } from "../parts/composer.js";
import { confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icon.js";
import { Lazy } from "../parts/lazy.js";
import { whyText } from "../parts/row.js";
import { firstInput } from "./chat.js";

const TABS = [["chat", "Chat"], ["timeline", "Timeline"], ["tree", "Branches"], ["receipt", "Receipt"], ["files", "Files"], ["raw", "Raw"]];
const VIEWS = {
  chat: () => import("./chat.js"),
  timeline: () => import("./timeline.js"),
  tree: () => import("./tree.js"),
  receipt: () => import("./receipt.js"),
  files: () => import("./files.js"),
  raw: () => import("./raw.js"),
};

/** @param {{id: string, tab?: string}} props keyed by the id */
export default function Conversation({ id, tab = "chat" }) {
  const store = useMemo(() => openConversation(id), [id]);
  useEffect(() => {
    store.load();
    return store.close;
  }, [store]);
  useEffect(() => setKeyActions({ abort: () => store.conversation.value?.state !== "idle" && requestAbort(store), copy: () => id }), [store]);
  const conversation = store.conversation.value;
  const current = VIEWS[tab] ? tab : "chat";
  if (!conversation) {
    return html`<section class="page">${store.problem.value
      ? html`<${ProblemNote} error=${store.problem.value} onRetry=${store.load} /><p><a href="#/c">All conversations</a></p>`
      : html`<${Loading} rows=${6} />`}</section>`;
  }
  return html`<section class="conversation">
    <${Header} store=${store} conversation=${conversation} tab=${current} />
    <${Tabs} items=${TABS} current=${current} label="Views of this conversation"
      href=${(key) => conversationHref(id, key === "chat" ? undefined : key)} />
    <${StreamBar} store=${store} />
    ${store.problem.value ? html`<${ProblemNote} error=${store.problem.value} onRetry=${store.load} />` : ""}
    <div class="tab-content ${current}"><${Lazy} key=${current} load=${VIEWS[current]} props=${{ store }} /></div>
  </section>`;
}

function Header({ store, conversation, tab }) {
  const why = store.why.value;
  const title = visible(conversation.name ?? (firstInput(store) || conversation.preview)) || conversation.id;
  const { usage, state } = conversation;
  return html`<header class="conversation-head">
    <div class="title-row">
      <a class="back" href="#/c" aria-label="All conversations"><${Icon} name="back" /></a>
      <h1 title=${conversation.id}><bdi>${title}</bdi></h1>
      <${State} state=${state} />
      <${Menu} store=${store} conversation=${conversation} tab=${tab} />
    </div>
    ${why ? html`<p class="why" data-why>${whyText(why)}</p>` : ""}
    <p class="meta">
      <span>${visible(conversation.agent)}</span>
      <span title="Tokens of all model calls">${tokens(usage.totalTokens)} tokens</span>
      <span title="Cost of all model calls">${cost(usage.cost.total)}</span>
      ${why?.claim ? html`<span title=${`Worker ${why.claim.worker}, epoch ${why.claim.epoch}`}>lease until ${dateTime(why.claim.until)}</span>` : ""}
      ${budgetText(conversation.settings.budget)}
      <span>changed <${Age} at=${conversation.updatedAt} /></span>
    </p>
  </header>`;
}

function budgetText(budget) {
  const limits = [budget?.conversation?.usd && `budget ${cost(budget.conversation.usd)}`, budget?.conversation?.tokens && `budget ${tokens(budget.conversation.tokens)} tokens`];
  return limits.filter(Boolean).map((text) => html`<span>${text}</span>`);
}

function Menu({ store, conversation, tab }) {
  if (isReadOnly()) return null;
  const act = async (work, text) => {
    try {
      await work();
      announce(text);
      showToast(text);
      await store.refresh();
    } catch (error) {
      showToast(error.message);
    }
  };
  const compact = () => confirm({
    title: "Compact this conversation?",
    text: "A summary replaces older messages in the model's input. All messages stay readable. A running prompt is aborted first.",
    action: "Compact",
    onConfirm: () => act(() => post(`${store.path}/compact`, {}), "Compaction requested"),
  });
  const canContinue = conversation.state === "idle" && lastIsOpen(store.entries.value);
  return html`<div class="head-actions">
    ${canContinue ? html`<button type="button" class="button small" onClick=${() => act(() => post(`${store.path}/continue`, {}), "Continued")}>Continue</button>` : ""}
    ${conversation.state === "idle"
      ? html`<button type="button" class="button small quiet" onClick=${compact}><${Icon} name="compact" />Compact</button>`
      : tab === "chat" ? "" : html`<button type="button" class="button small" onClick=${() => requestAbort(store)}><${Icon} name="stop" />Abort</button>`}
  </div>`;
}

/** True if the last prompt ended without a model response, so that `continue` can call the model again. */
function lastIsOpen(entries) {
  const end = entries.findLast((entry) => entry.type === "prompt_end");
  return end !== undefined && end === entries.at(-1) && end.state !== "completed";
}

/** The thin bar while the stream is lost. Everything is stored, so nothing can be lost with it. */
function StreamBar({ store }) {
  const { state, since } = store.stream.value;
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    if (state !== "lost") return undefined;
    const timer = setInterval(() => setSeconds(Math.round((Date.now() - since) / 1_000)), 1_000);
    setSeconds(0);
    return () => clearInterval(timer);
  }, [state, since]);
  if (state === "shared") return html`<p class="stream-bar quiet" role="status">Other tabs hold the event streams of this browser. This tab reads every few seconds.</p>`;
  if (state !== "lost") return null;
  return html`<p class="stream-bar" role="status">Reconnecting… nothing is lost <span class="muted">${duration(seconds * 1_000)}</span>
    ${seconds >= 60 ? " Check that `turnwheel dev` runs." : ""}</p>`;
}
