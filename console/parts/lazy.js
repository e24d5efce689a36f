// Purpose: a view whose module loads when it is first shown.
import { html, useEffect, useState } from "../lib/html.js";
import { Loading, ProblemNote } from "./basic.js";

/** @param {{load: () => Promise<{default: any}>, props?: any}} props keyed by the view */
export function Lazy({ load, props = {} }) {
  const [view, setView] = useState(null);
  const [error, setError] = useState(null);
  const start = () => load().then((module) => setView(() => module.default), setError);
  useEffect(() => void start(), []);
  if (error) return html`<${ProblemNote} error=${{ members: { title: "This view did not load", detail: String(error.message) } }} onRetry=${() => (setError(null), start())} />`;
  if (!view) return html`<${Loading} />`;
  const View = view;
  return html`<${View} ...${props} />`;
}
