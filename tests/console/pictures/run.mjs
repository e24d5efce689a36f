// Purpose: makes the pictures of the documentation: one of each view of the console, with example data.
// Usage: node pictures/run.mjs PROGRAM [OUT_DIR]. PROGRAM is a built `turnwheel`; OUT_DIR is `docs/img` by default.
import { spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { launchBrowser } from "../browser.mjs";
import { until } from "../support.mjs";
import { createExamples, usageOf } from "./examples.mjs";
import { startModel } from "./model.mjs";
import { paletted } from "./png.mjs";

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "../../..");
const [program, out = join(ROOT, "docs/img")] = process.argv.slice(2);
if (!program) throw new Error("The first argument is a built program: cargo build, then target/debug/turnwheel");

/** Each picture: its name, the address of the view, a text that appears when the view is complete, and steps after that. */
const pictures = ({ waiting, recovered, notes, branched }) => [
  { name: "start", path: "/", shows: "Try these prompts" },
  { name: "chat-approval", path: `/c/${waiting}`, shows: "Approve" },
  { name: "chat", path: `/c/${notes}`, shows: "release-notes.md" },
  { name: "timeline", path: `/c/${recovered}/timeline`, shows: "Paid", act: scrollToRecovery },
  { name: "branches", path: `/c/${branched}/tree`, shows: "in 2 branches", height: 640 },
  { name: "receipt", path: `/c/${recovered}/receipt`, shows: "Repeated", height: 760 },
  { name: "files", path: `/c/${notes}/files`, shows: "release-notes.md", height: 640 },
  { name: "conversations", path: "/c", shows: "An approver must", height: 760 },
  { name: "approvals", path: "/approvals", shows: "Did send_payment run?", height: 1000 },
  { name: "schedules", path: "/schedules", shows: "Europe/Berlin", height: 640 },
  { name: "usage", path: "/usage", shows: "Sum", height: 840 },
  { name: "agents", path: "/agents", shows: "Sends payments", height: 640 },
  { name: "agent", path: "/agents/payments-clerk", shows: "list_payments", act: openFirstTool },
  { name: "memory", path: "/memory", shows: "Fridays", height: 640 },
  { name: "skills", path: "/skills", shows: "closing", act: openSkill, height: 640 },
  { name: "health", path: "/health", shows: "Output at most", height: 640 },
];

async function scrollToRecovery(page) {
  await page.getByRole("feed", { name: "Timeline" }).evaluate((list) => (list.scrollTop = 0));
  await page.getByText("Model call lost").waitFor();
}

async function openFirstTool(page) {
  await page.locator("details[data-row] summary").first().click();
}

async function openSkill(page) {
  await page.locator("details.card summary").click();
}

/** Prompts to try, which the example agents have only for the fake model of `dev`. */
function setExamples(folder, agent, examples) {
  const path = join(folder, "agents", `${agent}.agent.md`);
  const text = readFileSync(path, "utf8").replace(/\nexamples:\n(  - .*\n)*/, "\n");
  writeFileSync(path, text.replace("\n", `\nexamples: ${JSON.stringify(examples)}\n`));
}

/** A service with the example agents and a model that follows a script. */
async function startService() {
  const folder = mkdtempSync(join(tmpdir(), "turnwheel-pictures-"));
  cpSync(join(ROOT, "agents"), join(folder, "agents"), { recursive: true });
  const shop = join(ROOT, "examples/shop-assistant");
  for (const part of ["agents", "skills"]) cpSync(join(shop, part), join(folder, part), { recursive: true });
  setExamples(folder, "assistant", ["Write the release notes of 2.4", "What changed in the notes?"]);
  setExamples(folder, "shop", ["Can a customer return a lamp after two weeks?"]);
  const model = await startModel();
  const settings = {
    AZURE_OPENAI_BASE_URL: model.url,
    AZURE_OPENAI_API_KEY: "none",
    TURNWHEEL_MODEL: "gpt-5-mini",
    TURNWHEEL_MODEL_API: "chat",
  };
  let log = "";
  const dev = spawn(resolve(program), ["dev", "--port", "0"], { cwd: folder, env: { PATH: process.env.PATH, ...settings } });
  for (const stream of [dev.stdout, dev.stderr]) stream.on("data", (text) => (log += text));
  const base = await until(() => /Turnwheel is at (\S+)/.exec(log)?.[1], "the service starts", 30_000).catch((error) => {
    throw new Error(`${error.message}\n${log}`);
  });
  const stop = async () => {
    const isEnded = new Promise((end) => dev.once("exit", end));
    dev.kill("SIGINT");
    await isEnded;
    model.close();
    rmSync(folder, { recursive: true });
  };
  return { base, stop, log: () => log };
}

const service = await startService();
const browser = await launchBrowser();
try {
  mkdirSync(out, { recursive: true });
  const examples = await createExamples(service.base);
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light", reducedMotion: "reduce", locale: "en-GB", timezoneId: "UTC" });
  await context.route(/\/api\/usage\?/, (route) => route.fulfill({ json: usageOf(new URL(route.request().url()).searchParams.get("by")) }));
  const page = await context.newPage();
  page.setDefaultTimeout(10_000);
  const painter = await context.newPage();
  for (const { name, path, shows, act, height = 900 } of pictures(examples)) {
    await page.setViewportSize({ width: 1280, height });
    await page.goto("about:blank"); // no state of the previous picture
    await page.goto(`${service.base}/api/console/#${path}`);
    await page.getByText(shows).first().waitFor().catch((error) => {
      throw new Error(`${name}: ${error.message}`);
    });
    await page.waitForLoadState("networkidle", { timeout: 2_000 }).catch(() => undefined); // an open stream is never idle
    await act?.(page);
    await page.waitForTimeout(400);
    const picture = await paletted(painter, await page.screenshot({ caret: "hide" }));
    writeFileSync(join(out, `${name}.png`), picture);
    console.log(`${name}.png ${Math.round(picture.length / 1000)} KB`);
  }
} catch (error) {
  console.error(service.log().split("\n").slice(-30).join("\n"));
  throw error;
} finally {
  await browser.close();
  await service.stop();
}
