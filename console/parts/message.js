// Purpose: messages, tool cards and notices of the chat.
import { conversationPath, credentials, queryString, send, viewAs } from "../lib/api.js";
import { isStructure, stringify } from "../lib/exact-json.js";
import { bytes, contentText, cost, duration, millis, preciseClock, shorten, tokens, visible } from "../lib/format.js";
import { html, useEffect, useState } from "../lib/html.js";
import { Markdown } from "../lib/markdown.js";
import { conversationHref } from "../lib/router.js";
import { showToast } from "../lib/state.js";
import { callState } from "../lib/transcript.js";
import { ApprovalCard } from "./approval.js";
import { Age, Arguments, Json, State } from "./basic.js";
import { Icon } from "./icon.js";

/** @param {{content: any, store: any, at?: any, note?: any, onEdit?: () => void}} props an input of the user */
export function UserMessage({ content, store, at, note, onEdit }) {
  const files = Array.isArray(content) ? content.filter((block) => block.type !== "text") : [];
  return html`<article class="message user" aria-label="Your message">
    <div class="bubble">
      <p class="plain" dir="auto">${visible(contentText(content))}</p>
      ${files.map((block) => html`<${FileBlock} block=${block} store=${store} />`)}
    </div>
    <p class="meta">${note ?? html`<${Age} at=${at} />`}
      ${onEdit ? html` <button type="button" class="link" onClick=${onEdit}>Edit and resend</button>` : ""}</p>
  </article>`;
}

/** @param {{item: any, store: any, approvals: any[]}} props a stored model response */
export function AssistantMessage({ item, store, approvals }) {
  const { message, blocks, entry, isDiscarded } = item;
  const failed = message.stopReason === "error";
  const { usage } = message;
  const latency = entry.startedAt ? message.timestamp - entry.startedAt : NaN;
  return html`<article class="message assistant ${isDiscarded ? "discarded" : ""}" aria-label="Model response" data-message=${entry.id}>
    ${blocks.map((block) => html`<${Block} block=${block} store=${store} approvals=${approvals} />`)}
    ${failed ? html`<${ModelFailure} message=${message} isDiscarded=${isDiscarded} />` : ""}
    ${message.stopReason === "aborted" ? html`<p class="small muted">The response was aborted here.</p>` : ""}
    ${message.stopReason === "length" ? html`<p class="small warning-text">The response was cut at the limit of output tokens.</p>` : ""}
    <p class="meta">
      <span>${visible(message.model)}</span>
      <span title="Input and output tokens">${tokens(usage?.input)} in, ${tokens(usage?.output)} out</span>
      ${usage?.cost?.total ? html`<span>${cost(usage.cost.total)}</span>` : ""}
      ${Number.isFinite(latency) ? html`<span>${duration(latency)}</span>` : ""}
      <${Age} at=${entry.timestamp} />
    </p>
  </article>`;
}

function ModelFailure({ message, isDiscarded }) {
  return html`<div class="note ${isDiscarded ? "quiet" : "bad"}">
    <${Icon} name="warning" />
    <div class="grow"><p class="note-title">${isDiscarded ? "Discarded, the model is called again" : "The model call failed"}</p>
      <p>${visible(message.errorMessage)}</p></div>
  </div>`;
}

/** A response that is still streamed. @param {{message: any}} props */
export function LiveMessage({ message }) {
  if (message.role === "user") return null;
  if (message.role !== "assistant") return null;
  const blocks = message.content ?? [];
  return html`<article class="message assistant live ${message.isDiscarded ? "discarded" : ""}" aria-label="Model response, streaming" data-live>
    ${blocks.length === 0 && !message.isDiscarded ? html`<p class="muted thinking-dots">The model responds</p>` : ""}
    ${blocks.map((block) =>
      block?.type === "text"
        ? html`<${Markdown} text=${block.text} isStreaming=${!message.isComplete} />`
        : block?.type === "thinking"
          ? html`<${Thinking} text=${block.thinking} isOpen />`
          : block?.type === "toolCall"
            ? html`<div class="card tool"><p class="tool-line"><${Icon} name="tool" /><code>${visible(block.name)}</code><span class="muted small">arguments arrive…</span></p>
                ${block.partial ? html`<pre class="code">${visible(block.partial)}</pre>` : ""}</div>`
            : null)}
    ${message.isDiscarded ? html`<p class="small muted">Discarded, the model is called again.</p>` : ""}
  </article>`;
}

function Block({ block, store, approvals }) {
  if (block.type === "text") return html`<${Markdown} text=${block.text} />`;
  if (block.type === "thinking") return html`<${Thinking} text=${block.thinking} />`;
  if (block.type === "toolCall") return block.call ? html`<${ToolCard} call=${block.call} store=${store} approvals=${approvals} />` : null;
  return html`<${FileBlock} block=${block} store=${store} />`;
}

