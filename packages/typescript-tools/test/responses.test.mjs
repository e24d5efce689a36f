// Tests that each call has a response, whatever its tool throws, returns or prints.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect } from "node:net";
import { createInterface } from "node:readline";
import test from "node:test";
import { inspect } from "node:util";
import { Tools, ToolError, httpServer } from "../index.mjs";

const textOf = (result) => result.content[0]?.text;
const call = { effectId: "a", signal: new AbortController().signal, progress: () => {} };
/** The result of a call of the function. */
const resultOf = (run, options) => Object.assign(new Tools(), options).tool({ name: "f", run }).call("f", {}, call);

test("results are strict JSON", async () => {
  for (const [value, expected] of [
    [{ small: 5n, large: 9007199254740993n }, { small: 5, large: "9007199254740993" }],
    [{ "name \udc80": "\ud83d", escaped: "\\udc80" }, { "name \ufffd": "\ufffd", escaped: "\\udc80" }],
    [{ content: [{ type: "text", text: "\udc80" }], structuredContent: { n: 1n } }, { n: 1 }],
    [["\ud83d\ude00", "\udc80"], '["\ud83d\ude00","\ufffd"]'],
    [7n, "7"],
    [() => {}, undefined],
    [Symbol("x"), undefined],
    [{ toJSON: () => undefined }, undefined],
  ]) {
    const result = await resultOf(() => value);
    assert.equal(result.isError, false);
    assert.deepEqual(result.structuredContent ?? textOf(result), expected);
  }
});

test("values without JSON are errors", async () => {
  const cycle = {};
  cycle.self = cycle;
  const failing = { toJSON: () => { throw new Error("no JSON"); } };
  for (const value of [cycle, failing, { content: [{ type: "text", more: cycle }] }]) {
    await assert.rejects(resultOf(() => value), { code: -32603 });
  }
});

test("each thrown value is an error", async () => {
  const fail = () => { throw new Error("no text"); };
  for (const [value, text] of [
    [null, "an exception: null"],
    [undefined, "an exception: undefined"],
    ["boom", "an exception: boom"],
    [5n, "an exception: 5"],
    [Symbol("x"), "an exception"],
    [{ toString: fail }, "an exception"],
    [Object.create(null), "an exception"],
    [{ get name() { return fail(); }, [inspect.custom]: fail }, "an exception"],
    [new RangeError("x"), "RangeError: x"],
  ]) {
    const expected = { code: -32603, message: `f failed: ${text}` };
    await assert.rejects(resultOf(() => { throw value; }, { showsExceptions: true }), expected);
    await assert.rejects(resultOf(() => Promise.reject(value), { showsExceptions: true }), expected);
  }
});

