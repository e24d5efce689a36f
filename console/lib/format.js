// Purpose: numbers, times and untrusted text as the console shows them.
import { isStructure, stringify } from "./exact-json.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Directional overrides and isolates: they could show an argument in another order than the tool receives it. */
const DIRECTION_MARKS = /[\u061c\u202a-\u202e\u2066-\u2069]/g;
/** Control characters except newline and tab, also the escape character of terminals; and invisible separators. */
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u2028\u2029\ufeff]/g;

/**
 * Untrusted text with its invisible characters made visible. Everything from users, models, tools and file names
 * passes through here before it becomes a text node.
 * @param {unknown} value
 * @returns {string}
 */
export function visible(value) {
  const text = typeof value === "string" ? value : value === undefined || value === null ? "" : String(value);
  return text.replace(/\r\n/g, "\n").replace(DIRECTION_MARKS, mark).replace(CONTROLS, mark);
}

function mark(character) {
  const code = character.codePointAt(0);
  if (code === 0x1b) return "␛";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `⟦U+${code.toString(16).toUpperCase().padStart(4, "0")}⟧`;
}

/** @param {unknown} value @returns {string} JSON with two spaces and each digit; undefined gives an empty text */
export function json(value) {
  return value === undefined ? "" : stringify(value, 2);
}

const COMPARISONS = { exclusiveMinimum: ">", minimum: "≥", exclusiveMaximum: "<", maximum: "≤", const: "=" };

/** @param {any} schema of arguments @returns {string} such as `amount > 100`; empty if the schema is not so simple and short */
export function conditionText(schema) {
  const { properties, required, ...others } = schema ?? {};
  const parts = Object.entries(properties ?? {}).map(([name, rules]) => {
    const [[word, value] = [], ...more] = Object.entries(rules ?? {});
    return more.length === 0 && COMPARISONS[word] && value !== null && !isStructure(value) ? `${name} ${COMPARISONS[word]} ${value}` : "";
  });
  const text = parts.join(" and ");
  return Object.keys(others).length === 0 && parts.every(Boolean) && text.length <= 40 ? text : "";
}

/** @param {string | number | undefined} time @returns {number} Unix milliseconds, NaN if absent */
export function millis(time) {
  return typeof time === "number" ? time : Date.parse(time ?? "");
}

/** @param {string | number | undefined} time @returns {string} local time of day with seconds */
export function clock(time) {
  const at = millis(time);
  return Number.isNaN(at) ? "" : new Date(at).toLocaleTimeString([], { hour12: false });
}

/** @param {string | number | undefined} time @returns {string} local time of day with milliseconds */
export function preciseClock(time) {
  const at = millis(time);
  return Number.isNaN(at) ? "" : `${clock(at)}.${String(new Date(at).getMilliseconds()).padStart(3, "0")}`;
}

/** @param {string | number | undefined} time @returns {string} local date and time without seconds */
export function dateTime(time) {
  const at = millis(time);
  if (Number.isNaN(at)) return "";
  return new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

/** @param {number} ms @returns {string} at most two units: `2 d 4 h`, `3 min`, `640 ms` */
export function duration(ms) {
  if (!Number.isFinite(ms) || ms < 0) return "";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${(ms / 1_000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < HOUR) return pair(ms, MINUTE, "min", 1_000, "s");
  if (ms < DAY) return pair(ms, HOUR, "h", MINUTE, "min");
  return pair(ms, DAY, "d", HOUR, "h");
}

function pair(ms, large, largeName, small, smallName) {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** @param {string | number | undefined} time @param {number} [now] @returns {string} `now`, `5 min ago`, `in 3 h` */
export function age(time, now = Date.now()) {
  const at = millis(time);
  if (Number.isNaN(at)) return "";
  const ms = Math.abs(now - at);
  if (ms < 10_000) return "now";
  const [size, name] = ms < MINUTE ? [1_000, "s"] : ms < HOUR ? [MINUTE, "min"] : ms < DAY ? [HOUR, "h"] : [DAY, "d"];
  const text = `${Math.floor(ms / size)} ${name}`;
  return at > now ? `in ${text}` : `${text} ago`;
}

/** @param {number | undefined} usd @returns {string} */
export function cost(usd) {
  if (!usd) return "$0";
  return usd >= 1 ? `$${usd.toFixed(2)}` : `$${usd.toPrecision(2)}`;
}

/** @param {number | undefined} count @returns {string} `960`, `1.4k`, `2.1M` */
export function tokens(count) {
  const value = count ?? 0;
  if (value < 1_000) return String(value);
  if (value < 1_000_000) return `${(value / 1_000).toFixed(value < 10_000 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

/** @param {number | undefined} count @returns {string} */
export function bytes(count) {
  const value = count ?? 0;
  if (value < 1_024) return `${value} B`;
  if (value < 1_048_576) return `${(value / 1_024).toFixed(value < 10_240 ? 1 : 0)} KB`;
  return `${(value / 1_048_576).toFixed(1)} MB`;
}

/** @param {unknown} content a text or blocks @returns {string} the text of the content */
export function contentText(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.filter((block) => block?.type === "text").map((block) => block.text).join("\n");
}

/** @param {number} count @param {string} one @param {string} [many] @returns {string} */
export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/** @param {string} text @param {number} max @returns {string} */
export function shorten(text, max) {
  return text.length > max ? `${text.slice(0, max - 1)}…` : text;
}
