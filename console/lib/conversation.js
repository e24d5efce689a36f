// Purpose: one open conversation: its stored entries, the live overlay of the stream, and the reads between them.
// What is stored always wins over what was streamed.
import { conversationPath, get, Problem } from "./api.js";
import { isStructure } from "./exact-json.js";
import { batch, signal } from "./html.js";
import { announce, isLocal, pollInterval } from "./state.js";
import { follow, withStream } from "./stream.js";
import { appendDelta } from "./transcript.js";

const PAGE = 100;
/** The largest page of entries, for reads of all of them. */
const PAGE_MAX = 500;
/** At most two reads a second after stored events. */
const REFRESH_MS = 500;
const HIDDEN_MS = 10_000;
/** Events after which the state of the conversation is another one. */
const STATE_EVENTS = /^(prompt\.|agent_|auto_|session_|branch_|input_|command_)/;

/** @param {string} id */
export function openConversation(id) {
  const path = conversationPath(id);
  const store = {
    id,
    path,
    conversation: signal(null),
    etag: null,
    why: signal(null),
    problem: signal(null),
    entries: signal([]),
    /** Number of stored entries, which is the newest `seq`. */
    total: signal(0),
    /** Streamed messages that are not stored yet, by `messageId`. */
    live: signal(new Map()),
    /** Running tool calls with their progress, by `toolCallId`. */
    running: signal(new Map()),
    inbox: signal([]),
    /** Inputs sent from this page that have no entry yet. */
    sent: signal([]),
    retry: signal(null),
    notices: signal([]),
    stream: signal({ state: "connecting", since: Date.now() }),
    /** Last stored event of the stream. */
    eventId: 0,
  };
  const bySeq = new Map();
  let pages = new Set();
  let following = null;
  let isClosed = false;

  function addEntries(items) {
    if (items.length === 0) return;
    let newest = store.total.value;
    for (const entry of items) {
      bySeq.set(entry.seq, entry);
      newest = Math.max(newest, entry.seq);
    }
    const live = new Map(store.live.value);
    for (const entry of items) live.delete(entry.id);
    const inputs = new Set(items.map((entry) => entry.inputId).filter(Boolean));
    batch(() => {
      store.total.value = newest;
      store.entries.value = [...bySeq.values()].sort((left, right) => left.seq - right.seq);
      store.live.value = live;
      store.sent.value = store.sent.value.filter((input) => !inputs.has(input.inputId));
    });
  }

  async function readEntriesAfter(seq, max = Infinity) {
    let after = seq;
    for (let read = 0; read < max; ) {
      const { items } = await get(`${path}/entries`, { afterSeq: after, limit: PAGE });
      addEntries(items);
      read += items.length;
      if (items.length < PAGE) return;
      after = items.at(-1).seq;
    }
  }

  async function readState() {
    const [conversation, why] = await Promise.all([get(path), get(`${path}/why`).catch(() => null)]);
    batch(() => {
      store.conversation.value = conversation;
      if (why) store.why.value = why;
    });
    return conversation;
  }

  /** The newest entries first: a long conversation opens as fast as a short one. */
  store.load = async () => {
    try {
      const conversation = await readState();
      store.eventId = conversation.lastEventId ?? 0;
      const total = conversation.seq ?? (await get(`${path}/stats`)).entries;
      store.total.value = Math.max(store.total.value, total);
      await readEntriesAfter(Math.max(0, total - PAGE), PAGE);
      store.problem.value = null;
      if (conversation.state !== "idle") readInbox();
      if (conversation.state === "running") readRetry(conversation);
      startStream();
    } catch (error) {
      if (!isClosed) store.problem.value = error;
    }
  };

  /** A retry that was announced before this page opened. */
  async function readRetry({ prompts }) {
    const prompt = prompts.findLast(({ state }) => state === "running");
    if (!prompt) return;
    const { retry } = await get(`${path}/prompts/${encodeURIComponent(prompt.id)}`).catch(() => ({}));
    if (retry) store.retry.value = { attempt: retry.attempt, dueAt: retry.at, errorMessage: retry.error };
  }

  /** Loads the page of entries that contains `seq`. */
  store.ensure = async (seq) => {
    const page = Math.floor((Math.max(1, seq) - 1) / PAGE);
    const isLoaded = () => {
      for (let at = page * PAGE + 1; at <= Math.min(store.total.value, (page + 1) * PAGE); at += 1) {
        if (!bySeq.has(at)) return false;
      }
      return true;
    };
    if (pages.has(page) || isLoaded()) return;
    pages.add(page);
    try {
      const { items } = await get(`${path}/entries`, { afterSeq: page * PAGE, limit: PAGE });
      addEntries(items);
    } catch {
      pages.delete(page);
    }
  };

  /**
   * Loads all entries, the newest first.
   * @param {(left: number) => boolean} onProgress returns false to stop
   */
  store.loadAll = async (onProgress) => {
    for (let first = store.firstLoaded(); first > 1 && onProgress(first - 1); ) {
      const after = Math.max(0, first - 1 - PAGE_MAX);
      const { items } = await get(`${path}/entries`, { afterSeq: after, limit: Math.min(PAGE_MAX, first - 1 - after) });
      addEntries(items);
      const next = store.firstLoaded();
      if (next === first) return;
      first = next;
    }
  };

  /** The lowest `seq` from which all later entries are loaded. */
  store.firstLoaded = () => {
    let seq = store.total.value;
    while (seq > 1 && bySeq.has(seq - 1)) seq -= 1;
    return seq;
  };

  async function readInbox() {
    const { items } = await get(`${path}/inbox`, { limit: 100 }).catch(() => ({ items: store.inbox.value }));
    store.inbox.value = items;
  }
  store.readInbox = readInbox;

  let refreshTimer = null;
  let isStateDue = false;
  function refreshSoon(withState) {
    isStateDue ||= withState;
    refreshTimer ??= setTimeout(async () => {
      const withState = isStateDue;
      isStateDue = false;
      try {
        await readEntriesAfter(store.total.value);
        if (withState) await readState();
      } catch {
        // The stream's state and the next event show or repair it.
      }
      refreshTimer = null;
      if (isStateDue) refreshSoon(true);
    }, REFRESH_MS);
  }

  /** Reads the conversation again, at once. */
  store.refresh = async () => {
    await Promise.all([readEntriesAfter(store.total.value), readState(), readInbox()]);
    if (!following) startStream();
  };

  /** Shows an accepted input before a worker has taken it. */
  store.addSent = (input) => {
    store.sent.value = [...store.sent.value, input];
    if (input.disposition === "queued") readInbox();
    refreshSoon(true);
    if (!following) startStream();
  };

  // Deltas are drawn once a frame, whatever their rate.
  let pending = null;
  function changeLive(change) {
    pending ??= new Map(store.live.value);
    change(pending);
    if (pending.isScheduled) return;
    pending.isScheduled = true;
    const draw = () => {
      const next = new Map(pending);
      pending = null;
      for (const entry of store.entries.value.slice(-PAGE)) next.delete(entry.id);
      store.live.value = next;
    };
    if (document.visibilityState === "visible") requestAnimationFrame(draw);
    else setTimeout(draw, 100);
  }

  function applyMessage(event) {
    const { type, messageId } = event;
    changeLive((live) => {
      const message = live.get(messageId);
      if (type === "message_start") {
        live.set(messageId, { ...event.message, at: event.at });
        if (event.message.role === "assistant") announce("Response started");
      } else if (type === "message_end") {
        live.set(messageId, { ...event.message, at: event.at, isComplete: true });
      } else if (type === "message_reset") {
        if (message) live.set(messageId, { ...message, isDiscarded: true });
      } else if (message && type === "message_snapshot") {
        live.set(messageId, { ...message, content: event.content });
      } else if (message && type === "message_update") {
        live.set(messageId, { ...message, content: appendDelta(message.content ?? [], event.assistantMessageEvent) });
      }
    });
  }

  function applyTool(event) {
    const running = new Map(store.running.value);
    if (event.type === "tool_execution_end") running.delete(event.toolCallId);
    else running.set(event.toolCallId, event);
    store.running.value = running;
  }

  function applyInput(event) {
    const others = store.inbox.value.filter((item) => item.inputId !== event.inputId);
    store.inbox.value = event.item?.state === "queued" ? [...others, event.item] : others;
    store.sent.value = store.sent.value.filter((input) => input.inputId !== event.inputId);
  }

  function apply(event, eventId) {
    if (eventId !== null) store.eventId = eventId;
    if (!event || event.type === "ping") return;
    if (event.type.startsWith("message_")) applyMessage(event);
    if (event.type.startsWith("tool_execution")) applyTool(event);
    if (event.type.startsWith("input_")) applyInput(event);
    if (event.type === "message_start" && event.inputId) applyInput({ inputId: event.inputId });
    if (event.type === "notify") store.notices.value = [...store.notices.value, event];
    if (event.type === "auto_retry_start") store.retry.value = { ...event, dueAt: Date.parse(event.at) + event.delayMs };
    if (event.type === "auto_retry_end" || event.type === "prompt.completed") store.retry.value = null;
    if (event.type === "prompt.approval-requested") announce(approvalText(event.approval));
    if (event.type === "agent_settled") {
      store.running.value = new Map();
      store.retry.value = null;
      announce("Response complete");
    }
    if (eventId !== null) refreshSoon(STATE_EVENTS.test(event.type));
  }

  function startStream() {
    if (isClosed || following || document.visibilityState === "hidden") return;
    following = new AbortController();
    const { signal: stop } = following;
    const onState = (state) => {
      if (store.stream.value.state === state) return;
      const wasLost = store.stream.value.state === "lost";
      store.stream.value = { state, since: Date.now() };
      if (state === "open" && wasLost) refreshSoon(true);
    };
    const options = { after: store.eventId, untilSettled: !isLocal(), signal: stop, onEvent: apply, onState };
    withStream(() => follow(id, options))
      .then((hasStream) => hasStream || (store.stream.value = { state: "shared", since: Date.now() }))
      .catch((error) => {
        if (error instanceof Problem && !isClosed) store.problem.value = error;
      })
      .finally(() => {
        if (following?.signal === stop) following = null;
      });
  }

  function stopStream() {
    following?.abort();
    following = null;
  }

  let hiddenTimer = null;
  function onVisibility() {
    clearTimeout(hiddenTimer);
    if (document.visibilityState === "hidden") hiddenTimer = setTimeout(stopStream, HIDDEN_MS);
    else if (!following) store.refresh().catch(() => startStream());
  }
  document.addEventListener("visibilitychange", onVisibility);
  // Without an open stream (in Azure, after everything is settled) another client's prompt appears by polling.
  const poll = setInterval(async () => {
    if (document.visibilityState === "hidden" || following || !store.conversation.value) return;
    const before = store.conversation.value.lastEventId;
    const conversation = await readState().catch(() => null);
    if (conversation && conversation.lastEventId !== before) {
      await readEntriesAfter(store.total.value).catch(() => undefined);
      startStream();
    } else if (store.stream.value.state === "shared") {
      startStream();
    }
  }, pollInterval());

  store.close = () => {
    isClosed = true;
    stopStream();
    clearInterval(poll);
    clearTimeout(hiddenTimer);
    document.removeEventListener("visibilitychange", onVisibility);
  };
  return store;
}

/** @param {any} approval @returns {string} */
export function approvalText(approval) {
  const values = Object.values(approval?.arguments ?? {}).filter((value) => value !== null && !isStructure(value));
  return `Approval needed: ${[approval?.toolName ?? approval?.title, ...values].join(", ")}`;
}
