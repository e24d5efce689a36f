//! Members of requests that are null: they count as absent, in each request of the OpenAPI
//! document.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};
use turnwheel::testing::commands::prompt_queue::{QueueMessageOutcome, accept_queue_message};

use super::commands::{PROMPTS, WAITING_PROMPT, desk_app};
use super::test_app::{ApiResponse, TestApp};

/// Operations whose bodies are merge patches, in which null removes a member.
const MERGE_PATCHES: [&str; 1] = ["updateConversation"];

/// State of the conversation `c` before a request.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    /// A prompt has ended.
    Idle,
    /// A prompt waits for an approval, and a steer is queued.
    Waiting,
}

/// A valid request of an operation. `{entry}`, `{input}`, `{approval}` and `{link}` of the path
/// stand for what the state has.
struct Example {
    operation: &'static str,
    before: Before,
    path: String,
    body: Value,
}

#[expect(clippy::too_many_lines, reason = "one table of all requests")]
fn examples() -> Vec<Example> {
    let settings = || {
        json!({
            "retry": {}, "compaction": {}, "budget": {"prompt": {"tokens": 9}, "conversation": {"usd": 1}}
        })
    };
    let blocks = || json!([{"type": "text", "text": "say hi"}]);
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "x"}], "timestamp": 0},
        {
            "role": "assistant", "content": [{"type": "text", "text": "x"}], "api": "a", "provider": "p",
            "model": "m", "stopReason": "stop", "timestamp": 0
        },
        {
            "role": "toolResult", "toolCallId": "1", "toolName": "t", "content": [], "isError": false,
            "timestamp": 0
        },
        {"role": "custom", "customType": "t", "content": "x", "display": true, "timestamp": 0},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "x"},
    ]);
    let example = |operation, before, path: String, body| Example { operation, before, path, body };
    let c = "/api/conversations/c";
    let in_c = |operation, before, rest: &str, body| {
        example(operation, before, format!("{c}/{rest}"), body)
    };
    vec![
        example(
            "createConversation",
            Before::Nothing,
            "/api/conversations".to_owned(),
            json!({"settings": settings(), "metadata": {}, "messages": messages}),
        ),
        example(
            "startConversation",
            Before::Nothing,
            "/api/prompts".to_owned(),
            json!({"settings": settings(), "metadata": {}, "input": blocks()}),
        ),
        example(
            "createSchedule",
            Before::Nothing,
            "/api/schedules".to_owned(),
            json!({"every": "P1D", "input": blocks()}),
        ),
        example(
            "putMemory",
            Before::Nothing,
            "/api/memory".to_owned(),
            json!({"items": [{"text": "likes tea"}]}),
        ),
        example(
            "putSkill",
            Before::Nothing,
            "/api/skills/closing".to_owned(),
            json!({"description": "Closes.", "instructions": "Count."}),
        ),
        in_c("createPrompt", Before::Idle, "prompts", json!({"input": blocks()})),
        in_c(
            "importPrompt",
            Before::Idle,
            "prompts/import",
            json!({
                "source": "user", "input": blocks(), "output": [
                    {"type": "text", "content": "x"},
                    {"type": "tool", "function": "f", "input": {}, "result": {"type": "success", "output": 1}},
                    {"type": "widget", "widget": "w", "data": {}, "fallback": "x"},
                ],
            }),
        ),
        in_c("forkConversation", Before::Idle, "fork", json!({"entryId": "{entry}"})),
        in_c("moveLeaf", Before::Idle, "leaf", json!({"entryId": "root"})),
        in_c("labelEntry", Before::Idle, "entries/{entry}/label", json!({"label": "a"})),
        in_c("compactConversation", Before::Idle, "compact", json!({})),
        in_c("runCommand", Before::Idle, "commands/greet", json!({})),
        in_c("recordBash", Before::Idle, "bash", json!({"command": "ls", "output": "a"})),
        in_c("abortPrompt", Before::Waiting, "abort", json!({})),
        in_c("continueConversation", Before::Idle, "continue", json!({})),
        in_c(
            "addMessage",
            Before::Idle,
            "messages",
            json!({"customType": "t", "content": blocks()}),
        ),
        in_c("updateInput", Before::Waiting, "inbox/{input}", json!({"input": blocks()})),
        in_c(
            "decideApproval",
            Before::Waiting,
            "approvals/{approval}",
            json!({"decision": "approve"}),
        ),
        example(
            "decideApprovalLink",
            Before::Waiting,
            "{link}".to_owned(),
            json!({"decision": "approve"}),
        ),
    ]
}

