// Tools of a shop: orders and refunds.
import { Tools, ToolError } from "@turnwheel/tools";
import { z } from "zod";

const orders = new Map([["o-1", 40], ["o-2", 250]]);
const tools = new Tools({ name: "shop" });

tools.tool({
  name: "get_order",
  description: "Returns an order with its amount.",
  parameters: z.object({ order: z.string().describe("Number of the order, such as o-1") }),
  effect: "read",
  run({ order }) {
    if (!orders.has(order)) throw new ToolError(`There is no order ${order}.`);
    return { order, amount: orders.get(order) };
  },
});

tools.tool({
  name: "refund",
  description: "Refunds a part of an order.",
  parameters: z.object({ order: z.string(), amount: z.int() }),
  approval: {
    when: { properties: { amount: { exclusiveMinimum: 100 } } },
    reason: "Refunds above 100 need an approval.",
  },
  run({ order, amount }, call) {
    if (amount > (orders.get(order) ?? 0)) throw new ToolError("The order has a lower amount.");
    call.progress("writing to the bank");
    // The bank repeats nothing that has the key already.
    return `Refunded ${amount} of ${order}, receipt ${call.effectId}.`;
  },
});

await tools.run();
