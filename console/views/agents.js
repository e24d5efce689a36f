// Purpose: the agents: instructions, tools with schema, effect and approval rule, mistakes with file and line.
import { get } from "../lib/api.js";
import { conditionText, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Empty, Json, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { Icon } from "../parts/icon.js";

/** @param {{id?: string}} props the name of an agent, or none for the list */
export default function Agents({ id }) {
  const { data, error, reload } = useResource(() => get("/agents"), [], 15_000);
  if (id) return html`<${Agent} name=${id} summary=${data?.items.find(({ name }) => name === id)} isRead=${Boolean(data)} listError=${error} />`;
  return html`<section class="page">
    <header class="page-head"><div><h1>Agents</h1><p class="lead">One file each in <code>agents/</code>. A changed file takes effect at once in <code>turnwheel dev</code>.</p></div></header>
    ${error ? html`<${ProblemNote} error=${error} onRetry=${reload} />` : ""}
    ${!data && !error ? html`<${Loading} />` : ""}
    ${data?.items.length === 0 ? html`<${Empty} title="No agents in agents/"><p>Run <code>turnwheel new</code>.</p><//>` : ""}
    ${data?.items.length ? html`<ul class="rows">${data.items.map((agent) => html`<li class="row" key=${agent.name} data-row><a class="row-link agents" href=${`#/agents/${encodeURIComponent(agent.name)}`}>
      <span class="row-main"><span class="row-title"><bdi>${visible(agent.name)}</bdi></span><span class="row-sub">${visible(agent.problem ?? agent.description)}</span></span>
      <span class="row-agent">${visible(agent.model ?? "")}</span>
      <span class="row-state">${agent.available ? html`<span class="badge good"><${Icon} name="check" />Available</span>` : html`<span class="badge bad"><${Icon} name="warning" />Unavailable</span>`}</span>
    </a></li>`)}</ul>` : ""}
  </section>`;
}

function Agent({ name, summary, isRead, listError }) {
  const { data, error, reload } = useResource(() => get(`/agents/${encodeURIComponent(name)}`), [name]);
  const agent = { ...summary, ...data };
  if (!data && !isRead && !error && !listError) return html`<section class="page"><${Loading} /></section>`;
  if (error && !summary) return html`<section class="page"><${ProblemNote} error=${error} onRetry=${reload} /><p><a href="#/agents">All agents</a></p></section>`;
  return html`<section class="page">
    <header class="page-head"><div class="title-row"><a class="back" href="#/agents" aria-label="All agents"><${Icon} name="back" /></a><h1><bdi>${visible(name)}</bdi></h1></div>
      <a class="button primary" href=${`#/new?agent=${encodeURIComponent(name)}`}><${Icon} name="plus" />New conversation</a></header>
    <p class="lead">${visible(agent.description)}</p>
    ${agent.problem ? html`<div class="note bad"><${Icon} name="warning" /><div class="grow"><p class="note-title">This agent does not start conversations</p><p class="mono plain">${visible(agent.problem)}</p></div></div>` : ""}
    <p class="meta"><span>Model ${visible(agent.model ?? "default")}</span><span>Revision <span class="mono">${visible(agent.revision ?? "none")}</span></span></p>
    ${agent.instructions ? html`<h2>Instructions</h2><pre class="code" tabindex="0">${visible(agent.instructions)}</pre>` : ""}
    ${(agent.contextFiles ?? []).length ? html`<p class="small muted">Also reads ${visible(agent.contextFiles.map((file) => file.path ?? file).join(", "))}</p>` : ""}
    <h2>Tools</h2>
    ${(agent.tools ?? []).length === 0 ? html`<p class="muted">This agent has no tools.</p>` : ""}
    <div class="stack tight">${toolsOf(agent).map((tool) => html`<${Tool} key=${tool.name} tool=${tool} />`)}</div>
  </section>`;
}

/** The definitions of the tools; an agent with a mistake has names only. */
function toolsOf(agent) {
  return agent.toolDefinitions ?? (agent.tools ?? []).map((name) => ({ name }));
}

function Tool({ tool }) {
  const { approval } = tool;
  return html`<details class="card" data-row>
    <summary class="tool-line"><${Icon} name="tool" /><code>${visible(tool.name)}</code><span class="tool-args">${visible(tool.description)}</span><span class="spacer"></span>
      ${tool.effect ? html`<span class="badge ${tool.effect === "write" ? "warning" : "quiet"}">${visible(tool.effect)}</span>` : ""}
      ${approval ? html`<span class="badge ${approval.approvers ? "info" : "quiet"}">${approval.approvers ? html`<${Icon} name="approvals" />` : ""}Approval: ${approvalWord(approval)}</span>` : ""}</summary>
    ${tool.description ? html`<p class="plain">${visible(tool.description)}</p>` : ""}
    ${tool.destination ? html`<p class="small mono"><bdi>${visible([tool.destination.method, tool.destination.host ?? tool.destination.server, tool.destination.tool].filter(Boolean).join(" "))}</bdi></p>` : ""}
    ${approval ? html`<h4>Approval</h4><p class="small">${approvalSentence(approval)}</p>${approval.when ? html`<${Json} value=${approval.when} label="Arguments that need an approval" />` : ""}` : ""}
    ${tool.parameters ? html`<h4>Parameters</h4><${Json} value=${tool.parameters} label="Parameters" />` : html`<p class="small muted">No details of this tool.</p>`}
  </details>`;
}

/** The rule in a word, or its condition if that is short. */
function approvalWord({ rule, when }) {
  return visible(rule === "when" ? conditionText(when) || "by arguments" : rule === "code" ? "by code" : rule);
}

function approvalSentence({ rule, approvers = [] }) {
  const by = visible(approvers.join(" or "));
  if (rule === "never") return "No call needs an approval.";
  if (rule === "always") return `Each call needs an approval by ${by}.`;
  if (rule === "when") return `A call needs an approval by ${by} if its arguments are valid by this schema:`;
  return "The code of the tool decides which calls need an approval.";
}
