//! Actions and questions of responses: their effect, and errors that hold no value.

use serde_json::{Value, json};

use super::super::responses::{EventResponse as _, ToolCallResponse, ToolResultResponse};
use super::server::{HookServer, Reply};
use super::*;
use crate::{HookError, Observation, ToolCallDecision};
use turnwheel_conversation::question::{Answer, Asker, QuestionSpec};
use turnwheel_test_support::numbers::ANY_NUMBER;

/// Runs `tool_call` with one response.
async fn check_call(cx: &HookContext, response: Value) -> Result<ToolCallDecision, HookError> {
    assert!(fits_schema("tool_call.response", &response), "{response}");
    run_call(cx, response).await
}

async fn run_call(cx: &HookContext, response: Value) -> Result<ToolCallDecision, HookError> {
    let server = HookServer::start(vec![Reply::json(&response)]).await;
    let extension = extension(&server.url, Duration::from_secs(5));
    extension.before_tool_call(cx, &pending_call(&pay())).await
}

#[tokio::test]
async fn every_action_of_a_response_is_taken() {
    let cx = context(Hook::ToolCall);
    let actions = json!([
        {"type": "appendEntry", "customType": "guard/note", "data": {"a": 1.5}},
        {"type": "sendMessage", "customType": "guard/hint", "content": "Hi", "deliverAs": "followUp", "triggerTurn": true},
        {"type": "sendUserMessage", "content": [{"type": "text", "text": "go"}], "queue": "steer"},
        {"type": "setModel", "model": "high"},
        {"type": "setThinkingLevel", "level": "low"},
        {"type": "setActiveTools", "tools": ["pay"]},
        {"type": "setSessionName", "name": "Bills"},
        {"type": "setLabel", "entryId": "e1", "label": "here"},
        {"type": "abort"},
        {"type": "compact", "instructions": "short"},
        {"type": "notify", "text": "Checked.", "severity": "warning"},
    ]);
    let response = json!({"decision": "allow", "actions": actions});
    check_call(&cx, response).await.unwrap();
    let taken = serde_json::to_value(cx.take_stored_actions().unwrap()).unwrap();
    let expected = json!([
        {"appendEntry": {"customType": "guard/note", "data": {"a": 1.5}}},
        {"sendMessage": {"message": {"customType": "guard/hint", "content": "Hi", "display": true},
            "deliverAs": "followUp", "triggerTurn": true}},
        {"sendUserMessage": {"content": [{"type": "text", "text": "go"}], "queue": "steer"}},
        {"setModel": {"model": "high", "change": taken["actions"][3]["setModel"]["change"]}},
        {"setThinkingLevel": "low"},
        {"setActiveTools": ["pay"]},
        {"setName": "Bills"},
        {"setLabel": {"entryId": "e1", "label": "here"}},
        "abort",
        {"compact": {"instructions": "short"}},
        {"notify": {"text": "Checked.", "severity": "warning"}},
    ]);
    assert_eq!(taken, json!({"by": "guard", "actions": expected}));
}

