//! The example servers of `examples/http-extension-node` and `examples/http-plugin-python`, as an
//! extension and two plugins of an agent of the built binary.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::testing::payments::PaymentsServer;

use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::{self, SendValidated as _};

const TIMEOUT: Duration = Duration::from_mins(2);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const NODE: [&str; 3] = ["node", "examples/http-extension-node/server.mjs", "Node 18.3"];
const PYTHON: [&str; 3] = ["python3", "examples/http-plugin-python/server.py", "Python 3.8"];

const CLERK: &str = "---
tools:
  - http:
      name: send_payment
      parameters: { type: object, required: [to, amount], properties: { to: { type: string }, amount: { type: number } } }
      method: POST
      url: ${PAYMENTS_URL}/pay/{to}
extensions:
  - http:
      name: guard
      url: ${NODE_URL}/
      secret: ${HOOK_SECRET}
      events: [tool_call, tool_result]
      actions: [notify, appendEntry]
      entries: [guard/limit-shown]
      onFailure: ON_FAILURE
plugins:
  - http: { name: rules, url: \"${NODE_URL}/\", secret: \"${HOOK_SECRET}\", optional: true }
  - http:
      name: counter
      url: ${PYTHON_URL}/
      secret: ${HOOK_SECRET}
      timeout: 20s
      tools:
        - http: { name: list_payments, url: \"${PAYMENTS_URL}/payments\" }
---
Pay.
";

/// An example server on a free port. Killed when dropped.
struct HookServer {
    child: Child,
    url: String,
}

impl HookServer {
    fn start([program, file, version]: [&str; 3]) -> Self {
        let mut child = Command::new(program)
            .args([file, "--port", "0"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOOK_SECRET", SECRET)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("`{program}` does not start ({error}). Install {version} or later: this test runs {file}.")
            });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (_, url) = line.split_once("listening on ").unwrap_or_else(|| panic!("{file}: {line}"));
        Self { child, url: url.trim().to_owned() }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for HookServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A folder with the agent, and the servers that it names.
struct TestApp {
    folder: tempfile::TempDir,
    model: FakeModel,
    payments: PaymentsServer,
    node: HookServer,
    python: HookServer,
    client: reqwest::Client,
}

impl TestApp {
    async fn new(on_failure: &str, responses: Vec<ResponseScript>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        let clerk = CLERK.replace("ON_FAILURE", on_failure);
        std::fs::write(agents.join("clerk.agent.md"), clerk).unwrap();
        Self {
            folder,
            model: FakeModel::start(responses.into_iter().map(ScriptedResponse::Response)).await,
            payments: PaymentsServer::start().await.unwrap(),
            node: HookServer::start(NODE),
            python: HookServer::start(PYTHON),
            client: reqwest::Client::new(),
        }
    }

    /// The agent sends all events that the Node example handles.
    fn send_all_events(&self) {
        let file = self.folder.path().join("agents/clerk.agent.md");
        let text = std::fs::read_to_string(&file).unwrap();
        let all = "events: [input, tool_call, tool_result, command, user_bash]
      commands: [{ name: limit, description: \"Shows the limit of payments.\" }]";
        std::fs::write(&file, text.replace("events: [tool_call, tool_result]", all)).unwrap();
    }

    /// Decides the open request of the conversation.
    async fn decide(&self, dev: &DevProcess, decision: &Value) -> Value {
        let view = self.get(dev, "/api/conversations/c").await;
        let request = view["pendingApprovals"][0].clone();
        let path = format!("/api/conversations/c/approvals/{}", request["id"].as_str().unwrap());
        self.post(dev, &path, decision).await;
        request
    }

    /// Starts `dev`, with the data of an earlier process.
    fn start_dev(&self) -> DevProcess {
        let settings = [
            ("AZURE_OPENAI_BASE_URL", self.model.url.clone()),
            ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
            ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
            ("PAYMENTS_URL", self.payments.base_url.clone()),
            ("NODE_URL", self.node.url.clone()),
            ("PYTHON_URL", self.python.url.clone()),
            ("HOOK_SECRET", SECRET.to_owned()),
        ];
        DevProcess::start_in(self.folder.path(), &self.folder.path().join("data"), &settings)
    }

    async fn get(&self, dev: &DevProcess, path: &str) -> Value {
        let request = self.client.get(dev.url(path)).timeout(TIMEOUT);
        openapi_check::send(request).await.unwrap().json()
    }

    async fn post(&self, dev: &DevProcess, path: &str, body: &Value) -> Value {
        let request = self.client.post(dev.url(path)).json(body).timeout(TIMEOUT);
        let response = openapi_check::send(request).await.unwrap();
        assert!(response.status.is_success(), "{path}: {response:?}\n{}", dev.log());
        response.json()
    }

    /// Sends the prompt of conversation `c` and waits until it ends or needs an approval.
    async fn prompt(&self, dev: &DevProcess) -> Value {
        let body = json!({"conversationId": "c", "input": "Pay"});
        self.post(dev, "/api/prompts?wait=60", &body).await
    }

    async fn states(&self, dev: &DevProcess) -> Value {
        self.get(dev, "/api/conversations/c/plugins").await["items"].clone()
    }

    /// Waits for the state of the newest prompt.
    async fn wait_for(&self, dev: &DevProcess, state: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let prompts = self.get(dev, "/api/conversations/c/prompts").await;
            if prompts["items"][0]["state"] == state {
                return;
            }
            assert!(Instant::now() < deadline, "{prompts}\n{}", dev.log());
        }
    }

    /// Texts of all tool results, oldest first.
    async fn results(&self, dev: &DevProcess) -> Vec<String> {
        let messages = self.get(dev, "/api/conversations/c/messages").await;
        let results = messages["items"].as_array().unwrap().iter();
        let results = results.filter(|message| message["role"] == "toolResult");
        results.map(|result| result["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    }
}

fn pay(to: &str, amount: u32) -> ResponseScript {
    ResponseScript::call("c1", "send_payment", json!({"to": to, "amount": amount}))
}

fn tool_names(body: &Value) -> Vec<&str> {
    let tools = body["tools"].as_array().into_iter().flatten();
    tools.map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn approval_and_state_survive_kills_of_all_processes() {
    let mut app = TestApp::new(
        "block",
        vec![
            pay("Ada", 250),
            ResponseScript::call("c2", "list_payments", json!({})),
            ResponseScript::text("paid"),
        ],
    )
    .await;
    let mut dev = app.start_dev();
    let prompt = app.prompt(&dev).await;
    assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}\n{}", dev.log());
    let counted = |calls: u32| json!([{"name": "counter", "schema": 1, "state": {"calls": calls}}]);
    assert_eq!(app.states(&dev).await, counted(1));

    dev.kill();
    app.node.kill();
    app.python.kill();
    (app.node, app.python) = (HookServer::start(NODE), HookServer::start(PYTHON));
    let dev = app.start_dev();
    assert_eq!(app.states(&dev).await, counted(1));
    let view = app.get(&dev, "/api/conversations/c").await;
    let approval = &view["pendingApprovals"][0];
    assert_eq!(approval["reason"], "Pay 250 to Ada?", "{view}");
    assert_eq!(approval["approvers"], json!(["owner", "link"]));
    assert_eq!(app.payments.payments().len(), 0);

    let path = format!("/api/conversations/c/approvals/{}", approval["id"].as_str().unwrap());
    app.post(&dev, &path, &json!({"decision": "approve"})).await;
    app.wait_for(&dev, "completed").await;
    let results = app.results(&dev).await;
    assert_eq!(results.len(), 2, "{results:?}");
    assert!(results.iter().all(|text| text.contains("rcpt_…")), "receipts are hidden: {results:?}");
    let messages = app.get(&dev, "/api/conversations/c/messages").await.to_string();
    assert!(!messages.contains("structuredContent"), "they are hidden everywhere: {messages}");
    let payments = app.payments.payments();
    assert_eq!((payments.len(), payments[0].requests), (1, 1), "it was paid once");
    assert_eq!(app.states(&dev).await, counted(3), "one call for each model response");

    let bodies = app.model.request_bodies();
    assert_eq!(tool_names(&bodies[0]), ["send_payment"]);
    for (index, body) in bodies.iter().enumerate().skip(1) {
        assert_eq!(tool_names(body), ["send_payment", "list_payments"], "{index}");
    }
    for (index, body) in bodies.iter().enumerate() {
        let system = body["input"][0].to_string();
        let number = index + 1;
        let text = format!(
            r"Pay.\n\nPayments above 100 wait for an approval.\n\nThis is model call {number} of the conversation."
        );
        assert!(system.contains(&text), "{system}");
    }
}

#[tokio::test]
async fn unreachable_extension_blocks_calls_or_lets_them_start() {
    for (on_failure, payments_count) in [("block", 0), ("allow", 1)] {
        let mut app =
            TestApp::new(on_failure, vec![pay("Ada", 250), ResponseScript::text("done")]).await;
        let mut dev = app.start_dev();
        app.node.kill();
        let prompt = app.prompt(&dev).await;
        assert_eq!(prompt["state"], "completed", "{prompt}\n{}", dev.log());
        let failed = |event: &str| {
            format!(
                "extension \"guard\" failed in {event}: its server could not be reached: the connection was refused"
            )
        };
        let result = app.results(&dev).await.remove(0);
        if on_failure == "block" {
            assert_eq!(result, format!("Tool execution was blocked: {}", failed("tool_call")));
        } else {
            assert!(result.contains("rcpt_"), "{result}");
        }
        assert_eq!(app.payments.payments().len(), payments_count);
        let failed_call = format!("hook failed: {}", failed("tool_call"));
        dev.wait_for_log(&[&failed_call, "hook failed: plugin \"rules\" failed in prepare"]).await;
        let log = dev.whole_log();
        assert!(!log.contains(SECRET) && !log.contains(&app.node.url), "{log}");
    }
}

#[tokio::test]
async fn question_of_a_server_survives_kills_and_precedes_the_approval() {
    let responses = vec![pay("Ada", 5_000), ResponseScript::text("paid")];
    let mut app = TestApp::new("block", responses).await;
    app.send_all_events();
    let mut dev = app.start_dev();
    let body = json!({"conversationId": "c", "input": "Pay with 4111111111111111"});
    let prompt = app.post(&dev, "/api/prompts?wait=60", &body).await;
    assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}\n{}", dev.log());
    assert_eq!(prompt["input"], "Pay with (card number)");

    dev.kill();
    app.node.kill();
    app.node = HookServer::start(NODE);
    let dev = app.start_dev();
    let question = app.decide(&dev, &json!({"decision": "answer", "value": true})).await;
    assert_eq!(
        (&question["kind"], &question["reason"], &question["extension"]),
        (&json!("question"), &json!("Do you know Ada?"), &json!("guard"))
    );
    let deadline = Instant::now() + TIMEOUT;
    while app.get(&dev, "/api/conversations/c").await["pendingApprovals"][0]["kind"] != "tool" {
        assert!(Instant::now() < deadline, "{}", dev.log());
    }
    assert_eq!(app.payments.payments().len(), 0);
    let approval = app.decide(&dev, &json!({"decision": "approve"})).await;
    assert_eq!(approval["reason"], "Pay 5000 to Ada?");
    app.wait_for(&dev, "completed").await;
    assert_eq!(app.payments.payments().len(), 1);
}

#[tokio::test]
async fn commands_shell_records_and_actions_of_a_server() {
    let app = TestApp::new("block", vec![pay("Mallory", 1), ResponseScript::text("no")]).await;
    app.send_all_events();
    let dev = app.start_dev();
    app.prompt(&dev).await;
    let listed = app.get(&dev, "/api/commands?agent=clerk").await;
    assert_eq!(
        listed["items"][0],
        json!({"name": "limit", "description": "Shows the limit of payments.", "kind": "command", "extension": "guard"})
    );
    let run = app.post(&dev, "/api/conversations/c/commands/limit", &json!({"args": "now"})).await;
    assert_eq!(run["output"], "Payments above 100 need an approval.", "{run}\n{}", dev.log());
    let bash = json!({"command": "env", "output": "a=1 password=x b=2", "exitCode": 0});
    app.post(&dev, "/api/conversations/c/bash", &bash).await;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let entries = app.get(&dev, "/api/conversations/c/entries?limit=100").await;
        let items = entries["items"].as_array().unwrap();
        let shown = items.iter().any(|entry| {
            entry["customType"] == "guard/limit-shown" && entry["data"] == json!({"args": "now"})
        });
        if shown && entries.to_string().contains("password=…") {
            assert!(!entries.to_string().contains("password=x"), "{entries}");
            break;
        }
        assert!(Instant::now() < deadline, "{entries}\n{}", dev.log());
    }
    let path = dev.url("/api/conversations/c/events?follow=false");
    let events = app.client.get(path).send_validated().await.unwrap().text().await.unwrap();
    assert!(events.contains("A payment to Mallory was blocked."), "{events}");
}

#[tokio::test]
async fn input_is_refused_while_its_server_is_down() {
    for (on_failure, status) in [("block", 503), ("allow", 202)] {
        let mut app = TestApp::new(on_failure, vec![ResponseScript::text("hi")]).await;
        app.send_all_events();
        let dev = app.start_dev();
        app.node.kill();
        let body = json!({"conversationId": "c", "input": "Hi"});
        let sent =
            app.client.post(dev.url("/api/prompts")).json(&body).send_validated().await.unwrap();
        assert_eq!(sent.status(), status, "{on_failure}\n{}", dev.log());
        if on_failure == "block" {
            let problem: Value = sent.json().await.unwrap();
            assert_eq!(
                problem["detail"],
                "The extension \"guard\" failed in input: its server could not be reached: the connection was refused. Nothing was stored. Repeat the request."
            );
            let read =
                app.client.get(dev.url("/api/conversations/c")).send_validated().await.unwrap();
            assert_eq!(read.status(), 404);
        }
    }
}

#[tokio::test]
async fn extension_blocks_a_call_with_its_reason() {
    let app = TestApp::new("block", vec![pay("Mallory", 1), ResponseScript::text("no")]).await;
    let dev = app.start_dev();
    let prompt = app.prompt(&dev).await;
    assert_eq!(prompt["state"], "completed", "{prompt}\n{}", dev.log());
    assert_eq!(app.results(&dev).await, ["Mallory receives no payments."]);
    assert_eq!(app.payments.payments().len(), 0);
}

#[tokio::test]
async fn extension_blocks_amounts_that_javascript_rounds() {
    for amount in ["100.00000000000000000001", "9007199254740993"] {
        let events = Value::from(pay("Ada", 250).events()).to_string().replace("250", amount);
        let mut app = TestApp::new("block", Vec::new()).await;
        app.model = FakeModel::start([
            ScriptedResponse::SseEvents(serde_json::from_str(&events).unwrap()),
            ScriptedResponse::Response(ResponseScript::text("no")),
        ])
        .await;
        let dev = app.start_dev();
        let prompt = app.prompt(&dev).await;
        assert_eq!(prompt["state"], "completed", "{prompt}\n{}", dev.log());
        let reason = format!(
            "JavaScript would round {amount}, so its limit cannot be checked: send an amount with fewer digits."
        );
        assert_eq!(app.results(&dev).await, [reason]);
        assert_eq!(app.payments.payments().len(), 0);
    }
}

#[tokio::test]
async fn failed_plugin_fails_the_prompt_unless_optional() {
    let mut app = TestApp::new("block", vec![ResponseScript::text("never")]).await;
    let dev = app.start_dev();
    app.python.kill();
    let file = app.folder.path().join("agents/clerk.agent.md");
    // Without retries, which would wait for seconds.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("---\n", "---\nretry: { enabled: false }\n", 1)).unwrap();
    dev.wait_for_log(&["agent reloaded"]).await;
    let prompt = app.prompt(&dev).await;
    assert_eq!(prompt["state"], "failed", "{prompt}\n{}", dev.log());
    assert_eq!(prompt["error"]["type"], "plugin", "{prompt}");
    let message = prompt["error"]["message"].as_str().unwrap();
    assert!(message.contains("plugin \"counter\" failed in prepare"), "{message}");
    assert!(message.contains("the connection was refused"), "{message}");
    assert_eq!(app.model.request_bodies().len(), 0, "nothing was sent");
}

const CONVERSATION: &str = "- prompt: Pay.
  answers:
    - calls: [{ tool: send_payment, arguments: { to: Ada, amount: 250 } }]
    - calls: [{ tool: list_payments }]
    - say: Done.
";

/// The report of `certify` with the agent and the servers of the test.
async fn certify(app: &TestApp, arguments: &[&str]) -> Value {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(["certify", "clerk", "--json"])
        .args(arguments)
        .current_dir(app.folder.path())
        .env_clear()
        .env("PAYMENTS_URL", &app.payments.base_url)
        .env("NODE_URL", &app.node.url)
        .env("PYTHON_URL", &app.python.url)
        .env("HOOK_SECRET", SECRET)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn certify_calls_http_hooks_only_with_real_tools() {
    let mut app = TestApp::new("block", Vec::new()).await;
    std::fs::write(app.folder.path().join("agents/clerk.certify.yaml"), CONVERSATION).unwrap();
    let report = certify(&app, &["--tools", "real", "--only", "tool-result.after"]).await;
    let agent = &report["agents"][0];
    assert_eq!(agent["called"], json!({"list_payments": 1, "send_payment": 1}), "{report}");
    assert!(report["ok"].as_u64().unwrap() >= 10, "{report}");
    let is_waiting = |run: &Value| run["boundary"] == "admission.decided";
    let reached = agent["reached"].as_array().unwrap();
    assert!(reached.iter().any(is_waiting), "the extension requires an approval: {report}");

    // Without real tools, nothing is called.
    app.node.kill();
    app.python.kill();
    let paid = app.payments.payments().len();
    let report = certify(&app, &["--only", "tool.after"]).await;
    let agent = &report["agents"][0];
    assert_eq!(agent["called"], json!({"send_payment": 1}), "{report}");
    assert_eq!((&agent["notCalled"], app.payments.payments().len()), (&json!([]), paid));
}
