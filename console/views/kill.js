// Purpose: the demonstration of recovery in `turnwheel dev`: kills the process and shows that the conversation goes on.
import { conversationPath, get, post, send } from "../lib/api.js";
import { duration, preciseClock } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { conversationHref } from "../lib/router.js";
import { announce, me } from "../lib/state.js";
import { ApprovalCard } from "../parts/approval.js";
import { ProblemNote } from "../parts/basic.js";
import { Icon } from "../parts/icon.js";

const CHOICES = [
  ["now", "Now", "The process ends at once, wherever it is."],
  ["model-streaming", "While the model responds", "The process ends in the middle of a streamed response."],
  ["write-in-flight", "While a payment is sent", "The request has left, and the process ends before the response arrives."],
];
const READ_MS = 60;
const GIVE_UP_MS = 60_000;

export default function Kill() {
  const [run, setRun] = useState(null);
  const [error, setError] = useState(null);
  const isCurrent = useRef(true);
  const result = useRef(null);
  useEffect(() => {
    // Not at the first drawing: the page begins at its top.
    if (run) result.current?.scrollIntoView({ block: "nearest" });
  }, [run]);
  useEffect(() => () => (isCurrent.current = false), []);
  const start = async (when) => {
    setError(null);
    setRun({ when, lines: [] });
    try {
      await demonstrate(when, (changes) => isCurrent.current && setRun((before) => ({ ...before, ...changes, lines: [...before.lines, ...(changes.lines ?? [])] })));
    } catch (problem) {
      if (isCurrent.current) setError(problem);
    }
  };
  const isRunning = run && !run.isDone && !error;
  return html`<section class="kill" aria-labelledby="kill-title">
    <h2 id="kill-title">Kill the process (SIGKILL)</h2>
    <p class="muted">A payment runs while the process dies. Another process takes over: nothing is lost, and nothing runs twice.</p>
    <div class="kill-choices">${CHOICES.map(([when, label, text]) => html`<div class="card"><button type="button" class="button" disabled=${isRunning} onClick=${() => start(when)}><${Icon} name="power" />${label}</button><p class="small muted">${text}</p></div>`)}</div>
    ${error ? html`<${ProblemNote} error=${error} />` : ""}
    <div ref=${result}>${run ? html`<div class="card kill-lines" role="log" aria-label="What happened" data-kill=${run.isDone ? "done" : "running"}>
      ${run.lines.map((line) => html`<p><span class="mono muted">${preciseClock(line.at)}</span> ${line.text}</p>`)}
      ${isRunning ? html`<p class="muted">…</p>` : ""}
      ${run.conversationId ? html`<p><a href=${conversationHref(run.conversationId)}>Open the conversation</a></p>` : ""}
    </div>` : ""}
    ${run?.approval ? html`<p>Turnwheel does not know whether the payment ran, so it asks.</p><${ApprovalCard} key=${run.approval.id} approval=${run.approval} />` : ""}</div>
  </section>`;
}

/** Runs one demonstration and reports each step as a line. */
async function demonstrate(when, report) {
  const before = await get("/me");
  const agent = await paymentAgent();
  const kill = () => post("/admin/process/kill", { when, nonce: before.process?.nonce });
  // The two fail points take effect at the next call, so the request comes before the prompt.
  if (when !== "now") await kill();
  const { conversationId, promptId } = await post("/prompts", { agent, input: "Pay 40 to Ada" });
  report({ conversationId });
  if (when === "now") await kill();
  const killedAt = await waitFor(async () => (await isReplaced(before)) || null);
  report({ lines: [{ at: killedAt.lostAt, text: `killed (process ${before.process?.id ?? "?"})` }, { at: killedAt.backAt, text: `new process (${killedAt.id ?? "?"}) after ${duration(killedAt.backAt - killedAt.lostAt)}` }] });
  announce("The process was killed and replaced");
  const path = conversationPath(conversationId);
  const conversation = await waitFor(async () => {
    const current = await get(path);
    return current.state === "running" ? null : current;
  });
  report({ lines: [{ at: Date.now(), text: `conversation continued at turn ${conversation.turn}` }] });
  const approval = conversation.pendingApprovals.find(({ kind }) => kind === "outcome");
  if (approval) return report({ approval, isDone: true });
  const receipt = await get(`${path}/prompts/${encodeURIComponent(promptId)}/receipt`);
  const lost = receipt.lostUsage ? 1 : 0;
  report({ isDone: true, lines: [{ at: Date.now(), text: `model calls billed again ${lost} · writes repeated ${receipt.writes.repeated}` }] });
  announce("The conversation continued");
  return undefined;
}

async function paymentAgent() {
  const { items } = await get("/agents");
  return (items.find((agent) => agent.available && agent.tools.includes("send_payment")) ?? items.find((agent) => agent.available))?.name;
}

let lostAt = null;

/** @returns {Promise<{lostAt: number, backAt: number, id: any} | false>} once another process responds */
async function isReplaced(before) {
  try {
    const { data } = await send("GET", "/me");
    me.value = data;
    if (data.process?.id === before.process?.id && data.process?.nonce === before.process?.nonce) return false;
    const result = { lostAt: lostAt ?? Date.now(), backAt: Date.now(), id: data.process?.id };
    lostAt = null;
    return result;
  } catch {
    lostAt ??= Date.now();
    return false;
  }
}

async function waitFor(read) {
  const end = Date.now() + GIVE_UP_MS;
  for (;;) {
    const value = await read().catch(() => null);
    if (value) return value;
    if (Date.now() > end) throw new Error("The conversation did not continue within a minute.");
    await new Promise((resolve) => setTimeout(resolve, READ_MS));
  }
}
