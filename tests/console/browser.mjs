// Purpose: finds and starts Chromium: an installed one, else that of the npm package.
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

// The package's arguments are for AWS Lambda. In one process a fault of a page ends the browser, and without web security
// a page of another site could read responses that browsers keep from it.
const UNWANTED = ["--single-process", "--disable-web-security", "--allow-running-insecure-content"];

/** @param {string[]} more arguments of Chromium */
export async function launchBrowser(more = []) {
  const { executablePath, args } = await findBrowser();
  return chromium.launch({ executablePath, args: [...args, "--no-sandbox", ...more] });
}

async function findBrowser() {
  for (const name of [process.env.TURNWHEEL_CHROMIUM, "chromium", "chromium-browser", "google-chrome"]) {
    if (!name) continue;
    try {
      return { executablePath: execFileSync("which", [name], { encoding: "utf8" }).trim(), args: [] };
    } catch {
      // the next candidate
    }
  }
  const { default: packaged } = await import("@sparticuz/chromium");
  try {
    return { executablePath: await unpack(packaged), args: packaged.args.filter((arg) => !UNWANTED.includes(arg)) };
  } catch (error) {
    throw new Error(`No Chromium. Install it (apt-get install chromium), or set TURNWHEEL_CHROMIUM to its path: ${error}`);
  }
}

/**
 * Unpacks the browser of the package into a folder that gets its name when it is complete. In the folder for temporary
 * files the package takes a file that another process still writes for the browser.
 */
async function unpack(packaged) {
  const folder = fileURLToPath(new URL("../../browser", import.meta.resolve("@sparticuz/chromium")));
  const browser = join(folder, "chromium");
  if (existsSync(browser)) return browser;
  const parts = mkdtempSync(`${folder}-`);
  const { TMPDIR } = process.env;
  process.env.TMPDIR = parts;
  try {
    await packaged.executablePath();
  } finally {
    if (TMPDIR === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = TMPDIR;
  }
  try {
    renameSync(parts, folder);
  } catch (error) {
    rmSync(parts, { recursive: true });
    if (!existsSync(browser)) throw error;
  }
  return browser;
}