function Thinking({ text, isOpen = false }) {
  if (!text) return null;
  return html`<details class="thinking" open=${isOpen}><summary>Thinking</summary><p class="plain">${visible(text)}</p></details>`;
}

/** @param {{call: any, store: any, approvals: any[]}} props a tool call with its state, arguments and result */
export function ToolCard({ call, store, approvals }) {
  const state = callState(call);
  const open = approvals.find((approval) => call.requests.some((request) => request.id === approval.id));
  const start = call.starts.at(-1);
  const progress = store.running.value.get(call.toolCallId);
  const ms = call.resultEntry && start ? millis(call.resultEntry.timestamp) - millis(start.timestamp) : NaN;
  const summary = shorten(oneLine(call.args), 90);
  const decided = call.decisions.at(-1);
  return html`<div class="card tool ${state}" data-tool=${call.name}>
    <details>
      <summary class="tool-line">
        <${Icon} name="tool" /><code>${visible(call.name)}</code>
        <span class="tool-args mono"><bdi>${summary}</bdi></span>
        <span class="spacer"></span>
        ${Number.isFinite(ms) ? html`<span class="small muted">${duration(ms)}</span>` : ""}
        <${State} state=${state} />
      </summary>
      <div class="tool-body">
        <h4>Arguments</h4><${Arguments} value=${call.args} />
        ${call.result ? html`<h4>Result</h4><${Result} message=${call.result} store=${store} />` : ""}
        ${start ? html`<p class="small muted">Effect <span class="mono">${visible(start.effectId)}</span>, ${visible(start.effect ?? "")}, attempt ${start.attempt}, started ${preciseClock(start.timestamp)}</p>` : ""}
        ${call.decisions.map((decision) => html`<p class="small muted">${decisionText(decision)}</p>`)}
      </div>
    </details>
    ${progress?.partialResult ? html`<pre class="code progress">${visible(contentText(progress.partialResult.content ?? progress.partialResult))}</pre>` : ""}
    ${decided && !open && state !== "done" ? html`<p class="small muted tool-note">${decisionText(decided)}</p>` : ""}
    ${open ? html`<${ApprovalCard} key=${open.id} approval=${open} start=${start} onDecided=${() => store.refresh().catch(() => undefined)} />` : ""}
  </div>`;
}

/** @param {any} decision @returns {string} */
export function decisionText(decision) {
  const verb = { approve: "Approved", reject: "Rejected", happened: "Recorded that it ran", did_not_happen: "Recorded that it did not run", again: "Run again", answer: "Answered" };
  const reason = decision.reason ? `: ${visible(decision.reason)}` : "";
  return `${verb[decision.decision] ?? decision.decision} by ${visible(decision.decidedBy)} at ${preciseClock(decision.decidedAt)}${reason}`;
}

function oneLine(args) {
  if (!isStructure(args)) return visible(args);
  return visible(Object.entries(args).map(([name, value]) => `${name}: ${typeof value === "string" ? value : stringify(value)}`).join(", ")).replace(/\s+/g, " ");
}

/** @param {{message: any, store: any}} props the result of a tool call */
export function Result({ message, store }) {
  const images = (message.content ?? []).filter((block) => block.type === "image" || block.type === "file");
  const text = contentText(message.content);
  return html`<div class=${message.isError ? "result failed" : "result"}>
    ${message.structuredContent !== undefined ? html`<${Json} value=${message.structuredContent} label="Result" />` : text ? html`<${Json} value=${text} label="Result" />` : html`<p class="muted small">No content</p>`}
    ${images.map((block) => html`<${FileBlock} block=${block} store=${store} />`)}
  </div>`;
}

const RASTER = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** An image or file of a message. Only raster images are shown; everything else is a download. */
function FileBlock({ block, store }) {
  if (block.type === "image") {
    return RASTER.includes(block.mimeType) ? html`<${InlineImage} data=${block.data} mimeType=${block.mimeType} />` : null;
  }
  if (block.type !== "file") return null;
  return html`<${FileLink} store=${store} id=${block.artifactId} name=${block.path ?? block.artifactId} mimeType=${block.mimeType} size=${block.size} />`;
}

function InlineImage({ data, mimeType }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    let address = "";
    try {
      const binary = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
      address = URL.createObjectURL(new Blob([binary], { type: mimeType }));
      setUrl(address);
    } catch {
      setUrl("");
    }
    return () => URL.revokeObjectURL(address);
  }, [data, mimeType]);
  return url ? html`<img class="image" src=${url} alt="Image of this message" />` : null;
}

