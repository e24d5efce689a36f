// Purpose: the one place that binds htm to Preact, so that every other module imports its view tools from here.
import { createElement, Fragment, render } from "../vendor/preact.mjs";
import htm from "../vendor/htm.mjs";
import "../vendor/signals.mjs"; // components that read a signal update themselves

export const html = htm.bind(createElement);
export { Fragment, render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.mjs";
export { batch, computed, effect, signal } from "../vendor/signals.mjs";
