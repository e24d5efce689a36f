// Purpose: the icons of the console, drawn as lines of the text colour. An icon never stands without a text.
import { html } from "../lib/html.js";

const PATHS = {
  start: "M3 10.5 12 3l9 7.5M5.5 9v11h13V9M9.5 20v-6h5v6",
  chats: "M4 5h16v11H9l-5 4z",
  approvals: "M12 3 5 6v5c0 4.6 2.9 8.3 7 10 4.1-1.7 7-5.4 7-10V6zM9 11.8l2.2 2.2L15.2 10",
  schedules: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3.5 2",
  usage: "M4 20V10M10 20V4M16 20v-8M21 20H3",
  agents: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4.5 20.5c1.2-4 4-5.5 7.5-5.5s6.300 1.500 7.500 5.500",
  memory: "M5 4h11l3 3v13H5zM9 9h6M9 13h6M9 17h3",
  skills: "M12 3l2.600 5.600 6 .700-4.500 4.100 1.300 6-5.400-3.100-5.400 3.100 1.300-6L3.400 9.300l6-.700z",
  health: "M3 12h4l2.500-6 4 12 2.500-6h5",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  plus: "M12 5v14M5 12h14",
  tool: "M14.500 6.500a4 4 0 0 1 5-1.200l-2.700 2.700 1.700 1.700 2.700-2.700a4 4 0 0 1-5.700 5L8.300 19.200a1.900 1.900 0 0 1-2.700-2.700l7.200-7.200a4 4 0 0 1 1.700-2.800z",
  model: "M12 3v3M12 18v3M3 12h3M18 12h3M8 8h8v8H8z",
  user: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4.500 20.500c1.200-4 4-5.500 7.500-5.500s6.300 1.500 7.500 5.500",
  check: "M5 12.500l4.500 4.500L19 7.500",
  cross: "M6 6l12 12M18 6 6 18",
  warning: "M12 4 2.800 20h18.400zM12 10v4.500M12 17.200v.1",
  question: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM9.500 9.500a2.500 2.500 0 1 1 3.600 2.200c-.8.500-1.100 1-1.100 1.800M12 16.800v.1",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  send: "M4 12 20 4l-5 16-3.500-6.500z",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  branch: "M7 4v16M7 14c6 0 10-2 10-7M17 7a1.500 1.500 0 1 0 0-3 1.500 1.500 0 0 0 0 3z",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3.500 2",
  restart: "M4 12a8 8 0 1 1 2.500 5.800M4 19v-5h5",
  compact: "M5 4h14M5 20h14M12 7v4M9.500 9 12 11.500 14.500 9M12 17v-4M9.500 15l2.500-2.500 2.500 2.500",
  keyboard: "M3 7h18v10H3zM7 10.500h.01M11 10.500h.01M15 10.500h.01M8 14h8",
  theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
  back: "M15 5l-7 7 7 7",
  down: "M6 9l6 6 6-6",
  edit: "M5 19l1-4L16.500 4.500l3 3L9 18z",
  power: "M12 4v8M7 7a7.500 7.500 0 1 0 10 0",
};

/** @param {{name: keyof typeof PATHS}} props */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;
}
