// Purpose: an approval request with its exact arguments and its decisions, and the card of an unknown outcome.
import { conversationPath, post } from "../lib/api.js";
import { RawJson, typedValue } from "../lib/exact-json.js";
import { clock, dateTime, visible } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { conversationHref } from "../lib/router.js";
import { announce, approvalCount, isReadOnly } from "../lib/state.js";
import { Age, Arguments, CopyButton, ProblemNote } from "./basic.js";
import { Icon } from "./icon.js";

const DECISIONS = {
  approve: "Approved",
  reject: "Rejected",
  happened: "Recorded: it ran",
  did_not_happen: "Recorded: it did not run",
  again: "Run again",
  answer: "Answered",
};

/**
 * A card for one request; keep it keyed by the id of the request, so that no input survives into the next one.
 * @param {{approval: any, start?: any, showConversation?: boolean, onDecided?: (decided: any) => void}} props
 *   `start`: the stored `tool_started` entry of the call
 */
export function ApprovalCard({ approval, start, showConversation = false, onDecided }) {
  const [decided, setDecided] = useState(null);
  const [error, setError] = useState(null);
  const [isSending, setSending] = useState(false);
  const decide = async (decision, members = {}) => {
    setSending(true);
    setError(null);
    const path = `${conversationPath(approval.conversationId)}/approvals/${encodeURIComponent(approval.id)}`;
    try {
      const result = await post(path, { decision, ...members });
      finish(result, false);
    } catch (problem) {
      if (problem.name === "already-decided") finish(problem.members.approval ?? problem.members, true);
      else setError(problem);
    }
    setSending(false);
  };
  const finish = (result, byAnother) => {
    setDecided({ ...result, byAnother });
    announce(`${DECISIONS[result.decision] ?? "Decided"}`);
    if (approvalCount.value) approvalCount.value -= 1;
    onDecided?.(result);
  };
  if (decided) return html`<${Decided} approval=${approval} decided=${decided} />`;
  const Body = { outcome: Outcome, budget: BudgetRequest, question: Question }[approval.kind] ?? ToolRequest;
  return html`<section class="card approval ${approval.kind === "outcome" ? "unknown" : ""}" aria-label=${titleOf(approval)}>
    ${showConversation ? html`<${Origin} approval=${approval} />` : ""}
    <${Body} approval=${approval} start=${start} decide=${decide} isSending=${isSending} />
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
  </section>`;
}

/** @param {any} approval @returns {string} */
export function titleOf(approval) {
  const tool = visible(approval.toolLabel ?? approval.toolName ?? "");
  if (approval.kind === "outcome") return `Did ${tool} run?`;
  return visible(approval.title);
}

/** An operator may decide through another role only: the server knows. */
function canDecide({ canDecide }) {
  return canDecide ?? !isReadOnly();
}

function Origin({ approval }) {
  return html`<p class="origin small muted">
    <a href=${conversationHref(approval.conversationId)}>${visible(approval.conversationName ?? approval.conversationId)}</a>
    <span> · ${approval.agent ? `${visible(approval.agent)} · ` : ""}user ${visible(approval.userId)} · <${Age} at=${approval.requestedAt} /></span>
  </p>`;
}

function Decided({ approval, decided }) {
  const by = decided.decidedBy ? ` by ${visible(decided.decidedBy)}` : "";
  return html`<section class="card approval decided" role="status">
    <p><${Icon} name=${decided.decision === "reject" ? "cross" : "check"} /><strong>${DECISIONS[decided.decision] ?? visible(decided.decision)}</strong>${by}
      ${decided.decidedAt ? ` at ${clock(decided.decidedAt)}` : ""}: ${titleOf(approval)}</p>
    ${decided.byAnother ? html`<p class="small">This request was already decided. The first decision counts.</p>` : ""}
    ${decided.decisionReason ? html`<p class="small muted">${visible(decided.decisionReason)}</p>` : ""}
  </section>`;
}

function Head({ approval, icon }) {
  return html`<header class="approval-head">
    <span class="approval-icon"><${Icon} name=${icon} /></span>
    <div><h3>${titleOf(approval)}</h3><p>${visible(approval.reason)}</p></div>
  </header>`;
}

