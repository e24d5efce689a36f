// Tools of a test: payments are lines of a file, and wait while another file exists.
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { Tools } from "@turnwheel/tools";
import { z } from "zod";

const tools = new Tools({ name: "shop" });
const log = (line) => appendFileSync("payments.txt", `${line}\n`);

tools.tool({
  name: "find",
  description: "Finds parts.",
  parameters: z.object({ kind: z.enum(["wheel", "axle"]).describe("What to find"), count: z.int().default(1) }),
  effect: "read",
  run: ({ kind, count }) => ({ kind, count }),
});

tools.tool({
  name: "pay",
  description: "Pays.",
  parameters: z.object({ amount: z.int() }),
  approval: {
    when: { properties: { amount: { exclusiveMinimum: 100 } }, required: ["amount"] },
    reason: "Payments above 100 need an approval.",
  },
  async run({ amount }, call) {
    log(`begin ${process.pid} ${call.effectId}`);
    call.progress(`paying ${amount}`);
    while (existsSync("hold")) {
      if (call.signal.aborted) log("cancelled");
      call.signal.throwIfAborted();
      await setTimeout(20);
    }
    log(`paid ${amount}`);
    return `paid ${amount}`;
  },
});

await tools.run();
