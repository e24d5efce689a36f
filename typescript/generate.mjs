// Generates the client that zod_client.ts uses, from openapi.json in the current folder.
import { createClient } from "@hey-api/openapi-ts";

await createClient({
  input: "./openapi.json",
  output: "./sdk",
  plugins: [
    "@hey-api/client-fetch",
    "@hey-api/typescript",
    "zod",
    { name: "@hey-api/sdk", validator: { response: "zod" } },
  ],
  logs: { level: "warn" },
});
