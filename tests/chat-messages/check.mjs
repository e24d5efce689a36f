// Purpose: checks a message of each chat service with the service's own packages. Usage: node check.mjs SLACK.json TEAMS.json
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import ts from "typescript";

// Its modules do not load in Node.js; its bundle does.
const { AdaptiveCard, SerializationContext, Versions } = createRequire(import.meta.url)("adaptivecards/dist/adaptivecards.js");

const [slack, teams] = process.argv.slice(2).map((file) => JSON.parse(readFileSync(file, "utf8")));

// Slack: the types of its SDK, and the bounds of its reference that no type has.
const source = `import type { KnownBlock } from "@slack/types";
const message: { text: string; blocks: KnownBlock[] } = ${JSON.stringify(slack)};
export default message;`;
const file = new URL("message.ts", import.meta.url).pathname;
writeFileSync(file, source);
const program = ts.createProgram([file], { strict: true, noEmit: true, skipLibCheck: true, module: ts.ModuleKind.NodeNext, types: [] });
const problems = ts.getPreEmitDiagnostics(program).map((it) => ts.flattenDiagnosticMessageText(it.messageText, "\n"));
assert.deepEqual(problems, [], "Slack's types");
assert.ok(slack.blocks.length <= 50);
for (const block of slack.blocks) {
  const max = block.type === "header" ? 150 : 3000;
  assert.ok(!block.text || (block.text.text.length >= 1 && block.text.text.length <= max), `${block.type}: ${block.text?.text.length}`);
  assert.ok(!block.fields || (block.fields.length <= 10 && block.fields.every((field) => field.text.length <= 2000)));
  assert.ok(!block.elements || block.elements.length <= 10);
}

// Teams: a message with one card, which the SDK reads without a finding and writes as it was.
assert.equal(teams.type, "message");
assert.ok(JSON.stringify(teams).length < 28_000);
const [attachment] = teams.attachments;
assert.equal(attachment.contentType, "application/vnd.microsoft.card.adaptive");
const context = new SerializationContext(Versions.v1_4);
const card = new AdaptiveCard();
card.parse(attachment.content, context);
const findings = Array.from({ length: context.eventCount }, (_, at) => context.getEventAt(at).message);
assert.deepEqual(findings, [], "the card");
assert.deepEqual(card.validateProperties().validationEvents.map((it) => it.message), []);
const { $schema, ...written } = attachment.content;
assert.equal($schema, "http://adaptivecards.io/schemas/adaptive-card.json");
if (written.actions.length === 0) delete written.actions;
const { $schema: _, ...read } = card.toJSON(context);
assert.deepEqual(read, written);
console.log("ok");
