// Compiled and run by a test: a conversation with the client of openapi-typescript and openapi-fetch.
import createClient from "openapi-fetch";
import type { components, paths } from "./api";

type Event = components["schemas"]["Event"];

const client = createClient<paths>({ baseUrl: process.argv[2]! });

/** Reads the stream up to an event of the type; returns it with the text of the response so far. */
async function readUntil<T extends Event["type"]>(id: string, after: number, type: T) {
  const { data, response } = await client.GET("/api/conversations/{id}/events", {
    params: { path: { id }, query: { after } },
    parseAs: "stream",
  });
  if (!data) throw new Error(`the stream failed: ${response.status}`);
  let text = "";
  for await (const chunk of data.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    const frames = text.split("\n\n");
    text = frames.pop()!;
    for (const frame of frames) {
      const line = frame.split("\n").find((line) => line.startsWith("data:"));
      if (!line) continue;
      const event = JSON.parse(line.slice(5)) as Event;
      if (event.type === type) return event as Extract<Event, { type: T }>;
    }
  }
  throw new Error(`the stream ended without ${type}`);
}

function required<T>(result: { data?: T; error?: { detail: string } }): T {
  if (result.error) throw new Error(result.error.detail);
  return result.data!;
}

async function main() {
  const conversation = required(await client.POST("/api/conversations", { body: { agent: "payments-clerk" } }));
  const path = { id: conversation.id };
  const bytes = new TextEncoder().encode("Invoice 1: 250 to Ada");
  const artifact = required(
    await client.POST("/api/conversations/{id}/artifacts", {
      params: { path, query: { name: "invoice.txt" } },
      body: bytes as unknown as string,
      bodySerializer: (body) => body,
      headers: { "content-type": "application/octet-stream" },
    }),
  );
  const accepted = required(
    await client.POST("/api/conversations/{id}/prompts", {
      params: { path, header: { "Idempotency-Key": "invoice-1" } },
      body: {
        input: [
          { type: "text", text: "Pay 250 to Ada" },
          { type: "file", artifactId: artifact.id },
        ],
      },
    }),
  );
  const requested = await readUntil(path.id, accepted.lastEventId ?? 0, "prompt.approval-requested");
  const approval = requested.approval;
  if (approval.kind !== "tool") throw new Error(approval.kind);
  const amount = (approval.arguments as { amount: number }).amount;
  required(
    await client.POST("/api/conversations/{id}/approvals/{approvalId}", {
      params: { path: { ...path, approvalId: approval.id } },
      body: { decision: "approve" },
    }),
  );
  const end = await readUntil(path.id, accepted.lastEventId ?? 0, "prompt.completed");
  const prompt = required(
    await client.GET("/api/conversations/{id}/prompts/{promptId}", {
      params: { path: { ...path, promptId: end.promptId! } },
    }),
  );
  const texts = prompt.output.flatMap((output) => (output.type === "text" ? [output.content] : []));
  const download = await client.GET("/api/conversations/{id}/artifacts/{artifactId}", {
    params: { path: { ...path, artifactId: artifact.id } },
    parseAs: "text",
  });
  console.log(JSON.stringify({ amount, state: prompt.state, text: texts.at(-1), file: required(download) }));
}

void main();
