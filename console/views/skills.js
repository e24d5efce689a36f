// Purpose: the skills of the caller and the commands of the app.
import { get, remove, send } from "../lib/api.js";
import { visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { isReadOnly, showToast } from "../lib/state.js";
import { Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icon.js";

export default function Skills() {
  const { data, error, reload } = useResource(() => get("/skills"), []);
  const commands = useResource(() => get("/commands"), []);
  const [editing, setEditing] = useState(null);
  const others = commands.data?.items.filter((command) => !data?.items.some(({ name }) => name === command.name)) ?? [];
  return html`<section class="page narrow">
    <header class="page-head"><div><h1>Skills</h1><p class="lead">Instructions that an agent reads when a task needs them.</p></div>
      ${isReadOnly() || editing ? "" : html`<button type="button" class="button primary" onClick=${() => setEditing({ name: "", description: "", instructions: "", isNew: true })}><${Icon} name="plus" />New skill</button>`}</header>
    ${editing ? html`<${Editor} skill=${editing} onDone=${() => (setEditing(null), reload())} onCancel=${() => setEditing(null)} />` : ""}
    ${error ? html`<${ProblemNote} error=${error} onRetry=${reload} />` : ""}
    ${!data && !error ? html`<${Loading} />` : ""}
    ${data?.items.length === 0 && !editing ? html`<${Empty} title="No skills yet" />` : ""}
    <div class="stack tight">${data?.items.map((skill) => html`<${Skill} key=${skill.name} skill=${skill} reload=${reload} edit=${setEditing} />`)}</div>
    <h2>Commands</h2>
    ${commands.error ? html`<${ProblemNote} error=${commands.error} onRetry=${commands.reload} />` : ""}
    ${commands.data && others.length === 0 ? html`<p class="muted">The app has no commands.</p>` : ""}
    ${others.length ? html`<dl class="details">${others.map((command) => html`<div><dt class="mono">/${visible(command.name)}</dt><dd>${visible(command.description)} <span class="muted">${visible(command.argumentHint)}</span></dd></div>`)}</dl>` : ""}
  </section>`;
}

function Skill({ skill, reload, edit }) {
  const path = `/skills/${encodeURIComponent(skill.name)}`;
  const [whole, setWhole] = useState(null);
  const [etag, setEtag] = useState(null);
  const [error, setError] = useState(null);
  const load = (event) => event.currentTarget.open && !whole && send("GET", path).then(({ data, etag }) => (setWhole(data), setEtag(etag)), setError);
  const forget = () => confirm({ title: `Delete the skill ${visible(skill.name)}?`, text: "Agents do not read it any more.", action: "Delete", isDangerous: true, onConfirm: () => remove(path).then(reload, (problem) => showToast(problem.message)) });
  return html`<details class="card" onToggle=${load} data-row><summary class="tool-line"><${Icon} name="skills" /><code>${visible(skill.name)}</code><span class="tool-args">${visible(skill.description)}</span></summary>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    ${whole ? html`<p class="plain small">${visible(whole.instructions)}</p>
      ${isReadOnly() ? "" : html`<div class="actions end"><button type="button" class="button small" onClick=${() => edit({ ...whole, etag })}>Edit</button><button type="button" class="button small" onClick=${forget}>Delete</button></div>`}` : ""}
  </details>`;
}

function Editor({ skill, onDone, onCancel }) {
  const [form, setForm] = useState(skill);
  const [error, setError] = useState(null);
  const change = (name) => (event) => setForm({ ...form, [name]: event.currentTarget.value });
  const submit = async (event) => {
    event.preventDefault();
    const { name, description, instructions, tools } = form;
    try {
      const headers = skill.etag ? { "if-match": skill.etag } : {};
      await send("PUT", `/skills/${encodeURIComponent(name)}`, { body: { description, instructions, ...(tools?.length ? { tools } : {}) }, headers });
      onDone();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<form class="card stack form" onSubmit=${submit}>
    <h2>${skill.isNew ? "New skill" : visible(skill.name)}</h2>
    ${skill.isNew ? html`<label class="field">Name: lower-case letters, digits and hyphens<input type="text" required value=${form.name} onInput=${change("name")} /></label>` : ""}
    <label class="field">Description: when an agent should read it<input type="text" required value=${form.description} onInput=${change("description")} /></label>
    <label class="field">Instructions<textarea rows="8" required value=${form.instructions} onInput=${change("instructions")}></textarea></label>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    <div class="actions end"><button type="button" class="button" onClick=${onCancel}>Cancel</button><button type="submit" class="button primary">Save</button></div>
  </form>`;
}
