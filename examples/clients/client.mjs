#!/usr/bin/env node
// Sends a prompt to an agent, follows its events, decides its approval requests and prints the result.
// Requires Node 18.3 or later (21 for numbers that JavaScript rounds), turnwheel.mjs and no packages. Explained in
// docs/clients.md.
//
//   node client.mjs --agent payments-clerk --input "Pay 250 to Ada" --decide approve

import { randomUUID } from "node:crypto";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { decide, emptyView, events, reduce, send, startPrompt } from "./turnwheel.mjs";

export { decide, emptyView, events, reduce, startPrompt };

/** Prints what happens, on the error stream. */
function report(event) {
  const update = event.assistantMessageEvent;
  if (update?.type === "text_delta") process.stderr.write(update.delta);
  if (update?.type === "text_end") process.stderr.write("\n");
  if (event.type === "tool_execution_start") console.error(`${event.toolName} ${JSON.stringify(event.args)}`);
  if (event.type === "auto_retry_start") console.error(`${event.errorMessage}: retry in ${event.delayMs} ms`);
}

async function decideIfAsked(api, approval, decision) {
  console.error(`approval requested: ${approval.title} ${approval.reason}`);
  if (!approval.decisions.includes(decision)) {
    console.error(`waiting for an approver's decision: ${approval.decisions.join(", ")}`);
    return;
  }
  try {
    await decide(api, approval, decision);
  } catch (error) {
    // 409: already decided differently. 410: expired. Both have their own events.
    if (![409, 410].includes(error.status)) throw error;
    console.error(error.message);
  }
}

function options() {
  const { values } = parseArgs({
    options: {
      url: { type: "string", default: "http://127.0.0.1:7071" },
      agent: { type: "string" },
      input: { type: "string" },
      decide: { type: "string" },
      key: { type: "string", default: randomUUID() },
      header: { type: "string", multiple: true, default: [] },
      json: { type: "boolean", default: false },
    },
  });
  if (!values.input) throw new Error("--input TEXT is required");
  const headers = values.header.map((header) => header.split(/:\s*(.*)/s).slice(0, 2));
  const onReconnect = (error, lastId) => console.error(`events: ${error.message}; reconnecting after event ${lastId}`);
  return { ...values, api: { base: values.url.replace(/\/$/, ""), headers: Object.fromEntries(headers), onReconnect } };
}

async function main() {
  const { api, agent, input, decide: decision, key, json } = options();
  const { conversationId, promptId } = await startPrompt(api, { agent, input, key });
  console.error(`conversation ${conversationId}, prompt ${promptId}, key ${key}`);
  let view = emptyView();
  for await (const event of events(api, conversationId)) {
    view = reduce(view, event);
    report(event);
    if (event.type === "prompt.approval-requested" && event.approval) {
      await decideIfAsked(api, event.approval, decision);
    }
    const isEnd = event.type === "prompt.completed" || event.type === "prompt.error";
    if (isEnd && event.promptId === promptId) break;
  }
  const prompt = await send(api, `/api/conversations/${conversationId}/prompts/${promptId}`);
  const text = prompt.output.filter((output) => output.type === "text").at(-1)?.content ?? "";
  const messages = [...view.messages.values()];
  console.log(json ? JSON.stringify({ conversationId, prompt, text, messages }) : text);
  if (prompt.error) console.error(`${prompt.error.type}: ${prompt.error.message}`);
  return prompt.state === "completed" ? 0 : 1;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  main().then(
    (code) => {
      process.exitCode = code;
    },
    (error) => {
      console.error(error.message);
      process.exitCode = 1;
    },
  );
}
