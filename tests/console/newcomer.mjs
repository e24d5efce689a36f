// Purpose: the journey of a newcomer with a project of `turnwheel new`: a tool in Python, an approval, a kill, the receipt.
import assert from "node:assert/strict";

export default [
  {
    name: "newcomer with a tool in Python",
    sizes: ["desktop"],
    needs: "the project is not of the template python-tools",
    failsRequests: true, // requests while the process is replaced
    async run({ page, open, api, shot, audit }) {
      const { items } = await api.get("/agents");
      if (!items.some(({ name }) => name === "shop")) return "skipped";
      await open("/");
      await page.locator('[data-agent="shop"] .prompt').filter({ hasText: "refund" }).click();
      const card = page.locator(".card.approval");
      await card.getByText("250", { exact: true }).waitFor();
      await audit();
      await shot("approval");
      await card.getByRole("button", { name: "Approve" }).click();
      await page.getByText("I refunded order o-2.", { exact: true }).waitFor();
      await page.locator('[data-tool="mcp__shop__refund"]').getByText("Done").waitFor();
      const conversation = new URL(page.url()).hash.slice(1);

      await open("/");
      await page.getByRole("button", { name: "Now", exact: true }).click();
      await page.locator('[data-kill="done"]').waitFor({ timeout: 60_000 });
      assert.match(await page.locator(".kill-lines").innerText(), /killed[\s\S]*new process[\s\S]*writes repeated 0/);
      await shot("kill");

      await open(conversation);
      await page.getByText("I refunded order o-2.", { exact: true }).waitFor();
      await page.getByRole("link", { name: "Receipt", exact: true }).last().click();
      const repeated = page.locator("[data-receipt] .fact", { hasText: "Repeated" }).locator("dd");
      await repeated.getByText("0", { exact: true }).waitFor();
      await page.locator("[data-receipt]").getByText("mcp__shop__refund").first().waitFor();
      await audit();
      await shot("receipt");
      return undefined;
    },
  },
];
