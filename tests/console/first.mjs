// Purpose: journeys of the first visit: an example prompt, streamed text, the receipt; the bounds of the first load.
import assert from "node:assert/strict";

export default [
  {
    name: "first visit",
    async run({ page, open, api, shot, audit, noScroll }) {
      await open("/");
      await page.getByRole("heading", { name: "Start", exact: true }).waitFor();
      await page.getByRole("heading", { name: "payments-clerk" }).waitFor();
      const { features = [] } = await api.get("/me");
      if (features.includes("kill")) await page.getByRole("heading", { name: "Kill the process" }).waitFor();
      assert.ok((await page.getByRole("heading", { name: "Start", exact: true }).boundingBox()).y > 0, "the page begins at its top");
      await audit();
      await noScroll();
      await shot("start");
      await page.locator('[data-agent="payments-clerk"] .prompt').filter({ hasText: "Pay 40 to Ada" }).click();
      await page.getByText(/Paid 40 to Ada/).waitFor();
      await page.locator('[data-tool="send_payment"]').getByText("Done").waitFor();
      assert.equal(await page.getByText(/Paid 40 to Ada/).count(), 1, "the streamed message turns into its entry");
      await audit();
      await noScroll();
      await shot("chat");
      await page.getByRole("link", { name: "Receipt", exact: true }).last().click();
      await page.locator("[data-receipt]").waitFor();
      const repeated = page.locator("[data-receipt] .fact", { hasText: "Repeated" }).locator("dd");
      assert.equal(await repeated.textContent(), "0");
      await audit();
      await shot("receipt");
    },
  },
  {
    name: "bounds of the first load",
    sizes: ["desktop"],
    async run({ page, open }) {
      let count = 0;
      const sizes = [];
      page.on("requestfinished", (request) => {
        count += 1;
        sizes.push(request.sizes());
      });
      const start = performance.now();
      await open("/");
      await page.getByRole("heading", { name: "payments-clerk" }).waitFor();
      const ms = Math.round(performance.now() - start);
      await page.waitForTimeout(300);
      const bytes = (await Promise.all(sizes)).reduce((sum, { responseBodySize }) => sum + responseBodySize, 0);
      assert.ok(bytes > 10_000, `${bytes} bytes, as they arrived`);
      assert.ok(count <= 30, `${count} requests`);
      assert.ok(bytes <= 100_000, `${bytes} bytes compressed`);
      return `${count} requests, ${Math.round(bytes / 1000)} KB, ${ms} ms`;
    },
  },
];
