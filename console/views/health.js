// Purpose: the health of the service, the lines of the doctor with remedies, pending work for operators.
import { get } from "../lib/api.js";
import { visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { conversationHref } from "../lib/router.js";
import { hasFeature, isReadOnly, me } from "../lib/state.js";
import { Empty, Loading, ProblemNote, State, useResource } from "../parts/basic.js";
import { Icon } from "../parts/icon.js";
import { whyText } from "../parts/row.js";

const OUTCOMES = { ok: ["good", "check"], fix: ["bad", "cross"], skipped: ["quiet", "question"] };

export default function Health() {
  const health = useResource(() => get("/health"), [], 30_000);
  const doctor = useResource(() => (hasFeature("doctor") ? get("/doctor") : Promise.resolve(null)), [hasFeature("doctor")]);
  const work = useResource(() => (isReadOnly() ? get("/work", { stuck: 600, waiting: true }) : Promise.resolve(null)), [], 30_000);
  const models = useResource(() => get("/models"), []);
  const isUp = health.data?.status === "ok";
  return html`<section class="page">
    <header class="page-head"><h1>Health</h1>${me.value?.version ? html`<span class="muted">Version ${visible(me.value.version)}</span>` : ""}</header>
    ${health.error ? html`<${ProblemNote} error=${health.error} onRetry=${health.reload} />` : ""}
    ${health.data ? html`<div class="note ${isUp ? "quiet" : "bad"}"><${Icon} name=${isUp ? "check" : "warning"} /><p class="note-title">${isUp ? "The service is healthy" : `The service reports ${visible(health.data.status)}`}</p></div>` : ""}
    ${doctor.error ? html`<${ProblemNote} error=${doctor.error} onRetry=${doctor.reload} />` : ""}
    ${doctor.data ? html`<h2>Checks</h2><p class="small muted">As <code>turnwheel doctor --offline</code>: files and settings, without a request to another machine.
      <button type="button" class="button small" onClick=${doctor.reload}>Check again</button></p>
      <ul class="rows">${doctor.data.checks.map((check) => html`<${Check} check=${check} />`)}</ul>` : ""}
    ${work.data ? html`<h2>Pending work</h2>${work.data.items.length ? html`<ul class="rows">${work.data.items.map((item) => html`<li class="row" data-row><a class="row-link one" href=${conversationHref(item.id, undefined, { user: item.owner.userId })}><span class="row-main"><span class="row-title"><bdi>${visible(item.id)}</bdi> <${State} state=${item.state} /></span><span class="row-sub">${whyText(item)}</span></span></a></li>`)}</ul>` : html`<${Empty} title="Nothing waits or is overdue" />`}` : ""}
    ${work.error ? html`<${ProblemNote} error=${work.error} onRetry=${work.reload} />` : ""}
    <h2>Models</h2>
    ${models.error ? html`<${ProblemNote} error=${models.error} onRetry=${models.reload} />` : ""}
    ${!models.data && !models.error ? html`<${Loading} rows=${1} />` : ""}
    ${models.data ? html`<table class="table"><thead><tr><th scope="col">Model</th><th scope="col">Tiers</th><th scope="col">Provider</th><th scope="col" class="numeric">Context window</th><th scope="col" class="numeric">Output at most</th></tr></thead>
      <tbody>${models.data.items.map((model) => html`<tr data-row><td data-label="Model" class="mono">${visible(model.id)}</td><td data-label="Tiers">${visible((model.tiers ?? []).join(", "))}</td><td data-label="Provider">${visible(model.provider)}</td><td data-label="Context window" class="numeric">${model.contextWindow?.toLocaleString()}</td><td data-label="Output at most" class="numeric">${model.maxOutputTokens?.toLocaleString()}</td></tr>`)}</tbody></table>` : ""}
  </section>`;
}

function Check({ check }) {
  const [tone, icon] = OUTCOMES[check.outcome] ?? ["quiet", "question"];
  const place = [check.name, check.line].filter(Boolean).join(":");
  return html`<li class="row check-row" data-row><span class="badge ${tone}"><${Icon} name=${icon} />${visible(check.outcome)}</span>
    <div class="grow"><p><strong><bdi>${visible(place)}</bdi></strong> <span class="muted">${visible(check.area)}</span></p><p class="small plain">${visible(check.detail)}</p></div></li>`;
}
