// Stands for your operations API: the status of two services, and their restart.
import { createServer } from "node:http";

const services = { web: { isUp: true, restarts: 0 }, worker: { isUp: true, restarts: 0 } };
const done = new Map();

createServer((request, response) => {
  const [, , name, action] = request.url.split("/");
  const service = services[name];
  const key = request.headers["idempotency-key"];
  if (service && request.method === "POST" && action === "restart" && !done.has(key)) {
    service.restarts += 1;
    // A repeated request with the same key restarts nothing.
    done.set(key, true);
  }
  response.writeHead(service ? 200 : 404, { "content-type": "application/json" });
  response.end(JSON.stringify(service ? { name, ...service } : { error: "there is no such service" }));
}).listen(Number(process.env.PORT ?? 8787), "127.0.0.1", function () {
  console.log(`operations API at http://127.0.0.1:${this.address().port}`);
});
