// Purpose: Markdown of model responses as elements. `marked` only splits the text; no HTML text is ever parsed.
import { marked } from "../vendor/marked.js";
import { visible } from "./format.js";
import { html, useMemo, useRef } from "./html.js";

const PROTOCOLS = ["https:", "http:", "mailto:"];
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/**
 * @param {{text: string, isStreaming?: boolean}} props while a text grows, only its last block is parsed again
 */
export function Markdown({ text, isStreaming = false }) {
  const parsed = useRef({ prefix: "", nodes: [] });
  const whole = useMemo(() => (isStreaming ? null : blocks(lex(text))), [text, isStreaming]);
  if (whole) return html`<div class="markdown">${whole}</div>`;
  const cut = completedLength(text);
  const { prefix } = parsed.current;
  if (!text.startsWith(prefix) || cut < prefix.length) parsed.current = { prefix: "", nodes: [] };
  const start = parsed.current.prefix.length;
  if (cut > start) {
    parsed.current.nodes = [...parsed.current.nodes, html`<div>${blocks(lex(text.slice(start, cut)))}</div>`];
    parsed.current.prefix = text.slice(0, cut);
  }
  return html`<div class="markdown">${parsed.current.nodes}<div>${blocks(lex(text.slice(cut)))}</div></div>`;
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

function blocks(tokens) {
  return tokens.map(block);
}

function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return html`<p class="heading heading-${token.depth}" role="heading" aria-level=${Math.min(6, token.depth + 2)}>
        ${inline(token.tokens)}
      </p>`;
    case "code":
      return html`<pre class="code" tabindex="0"><code>${token.text}</code></pre>`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens)}</blockquote>`;
    case "list":
      return html`<${token.ordered ? "ol" : "ul"} start=${token.ordered ? token.start || 1 : undefined}>
        ${token.items.map((item) => html`<li>${item.task ? (item.checked ? "☑ " : "☐ ") : ""}${blocks(item.tokens)}</li>`)}
      <//>`;
    case "table":
      return table(token);
    case "hr":
      return html`<hr />`;
    case "paragraph":
      return html`<p>${inline(token.tokens)}</p>`;
    case "text":
      return token.tokens ? html`<span>${inline(token.tokens)}</span>` : decode(token.text);
    default:
      return html`<p>${token.raw ?? ""}</p>`; // HTML and everything unknown is text
  }
}

function table({ header, rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table">
    <table>
      <thead><tr>${header.map((cell) => html`<th scope="col" class=${alignment(cell)}>${inline(cell.tokens)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td class=${alignment(cell)}>${inline(cell.tokens)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

const alignment = ({ align }) => (align === "right" || align === "center" ? `align-${align}` : undefined);

function inline(tokens = []) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong":
        return html`<strong>${inline(token.tokens)}</strong>`;
      case "em":
        return html`<em>${inline(token.tokens)}</em>`;
      case "del":
        return html`<del>${inline(token.tokens)}</del>`;
      case "codespan":
        return html`<code>${visible(token.text)}</code>`;
      case "br":
        return html`<br />`;
      case "link":
        return link(token.href, inline(token.tokens), token.text);
      case "image": // never loaded: a remote image would send data to its host
        return link(token.href, [`Image: ${decode(token.text) || "without description"}`], "");
      case "text":
      case "escape":
        return token.tokens ? inline(token.tokens) : decode(token.text);
      default:
        return token.raw ?? "";
    }
  });
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
