// Purpose: the first page: agents with prompts to try, what waits for a decision, today's cost, the kill demonstration.
import { get, post } from "../lib/api.js";
import { cost, plural, tokens, visible } from "../lib/format.js";
import { html, useRef, useState } from "../lib/html.js";
import { isOfInputMethod } from "../lib/keyboard.js";
import { conversationHref, go, route } from "../lib/router.js";
import { approvalCount, hasFeature, isReadOnly } from "../lib/state.js";
import { CopyButton, Empty, Loading, ProblemNote, useResource } from "../parts/basic.js";
import { Icon } from "../parts/icon.js";
import { Lazy } from "../parts/lazy.js";
import { Row } from "../parts/row.js";

const SAMPLE_AGENT = `---
description: Answers questions briefly.
---
You are a helpful assistant. Answer in one or two sentences.
`;

/** Prompts of the examples that come with Turnwheel, for agents without prompts of their own. */
const TOOL_PROMPTS = {
  send_payment: ["Pay 40 to Ada", "Pay 250 to Bob"],
  list_payments: ["Which payments were made?"],
  write: ['use write with {"path": "notes.md", "content": "# Notes"} then use ls with {} then say **Done**, see `notes.md`.'],
};

/** @param {any} agent @returns {string[]} */
export function promptsToTry(agent) {
  if (agent.examples?.length) return agent.examples.map((example) => (typeof example === "string" ? example : example.prompt ?? example.input));
  const known = agent.tools.flatMap((tool) => TOOL_PROMPTS[tool] ?? []);
  return known.length ? known.slice(0, 3) : ["What can you do?"];
}

export default function Start() {
  const isNew = route.value.view === "new";
  const agents = useResource(() => get("/agents"), []);
  const usage = useResource(() => get("/usage", { by: "day" }).catch(() => null), []);
  const recent = useResource(() => (isNew ? Promise.resolve(null) : get("/conversations", { limit: 5 })), [isNew]);
  const [error, setError] = useState(null);
  const [isSending, setSending] = useState(false);
  // A second Enter may come before the button is drawn as disabled.
  const hasRequest = useRef(false);
  const start = async (agent, input) => {
    if (hasRequest.current) return;
    hasRequest.current = true;
    setError(null);
    setSending(true);
    try {
      const { conversationId } = await post("/prompts", { agent, input });
      go(conversationHref(conversationId).slice(1));
    } catch (problem) {
      setError(problem);
    }
    hasRequest.current = false;
    setSending(false);
  };
  const available = agents.data?.items.filter((agent) => agent.available) ?? [];
  return html`<section class="page">
    <header class="page-head"><div><h1>${isNew ? "New conversation" : "Start"}</h1>
      <p class="lead">Each conversation survives crashes, restarts and deployments.</p></div></header>
    ${!isNew ? html`<${Overview} usage=${usage.data} />` : ""}
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    ${agents.error ? html`<${ProblemNote} error=${agents.error} onRetry=${agents.reload} />` : ""}
    ${!agents.data && !agents.error ? html`<${Loading} />` : ""}
    ${agents.data?.items.length === 0 ? html`<${NoAgents} />` : ""}
    ${available.length && !isReadOnly() ? html`<${FirstInput} agents=${available} start=${start} isSending=${isSending} />` : ""}
    ${agents.data?.items.length ? html`<h2>Agents</h2>
      <div class="grid">${agents.data.items.map((agent) => html`<${AgentCard} key=${agent.name} agent=${agent} start=${start} isSending=${isSending} />`)}</div>` : ""}
    ${!isNew && recent.data?.items.length ? html`<h2>Recent conversations</h2><ul class="rows">${recent.data.items.map((item) => html`<${Row} key=${item.id} item=${item} />`)}</ul>` : ""}
    ${!isNew && hasFeature("kill") ? html`<${Lazy} key="kill" load=${() => import("./kill.js")} />` : ""}
  </section>`;
}

function Overview({ usage }) {
  const today = usage?.items?.find(({ name }) => name === new Date().toISOString().slice(0, 10));
  const count = approvalCount.value;
  return html`<dl class="overview">
    <div><dt>Waiting for your decision</dt><dd>${count ? html`<a href="#/approvals">${plural(count, "approval request")}</a>` : count === 0 ? "nothing" : "…"}</dd></div>
    <div><dt>Model calls today</dt><dd>${today?.modelCalls ?? 0}</dd></div>
    <div><dt>Tokens today</dt><dd>${tokens(today?.usage.totalTokens)}</dd></div>
    <div><dt>Cost today</dt><dd>${cost(today?.usage.cost.total)}</dd></div>
  </dl>`;
}

function NoAgents() {
  return html`<${Empty} title="No agents in agents/">
    <p>Run <code>turnwheel new</code>, or copy this file to <code>agents/helper.agent.md</code>:</p>
    <pre class="code" tabindex="0">${SAMPLE_AGENT}</pre><${CopyButton} text=${SAMPLE_AGENT} /><//>`;
}

function FirstInput({ agents, start, isSending }) {
  const wanted = route.value.query.get("agent");
  const [agent, setAgent] = useState(agents.some(({ name }) => name === wanted) ? wanted : agents[0].name);
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (text.trim()) start(agent, text);
  };
  return html`<form class="first-input" onSubmit=${submit}>
    <label class="sr-only" for="composer-field">First input</label>
    <textarea id="composer-field" rows="2" placeholder="Write the first input…" value=${text} onInput=${(event) => setText(event.currentTarget.value)}
      onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !isOfInputMethod(event) && submit(event)}></textarea>
    <div class="composer-actions"><label class="inline-label">Agent
      <select value=${agent} onChange=${(event) => setAgent(event.currentTarget.value)}>${agents.map(({ name }) => html`<option value=${name}>${visible(name)}</option>`)}</select></label>
      <span class="spacer"></span><button type="submit" class="button primary" disabled=${isSending || !text.trim()}><${Icon} name="send" />Start</button></div>
  </form>`;
}

function AgentCard({ agent, start, isSending }) {
  const prompts = promptsToTry(agent);
  return html`<article class="card agent" data-agent=${agent.name}>
    <header><h3><a href=${`#/agents/${encodeURIComponent(agent.name)}`}>${visible(agent.name)}</a></h3>
      ${agent.available ? html`<span class="small muted">${visible(agent.model ?? "")}</span>` : html`<span class="badge bad"><${Icon} name="warning" />Unavailable</span>`}</header>
    <p>${visible(agent.description)}</p>
    ${agent.problem ? html`<p class="small mono warning-text">${visible(agent.problem)}</p>` : ""}
    <p class="chips">${agent.tools.slice(0, 8).map((tool) => html`<code class="chip">${visible(tool)}</code>`)}${agent.tools.length > 8 ? html`<span class="small muted">and ${agent.tools.length - 8} more</span>` : ""}</p>
    ${agent.available && !isReadOnly() ? html`<div class="try"><h4>Try these prompts</h4>${prompts.map((prompt) => html`<button type="button" class="prompt" disabled=${isSending} onClick=${() => start(agent.name, prompt)}><span>${visible(prompt)}</span><${Icon} name="send" /></button>`)}</div>` : ""}
  </article>`;
}
