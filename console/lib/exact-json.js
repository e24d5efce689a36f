// Purpose: JSON whose numbers keep each digit, also those with more digits than a JavaScript number has.
// `JSON.rawJSON` and the source text of revivers do the same, and are not in all browsers yet.

/** Begins each text that stands for JSON. It is random, so that no text of others begins with it. */
const MARK = `${[...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}:`;
const INSERTED = new RegExp(`"${MARK}(\\d+)"`, "g");
/** True if the JSON may have a number that JavaScript changes: one with over 15 digits, or an exponent. */
const MAY_HAVE_LONG_NUMBER = /(?:^|[\s:,[])-?\d(?:[\d.]{15}|[\d.]*[eE])/;
const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const PARTS = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/;

/** The texts that the running `stringify` inserts; null outside of it. @type {string[] | null} */
let inserted = null;

/** A number of JSON that no JavaScript number equals. Its text has each digit; calculations use the nearest number. */
export class ExactNumber extends Number {
  #text;

  /** @param {string} text a JSON number */
  constructor(text) {
    super(text);
    this.#text = text;
  }

  toString() {
    return this.#text;
  }

  toJSON() {
    return insert(this.#text) ?? Number(this);
  }
}

/** JSON that `stringify` writes as it is. */
export class RawJson {
  #text;

  /** @param {string} text valid JSON */
  constructor(text) {
    this.#text = text;
  }

  toJSON() {
    return insert(this.#text) ?? JSON.parse(this.#text);
  }
}

function insert(text) {
  return inserted && `${MARK}${inserted.push(text) - 1}`;
}

/** @param {string} text typed by a user @returns {RawJson | string} JSON as it was typed; a string if it is no JSON */
export function typedValue(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return new RawJson(text.trim());
}

/** @param {any} value from `parse` @returns {boolean} true for a list or an object of JSON */
export function isStructure(value) {
  return value !== null && typeof value === "object" && !(value instanceof ExactNumber);
}

/**
 * As `JSON.stringify`, with the text of each `ExactNumber` and `RawJson`.
 * @param {any} value
 * @param {number} [space]
 * @returns {string}
 */
export function stringify(value, space) {
  inserted = [];
  try {
    const json = JSON.stringify(value, null, space);
    const texts = inserted;
    return texts.length ? json.replace(INSERTED, (_, index) => texts[index]) : json;
  } finally {
    inserted = null;
  }
}

/**
 * As `JSON.parse`. A number that no JavaScript number equals becomes an `ExactNumber`.
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  const value = JSON.parse(text);
  if (!MAY_HAVE_LONG_NUMBER.test(text)) return value;
  const marked = markLongNumbers(text);
  return marked === text ? value : JSON.parse(marked, (_, member) => (isMarked(member) ? new ExactNumber(member.slice(MARK.length)) : member));
}

const isMarked = (value) => typeof value === "string" && value.startsWith(MARK);

/** @param {string} text valid JSON @returns {string} with a marked text in place of each long number */
function markLongNumbers(text) {
  const token = /["\-\d]/g;
  const pieces = [];
  let copied = 0;
  for (let found = token.exec(text); found; found = token.exec(text)) {
    if (found[0] === '"') {
      token.lastIndex = endOfString(text, found.index);
      continue;
    }
    NUMBER.lastIndex = found.index;
    const [number] = NUMBER.exec(text);
    token.lastIndex = NUMBER.lastIndex;
    if (isLong(number)) {
      pieces.push(text.slice(copied, found.index), `"${MARK}${number}"`);
      copied = token.lastIndex;
    }
  }
  return pieces.length ? pieces.join("") + text.slice(copied) : text;
}

function endOfString(text, start) {
  let end = text.indexOf('"', start + 1);
  while (isEscaped(text, end)) end = text.indexOf('"', end + 1);
  return end + 1;
}

function isEscaped(text, at) {
  let first = at;
  while (text[first - 1] === "\\") first -= 1;
  return (at - first) % 2 === 1;
}

/** True if no JavaScript number equals this one. Those with at most 15 digits and no exponent have one. */
function isLong(number) {
  return (number.length > 15 || /e/i.test(number)) && normalText(number) !== normalText(String(Number(number)));
}

/** One text for equal numbers: sign, digits without zeros at both ends, exponent. */
function normalText(number) {
  const [, sign, whole, fraction = "", power = "0"] = PARTS.exec(number) ?? [];
  if (whole === undefined) return number; // Infinity
  const all = whole + fraction;
  const digits = all.replace(/^0+/, "");
  let end = digits.length;
  while (digits[end - 1] === "0") end -= 1;
  return end ? `${sign}${digits.slice(0, end)}e${Number(power) + whole.length - (all.length - digits.length)}` : "0";
}
