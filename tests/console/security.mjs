// Purpose: journeys of hostile text, of identities, and of other sites.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { freshId, until } from "./support.mjs";

const CORPUS = [
  "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>",
  "[link](javascript:document.title='hacked') ![image](https://attacker.example/pixel.png) <https://attacker.example/>",
  "\u001b[31mred\u001b[0m \u001b]0;hacked\u0007 \u202egnp.exe\u2066 \u200b",
  "</textarea></title><svg onload=alert(1)> &lt;script&gt; &#x202e; [https://bank.example](https://attacker.example/login)",
];

export default [
  {
    name: "hostile text in every view",
    async run({ page, open, api, proxy, audit, noScroll, shot }) {
      const id = freshId("hostile");
      const text = CORPUS.join("\n\n");
      await api.prompt(`use write with ${JSON.stringify({ path: "<img src=x>.html", content: text })} then use read with {"path":"<img src=x>.html"} then say ${text}`, { agent: "assistant", conversationId: id });
      await api.call("PATCH", `/conversations/${id}`, { name: "<b>name</b> <img src=x onerror=alert(1)>" });
      await api.call("POST", `/conversations/${id}/artifacts?name=${encodeURIComponent("<img src=x onerror=alert(1)>.png")}`, "not an image");
      await api.prompt('use send_payment with {"to":"<script>document.title=1</script>\u202e","amount":400}', { conversationId: freshId("hostile") });
      const count = (pattern) => proxy.requests.filter(({ path }) => pattern.test(path)).length;
      for (const path of ["/", "/c", `/c/${id}`, `/c/${id}/timeline`, `/c/${id}/tree`, `/c/${id}/receipt`, `/c/${id}/files`, `/c/${id}/raw`, "/approvals"]) {
        await open(path);
        await page.waitForTimeout(500);
        for (const summary of await page.locator("main details:not([open]):not(.menu) > summary").all()) await summary.click({ timeout: 1_000 }).catch(() => undefined);
        await page.waitForTimeout(200);
        const found = await page.evaluate(() => ({
          elements: document.querySelectorAll("main script, main iframe, main object, main embed, main [onerror], main [onload], main b, main title").length,
          images: [...document.querySelectorAll("main img")].filter((image) => !image.src.startsWith("blob:")).length,
          links: [...document.querySelectorAll("a[href]")].filter((link) => /^(javascript|data|vbscript):/i.test(link.getAttribute("href"))).length,
          text: document.querySelector("main").innerText,
          title: document.title,
        }));
        assert.deepEqual({ ...found, text: "", title: "" }, { elements: 0, images: 0, links: 0, text: "", title: "" }, path);
        assert.doesNotMatch(found.title, /hacked/);
        assert.doesNotMatch(found.text, /[\u001b\u202e\u2066\u0007]/, `control characters are visible in ${path}`);
        await noScroll();
      }
      await open(`/c/${id}`);
      await page.getByText("(attacker.example)").first().waitFor();
      await audit();
      await shot("chat");
      assert.equal(count(/attacker\.example|\/x$/), 0);
    },
  },
  {
    name: "function key: form, header, nothing in the address",
    sizes: ["desktop"],
    failsRequests: true,
    async run({ page, open, proxy, audit, shot }) {
      proxy.refuse = 401;
      await open("/");
      await page.getByRole("heading", { name: "Sign in" }).waitFor();
      assert.equal(await page.getByRole("link", { name: /Sign in with Microsoft/ }).getAttribute("href"), "/.auth/login/aad?post_login_redirect_uri=/api/console/");
      await audit();
      await shot("form");
      proxy.refuse = 0;
      await page.getByLabel("Key", { exact: true }).fill("secret-key");
      await page.getByRole("button", { name: "Use this key" }).click();
      await page.getByRole("heading", { name: "payments-clerk" }).waitFor();
      assert.ok(proxy.requests.some(({ headers }) => headers["x-functions-key"] === "secret-key"));
      assert.ok(proxy.requests.every(({ path }) => !path.includes("secret-key")));
      const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, location.href]));
      assert.doesNotMatch(stored, /secret-key/, "a reload asks again");
    },
  },
  {
    name: "operator: reads and changes nothing",
    sizes: ["desktop"],
    failsRequests: true, // routes that need another role
    async run({ page, open, api, proxy, audit, shot }) {
      const { conversationId } = await api.prompt("Pay 250 to Ada");
      proxy.headers = { "turnwheel-user": "operator", "turnwheel-roles": "Turnwheel.Operator" };
      await open("/c?user=default");
      await page.locator(`a[href^="#/c/${conversationId}"]`).first().waitFor();
      assert.equal(await page.getByRole("button", { name: "Delete" }).count(), 0);
      await page.locator(`a[href^="#/c/${conversationId}"]`).first().click();
      await page.getByText("I will pay 250 to Ada.").waitFor();
      await page.getByText("Operators read conversations and change nothing.").waitFor();
      assert.equal(await page.getByRole("button", { name: "Approve" }).count(), 0);
      await open("/health");
      await page.getByRole("heading", { name: "Pending work" }).waitFor();
      await audit();
      await shot("work");
    },
  },
  {
    name: "another site: form, fetch and frame are refused",
    sizes: ["desktop"],
    failsRequests: true,
    async run({ context, api, base }) {
      const id = freshId("cross");
      await api.prompt("Pay 250 to Ada", { conversationId: id });
      const server = createServer((_, outgoing) => {
        outgoing.writeHead(200, { "content-type": "text/html" });
        outgoing.end(`<form method="post" enctype="text/plain" action="${base}/api/conversations/${id}/abort" target="frame"></form><iframe name="frame"></iframe><iframe id="console" src="${base}/api/console/"></iframe>`);
      });
      await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
      const page = await context.newPage();
      await page.goto(`http://another-site.example:${server.address().port}/`);
      const read = await page.evaluate(async (address) => {
        document.querySelector("form").submit();
        const response = await fetch(`${address}/abort`, { method: "POST", mode: "no-cors", headers: { "content-type": "text/plain" }, body: "" }).catch(() => null);
        await fetch(`${address}/artifacts?name=x`, { method: "POST", mode: "no-cors", body: "x" }).catch(() => null);
        return response?.type ?? "refused";
      }, `${base}/api/conversations/${id}`);
      await page.waitForTimeout(500);
      const frame = await until(() => page.frames().find((other) => other.url().includes("chrome-error") || other.url().includes("/api/console/")), "the frame");
      assert.match(frame.url(), /chrome-error/, "the console is in no frame");
      const conversation = await api.get(`/conversations/${id}`);
      assert.equal(conversation.state, "waiting_for_approval", `the prompt still waits (${read})`);
      assert.equal((await api.get(`/conversations/${id}/artifacts`)).items.length, 0);
      await page.close();
      await new Promise((resolve) => (server.closeAllConnections(), server.close(resolve)));
    },
  },
];
