// Purpose: state of the whole page: the caller, preferences, connection, announcements, dialogs.
import { signal } from "./html.js";

/** The caller, from `GET /me`; null before the first response. @type {{value: any}} */
export const me = signal(null);
/** The problem of `GET /me`, if it failed. */
export const meProblem = signal(null);
/** Undecided approval requests that the caller may decide; null before the first response. */
export const approvalCount = signal(null);
/** Time of the first request without a response since the last response, or null. */
export const lostSince = signal(null);
/** True after the server began to serve another build of the page. */
export const isOutdated = signal(false);
/** The dialog on top of the page: a function that returns its content, or null. */
export const dialog = signal(null);
/** The text that screen readers announce. */
export const announcement = signal("");
/** True while a 401 waits for the user to sign in. */
export const needsSignIn = signal(false);
/** Short message at the bottom of the page, such as "Copied". */
export const toast = signal("");

const PREFERENCES = "turnwheel.console.preferences";
const DEFAULTS = { theme: "auto", singleKeys: true, enterWhileRunning: "steer", detailed: false, showDetail: true };

export const preferences = signal(readPreferences());

function readPreferences() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(PREFERENCES) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

/** @param {Partial<typeof DEFAULTS>} changes */
export function setPreferences(changes) {
  preferences.value = { ...preferences.value, ...changes };
  try {
    localStorage.setItem(PREFERENCES, JSON.stringify(preferences.value));
  } catch {
    // Storage may be disabled; the preference then lasts until the page is closed.
  }
  applyTheme();
}

export function applyTheme() {
  const { theme } = preferences.value;
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
}

/** Time of each text: a screen reader does not read one that is replaced at once. */
const ANNOUNCEMENT_MS = 1_000;
const ANNOUNCEMENTS_MAX = 5;
/** Texts to announce, the present one first. If there are too many, the one that waits longest is dropped. */
const announcements = [];

/** @param {string} text announced after the present one, also if it equals an earlier one */
export function announce(text) {
  if (announcements.at(-1) === text) return;
  announcements.push(text);
  if (announcements.length > ANNOUNCEMENTS_MAX) announcements.splice(1, 1);
  if (announcements.length === 1) showAnnouncement();
}

function showAnnouncement() {
  announcement.value = "";
  setTimeout(() => (announcement.value = announcements[0]), 50);
  setTimeout(() => {
    announcements.shift();
    if (announcements.length) showAnnouncement();
  }, ANNOUNCEMENT_MS);
}

let toastTimer;
/** @param {string} text */
export function showToast(text) {
  toast.value = text;
  announce(text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (toast.value = ""), 2_500);
}

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    showToast("Copied");
  } catch {
    showToast("The browser refused access to the clipboard");
  }
}

/** True if the page may not change anything: an operator without another role. */
export function isReadOnly() {
  return me.value?.isOperator === true;
}

/** True if `turnwheel dev` on this machine serves the page. */
export function isLocal() {
  return me.value?.isDev || ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);
}

/** @param {"kill" | "doctor"} name @returns {boolean} true if this server has the route */
export function hasFeature(name) {
  return (me.value?.features ?? []).includes(name);
}

/** Milliseconds between two reads of a list: each read in Azure costs store requests. */
export function pollInterval() {
  return isLocal() ? 5_000 : 15_000;
}
