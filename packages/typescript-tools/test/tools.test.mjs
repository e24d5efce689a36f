// Tests of the package, without Turnwheel: `node --test test/`.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import test from "node:test";
import { Tools, ToolError, httpServer } from "../index.mjs";

/** A schema as libraries such as zod give it. */
const amount = {
  "~standard": {
    version: 1,
    vendor: "test",
    validate: (value) => {
      const isValid = Number.isInteger(value.amount);
      return isValid ? { value } : { issues: [{ message: "is no integer", path: ["amount"] }] };
    },
    jsonSchema: {
      input: () => ({ $schema: "x", type: "object", properties: { amount: { type: "integer" } }, required: ["amount"] }),
    },
  },
};

const newCall = (effectId) => ({ effectId, signal: new AbortController().signal, progress: () => {} });
const textOf = (result) => result.content[0]?.text;

test("definition has effect and approval", () => {
  const tools = new Tools();
  const approval = { when: { properties: { amount: { exclusiveMinimum: 100 } } }, reason: "Above 100." };
  tools.tool({ name: "pay", description: "Pays.", parameters: amount, effect: "idempotent", approval, run: () => "" });
  tools.tool({ name: "plain", parameters: { type: "object" }, run: () => "" });
  tools.tool({ name: "none", effect: "read", run: () => "" });
  assert.deepEqual(tools.definitions[0], {
    name: "pay",
    description: "Pays.",
    inputSchema: { type: "object", properties: { amount: { type: "integer" } }, required: ["amount"] },
    annotations: { readOnlyHint: false, idempotentHint: true },
    _meta: { "turnwheel/approval": approval },
  });
  assert.deepEqual(tools.definitions[1].inputSchema, { type: "object" });
  assert.deepEqual(tools.definitions[1].annotations, { readOnlyHint: false, idempotentHint: false });
  assert.equal(tools.definitions[2].annotations.readOnlyHint, true);
  for (const mistake of [{ name: "pay" }, { effect: "none" }, { approval: "sometimes" }]) {
    assert.throws(() => tools.tool({ name: "x", run: () => "", ...mistake }), TypeError);
  }
});

test("repeated call has the first result", async () => {
  const tools = new Tools();
  let calls = 0;
  tools.tool({ name: "pay", parameters: amount, run: async () => `payment ${++calls}` });
  const keys = ["a", "a", "b", "a", undefined];
  const results = await Promise.all(keys.map((key) => tools.call("pay", { amount: 1 }, newCall(key))));
  const [first, again, second, last, other] = results.map(textOf);
  assert.deepEqual([again, last], [first, first]);
  assert.equal(new Set([first, second, other]).size, 3);
  assert.equal(textOf(await tools.call("pay", { amount: 1 }, newCall("a"))), first);
  assert.equal(calls, 3);
});

test("failed call runs again, and only a ToolError is shown", async () => {
  const tools = new Tools();
  let calls = 0;
  tools.tool({
    name: "pay",
    run: () => {
      calls += 1;
      throw calls === 1 ? new ToolError("no money") : new RangeError("secret");
    },
  });
  assert.deepEqual(await tools.call("pay", {}, newCall("a")), { content: [{ type: "text", text: "no money" }], isError: true });
  await assert.rejects(tools.call("pay", {}, newCall("a")), { code: -32603, message: "pay failed: RangeError" });
  await assert.rejects(tools.call("none", {}, newCall("a")), { code: -32602 });
});

test("arguments are validated", async () => {
  const tools = new Tools().tool({ name: "pay", parameters: amount, run: () => "paid" });
  const refused = await tools.call("pay", { amount: "x" }, newCall("a"));
  assert.deepEqual([refused.isError, textOf(refused)], [true, "Validation failed: amount: is no integer"]);
});

test("results of all kinds", async () => {
  const image = { type: "image", data: "", mimeType: "image/png" };
  for (const [value, expected] of [
    [undefined, { content: [], isError: false }],
    ["x", { content: [{ type: "text", text: "x" }], isError: false }],
    [[1], { content: [{ type: "text", text: "[1]" }], isError: false }],
    [{ a: 1 }, { content: [{ type: "text", text: '{"a":1}' }], isError: false, structuredContent: { a: 1 } }],
    [{ content: [image] }, { content: [image], isError: false }],
  ]) {
    const tools = new Tools().tool({ name: "f", effect: "read", run: () => value });
    assert.deepEqual(await tools.call("f", {}, newCall()), expected);
  }
});

