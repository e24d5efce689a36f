// Purpose: the keys of the console. Single keys work outside of fields only, and can be switched off.
import { go } from "./router.js";
import { copy, dialog, preferences } from "./state.js";

export const KEYS = [
  ["?", "List of keys"],
  ["g then s, c, a, u, h", "Go to Start, Conversations, Approvals, Usage, Health"],
  ["n", "New conversation"],
  ["/", "Search in this view"],
  ["c", "Write an input"],
  ["j, k", "Next, previous row"],
  ["[, ]", "Previous, next problem in the timeline"],
  ["o", "Show or hide the detail panel"],
  ["y", "Copy the id of the conversation or entry"],
  ["Enter", "Send; while a prompt runs: steer"],
  ["Ctrl or ⌘ Enter", "Queue a prompt"],
  ["Ctrl or ⌘ .", "Abort the running prompt, after a question"],
  ["↑ in an empty field", "Edit the last queued input"],
  ["Esc", "Close, leave the field; it never aborts"],
];

const GO = { s: "/", c: "/c", a: "/approvals", u: "/usage", h: "/health" };
let actions = {};
let isGoing = false;

/**
 * Actions of the current view, by name: `abort`, `copy`, `next`, `previous`, `nextProblem`, `previousProblem`, `detail`.
 * @param {Record<string, () => any>} more
 * @returns {() => void} removes them
 */
export function setKeyActions(more) {
  actions = { ...actions, ...more };
  return () => {
    for (const [name, action] of Object.entries(more)) if (actions[name] === action) delete actions[name];
  };
}

/**
 * True for a key of an input method, such as Enter that confirms a candidate. Safari ends the composition before it
 * sends that Enter, with the key code 229.
 * @param {KeyboardEvent} event
 */
export function isOfInputMethod(event) {
  return event.isComposing || event.keyCode === 229;
}

/** @param {() => void} showKeys */
export function listenToKeys(showKeys) {
  addEventListener("keydown", (event) => {
    if (isOfInputMethod(event)) return;
    if ((event.ctrlKey || event.metaKey) && event.key === ".") {
      event.preventDefault();
      actions.abort?.();
      return;
    }
    if (!isPlainKey(event)) return;
    const action = isGoing ? goTo(event.key) : singleKey(event.key, showKeys);
    isGoing = false;
    if (action) {
      event.preventDefault();
      action();
    } else if (event.key === "g") {
      isGoing = true;
      setTimeout(() => (isGoing = false), 1_500);
    }
  });
}

function isPlainKey(event) {
  if (!preferences.value.singleKeys || event.ctrlKey || event.metaKey || event.altKey || dialog.value) return false;
  const target = event.target;
  return !(target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select")));
}

function goTo(key) {
  return GO[key] ? () => go(GO[key]) : null;
}

function singleKey(key, showKeys) {
  /** @param {string} selector */
  const focus = (selector) => () => /** @type {HTMLElement | null} */ (document.querySelector(selector))?.focus();
  const keys = {
    "?": showKeys,
    n: () => go("/new"),
    "/": focus("[data-search]"),
    c: focus("#composer-field"),
    j: actions.next ?? (() => moveRow(1)),
    k: actions.previous ?? (() => moveRow(-1)),
    "]": actions.nextProblem,
    "[": actions.previousProblem,
    o: actions.detail,
    y: actions.copy && (() => copy(actions.copy())),
  };
  return keys[key] ?? null;
}

/** Moves the focus among the rows of the view. */
function moveRow(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const current = rows.indexOf(document.activeElement?.closest("[data-row]"));
  const next = rows[Math.max(0, Math.min(rows.length - 1, current + step))];
  const target = /** @type {HTMLElement | undefined} */ (next?.querySelector("a, button") ?? next);
  target?.focus();
}
