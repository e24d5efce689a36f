// Purpose: the chat of a conversation: stored messages, the streamed response, approvals in place, the composer.
import { clock, contentText, visible } from "../lib/format.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { chatItems, pathOf, toolCalls } from "../lib/transcript.js";
import { Composer } from "../parts/composer.js";
import { ApprovalCard } from "../parts/approval.js";
import { Icon } from "../parts/icon.js";
import { AssistantMessage, LiveMessage, Notice, UserMessage } from "../parts/message.js";
import { editAndResend } from "../parts/resend.js";

/** At most this number of items is in the page; older ones load on request. */
const ITEMS_MAX = 200;

/** @param {{store: any}} props */
export default function Chat({ store }) {
  const entries = store.entries.value;
  const conversation = store.conversation.value;
  const first = store.firstLoaded();
  const { items, isCut } = useMemo(() => {
    const tail = entries.filter((entry) => entry.seq >= first);
    const path = pathOf(tail, conversation?.leafId);
    const all = chatItems(path, toolCalls(tail));
    return { items: all.slice(-ITEMS_MAX), isCut: all.length > ITEMS_MAX || first > 1 };
  }, [entries, conversation?.leafId, first]);
  const approvals = conversation?.pendingApprovals ?? [];
  const scroller = useStickToEnd([items, store.live.value, store.sent.value, approvals.length]);
  const shown = new Set(items.flatMap((item) => requestIds(item)));
  const others = approvals.filter((approval) => !shown.has(approval.id));
  const resend = conversation?.state === "idle" ? (item) => () => editAndResend(store, item.entry) : () => undefined;
  return html`<div class="chat">
    <div class="transcript-frame"><div class="transcript" ref=${scroller.ref} onScroll=${scroller.onScroll} tabindex="0" role="region" aria-label="Messages">
      <div class="column" role="log" aria-live="off" aria-label="Conversation">
        ${isCut ? html`<${Earlier} store=${store} first=${first} />` : ""}
        ${items.map((item) => html`<div class="item" key=${item.key}>${drawItem(item, store, approvals, resend)}</div>`)}
        ${[...store.live.value].map(([id, message]) => html`<${LiveMessage} key=${`live-${id}`} message=${message} />`)}
        ${store.sent.value.map((input) => html`<${Sent} key=${input.inputId} input=${input} store=${store} />`)}
        ${others.map((approval) => html`<${ApprovalCard} key=${approval.id} approval=${approval} onDecided=${() => store.refresh().catch(() => undefined)} />`)}
        <${RetryNote} retry=${store.retry.value} />
        ${store.notices.value.map((notice) => html`<div class="note ${notice.severity === "error" ? "bad" : "quiet"}"><${Icon} name="warning" /><p>${visible(notice.text)}</p></div>`)}
        ${items.length === 0 && store.sent.value.length === 0 && store.live.value.size === 0 ? html`<p class="muted center">No messages yet. Write the first one below.</p>` : ""}
      </div>
    </div>
    ${scroller.isAway ? html`<button type="button" class="button jump" onClick=${scroller.toEnd}><${Icon} name="down" />Newest message</button>` : ""}</div>
    <${Composer} store=${store} />
  </div>`;
}

function requestIds(item) {
  if (item.kind === "request") return [item.request.id];
  if (item.kind !== "assistant") return [];
  return item.blocks.flatMap((block) => block.call?.requests.map((request) => request.id) ?? []);
}

function drawItem(item, store, approvals, resend) {
  if (item.kind === "user") return html`<${UserMessage} content=${item.content} store=${store} at=${item.entry.timestamp} onEdit=${resend(item)} />`;
  if (item.kind === "assistant") return html`<${AssistantMessage} item=${item} store=${store} approvals=${approvals} />`;
  return html`<${Notice} item=${item} store=${store} approvals=${approvals} />`;
}

/** An accepted input without an entry yet. A queued one is in the list above the composer. */
function Sent({ input, store }) {
  if (input.disposition === "queued") return null;
  return html`<${UserMessage} content=${input.input} store=${store} note="Accepted, waiting for a worker" />`;
}

function RetryNote({ retry }) {
  if (!retry) return null;
  return html`<div class="note warning" role="status"><${Icon} name="restart" /><div class="grow">
    <p class="note-title">The model call failed; retry ${retry.attempt}${retry.maxAttempts ? ` of ${retry.maxAttempts}` : ""} at ${clock(retry.dueAt)}</p>
    <p>${visible(retry.errorMessage)}</p></div></div>`;
}

function Earlier({ store, first }) {
  const [isLoading, setLoading] = useState(false);
  const load = async () => {
    setLoading(true);
    await store.ensure(first - 1);
    setLoading(false);
  };
  if (first <= 1) return html`<p class="small muted center">The timeline has all earlier entries.</p>`;
  return html`<p class="center"><button type="button" class="button" disabled=${isLoading} onClick=${load}>Load earlier messages</button></p>`;
}

/** Keeps the end in view while the reader is at the end, and never moves the page otherwise. */
function useStickToEnd(inputs) {
  const ref = useRef(null);
  const isAtEnd = useRef(true);
  const [isAway, setAway] = useState(false);
  const toEnd = () => {
    const element = ref.current;
    if (element) element.scrollTop = element.scrollHeight;
  };
  useLayoutEffect(() => {
    if (isAtEnd.current) toEnd();
  }, inputs);
  useEffect(() => {
    const observer = new ResizeObserver(() => isAtEnd.current && toEnd());
    if (ref.current?.firstElementChild) observer.observe(ref.current.firstElementChild);
    return () => observer.disconnect();
  }, []);
  const onScroll = () => {
    // The browser may report a scroll after the view has gone.
    if (!ref.current) return;
    const { scrollTop, scrollHeight, clientHeight } = ref.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 60;
    setAway(!isAtEnd.current);
  };
  return { ref, onScroll, isAway, toEnd };
}

/** @param {any} store @returns {string} the first text that a user wrote, if it is loaded */
export function firstInput(store) {
  const entries = store.entries.value;
  if (store.firstLoaded() > 1) return "";
  const entry = entries.find((other) => other.type === "message" && other.message.role === "user");
  return entry ? contentText(entry.message.content) : "";
}
