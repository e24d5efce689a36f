// Purpose: the list of pages: `docs/README.md` has the groups in the order of the site, and a description of each page.
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, posix } from "node:path";
import { fileURLToPath } from "node:url";

export const DOCS = join(dirname(fileURLToPath(import.meta.url)), "../docs");
export const REPOSITORY = "https://github.com/turnwheel/turnwheel/blob/main/";
export const SUMMARY =
  "Durable AI agents on Azure Functions: an agent is a Markdown file that survives crashes, waits for approvals and never silently repeats a write.";

export const read = (page) => readFileSync(join(DOCS, page), "utf8");

/** @returns {{title: string, pages: {title: string, path: string, text: string}[]}[]} */
export function groups() {
  const [, ...sections] = read("README.md").split(/^## /m);
  return sections.map((section) => {
    const [title, ...lines] = section.split("\n");
    const rows = lines.map((line) => /^- \[(.+?)\]\((.+?)\): (.+)$/.exec(line)).filter(Boolean);
    return { title, pages: rows.map(([, name, path, text]) => ({ title: name, path, text })) };
  });
}

/** Decisions with their numbers and titles, as their index lists them. */
export function decisions() {
  const rows = read("decisions/README.md").matchAll(/^\| \[(\d{4})\]\((.+?)\) \| (.+?) \|/gm);
  return [...rows].map(([, number, file, title]) => ({ title: `${number} ${title}`, path: `decisions/${file}` }));
}

/** Files below `docs` with this ending. */
export function files(ending) {
  return readdirSync(DOCS, { recursive: true }).map((file) => file.replaceAll("\\", "/")).filter((file) => file.endsWith(ending));
}

/** Throws if a page is in no group, or a group names no page. */
export function checkList() {
  const listed = ["README.md", ...groups().flatMap(({ pages }) => pages.map(({ path }) => path)), ...decisions().map(({ path }) => path)];
  const existing = files(".md");
  const problems = [
    ...existing.filter((file) => !listed.includes(file)).map((file) => `docs/README.md does not list ${file}`),
    ...listed.filter((file) => !existing.includes(file)).map((file) => `${file} is listed and does not exist`),
    ...listed.filter((file, at) => listed.indexOf(file) !== at).map((file) => `${file} is listed twice`),
  ];
  if (problems.length) throw new Error(problems.join("\n"));
}

/** Address of a page in the site: `README.md` is the index of its folder. */
export const addressOf = (path) => `/${path.replace(/(^|\/)README\.md$/, "$1").replace(/\.md$/, "")}`;

/** The id of a heading, as GitHub makes it. */
export function slug(text) {
  return text.trim().toLowerCase().replace(/[^\p{L}\p{N}\p{M}_\- ]/gu, "").replaceAll(" ", "-");
}

/** A link of a page: a path below `docs`, or the address of a file in the repository. */
export function resolveLink(page, link) {
  const [path, anchor = ""] = link.split("#");
  const target = posix.normalize(posix.join("docs", posix.dirname(page), path));
  const hash = anchor && `#${anchor}`;
  if (target.startsWith("docs/") && target.endsWith(".md")) return { page: target.slice("docs/".length), hash };
  return { file: target, address: `${REPOSITORY}${target}${hash}` };
}
