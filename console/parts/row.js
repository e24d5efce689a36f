// Purpose: the row of a conversation in a list, with the sentence that says why it waits.
import { cost, dateTime, visible } from "../lib/format.js";
import { html } from "../lib/html.js";
import { conversationHref } from "../lib/router.js";
import { Age, State } from "./basic.js";

/** The sentence of `GET …/why`, with times of the reader's clock and names as code. @param {any} why */
export function whyText(why) {
  const text = visible(why.why).replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, (time) => dateTime(time));
  return text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

/** @param {any} conversation @returns {string} its name, else its first input, else its id */
export function titleOf(conversation) {
  return visible(conversation.name ?? conversation.preview) || conversation.id;
}

/** @param {{item: any}} props */
export function Row({ item }) {
  return html`<li class="row" data-row>
    <a class="row-link" href=${conversationHref(item.id)}>
      <span class="row-main"><span class="row-title"><bdi>${titleOf(item)}</bdi></span>
        <span class="row-sub">${item.why ? whyText({ why: item.why }) : html`<bdi>${visible(item.id)}</bdi>`}</span></span>
      <span class="row-agent">${visible(item.agent)}</span>
      <span class="row-state"><${State} state=${item.state === "idle" && item.prompts?.at(-1)?.state === "failed" ? "failed" : item.state} /></span>
      <span class="row-cost numeric">${cost(item.usage?.cost?.total)}</span>
      <span class="row-age numeric"><${Age} at=${item.updatedAt} /></span>
    </a>
  </li>`;
}
