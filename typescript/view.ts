// Compiled by a test against the types of examples/clients/turnwheel.mjs.
import { decide, emptyView, events, reduce, startPrompt } from "./turnwheel.mjs";
import type { Api, TurnwheelEvent, View } from "./turnwheel.mjs";

const api: Api = { base: "http://127.0.0.1:7071", headers: { "x-functions-key": "key" } };

/** As React calls it: `useReducer(reduce, undefined, emptyView)`. */
type Reducer = (view: View, event: TurnwheelEvent) => View;
const reducer: Reducer = reduce;

export async function run(draw: (view: View) => void): Promise<string[]> {
  const { conversationId, lastEventId } = await startPrompt(api, { input: "Pay 40 to Ada", key: "order-4711" });
  let view = emptyView();
  for await (const event of events(api, conversationId, { after: lastEventId })) {
    view = reducer(view, event);
    draw(view);
    for (const approval of view.approvals.values()) await decide(api, approval, "reject");
  }
  // @ts-expect-error: a view is never changed.
  view.isRunning = true;
  // @ts-expect-error: nor are its maps.
  view.messages.clear();
  return [...view.inputs.values()].map((input) => input.inputId);
}
