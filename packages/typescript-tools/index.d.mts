import type { Server } from "node:http";

/** What Standard Schema libraries such as zod have in common. */
export interface Schema<Output = unknown> {
  readonly "~standard": { readonly types?: { readonly output: Output } | undefined };
}

/** `read` and `idempotent` calls may be repeated; a `write` never is. */
export type Effect = "read" | "idempotent" | "write";

/** Calls whose arguments are valid by `when` need an approval; without it all calls do. */
export interface ApprovalRule {
  when?: Record<string, unknown>;
  reason?: string;
}

export interface Call {
  /** Idempotency key: equal for every attempt of the call, and after a crash of either side. */
  readonly effectId: string | undefined;
  /** Aborted once the caller does not wait any more. */
  readonly signal: AbortSignal;
  /** Shows the user how far the call is. */
  progress(message: string, progress?: number, total?: number): void;
}

export type Arguments<P> = P extends Schema<infer Output> ? Output : Record<string, unknown>;

export interface ToolOptions<P> {
  name: string;
  title?: string;
  description?: string;
  /** A schema of zod 4.2 or newer, or a JSON Schema. Amounts with many digits need the type string. */
  parameters?: P;
  /** Default: `write`. */
  effect?: Effect;
  approval?: boolean | "always" | ApprovalRule;
  /**
   * Returns a text, JSON, or `{ content }` with content blocks of MCP. A call with a number that JavaScript would round is
   * refused before `run`.
   */
  run(args: Arguments<P>, call: Call): unknown;
}

/** An error result: the model reads its text. Throw it if the call had no effect. */
export class ToolError extends Error {}

export class Tools {
  constructor(options?: { name?: string; version?: string });
  /** Makes a function a tool. */
  tool<P extends Schema | Record<string, unknown>>(options: ToolOptions<P>): this;
  /** Serves the tools: on standard input and output, or with `--http [HOST:]PORT` over HTTP. */
  run(args?: string[]): Promise<void>;
}

/** An HTTP server with the tools, for a program that listens itself. */
export function httpServer(tools: Tools, options?: { token?: string; needsPrincipal?: boolean }): Server;
