// Purpose: finds and starts Chromium: an installed one, else that of the npm package.
import { execFileSync } from "node:child_process";
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
    return { executablePath: await packaged.executablePath(), args: packaged.args.filter((arg) => !UNWANTED.includes(arg)) };
  } catch (error) {
    throw new Error(`No Chromium. Install it (apt-get install chromium), or set TURNWHEEL_CHROMIUM to its path: ${error}`);
  }
}
