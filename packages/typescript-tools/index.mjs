// Tools for Turnwheel agents: functions that a durable agent calls over MCP.
import { AsyncLocalStorage } from "node:async_hooks";
import { timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const EFFECTS = ["read", "idempotent", "write"];
/** Results that are kept for repeated calls. */
const RESULTS_MAX = 1_000;
/** Time for calls under way after the end of the standard input. */
const END_MS = 30_000;
const BODY_BYTES_MAX = 5_000_000;

/** The call whose tool runs, as the function that rejects it. */
const runningCall = new AsyncLocalStorage();
/** Calls without a result. */
let openCalls = 0;
let isProcessKept = false;

/** An error result: the model reads its text. Throw it if the call had no effect. */
export class ToolError extends Error {}

class RpcError extends Error {
  constructor(code, text) {
    super(text);
    this.code = code;
  }
}

/** The tools of a program. */
export class Tools {
  #tools = new Map();
  /** Results of calls by tool and effect id: promises. */
  #results = new Map();

  constructor({ name = "tools", version = "0" } = {}) {
    this.name = name;
    this.version = version;
    /** True if the model may read the texts of exceptions. */
    this.showsExceptions = false;
  }

  /** Makes a function a tool. */
  tool(options) {
    const { name, effect = "write", approval } = options;
    if (!EFFECTS.includes(effect)) throw new TypeError(`effect is one of ${EFFECTS.join(", ")}`);
    const isRule = approval === undefined || approval === false || approval === true || approval === "always";
    if (!isRule && (typeof approval !== "object" || approval === null)) {
      throw new TypeError('approval is "always" or an object with `when` and `reason`');
    }
    if (this.#tools.has(name)) throw new TypeError(`there are two tools ${name}`);
    this.#tools.set(name, { ...options, effect, definition: define({ ...options, effect }) });
    return this;
  }

  get definitions() {
    return [...this.#tools.values()].map((tool) => tool.definition);
  }

  /** Serves the tools: on standard input and output, or with `--http [HOST:]PORT` over HTTP. */
  async run(args = process.argv.slice(2)) {
    const port = process.env.FUNCTIONS_CUSTOMHANDLER_PORT;
    if (args[0] === "--http" && args.length === 2) {
      const [, host, given] = /^(?:(.*):)?(\d+)$/.exec(args[1]) ?? [];
      if (given === undefined) throw new TypeError("--http is followed by [HOST:]PORT");
      await serveHttp(this, host || "127.0.0.1", Number(given), false);
    } else if (port && args.length === 0) {
      await serveHttp(this, "127.0.0.1", Number(port), true);
    } else if (args.length > 0) {
      throw new TypeError("without arguments: standard input and output; --http [HOST:]PORT: HTTP");
    } else {
      await serveStdio(this);
    }
  }

  /** The result of a call, as MCP has it. A repeated call has the result of the first one. */
  async call(name, given, call) {
    const tool = this.#tools.get(name);
    if (!tool) throw new RpcError(-32602, `there is no tool ${name}`);
    const checked = await tool.parameters?.["~standard"]?.validate(given);
    if (checked?.issues) {
      const reasons = checked.issues.map(({ path, message }) => `${pathText(path)}: ${message}`);
      return textResult(`Validation failed: ${reasons.join("; ")}`, true);
    }
    const args = checked ? checked.value : given;
    const isKept = tool.effect !== "read" && call.effectId !== undefined;
    const key = isKept ? JSON.stringify([name, call.effectId]) : undefined;
    const earlier = this.#results.get(key);
    if (earlier) return earlier.promise;
    const { work, result } = runTool(tool, args, call);
    const promise = this.#convertFailure(tool, result, call);
    if (key === undefined) return promise;
    const entry = { isDone: false, promise };
    this.#results.set(key, entry);
    // Until the work ends, a repeated call has the first result, also if an exception in a callback has failed the first call.
    work.then(
      ({ isError }) => {
        // Another attempt may succeed.
        if (isError) this.#results.delete(key);
        else entry.promise = work;
      },
      () => this.#results.delete(key),
    );
    try {
      return await promise;
    } finally {
      entry.isDone = true;
      for (const [old, { isDone }] of this.#results) {
        if (this.#results.size <= RESULTS_MAX || !isDone) break;
        this.#results.delete(old);
      }
    }
  }

  async #convertFailure(tool, result, call) {
    try {
      return await result;
    } catch (error) {
      if (error instanceof ToolError) return textResult(String(error.message), true);
      if (call.signal.aborted) throw new RpcError(-32800, "the call was cancelled");
      logError(error);
      // The caller must know that the work may be half done.
      throw new RpcError(-32603, `${tool.name} failed: ${describe(error, this.showsExceptions)}`);
    }
  }
}

/** Runs a tool: its work, and the result of its call, which also ends by an exception or an exit in a callback. */
function runTool(tool, args, call) {
  let work;
  const running = { isOpen: true };
  const result = new Promise((resolve, reject) => {
    running.fail = reject;
    work = runningCall.run(running, async () => convertResult(await tool.run(args, call)));
    work.then(resolve, reject);
  });
  openCalls += 1;
  const close = () => {
    openCalls -= 1;
    running.isOpen = false;
  };
  result.then(close, close);
  return { work, result };
}

/** Lets no tool end the process, because all open calls would lose their responses. */
function keepProcess() {
  if (isProcessKept) return;
  isProcessKept = true;
  const exit = process.exit.bind(process);
  process.exit = (code) => {
    // A listener of a signal that a tool has added runs in the context of its call, which has ended.
    if (runningCall.getStore()?.isOpen) throw new Error(`process.exit(${code ?? ""})`);
    exit(code);
  };
  // A program that fails outside of its tools ends, unless it has a handler of its own or calls would lose their responses.
  const log = (event, error) => {
    logError(error);
    const isOurs = process.listenerCount(event) === 1;
    if (isOurs && !runningCall.getStore() && openCalls === 0) exit(1);
  };
  process.on("unhandledRejection", (error) => log("unhandledRejection", error));
  process.on("uncaughtException", (error) => {
    log("uncaughtException", error);
    runningCall.getStore()?.fail(error);
  });
}

function logError(error) {
  try {
    console.error(error);
  } catch {
    console.error("an exception without a text");
  }
}

/** The text of a thrown value. Each value can be thrown, also one whose members throw. */
function describe(error, showsText) {
  try {
    const name = String(error?.name ?? "an exception");
    return showsText ? `${name}: ${error?.message ?? error}` : name;
  } catch {
    return "an exception";
  }
}

function define({ name, title, description, parameters, effect, approval }) {
  const definition = {
    name,
    description: description ?? "",
    inputSchema: schemaOf(parameters),
    annotations: { readOnlyHint: effect === "read", idempotentHint: effect !== "write" },
  };
  if (title) definition.title = title;
  if (approval) definition._meta = { "turnwheel/approval": approval };
  return definition;
}

/** The JSON Schema of parameters: of a schema library such as zod, or as it is. */
function schemaOf(parameters) {
  if (parameters === undefined) return { type: "object", properties: {}, additionalProperties: false };
  const standard = parameters["~standard"];
  if (!standard) return parameters;
  if (!standard.jsonSchema) throw new TypeError(`${standard.vendor} gives no JSON Schema: use zod 4.2 or newer`);
  const { $schema: _, ...schema } = standard.jsonSchema.input({ target: "draft-2020-12" });
  return schema;
}

function pathText(path = []) {
  return path.map((part) => (typeof part === "object" ? part.key : part)).join(".") || "arguments";
}

function convertResult(value) {
  const text = toJson(value);
  // JSON has no functions and no symbols.
  if (text === undefined || value === null) return textResult("", false);
  if (typeof value === "string") return textResult(value, false);
  const data = JSON.parse(text);
  if (Array.isArray(data?.content) && data.content.every((block) => typeof block?.type === "string")) {
    return { isError: false, ...data };
  }
  const isObject = typeof data === "object" && data !== null && !Array.isArray(data);
  return isObject ? { ...textResult(text, false), structuredContent: data } : textResult(text, false);
}

/** Strict JSON: U+FFFD in place of lone surrogates, and a BigInt as a number if JavaScript has that number, otherwise as a string. */
function toJson(value) {
  const convert = (_, member) => {
    if (typeof member !== "bigint") return member;
    return Number.isSafeInteger(Number(member)) ? Number(member) : String(member);
  };
  const text = JSON.stringify(value, convert);
  return text?.replace(/\\(?:\\|ud[89a-f][0-9a-f]{2})/g, (escape) => (escape === "\\\\" ? escape : "\ufffd"));
}

function textResult(text, isError) {
  return { content: text ? [{ type: "text", text }] : [], isError };
}

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

/** A message, and the first number in it that JavaScript has rounded. */
function parse(text) {
  const message = JSON.parse(text);
  if (typeof message !== "object" || message === null || Array.isArray(message)) throw new TypeError("a message is an object");
  const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g) ?? [];
  const isRounded = (token) => token[0] !== '"' && normalText(token) !== normalText(String(Number(token)));
  return { message, rounded: tokens.find(isRounded) };
}

/** The response to a request. A call with a rounded number would have other arguments than the approved ones. */
async function respond(tools, { message, rounded }, call) {
  const response = { jsonrpc: "2.0", id: message.id };
  try {
    if (rounded && message.method === "tools/call") {
      const reason = `JavaScript would round ${rounded.slice(0, 100)}: send at most 15 digits if that is the value meant; otherwise the tool's parameter must be a string`;
      return { ...response, result: textResult(`Validation failed: ${reason}`, true) };
    }
    return { ...response, result: await resultOf(tools, message.method, message.params ?? {}, call) };
  } catch (error) {
    const isKnown = error instanceof RpcError;
    const text = isKnown ? error.message : describe(error, tools.showsExceptions);
    return { ...response, error: { code: isKnown ? error.code : -32603, message: text } };
  }
}

function resultOf(tools, method, params, call) {
  switch (method) {
    case "initialize":
      return {
        protocolVersion: params.protocolVersion ?? "2025-06-18",
        capabilities: { tools: {} },
        serverInfo: { name: tools.name, version: tools.version },
      };
    case "ping":
      return {};
    case "tools/list":
      return { tools: tools.definitions };
    case "tools/call":
      return tools.call(params.name, params.arguments ?? {}, call);
    default:
      throw new RpcError(-32601, `there is no method ${method}`);
  }
}

function newCall(message, send) {
  const meta = message.params?._meta ?? {};
  const controller = new AbortController();
  let count = 0;
  const progress = (text, progress, total) => {
    if (meta.progressToken === undefined) return;
    const params = { progressToken: meta.progressToken, progress: progress ?? ++count, total, message: text };
    send({ jsonrpc: "2.0", method: "notifications/progress", params });
  };
  const call = { effectId: meta["turnwheel/effectId"], signal: controller.signal, progress };
  return { call, cancel: () => controller.abort() };
}

async function serveStdio(tools) {
  // A program that a tool starts must not end the group of this one.
  const hasOwnGroup = process.env.TURNWHEEL_TOOLS_OWN_GROUP !== undefined && process.platform !== "win32";
  delete process.env.TURNWHEEL_TOOLS_OWN_GROUP;
  tools.showsExceptions = true;
  const output = process.stdout;
  const write = output.write.bind(output);
  // Prints of the tools are no messages, and no tool ends the output.
  output.write = process.stderr.write.bind(process.stderr);
  output.end = output.destroy = () => output;
  // The caller has ended: it knows that the outcome is unknown.
  output.on("error", () => {});
  keepProcess();
  const send = (message) => write(`${toJson(message)}\n`);
  const running = new Map();
  const promises = new Set();
  const accept = (parsed) => {
    const { message } = parsed;
    if (message.method === "notifications/cancelled") {
      running.get(message.params?.requestId)?.cancel();
    } else if (message.id !== undefined && message.method !== undefined) {
      const { call, cancel } = newCall(message, send);
      running.set(message.id, { cancel });
      const promise = respond(tools, parsed, call).then((response) => {
        running.delete(message.id);
        promises.delete(promise);
        send(response);
      });
      promises.add(promise);
    }
  };
  for await (const line of linesOf(process.stdin)) {
    let parsed;
    try {
      parsed = parse(line);
    } catch (error) {
      // A message that cannot be read ends no other call.
      send({ jsonrpc: "2.0", id: null, error: { code: -32600, message: `the message cannot be read: ${error.name}` } });
      continue;
    }
    accept(parsed);
  }
  await Promise.race([Promise.all(promises), new Promise((resolve) => setTimeout(resolve, END_MS))]);
  if (hasOwnGroup) {
    // Ends the processes that tools have started.
    process.on("SIGTERM", () => {});
    process.kill(0, "SIGTERM");
  }
  process.exit(0);
}

/** Lines that are not blank. `node:readline` also splits them at U+2028, which JSON may contain. */
async function* linesOf(input) {
  let rest = "";
  for await (const chunk of input.setEncoding("utf8")) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop();
    yield* lines.filter((line) => line.trim());
  }
  if (rest.trim()) yield rest;
}

async function serveHttp(tools, host, port, isBehindHost) {
  const token = process.env.TURNWHEEL_TOOLS_TOKEN ?? "";
  if (!token && !isBehindHost && !["127.0.0.1", "::1", "localhost"].includes(host)) {
    throw new Error("set TURNWHEEL_TOOLS_TOKEN: other machines reach this address");
  }
  const server = httpServer(tools, { token, needsPrincipal: isBehindHost && !token });
  await new Promise((resolve, reject) => server.on("error", reject).listen(port, host, resolve));
  keepProcess();
  console.error(`listening on ${host}:${server.address().port}`);
  await new Promise((resolve) => server.on("close", resolve));
}

/** An HTTP server with the tools, for a program that listens itself. */
export function httpServer(tools, { token = "", needsPrincipal = false } = {}) {
  const isAllowed = ({ headers }) => {
    if (token) {
      const [given, expected] = [headers.authorization ?? "", `Bearer ${token}`].map((text) => Buffer.from(text));
      return given.length === expected.length && timingSafeEqual(given, expected);
    }
    // App Service has checked the token of Entra, and sets this header.
    return !needsPrincipal || Boolean(headers["x-ms-client-principal-id"]);
  };
  return createServer(async (request, response) => {
    const end = (status, body = "") => response.writeHead(status, { "content-type": "application/json" }).end(body);
    if (!isAllowed(request)) return end(401);
    if (request.headers.origin) return end(403);
    if (request.method !== "POST") return end(405);
    const parsed = await readMessage(request);
    if (typeof parsed === "number") return end(parsed);
    const { message } = parsed;
    if (message.id === undefined || message.method === undefined) return end(202);
    if (message.method !== "tools/call") {
      return end(200, toJson(await respond(tools, parsed, newCall(message, () => {}).call)));
    }
    response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    const send = (event) => response.write(`data: ${toJson(event)}\n\n`);
    const { call, cancel } = newCall(message, send);
    // The caller does not wait any more.
    response.on("close", () => response.writableEnded || cancel());
    send(await respond(tools, parsed, call));
    response.end();
  });
}

/** The parsed message of a request, or the status of the refusal. */
async function readMessage(request) {
  const chunks = [];
  let size = 0;
  try {
    for await (const chunk of request) {
      size += chunk.length;
      if (size > BODY_BYTES_MAX) return 413;
      chunks.push(chunk);
    }
    return parse(Buffer.concat(chunks).toString("utf8"));
  } catch {
    return 400;
  }
}
