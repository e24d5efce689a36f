//! Guardrails and audit of agent files, through the built binary with the fake model.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::testing::payments::PaymentsServer;

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;

const TIMEOUT: Duration = Duration::from_mins(2);

const GUARDED: &str = "---
description: Works with guardrails.
guardrails: true
audit: true
tools:
  - write
  - http:
      name: execute
      parameters: { type: object, required: [command], properties: { command: { type: string } } }
      method: POST
      url: ${PAYMENTS_URL}/nowhere
      effect: read
  - http:
      name: send_payment
      parameters: { type: object, required: [to, amount], properties: { to: { type: string }, amount: { type: number } } }
      method: POST
      url: ${PAYMENTS_URL}/pay/{to}
      approval: { reason: \"Pay {amount}?\", approvers: [owner, link], expiresAfter: 2d }
---
Work.
";

const HASTY: &str = "---
description: Works with guardrails that expire.
guardrails: { tools: ['wr*'], patterns: ['(?i)shutdown'], expiresAfter: 300ms }
tools: [write, ls]
---
Work.
";

/// `dev` with both agents.
struct TestApp {
    dev: DevProcess,
    payments: PaymentsServer,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl TestApp {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        std::fs::write(agents.join("guarded.agent.md"), GUARDED).unwrap();
        std::fs::write(agents.join("hasty.agent.md"), HASTY).unwrap();
        let payments = PaymentsServer::start().await.unwrap();
        let settings = [("PAYMENTS_URL", payments.base_url.clone())];
        let dev = DevProcess::start_in(folder.path(), &folder.path().join("data"), &settings);
        Self { dev, payments, client: reqwest::Client::new(), _folder: folder }
    }

    async fn get(&self, path: &str) -> Value {
        let request = self.client.get(self.dev.url(path)).timeout(TIMEOUT);
        openapi_check::send(request).await.unwrap().json()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.client.post(self.dev.url(path)).json(body).timeout(TIMEOUT);
        let response = openapi_check::send(request).await.unwrap();
        assert!(response.status.is_success(), "{path}: {response:?}\n{}", self.dev.log());
        response.json()
    }

    /// Starts a prompt that makes this call. Returns the prompt once it ends or waits.
    async fn call(&self, agent: &str, conversation: &str, call: &str) -> Value {
        let input = format!("use {call} then say done");
        let body = json!({"agent": agent, "conversationId": conversation, "input": input});
        self.post("/api/prompts?wait=60", &body).await
    }

    /// The only open approval request of the conversation.
    async fn pending_approval(&self, conversation: &str) -> Value {
        let view = self.get(&format!("/api/conversations/{conversation}")).await;
        let pending = view["pendingApprovals"].as_array().unwrap();
        assert_eq!(pending.len(), 1, "{view}\n{}", self.dev.log());
        pending[0].clone()
    }

    /// Decides the only open request. Returns the text of the last tool result after the prompt.
    async fn decide(&self, conversation: &str, decision: &Value) -> String {
        let approval = self.pending_approval(conversation).await;
        let id = approval["id"].as_str().unwrap();
        let path = format!("/api/conversations/{conversation}/approvals/{id}");
        self.post(&path, decision).await;
        self.last_result(conversation).await
    }

    /// Waits until the prompt has completed.
    async fn last_result(&self, conversation: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let prompts = self.get(&format!("/api/conversations/{conversation}/prompts")).await;
            if prompts["items"][0]["state"] == "completed" {
                break;
            }
            assert!(Instant::now() < deadline, "{prompts}\n{}", self.dev.log());
        }
        let messages = self.get(&format!("/api/conversations/{conversation}/messages")).await;
        let mut results = messages["items"].as_array().unwrap().iter().rev();
        let result = results.find(|message| message["role"] == "toolResult");
        let result = result.unwrap_or_else(|| panic!("{messages}"));
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Lines of the log with this text, once it shows this number of completed prompts.
    async fn log_lines(&self, text: &str, prompts_count: usize) -> Vec<String> {
        let has_prompts = |log: &str| log.matches("prompt completed").count() >= prompts_count;
        let log = self.dev.wait_until_log(has_prompts).await;
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn guarded_call_runs_after_approval() {
    let app = TestApp::start().await;
    let call = r#"write with {"path": "a.sh", "content": "rm -rf / # all"}"#;
    let prompt = app.call("guarded", "c", call).await;
    assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}\n{}", app.dev.log());
    let approval = app.pending_approval("c").await;
    assert_eq!(
        approval["reason"],
        "⚠️ Potentially dangerous operation detected:\n{\"path\":\"a.sh\",\"content\":\"rm -rf / # all\"}\n\nProceed?"
    );
    assert_eq!(approval["approvers"], json!(["owner"]));
    assert_eq!(approval["decisions"], json!(["approve", "reject"]));
    assert_eq!(app.log_lines("[AUDIT]", 0).await, Vec::<String>::new());
    let result = app.decide("c", &json!({"decision": "approve"})).await;
    assert!(result.contains("a.sh"), "{result}");
    let prompt = app.call("guarded", "c2", r#"write with {"path": "b", "content": "x"}"#).await;
    assert_eq!(prompt["state"], "completed", "a harmless call needs no approval: {prompt}");
    let lines = app.log_lines("[AUDIT]", 2).await;
    assert_eq!(lines.len(), 2, "one line for each result: {lines:?}");
    assert!(lines.iter().all(|line| line.contains("[AUDIT] write: OK")), "{lines:?}");
    for field in ["conversation.id=c", "tool.call.id=", "effect.id=tw_c_"] {
        assert!(lines[0].contains(field), "{field} in {lines:?}");
    }
}

#[tokio::test]
async fn rejected_call_is_blocked_by_guardrails() {
    let app = TestApp::start().await;
    let call = r#"execute with {"command": "rm -rf /"}"#;
    for (conversation, decision, text) in [
        ("c1", json!({"decision": "reject"}), "Blocked by guardrails"),
        ("c2", json!({"decision": "reject", "reason": "no"}), "Blocked by guardrails: no"),
    ] {
        app.call("guarded", conversation, call).await;
        let approval = app.pending_approval(conversation).await;
        assert_eq!(approval["reason"], "Allow potentially dangerous command?\nrm -rf /");
        let result = app.decide(conversation, &decision).await;
        assert!(result.contains(text), "{result}");
    }
    app.call("guarded", "c3", call).await;
    let result = app.decide("c3", &json!({"decision": "approve"})).await;
    assert!(!result.contains("guardrails"), "an approved call runs and fails: {result}");
    let lines = app.log_lines("[AUDIT]", 3).await;
    assert_eq!(lines.len(), 3, "one line for each result: {lines:?}");
    assert!(lines.iter().all(|line| line.contains("[AUDIT] execute: FAILED")), "{lines:?}");
}

#[tokio::test]
async fn guardrails_share_one_request_with_the_tool() {
    let app = TestApp::start().await;
    let call = r#"send_payment with {"to": "DROP DATABASE", "amount": 5}"#;
    app.call("guarded", "c", call).await;
    let approval = app.pending_approval("c").await;
    let reason = approval["reason"].as_str().unwrap();
    let parts = ["Pay 5?\n\n⚠️ Potentially", r#"{"to":"DROP DATABASE","amount":5}"#];
    assert!(parts.iter().all(|part| reason.contains(part)), "{reason}");
    assert_eq!(approval["approvers"], json!(["owner", "link"]), "those of the tool");
    app.decide("c", &json!({"decision": "approve"})).await;
    let payments = app.payments.payments();
    assert_eq!((payments.len(), payments[0].requests), (1, 1));
}

#[tokio::test]
async fn expired_guardrails_question_refuses_the_call() {
    let app = TestApp::start().await;
    let call =
        r#"ls with {"path": "shutdown"} and use write with {"path": "a", "content": "Shutdown"}"#;
    app.call("hasty", "c", call).await;
    let result = app.last_result("c").await;
    assert!(result.contains("Blocked by guardrails"), "{result}");
    assert_eq!(app.log_lines("[AUDIT]", 1).await, Vec::<String>::new(), "no audit");
    let asked = app.log_lines("approval requested", 1).await;
    assert_eq!(asked.len(), 1, "`ls` is not guarded: {asked:?}");
}
