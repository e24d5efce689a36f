// Purpose: runs the journeys of the console in Chromium against a running `turnwheel dev`, one line per journey.
// Usage: node run.mjs BASE_URL OUT_DIR [FILTER]. FILTER: parts of names, with commas. Exit 1 if a journey fails, or if each
// journey of a part is skipped. TURNWHEEL_CHROMIUM names the browser.
import { mkdirSync } from "node:fs";
import { launchBrowser } from "./browser.mjs";
import { startProxy } from "./proxy.mjs";
import { openJourney } from "./support.mjs";

import approvals from "./approvals.mjs";
import conversation from "./conversation.mjs";
import connection from "./connection.mjs";
import first from "./first.mjs";
import large from "./large.mjs";
import kill from "./kill.mjs";
import newcomer from "./newcomer.mjs";
import pages from "./pages.mjs";
import security from "./security.mjs";
import views from "./views.mjs";

const JOURNEYS = [...first, ...approvals, ...conversation, ...kill, ...newcomer, ...connection, ...large, ...pages, ...security, ...views];
const SIZES = { desktop: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };
const [base = "http://127.0.0.1:7071", out = "screenshots", filter = ""] = process.argv.slice(2);

async function runJourney(browser, journey, size) {
  const proxy = await startProxy(base);
  const opened = await openJourney(browser, { proxy, base, out, size, viewport: SIZES[size], journey });
  const start = performance.now();
  try {
    const result = await journey.run(opened);
    await opened.finish();
    if (result === "skipped") return `skip ${journey.name} (${size}): ${journey.needs}`;
    return `ok   ${journey.name} (${size}) ${Math.round(performance.now() - start)} ms${result ? `, ${result}` : ""}`;
  } catch (error) {
    await opened.shot("failed").catch(() => undefined);
    process.exitCode = 1;
    return `FAIL ${journey.name} (${size})\n     ${String(error.stack ?? error).split("\n").slice(0, 12).join("\n     ")}`;
  } finally {
    await opened.close();
    await proxy.close();
  }
}

mkdirSync(out, { recursive: true });
const browser = await launchBrowser(["--host-resolver-rules=MAP another-site.example 127.0.0.1"]);
const parts = filter.split(",");
const partsRun = new Set();
for (const journey of JOURNEYS) {
  for (const size of journey.sizes ?? Object.keys(SIZES)) {
    const selecting = parts.filter((part) => `${journey.name} ${size}`.includes(part));
    if (selecting.length === 0) continue;
    const line = await runJourney(browser, journey, size);
    console.log(line);
    if (!line.startsWith("skip")) for (const part of selecting) partsRun.add(part);
  }
}
for (const part of parts.filter((part) => !partsRun.has(part))) {
  console.log(`FAIL no journey ran for "${part}"`);
  process.exitCode = 1;
}
await browser.close();
process.exit(); // a failed journey may have left a server open
