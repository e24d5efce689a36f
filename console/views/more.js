// Purpose: the views that the bar of a phone has no space for, and the preferences.
import { html } from "../lib/html.js";
import { preferences, setPreferences } from "../lib/state.js";
import { Icon } from "../parts/icon.js";

const LINKS = [
  ["#/", "Start", "start"],
  ["#/new", "New conversation", "plus"],
  ["#/schedules", "Schedules", "schedules"],
  ["#/agents", "Agents", "agents"],
  ["#/memory", "Memory", "memory"],
  ["#/skills", "Skills", "skills"],
  ["#/health", "Health", "health"],
];

export default function More() {
  return html`<section class="page narrow">
    <header class="page-head"><h1>More</h1></header>
    <ul class="rows">${LINKS.map(([href, label, icon]) => html`<li class="row"><a class="row-link one" href=${href}><span><${Icon} name=${icon} /> ${label}</span></a></li>`)}</ul>
    <h2>Preferences</h2>
    <label class="field">Theme<select value=${preferences.value.theme} onChange=${(event) => setPreferences({ theme: event.currentTarget.value })}>
      <option value="auto">Automatic</option><option value="light">Light</option><option value="dark">Dark</option></select></label>
    <label class="check"><input type="checkbox" checked=${preferences.value.enterWhileRunning === "followUp"}
      onChange=${(event) => setPreferences({ enterWhileRunning: event.currentTarget.checked ? "followUp" : "steer" })} /> While a prompt runs, Enter queues instead of steering</label>
  </section>`;
}
