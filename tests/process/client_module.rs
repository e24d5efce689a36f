//! The client module of `docs/clients.md` for browsers and TypeScript: its imports, its types and its
//! reducer.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::npm::{install_pinned, run};
use crate::support::openapi_check::SendValidated as _;

const MODULE: &str = include_str!("../../examples/clients/turnwheel.mjs");
const TYPES: &str = include_str!("../../examples/clients/turnwheel.d.mts");
const VIEW: &str = include_str!("../../typescript/view.ts");
const PACKAGE: &str = include_str!("../../typescript/package.json");
const PACKAGE_LOCK: &str = include_str!("../../typescript/package-lock.json");

#[test]
fn client_module_runs_without_node() {
    assert!(!MODULE.contains("node:") && !MODULE.contains("process."));
    assert!(!MODULE.lines().any(|line| line.starts_with("import ")), "it is one file");
    let functions =
        MODULE.lines().filter_map(|line| line.strip_prefix("export ")).filter_map(|line| {
            let line = line.trim_start_matches("async ").trim_start_matches("function");
            let name = line.trim_start_matches(['*', ' ']).trim_start_matches("class ");
            name.split(['(', ' ']).next()
        });
    let names: Vec<&str> = functions.collect();
    assert_eq!(
        names,
        ["ApiError", "parse", "send", "startPrompt", "decide", "events", "emptyView", "reduce"]
    );
    for name in names {
        let is_typed = TYPES.contains(&format!("export class {name} "))
            || TYPES.contains(&format!("export function {name}"));
        assert!(is_typed, "turnwheel.d.mts has no `{name}`");
    }
}

#[test]
fn client_module_has_types() {
    let files = [("package.json", PACKAGE), ("package-lock.json", PACKAGE_LOCK)];
    let tools = install_pinned("typescript", &files).join("node_modules");
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("turnwheel.mjs", MODULE), ("turnwheel.d.mts", TYPES), ("view.ts", VIEW)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    run(Command::new("node")
        .current_dir(folder.path())
        .arg(tools.join("typescript/bin/tsc"))
        .args(["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom"])
        .args(["--module", "esnext", "--moduleResolution", "bundler", "view.ts"]));
}

/// Libraries such as React draw only if the view is another object.
const CHECK: &str = r#"
import { emptyView, events, reduce } from "./turnwheel.mjs";

const dump = (value) =>
  JSON.stringify(value, (_, member) => (member instanceof Map ? [...member.entries()] : member));
const freeze = (value) => {
  if (value && typeof value === "object") Object.values(Object.freeze(value)).forEach(freeze);
  return value;
};
let view = emptyView();
let changes = 0;
const apply = (event) => {
  const before = dump(view);
  const next = reduce(freeze(view), freeze(event));
  if (dump(view) !== before) throw new Error(`${event.type} changes the view in place`);
  const isChanged = dump(next) !== before;
  if (isChanged && next === view) throw new Error(`${event.type} makes no other view`);
  changes += isChanged ? 1 : 0;
  view = next;
};
const api = { base: process.argv[2] };
for await (const event of events(api, "c")) apply(event);
const messageId = [...view.messages.keys()].at(-1);
const update = (assistantMessageEvent) => apply({ type: "message_update", messageId, assistantMessageEvent });
const stored = view;
update({ type: "text_start", contentIndex: 1 });
update({ type: "text_delta", contentIndex: 1, delta: "more" });
apply({ type: "message_snapshot", messageId, content: [] });
apply({ type: "message_reset", messageId });
const item = { inputId: "in_1", state: "queued", input: "later" };
apply({ type: "input_queued", inputId: "in_1", item });
apply({ type: "input_cleared", inputId: "in_1" });
console.log(JSON.stringify({ changes, messages: [...stored.messages.values()], inputs: view.inputs.size }));
"#;

