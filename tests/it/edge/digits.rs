//! Each digit of a number in arguments, results, decisions and inserted prompts is the one that was
//! written, in every view, export and import.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::json;
use turnwheel::messages::RawJson;
use turnwheel::testing::tools::{
    ApprovalRequirement, Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome,
};
use turnwheel::{Effect, OnUnknown, ToolResult};
use turnwheel_test_support::numbers::ANY_NUMBER;

use super::test_app::TestApp;
use crate::http_tools::server::Server;
use crate::http_tools::tool_caller::tool;

/// Any numbers that a reader of floats accepts.
pub(crate) fn numbers(count: usize) -> Vec<String> {
    let is_finite = |text: &String| text.parse::<f64>().is_ok_and(f64::is_finite);
    let strategy = ANY_NUMBER.prop_filter("a float", is_finite);
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// An object whose text each view must contain.
fn document() -> String {
    format!(r#"{{"numbers":[{}],"price":1.10}}"#, numbers(50).join(","))
}

/// Returns its arguments, or loses its response.
#[derive(Debug)]
struct Echo {
    definition: ToolDefinition,
    is_lost: bool,
    received: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    fn new(name: &str, is_lost: bool, received: &Arc<Mutex<Vec<String>>>) -> Arc<Self> {
        let properties = json!({"numbers": {"type": "array", "items": {"type": "number"}}, "count": {"type": "integer"}});
        let definition = ToolDefinition {
            is_strict: false,
            name: name.to_owned(),
            label: name.to_owned(),
            description: "Echoes.".to_owned(),
            parameters: json!({"type": "object", "properties": properties}),
            effect: Effect::Write,
            on_unknown: OnUnknown::Ask,
            timeout: Duration::from_secs(30),
            revision: "1".to_owned(),
        };
        Arc::new(Self { definition, is_lost, received: Arc::clone(received) })
    }
}

#[async_trait]
impl CallableTool for Echo {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn required_approval(&self, _: &Arguments) -> Option<ApprovalRequirement> {
        None
    }

    async fn call(&self, arguments: Arguments, _: ToolContext) -> ToolOutcome {
        self.received.lock().unwrap().push(arguments.text.text().to_owned());
        if self.is_lost {
            return ToolOutcome::Unknown { reason: "cut off".to_owned() };
        }
        ToolOutcome::Returned(ToolResult {
            structured: Some(arguments.text.clone()),
            details: Some(arguments.text.clone()),
            ..ToolResult::text(arguments.text.text())
        })
    }
}

struct Echoes {
    app: TestApp,
    received: Arc<Mutex<Vec<String>>>,
}

impl Echoes {
    fn new() -> Self {
        let received = Arc::default();
        let tools = [Echo::new("echo", false, &received), Echo::new("lose", true, &received)];
        let app = TestApp::new().with_agent(|agent| {
            agent.tools.extend(tools.map(|tool| tool as Arc<dyn CallableTool>));
        });
        Self { app, received }
    }

    /// The response has the document at least that many times.
    async fn assert_shows(&self, path: &str, count: usize) {
        let shown = self.app.get(path).send().await.expect_status(200).text;
        let found = shown.matches(&document()).count();
        assert!(found >= count, "{path}: {found} of {count} in {}", shown.len());
    }

    async fn assert_views_show(&self, conversation: &str, count: usize) {
        for view in ["entries?limit=100", "events?follow=false", "export?format=turnwheel"] {
            self.assert_shows(&format!("/api/conversations/{conversation}/{view}"), count).await;
        }
    }
}

#[tokio::test]
async fn arguments_and_results_keep_each_digit_in_every_view() {
    let echoes = Echoes::new();
    let app = &echoes.app;
    let id = app.run(&format!("use echo with {} then say done", document())).await;
    assert_eq!(*echoes.received.lock().unwrap(), [document()]);
    echoes.assert_shows(&format!("/api/conversations/c/prompts/{id}"), 2).await;
    // Arguments, structured result and details.
    echoes.assert_views_show("c", 3).await;
    echoes.assert_shows("/api/conversations/c/messages?limit=100", 3).await;
    for format in ["turnwheel", "pi"] {
        let export = format!("/api/conversations/c/export?format={format}");
        let file = app.get(&export).send().await.expect_status(200).text;
        let path = format!("/api/conversations/import?conversationId={format}");
        let import = app.request(http::Method::POST, &path).key(format).body(file);
        let import = import.header("content-type", "application/x-ndjson");
        import.send().await.expect_status(201);
        echoes.assert_shows(&format!("/api/conversations/{format}/entries?limit=100"), 3).await;
        echoes.assert_shows(&format!("/api/conversations/{format}/export?format=pi"), 3).await;
    }
}

#[tokio::test]
async fn coerced_arguments_keep_digits_and_are_shown_to_approvers() {
    let echoes = Echoes::new();
    let sent = document().replace('}', r#","count":"3"}"#);
    let coerced = document().replace('}', r#","count":3}"#);
    echoes.app.run(&format!("use lose with {sent} then say done")).await;
    assert_eq!(*echoes.received.lock().unwrap(), std::slice::from_ref(&coerced));
    // The request about the outcome shows the arguments that were sent.
    let seen = echoes.app.get("/api/conversations/c").send().await.text;
    assert!(seen.contains(&format!(r#""arguments":{coerced}"#)), "{}", seen.len());
}

#[tokio::test]
async fn values_of_decisions_keep_each_digit() {
    let echoes = Echoes::new();
    let app = &echoes.app;
    let prompt = app.run(&format!("use lose with {} then say done", document())).await;
    let seen = app.get_json("/api/conversations/c").await;
    let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
    let path = format!("/api/conversations/c/approvals/{id}");
    let decide = async |value: &str| {
        let body = format!(r#"{{"decision":"happened","value":{value}}}"#);
        let request = app.request(http::Method::POST, &path).body(body);
        request.header("content-type", "application/json").send().await
    };
    let decided = decide(&document()).await.expect_status(200).text;
    assert!(decided.contains(&document()));
    // Another digit is another decision.
    let other = decide(&document().replace("1.10", "1.1000000000000000000001")).await;
    assert!(other.expect_status(409).text.contains(&document()));
    app.work().await;
    echoes.assert_shows(&format!("/api/conversations/c/prompts/{prompt}"), 2).await;
    echoes.assert_views_show("c", 3).await;
}

/// By the API, and by JSON and the form of the approval link.
#[tokio::test]
async fn ambiguous_decision_value_is_refused() {
    let echoes = Echoes::new();
    let app = &echoes.app;
    app.run("use lose with {} then say done").await;
    let seen = app.get_json("/api/conversations/c").await;
    let id = seen["pendingApprovals"][0]["id"].as_str().unwrap();
    let link = app.approval_link().await;
    let decide = async |path: &str, kind: &str, body: String| {
        let request = app.request(http::Method::POST, path).header("content-type", kind);
        request.body(body).send().await
    };
    let twice = r#"{"paid":[{"amount":1,"amount":1000}]}"#;
    for path in [&format!("/api/conversations/c/approvals/{id}"), &link] {
        let body = format!(r#"{{"decision":"happened","value":{twice}}}"#);
        let problem = decide(path, "application/json", body).await;
        let problem = problem.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "/value/paid/0/amount", "{problem}");
        let body = r#"{"decision":"happened","value":1,"value":2}"#.to_owned();
        decide(path, "application/json", body).await.expect_problem(400, "bad-request");
    }
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    let too_deep = format!("{}{}", "[".repeat(110), "]".repeat(110));
    for (value, reason) in [
        (twice, "two members are named `amount`"),
        (r#"{"amount":1e400}"#, "number out of range"),
        (deep.as_str(), "`value` may nest at most 109 levels"),
        (too_deep.as_str(), "`value` may nest at most 109 levels"),
    ] {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        let form = form.append_pair("decision", "happened").append_pair("value", value).finish();
        let problem = decide(&link, "application/x-www-form-urlencoded", form).await;
        let problem = problem.expect_problem(400, "bad-request");
        assert!(problem["detail"].as_str().unwrap().contains(reason), "{problem}");
    }
    let open = app.get_json("/api/approvals").await;
    assert_eq!(open["items"].as_array().unwrap().len(), 1, "nothing was decided");
}

#[tokio::test]
async fn approver_and_tool_get_last_duplicate_argument() {
    let echoes = Echoes::new();
    let app = &echoes.app;
    app.run(r#"use echo with {"count":1,"a":{"b":1,"b":2},"count":2} then say done"#).await;
    assert_eq!(*echoes.received.lock().unwrap(), [r#"{"count":2,"a":{"b":2}}"#]);
    let prompt = app.run(r#"use pay with {"amount":1,"amount":500} then say done"#).await;
    let shown = app.approval_link().await;
    for path in ["/api/approvals", "/api/conversations/c/messages?limit=100", &shown] {
        let text = app.get(path).send().await.expect_status(200).text;
        assert!(text.contains(r#""arguments":{"amount":500}"#), "{path}: {text}");
        assert!(!text.contains(r#""amount":1"#), "{path}: {text}");
    }
    let id = app.get_json("/api/approvals").await["items"][0]["id"].clone();
    let path = format!("/api/conversations/c/approvals/{}", id.as_str().unwrap());
    app.post(&path, &json!({"decision": "approve"})).send().await.expect_status(200);
    app.work().await;
    assert_eq!(*app.pay.payments.lock().unwrap(), [json!({"amount": 500})]);
    let done = app.get_json(&format!("/api/conversations/c/prompts/{prompt}")).await;
    assert_eq!(done["output"][0]["input"], json!({"amount": 500}), "{done}");
}

/// Also the page that an approver sees in a browser.
#[tokio::test]
async fn approval_link_and_page_show_each_digit() {
    let app = TestApp::new();
    let numbers = numbers(16);
    let arguments = format!(r#"{{"amount":1.5e2,"numbers":[{}]}}"#, numbers.join(","));
    app.run(&format!("use pay with {arguments} then say done")).await;
    let link = app.approval_link().await;
    for path in ["/api/approvals", "/api/conversations/c", &link] {
        let shown = app.get(path).header("accept", "application/json").send().await;
        let shown = shown.expect_status(200).text;
        assert!(shown.contains(&format!(r#""arguments":{arguments}"#)), "{path}: {shown}");
    }
    let page = app.get(&link).header("accept", "text/html").send().await.expect_status(200).text;
    for number in numbers.iter().map(String::as_str).chain(["1.5e2"]) {
        assert!(page.contains(number), "{number}: {page}");
    }
}

/// An app with the tool `the_tool` of an agent file, which needs an approval.
fn app_with_http_tool(server: &Server) -> TestApp {
    let spec = "method: POST
url: ${SERVER}/pay
parameters: { properties: { amount: { type: number }, count: { type: integer }, list: {} } }
approval: { reason: 'Pays {amount} {count} times for {list}.', approvers: [owner, link] }";
    let tool = tool(spec, server);
    TestApp::new().with_agent(|agent| agent.tools.push(tool))
}

#[tokio::test]
async fn approval_shows_coerced_arguments() {
    let server = Server::start(&[]);
    let app = app_with_http_tool(&server);
    app.run(r#"use the_tool with {"amount":"500.10","count":"5"} then say done"#).await;
    let link = app.approval_link().await;
    for path in ["/api/approvals", "/api/conversations/c", &link] {
        let shown = app.get(path).header("accept", "application/json").send().await;
        let shown = shown.expect_status(200).text;
        assert!(shown.contains(r#""arguments":{"amount":500.10,"count":5}"#), "{path}: {shown}");
    }
    let page = app.get(&link).header("accept", "text/html").send().await.expect_status(200).text;
    for member in ["amount&quot;: 500.10", "count&quot;: 5"] {
        assert!(page.contains(member), "{page}");
    }
}

#[tokio::test]
async fn reason_of_an_approval_has_each_digit() {
    let server = Server::start(&[]);
    let app = app_with_http_tool(&server);
    let (amount, list) = ("250.000000000000000000001", "[12345678901234567890123,1.10]");
    let arguments = format!(r#"{{"amount":{amount},"count":"5","list":{list}}}"#);
    app.run(&format!("use the_tool with {arguments} then say done")).await;
    let reason = format!("Pays {amount} 5 times for {list}.");
    let link = app.approval_link().await;
    for path in ["/api/approvals", "/api/conversations/c", &link] {
        let shown = app.get(path).send().await.expect_status(200).text;
        assert!(shown.contains(&reason), "{path}: {shown}");
    }
    let page = app.get(&link).header("accept", "text/html").send().await.expect_status(200).text;
    assert!(page.contains(&reason), "{page}");
}

#[tokio::test]
async fn inserted_prompts_and_messages_keep_each_digit() {
    let echoes = Echoes::new();
    let app = &echoes.app;
    app.run("say one").await;
    let document = document();
    let output = format!(
        r#"{{"type":"tool","toolCallId":"c1","function":"echo","input":{document},"result":{{"type":"success","output":{document}}}}}"#
    );
    let body = format!(r#"{{"input":"x","source":"user","output":[{output}]}}"#);
    let insert = async |key: &str, body: String| {
        let request = app.request(http::Method::POST, "/api/conversations/c/prompts/import");
        request.key(key).header("content-type", "application/json").body(body).send().await
    };
    let accepted = insert("k", body.clone()).await.expect_status(202);
    let location = accepted.header("location").to_owned();
    insert("k", body.replace("1.10", "1.1000000000000000000001")).await.expect_status(422);
    app.work().await;
    echoes.assert_shows(&location, 2).await;
    echoes.assert_views_show("c", 2).await;
    let body = format!(r#"{{"customType":"note","content":"n","details":{document}}}"#);
    let message = app.request(http::Method::POST, "/api/conversations/c/messages").body(body);
    message.header("content-type", "application/json").send().await.expect_status(202);
    app.work().await;
    echoes.assert_views_show("c", 3).await;
}

#[tokio::test]
async fn number_that_no_float_holds_is_refused() {
    let echoes = Echoes::new();
    for number in ["1e400", "-1e999", &"9".repeat(310)] {
        let call = format!(r#"use echo with {{"numbers":[{number}]}} then say done"#);
        let prompt = echoes.app.run(&call).await;
        let path = format!("/api/conversations/c/prompts/{prompt}");
        let seen = echoes.app.get(&path).send().await.expect_status(200).text;
        assert!(seen.contains(r#""result":{"type":"error""#), "{seen}");
    }
    assert!(echoes.received.lock().unwrap().is_empty());
    let raw = RawJson::from_text(r#"{"a":1e400}"#).unwrap();
    assert!(raw.read::<serde_json::Value>().is_err());
}

#[tokio::test]
async fn unknown_members_of_files_keep_their_text() {
    let app = TestApp::new();
    // The last number is too large for a float.
    let unknown =
        format!(r#"{{"numbers": [{}, 12345678901234567890.1, 1e400]}}"#, numbers(8).join(","));
    let base = r#""timestamp":"2026-01-01T00:00:00.000Z""#;
    let entries = [
        format!(
            r#"{{"entryId":"e1","parentId":null,"seq":1,{base},"type":"message","message":{{"role":"user","content":[{{"type":"text","text":"hi","later":{unknown}}}],"timestamp":1,"later":{unknown}}},"later":{unknown}}}"#
        ),
        format!(
            r#"{{"entryId":"e2","parentId":"e1","seq":2,{base},"type":"message","message":{{"role":"toolResult","toolCallId":"c","toolName":"t","content":[],"details":{unknown},"isError":false,"timestamp":1}}}}"#
        ),
        format!(
            r#"{{"entryId":"e3","parentId":"e2","seq":3,{base},"type":"custom","customType":"x","data":{unknown}}}"#
        ),
        format!(
            r#"{{"entryId":"e4","parentId":"e3","seq":4,{base},"type":"later","data":{unknown}}}"#
        ),
    ];
    let header = format!(
        r#"{{"type":"turnwheel","version":1,"id":"c","agent":"clerk",{base},"pi":{{"type":"session","version":3,"id":"p",{base},"cwd":"/","later":{unknown}}}}}"#
    );
    let mut file = [&[header][..], &entries[..]].concat().join("\n");
    for id in ["first", "second"] {
        let path = format!("/api/conversations/import?conversationId={id}");
        let import = app.request(http::Method::POST, &path).key(id).body(file);
        let import = import.header("content-type", "application/x-ndjson");
        import.send().await.expect_status(201);
        for view in ["entries", "messages", "events?follow=false", "export?format=html"] {
            app.get(&format!("/api/conversations/{id}/{view}")).send().await.expect_status(200);
        }
        let export = format!("/api/conversations/{id}/export?format=turnwheel");
        file = app.get(&export).send().await.expect_status(200).text;
        assert_eq!(file.matches(&unknown).count(), 7, "{file}");
        let mut lines = file.lines();
        assert!(lines.next().is_some_and(|line| line.contains(&format!(r#""later":{unknown}"#))));
        assert_eq!(lines.collect::<Vec<_>>(), entries);
    }
}