test("each call over HTTP has a response", { timeout: 60_000 }, async (t) => {
  const tools = new Tools();
  tools.tool({ name: "list", run: () => ["name \udc80"] });
  tools.tool({ name: "content", run: () => ({ content: [{ type: "text", text: "x", size: 5n }] }) });
  tools.tool({ name: "refuse", run: () => { throw new ToolError("name \udc80"); } });
  tools.tool({ name: "validate", parameters: { "~standard": { validate: () => { throw null; }, jsonSchema: { input: () => ({}) } } }, run: () => "" });
  tools.tool({ name: "report", run: (_, { progress }) => progress("file \udc80", 1n) });
  const server = httpServer(tools).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const { port } = server.address();
  // A caller that leaves in the middle of its request ends nothing.
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  socket.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{");
  await once(server, "request");
  socket.resetAndDestroy();
  const post = async (name) => {
    const body = JSON.stringify({ id: 1, method: "tools/call", params: { name, _meta: { progressToken: 1 } } });
    const text = await (await fetch(`http://127.0.0.1:${port}`, { method: "POST", body })).text();
    assert.doesNotMatch(text, /\\ud/);
    return text.trim().split("\n\n").map((event) => JSON.parse(event.replace("data: ", "")));
  };
  assert.equal(textOf((await post("list"))[0].result), '["name \ufffd"]');
  assert.equal((await post("content"))[0].result.content[0].size, 5);
  assert.equal(textOf((await post("refuse"))[0].result), "name \ufffd");
  assert.deepEqual((await post("validate"))[0].error, { code: -32603, message: "an exception" });
  const [progress, reported] = await post("report");
  assert.deepEqual(progress.params, { progressToken: 1, progress: 1, message: "file \ufffd" });
  assert.equal(reported.result.isError, false);
});

const program = (args, end) => `
  import { EventEmitter } from "node:events";
  import { Tools } from ${JSON.stringify(new URL("../index.mjs", import.meta.url).href)};
  const never = () => new Promise(() => {});
  const tools = new Tools();
  const add = (name, run) => tools.tool({ name, run });
  let end;
  add("wait", () => new Promise((resolve) => (end = resolve)));
  add("end", () => end("ended"));
  add("echo", ({ text }) => text);
  add("leave", () => process.exit(3));
  add("leave_later", () => { setTimeout(() => process.exit(3)); return never(); });
  add("throw_later", () => { setTimeout(() => { throw null; }); return never(); });
  add("emit", () => { setImmediate(() => new EventEmitter().emit("error", new RangeError("emitted"))); return never(); });
  add("reject", () => { Promise.reject(new Error("x")); return new Promise((resolve) => setTimeout(resolve, 20, "done")); });
  add("print", () => { console.log("printed"); process.stdout.write("no end of line"); process.stdout.end(); process.stdout.destroy(); return "done"; });
  add("content", () => ({ content: [{ type: "text", text: "x", size: 5n }] }));
  let runs = 0;
  let endBooking;
  add("book", () => {
    const run = ++runs;
    setTimeout(() => { throw new Error("callback " + run); });
    return new Promise((resolve, reject) => (endBooking = (fails) => (fails ? reject(new Error("no seat")) : resolve("booked " + run))));
  });
  add("end_booking", ({ fails }) => endBooking(fails));
  add("listen", () => { process.on("SIGTERM", () => process.exit(7)); return "done"; });
  ${end}
  await tools.run(${JSON.stringify(args)});`;

function start(t, args, stdio, end = "") {
  const child = spawn(process.execPath, ["--input-type=module", "-e", program(args, end)], { stdio });
  t.after(() => child.kill());
  return child;
}

const message = (name, args = {}) => JSON.stringify({ id: name, method: "tools/call", params: { name, arguments: args } });

test("each call over standard input and output has a response", { timeout: 60_000 }, async (t) => {
  const child = start(t, [], ["pipe", "pipe", "ignore"]);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const send = async (line) => {
    child.stdin.write(`${line}\n`);
    return JSON.parse((await lines.next()).value);
  };
  child.stdin.write(`${message("wait")}\n`);
  for (const [name, expected] of [
    ["leave", "leave failed: Error: process.exit(3)"],
    ["leave_later", "leave_later failed: Error: process.exit(3)"],
    ["throw_later", "throw_later failed: an exception: null"],
    ["emit", "emit failed: RangeError: emitted"],
    ["reject", "done"],
    ["print", "done"],
    ["content", "x"],
  ]) {
    const { id, result, error } = await send(message(name));
    assert.deepEqual([id, error?.message ?? textOf(result)], [name, expected]);
  }
  for (const line of ["{", "5", "null", "[]"]) {
    assert.equal((await send(`\n${line}`)).error.code, -32600);
  }
  assert.equal(textOf((await send(message("echo", { text: "x\u2028y" }))).result), "x\u2028y");
  // The first call has kept its program.
  child.stdin.end(message("end"));
  const last = [(await lines.next()).value, (await lines.next()).value].map((line) => JSON.parse(line).id);
  assert.deepEqual(last.sort(), ["end", "wait"]);
  assert.deepEqual(await once(child, "close"), [0, null]);
});

test("repeated call starts no second run", { timeout: 60_000 }, async (t) => {
  const child = start(t, [], ["pipe", "pipe", "ignore"]);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const send = async (name, args, _meta) => {
    child.stdin.write(`${JSON.stringify({ id: 1, method: "tools/call", params: { name, arguments: args, _meta } })}\n`);
    const { result, error } = JSON.parse((await lines.next()).value);
    return error?.message ?? textOf(result);
  };
  const book = () => send("book", {}, { "turnwheel/effectId": "a" });
  assert.equal(await book(), "book failed: Error: callback 1");
  // Its work still runs.
  assert.equal(await book(), "book failed: Error: callback 1");
  await send("end_booking", { fails: false });
  assert.equal(await book(), "booked 1");
  // After a failure another attempt may succeed.
  const other = () => send("book", {}, { "turnwheel/effectId": "b" });
  assert.equal(await other(), "book failed: Error: callback 2");
  await send("end_booking", { fails: true });
  assert.equal(await other(), "book failed: Error: callback 3");
});

test("program that serves HTTP keeps its calls", { timeout: 60_000 }, async (t) => {
  const child = start(t, ["--http", "0"], ["ignore", "ignore", "pipe"]);
  const [line] = await once(createInterface({ input: child.stderr }), "line");
  const url = `http://${line.replace("listening on ", "")}/`;
  const post = async (name) => {
    const text = await (await fetch(url, { method: "POST", body: message(name) })).text();
    return JSON.parse(text.replace("data: ", ""));
  };
  for (const name of ["leave", "leave_later", "emit"]) {
    assert.match((await post(name)).error.message, /failed: (Range)?Error$/);
  }
  assert.equal(textOf((await post("reject")).result), "done");
  // The call of the listener has ended.
  assert.equal(textOf((await post("listen")).result), "done");
  child.kill("SIGTERM");
  assert.deepEqual(await once(child, "exit"), [7, null]);
});

test("program that fails outside of its tools ends", { timeout: 60_000 }, async (t) => {
  for (const failure of ['throw new Error("no database")', 'Promise.reject(new Error("no database"))']) {
    const child = start(t, [], ["pipe", "ignore", "pipe"], `tools.run([]); ${failure};`);
    const errors = child.stderr.setEncoding("utf8").toArray();
    assert.deepEqual(await once(child, "close"), [1, null]);
    assert.match((await errors).join(""), /no database/);
  }
});

test("program with a handler of its own goes on after an exception", { timeout: 60_000 }, async (t) => {
  const handler = 'process.on("uncaughtException", () => setTimeout(() => process.exit(3), 10))';
  const child = start(t, [], ["pipe", "ignore", "ignore"], `${handler}; tools.run([]); throw new Error("a fault");`);
  assert.deepEqual(await once(child, "close"), [3, null]);
});
