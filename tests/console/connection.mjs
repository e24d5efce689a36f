// Purpose: journeys over a bad connection: reload, lost and silent streams, a restart with another build, slow requests.
import assert from "node:assert/strict";
import { freshId, until } from "./support.mjs";

/** A page that loses its connection before its first stream has nothing to continue. */
async function untilStreamIsOpen(page, proxy) {
  await until(() => proxy.openStreams() === 1, "an open stream");
  await page.waitForTimeout(300);
}

export default [
  {
    name: "lost connection: nothing lost, nothing twice, unsent text kept",
    failsRequests: true,
    async run({ page, open, api, proxy, shot }) {
      const id = freshId("lost");
      await api.prompt("Pay 40 to Ada", { conversationId: id });
      await open(`/c/${id}`);
      await page.getByText(/Paid 40 to Ada/).waitFor();
      const field = page.getByLabel("Input for the agent");
      await field.fill("unsent text");
      await untilStreamIsOpen(page, proxy);
      proxy.isDown = true;
      proxy.cut();
      await page.getByText(/Reconnecting… nothing is lost/).waitFor();
      await shot("reconnecting");
      await api.call("POST", `/conversations/${id}/prompts?wait=20`, { input: "Pay 41 to Bob" });
      proxy.isDown = false;
      await page.getByText(/Paid 41 to Bob/).waitFor();
      await page.getByText(/Reconnecting/).waitFor({ state: "detached" });
      assert.equal(await page.getByText(/Paid 41 to Bob/).count(), 1);
      assert.equal(await page.getByText(/Paid 40 to Ada/).count(), 1);
      assert.equal(await field.inputValue(), "unsent text");
      await page.reload();
      await page.getByText(/Paid 41 to Bob/).waitFor();
      assert.equal(await page.getByText(/Paid 41 to Bob/).count(), 1);
      assert.equal(await field.inputValue(), "unsent text", "the text survives a reload");
    },
  },
  {
    name: "silent stream: a new one after 35 seconds without a byte",
    sizes: ["desktop"],
    failsRequests: true,
    async run({ page, open, api, proxy }) {
      const id = freshId("silent");
      await api.prompt("Pay 40 to Ada", { conversationId: id });
      await open(`/c/${id}`);
      await page.getByText(/Paid 40 to Ada/).waitFor();
      const streams = () => proxy.requests.filter(({ path }) => path.includes(`${id}/events`)).length;
      await untilStreamIsOpen(page, proxy);
      assert.equal(streams(), 1);
      proxy.isSilent = true;
      await api.call("POST", `/conversations/${id}/prompts?wait=20`, { input: "Pay 41 to Bob" });
      await page.waitForTimeout(500);
      assert.equal(await page.getByText(/Paid 41 to Bob/).count(), 0, "the stream is silent");
      await until(() => streams() > 1, "a second stream", 45_000);
      proxy.isSilent = false;
      proxy.cut();
      await page.getByText(/Paid 41 to Bob/).waitFor();
      assert.equal(await page.getByText(/Paid 41 to Bob/).count(), 1);
    },
  },
  {
    name: "restart with another build",
    sizes: ["desktop"],
    failsRequests: true,
    async run({ page, open, api, proxy, audit, shot }) {
      const { conversationId } = await api.prompt("Pay 40 to Ada");
      await open(`/c/${conversationId}`);
      await page.getByText(/Paid 40 to Ada/).waitFor();
      await page.getByLabel("Input for the agent").fill("unsent text");
      await untilStreamIsOpen(page, proxy);
      proxy.isDown = true;
      proxy.cut();
      await page.getByText(/Reconnecting/).waitFor();
      proxy.build = "another/";
      proxy.isDown = false;
      await page.getByText("Turnwheel was updated.").waitFor();
      await audit();
      await shot("banner");
      await page.getByRole("button", { name: "Reload" }).click();
      await page.getByText(/Paid 40 to Ada/).waitFor();
      assert.equal(await page.getByLabel("Input for the agent").inputValue(), "unsent text");
    },
  },
  {
    name: "slow requests: the page says what it waits for",
    sizes: ["desktop"],
    async run({ open, page, proxy, shot }) {
      proxy.delay = 6_500;
      const loaded = open("/c");
      await page.getByText("Still waiting for the store…").waitFor({ timeout: 25_000 });
      await shot("waiting");
      proxy.delay = 0;
      await loaded;
    },
  },
  {
    name: "seven visible tabs: each shows the newest message",
    sizes: ["desktop"],
    async run({ newPage, api, shot, proxy }) {
      const id = freshId("tabs");
      await api.prompt("Pay 40 to Ada", { conversationId: id });
      const pages = [];
      for (let number = 0; number < 7; number += 1) {
        const page = await newPage(`/c/${id}`);
        await page.getByText(/Paid 40 to Ada/).waitFor();
        pages.push(page);
      }
      const last = pages[6];
      await last.getByText(/Other tabs hold the event streams/).waitFor();
      await shot("seventh", last);
      assert.equal(new Set(proxy.requests.filter(({ path }) => path.includes("/events")).map(({ at }) => at)).size, 4);
      await api.call("POST", `/conversations/${id}/prompts?wait=20`, { input: "Pay 41 to Bob" });
      for (const page of pages) await page.getByText(/Paid 41 to Bob/).waitFor();
    },
  },
  {
    name: "idle page: one stream and few requests, none while hidden",
    sizes: ["desktop"],
    async run({ page, open, api, proxy }) {
      const { conversationId } = await api.prompt("Pay 40 to Ada");
      await open(`/c/${conversationId}`);
      await page.getByText(/Paid 40 to Ada/).waitFor();
      await page.waitForTimeout(2_000);
      const start = proxy.requests.length;
      await page.waitForTimeout(20_000);
      const count = proxy.requests.length - start;
      assert.ok(count * 3 <= 13, `${count} requests in 20 s`);
      assert.equal(proxy.openStreams(), 1);
      await page.evaluate(() => {
        Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      });
      await until(() => proxy.openStreams() === 0, "the hidden page closes its stream", 12_000);
      const hidden = proxy.requests.length;
      await page.waitForTimeout(7_000);
      assert.equal(proxy.requests.length, hidden, "a hidden page reads nothing");
      await api.call("POST", `/conversations/${conversationId}/prompts?wait=20`, { input: "Pay 41 to Bob" });
      await page.evaluate(() => {
        delete document.visibilityState;
        document.dispatchEvent(new Event("visibilitychange"));
      });
      await page.getByText(/Paid 41 to Bob/).waitFor();
      assert.equal(await page.getByText(/Paid 41 to Bob/).count(), 1);
      return `${count} requests in 20 s`;
    },
  },
];
