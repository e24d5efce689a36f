// Purpose: the notes that agents keep about the caller, and the profile.
import { get, remove } from "../lib/api.js";
import { isStructure } from "../lib/exact-json.js";
import { dateTime, json, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { isReadOnly, showToast } from "../lib/state.js";
import { Age, Empty, Json, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { confirm } from "../parts/dialog.js";

/** @returns {Promise<any[]>} the notes for all projects, then those of each project */
async function readNotes() {
  const general = await get("/memory");
  const projects = (general.projects ?? []).map((project) => get("/memory", { project }));
  return [general, ...(await Promise.all(projects))];
}

export default function Memory() {
  const { data, error, reload } = useResource(readNotes, []);
  const profile = useResource(() => get("/me/profile"), []);
  const forget = (title, path, after) => confirm({
    title,
    text: "Agents do not read it any more. This cannot be undone.",
    action: "Delete",
    isDangerous: true,
    onConfirm: () => remove(path).then(after, (problem) => showToast(problem.message)),
  });
  const fields = Object.entries(profile.data ?? {}).filter(([name]) => name !== "unseenMessages");
  return html`<section class="page narrow">
    <header class="page-head"><div><h1>Memory</h1><p class="lead">What agents remember about you between conversations.</p></div></header>
    ${error ? html`<${ProblemNote} error=${error} onRetry=${reload} />` : ""}
    ${!data && !error ? html`<${Loading} />` : ""}
    ${data?.map((memory) => html`<${Notes} key=${memory.project ?? ""} memory=${memory} forget=${(note) => forget("Delete this note?", `/memory/${encodeURIComponent(note.id)}`, reload)} />`)}
    <h2>Profile</h2>
    ${profile.error ? html`<${ProblemNote} error=${profile.error} onRetry=${profile.reload} />` : ""}
    ${profile.data && fields.length === 0 ? html`<${Empty} title="No profile yet"><p>Agents with a profile learn it from your messages.</p><//>` : ""}
    ${fields.length ? html`<dl class="details">${fields.map(([name, value]) => html`<div><dt>${visible(name)}</dt><dd>${isStructure(value) ? html`<${Json} value=${value} />` : /\d{4}-\d\d-\d\dT/.test(String(value)) ? dateTime(value) : visible(value)}</dd></div>`)}</dl>
      ${isReadOnly() ? "" : html`<div class="actions end"><button type="button" class="button" onClick=${() => forget("Delete your profile?", "/me/profile", profile.reload)}>Delete the profile</button></div>`}` : ""}
  </section>`;
}

function Notes({ memory, forget }) {
  return html`<h2>${memory.project ? html`Notes of the project <bdi>${visible(memory.project)}</bdi>` : "Notes for all projects"}</h2>
    ${memory.items.length === 0 ? html`<${Empty} title="No notes yet" />` : html`<ul class="rows">${memory.items.map((note) => html`<li class="row check-row" key=${note.id} data-row><div class="grow"><p class="plain"><bdi>${visible(note.text ?? note.content ?? json(note))}</bdi></p><p class="small muted">${note.at ? html`<${Age} at=${note.at} />` : ""} ${note.by ? `by ${visible(note.by)}` : ""}</p></div>
      ${isReadOnly() ? "" : html`<button type="button" class="button small" onClick=${() => forget(note)}>Delete</button>`}</li>`)}</ul>`}`;
}
