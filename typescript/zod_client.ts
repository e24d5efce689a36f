// Compiled and run by a test: a conversation with the client of @hey-api/openapi-ts, which validates responses with zod.
import {
  addArtifact,
  createConversation,
  createPrompt,
  decideApproval,
  getArtifact,
  getPrompt,
  streamEvents,
  type Event,
} from "./sdk";
import { client } from "./sdk/client.gen";

client.setConfig({ baseUrl: process.argv[2]!, throwOnError: true });

/** Reads the stream up to an event of the type, and returns it. */
async function readUntil<T extends Event["type"]>(id: string, after: number, type: T) {
  const { stream } = await streamEvents({ path: { id }, query: { after, until: "agent_settled" }, throwOnError: true });
  for await (const event of stream) {
    if (event.type === type) return event as Extract<Event, { type: T }>;
  }
  throw new Error(`the stream ended without ${type}`);
}

async function main() {
  const conversation = await createConversation({ body: { agent: "payments-clerk" }, throwOnError: true });
  const path = { id: conversation.data.id };
  const artifact = await addArtifact({
    path,
    query: { name: "invoice.txt" },
    body: new Blob(["Invoice 1: 250 to Ada"]),
    throwOnError: true,
  });
  const accepted = await createPrompt({
    path,
    headers: { "Idempotency-Key": "invoice-1" },
    body: { input: [{ type: "text", text: "Pay 250 to Ada" }, { type: "file", artifactId: artifact.data.id }] },
    throwOnError: true,
  });
  const after = accepted.data.lastEventId ?? 0;
  const requested = await readUntil(path.id, after, "prompt.approval-requested");
  const approval = requested.approval;
  if (approval.kind !== "tool") throw new Error(approval.kind);
  const amount = (approval.arguments as { amount: number }).amount;
  await decideApproval({
    path: { ...path, approvalId: approval.id },
    body: { decision: "approve" },
    throwOnError: true,
  });
  const end = await readUntil(path.id, after, "prompt.completed");
  const prompt = await getPrompt({ path: { ...path, promptId: end.promptId! }, throwOnError: true });
  const texts = prompt.data.output.flatMap((output) => (output.type === "text" ? [output.content] : []));
  const file = await getArtifact({ path: { ...path, artifactId: artifact.data.id }, parseAs: "text", throwOnError: true });
  console.log(JSON.stringify({ amount, state: prompt.data.state, text: texts.at(-1), file: file.data }));
}

void main();
