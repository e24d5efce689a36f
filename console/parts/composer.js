// Purpose: the field for inputs, its named actions, the attached files, and the queue above it.
import { post, Problem, send } from "../lib/api.js";
import { contentText, visible } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { isOfInputMethod } from "../lib/keyboard.js";
import { announce, isReadOnly, preferences } from "../lib/state.js";
import { CopyButton, ProblemNote } from "./basic.js";
import { confirm } from "./dialog.js";
import { Icon } from "./icon.js";
import { upload } from "./message.js";

const draftKey = (id) => `turnwheel.console.draft.${id}`;

function readDraft(id) {
  try {
    return sessionStorage.getItem(draftKey(id)) ?? "";
  } catch {
    return "";
  }
}

/** Keeps unsent text over reloads. @param {string} id @param {string} text */
export function saveDraft(id, text) {
  try {
    if (text) sessionStorage.setItem(draftKey(id), text);
    else sessionStorage.removeItem(draftKey(id));
  } catch {
    // Without storage the text lasts as long as the page.
  }
}

/** @param {{store: any}} props */
export function Composer({ store }) {
  const [text, setText] = useState(() => readDraft(store.id));
  const [files, setFiles] = useState([]);
  const [error, setError] = useState(null);
  const [editing, setEditing] = useState(null);
  const field = useRef(null);
  const conversation = store.conversation.value;
  const state = conversation?.state ?? "idle";
  const isBusy = state !== "idle";
  const runningMode = preferences.value.enterWhileRunning;
  // The text of this moment: a second Enter may come before the field is drawn again.
  const newest = useRef(text);
  const change = (value) => {
    newest.current = value;
    setText(value);
    saveDraft(store.id, value);
  };
  useEffect(() => fitHeight(field.current), [text]);

  const submit = async (mode) => {
    const text = newest.current;
    if (!text.trim() && files.length === 0) return;
    const input = files.length ? [{ type: "text", text }, ...files.map(({ id }) => ({ type: "file", artifactId: id }))] : text;
    const before = { text, files };
    setError(null);
    change("");
    setFiles([]);
    try {
      const accepted = await post(`${store.path}/prompts`, isBusy ? { input, mode } : { input });
      if (accepted.inputId && accepted.disposition !== "handled") store.addSent({ ...accepted, input, kind: mode });
      else store.refresh().catch(() => undefined);
      if (accepted.disposition === "queued") announce(mode === "steer" ? "Steering input queued" : "Input queued");
      // Its events may come before the response that accepts it.
      else if (!(store.eventId > accepted.lastEventId)) announce("Accepted, waiting for a worker");
    } catch (problem) {
      setError(problem);
      change(before.text);
      setFiles(before.files);
      store.refresh().catch(() => undefined);
    }
    field.current?.focus();
  };
  const onKeyDown = (event) => {
    if (isOfInputMethod(event)) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      submit(event.ctrlKey || event.metaKey ? "followUp" : runningMode);
    } else if (event.key === "ArrowUp" && !text && store.inbox.value.length) {
      event.preventDefault();
      setEditing(store.inbox.value.at(-1).inputId);
    } else if (event.key === "Escape") {
      field.current?.blur();
    }
  };
  const attach = async (event) => {
    setError(null);
    for (const file of event.currentTarget.files) {
      try {
        const artifact = await upload(store.id, file);
        setFiles((others) => [...others, { ...artifact, name: artifact.name ?? file.name }]);
      } catch (problem) {
        setError(problem);
      }
    }
  };
  if (isReadOnly()) return html`<div class="composer"><p class="muted small">Operators read conversations and change nothing.</p></div>`;
  return html`<div class="composer">
    <${Queue} store=${store} editing=${editing} setEditing=${setEditing} />
    ${error ? html`<${SendProblem} error=${error} onSteer=${() => submit("steer")} />` : ""}
    ${files.length ? html`<ul class="attachments">${files.map((file) => html`<li><${Icon} name="file" /><bdi>${visible(file.name)}</bdi>
      <button type="button" class="link" onClick=${() => setFiles(files.filter((other) => other !== file))}>Remove</button></li>`)}</ul>` : ""}
    <form class="composer-form" onSubmit=${(event) => (event.preventDefault(), submit(runningMode))}>
      <label class="sr-only" for="composer-field">Input for the agent</label>
      <textarea id="composer-field" ref=${field} rows="1" value=${text} onInput=${(event) => change(event.currentTarget.value)} onKeyDown=${onKeyDown}
        placeholder=${isBusy ? "Add to the running prompt…" : "Write to the agent…"}></textarea>
      <div class="composer-actions">
        <label class="button quiet icon-button" title="Attach a file"><${Icon} name="file" /><span class="sr-only">Attach a file</span>
          <input type="file" multiple class="sr-only" onChange=${attach} /></label>
        <span class="spacer"></span>
        ${isBusy ? html`<${AbortButton} store=${store} />` : ""}
        ${isBusy
          ? html`<button type="button" class="button ${runningMode === "followUp" ? "primary" : ""}" onClick=${() => submit("followUp")}>Queue</button>
              <button type="button" class="button ${runningMode === "steer" ? "primary" : ""}" onClick=${() => submit("steer")}>Steer now</button>`
          : html`<button type="submit" class="button primary"><${Icon} name="send" />Send</button>`}
      </div>
    </form>
    <p class="composer-hint small muted">${isBusy
      ? runningMode === "steer" ? "Enter steers the running prompt; Ctrl+Enter queues a prompt of its own." : "Enter queues a prompt of its own."
      : "Enter sends; Shift+Enter starts a new line."}</p>
  </div>`;
}