async function listen(tools, options) {
  const server = httpServer(tools, options).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${server.address().port}/mcp`;
  const post = (message, headers = {}) =>
    fetch(url, { method: "POST", body: JSON.stringify(message), headers: { authorization: "Bearer token", ...headers } });
  return { server, url, post };
}

test("calls over HTTP report progress", async (t) => {
  const tools = new Tools();
  tools.tool({
    name: "pay",
    run: (_, call) => {
      call.progress("checking", 1, 2);
      return call.effectId;
    },
  });
  const { server, post } = await listen(tools, { token: "token" });
  t.after(() => server.close());
  const meta = { progressToken: 7, "turnwheel/effectId": "e1" };
  const request = { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: "pay", _meta: meta } };
  const text = await (await post(request)).text();
  const events = text.trim().split("\n\n").map((event) => JSON.parse(event.replace("data: ", "")));
  assert.deepEqual(events[0].params, { progressToken: 7, progress: 1, total: 2, message: "checking" });
  assert.equal(textOf(events[1].result), "e1");
  assert.equal((await post({ method: "notifications/initialized" })).status, 202);
  assert.deepEqual((await (await post({ id: 2, method: "ping" })).json()).result, {});
  assert.equal((await (await post({ id: 2, method: "x" })).json()).error.code, -32601);
  assert.equal((await post(request, { authorization: "Bearer other" })).status, 401);
  assert.equal((await post(request, { origin: "https://a.example" })).status, 403);
  assert.equal((await post([1])).status, 400);
});

/** A call of `pay` whose message has these digits. */
const callWith = (digits, note = "") =>
  `{"id": 1, "method": "tools/call", "params": {"name": "pay", "arguments": {"list": [{"amount": ${digits}}], "note": "${note}"}}}`;

test("number that JavaScript would round reaches no tool", async (t) => {
  let calls = 0;
  const tools = new Tools().tool({ name: "pay", run: ({ list }) => `paid ${list[0].amount} ${++calls}` });
  const { server, url } = await listen(tools, {});
  t.after(() => server.close());
  const resultWith = async (...given) => {
    const text = await (await fetch(url, { method: "POST", body: callWith(...given) })).text();
    return JSON.parse(text.replace("data: ", "")).result;
  };
  for (const digits of ["100.00000000000000000001", "9007199254740993", "-0.1000000000000000055", "1e-400", "1E+400", "123456789012345678e3"]) {
    const text = `Validation failed: JavaScript would round ${digits}: send at most 15 digits if that is the value meant; otherwise the tool's parameter must be a string`;
    assert.deepEqual(await resultWith(digits), { content: [{ type: "text", text }], isError: true });
  }
  assert.equal(calls, 0);
  for (const digits of ["100.50", "9007199254740992", "1E3", "0.1e-7", "-0", "1e300", "0e999999", '"100.00000000000000000001"']) {
    const expected = `paid ${JSON.parse(digits)} ${calls + 1}`;
    assert.equal(textOf(await resultWith(digits, '\\" 100.00000000000000000001 \\\\')), expected);
  }
});

test("call ends when its caller leaves", async (t) => {
  const tools = new Tools();
  const aborted = new Promise((resolve) => {
    tools.tool({ name: "wait", run: (_, { signal }) => once(signal, "abort").then(resolve) });
  });
  const { server, url } = await listen(tools, { token: "" });
  t.after(() => server.close());
  const controller = new AbortController();
  const body = JSON.stringify({ id: 1, method: "tools/call", params: { name: "wait" } });
  await fetch(url, { method: "POST", body, signal: controller.signal });
  controller.abort();
  await aborted;
});

test("host of functions needs a checked caller", async (t) => {
  const { server, post } = await listen(new Tools(), { needsPrincipal: true });
  t.after(() => server.close());
  const ping = { id: 1, method: "ping" };
  assert.equal((await post(ping)).status, 401);
  assert.equal((await post(ping, { "x-ms-client-principal-id": "app" })).status, 200);
  await assert.rejects(new Tools().run(["--http", "0.0.0.0:0"]), /TURNWHEEL_TOOLS_TOKEN/);
});

test("program speaks on its standard input and output", async () => {
  const code = `
    import { Tools } from ${JSON.stringify(new URL("../index.mjs", import.meta.url).href)};
    const run = (_, { signal }) => { console.log("no message"); return new Promise((_, reject) =>
      signal.addEventListener("abort", () => reject(new Error("aborted")))); };
    await new Tools().tool({ name: "wait", run }).run([]);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code], { stdio: ["pipe", "pipe", "ignore"] });
  let output = "";
  child.stdout.on("data", (chunk) => (output += chunk));
  child.stdin.write(`${callWith("100.00000000000000000001")}\n`);
  for (const message of [
    { id: 1, method: "initialize", params: {} },
    { id: 2, method: "tools/call", params: { name: "wait" } },
    { method: "notifications/cancelled", params: { requestId: 2 } },
  ]) {
    child.stdin.write(`${JSON.stringify(message)}\n`);
  }
  child.stdin.end();
  const [status] = await once(child, "close");
  const [refused, first, second] = output.trim().split("\n").map((line) => JSON.parse(line));
  assert.match(textOf(refused.result), /would round 100.00000000000000000001/);
  assert.equal(first.result.serverInfo.name, "tools");
  assert.deepEqual([status, second.error.code], [0, -32800]);
});
