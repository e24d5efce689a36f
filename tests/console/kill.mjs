// Purpose: journeys of the kill demonstration at each of its three points, and each decision of an unknown outcome.
import assert from "node:assert/strict";
import { until } from "./support.mjs";

/** The response of a payment, as a user types it. */
const RESPONSE = '{"receipt": "r-7", "sent": 40.00000000000000000010}';
const DECISIONS = [
  ["It ran", "Record that it ran"],
  ["It did not run", null],
  ["Run it again", "Run it again with the same effect id"],
];

async function hasKill(api) {
  const me = await api.get("/me");
  return (me.features ?? []).includes("kill");
}

/** At most three kills a minute are allowed: the journey waits for its turn. */
async function press(page, label) {
  await page.getByRole("button", { name: label, exact: true }).click();
  await page.locator('[data-kill="done"]').or(page.locator(".kill .note.bad")).waitFor({ timeout: 60_000 });
  if (await page.locator(".kill .note.bad").count()) {
    await page.waitForTimeout(21_000);
    await press(page, label);
  }
}

export default [
  ...[["Now", "now"], ["While the model responds", "model-streaming"]].map(([label, when]) => ({
    name: `kill ${when}`,
    sizes: ["desktop"],
    needs: "the server has no kill route",
    failsRequests: true,
    async run({ page, open, api, shot, audit }) {
      if (!(await hasKill(api))) return "skipped";
      await open("/");
      // A kill at any moment may hit the payment itself, whose outcome is another journey.
      do await press(page, label);
      while (await page.locator(".card.approval.unknown").count());
      const lines = await page.locator(".kill-lines").innerText();
      assert.match(lines, /killed[\s\S]*new process[\s\S]*conversation continued at turn \d[\s\S]*writes repeated 0/);
      await audit();
      await shot("lines");
      await page.getByRole("link", { name: "Open the conversation" }).click();
      await page.getByText(/Paid 40 to Ada/).waitFor();
      assert.equal(await page.getByText(/Paid 40 to Ada/).count(), 1, "no message twice");
      return undefined;
    },
  })),
  ...DECISIONS.map(([label, second], index) => ({
    name: `kill while a write is in flight, ${label.toLowerCase()}`,
    sizes: index === 0 ? ["desktop", "phone"] : ["desktop"],
    needs: "the server has no kill route",
    failsRequests: true,
    async run({ page, open, api, shot, audit }) {
      if (!(await hasKill(api))) return "skipped";
      const bodies = [];
      page.on("request", (request) => request.url().includes("/approvals/") && bodies.push(request.postData()));
      await open("/");
      await press(page, "While a payment is sent");
      const card = page.locator(".card.approval.unknown");
      await card.getByRole("heading", { name: "Did send_payment run?" }).waitFor();
      assert.ok(await card.getByText(/Effect id/).isVisible());
      assert.doesNotMatch(await card.innerText(), /\.\./);
      await page.keyboard.press("Enter");
      assert.equal(await card.count(), 1, "Enter decides nothing");
      await audit();
      await shot("card");
      await card.getByRole("button", { name: label, exact: true }).click();
      if (label === "It ran") await card.getByLabel(/Response of the tool/).fill(RESPONSE);
      if (second) await card.getByRole("button", { name: second }).click();
      await page.locator(".card.approval.decided").waitFor();
      if (label === "It ran") assert.deepEqual(bodies, [`{"decision":"happened","value":${RESPONSE}}`], "the response as it was typed");
      const href = await page.getByRole("link", { name: "Open the conversation" }).getAttribute("href");
      const id = decodeURIComponent(href.split("/").pop());
      const conversation = await until(async () => {
        const read = await api.get(`/conversations/${id}`);
        return read.state === "idle" && read;
      }, "the conversation ends");
      const receipt = await api.get(`/conversations/${id}/prompts/${conversation.prompts.at(-1).id}/receipt`);
      assert.equal(receipt.writes.repeated, 0);
      await page.getByRole("link", { name: "Open the conversation" }).click();
      await page.locator('[data-tool="send_payment"]').waitFor();
      assert.equal(await page.locator('[data-tool="send_payment"]').count(), 1, "one payment");
      await page.getByRole("link", { name: "Receipt", exact: true }).last().click();
      const repeated = page.locator("[data-receipt] .fact", { hasText: "Repeated" }).locator("dd");
      await repeated.getByText("0", { exact: true }).waitFor();
      await shot("receipt");
      return undefined;
    },
  })),
];
