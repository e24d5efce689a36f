// Purpose: checks the built site: every link within it leads to a file and, if it names a heading, to that heading.
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const OUT = fileURLToPath(new URL("../target/site", import.meta.url));
const base = process.env.SITE_BASE ?? "/";
const pages = readdirSync(OUT, { recursive: true }).filter((file) => file.endsWith(".html") && file !== "404.html");
const texts = new Map();
const read = (file) => texts.get(file) ?? texts.set(file, readFileSync(join(OUT, file), "utf8")).get(file);
const ids = new Map();
const idsOf = (file) => ids.get(file) ?? ids.set(file, new Set([...read(file).matchAll(/ id="([^"]+)"/g)].map(([, id]) => id))).get(file);

/** The file that an address of the site shows. */
function fileOf(address) {
  if (!address.startsWith(base)) return undefined;
  const path = address.slice(base.length) || "index";
  const candidates = [`${path}.html`, join(path, "index.html"), path];
  return candidates.find((file) => existsSync(join(OUT, file)) && statSync(join(OUT, file)).isFile());
}

const problems = [];
let count = 0;
for (const page of pages) {
  const here = base + page.replace(/(index)?\.html$/, "");
  for (const [, href] of read(page).matchAll(/<a [^>]*?href="([^"]+)"/g)) {
    if (/^[a-z]+:/i.test(href)) continue;
    count += 1;
    const [path, hash] = href.startsWith("#") ? [here, href.slice(1)] : href.split("#");
    const file = fileOf(path);
    if (!file) problems.push(`${page}: ${href} is no page`);
    else if (hash && file.endsWith(".html") && !idsOf(file).has(decodeURIComponent(hash))) problems.push(`${page}: ${href} names no heading`);
  }
}
for (const file of ["llms.txt", "llms-full.txt"]) if (!existsSync(join(OUT, file))) problems.push(`${file} is missing`);
if (problems.length) throw new Error(problems.join("\n"));
console.log(`${pages.length} pages, ${count} links: none is dead`);
