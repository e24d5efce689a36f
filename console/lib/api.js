// Purpose: requests to the public HTTP API, with problems as values that the page can show.
import { parse, stringify } from "./exact-json.js";
import { viewedUser } from "./router.js";
import { isReadOnly, lostSince, needsSignIn } from "./state.js";

const KEY = "turnwheel.console.key";
/** The function key of this tab; null without one. It never enters a URL or `localStorage`. */
let functionKey = readKey();
/** The last requests, newest first, for the tab Raw. @type {{method: string, path: string, body?: any, status: number, at: number, ms: number}[]} */
export const requestLog = [];

/** A failed request: the members of RFC 9457 as the server sent them. */
export class Problem extends Error {
  /** @param {{status: number, title: string, detail?: string, type?: string, traceId?: string, [member: string]: any}} members */
  constructor(members) {
    super(members.detail ?? members.title);
    this.members = members;
    this.status = members.status;
    /** Last part of the URN, such as `already-decided`. */
    this.name = (members.type ?? "").split(":").pop() ?? "";
  }
}

function readKey() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** @param {string} key @param {boolean} remember in this tab, until it is closed */
export function setKey(key, remember) {
  functionKey = key;
  try {
    if (remember) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage a reload asks for the key again.
  }
}

/** @returns {Record<string, string>} the credential of each request */
export function credentials() {
  return functionKey ? { "x-functions-key": functionKey } : {};
}

/** @returns {string} random text for `Idempotency-Key`; also outside secure contexts */
export function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Record<string, any>} [query] @returns {string} */
export function queryString(query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? `?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}` : "";
}

/**
 * Sends a request below `/api`, or to `/admin`. Rejects with a `Problem`.
 * @param {string} method
 * @param {string} path
 * @param {{query?: Record<string, any>, body?: any, raw?: Blob, headers?: Record<string, string>, signal?: AbortSignal}} [options]
 * @returns {Promise<{status: number, data: any, etag: string | null}>}
 */
export async function send(method, path, options = {}) {
  const { body, raw, headers = {}, signal } = options;
  const query = method === "GET" && path.startsWith("/conversations") ? { ...options.query, ...viewAs() } : options.query;
  const url = `${path.startsWith("/admin") ? "" : "/api"}${path}${queryString(query)}`;
  const started = Date.now();
  const init = { method, signal, headers: { accept: "application/json", ...credentials(), ...headers } };
  if (body !== undefined) {
    init.body = stringify(body);
    init.headers["content-type"] = "application/json";
  } else if (raw) {
    init.body = raw;
    init.headers["content-type"] = raw.type || "application/octet-stream";
  }
  if (method === "POST" || method === "PATCH") init.headers["idempotency-key"] ??= randomKey();
  const response = await sendRepeatedly(url, init);
  log({ method, path: url, body, status: response.status, at: started, ms: Date.now() - started });
  return readResponse(response);
}

/** @returns {{userId?: string}} the query by which an operator reads the conversations of a user */
export function viewAs() {
  const user = viewedUser();
  return isReadOnly() && user ? { userId: user } : {};
}

/** Repeats a request whose response was lost: its key makes a repetition harmless. */
async function sendRepeatedly(url, init) {
  const isRepeatable = init.method !== "GET" && init.headers["idempotency-key"];
  for (let attempt = 0; ; attempt += 1) {
    try {
      const response = await fetch(url, init);
      lostSince.value = null;
      return response;
    } catch (error) {
      if (error?.name === "AbortError") throw error;
      lostSince.value ??= Date.now();
      if (!isRepeatable || attempt === 3) throw lostProblem();
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** attempt));
    }
  }
}

function lostProblem() {
  return new Problem({
    status: 0,
    title: "No response",
    detail: "The server did not respond. Check that `turnwheel dev` runs, or the network.",
  });
}

async function readResponse(response) {
  const text = response.status === 204 ? "" : await response.text();
  let data = null;
  try {
    data = text ? parse(text) : null;
  } catch {
    data = null; // a proxy's page: the status is what counts
  }
  if (response.ok || response.status === 304) {
    return { status: response.status, data, etag: response.headers.get("etag") };
  }
  if (response.status === 401) needsSignIn.value = true;
  const isText = response.headers.get("content-type")?.startsWith("text/plain") && text.length < 500;
  const members = data && typeof data === "object" ? data : isText ? { detail: text.trim() } : {};
  throw new Problem({ title: response.statusText || `HTTP ${response.status}`, ...members, status: response.status });
}

function log(request) {
  requestLog.unshift(request);
  requestLog.length = Math.min(requestLog.length, 100);
}

/** @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] */
export const get = async (path, query, signal) => (await send("GET", path, { query, signal })).data;
/** @param {string} path @param {any} [body] @param {Record<string, string>} [headers] */
export const post = async (path, body = {}, headers = {}) => (await send("POST", path, { body, headers })).data;
/** @param {string} path */
export const remove = async (path) => (await send("DELETE", path)).data;

/** @param {string} id @returns {string} path of a conversation */
export const conversationPath = (id) => `/conversations/${encodeURIComponent(id)}`;

/** Reads all pages of a list, at most `max` items. */
export async function list(path, query = {}, max = 100) {
  const items = [];
  let continuation;
  do {
    const page = await get(path, { limit: 100, ...query, continuation });
    items.push(...page.items);
    continuation = page.continuation;
  } while (continuation && items.length < max);
  return { items, isCut: Boolean(continuation) };
}

/** @param {{method: string, path: string, body?: any}} request @returns {string} the request as a shell command, without credentials */
export function curl({ method, path, body }) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const parts = ["curl -sS", method === "GET" ? "" : `-X ${method}`, quote(`${location.origin}${path}`)];
  if (body !== undefined) parts.push(`-H 'content-type: application/json' -d ${quote(stringify(body))}`);
  return parts.filter(Boolean).join(" ");
}
