// Purpose: journeys in one conversation: steering, the queue, abort, retries, budgets, branches, files, the timeline.
import assert from "node:assert/strict";
import { freshId, until } from "./support.mjs";

const SLOW_RETRIES = { settings: { retry: { baseDelayMs: 20_000, maxRetries: 2 } } };

/** Starts a prompt that stays undecided, so that further inputs wait. */
async function waitingConversation(api, prefix) {
  const conversationId = freshId(prefix);
  await api.prompt("Pay 250 to Ada", { conversationId });
  return conversationId;
}

export default [
  {
    name: "steer, queue, edit, remove",
    failsRequests: true, // the 412 of the conflict
    async run({ page, open, api, shot, audit, noScroll }) {
      const id = await waitingConversation(api, "queue");
      await open(`/c/${id}`);
      const field = page.getByLabel("Input for the agent");
      await field.fill("Only 200, please");
      await page.getByRole("button", { name: "Steer now" }).click();
      const queue = page.getByRole("region", { name: "Queued inputs" });
      await queue.getByText("Only 200, please").waitFor();
      await field.fill("Pay 5 to Bob");
      await field.press("Control+Enter");
      await queue.getByText("Pay 5 to Bob").waitFor();
      await field.fill("Pay 6 to Cleo");
      await page.getByRole("button", { name: "Queue", exact: true }).click();
      await queue.getByText("Pay 6 to Cleo").waitFor();
      await audit();
      await noScroll();
      await shot("queue");

      const cleo = queue.getByRole("listitem").filter({ hasText: "Pay 6 to Cleo" });
      await cleo.getByRole("button", { name: "Remove" }).click();
      await queue.getByText("Pay 6 to Cleo").waitFor({ state: "detached" });

      await queue.getByRole("listitem").filter({ hasText: "Pay 5 to Bob" }).getByRole("button", { name: "Edit" }).click();
      const editor = queue.getByLabel("Queued input", { exact: true });
      await until(async () => (await editor.inputValue()) === "Pay 5 to Bob", "the stored input is in the field");
      const { items } = await api.get(`/conversations/${id}/inbox`);
      const bob = items.find(({ input }) => input === "Pay 5 to Bob");
      await api.call("PATCH", `/conversations/${id}/inbox/${bob.inputId}`, { input: "Pay 7 to Bob" });
      await editor.fill("Pay 8 to Bob");
      await queue.getByRole("button", { name: "Save" }).click();
      await queue.getByText("Changed meanwhile").waitFor();
      await queue.getByText("Pay 7 to Bob").waitFor();
      await shot("conflict");
      await queue.getByRole("button", { name: "Keep mine" }).click();
      await queue.getByText("Pay 8 to Bob").waitFor();
      const after = await api.get(`/conversations/${id}/inbox`);
      assert.deepEqual(after.items.map(({ input }) => input).sort(), ["Only 200, please", "Pay 8 to Bob"]);
    },
  },
  {
    name: "abort while the model call waits for its retry",
    async run({ page, open, api, shot }) {
      const id = freshId("abort");
      await api.post("/prompts", { agent: "assistant", conversationId: id, input: "fail with 500", ...SLOW_RETRIES });
      await open(`/c/${id}`);
      await page.getByText(/The model call failed; retry 1/).waitFor();
      await shot("retry");
      await page.locator(".composer").getByRole("button", { name: "Abort" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Abort the prompt" }).click();
      await page.getByText("The prompt was aborted").waitFor();
      const { state } = await api.get(`/conversations/${id}`);
      assert.equal(state, "idle");
    },
  },
  {
    name: "model call fails twice, the cause is shown",
    sizes: ["desktop"],
    async run({ page, open, api, audit, shot }) {
      const id = freshId("retry");
      await api.prompt("fail with 500", { agent: "assistant", conversationId: id, settings: { retry: { baseDelayMs: 100, maxRetries: 2 } } });
      await open(`/c/${id}`);
      assert.equal(await until(async () => (await page.getByText("Discarded, the model is called again").count()) || null, "discarded responses"), 2);
      await page.getByText("The prompt failed").waitFor();
      assert.ok((await page.getByText(/HTTP 500: requested_failure/).count()) >= 1);
      await audit();
      await shot("chat");
      await open(`/c/${id}/timeline`);
      await page.getByRole("button", { name: "Problems" }).click();
      await page.locator('[data-kind="model"]').first().waitFor();
      assert.equal(await page.locator('[data-kind="model"]').count(), 3);
      await page.keyboard.press("]");
      await page.getByRole("complementary", { name: "Detail" }).waitFor();
      await audit();
      await shot("problems");
    },
  },
  {
    name: "budget used up, raised, continued",
    sizes: ["desktop"],
    async run({ page, open, api, shot, audit }) {
      const id = freshId("budget");
      await api.post("/conversations", { id, agent: "payments-clerk", settings: { budget: { conversation: { tokens: 200 } } } });
      await api.call("POST", `/conversations/${id}/prompts?wait=20`, { input: "Pay 40 to Ada" });
      await open(`/c/${id}`);
      const card = page.locator(".card.approval");
      await card.getByLabel(/New limit/).fill("100000");
      await audit();
      await shot("request");
      await card.getByRole("button", { name: "Raise the limit" }).click();
      await page.getByText(/Paid 40 to Ada/).waitFor();
    },
  },
  {
    name: "streamed text: a hundred deltas a second, Markdown while it grows, a discarded response",
    async run({ page, open, api, proxy, shot, audit, noScroll }) {
      const { conversationId } = await api.prompt("Pay 40 to Ada");
      await open(`/c/${conversationId}`);
      await page.getByText(/Paid 40 to Ada/).waitFor();
      await until(() => proxy.requests.some(({ path }) => path.endsWith("/events")), "the stream is open");
      await page.waitForTimeout(300);
      await page.evaluate(() => {
        window.longTasks = [];
        new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask" });
      });
      const common = { promptId: "pr_live", turn: 9, at: new Date().toISOString(), messageId: "live0001" };
      const update = (assistantMessageEvent) => proxy.emit({ type: "message_update", ...common, assistantMessageEvent: { contentIndex: 0, ...assistantMessageEvent } });
      proxy.emit({ type: "message_start", ...common, message: { role: "assistant", content: [], model: "scripted", provider: "scripted", usage: {}, stopReason: "stop", timestamp: Date.now() } });
      await page.getByText("The model responds").waitFor();
      update({ type: "text_start" });
      const parts = ["# Report\n\n", "Some **bold** text and `code`.\n\n", "```rust\nfn main() {}\n\n", "// more\n```\n\n", "| to | amount |\n|---|--:|\n| Ada | 250 |\n\n", "- first\n- second\n\n", "> a quotation\n\n"];
      const live = page.locator("[data-live]");
      for (let number = 0; number < 300; number += 1) {
        update({ type: "text_delta", delta: number < parts.length * 10 ? (number % 10 === 0 ? parts[number / 10] : "") : `word${number} ${number % 40 === 0 ? "\n\n" : ""}` });
        await new Promise((resolve) => setTimeout(resolve, 10));
        if (number === 90) await live.getByText("word80").waitFor();
      }
      await live.getByText("word299").waitFor();
      assert.equal(await live.locator("table").count(), 1);
      assert.equal(await live.locator("pre").count(), 1);
      const longest = Math.max(0, ...(await page.evaluate(() => window.longTasks)));
      assert.ok(longest < 400, `a task of ${longest} ms`);
      await audit();
      await noScroll();
      await shot("streaming");
      proxy.emit({ type: "message_reset", ...common });
      await live.getByText("Discarded, the model is called again.").waitFor();
      return `longest task ${Math.round(longest)} ms`;
    },
  },
  {
    name: "timeline with details and what the model saw",
    async run({ page, open, api, shot, audit, noScroll }) {
      const { conversationId } = await api.prompt("Pay 40 to Ada");
      await open(`/c/${conversationId}/timeline`);
      await page.locator('[data-kind="tool"]').waitFor();
      assert.equal(await page.locator('[data-kind="model"]').count(), 2);
      await audit();
      await noScroll();
      await shot("rows");
      await page.locator('[data-kind="tool"] button').click();
      const detail = page.getByRole("complementary", { name: "Detail" });
      await detail.getByText('"Ada"', { exact: true }).waitFor();
      await detail.getByText(/attempt 1, effect write/).waitFor();
      await audit();
      await shot("tool");
      await detail.getByRole("button", { name: "Close" }).click();
      await page.locator('[data-kind="model"] button').last().click();
      await detail.getByText("What the model saw").click();
      await detail.getByText(/input tokens of a context window/).waitFor();
      await detail.getByText("Result of send_payment").waitFor();
      await audit();
      await shot("model");
    },
  },
  {
    name: "branches: edit and resend, continue, label, fork",
    async run({ page, open, api, shot, audit, noScroll, proxy }) {
      const id = freshId("tree");
      await api.prompt("Pay 40 to Ada", { conversationId: id });
      await api.call("POST", `/conversations/${id}/prompts?wait=20`, { input: "Pay 41 to Bob" });
      await open(`/c/${id}`);
      const bob = page.getByRole("article", { name: "Your message" }).filter({ hasText: "Pay 41 to Bob" });
      await bob.getByRole("button", { name: "Edit and resend" }).click();
      await page.getByRole("dialog").getByLabel("Input").fill("Pay 42 to Cleo");
      await page.getByRole("button", { name: "Send on a new branch" }).click();
      await page.getByText(/Paid 42 to Cleo/).waitFor();
      await page.getByText(/Paid 41 to Bob/).waitFor({ state: "detached" });
      await open(`/c/${id}/tree`);
      await page.getByText(/in 2 branches/).waitFor();
      const node = page.locator("[data-entry]").filter({ hasText: "Pay 41 to Bob" });
      await node.getByText("Actions").click();
      await node.getByRole("button", { name: "Label" }).click();
      await page.getByLabel(/Label of this entry/).fill("first try");
      await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
      await page.locator(".badge", { hasText: "first try" }).waitFor();
      await audit();
      await noScroll();
      await shot("tree");
      await page.locator("[data-entry]").filter({ hasText: "Pay 41 to Bob" }).getByText("Actions").click();
      await page.locator("[data-entry]").filter({ hasText: "Pay 41 to Bob" }).getByRole("button", { name: "Fork into a new conversation" }).click();
      await until(() => page.url().includes("/c/") && !page.url().includes(id), "the fork is open");
      await page.getByText("Pay 41 to Bob").first().waitFor();
      assert.ok(proxy.requests.some(({ method, path }) => method === "POST" && path.endsWith("/fork")));
    },
  },
  {
    name: "files: upload, image, download of HTML and SVG",
    sizes: ["desktop"],
    async run({ page, open, api, shot, audit }) {
      const { conversationId } = await api.prompt("Pay 40 to Ada");
      await open(`/c/${conversationId}/files`);
      const upload = (name, mimeType, buffer) => page.locator('input[type="file"]').setInputFiles({ name, mimeType, buffer: Buffer.from(buffer) });
      await page.getByText("No files yet").waitFor();
      await upload("page.html", "text/html", "<script>window.top.hacked = true</script>");
      await page.getByText("page.html").waitFor();
      await upload("image.svg", "image/svg+xml", '<svg xmlns="http://www.w3.org/2000/svg"><script>window.top.hacked = true</script></svg>');
      await page.getByText("image.svg").waitFor();
      const pixel = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
      await upload("pixel.png", "image/png", pixel);
      await page.getByRole("img", { name: /pixel.png/ }).waitFor();
      assert.equal(await page.locator("main img").count(), 1, "only the raster image is shown");
      const [download] = await Promise.all([page.waitForEvent("download"), page.locator(".file", { hasText: "page.html" }).getByRole("button", { name: "Download" }).click()]);
      assert.equal(download.suggestedFilename(), "page.html");
      assert.equal(await page.evaluate(() => window.hacked), undefined);
      await audit();
      await shot("files");
    },
  },
];
