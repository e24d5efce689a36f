// A server of the official SDK that keeps a list for each session. `/forget` ends all sessions.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const transports = new Map();

async function openSession() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => transports.set(id, transport),
  });
  const server = new McpServer({ name: "stateful", version: "1" });
  const items = [];
  const definition = { description: "Adds an item.", inputSchema: { item: z.string() } };
  server.registerTool("add", definition, ({ item }) => {
    items.push(item);
    return { content: [{ type: "text", text: items.join(", ") }] };
  });
  await server.connect(transport);
  return transport;
}

const http = createServer(async (request, response) => {
  const id = request.headers["mcp-session-id"];
  if (request.url === "/forget") {
    transports.clear();
    response.end("forgotten");
  } else if (id && !transports.has(id)) {
    const error = { code: -32001, message: "Session not found" };
    response.writeHead(404).end(JSON.stringify({ jsonrpc: "2.0", error, id: null }));
  } else {
    const transport = id ? transports.get(id) : await openSession();
    await transport.handleRequest(request, response);
  }
});
http.listen(Number(process.env.PORT), "127.0.0.1", () => console.error("listening on port"));
