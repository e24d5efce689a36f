// Compiled by a test against the types that openapi-typescript makes of the description.
import type { components, operations } from "./api";

type Schemas = components["schemas"];

const text: Schemas["PromptRequest"] = { input: "Pay 40 to Ada" };
const blocks: Schemas["FirstPromptRequest"] = {
  agent: "payments-clerk",
  input: [{ type: "text", text: "Pay this" }, { type: "file", artifactId: "up_1" }],
};

// @ts-expect-error: an object is no input.
const wrong: Schemas["PromptRequest"] = { input: { text: "Pay 40 to Ada" } };

const history: Schemas["NewConversation"] = { messages: [{ role: "user", content: "Hello", timestamp: 0 }] };

/** One type for the 200 and the 202 of an input. */
export function promptOf(response: Schemas["PromptResponse"]): string {
  return response.promptId ?? response.commandOutput ?? response.conversationId;
}
type Accepted = operations["createPrompt"]["responses"][200 | 202]["content"]["application/json"];
export const idOf = (response: Accepted): string => promptOf(response);

/** What an approver sees. */
export const argumentsOf = (approval: Schemas["ApprovalView"]): unknown => approval.arguments?.["amount"];

export function answer(prompt: Schemas["Prompt"]): string {
  return prompt.output
    .map((output) => {
      switch (output.type) {
        case "text":
          return output.content;
        case "tool":
          return output.result.type;
        case "file":
          return output.path;
        case "widget":
          return output.fallback;
      }
    })
    .join("\n");
}

export function openApprovals(conversation: Schemas["ConversationView"]): string[] {
  return conversation.pendingApprovals.map((approval) =>
    approval.kind === "budget" ? `${approval.budget.limit} ${approval.budget.unit}` : approval.title,
  );
}

export function show(event: Schemas["Event"]): string {
  switch (event.type) {
    case "prompt.approval-requested":
      return event.approval.title;
    case "tool_execution_end":
      return event.rejected ? `rejected by ${event.rejected.by}` : event.toolName;
    case "prompt.completed":
      return event.state;
    default:
      return event.type;
  }
}

export function speaker(message: Schemas["Message"]): string {
  return message.role === "assistant" ? message.model : message.role;
}

// @ts-expect-error: a misspelt member is none.
export const misspelt = (event: Schemas["PromptOutputEvent"]): unknown => event.outptu;

type Problem = operations["createPrompt"]["responses"][409]["content"]["application/problem+json"];
export const status = (problem: Problem): number => problem.status;
export const requests = [text, blocks, wrong, history];