#[tokio::test]
async fn client_reducer_never_changes_a_view_in_place() {
    let data = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(data.path(), &[]);
    let prompt =
        json!({"agent": "payments-clerk", "conversationId": "c", "input": "Pay 40 to Ada"});
    let url = dev.url("/api/prompts?wait=20");
    let done = reqwest::Client::new().post(url).json(&prompt).send_validated().await.unwrap();
    assert_eq!(done.status(), 200);
    fs::write(data.path().join("turnwheel.mjs"), MODULE).unwrap();
    let script = data.path().join("check.mjs");
    fs::write(&script, CHECK).unwrap();
    let output = Command::new("node").arg(&script).arg(dev.url("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stored = reqwest::Client::new()
        .get(dev.url("/api/conversations/c/messages"))
        .send_validated()
        .await
        .unwrap();
    let stored: Value = stored.json().await.unwrap();
    let texts = |messages: &Value| -> Vec<String> {
        let content = |message: &Value| message["content"].to_string();
        messages.as_array().unwrap().iter().map(content).collect()
    };
    assert_eq!(texts(&result["messages"]), texts(&stored["items"]));
    assert!(result["changes"].as_u64().unwrap() > 12, "{result}");
    assert_eq!(result["inputs"], 0);
}

/// Runs a script beside the client module, with these flags of Node.
fn run_script(flags: &[&str], script: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("turnwheel.mjs"), MODULE).unwrap();
    let path = folder.path().join("check.mjs");
    fs::write(&path, script).unwrap();
    run(Command::new("node").args(flags).arg(&path));
}

/// True if Node has `JSON.rawJSON` with these flags.
pub(super) fn has_raw_json(flags: &[&str]) -> bool {
    let output = Command::new("node").args(flags).args(["-p", "!!JSON.rawJSON"]).output().unwrap();
    output.stdout.starts_with(b"true")
}

const RAW_JSON_FLAG: &[&str] = &["--harmony-json-parse-with-source"];

/// Flags of Node for tests of numbers: none, and in Node 20 also the flag for `JSON.rawJSON`. Newer
/// versions need no flag, older ones do not have it.
pub(super) fn number_flags() -> &'static [&'static [&'static str]] {
    let needs_flag = !has_raw_json(&[]) && has_raw_json(RAW_JSON_FLAG);
    if needs_flag { &[&[], RAW_JSON_FLAG] } else { &[&[]] }
}

/// JSON allows these characters unescaped in its strings.
const SEPARATORS: &str = r#"
import { events } from "./turnwheel.mjs";

const sent = { type: "notify", text: "a\u0085b\u2028c\u2029d" };
const responses = [new Response(`data: ${JSON.stringify(sent)}\nid: 1\n\n`), new Response(null, { status: 204 })];
globalThis.fetch = async () => responses.shift();
const received = [];
for await (const event of events({ base: "" }, "c")) received.push(event);
if (JSON.stringify(received) !== JSON.stringify([{ ...sent, id: 1 }])) throw new Error(JSON.stringify(received));
"#;

#[test]
fn client_module_reads_data_with_line_separators() {
    run_script(&[], SEPARATORS);
}

/// Engines without `JSON.rawJSON` refuse the numbers that they would round.
const NUMBERS: &str = r#"
import { parse } from "./turnwheel.mjs";

const kept = '{"a":[250,-7.25,1e-7,0.30000000000000004,9007199254740992],"b":"12345678901234567890 \\" 1e400"}';
if (JSON.stringify(parse(kept)) !== kept) throw new Error(JSON.stringify(parse(kept)));
parse('[1.50, 0.0, -0, 1E5, 1e-5, 100000000000000000000000]').forEach((number) => {
  if (typeof number !== "number") throw new Error(`${typeof number} has the value of a number of JavaScript`);
});
const show = (text, number) => {
  try {
    return JSON.stringify(parse(text));
  } catch (error) {
    return !JSON.rawJSON && error.message.includes(number) ? text : error.message;
  }
};
for (const number of ["250.000000000000000000001", "9007199254740993", "0.1000000000000000000001", "1e400", "1e-400"]) {
  const text = `{"arguments":{"amount":${number}}}`;
  if (show(text, number) !== text) throw new Error(show(text, number));
}
"#;

#[test]
fn client_module_keeps_or_refuses_long_numbers() {
    for &flags in number_flags() {
        run_script(flags, NUMBERS);
    }
}

/// Errors of an engine without `JSON.rawJSON`: a problem document with a long number, the page of a
/// proxy, and a refused number.
const ERRORS: &str = r#"
import { ApiError, send } from "./turnwheel.mjs";

delete JSON.rawJSON; // as in Node 20
const number = "12345678901234567890";
const problem = { type: "urn:problem", title: "Conflict", status: 409, detail: "the key is taken" };
const document = JSON.stringify({ ...problem, expected: 1 }).replace(":1}", `:${number}}`);
for (const [status, body, expected] of [
  [409, document, [409, "409 the key is taken", problem]],
  [404, "<html>", [404, "404 <html>", { detail: "<html>" }]],
  [200, document, [0, `JavaScript would round ${number}: use Node 21 or a newer browser`]],
]) {
  globalThis.fetch = async () => new Response(body, { status });
  const error = await send({ base: "" }, "/").catch((error) => error);
  const found = [error.status, error.message, error.problem].slice(0, expected.length);
  const isExpected = error instanceof ApiError && JSON.stringify(found) === JSON.stringify(expected);
  if (!isExpected) throw new Error(JSON.stringify(found));
}
"#;

#[test]
fn client_errors_have_problem_or_refused_number() {
    run_script(&[], ERRORS);
}

#[test]
fn examples_and_tools_compare_numbers_alike() {
    let copies = [
        MODULE,
        include_str!("../../examples/http-extension-node/server.mjs"),
        include_str!("../../packages/typescript-tools/index.mjs"),
    ];
    let [client, extension, tools] = copies.map(|text| {
        let (_, rest) = text.split_once("function normalText").unwrap();
        rest.split_once("\n}\n").unwrap().0
    });
    assert_eq!(client, extension);
    assert_eq!(client, tools);
}
