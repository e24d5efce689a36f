// Purpose: the site of the documentation. The pages stay in `docs`, where GitHub shows them; links to other files lead there.
import { cpSync, existsSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { defineConfig } from "vitepress";
import { llms, llmsFull } from "../llms.mjs";
import { DOCS, REPOSITORY, SUMMARY, addressOf, checkList, decisions, files, groups, resolveLink, slug } from "../pages.mjs";

checkList();
const base = process.env.SITE_BASE ?? "/";
const packageFile = (find, path) => ({ find, replacement: join(import.meta.dirname, "../node_modules", path) });
const item = ({ title, path }) => ({ text: title, link: addressOf(path) });

export default defineConfig({
  title: "Turnwheel",
  description: SUMMARY,
  lang: "en",
  base,
  srcDir: "../docs",
  outDir: "../target/site",
  cacheDir: "../target/site-cache",
  rewrites: { "README.md": "index.md", "decisions/README.md": "decisions/index.md" },
  cleanUrls: true,
  head: [["link", { rel: "icon", type: "image/svg+xml", href: `${base}icon.svg` }]],
  // The build fails at links to pages that do not exist; `check.mjs` checks the headings that links name.
  ignoreDeadLinks: "localhostLinks", // pages of a service on the reader's machine
  markdown: {
    anchor: { slugify: slug },
    image: { lazyLoading: true },
    languageAlias: { kusto: "sql" },
    config: (markdown) => {
      keepBraces(markdown);
      firstWordIsLanguage(markdown);
      linkOtherFiles(markdown);
    },
  },
  vite: {
    publicDir: join(import.meta.dirname, "../public"),
    // The pages are outside of this folder, and find no packages by themselves.
    resolve: { alias: [packageFile(/^vue$/, "vue/dist/vue.runtime.esm-bundler.js"), packageFile(/^vue\/server-renderer$/, "vue/server-renderer/index.mjs")] },
    build: { chunkSizeWarningLimit: 4_000 }, // the search index
  },
  themeConfig: {
    search: { provider: "local" },
    nav: [
      { text: "Quickstart", link: "/quickstart" },
      { text: "Agent files", link: "/agent-files" },
      { text: "HTTP API", link: "/http-api" },
      { text: "llms.txt", link: `${base}llms.txt`, target: "_self" },
    ],
    sidebar: groups().map(({ title, pages }) => ({
      text: title,
      collapsed: !["Start", "Write agents"].includes(title),
      items: title === "Decisions" ? [...pages.map(item), ...decisions().map(item)] : pages.map(item),
    })),
    outline: [2, 3],
    socialLinks: [{ icon: "github", link: REPOSITORY.replace("/blob/main/", "") }],
  },
  buildEnd({ outDir }) {
    writeFileSync(join(outDir, "llms.txt"), llms());
    writeFileSync(join(outDir, "llms-full.txt"), llmsFull());
    // Each page as Markdown, for programs that read it.
    for (const file of files(".md")) {
      mkdirSync(dirname(join(outDir, file)), { recursive: true });
      cpSync(join(DOCS, file), join(outDir, file));
    }
  },
});

/** Braces in a page are text, not expressions of Vue. */
function keepBraces(markdown) {
  for (const name of ["text", "code_inline"]) {
    const render = markdown.renderer.rules[name];
    markdown.renderer.rules[name] = (...args) => render(...args).replaceAll("{{", "&#123;&#123;").replaceAll("}}", "&#125;&#125;");
  }
}

/** A fence such as `sh tour` has a mark for the tests after its language. */
function firstWordIsLanguage(markdown) {
  markdown.core.ruler.push("first-word-is-language", ({ tokens }) => {
    for (const token of tokens) if (token.type === "fence") token.info = token.info.split(/[\s,]/)[0];
  });
}

/** Links to files outside `docs`, and to files that are no pages, lead to the repository. */
function linkOtherFiles(markdown) {
  markdown.core.ruler.push("link-other-files", ({ tokens, env }) => {
    const links = tokens.flatMap(({ children }) => children ?? []).filter(({ type }) => type === "link_open");
    for (const token of links) {
      const href = token.attrGet("href");
      if (/^([a-z]+:|#|\/)/i.test(href)) continue;
      // The paths of pages in the site differ from those of their files only for `README.md`.
      const page = env.relativePath.replace(/(^|\/)index\.md$/, "$1README.md");
      const { page: target, hash, file, address } = resolveLink(page, href);
      if (target) {
        token.attrSet("href", addressOf(target) + hash);
        continue;
      }
      if (!existsSync(join(DOCS, "..", file))) throw new Error(`${page}: ${href} does not exist`);
      token.attrSet("href", address);
    }
  });
}
