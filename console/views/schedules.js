// Purpose: the schedules of the caller: next and last run, last problem, create, delete.
import { get, list, post, remove } from "../lib/api.js";
import { contentText, dateTime, shorten, visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { conversationHref } from "../lib/router.js";
import { isReadOnly, showToast } from "../lib/state.js";
import { Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icon.js";

export default function Schedules() {
  const { data, error, reload } = useResource(() => list("/schedules"), [], 30_000);
  const [isNew, setNew] = useState(false);
  const remove_ = (schedule) => confirm({
    title: "Delete this schedule?",
    text: "It fires no more. Conversations that it started stay.",
    action: "Delete",
    isDangerous: true,
    onConfirm: () => remove(`/schedules/${encodeURIComponent(schedule.id)}`).then(reload, (problem) => showToast(problem.message)),
  });
  return html`<section class="page">
    <header class="page-head"><h1>Schedules</h1>${isReadOnly() || isNew ? "" : html`<button type="button" class="button primary" onClick=${() => setNew(true)}><${Icon} name="plus" />New schedule</button>`}</header>
    ${isNew ? html`<${NewSchedule} onDone=${() => (setNew(false), reload())} onCancel=${() => setNew(false)} />` : ""}
    ${error ? html`<${ProblemNote} error=${error} onRetry=${reload} />` : ""}
    ${!data && !error ? html`<${Loading} />` : ""}
    ${data?.items.length === 0 && !isNew ? html`<${Empty} title="No schedules yet"><p>A schedule sends an input to an agent, once or repeatedly.</p><//>` : ""}
    ${data?.items.length ? html`<table class="table"><thead><tr><th scope="col">Input</th><th scope="col">Agent</th><th scope="col">When</th><th scope="col">Next run</th><th scope="col">Last run</th><th scope="col"><span class="sr-only">Actions</span></th></tr></thead>
      <tbody>${data.items.map((schedule) => html`<${Row} key=${schedule.id} schedule=${schedule} onDelete=${() => remove_(schedule)} />`)}</tbody></table>` : ""}
  </section>`;
}

function Row({ schedule, onDelete }) {
  const { lastProblem, lastConversationId } = schedule;
  return html`<tr data-row>
    <td data-label="Input"><bdi>${visible(shorten(contentText(schedule.input), 120)) || html`<span class="muted">continues the conversation</span>`}</bdi>
      ${lastProblem ? html`<p class="small bad-text">${dateTime(lastProblem.at)}: ${visible(lastProblem.detail)}</p>` : ""}</td>
    <td data-label="Agent">${visible(schedule.agent)}</td>
    <td data-label="When">${visible(schedule.every ?? "once")}${schedule.timeZone ? html`<span class="small muted"> ${visible(schedule.timeZone)}</span>` : ""}</td>
    <td data-label="Next run">${schedule.nextAt ? dateTime(schedule.nextAt) : "none"}</td>
    <td data-label="Last run">${lastConversationId ? html`<a href=${conversationHref(lastConversationId)}>${dateTime(schedule.lastFiredAt)}</a>` : schedule.lastFiredAt ? dateTime(schedule.lastFiredAt) : "never"}</td>
    <td class="end">${isReadOnly() ? "" : html`<button type="button" class="button small" onClick=${onDelete}>Delete<span class="sr-only"> schedule ${visible(schedule.id)}</span></button>`}</td>
  </tr>`;
}

function NewSchedule({ onDone, onCancel }) {
  const agents = useResource(() => get("/agents"), []);
  const [form, setForm] = useState({ input: "", agent: "", kind: "every", every: "P1D", at: "", timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone });
  const [error, setError] = useState(null);
  const change = (name) => (event) => setForm({ ...form, [name]: event.currentTarget.value });
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    const body = { input: form.input, agent: form.agent || agents.data?.items[0]?.name };
    if (form.kind === "every") Object.assign(body, { every: form.every }, isCron(form.every) ? { timeZone: form.timeZone } : {});
    else body.at = new Date(form.at || Date.now() + 3_600_000).toISOString();
    try {
      await post("/schedules", body);
      onDone();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<form class="card stack form" onSubmit=${submit}>
    <h2>New schedule</h2>
    <label class="field">Input<textarea rows="2" required value=${form.input} onInput=${change("input")}></textarea></label>
    <div class="form-row">
      <label class="field">Agent<select value=${form.agent || agents.data?.items[0]?.name} onChange=${change("agent")}>${agents.data?.items.map(({ name }) => html`<option value=${name}>${visible(name)}</option>`)}</select></label>
      <label class="field">Runs<select value=${form.kind} onChange=${change("kind")}><option value="every">repeatedly</option><option value="at">once</option></select></label>
      ${form.kind === "every"
        ? html`<label class="field">Every: P1D, PT15M, or a cron expression<input type="text" required value=${form.every} onInput=${change("every")} /></label>`
        : html`<label class="field">At<input type="datetime-local" required value=${form.at} onInput=${change("at")} /></label>`}
      ${form.kind === "every" && isCron(form.every) ? html`<label class="field">Time zone<input type="text" value=${form.timeZone} onInput=${change("timeZone")} /></label>` : ""}
    </div>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    <div class="actions end"><button type="button" class="button" onClick=${onCancel}>Cancel</button><button type="submit" class="button primary">Create the schedule</button></div>
  </form>`;
}

const isCron = (text) => text.trim().includes(" ");