proptest::proptest! {
    /// Any JSON number is taken as written, or the response is refused.
    #[test]
    fn any_number_in_changed_arguments_is_kept_or_refused(
        number in ANY_NUMBER,
    ) {
        let arguments = format!("{{\"amount\":{number},\"list\":[{number},{{\"a\":{number}}}]}}");
        let body = format!("{{\"decision\":\"change\",\"arguments\":{arguments}}}");
        let response = ToolCallResponse::read(&body);
        match response.and_then(|response| response.into_decision(1)) {
            Ok(ToolCallDecision::ChangeText(changed)) => {
                proptest::prop_assert_eq!(changed.text(), arguments);
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => proptest::prop_assert!(!number.parse::<f64>().unwrap().is_finite()),
        }
    }
}

#[test]
fn changed_arguments_with_repaired_values_are_failures() {
    for number in ["NaN", "-Infinity", "1e400"] {
        let body = format!(r#"{{"decision":"change","arguments":{{"amount":{number}}}}}"#);
        let reason = ToolCallResponse::read(&body).unwrap_err();
        assert!(reason.contains("would not be sent as written"), "{reason}");
    }
}

/// A mistake of the form changes no value, so that the response counts with all its members.
#[test]
fn response_with_mistakes_of_form_loses_nothing() {
    for body in [
        "\u{feff}{\"decision\":\"change\",\"arguments\":{\"amount\":1.10,\"list\":[1]}}",
        r#"{"decision":"change","arguments":{"amount":1.10,"list":[1,],},}"#,
    ] {
        let decision = ToolCallResponse::read(body).unwrap().into_decision(1).unwrap();
        let ToolCallDecision::ChangeText(changed) = decision else { panic!("{decision:?}") };
        assert_eq!(changed.text(), r#"{"amount":1.10,"list":[1]}"#, "{body}");
    }
    let decide = |body: &str| ToolCallResponse::read(body).unwrap().into_decision(1).unwrap();
    let block = r#"{"decision":"block","reason":"too much","terminate":true,}"#;
    assert_eq!(decide(block), decide(&block.replace(",}", "}")));
    // Where no tool receives the value, a number that JSON does not have becomes its text.
    let body = r#"{"content":"ok","details":{"rate":NaN,"sum":1.10},}"#;
    let changes = ToolResultResponse::read(body).unwrap().into_changes();
    assert_eq!(changes.details.unwrap().text(), r#"{"rate":"NaN","sum":1.10}"#);
    assert!(changes.content.is_some());
}

/// The context of an extension with these permissions.
fn declared_context(permissions: Permissions) -> HookContext {
    let own = extension("http://127.0.0.1:9", Duration::from_secs(5));
    let site = new_site("c", "i", Hook::ToolCall, Anchor::Response(1));
    HookContext::new(Arc::new(site), Arc::new(HttpExtension { permissions, ..own }))
}

#[tokio::test]
async fn undeclared_actions_tools_and_entry_types_are_refused() {
    let none =
        || Permissions::new().with_actions([""; 0]).with_tools([""; 0]).with_storage([""; 0]);
    let changes = [
        (json!({"type": "setModel", "model": "high"}), "actions"),
        (json!({"type": "notify", "text": "Hi."}), "actions"),
        (json!({"type": "setActiveTools", "tools": ["pay"]}), "tools"),
        (json!({"type": "appendEntry", "customType": "guard/note"}), "entries"),
    ];
    for (action, missing) in &changes {
        let response = json!({"decision": "allow", "actions": [action]});
        let error = check_call(&declared_context(none()), response.clone()).await.unwrap_err();
        assert!(error.to_string().contains("add it to `actions`"), "{error}");
        let name = action["type"].as_str().unwrap();
        let with_action = none().with_actions([name]);
        let checked = check_call(&declared_context(with_action.clone()), response.clone()).await;
        assert_eq!(checked.is_ok(), *missing == "actions", "{name}");
        if let Err(error) = checked {
            assert!(error.to_string().contains(&format!("add it to `{missing}`")), "{error}");
        }
        let all = with_action.with_tools(["*"]).with_storage(["guard/note"]);
        check_call(&declared_context(all), response).await.unwrap();
    }
}

#[tokio::test]
async fn refused_actions_are_failures_without_values() {
    let large = "x".repeat(70_000);
    for (action, reason) in [
        (
            json!({"type": "appendEntry", "customType": "turnwheel/hidden"}),
            "/actions/1 was refused: a customType does not begin with turnwheel/",
        ),
        (json!({"type": "setSessionName", "name": "hidden\u{7}"}), "no control characters"),
        (json!({"type": "notify", "text": large}), "16 actions of 64 KB together"),
        (json!({"type": "hidden"}), "at line 1"),
        (json!({"type": "abort", "hidden": 1}), "a member is unknown"),
        (json!({"type": "sendUserMessage", "content": "hidden"}), "at line 1"),
    ] {
        let actions = json!([{"type": "notify", "text": "first"}, action]);
        let response = json!({"decision": "allow", "actions": actions});
        let cx = context(Hook::ToolCall);
        let run = run_call(&cx, response.clone()).await;
        let error = run.expect_err(&response.to_string()).to_string();
        assert!(
            error.starts_with("its response is not valid: ") && error.contains(reason),
            "{error}"
        );
        assert!(!error.contains("hidden"), "{error}");
    }
    // Observers have no actions.
    let server = HookServer::start(vec![Reply::json(&json!({"actions": []}))]).await;
    let extension = extension(&server.url, Duration::from_secs(5));
    let observed = extension.observe(&context(Hook::AgentStart), &Observation::AgentStart).await;
    assert!(observed.unwrap_err().to_string().contains("a member is unknown"));
}

async fn asked(response: Value) -> QuestionSpec {
    let cx = context(Hook::ToolCall);
    check_call(&cx, response).await.unwrap_err();
    cx.take_question().unwrap()
}

#[tokio::test]
async fn each_kind_of_question_is_asked() {
    let confirm =
        asked(json!({"ask": {"kind": "confirm", "key": "known", "text": "Known?"}})).await;
    assert_eq!(confirm.asker, Asker { extension: "guard".to_owned(), key: "known".to_owned() });
    assert_eq!(
        (confirm.text.as_str(), confirm.schema.to_value()),
        ("Known?", json!({"type": "boolean"}))
    );
    let select = asked(json!({"ask": {
        "kind": "select", "key": "way", "text": "Which way?", "options": ["bank", "card"],
        "approvers": ["link"], "expiresAfter": "2h"
    }}))
    .await;
    assert_eq!(select.schema.to_value()["enum"], json!(["bank", "card"]));
    assert_eq!(
        (select.approvers, select.expires_after),
        (vec!["link".to_owned()], Duration::from_hours(2))
    );
    let input =
        asked(json!({"ask": {"kind": "input", "key": "why", "text": "Why?", "hint": "one line"}}))
            .await;
    assert_eq!(input.schema.to_value()["description"], "one line");
}

#[tokio::test]
async fn answers_are_sent_with_the_next_request() {
    let server = HookServer::start(vec![Reply::json(&json!({"decision": "allow"}))]).await;
    let extension = extension(&server.url, Duration::from_secs(5));
    let mut answers = Answers::default();
    let mut add = |key: &str, answer| {
        let asker = Asker { extension: "guard".to_owned(), key: key.to_owned() };
        answers.add(&asker, answer);
    };
    add("known", Answer::Confirmation(true));
    add("way", Answer::Missing(()));
    add("why", Answer::Text("rent".to_owned()));
    let cx = context(Hook::ToolCall).with_questions(&answers);
    extension.before_tool_call(&cx, &pending_call(&pay())).await.unwrap();
    let body = server.received().remove(0).body;
    assert_eq!(body["answers"], json!({"known": true, "way": null, "why": "rent"}));
    assert!(fits_schema("tool_call.request", &body), "{body}");

    let again = json!({"ask": {"kind": "confirm", "key": "known", "text": "Known?"}});
    let error = run_call(&cx, again).await.unwrap_err().to_string();
    assert!(error.contains("has an answer in `answers` already"), "{error}");
    assert!(cx.take_question().is_none());
}

#[tokio::test]
async fn wrong_questions_are_failures_without_values() {
    let ask = |more: Value| {
        let mut ask = json!({"kind": "confirm", "key": "hidden", "text": "hidden?"});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"ask": ask})
    };
    let mut both = ask(json!({}));
    both["decision"] = json!("allow");
    for (response, reason) in [
        (both, "ask needs no decision"),
        (ask(json!({"kind": "select"})), "needs options"),
        (ask(json!({"options": ["hidden"]})), "needs options"),
        (ask(json!({"hint": "hidden"})), "hint needs the kind input"),
        (ask(json!({"kind": "select", "options": ["hidden", "hidden"]})), "options are different"),
        (ask(json!({"key": ""})), "a key has 1 to 64 bytes"),
        (ask(json!({"text": "x".repeat(3_000)})), "2 KB"),
        (ask(json!({"approvers": ["hidden"]})), "approvers is a list"),
        (ask(json!({"expiresAfter": "hidden"})), "expiresAfter is a duration"),
        (json!({}), "decision or ask is missing"),
    ] {
        let cx = context(Hook::ToolCall);
        let error = run_call(&cx, response.clone()).await.unwrap_err().to_string();
        assert!(error.contains(reason) && !error.contains("hidden"), "{response} {error}");
        assert!(cx.take_question().is_none(), "{response}");
    }
}
