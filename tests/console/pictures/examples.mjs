// Purpose: the example data of the pictures: conversations with an approval, a recovery, branches, notes and schedules.
import { apiOf, until } from "../support.mjs";

/** Creates the data, oldest first. Returns the ids of the conversations that pictures show. @param {string} base */
export async function createExamples(base) {
  const api = apiOf(base);
  const prompt = (agent, conversationId, input) => api.prompt(input, { agent, conversationId });
  const follow = (conversationId, input) => api.post(`/conversations/${conversationId}/prompts?wait=20`, { input });
  const decide = async (conversationId, decision) => {
    const approval = await until(async () => (await api.get(`/conversations/${conversationId}`)).pendingApprovals[0], `${conversationId} requests an approval`, 60_000);
    await api.post(`/conversations/${conversationId}/approvals/${approval.id}`, decision);
    await idle(api, conversationId);
  };
  const approve = (conversationId) => decide(conversationId, { decision: "approve" });

  await prompt("shop", "shipping-days", "Remember that we ship on Fridays");
  await approve("shipping-days");
  await prompt("shop", "closing", "Write down how we close the shop: till, back door, alarm");
  await approve("closing");
  await prompt("shop", "return", "Can a customer return a lamp after two weeks?");
  await prompt("assistant", "release-notes", "Write the release notes of 2.4: CSV export of invoices, a faster sign-in page, and the fix of the reminders");
  await follow("release-notes", "Yes, with the date");

  // Branches: the first input, edited and sent again.
  await prompt("payments-clerk", "supplier", "Pay 300 to Bob for the transport");
  await decide("supplier", { decision: "reject", reason: "The invoice says 30." });
  const { items } = await api.get("/conversations/supplier/entries?limit=50");
  await api.post("/conversations/supplier/leaf", { entryId: items.find(({ message }) => message?.role === "user").id });
  await follow("supplier", "Pay 30 to Bob for the transport");

  // Two recoveries and an approval. With a budget the record has the lost model call, because its estimate counts.
  const recovered = "weekly-payments";
  const budget = { conversation: { usd: 2 } };
  const first = { agent: "payments-clerk", conversationId: recovered, input: "Pay 75 to Cleo for the cleaning", settings: { budget } };
  await killDuring(api, "model-streaming", () => api.post("/prompts", first));
  await idle(api, recovered);
  await killDuring(api, "write-in-flight", () => api.post(`/conversations/${recovered}/prompts`, { input: "Pay 40 to Ada for the flowers" }));
  await decide(recovered, { decision: "happened", value: { receipt: "rcpt_4b1f20c9", to: "Ada", amount: 40, status: "sent" } });
  await follow(recovered, "Pay 320 to Dana for the repair");
  await approve(recovered);

  await killDuring(api, "write-in-flight", () => api.post("/prompts", { agent: "payments-clerk", conversationId: "caterer", input: "Pay 90 to Finn for the catering" }));
  await until(async () => (await api.get("/conversations/caterer")).pendingApprovals[0], "the outcome is unknown", 60_000);
  await prompt("payments-clerk", "invoice-4711", "Pay 250 to Ada for invoice 4711");

  const schedule = (id, agent, input, every) => api.post("/schedules", { id, agent, input, every, timeZone: "Europe/Berlin" });
  await schedule("monday-payments", "payments-clerk", "Which payments were made last week?", "0 9 * * MON");
  await schedule("stock", "shop", "Which articles are low in stock?", "0 18 * * MON-FRI");
  return { waiting: "invoice-4711", notes: "release-notes", branched: "supplier", recovered };
}

async function idle(api, conversationId) {
  await until(async () => (await api.get(`/conversations/${conversationId}`)).state === "idle", `${conversationId} is idle`, 60_000);
}

/** Kills the process at a point of the prompt that `start` sends, and waits for the next process. */
async function killDuring(api, when, start) {
  const { process } = await api.get("/me");
  const headers = { origin: api.base };
  const response = await fetch(`${api.base}/admin/process/kill`, { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify({ when, nonce: process.nonce }) });
  if (!response.ok) throw new Error(`kill: ${response.status} ${await response.text()}`);
  await start();
  await until(async () => (await api.get("/me").catch(() => null))?.process?.id !== process.id, "another process runs", 60_000);
  await until(() => api.get("/me").catch(() => null), "the process responds", 60_000);
}

/** Usage of the last days, in the form of `GET /api/usage`: the ledger shows a call only after 10 minutes. @param {string} by */
export function usageOf(by) {
  const dayMs = 86_400_000;
  const day = (ago) => new Date(Date.now() - ago * dayMs).toISOString().slice(0, 10);
  const calls = [61, 84, 12, 9, 77, 92, 70, 58, 66, 15, 8, 81, 95, 43];
  const item = (name, modelCalls) => {
    const [input, output] = [modelCalls * 3_120, modelCalls * 164];
    const cost = { input: (input * 0.25) / 1e6, output: (output * 2) / 1e6, cacheRead: 0, cacheWrite: 0 };
    return { name, modelCalls, usage: { input, output, cacheRead: 0, cacheWrite: 0, reasoning: 0, totalTokens: input + output, cost: { ...cost, total: cost.input + cost.output } } };
  };
  const agents = [["assistant", 402], ["payments-clerk", 271], ["shop", 98]];
  const items = by === "agent" ? agents.map(([name, count]) => item(name, count)) : calls.map((count, at) => item(day(calls.length - 1 - at), count));
  return { by, from: day(29), to: day(0), items };
}