function Details({ approval }) {
  const { destination, effect, expiresAt } = approval;
  const target = destination
    ? [destination.method, destination.host ?? destination.server, destination.tool].filter(Boolean).join(" ")
    : "";
  return html`<dl class="details">
    <div><dt>Tool</dt><dd class="mono">${visible(approval.toolName)}</dd></div>
    ${target ? html`<div><dt>Destination</dt><dd class="mono"><bdi>${visible(target)}</bdi></dd></div>` : ""}
    ${effect ? html`<div><dt>Effect</dt><dd>${effect === "write" ? "write, cannot be undone" : visible(effect)}</dd></div>` : ""}
    ${expiresAt ? html`<div><dt>Expires</dt><dd>${dateTime(expiresAt)}</dd></div>` : ""}
  </dl>`;
}

function ToolRequest({ approval, decide, isSending }) {
  return html`<${Head} approval=${approval} icon="approvals" />
    <${Arguments} value=${approval.arguments} />
    <${Details} approval=${approval} />
    <${ApproveOrReject} approval=${approval} decide=${decide} isSending=${isSending} />`;
}

/** Approve and reject, not adjacent. A rejection offers a reason and does not require one. */
function ApproveOrReject({ approval, decide, isSending, value, approveText = "Approve" }) {
  const [isRejecting, setRejecting] = useState(false);
  const [reason, setReason] = useState("");
  if (!canDecide(approval)) {
    return html`<p class="small muted">Your roles permit reading this request only.</p>`;
  }
  if (isRejecting) {
    return html`<form class="stack" onSubmit=${(event) => (event.preventDefault(), decide("reject", reason ? { reason } : {}))}>
      <label class="field">Reason for the agent (optional)
        <input type="text" value=${reason} maxlength="1000" onInput=${(event) => setReason(event.currentTarget.value)} autofocus ref=${focusOnce} />
      </label>
      <div class="actions spread">
        <button type="button" class="button big" onClick=${() => setRejecting(false)}>Back</button>
        <button type="submit" class="button big danger" disabled=${isSending}>Reject</button>
      </div>
    </form>`;
  }
  return html`<div class="actions spread">
    <button type="button" class="button big primary" disabled=${isSending}
      onClick=${() => decide("approve", value === undefined ? {} : { value })}>${approveText}</button>
    <button type="button" class="button big" disabled=${isSending} onClick=${() => setRejecting(true)}>Reject…</button>
  </div>`;
}

function focusOnce(element) {
  if (element && !element.dataset.focused) {
    element.dataset.focused = "true";
    element.focus();
  }
}

/** The request was sent and its response was lost. No choice has the focus, and none is the default of Enter. */
function Outcome({ approval, start, decide, isSending }) {
  const [choice, setChoice] = useState("");
  const [response, setResponse] = useState("");
  const sentAt = approval.sent?.sentAt ?? start?.timestamp;
  const effectId = approval.sent?.effectId ?? start?.effectId;
  const tool = visible(approval.toolName);
  const happened = () => decide("happened", response.trim() ? { value: typedValue(response) } : {});
  return html`<header class="approval-head">
      <span class="approval-icon bad"><${Icon} name="question" /></span>
      <div>
        <h3>Did <code>${tool}</code> run?</h3>
        <p>${sentAt ? `The request was sent at ${clock(sentAt)}` : "The request was sent"}, and its response did not arrive: ${visible(approval.reason).replace(/\.$/, "")}. Turnwheel does not know whether it ran, so it does not repeat it.</p>
      </div>
    </header>
    <${Arguments} value=${approval.arguments} />
    <${SentRequest} approval=${approval} effectId=${effectId} />
    ${!canDecide(approval)
      ? html`<p class="small muted">Your roles permit reading this request only.</p>`
      : html`<div class="choices">
      <div class="choice">
        <button type="button" class="button big" disabled=${isSending} aria-expanded=${choice === "happened"} onClick=${() => setChoice("happened")}>It ran</button>
        <p class="small muted">You found the effect. The model reads the response that you enter.</p>
        ${choice === "happened" && html`<label class="field">Response of the tool (optional)
            <textarea rows="3" value=${response} onInput=${(event) => setResponse(event.currentTarget.value)} placeholder='{"receipt": "…"}'></textarea></label>
          <button type="button" class="button primary" disabled=${isSending} onClick=${happened}>Record that it ran</button>`}
      </div>
      <div class="choice">
        <button type="button" class="button big" disabled=${isSending} onClick=${() => decide("did_not_happen")}>It did not run</button>
        <p class="small muted">The model reads that the call had no effect.</p>
      </div>
      <div class="choice">
        <button type="button" class="button big" disabled=${isSending} aria-expanded=${choice === "again"} onClick=${() => setChoice("again")}>Run it again</button>
        <p class="small muted">Sends the same request with the same effect id.</p>
        ${choice === "again" && html`<p class="small warning-text">It may execute twice unless the service checks <code>Idempotency-Key</code>.</p>
          <button type="button" class="button danger" disabled=${isSending} onClick=${() => decide("again")}>Run it again with the same effect id</button>`}
      </div>
    </div>`}`;
}

