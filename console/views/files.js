// Purpose: the files of a conversation. Each is a download; nothing of it runs in this page.
import { list } from "../lib/api.js";
import { html } from "../lib/html.js";
import { isReadOnly, showToast } from "../lib/state.js";
import { Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { Icon } from "../parts/icon.js";
import { FileLink, upload } from "../parts/message.js";

/** @param {{store: any}} props */
export default function Files({ store }) {
  const { data, error, reload } = useResource(() => list(`${store.path}/artifacts`, {}, 1_000), [store.id, store.conversation.value?.lastEventId]);
  const add = async (event) => {
    for (const file of event.currentTarget.files) await upload(store.id, file).catch((problem) => showToast(problem.message));
    reload();
  };
  return html`<div class="page narrow">
    <header class="page-head"><p class="muted">Files that the agent and the user added.</p>
      ${isReadOnly() ? "" : html`<label class="button icon-button"><${Icon} name="plus" />Add a file<input type="file" multiple class="sr-only" onChange=${add} /></label>`}</header>
    ${error ? html`<${ProblemNote} error=${error} onRetry=${reload} />` : ""}
    ${!data && !error ? html`<${Loading} />` : ""}
    ${data?.items.length === 0 ? html`<${Empty} title="No files yet" />` : ""}
    <div class="stack tight">${data?.items.map((file) => html`<${FileLink} key=${file.id} store=${store} id=${file.id} name=${file.name ?? file.id} mimeType=${file.mimeType} size=${file.size} />`)}</div>
  </div>`;
}
