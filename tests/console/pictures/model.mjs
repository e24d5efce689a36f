// Purpose: a model on loopback that speaks Chat Completions and follows a script, so that pictures have plausible texts.
import { createServer } from "node:http";

const RELEASE_NOTES = `# Release 2.4

- Invoices can be exported as CSV.
- The sign-in page loads in half the time.
- Fixed: reminders were sent twice after a change of the clock.
`;

/** The last message of the user, and the responses to it: texts, each with the tool calls that follow it. */
const SCRIPT = [
  [/pay (?<amount>\d+) to (?<to>\w+)/i, ({ amount, to }) => [
    { say: `I will send ${amount} to ${to}.`, calls: [["send_payment", { to, amount: Number(amount) }]] },
    { say: ({ receipt }) => `Paid **${amount}** to ${to}. The receipt is \`${receipt}\`.` },
  ]],
  [/release notes/i, () => [
    { say: "I write them from your list, and check the file.", calls: [["write", { path: "release-notes.md", content: RELEASE_NOTES }], ["read", { path: "release-notes.md" }]] },
    { say: "The notes are in `release-notes.md`:\n\n1. **Export**: invoices as CSV\n2. **Sign-in**: half the time\n3. **Fix**: no second reminder after a change of the clock\n\nShall I add the date of the release?" },
  ]],
  [/date/i, () => [
    { say: "", calls: [["edit", { path: "release-notes.md", old_text: "# Release 2.4", new_text: "# Release 2.4, 1 December" }]] },
    { say: "Done: the heading is `Release 2.4, 1 December`." },
  ]],
  [/fridays/i, () => [{ say: "", calls: [["remember", { text: "The shop ships on Fridays." }]] }, { say: "I noted it: the shop ships on Fridays." }]],
  [/close the shop/i, () => [
    { say: "", calls: [["create_skill", { name: "closing", description: "How to close the shop.", instructions: "1. Count the till.\n2. Lock the back door.\n3. Set the alarm." }]] },
    { say: "I saved the steps as the skill `closing`." },
  ]],
  [/return/i, () => [
    { say: "", calls: [["load_skill", { name: "returns" }]] },
    { say: "Yes: articles are taken back within 30 days, with the receipt." },
  ]],
];

/** The response to these messages. */
function respond(messages) {
  const last = messages.findLastIndex(({ role }) => role === "user");
  const input = textOf(messages[last]);
  const later = messages.slice(last + 1);
  const step = later.filter(({ role }) => role === "assistant").length;
  for (const [pattern, responses] of SCRIPT) {
    const match = pattern.exec(input);
    const response = match && responses(match.groups ?? {})[step];
    if (!response) continue;
    const receipt = /rcpt_\w+/.exec(textOf(later.at(-1)))?.[0] ?? "unknown";
    const isRefused = typeof response.say === "function" && receipt === "unknown";
    const text = isRefused ? "The payment was not made." : typeof response.say === "function" ? response.say({ receipt }) : response.say;
    return { text, calls: response.calls ?? [] };
  }
  return { text: "What can I do for you?", calls: [] };
}

function textOf(message) {
  const { content } = message ?? {};
  return Array.isArray(content) ? content.map((block) => block.text ?? "").join("") : String(content ?? "");
}

/** The events of a streamed response: the text in words, then the calls, then the usage. */
function* chunks(request) {
  const { text, calls } = respond(request.messages);
  const choice = (delta, finish = null) => ({ id: "chatcmpl-1", object: "chat.completion.chunk", model: request.model, choices: [{ index: 0, delta, finish_reason: finish }] });
  for (const word of text.match(/\S+\s*/g) ?? []) yield choice({ content: word });
  const number = request.messages.length;
  for (const [index, [name, args]] of calls.entries()) {
    yield choice({ tool_calls: [{ index, id: `call_${number}_${index}`, type: "function", function: { name, arguments: JSON.stringify(args) } }] });
  }
  yield choice({}, calls.length ? "tool_calls" : "stop");
  const prompt_tokens = Math.ceil(JSON.stringify(request).length / 4);
  const completion_tokens = Math.ceil((text.length + JSON.stringify(calls).length) / 4);
  const cached_tokens = number > 2 ? Math.floor((prompt_tokens * 0.8) / 128) * 128 : 0;
  yield { ...choice({}), choices: [], usage: { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens, prompt_tokens_details: { cached_tokens } } };
}

/** Starts the model at a free port. */
export async function startModel() {
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const chunk of chunks(JSON.parse(Buffer.concat(parts).toString()))) {
      response.write(`data: ${JSON.stringify(chunk)}\n\n`);
      await new Promise((resolve) => setTimeout(resolve, 15));
    }
    response.end("data: [DONE]\n\n");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/v1`, close: () => (server.closeAllConnections(), server.close()) };
}
