// Purpose: the view that the fragment of the address selects.
import { signal } from "./html.js";

/** @typedef {{view: string, id?: string, tab?: string, query: URLSearchParams}} Route */

/** @returns {Route} */
function parse() {
  const [path = "", query = ""] = location.hash.replace(/^#/, "").split("?");
  const [view = "", id, tab] = path.split("/").filter(Boolean).map(decode);
  return { view: view || "start", id, tab, query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal(parse());
addEventListener("hashchange", () => (route.value = parse()));

/** @param {string} path such as `/c/ID` */
export function go(path) {
  location.hash = path;
}

/**
 * Address of a conversation. The user whose data an operator reads stays in the address.
 * @param {string} id
 * @param {string} [tab]
 * @param {Record<string, string | null | undefined>} [query]
 */
export function conversationHref(id, tab, query = {}) {
  const all = Object.entries({ user: viewedUser(), ...query }).filter(([, value]) => value);
  const text = all.length ? `?${new URLSearchParams(/** @type {string[][]} */ (all))}` : "";
  return `#/c/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}${text}`;
}

/** @returns {string | null} the user whose conversations an operator reads */
export function viewedUser() {
  return route.value.query.get("user");
}

/** Changes the query of the address without a new entry in the browser's history. */
export function setQuery(changes) {
  const { view, id, tab, query } = route.value;
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const path = [view === "start" ? "" : view, id, tab].filter(Boolean).map(encodeURIComponent).join("/");
  history.replaceState(null, "", `#/${path}${next.size ? `?${next}` : ""}`);
  route.value = parse();
}
