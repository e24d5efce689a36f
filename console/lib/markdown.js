// Purpose: Markdown of model responses as elements. `marked` only splits the text; no HTML text is ever parsed.
import { marked } from "../vendor/marked.js";
import { visible } from "./format.js";
import { html, useMemo, useRef } from "./html.js";

const PROTOCOLS = ["https:", "http:", "mailto:"];
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/** Elements of one response. What follows them is shown as plain text: a browser stops responding to huge pages. */
const ELEMENTS_MAX = 2000;
/** Lists and quotes inside of each other. Deeper ones are plain text: elements are made by recursion. */
const DEPTH_MAX = 24;

/**
 * @param {{text: string, isStreaming?: boolean}} props while a text grows, only its last block is parsed again
 */
export function Markdown({ text, isStreaming = false }) {
  const parsed = useRef(emptyPrefix());
  const whole = useMemo(() => (isStreaming ? null : blocks(lex(text), newScope())), [text, isStreaming]);
  if (whole) return html`<div class="markdown">${whole}</div>`;
  const cut = completedLength(text);
  const { prefix } = parsed.current;
  if (!text.startsWith(prefix) || cut < prefix.length) parsed.current = emptyPrefix();
  const start = parsed.current.prefix.length;
  if (cut > start) {
    parsed.current.nodes = [...parsed.current.nodes, html`<div>${blocks(lex(text.slice(start, cut)), parsed.current.scope)}</div>`];
    parsed.current.prefix = text.slice(0, cut);
  }
  return html`<div class="markdown">${parsed.current.nodes}<div>${blocks(lex(text.slice(cut)), { ...parsed.current.scope })}</div></div>`;
}

/** Elements that may still be made, and the depth. */
const newScope = () => ({ elements: ELEMENTS_MAX, depth: 0 });
const emptyPrefix = () => ({ prefix: "", nodes: [], scope: newScope() });

/** One node for each token, while elements are left; the others become one text. */
function limited(tokens, scope, node) {
  const nodes = [];
  for (const [index, token] of tokens.entries()) {
    if (scope.elements <= 0 || scope.depth > DEPTH_MAX) {
      nodes.push(html`<span class="plain">${visible(tokens.slice(index).map(source).join(""))}</span>`);
      break;
    }
    scope.elements -= 1;
    nodes.push(node(token));
  }
  return nodes;
}

/** The text that a token was made of; of a row of a table its cells. */
const source = (token) => (Array.isArray(token) ? `${token.map((cell) => cell.text).join(" | ")}\n` : token.raw ?? "");

/** Nodes one level deeper. */
function nested(scope, nodes) {
  scope.depth += 1;
  const made = nodes();
  scope.depth -= 1;
  return made;
}

function lex(text) {
  try {
    return marked.lexer(visible(text), { gfm: true });
  } catch {
    return [{ type: "text", text: visible(text) }];
  }
}

/** Length of the blocks that cannot change any more: up to the last empty line outside of a code fence. */
function completedLength(text) {
  let length = 0;
  let offset = 0;
  let isInFence = false;
  for (const line of text.split("\n")) {
    if (/^ {0,3}(```|~~~)/.test(line)) isInFence = !isInFence;
    offset += line.length + 1;
    if (!isInFence && line.trim() === "" && offset <= text.length) length = offset;
  }
  return length;
}

function blocks(tokens, scope) {
  return nested(scope, () => limited(tokens, scope, (token) => block(token, scope)));
}

function block(token, scope) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return html`<p class="heading heading-${token.depth}" role="heading" aria-level=${Math.min(6, token.depth + 2)}>
        ${inline(token.tokens, scope)}
      </p>`;
    case "code":
      return html`<pre class="code" tabindex="0"><code>${token.text}</code></pre>`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens, scope)}</blockquote>`;
    case "list":
      return html`<${token.ordered ? "ol" : "ul"} start=${token.ordered ? token.start || 1 : undefined}>
        ${limited(token.items, scope, (item) => html`<li>${item.task ? (item.checked ? "☑ " : "☐ ") : ""}${blocks(item.tokens, scope)}</li>`)}
      <//>`;
    case "table":
      return table(token, scope);
    case "hr":
      return html`<hr />`;
    case "paragraph":
      return html`<p>${inline(token.tokens, scope)}</p>`;
    case "text":
      return token.tokens ? html`<span>${inline(token.tokens, scope)}</span>` : decode(token.text);
    default:
      return html`<p>${token.raw ?? ""}</p>`; // HTML and everything unknown is text
  }
}

function table({ header, rows }, scope) {
  // A cell has an element of its own, and mostly one inside.
  const shown = rows.slice(0, Math.max(0, Math.floor(scope.elements / (2 * header.length) - 1)));
  const cells = (row, cell) => limited(row, scope, cell);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table">
    <table>
      <thead><tr>${cells(header, (cell) => html`<th scope="col" class=${alignment(cell)}>${inline(cell.tokens, scope)}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr>${cells(row, (cell) => html`<td class=${alignment(cell)}>${inline(cell.tokens, scope)}</td>`)}</tr>`)}</tbody>
    </table>
    ${shown.length < rows.length ? html`<pre class="plain">${visible(rows.slice(shown.length).map(source).join(""))}</pre>` : ""}
  </div>`;
}

const alignment = ({ align }) => (align === "right" || align === "center" ? `align-${align}` : undefined);

function inline(tokens = [], scope) {
  return nested(scope, () => limited(tokens, scope, (token) => span(token, scope)));
}

function span(token, scope) {
  switch (token.type) {
    case "strong":
      return html`<strong>${inline(token.tokens, scope)}</strong>`;
    case "em":
      return html`<em>${inline(token.tokens, scope)}</em>`;
    case "del":
      return html`<del>${inline(token.tokens, scope)}</del>`;
    case "codespan":
      return html`<code>${visible(token.text)}</code>`;
    case "br":
      return html`<br />`;
    case "link":
      return link(token.href, inline(token.tokens, scope), token.text);
    case "image": // never loaded: a remote image would send data to its host
      return link(token.href, [`Image: ${decode(token.text) || "without description"}`], "");
    case "text":
    case "escape":
      return token.tokens ? inline(token.tokens, scope) : decode(token.text);
    default:
      return token.raw ?? "";
  }
}

/** A link shows its host, so that its text cannot pretend another one. Other protocols are text. */
function link(href, children, text) {
  let url;
  try {
    url = new URL(href);
  } catch {
    return html`<span>${children} (${visible(href)})</span>`;
  }
  if (!PROTOCOLS.includes(url.protocol)) return html`<span>${children} (${visible(href)})</span>`;
  const isShown = url.host && String(text).includes(url.host);
  return html`<a href=${url.href} target="_blank" rel="noopener noreferrer nofollow">${children}</a>${isShown || !url.host
    ? ""
    : html`<span class="host"> (${url.host})</span>`}`;
}

function decode(text) {
  const decoded = text.replace(/&(?:#(\d+)|#x([\da-f]+)|(\w+));/gi, (whole, decimal, hex, name) => {
    const code = decimal ? Number(decimal) : hex ? Number.parseInt(hex, 16) : 0;
    if (code) return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
    return ENTITIES[name] ?? whole;
  });
  return visible(decoded); // an entity may be an invisible character
}