/** @param {{store: any, id: string, name: string, mimeType?: string, size?: number, description?: string}} props */
export function FileLink({ store, id, name, mimeType, size, description }) {
  const download = async () => {
    try {
      await saveArtifact(store.path, id, name);
    } catch (error) {
      showToast(error.message);
    }
  };
  const isImage = RASTER.includes(mimeType) && (size ?? 0) < 5_000_000;
  return html`<div class="file">
    <${Icon} name="file" />
    <div class="grow"><p class="file-name"><bdi>${visible(name)}</bdi></p>
      <p class="small muted">${visible(mimeType)}${size === undefined ? "" : `, ${bytes(size)}`}${description ? `, ${visible(description)}` : ""}</p></div>
    <button type="button" class="button small" onClick=${download}>Download</button>
    ${isImage ? html`<${ArtifactImage} store=${store} id=${id} mimeType=${mimeType} name=${name} />` : ""}
  </div>`;
}

async function readArtifact(path, id) {
  const response = await fetch(`/api${path}/artifacts/${encodeURIComponent(id)}${queryString(viewAs())}`, { headers: credentials() });
  if (!response.ok) throw new Error(`The file could not be read: HTTP ${response.status}.`);
  return response.blob();
}

async function saveArtifact(path, id, name) {
  const blob = await readArtifact(path, id);
  const url = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: String(name).split("/").pop() ?? "file" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function ArtifactImage({ store, id, mimeType, name }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    let address = "";
    readArtifact(store.path, id)
      .then((blob) => setUrl((address = URL.createObjectURL(new Blob([blob], { type: mimeType })))))
      .catch(() => setUrl(""));
    return () => URL.revokeObjectURL(address);
  }, [id]);
  return url ? html`<img class="image" src=${url} alt=${`Image ${visible(name)}`} />` : null;
}

/** @param {string} conversationId @param {File} file @returns {Promise<any>} the stored artifact */
export async function upload(conversationId, file) {
  const { data } = await send("POST", `${conversationPath(conversationId)}/artifacts`, { query: { name: file.name }, raw: file });
  return data;
}

/** @param {{item: any, store: any, approvals: any[]}} props everything that is not a message */
export function Notice({ item, store, approvals }) {
  const { entry } = item;
  switch (item.kind) {
    case "prompt":
      return html`<div class="divider"><span>${{ schedule: "Schedule", queue: "Queue message", plugin: "Plugin" }[entry.source] ?? "Prompt"} <${Age} at=${entry.timestamp} />
        <a href=${conversationHref(store.id, "receipt", { prompt: entry.promptId })}>Receipt</a></span></div>`;
    case "request": {
      const open = approvals.find((approval) => approval.id === item.request.id);
      if (open) return html`<${ApprovalCard} key=${open.id} approval=${open} onDecided=${() => store.refresh().catch(() => undefined)} />`;
      return html`<p class="notice"><${Icon} name="approvals" />${visible(item.request.title)} ${item.decision ? decisionText(item.decision) : ""}</p>`;
    }
    case "output":
      return html`<${Output} output=${item.output} store=${store} />`;
    case "summary":
      return html`<details class="notice-block"><summary><${Icon} name="compact" />Older messages were replaced by a summary for the model</summary><p class="plain">${visible(item.summary)}</p></details>`;
    case "custom":
      return html`<div class="notice-block"><p class="small muted">${visible(item.name)}</p><${Markdown} text=${contentText(item.content)} /></div>`;
    case "shell":
      return html`<div class="notice-block"><p class="mono small">$ ${visible(item.message.command)}</p><${Json} value=${item.message.output} label="Output" /></div>`;
    case "lost":
      return html`<p class="notice"><${Icon} name="restart" />A model call was lost with its process, and is repeated</p>`;
    default:
      return html`<${PromptEnd} entry=${entry} />`;
  }
}

function PromptEnd({ entry }) {
  const isFailed = entry.state === "failed";
  const text = entry.error?.message ?? entry.incomplete?.message ?? "";
  const title = { failed: "The prompt failed", aborted: "The prompt was aborted" }[entry.state] ?? "The response is incomplete";
  const reason = entry.stopReason && !["error", "aborted", "end"].includes(entry.stopReason) ? ` (${visible(entry.stopReason)})` : "";
  return html`<div class="note ${isFailed ? "bad" : "quiet"}"><${Icon} name=${isFailed ? "warning" : "stop"} />
    <div class="grow"><p class="note-title">${title}${reason}</p>${text ? html`<p>${visible(text)}</p>` : ""}</div></div>`;
}

function Output({ output, store }) {
  if (output?.type === "file") {
    return html`<${FileLink} store=${store} id=${output.artifactId} name=${output.path} mimeType=${output.mimeType} size=${output.size} description=${output.description} />`;
  }
  if (output?.type === "widget") return html`<div class="notice-block"><p class="plain">${visible(output.fallback)}</p></div>`;
  return null;
}