/// A service in the state, with the values of the placeholders.
async fn app_in_state(before: Before) -> (TestApp, Vec<(&'static str, String)>) {
    let (app, _) = desk_app();
    let mut values = Vec::new();
    if before == Before::Idle {
        app.run("say hello").await;
        let entries = app.get_json("/api/conversations/c/entries").await["items"].clone();
        let is_user = |entry: &&Value| entry["message"]["role"] == "user";
        let entry = entries.as_array().unwrap().iter().find(is_user).unwrap();
        values.push(("{entry}", entry["id"].as_str().unwrap().to_owned()));
    }
    if before == Before::Waiting {
        app.run(WAITING_PROMPT).await;
        let steer = app.post(PROMPTS, &json!({"input": "say more", "mode": "steer"})).send().await;
        values.push(("{input}", steer.json()["inputId"].as_str().unwrap().to_owned()));
        let conversation = app.get_json("/api/conversations/c").await;
        let approval = conversation["pendingApprovals"][0]["id"].as_str().unwrap();
        values.push(("{approval}", approval.to_owned()));
        values.push(("{link}", app.approval_link().await));
    }
    (app, values)
}

/// Sends the requests with one idempotency key to a new service.
async fn send(example: &Example, method: &Method, bodies: &[&Value]) -> Vec<ApiResponse> {
    let (app, values) = app_in_state(example.before).await;
    let fill = |text: String| {
        values.iter().fold(text, |text, (placeholder, value)| text.replace(placeholder, value))
    };
    let path = fill(example.path.clone());
    let mut responses = Vec::new();
    for body in bodies {
        let request = app.request(method.clone(), &path).header("content-type", "application/json");
        let request = request.key("k").header("accept", "application/json");
        responses.push(request.body(fill(body.to_string())).send().await);
    }
    responses
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let Some(reference) = schema["$ref"].as_str() else { return schema };
    resolve(document, document.pointer(reference.trim_start_matches('#')).unwrap())
}

/// The objects that a schema may stand for, given a value.
fn object_schemas<'a>(document: &'a Value, schema: &'a Value, value: &Value) -> Vec<&'a Value> {
    let schema = resolve(document, schema);
    let parts = ["oneOf", "anyOf", "allOf"].map(|name| schema[name].as_array());
    let parts = parts.into_iter().flatten().flatten();
    let mut found: Vec<&Value> =
        parts.flat_map(|part| object_schemas(document, part, value)).collect();
    let has_kind = |name: &str| {
        let kind = &schema["properties"][name];
        let expected = kind.get("const").or_else(|| kind["enum"].get(0));
        expected.is_none_or(|expected| value.get(name) == Some(expected))
    };
    if schema["properties"].is_object() && has_kind("type") && has_kind("role") {
        found.push(schema);
    }
    found
}

/// The pointers of all optional members of a body, with those of objects within it.
fn optional_members(document: &Value, schema: &Value, value: &Value, at: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if let Value::Array(items) = value {
        let schema = resolve(document, schema);
        let branches = ["oneOf", "anyOf"].map(|name| schema[name].as_array());
        let branches = branches.into_iter().flatten().flatten().chain([schema]);
        for branch in branches.map(|branch| resolve(document, branch)) {
            for (index, item) in items.iter().enumerate() {
                let at = format!("{at}/{index}");
                found.extend(optional_members(document, &branch["items"], item, &at));
            }
        }
    }
    if !value.is_object() {
        return found;
    }
    for object in object_schemas(document, schema, value) {
        let required = object["required"].as_array().cloned().unwrap_or_default();
        for (name, member) in object["properties"].as_object().unwrap() {
            let pointer = format!("{at}/{name}");
            if let Some(given) = value.get(name) {
                found.extend(optional_members(document, member, given, &pointer));
            } else if !required.contains(&json!(name)) {
                found.insert(pointer);
            }
        }
    }
    found
}

fn with_null(body: &Value, pointer: &str) -> Value {
    let mut body = body.clone();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(parent).unwrap()[name] = Value::Null;
    body
}

#[tokio::test]
async fn null_member_counts_as_absent_in_every_request() {
    let document = TestApp::new().get_json("/api/openapi.json").await;
    let examples = examples();
    let mut count = 0;
    for (_, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let id = operation["operationId"].as_str().unwrap();
            if schema.is_null() || MERGE_PATCHES.contains(&id) {
                continue;
            }
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let example = examples.iter().find(|example| example.operation == id);
            let example = example.unwrap_or_else(|| panic!("no example of {id}"));
            let expected = send(example, &method, &[&example.body]).await.remove(0);
            let is_conflict = id == "continueConversation" && expected.status == 409;
            assert!(expected.status.is_success() || is_conflict, "{id}: {}", expected.text);
            for pointer in optional_members(&document, schema, &example.body, "") {
                let body = with_null(&example.body, &pointer);
                let responses = send(example, &method, &[&body, &example.body]).await;
                let [with_null, repeated] = &responses[..] else { panic!() };
                let name = format!("{id} {pointer}");
                assert_eq!(with_null.text, expected.text, "{name}");
                assert_eq!(with_null.status, expected.status, "{name}");
                // A member at the top does not change the identity of a request either.
                if pointer.matches('/').count() == 1 && expected.status.is_success() {
                    assert_ne!(repeated.status, 422, "{name}");
                }
                count += 1;
            }
        }
    }
    assert!(count > 120, "{count} members");
}

