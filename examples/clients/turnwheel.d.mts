// Types of turnwheel.mjs. For types of all members of the API, generate a client from `/api/openapi.json`.

export interface Api {
  /** Address of the service, without `/api` and without a slash at the end. */
  base: string;
  /** Headers of every request, for authentication. */
  headers?: Record<string, string>;
  /** Called before the event stream connects again after an error. */
  onReconnect?: (error: Error, lastEventId: string) => void;
}

export class ApiError extends Error {
  /** 0: the client refuses a number that JavaScript would round. */
  readonly status: number;
  /** The problem document; without Turnwheel's response only `detail`, perhaps empty. */
  readonly problem: { type?: string; title?: string; detail?: string; [member: string]: unknown };
  /** Seconds. */
  readonly retryAfter?: number;
}

export interface Accepted {
  conversationId: string;
  promptId: string;
  inputId: string;
  disposition: string;
  lastEventId: number;
  [member: string]: unknown;
}

export interface ContentBlock {
  type: string;
  text?: string;
  [member: string]: unknown;
}

export interface Message {
  /** `user`, `assistant`, `toolResult` or `custom`; more may be added. */
  role: string;
  content: string | ContentBlock[];
  [member: string]: unknown;
}

export interface Output {
  /** `text`, `tool`, `file` or `widget`; more may be added. */
  type: string;
  id: string;
  [member: string]: unknown;
}

export interface Approval {
  id: string;
  conversationId: string;
  kind: string;
  title: string;
  reason: string;
  decisions: string[];
  /** The arguments that the call sends. `JSON.stringify` writes each digit of its numbers. */
  arguments?: unknown;
  [member: string]: unknown;
}

/** A queued steer or follow-up. */
export interface QueuedInput {
  inputId: string;
  state: string;
  kind?: string;
  input?: string | ContentBlock[];
  [member: string]: unknown;
}

/** An event; docs/events.md describes the members of each type. */
export interface TurnwheelEvent {
  type: string;
  /** Of an event that comes from the store. */
  id?: number;
  promptId?: string;
  [member: string]: any;
}

export interface PromptView {
  state: string;
  output: Output[];
  stopReason?: string;
  error?: { type: string; message: string };
}

/** A view of the conversation. Each change makes another one, also of the maps that it changes. */
export interface View {
  readonly isRunning: boolean;
  readonly prompts: ReadonlyMap<string, PromptView>;
  readonly messages: ReadonlyMap<string, Message>;
  readonly inputs: ReadonlyMap<string, QueuedInput>;
  readonly approvals: ReadonlyMap<string, Approval>;
  readonly toolCalls: ReadonlyMap<string, TurnwheelEvent>;
}

export interface Request {
  method?: string;
  headers?: Record<string, string>;
  body?: unknown;
}

/** As `JSON.parse`, with each digit: a number that JavaScript would round is a value of `JSON.rawJSON`. */
export function parse(text: string): any;
export function send<T = any>(api: Api, path: string, request?: Request): Promise<T>;
export function startPrompt(
  api: Api,
  prompt: { agent?: string; input: string | ContentBlock[]; key: string },
): Promise<Accepted>;
export function decide(api: Api, approval: Pick<Approval, "id" | "conversationId">, decision: string): Promise<any>;
export function events(
  api: Api,
  conversationId: string,
  options?: { after?: number },
): AsyncGenerator<TurnwheelEvent, void, void>;
export function emptyView(): View;
export function reduce(view: View, event: TurnwheelEvent): View;
