// Purpose: a server between the browser and `dev` that loses responses, silences streams, and plays other identities.
import { createServer, request } from "node:http";

/**
 * @param {string} base address of the running `dev`
 * @returns {Promise<any>} `url`, and switches that take effect at the next request
 */
export async function startProxy(base) {
  const target = new URL(base);
  const state = {
    /** Headers added to each request, such as roles. */
    headers: {},
    /** Status of all API requests instead of a response. */
    refuse: 0,
    /** Requests whose path matches get this problem. @type {RegExp | null} */
    fail: null,
    isDown: false,
    /** Open streams send nothing any more. */
    isSilent: false,
    /** Replaces the name of the build in the page. */
    build: "",
    /** Milliseconds that each API request waits. */
    delay: 0,
    requests: [],
  };
  const streams = new Set();
  const server = createServer((incoming, outgoing) => {
    const { pathname } = new URL(incoming.url, base);
    const isApi = pathname.startsWith("/api/") && !pathname.startsWith("/api/console/");
    state.requests.push({ method: incoming.method, path: incoming.url, at: Date.now(), headers: incoming.headers });
    if (state.isDown) return outgoing.destroy();
    if (isApi && state.refuse) return problem(outgoing, state.refuse, "Unauthorized");
    if (isApi && state.fail?.test(incoming.url)) return problem(outgoing, 503, "Service Unavailable");
    setTimeout(() => forward(incoming, outgoing, target, state, streams), isApi ? state.delay : 0);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return Object.assign(state, {
    url: `http://127.0.0.1:${server.address().port}`,
    openStreams: () => streams.size,
    /** Writes a live event into all open streams. */
    emit: (event) => streams.forEach((stream) => stream.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`)),
    cut: () => streams.forEach((stream) => stream.destroy()),
    close: () => new Promise((resolve) => (server.closeAllConnections(), server.close(resolve))),
  });
}

function problem(outgoing, status, title) {
  const body = { type: "urn:turnwheel:problem:unavailable", title, status, detail: "The store does not respond.", traceId: "0123456789abcdef0123456789abcdef" };
  outgoing.writeHead(status, { "content-type": "application/problem+json" });
  outgoing.end(JSON.stringify(body));
}

function forward(incoming, outgoing, target, state, streams) {
  const headers = { ...incoming.headers, ...state.headers, host: target.host };
  if (headers.origin) headers.origin = target.origin;
  // The changed page is text, and no browser has it yet.
  if (state.build) {
    delete headers["accept-encoding"];
    delete headers["if-none-match"];
  }
  const options = { host: target.hostname, port: target.port, path: incoming.url, method: incoming.method, headers };
  const upstream = request(options, (response) => {
    const isStream = response.headers["content-type"]?.startsWith("text/event-stream");
    if (state.build && incoming.url === "/api/console/") return replaceBuild(response, outgoing, state.build);
    outgoing.writeHead(response.statusCode, response.headers);
    outgoing.flushHeaders();
    if (!isStream) return response.pipe(outgoing);
    streams.add(outgoing);
    outgoing.on("close", () => streams.delete(outgoing));
    response.on("data", (chunk) => state.isSilent || outgoing.write(chunk));
    response.on("end", () => state.isSilent || outgoing.end());
    return undefined;
  });
  upstream.on("error", () => outgoing.destroy());
  outgoing.on("close", () => upstream.destroy());
  incoming.pipe(upstream);
}

function replaceBuild(response, outgoing, build) {
  const chunks = [];
  response.on("data", (chunk) => chunks.push(chunk));
  response.on("end", () => {
    const text = Buffer.concat(chunks).toString().replace(/(<meta name="build" content=")[^"]*/, `$1${build}`);
    const { "content-length": _, "content-encoding": __, etag: ___, ...headers } = response.headers;
    outgoing.writeHead(response.statusCode, headers);
    outgoing.end(text);
  });
}