function SentRequest({ approval, effectId }) {
  const { destination, sent } = approval;
  const target = destination ? [destination.method, destination.host ?? destination.server, destination.tool].filter(Boolean).join(" ") : "";
  return html`<dl class="details">
    ${target ? html`<div><dt>Request</dt><dd class="mono"><bdi>${visible(target)}</bdi></dd></div>` : ""}
    ${sent?.attempt ? html`<div><dt>Attempt</dt><dd>${sent.attempt}</dd></div>` : ""}
    ${effectId ? html`<div><dt>Effect id</dt><dd class="mono">${visible(effectId)} <${CopyButton} text=${effectId} label="Copy" quiet /></dd></div>` : ""}
  </dl>`;
}

function BudgetRequest({ approval, decide, isSending }) {
  const { budget = {} } = approval;
  const [limit, setLimit] = useState(String((budget.limit ?? 0) * 2 || 1));
  // A field for numbers accepts `.5`, which is no JSON.
  const typed = typedValue(limit);
  const unit = budget.unit === "usd" ? "US dollars" : visible(budget.unit ?? "units");
  return html`<${Head} approval=${approval} icon="usage" />
    <dl class="details">
      <div><dt>Budget</dt><dd>${visible([budget.level, budget.period].filter(Boolean).join(", "))}</dd></div>
      <div><dt>Used</dt><dd>${visible(budget.used)} of ${visible(budget.limit)} ${unit}</dd></div>
    </dl>
    <label class="field">New limit in ${unit}
      <input type="number" min="0" step="any" value=${limit} onInput=${(event) => setLimit(event.currentTarget.value)} /></label>
    <${ApproveOrReject} approval=${approval} decide=${decide} isSending=${isSending} value=${typed instanceof RawJson ? typed : Number(limit)} approveText="Raise the limit" />`;
}

function Question({ approval, decide, isSending }) {
  const [answer, setAnswer] = useState("");
  const { schema = {} } = approval;
  const options = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
  const submit = (event) => {
    event.preventDefault();
    decide("answer", { value: !schema.type || schema.type === "string" ? answer : typedValue(answer) });
  };
  return html`<${Head} approval=${approval} icon="question" />
    ${approval.toolName ? html`<${Arguments} value=${approval.arguments} />` : ""}
    ${!canDecide(approval) ? html`<p class="small muted">Your roles permit reading this request only.</p>` : options
      ? html`<div class="actions">${options.map((option) => html`<button type="button" class="button big" disabled=${isSending}
          onClick=${() => decide("answer", { value: option })}>${visible(option === true ? "Yes" : option === false ? "No" : option)}</button>`)}</div>`
      : html`<form class="stack" onSubmit=${submit}>
          <label class="field">Answer<textarea rows="2" value=${answer} onInput=${(event) => setAnswer(event.currentTarget.value)}></textarea></label>
          <div class="actions end"><button type="submit" class="button primary" disabled=${isSending}>Answer</button></div>
        </form>`}`;
}
