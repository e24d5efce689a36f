#!/usr/bin/env node
// An extension and a plugin for Turnwheel over HTTP: payments above a limit need an approval, and the model does
// not read receipt numbers. Requires Node 18.3 or later and no packages. Explained in README.md.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";
import { parseArgs } from "node:util";

const LIMIT = 100;
const QUESTION_LIMIT = 1000;
const BODY_BYTES_MAX = 256 * 1024;

const { values: options } = parseArgs({ options: { port: { type: "string", default: "8701" } } });
const secret = process.env.HOOK_SECRET ?? "";
if (!secret.startsWith("whsec_")) {
  console.error('Set HOOK_SECRET. `echo "whsec_$(head -c 24 /dev/urandom | base64)"` makes one.');
  process.exit(2);
}
const key = Buffer.from(secret.slice("whsec_".length), "base64");

// Each function returns the response to one event. The same hookId with the same answers gets the same response.
const events = {
  input({ data }) {
    const text = data.text.replace(/\b\d{16}\b/g, "(card number)");
    return text === data.text ? { action: "continue" } : { action: "transform", text };
  },

  tool_call({ data, answers = {}, rounded }) {
    if (data.toolName !== "send_payment") return { decision: "allow" };
    // The limit would be compared with another amount than the one that is sent.
    if (rounded) {
      const reason = `JavaScript would round ${rounded}, so its limit cannot be checked: send an amount with fewer digits.`;
      return { decision: "block", reason };
    }
    const { to, amount } = data.arguments;
    if (to === "Mallory") {
      const actions = [{ type: "notify", text: `A payment to ${to} was blocked.`, severity: "warning" }];
      return { decision: "block", reason: "Mallory receives no payments.", actions };
    }
    if (amount <= LIMIT) return { decision: "allow" };
    if (amount > QUESTION_LIMIT) {
      if (!("known" in answers)) return { ask: { kind: "confirm", key: "known", text: `Do you know ${to}?` } };
      // A question that expired or was declined has the answer null.
      if (answers.known !== true) return { decision: "block", reason: `Nobody knows ${to}.` };
    }
    return {
      decision: "requireApproval",
      reason: `Pay ${amount} to ${to}?`,
      approvers: ["owner", "link"],
      expiresAfter: "24h",
      refusal: "The payment was not approved",
    };
  },

  tool_result({ data }) {
    const hide = (text) => text.replace(/rcpt_\w+/g, "rcpt_…");
    const isText = data.content.every((block) => block.type === "text");
    if (!isText || data.content.every((block) => hide(block.text) === block.text)) return {};
    return { content: data.content.map((block) => ({ type: "text", text: hide(block.text) })) };
  },

  command({ data }) {
    return {
      output: `Payments above ${LIMIT} need an approval.`,
      actions: [{ type: "appendEntry", customType: "guard/limit-shown", data: { args: data.args } }],
    };
  },

  user_bash({ data }) {
    const output = data.output.replace(/password=\S+/g, "password=…");
    return output === data.output ? {} : { result: { output, exitCode: data.exitCode } };
  },

  prepare() {
    return { context: [`Payments above ${LIMIT} wait for an approval.`] };
  },
};

/** Canonical text of a number: sign, digits without leading and trailing zeros, exponent. */
function normalText(number) {
  const parts = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/i.exec(number);
  if (!parts) return number; // Infinity
  const [, sign, whole, fraction = "", power = 0] = parts;
  const digits = (whole + fraction).replace(/^0+/, "");
  let end = digits.length;
  while (digits[end - 1] === "0") end -= 1;
  return end && `${sign}${digits.slice(0, end)}e${Number(power) + digits.length - fraction.length}`;
}

/** The document of an event, with the first number in it that JavaScript has rounded. */
function parse(text) {
  const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g) ?? [];
  const isRounded = (token) => token[0] !== '"' && normalText(token) !== normalText(String(Number(token)));
  return { ...JSON.parse(text), rounded: tokens.find(isRounded)?.slice(0, 100) };
}

function sign(id, timestamp, body) {
  return createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
}

function isGenuine(headers, body) {
  const id = headers["webhook-id"];
  const timestamp = headers["webhook-timestamp"];
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300)) return false;
  const expected = sign(id, timestamp, body);
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => {
    const given = Buffer.from(signature.replace(/^v1,/, ""), "base64");
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}

async function readBody(request) {
  const chunks = [];
  let bytes = 0;
  for await (const chunk of request) {
    bytes += chunk.length;
    if (bytes > BODY_BYTES_MAX) return null;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

async function handle(request, response) {
  const body = await readBody(request);
  if (body === null) return response.writeHead(413).end();
  if (request.method !== "POST" || !isGenuine(request.headers, body)) return response.writeHead(401).end();
  const hook = parse(body.toString());
  const result = JSON.stringify(events[hook.event]?.(hook) ?? {});
  const timestamp = Math.floor(Date.now() / 1000);
  response.writeHead(200, {
    "content-type": "application/json",
    "webhook-id": hook.hookId,
    "webhook-timestamp": timestamp,
    "webhook-signature": `v1,${sign(hook.hookId, timestamp, result).toString("base64")}`,
  });
  response.end(result);
}

const server = createServer((request, response) => {
  handle(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
server.listen(Number(options.port), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
