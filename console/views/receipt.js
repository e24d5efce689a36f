// Purpose: the receipt of each prompt: turns, calls, cost, writes done, unknown and repeated, decisions.
import { get, list } from "../lib/api.js";
import { contentText, cost, dateTime, duration, millis, shorten, tokens, visible } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { route } from "../lib/router.js";
import { Empty, Fact, Loading, ProblemNote, State, useResource } from "../parts/basic.js";
import { decisionText } from "../parts/message.js";

/** @param {{store: any}} props */
export default function Receipts({ store }) {
  const newest = store.conversation.value?.lastEventId;
  const { data, error, reload } = useResource(() => list(`${store.path}/prompts`, {}, 500), [store.id, newest]);
  const wanted = route.value.query.get("prompt");
  if (error && !data) return html`<div class="page"><${ProblemNote} error=${error} onRetry=${reload} /></div>`;
  if (!data) return html`<div class="page"><${Loading} /></div>`;
  if (data.items.length === 0) return html`<${Empty} title="No prompts yet" />`;
  return html`<div class="page narrow stack">${[...data.items].reverse().map((prompt, index) => html`<${Receipt} key=${prompt.id}
    store=${store} prompt=${prompt} isOpen=${wanted ? prompt.id === wanted : index === 0} newest=${newest} />`)}</div>`;
}

function Receipt({ store, prompt, isOpen, newest }) {
  const [isShown, setShown] = useState(isOpen);
  const [receipt, setReceipt] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (isShown) get(`${store.path}/prompts/${encodeURIComponent(prompt.id)}/receipt`).then(setReceipt, setError);
  }, [isShown, newest]);
  const text = contentText(prompt.input);
  return html`<details class="card receipt" open=${isOpen} onToggle=${(event) => setShown(event.currentTarget.open)}>
    <summary><span class="receipt-title"><bdi>${visible(shorten(text, 160)) || "Prompt without input"}</bdi></span><${State} state=${prompt.state} /></summary>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    ${isShown && !receipt && !error ? html`<${Loading} rows=${2} />` : ""}
    ${receipt ? html`<${ReceiptBody} receipt=${receipt} />` : ""}
  </details>`;
}

/** @param {{receipt: any}} props */
export function ReceiptBody({ receipt }) {
  const { writes, usage } = receipt;
  const ms = millis(receipt.endedAt) - millis(receipt.startedAt);
  return html`<div class="receipt-body" data-receipt>
    <dl class="facts">
      <${Fact} label="Turns" value=${receipt.turns} />
      <${Fact} label="Model calls" value=${receipt.modelCalls} />
      <${Fact} label="Tool calls" value=${receipt.toolCalls} />
      <${Fact} label="Tokens" value=${tokens(usage.totalTokens)} title=${`${usage.input} in, ${usage.output} out, ${usage.cacheRead} from cache, ${usage.reasoning} reasoning`} />
      <${Fact} label="Cost" value=${cost(usage.cost.total)} />
      <${Fact} label="Duration" value=${Number.isFinite(ms) ? duration(ms) : "running"} />
    </dl>
    <h3>Writes</h3>
    <dl class="facts">
      <${Fact} label="Done" value=${writes.done} />
      <${Fact} label="Failed" value=${writes.failed} />
      <${Fact} label="Unknown" title="The outcome is unknown" value=${writes.unknown} />
      <${Fact} label="Open" value=${writes.open} />
      <${Fact} label="Run again" title="By decision of an approver" value=${writes.again} />
      <${Fact} label="Repeated" value=${writes.repeated} title="Writes that ran twice without a decision" />
    </dl>
    ${receipt.lostUsage ? html`<p class="small muted">Lost with a stopped process, and perhaps billed: about ${tokens(receipt.lostUsage.totalTokens)} tokens.</p>` : ""}
    ${receipt.requests.length ? html`<h3>Decisions</h3><ul class="plain-list">${receipt.requests.map((request) => html`<li><strong>${visible(request.title)}</strong> ${request.decision ? decisionText({ ...request, reason: "" }) : "undecided"}</li>`)}</ul>` : ""}
    <p class="small muted">${dateTime(receipt.startedAt)}${receipt.endedAt ? ` to ${dateTime(receipt.endedAt)}` : ""}, model ${visible(receipt.resolvedModel ?? "")}, ${visible(receipt.source)}, user ${visible(receipt.userId)}</p>
  </div>`;
}