function fitHeight(element) {
  if (!element) return;
  element.style.height = "auto";
  element.style.height = `${Math.min(element.scrollHeight, 220)}px`;
}

function SendProblem({ error, onSteer }) {
  if (error instanceof Problem && error.name === "already-processing") {
    return html`<div class="note warning" role="alert"><${Icon} name="warning" /><div class="grow"><p class="note-title">A prompt started meanwhile</p>
      <p>Your text is still here: steer the running prompt with it, or queue it.</p></div><button type="button" class="button" onClick=${onSteer}>Steer now</button></div>`;
  }
  return html`<${ProblemNote} error=${error} />`;
}

/** @param {any} store */
export function requestAbort(store) {
  confirm({
    title: "Abort the running prompt?",
    text: "The model response is cut and stored. Calls that have not started do not run. Queued inputs stay queued.",
    action: "Abort the prompt",
    isDangerous: true,
    onConfirm: async () => {
      try {
        await post(`${store.path}/abort`, {});
        announce("Abort requested");
        await store.refresh();
      } catch (error) {
        store.notices.value = [...store.notices.value, { severity: "error", text: error.message }];
      }
    },
  });
}

function AbortButton({ store }) {
  return html`<button type="button" class="button" onClick=${() => requestAbort(store)}><${Icon} name="stop" />Abort</button>`;
}

function Queue({ store, editing, setEditing }) {
  const items = store.inbox.value.filter((item) => !item.state || item.state === "queued");
  if (items.length === 0) return null;
  return html`<section class="queue" aria-label="Queued inputs">
    <h3>Queued inputs <span class="muted">${items.length}</span></h3>
    <ol>${items.map((item) => html`<${QueueItem} key=${item.inputId} item=${item} store=${store}
      isEditing=${editing === item.inputId} setEditing=${setEditing} />`)}</ol>
  </section>`;
}

function QueueItem({ item, store, isEditing, setEditing }) {
  const [text, setText] = useState("");
  const [etag, setEtag] = useState(null);
  const [conflict, setConflict] = useState(null);
  const path = `${store.path}/inbox/${encodeURIComponent(item.inputId)}`;
  const stored = contentText(item.input ?? item.content);
  useEffect(() => {
    if (!isEditing) return;
    setConflict(null);
    send("GET", path).then(({ data, etag }) => {
      setText(contentText(data.input));
      setEtag(etag);
    }).catch((error) => setConflict({ error }));
  }, [isEditing]);
  const save = async (tag) => {
    try {
      await send("PATCH", path, { body: { input: text }, headers: tag ? { "if-match": tag } : {} });
      setEditing(null);
      await store.readInbox();
    } catch (error) {
      if (error.status === 412) {
        const { data, etag } = await send("GET", path).catch(() => ({ data: null, etag: null }));
        setConflict({ theirs: data, etag });
      } else {
        setConflict({ error });
        store.readInbox();
      }
    }
  };
  const removeItem = async () => {
    try {
      await send("DELETE", path);
    } catch (error) {
      setConflict({ error });
    }
    store.readInbox();
  };
  const kind = (item.kind ?? item.mode) === "steer" ? "Steer" : "Queue";
  if (!isEditing) {
    return html`<li class="queue-item"><span class="badge quiet">${kind}</span><span class="queue-text" dir="auto">${visible(stored)}</span>
      <button type="button" class="button small quiet" onClick=${() => setEditing(item.inputId)}><${Icon} name="edit" />Edit</button>
      <button type="button" class="button small quiet" onClick=${removeItem}><${Icon} name="cross" />Remove</button>
      ${conflict?.error ? html`<${ProblemNote} error=${conflict.error} />` : ""}</li>`;
  }
  return html`<li class="queue-item editing">
    <label class="field">Queued input<textarea rows="2" value=${text} ref=${focusField} onInput=${(event) => setText(event.currentTarget.value)}
      onKeyDown=${(event) => event.key === "Escape" && !isOfInputMethod(event) && setEditing(null)}></textarea></label>
    ${conflict?.error ? html`<${ProblemNote} error=${conflict.error} />` : ""}
    ${conflict?.theirs ? html`<div class="note warning" role="alert"><${Icon} name="warning" /><div class="grow"><p class="note-title">Changed meanwhile</p>
        <p>The stored input is now:</p><p class="plain quote">${visible(contentText(conflict.theirs.input))}</p></div>
        <div class="actions"><button type="button" class="button" onClick=${() => (setText(contentText(conflict.theirs.input)), setEtag(conflict.etag), setConflict(null))}>Take over</button>
        <button type="button" class="button" onClick=${() => save(conflict.etag)}>Keep mine</button></div></div>` : ""}
    <div class="actions end"><${CopyButton} text=${item.inputId} label="Copy id" quiet />
      <button type="button" class="button" onClick=${() => setEditing(null)}>Cancel</button>
      <button type="button" class="button primary" onClick=${() => save(etag)}>Save</button></div>
  </li>`;
}

function focusField(element) {
  if (element && !element.dataset.focused) {
    element.dataset.focused = "true";
    element.focus();
  }
}
