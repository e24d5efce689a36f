// Purpose: edits an earlier input and sends it again from there, on a branch of its own.
import { post } from "../lib/api.js";
import { contentText, plural, visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { conversationHref, go } from "../lib/router.js";
import { dialog, showToast } from "../lib/state.js";
import { ProblemNote } from "./basic.js";
import { closeDialog } from "./dialog.js";

/** @param {any} store @param {any} entry the stored message of the user */
export function editAndResend(store, entry) {
  dialog.value = { title: "Edit and resend", isWide: true, content: html`<${Form} store=${store} entry=${entry} />` };
}

function Form({ store, entry }) {
  const [text, setText] = useState(contentText(entry.message.content));
  const [error, setError] = useState(null);
  const resend = async () => {
    setError(null);
    try {
      const accepted = await post(`${store.path}/prompts`, { input: text, at: entry.id });
      closeDialog();
      const left = accepted.writesLeft ?? [];
      if (left.length) showToast(`${plural(left.length, "write")} of the branch left behind stay done`);
      store.addSent({ ...accepted, input: text });
      await store.refresh();
      go(conversationHref(store.id).slice(1));
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<p>The conversation continues from this message on a new branch. The messages after it stay on the old branch; what their tools did is not undone.</p>
    <label class="field">Input<textarea rows="5" value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea></label>
    <p class="small muted">Before: ${visible(contentText(entry.message.content)).slice(0, 200)}</p>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    <div class="actions end"><button type="button" class="button" onClick=${closeDialog}>Cancel</button>
      <button type="button" class="button primary" onClick=${resend}>Send on a new branch</button></div>`;
}
