// Purpose: the journey through the page of docs/chat-front-end.md, made of its blocks, with the service under test.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { until } from "./support.mjs";

// `cargo test` runs a copy of these scripts.
const ROOT = process.env.CARGO_MANIFEST_DIR ?? join(dirname(fileURLToPath(import.meta.url)), "../..");
const PAGE = "docs/chat-front-end.md";
const read = (path) => readFileSync(join(ROOT, path), "utf8");

function block(info) {
  const [, rest] = read(PAGE).split(`\`\`\`${info}\n`);
  if (!rest) throw new Error(`${PAGE} has no block \`${info}\``);
  return rest.split("\n```")[0];
}

/** Serves the page at a free port, with an agent of this service. */
async function serve(base) {
  const script = block("js web/chat.mjs").replace("http://127.0.0.1:7071", base).replace('agent: "clerk"', 'agent: "payments-clerk"');
  const files = {
    "/": ["text/html", block("html web/index.html")],
    "/chat.mjs": ["text/javascript", script],
    "/turnwheel.mjs": ["text/javascript", read("examples/clients/turnwheel.mjs")],
  };
  const server = createServer(({ url }, response) => {
    const [type, text] = files[url] ?? ["text/plain", ""];
    response.writeHead(text ? 200 : 404, { "content-type": type }).end(text);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://localhost:${server.address().port}/`, close: () => (server.closeAllConnections(), server.close()) };
}

export default [
  {
    name: "chat page of the documentation",
    sizes: ["desktop"],
    async run({ page, base, shot }) {
      const site = await serve(base);
      const send = async (text) => {
        await page.getByLabel("Input").fill(text);
        await page.getByRole("button", { name: "Send" }).click();
      };
      try {
        await page.goto(site.url);
        await send("Pay 40 to Ada");
        await page.getByText(/Paid 40 to Ada/).waitFor();
        await send("Pay 250 to Bob");
        await page.getByRole("button", { name: "Approve" }).waitFor();
        await page.reload();
        await page.getByRole("button", { name: "Approve" }).waitFor();
        await shot("approval");
        // A steer, which the model reads after the approved call, comes while the button is pressed.
        await page.getByLabel("Input").fill("say It is on its way.");
        await page.getByRole("button", { name: "Approve" }).hover();
        await page.mouse.down();
        await page.evaluate(async () => {
          const isDrawn = new Promise((resolve) => new MutationObserver(resolve).observe(document.getElementById("log"), { childList: true }));
          document.getElementById("form").requestSubmit();
          await isDrawn;
        });
        await page.mouse.up();
        await page.getByText("It is on its way.").nth(1).waitFor();
        await send("Pay 300 to Cleo");
        await page.getByRole("button", { name: "Reject" }).click();
        await page.getByText(/300 to Cleo was not made/).waitFor();
        assert.equal(await page.getByText(/Paid 40 to Ada/).count(), 1, "no message twice");
        await until(async () => (await page.getByRole("status").innerText()) === "", "nothing runs");
      } finally {
        site.close();
      }
    },
  },
];
