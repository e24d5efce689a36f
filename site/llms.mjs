// Purpose: `llms.txt`, the list of pages for language models, and `llms-full.txt`, the text of all pages.
import { SUMMARY, groups, read } from "./pages.mjs";

/** In the form of https://llmstxt.org: a title, a summary, and links with descriptions. */
export function llms() {
  const sections = groups().map(({ title, pages }) => `## ${title}\n\n${pages.map(({ title: name, path, text }) => `- [${name}](${path}): ${text}`).join("\n")}\n`);
  return [`# Turnwheel\n\n> ${SUMMARY}\n`, ...sections].join("\n");
}

/** All pages in the order of the list, each after a line with its path. Single decisions are left out. */
export function llmsFull() {
  const paths = groups().flatMap(({ pages }) => pages.map(({ path }) => path));
  return paths.map((path) => `<!-- docs/${path} -->\n\n${read(path).trim()}\n`).join("\n");
}
