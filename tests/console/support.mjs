// Purpose: pages, API calls, screenshots and checks that all journeys share.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];

/** Opens a browser context whose console errors and policy reports fail the journey. */
export async function openJourney(browser, { proxy, base, out, size, viewport, journey }) {
  const problems = [];
  const context = await browser.newContext({ viewport, isMobile: false, colorScheme: journey.scheme ?? "light", reducedMotion: "reduce", ...journey.context });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const watch = (page) => {
    page.on("pageerror", (error) => problems.push(`error: ${error.stack}`));
    page.on("dialog", (dialog) => (problems.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
    page.on("console", (message) => {
      const isExpected = journey.failsRequests && message.text().startsWith("Failed to load resource");
      if (message.type() === "error" && !isExpected) problems.push(`console: ${message.text()} ${message.location().url}`);
    });
    return page;
  };
  const newPage = async (path) => {
    const page = watch(await context.newPage());
    await page.addInitScript(() => {
      window.policyReports = [];
      addEventListener("securitypolicyviolation", (event) => window.policyReports.push(`${event.violatedDirective} ${event.blockedURI}`));
    });
    if (path !== undefined) await page.goto(`${proxy.url}/api/console/#${path}`);
    return page;
  };
  const page = await newPage();
  const name = journey.name.replace(/[^a-z0-9]+/gi, "-").toLowerCase();
  return {
    browser,
    context,
    page,
    proxy,
    base,
    size,
    newPage,
    open: (path, on = page) => on.goto(`${proxy.url}/api/console/#${path}`),
    api: apiOf(base),
    shot: (part, on = page) => on.screenshot({ path: join(out, `${name}-${part}-${size}.png`) }),
    audit: (on = page) => audit(on),
    noScroll: (on = page) => assertNoHorizontalScroll(on),
    finish: async () => {
      for (const open of context.pages()) {
        const reports = await open.evaluate(() => window.policyReports ?? []).catch(() => []);
        problems.push(...reports.map((report) => `policy: ${report}`));
      }
      assert.deepEqual(problems, []);
    },
    close: () => context.close(),
  };
}

/** Accessibility of the page by axe, injected by the debugger so that the content policy stays on. */
async function audit(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate((rules) => window.axe.run(document, { runOnly: rules }), RULES);
  const texts = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html.slice(0, 160)} ${node.failureSummary?.split("\n")[1] ?? ""}`).join(" | ")}`);
  assert.deepEqual(texts, []);
}

/** Neither the window nor the content beside the navigation is wider than its place. */
async function assertNoHorizontalScroll(page) {
  const wide = await page.evaluate(() => [document.documentElement, document.querySelector("main")]
    .filter((element) => element && element.scrollWidth > element.clientWidth)
    .map((element) => `${element.localName} is ${element.scrollWidth} px wide in ${element.clientWidth} px`));
  assert.deepEqual(wide, []);
}

/** Requests to the service. @param {string} base */
export function apiOf(base) {
  const call = async (method, path, body, headers = {}) => {
    const isText = typeof body === "string";
    const type = body === undefined ? {} : { "content-type": isText ? "application/x-ndjson" : "application/json" };
    const response = await fetch(`${base}/api${path}`, { method, headers: { ...type, ...headers }, body: isText || body === undefined ? body : JSON.stringify(body) });
    const data = response.status === 204 ? null : await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${JSON.stringify(data)}`);
    return data;
  };
  return {
    base,
    get: (path) => call("GET", path),
    post: (path, body = {}, headers) => call("POST", path, body, headers),
    call,
    /** A new conversation with a first prompt; waits until it needs a decision or ends. */
    prompt: (input, more = {}) => call("POST", "/prompts?wait=20", { agent: "payments-clerk", input, ...more }),
  };
}

/** @param {string} prefix @returns {string} an id that no other journey uses */
export const freshId = (prefix) => `${prefix}-${Math.random().toString(36).slice(2, 10)}`;

/** Waits until `read` returns a true value. */
export async function until(read, text, ms = 10_000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await read();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within ${ms} ms: ${text}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
