// Purpose: journeys of the other views, of problems, of the keyboard, and of themes and small windows.
import assert from "node:assert/strict";
import { freshId } from "./support.mjs";

const VIEWS = [
  ["/schedules", "Schedules"],
  ["/usage", "Usage"],
  ["/agents", "Agents"],
  ["/agents/payments-clerk", "payments-clerk"],
  ["/memory", "Memory"],
  ["/skills", "Skills"],
  ["/health", "Health"],
  ["/approvals", "Approvals"],
  ["/c", "Conversations"],
];

export default [
  {
    name: "schedules, usage, agents, memory, skills, health",
    async run({ page, open, audit, noScroll, shot }) {
      for (const [path, title] of VIEWS) {
        await open(path);
        await page.getByRole("heading", { name: title, level: 1 }).waitFor();
        await page.waitForTimeout(300);
        await audit();
        await noScroll();
        await shot(title.toLowerCase());
      }
    },
  },
  {
    name: "checks of the service",
    async run({ page, open, audit, noScroll, shot }) {
      await open("/health");
      await page.getByRole("heading", { name: "Checks" }).waitFor();
      const check = page.locator("[data-row]").filter({ hasText: "every agent can be used" });
      await check.getByText("ok", { exact: true }).waitFor();
      const again = page.waitForResponse((response) => response.url().endsWith("/api/doctor"));
      await page.getByRole("button", { name: "Check again" }).click();
      assert.equal((await again).status(), 200);
      await audit();
      await noScroll();
      await shot("checks");
    },
  },
  {
    name: "approval rules of tools",
    async run({ page, open, audit, noScroll, shot }) {
      await open("/agents/payments-clerk");
      const tool = (name) => page.locator("details.card").filter({ has: page.locator("summary code", { hasText: name }) });
      await tool("list_payments").getByText("Approval: never").waitFor();
      const payment = tool("send_payment");
      await payment.getByText("Approval: amount > 100").waitFor();
      await payment.locator("summary").click();
      await payment.getByText("A call needs an approval by owner or link if its arguments are valid by this schema:").waitFor();
      await payment.getByText('"exclusiveMinimum": 100').waitFor();
      await audit();
      await noScroll();
      await shot("approval-rules");
    },
  },
  {
    name: "notes of projects",
    async run({ page, open, api, audit, noScroll, shot }) {
      const [general, ofProject] = [freshId("Prefers short texts"), freshId("<b>Pays on Fridays</b>")];
      const project = freshId("shop");
      await api.call("PUT", "/memory", { items: [{ text: general }] });
      await api.call("PUT", `/memory?project=${project}`, { items: [{ text: ofProject }] });
      await open("/memory");
      await page.getByRole("heading", { name: `Notes of the project ${project}` }).waitFor();
      await page.getByText(general, { exact: true }).waitFor();
      const note = page.locator("[data-row]").filter({ hasText: ofProject });
      await audit();
      await noScroll();
      await shot("notes");
      await note.getByRole("button", { name: "Delete" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
      await note.waitFor({ state: "detached" });
      await page.getByText(general, { exact: true }).waitFor();
    },
  },
  {
    name: "schedules and skills: create and delete",
    sizes: ["desktop"],
    async run({ page, open, shot, audit }) {
      await open("/schedules");
      const input = freshId("Which payments were made");
      await page.getByRole("button", { name: "New schedule" }).click();
      await page.getByLabel("Input").fill(input);
      await page.getByLabel(/Every/).fill("PT6H");
      await audit();
      await page.getByRole("button", { name: "Create the schedule" }).click();
      const row = page.getByRole("row").filter({ hasText: input });
      await row.waitFor();
      await audit();
      await shot("schedule");
      await row.getByRole("button", { name: /Delete/ }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
      await row.waitFor({ state: "detached" });

      await open("/skills");
      const name = freshId("skill");
      await page.getByRole("button", { name: "New skill" }).click();
      await page.getByLabel(/Name/).fill(name);
      await page.getByLabel(/Description/).fill("When a report is needed");
      await page.getByLabel("Instructions").fill("Write it in one page.");
      await page.getByRole("button", { name: "Save" }).click();
      const skill = page.locator("details.card").filter({ hasText: name });
      await skill.locator("summary").click();
      await skill.getByText("Write it in one page.").waitFor();
      await audit();
      await skill.getByRole("button", { name: "Delete" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
      await skill.waitFor({ state: "detached" });
    },
  },
  {
    name: "a failed query shows its problem and can be repeated",
    failsRequests: true,
    async run({ page, open, proxy, audit, shot }) {
      proxy.fail = /^\/api\/(conversations|schedules|usage|approvals|memory|skills|health|agents)/;
      for (const path of ["/c", "/schedules", "/usage", "/approvals", "/memory", "/skills", "/health", "/agents"]) {
        await open(path);
        await page.getByText("The store does not respond.").first().waitFor();
        assert.equal(await page.getByText(/No conversations yet|No schedules yet|No notes yet|No skills yet|Nothing waits/).count(), 0, path);
      }
      await open("/c");
      await page.getByText("The store does not respond.").waitFor();
      await audit();
      await shot("problem");
      proxy.fail = null;
      await page.getByRole("button", { name: "Retry" }).click();
      await page.locator("[data-row]").first().waitFor();
      await page.getByText("The store does not respond.").waitFor({ state: "detached" });
    },
  },
  {
    name: "a conversation that does not exist",
    sizes: ["desktop"],
    failsRequests: true,
    async run({ page, open, audit }) {
      await open("/c/none");
      await page.getByText("Not Found").waitFor();
      await audit();
    },
  },
  {
    name: "keyboard only: start, approve, navigate",
    sizes: ["desktop"],
    async run({ page, open, api, shot }) {
      const { conversationId } = await api.prompt("Pay 250 to Ada");
      await open(`/c/${conversationId}`);
      const approve = page.getByRole("button", { name: "Approve" });
      await approve.waitFor();
      await page.keyboard.press("?");
      await page.getByRole("dialog").getByText("List of keys").waitFor();
      await shot("keys");
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
      for (let step = 0; step < 60; step += 1) {
        await page.keyboard.press("Tab");
        if (await approve.evaluate((element) => element === document.activeElement)) break;
      }
      assert.ok(await approve.evaluate((element) => element === document.activeElement), "Tab reaches Approve");
      await page.keyboard.press("Enter");
      await page.getByText(/Paid 250 to Ada/).waitFor();
      const status = page.locator(".sr-only[role='status']");
      const needed = "Approval needed: send_payment, Bob, 300";
      await status.filter({ hasText: "Response complete" }).waitFor({ state: "attached" });
      // The events of the prompt come before the response that accepts it.
      const isAccepted = page.waitForResponse((response) => response.request().method() === "POST");
      await page.route("**/prompts", async (route) => {
        const response = await route.fetch();
        await status.filter({ hasText: needed }).waitFor({ state: "attached" });
        await route.fulfill({ response });
      });
      await page.keyboard.press("c");
      await page.keyboard.type("Pay 300 to Bob");
      await page.keyboard.press("Enter");
      await status.filter({ hasText: needed }).waitFor({ state: "attached" });
      await isAccepted;
      await page.waitForTimeout(1_500);
      assert.equal(await status.textContent(), needed, "nothing older follows");
      await page.locator(".conversation-head .badge").getByText("Waiting for approval").waitFor();
      await page.keyboard.press("Escape");
      await page.keyboard.press("Control+.");
      await page.getByRole("dialog").getByText("Abort the running prompt?").waitFor();
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
      assert.equal((await api.get(`/conversations/${conversationId}`)).state, "waiting_for_approval", "Escape aborts nothing");
      await page.keyboard.press("g");
      await page.keyboard.press("u");
      await page.getByRole("heading", { name: "Usage", level: 1 }).waitFor();
      await page.keyboard.press("g");
      await page.keyboard.press("c");
      await page.getByRole("heading", { name: "Conversations", level: 1 }).waitFor();
      await page.locator("[data-row]").first().waitFor();
      await page.keyboard.press("j");
      await page.keyboard.press("Enter");
      await page.getByRole("tab", { name: "Chat" }).or(page.getByRole("link", { name: "Chat", exact: true })).first().waitFor();
    },
  },
  {
    name: "announcements in turn",
    sizes: ["desktop"],
    async run({ page, open }) {
      await open("/health");
      const shown = await page.locator(".sr-only[role='status']").evaluate(async (status) => {
        const { announce } = await import(document.querySelector('link[href$="lib/state.js"]').href);
        const start = performance.now();
        const shown = [];
        return new Promise((resolve) => {
          new MutationObserver(() => {
            const text = status.textContent;
            if (text) shown.push({ text, ms: performance.now() - start });
            if (text === "B") resolve(shown);
          }).observe(status, { childList: true, characterData: true, subtree: true });
          setTimeout(resolve, 10_000, shown);
          announce("A");
          announce("B");
        });
      });
      assert.deepEqual(shown.map(({ text }) => text), ["A", "B"]);
      assert.ok(shown[1].ms >= 1_000, `A stays for a second: ${JSON.stringify(shown)}`);
    },
  },
  ...[["dark", { colorScheme: "dark" }], ["forced colours", { forcedColors: "active" }], ["320 pixels", { viewport: { width: 320, height: 640 } }], ["zoom of 200 %", { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 }]].map(([name, context]) => ({
    name: `appearance: ${name}`,
    sizes: ["desktop"],
    context,
    async run({ page, open, api, audit, noScroll, shot }) {
      const { conversationId } = await api.prompt("Pay 250 to Ada");
      for (const path of ["/", "/c", `/c/${conversationId}`, `/c/${conversationId}/timeline`, "/approvals", "/usage"]) {
        await open(path);
        await page.waitForTimeout(600);
        if (name !== "forced colours") await audit();
        await noScroll();
        await shot(path.replace(conversationId, "one").replaceAll("/", "-").slice(1) || "start");
      }
    },
  })),
];
