// Purpose: finds and starts Chromium: an installed one, else that of the npm package.
import { execFileSync } from "node:child_process";
import { chromium } from "playwright-core";

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
    return { executablePath: await packaged.executablePath(), args: packaged.args };
  } catch (error) {
    throw new Error(`No Chromium. Install it (apt-get install chromium), or set TURNWHEEL_CHROMIUM to its path: ${error}`);
  }
}
