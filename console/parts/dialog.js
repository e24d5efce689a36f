// Purpose: modal dialogs: questions before an action, and the list of keys.
import { html, useEffect, useRef } from "../lib/html.js";
import { dialog } from "../lib/state.js";

/** @param {{title: string, text: string, action: string, isDangerous?: boolean, onConfirm: () => void}} options */
export function confirm({ title, text, action, isDangerous = false, onConfirm }) {
  const accept = () => {
    closeDialog();
    onConfirm();
  };
  dialog.value = {
    title,
    content: html`<p>${text}</p>
      <div class="actions end">
        <button type="button" class="button" onClick=${closeDialog}>Cancel</button>
        <button type="button" class="button ${isDangerous ? "danger" : "primary"}" onClick=${accept}>${action}</button>
      </div>`,
  };
}

export function closeDialog() {
  dialog.value = null;
}

/** The `<dialog>` of the page. The focus returns to the element that opened it. */
export function Dialog() {
  const element = useRef(null);
  const current = dialog.value;
  useEffect(() => {
    if (!current) return undefined;
    const opener = document.activeElement;
    element.current?.showModal();
    return () => opener instanceof HTMLElement && opener.isConnected && opener.focus();
  }, [current]);
  if (!current) return null;
  return html`<dialog ref=${element} class=${current.isWide ? "wide" : ""} aria-labelledby="dialog-title" onClose=${closeDialog}>
    <h2 id="dialog-title">${current.title}</h2>
    ${current.content}
  </dialog>`;
}
