// Purpose: model usage and cost by day, agent or user, and the budgets with their reserved part.
import { get } from "../lib/api.js";
import { cost, dateTime, tokens, visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { isReadOnly } from "../lib/state.js";
import { Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";

export default function Usage() {
  const [by, setBy] = useState("day");
  const { data, error, reload } = useResource(() => get("/usage", { by }), [by]);
  const budgets = useResource(() => get("/budgets"), []);
  const groups = [["day", "Day"], ["agent", "Agent"], ...(isReadOnly() ? [["user", "User"]] : [])];
  const items = data?.by === by ? data.items : null;
  return html`<section class="page">
    <header class="page-head"><div><h1>Usage</h1><p class="lead">Model calls of the last 30 days. A call appears after 10 to 15 minutes.</p></div></header>
    ${budgets.error ? html`<${ProblemNote} error=${budgets.error} onRetry=${budgets.reload} />` : ""}
    ${budgets.data?.items.length ? html`<h2>Budgets</h2><div class="grid">${budgets.data.items.map((budget) => html`<${Budget} budget=${budget} />`)}</div><h2>Usage</h2>` : ""}
    <div class="segments" role="group" aria-label="Group by">${groups.map(([key, label]) => html`<button type="button" class="segment" aria-pressed=${by === key} onClick=${() => setBy(key)}>${label}</button>`)}</div>
    ${error ? html`<${ProblemNote} error=${error} onRetry=${reload} />` : ""}
    ${!items && !error ? html`<${Loading} />` : ""}
    ${items?.length === 0 ? html`<${Empty} title="No model calls yet" />` : ""}
    ${items?.length ? html`<${UsageTable} items=${by === "day" ? [...items].reverse() : items} by=${by} />` : ""}
  </section>`;
}

function UsageTable({ items, by }) {
  const max = Math.max(...items.map(({ usage }) => usage.totalTokens), 1);
  const total = items.reduce((sum, { modelCalls, usage }) => ({ calls: sum.calls + modelCalls, input: sum.input + usage.input, output: sum.output + usage.output, cost: sum.cost + usage.cost.total }), { calls: 0, input: 0, output: 0, cost: 0 });
  return html`<table class="table usage">
    <thead><tr><th scope="col">${{ day: "Day", agent: "Agent", user: "User" }[by]}</th><th scope="col" class="bar-cell"><span class="sr-only">Share</span></th><th scope="col" class="numeric">Model calls</th><th scope="col" class="numeric">Input</th><th scope="col" class="numeric">Output</th><th scope="col" class="numeric">Cost</th></tr></thead>
    <tbody>${items.map(({ name, modelCalls, usage }) => html`<tr data-row>
      <td data-label="Name"><bdi>${visible(name)}</bdi></td>
      <td class="bar-cell" aria-hidden="true"><span class="usage-bar" style=${{ width: `${Math.max(1, (100 * usage.totalTokens) / max)}%` }}></span></td>
      <td class="numeric" data-label="Model calls">${modelCalls}</td><td class="numeric" data-label="Input">${tokens(usage.input)}</td><td class="numeric" data-label="Output">${tokens(usage.output)}</td><td class="numeric" data-label="Cost">${cost(usage.cost.total)}</td>
    </tr>`)}</tbody>
    <tfoot><tr><th scope="row">Sum</th><td class="bar-cell"></td><td class="numeric" data-label="Model calls">${total.calls}</td><td class="numeric" data-label="Input">${tokens(total.input)}</td><td class="numeric" data-label="Output">${tokens(total.output)}</td><td class="numeric" data-label="Cost">${cost(total.cost)}</td></tr></tfoot>
  </table>`;
}

function Budget({ budget }) {
  const { level, name, period, unit, limit, used, reserved = 0, resetsAt } = budget;
  const amount = (value) => (unit === "usd" ? cost(value) : `${tokens(value)} tokens`);
  return html`<article class="card budget">
    <h3>${visible(`${{ user: "Your budget", agent: `Agent ${name}`, tenant: "All users" }[level] ?? level}, ${{ day: "today", month: "this month", total: "in total" }[period] ?? period}`)}</h3>
    <p>${amount(used)} of ${amount(limit)}${reserved ? html`<span class="muted">, ${amount(reserved)} reserved</span>` : ""}</p>
    <meter min="0" max=${limit} high=${limit * 0.8} value=${Math.min(limit, used + reserved)} aria-label=${`Budget ${level} ${period}`}></meter>
    ${resetsAt ? html`<p class="small muted">Starts again ${dateTime(resetsAt)}</p>` : ""}
  </article>`;
}