/// The message of a typed client that writes all its members.
#[tokio::test]
async fn null_member_counts_as_absent_in_queue_messages() {
    let app = TestApp::new();
    let message = json!({
        "tenantId": null, "userId": null, "conversationId": "c", "agent": null, "input": "say hello",
        "mode": null, "idempotencyKey": null, "settings": {"retry": {"enabled": null}, "budget": null},
        "metadata": null,
    });
    let same = json!({
        "conversationId": "c", "input": "say hello", "settings": {"retry": {"enabled": null}, "budget": null},
    });
    for text in [message, same] {
        let outcome = accept_queue_message(&app.services, &text.to_string(), "m1").await.unwrap();
        assert!(matches!(outcome, QueueMessageOutcome::Accepted(_)), "{outcome:?}");
    }
    app.work().await;
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"].as_array().unwrap().len(), 1, "{prompts}");
    assert_eq!(prompts["items"][0]["state"], "completed");
}

/// The prompt is an answer to what the conversation has, and only `root` begins anew.
#[tokio::test]
async fn null_position_is_the_leaf_and_root_the_start() {
    for (at, messages) in [(json!(null), 4), (json!("root"), 2)] {
        let app = TestApp::new();
        app.run("say hello").await;
        let body = json!({"input": "say more", "at": at});
        app.post(PROMPTS, &body).send().await.expect_status(202);
        app.work().await;
        let path = app.get_json("/api/conversations/c/messages").await;
        assert_eq!(path["items"].as_array().unwrap().len(), messages, "{at}");
    }
    let app = TestApp::new();
    app.run("say hello").await;
    let leaf = app.get_json("/api/conversations/c/tree").await["leafId"].clone();
    for body in [json!({"entryId": null}), json!({})] {
        let refused = app.post("/api/conversations/c/leaf", &body).send().await;
        let problem = refused.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], "/entryId", "{problem}");
    }
    assert_eq!(app.get_json("/api/conversations/c/tree").await["leafId"], leaf);
}

#[tokio::test]
async fn merge_patch_refuses_null_for_all_settings_or_metadata() {
    let app = TestApp::new();
    let body = json!({
        "id": "c", "settings": {"maxRounds": 3, "temperature": 1}, "metadata": {"a": "1", "b": "2"},
    });
    app.post("/api/conversations", &body).send().await.expect_status(201);
    let path = "/api/conversations/c";
    let before = app.get_json(path).await;
    for name in ["settings", "metadata"] {
        let renaming = json!({"name": "Bills", name: null});
        let problem = app.patch(path, &renaming).send().await.expect_problem(400, "bad-request");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{name}"));
        assert!(problem["detail"].as_str().unwrap().contains("leave it out"), "{problem}");
    }
    assert_eq!(app.get_json(path).await, before);
    let patch =
        json!({"name": "Bills", "settings": {"temperature": null}, "metadata": {"a": null}});
    let patched = app.patch(path, &patch).send().await.expect_status(200).json();
    assert_eq!(patched["settings"], json!({"maxRounds": 3}));
    assert_eq!(patched["metadata"], json!({"b": "2"}));
    let unnamed = app.patch(path, &json!({"name": null})).send().await.expect_status(200).json();
    assert!(unnamed["name"].is_null(), "{unnamed}");
}
