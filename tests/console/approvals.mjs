// Purpose: journeys of approval requests: in the chat, in the inbox, by two tabs at once, and unknown outcomes.
import assert from "node:assert/strict";
import { freshId, until } from "./support.mjs";

export default [
  {
    name: "approve in the chat, approve and reject in the inbox",
    async run({ page, open, api, shot, audit, noScroll }) {
      const first = await api.prompt("Pay 250 to Ada");
      await open(`/c/${first.conversationId}`);
      const card = page.locator(".card.approval");
      await card.getByText('"Ada"').waitFor();
      assert.ok(await card.getByText("250", { exact: true }).isVisible(), "the exact amount");
      await page.locator("[data-why]").getByText(/approver must decide/).waitFor();
      await audit();
      await noScroll();
      await shot("chat");
      await card.getByRole("button", { name: "Approve" }).click();
      await page.getByText(/Paid 250 to Ada/).waitFor();
      await open(`/c/${first.conversationId}/timeline`);
      await page.locator('[data-kind="approval"]').getByText(/Sending 250 to Ada requires approval\. · approve by/).waitFor();

      const second = await api.prompt("Pay 260 to Bob");
      const third = await api.prompt("Pay 270 to Cleo");
      await open("/approvals");
      const bob = page.locator(`[data-approval="${second.pendingApprovalIds[0]}"]`);
      await bob.getByText('"Bob"').waitFor();
      await audit();
      await noScroll();
      await shot("inbox");
      await bob.getByRole("button", { name: "Approve" }).click();
      await bob.getByText("Approved", { exact: true }).waitFor();
      const cleo = page.locator(`[data-approval="${third.pendingApprovalIds[0]}"]`);
      await cleo.getByRole("button", { name: "Reject…" }).click();
      await cleo.getByLabel(/Reason for the agent/).fill("Not in the budget");
      await cleo.getByRole("button", { name: "Reject", exact: true }).click();
      await cleo.getByText("Rejected", { exact: true }).waitFor();
      const receipt = await until(async () => {
        const read = await api.get(`/conversations/${third.conversationId}/prompts/${third.promptId}/receipt`);
        return read.state === "completed" && read;
      }, "the rejected prompt ends");
      assert.equal(receipt.requests[0].decision, "reject");
      await open(`/c/${third.conversationId}`);
      await page.getByText(/was not made: Not in the budget/).waitFor();
    },
  },
  {
    name: "approve in the chat: each digit of the arguments",
    sizes: ["desktop"],
    async run({ page, open, api, shot }) {
      const amount = "250.00000000000000000001";
      const { conversationId, pendingApprovalIds } = await api.prompt(`use send_payment with {"to":"Ada","amount":${amount}}`);
      await open(`/c/${conversationId}`);
      await page.locator(".card.approval").getByText(amount, { exact: true }).waitFor();
      await shot("chat");
      await open("/approvals");
      const card = page.locator(`[data-approval="${pendingApprovalIds[0]}"]`);
      await card.getByText(amount, { exact: true }).waitFor();
      await card.getByRole("button", { name: "Reject…" }).click();
      await card.getByRole("button", { name: "Reject", exact: true }).click();
      await card.getByText("Rejected", { exact: true }).waitFor();
      await until(async () => (await api.get(`/conversations/${conversationId}`)).state === "idle", "the prompt ends");
      await open(`/c/${conversationId}/timeline`);
      await page.locator('[data-kind="tool"]').getByText(`"amount":${amount}`).waitFor();
      // Each number has the text of an equal one, and only those that JavaScript changes are no plain numbers.
      const read = await page.evaluate(async (texts) => {
        const { parse, stringify } = await import(document.querySelector('link[href$="lib/exact-json.js"]').href);
        return texts.map((text) => `${typeof parse(text)} ${stringify(parse(text))}`);
      }, ["1234567890123456789", "1e400", "9007199254740993", '{"a":"\\"1e400","b":[-12345678901234567890]}', "9007199254740992", "1.2e-5", "0.30000000000000004", '"12345678901234567890"']);
      assert.deepEqual(read, ["object 1234567890123456789", "object 1e400", "object 9007199254740993", 'object {"a":"\\"1e400","b":[-12345678901234567890]}', "number 9007199254740992", "number 0.000012", "number 0.30000000000000004", 'string "12345678901234567890"']);
    },
  },
  {
    name: "two tabs decide at once",
    sizes: ["desktop"],
    failsRequests: true, // the second decision is a 409
    async run({ page, open, newPage, api, proxy, shot }) {
      const { conversationId, pendingApprovalIds } = await api.prompt("Pay 280 to Dana");
      const other = await newPage("/approvals");
      await open("/approvals");
      const selector = `[data-approval="${pendingApprovalIds[0]}"]`;
      await page.locator(selector).getByRole("button", { name: "Approve" }).waitFor();
      await other.locator(selector).getByRole("button", { name: "Reject…" }).click();
      await page.locator(selector).getByRole("button", { name: "Approve" }).click();
      await page.locator(selector).getByText("Approved", { exact: true }).waitFor();
      await other.locator(selector).getByRole("button", { name: "Reject", exact: true }).click();
      await other.locator(selector).getByText(/Approved by default at/).waitFor();
      await other.locator(selector).getByText(/already decided/).waitFor();
      await shot("second-tab", other);
      assert.ok(proxy.requests.some(({ path }) => path.includes(conversationId)));
    },
  },
  {
    name: "second approval of a conversation shows its own arguments",
    async run({ page, open, api }) {
      const id = freshId("second");
      await api.prompt("Pay 250 to Ada", { conversationId: id });
      await open(`/c/${id}`);
      const card = page.locator(".card.approval");
      await card.getByRole("button", { name: "Reject…" }).click();
      await card.getByLabel(/Reason for the agent/).fill("Reason of the first request");
      await card.getByRole("button", { name: "Reject", exact: true }).click();
      await page.getByText(/was not made/).waitFor();
      await page.getByLabel("Input for the agent").fill("Pay 990 to Zoe");
      await page.getByRole("button", { name: "Send", exact: true }).click();
      await card.getByText('"Zoe"').waitFor();
      await card.getByText("990", { exact: true }).waitFor();
      assert.equal(await card.getByText('"Ada"').count(), 0);
      await card.getByRole("button", { name: "Reject…" }).click();
      assert.equal(await card.getByLabel(/Reason for the agent/).inputValue(), "", "no text of the first request");
    },
  },
];
