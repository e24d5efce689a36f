//! Tests of `agent-prompts` messages: accepted, or moved to the poison queue with the reason.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Map, Value, json};
use turnwheel::testing::commands::prompt_queue::{QueueMessageOutcome, accept_queue_message};
use turnwheel::testing::queue::{PROMPTS, Queue as _, poison_queue};
use turnwheel::testing::store::memory::StoreFaults;

use super::test_app::TestApp;

async fn accept(app: &TestApp, text: &str, id: &str) -> QueueMessageOutcome {
    accept_queue_message(&app.services, text, id).await.unwrap()
}

#[tokio::test]
async fn queue_message_id_is_the_idempotency_key() {
    let app = TestApp::new();
    let plain = json!({"conversationId": "c", "agent": "clerk", "input": "say hello"}).to_string();
    let coded = base64::engine::general_purpose::STANDARD.encode(&plain);
    for (text, id) in [(&plain, "m1"), (&plain, "m1"), (&coded, "m1")] {
        assert!(matches!(accept(&app, text, id).await, QueueMessageOutcome::Accepted(_)), "{text}");
    }
    app.work().await;
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"].as_array().unwrap().len(), 1);
    assert_eq!(prompts["items"][0]["state"], "completed");
}

/// As writers of Windows and of several SDKs send them.
#[tokio::test]
async fn queue_message_may_have_byte_order_mark_and_any_base64() {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
    let app = TestApp::new();
    let message = |id: &str| {
        json!({"conversationId": id, "agent": "clerk", "input": "say ÿþ~~~???>>>"}).to_string()
    };
    let marked = |id: &str| format!("\u{feff}{}", message(id));
    let broken_lines = STANDARD.encode(message("c4"));
    let (first, second) = broken_lines.split_at(40);
    for (number, text) in [
        marked("c0"),
        format!("\u{feff} \r\n{}", message("c1")),
        STANDARD.encode(marked("c2")),
        URL_SAFE_NO_PAD.encode(message("c3")),
        format!("{first}\r\n{second}\r\n"),
        URL_SAFE.encode(marked("c5")),
        STANDARD.encode(message("c6")).trim_end_matches('=').to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let outcome = accept(&app, text, &format!("m{number}")).await;
        assert!(matches!(outcome, QueueMessageOutcome::Accepted(_)), "{text}: {outcome:?}");
        app.get(&format!("/api/conversations/c{number}")).send().await.expect_status(200);
    }
    let utf16: Vec<u8> = message("c9").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let QueueMessageOutcome::Rejected { reason } =
        accept(&app, &STANDARD.encode(utf16), "m9").await
    else {
        panic!("UTF-16 is refused");
    };
    assert!(reason.contains("UTF-16"), "{reason}");
}

#[tokio::test]
async fn queue_messages_run_one_after_another() {
    let app = TestApp::new();
    for (id, word) in [("m1", "one"), ("m2", "two"), ("m3", "three")] {
        let text = json!({"conversationId": "c", "input": format!("say {word}")}).to_string();
        assert!(matches!(accept(&app, &text, id).await, QueueMessageOutcome::Accepted(_)));
        app.clock.advance(Duration::from_millis(5));
    }
    app.work().await;
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    let outputs: Vec<Value> = prompts["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|prompt| prompt["output"][0]["content"].clone())
        .collect();
    assert_eq!(outputs, ["one", "two", "three"]);
}

#[tokio::test]
async fn invalid_queue_message_moves_to_poison_queue() {
    let app = TestApp::new();
    let twice = json!(json!({"input": "x"}).to_string()).to_string();
    let twice_coded = base64::engine::general_purpose::STANDARD.encode(&twice);
    let cases = [
        ("{", "the JSON ends too early"),
        ("%%%", "neither JSON nor base64"),
        (r#"["x"]"#, "the message is a JSON list, not an object"),
        (r#""x""#, "the message is a JSON text, not an object"),
        ("1234", "the message is a JSON number, not an object"),
        ("true", "the message is a JSON boolean, not an object"),
        ("null", "the message is null, not an object"),
        (twice.as_str(), "it was serialised twice"),
        (twice_coded.as_str(), "it was serialised twice"),
        (r#"{"input":"x","colour":"red"}"#, "colour"),
        (r#"{"input":"x","agent":"nobody"}"#, "nobody"),
        (r#"{"input":"x","userId":"a/b"}"#, "userId"),
    ];
    for (number, (text, reason)) in cases.into_iter().enumerate() {
        let outcome = accept(&app, text, &format!("m{number}")).await;
        assert!(
            matches!(&outcome, QueueMessageOutcome::Rejected { reason: details } if details.contains(reason)),
            "{outcome:?}"
        );
        let poison = poison_queue(PROMPTS);
        let poisoned =
            app.queue.receive(&poison, 1, Duration::from_secs(1)).await.unwrap().remove(0);
        let details: Value = serde_json::from_str(&poisoned.text).unwrap();
        assert_eq!(details["original"], text);
        assert_eq!(details["messageId"], format!("m{number}"));
        assert!(
            details["reason"].as_str().unwrap().contains(reason)
                && details["receivedAt"].is_string(),
            "{details}"
        );
        app.queue.delete(&poison, &poisoned.id, &poisoned.pop_receipt).await.unwrap();
    }
}

#[tokio::test]
async fn rejection_names_the_right_spelling() {
    let app = TestApp::new();
    let text = r#"{"conversation_id":"c","input":"x"}"#;
    let QueueMessageOutcome::Rejected { reason } = accept(&app, text, "m1").await else {
        panic!("the message must be rejected");
    };
    assert_eq!(
        reason,
        "the message is invalid: unknown field `conversation_id`: write `conversationId` (at /conversation_id)"
    );
}

/// The host's id of a message is empty if the message could have forged it.
#[tokio::test]
async fn queue_message_id_is_metadata_of_its_conversation() {
    let app = TestApp::new();
    let full: Value = (0..64).map(|n| (n.to_string(), json!("x"))).collect::<Map<_, _>>().into();
    for (conversation, id, given, expected) in [
        ("c0", "m0", json!({}), json!({"messageId": "m0"})),
        ("c1", "", json!({}), Value::Null),
        ("c2", "m2", json!({"messageId": "mine"}), json!({"messageId": "mine"})),
        ("c3", "m3", full.clone(), full),
    ] {
        let text = json!({"conversationId": conversation, "input": "say a", "metadata": given});
        accept(&app, &text.to_string(), id).await;
        let view = app.get_json(&format!("/api/conversations/{conversation}")).await;
        let metadata = view.get("metadata").filter(|it| **it != json!({})).cloned();
        assert_eq!(metadata.unwrap_or_default(), expected, "{view}");
    }
}

#[tokio::test]
async fn queue_message_has_model_and_visible() {
    let app = TestApp::new();
    for id in ["m1", "m2"] {
        let text =
            json!({"conversationId": "c", "input": "say a", "model": "high", "visible": false});
        let outcome = accept(&app, &text.to_string(), id).await;
        assert!(matches!(outcome, QueueMessageOutcome::Accepted(_)), "{outcome:?}");
    }
    let inbox = app.get_json("/api/conversations/c/inbox").await;
    let visible: Vec<&Value> =
        inbox["items"].as_array().unwrap().iter().map(|item| &item["visible"]).collect();
    assert_eq!(visible, [&json!(false), &json!(false)]);
    app.work().await;
    let created = app.events_named("prompt.created").await;
    let models: Vec<&Value> = created.iter().map(|event| &event["model"]).collect();
    assert_eq!(models, ["high", "high"]);
}

/// The reason of a message that has no room for it is a message of its own.
#[tokio::test]
async fn rejected_message_near_size_limit_has_its_reason() {
    let app = TestApp::new();
    let poison = poison_queue(PROMPTS);
    for length in [10, 60_000, 65_400] {
        let text = json!({"input": "x".repeat(length), "metadata": {"order": 4711}}).to_string();
        accept(&app, &text, "m1").await;
        let mut messages = Vec::new();
        for message in app.queue.receive(&poison, 10, Duration::from_secs(1)).await.unwrap() {
            app.queue.delete(&poison, &message.id, &message.pop_receipt).await.unwrap();
            messages.push(message.text);
        }
        let (reasons, originals): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|text| text.contains("\"reason\""));
        let [reason] = reasons.as_slice() else { panic!("{length}: {reasons:?}") };
        let reason: Value = serde_json::from_str(reason).unwrap();
        let place = "this must be a text, not 4711 (at /metadata/order)";
        assert!(reason["reason"].as_str().unwrap().ends_with(place), "{reason}");
        if length < 65_000 {
            assert_eq!((&reason["original"], originals.len()), (&json!(text), 0));
        } else {
            assert_eq!(originals, std::slice::from_ref(&text));
            assert_eq!(reason["originalSha256"].as_str().unwrap().len(), 64);
            assert!(reason.get("original").is_none(), "{reason}");
        }
    }
}

#[tokio::test]
async fn queue_message_for_another_agent_is_rejected() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let text = json!({"conversationId": "c", "agent": "other", "input": "x"}).to_string();
    let QueueMessageOutcome::Rejected { reason } = accept(&app, &text, "m1").await else {
        panic!("the message must be rejected");
    };
    assert!(reason.contains("belongs to agent `clerk`") && reason.contains("`other`"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn message_stays_queued_when_store_unavailable() {
    let app = TestApp::new();
    app.store.set_faults(StoreFaults { unavailable_before: 1.0, ..StoreFaults::default() });
    assert!(accept_queue_message(&app.services, r#"{"input":"x"}"#, "m1").await.is_err());
    assert_eq!(app.queue.length(&poison_queue(PROMPTS)).await.unwrap(), 0);
}

#[tokio::test]
async fn queue_message_with_invalid_key_is_rejected() {
    let app = TestApp::new();
    for key in ["", "a b", "é", &"k".repeat(256), &"k".repeat(65_000)] {
        let text = json!({"input": "say a", "idempotencyKey": key}).to_string();
        let QueueMessageOutcome::Rejected { reason } = accept(&app, &text, "m1").await else {
            panic!("the key has {} bytes", key.len());
        };
        let expected = "`idempotencyKey` is 1 to 255 visible ASCII characters (at /idempotencyKey)";
        assert_eq!(reason, expected);
    }
    assert_eq!(app.get_json("/api/conversations").await["items"], json!([]));
}

#[tokio::test]
async fn reused_key_of_a_message_is_rejected_with_its_place() {
    let app = TestApp::new();
    let longest = "k".repeat(255);
    for (word, is_accepted) in [("one", true), ("one", true), ("two", false)] {
        let text = json!({
            "conversationId": "c", "input": format!("say {word}"), "idempotencyKey": longest,
        });
        match accept(&app, &text.to_string(), "m1").await {
            QueueMessageOutcome::Accepted(_) => assert!(is_accepted, "{word}"),
            QueueMessageOutcome::Rejected { reason } => {
                assert!(!is_accepted && reason.ends_with(" (at /idempotencyKey)"), "{reason}");
                assert!(!reason.contains("Idempotency-Key"), "{reason}");
            }
        }
    }
    app.work().await;
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"].as_array().unwrap().len(), 1);
}

/// As of runs that an operator starts: each is a message of its own.
#[tokio::test]
async fn messages_without_id_each_start_a_prompt() {
    let app = TestApp::new();
    for word in ["one", "two", "two"] {
        let text = json!({"conversationId": "c", "input": format!("say {word}")}).to_string();
        let outcome = accept(&app, &text, "").await;
        assert!(matches!(outcome, QueueMessageOutcome::Accepted(_)), "{outcome:?}");
        app.clock.advance(Duration::from_millis(5));
    }
    app.work().await;
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn id_of_an_invocation_is_a_key_but_no_label() {
    let app = TestApp::new();
    let text = json!({"conversationId": "c", "input": "say a"}).to_string();
    for _ in 0..2 {
        let outcome = accept(&app, &text, "invocation 1").await;
        assert!(matches!(outcome, QueueMessageOutcome::Accepted(_)), "{outcome:?}");
    }
    app.work().await;
    let prompts = app.get_json("/api/conversations/c/prompts").await;
    assert_eq!(prompts["items"].as_array().unwrap().len(), 1);
    let view = app.get_json("/api/conversations/c").await;
    assert!(view["metadata"]["messageId"].is_null(), "{view}");
}

/// A message for each bound of the schema, and whether it is within it.
fn messages_at_bounds() -> Vec<(Value, bool)> {
    let labels = |count: usize| -> Value {
        (0..count).map(|number| (number.to_string(), json!("x"))).collect::<Map<_, _>>().into()
    };
    let settings = |settings: Value| json!({"settings": settings});
    let retry = |member: &str, value: Value| settings(json!({"retry": {member: value}}));
    let limit = |limit: Value| settings(json!({"budget": {"prompt": limit}}));
    vec![
        (json!({"conversationId": "c".repeat(128)}), true),
        (json!({"conversationId": "c".repeat(129)}), false),
        (json!({"conversationId": "..c"}), true),
        (json!({"conversationId": ".."}), false),
        (json!({"conversationId": ""}), false),
        (json!({"tenantId": "t."}), true),
        (json!({"tenantId": "."}), false),
        (json!({"userId": "..."}), false),
        (json!({"idempotencyKey": "k".repeat(255)}), true),
        (json!({"idempotencyKey": "k".repeat(256)}), false),
        (json!({"idempotencyKey": ""}), false),
        (json!({"idempotencyKey": "a b"}), false),
        (json!({"idempotencyKey": "!~"}), true),
        (json!({"metadata": labels(64)}), true),
        (json!({"metadata": labels(65)}), false),
        (json!({"input": ""}), false),
        (json!({"input": []}), false),
        (settings(json!({"maxRounds": 0})), false),
        (settings(json!({"temperature": 2})), true),
        (settings(json!({"temperature": 2.1})), false),
        (settings(json!({"maxOutputTokens": 1_000_000})), true),
        (settings(json!({"maxOutputTokens": 1_000_001})), false),
        (settings(json!({"hardRoundsMax": 200})), true),
        (settings(json!({"hardRoundsMax": 201})), false),
        (settings(json!({"parallelToolsMax": 17})), false),
        (settings(json!({"compaction": {"enabled": null, "reserveTokens": null}})), true),
        (retry("enabled", Value::Null), true),
        (retry("jitter", Value::Null), true),
        (retry("jitter", json!(1.1)), false),
        (retry("maxRetries", json!(100)), true),
        (retry("maxRetries", json!(101)), false),
        (retry("maxDelayMs", json!(86_400_000)), true),
        (retry("maxDelayMs", json!(86_400_001)), false),
        (limit(json!({"tokens": 1, "usd": 0.5})), true),
        (limit(json!({"tokens": 0})), false),
        (limit(json!({"tokens": 1_000_000_000_000_000_u64})), true),
        (limit(json!({"tokens": 1_000_000_000_000_001_u64})), false),
        (limit(json!({"usd": 0})), false),
        (limit(json!({"usd": 1e-9})), true),
        (limit(json!({"usd": 9.99e-10})), false),
        (limit(json!({"usd": 5e-324})), false),
        (limit(json!({"usd": -1})), false),
        (limit(json!({"usd": 1_000_000_000})), true),
        (limit(json!({"usd": 1_000_000_001})), false),
    ]
}

#[tokio::test]
async fn published_schema_agrees_with_service_at_each_bound() {
    let schema = include_str!("../../../docs/agent-prompts.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let app = TestApp::new();
    for (number, (members, is_valid)) in messages_at_bounds().into_iter().enumerate() {
        let mut message = Map::from_iter([("input".to_owned(), json!("say a"))]);
        message.extend(members.as_object().unwrap().clone());
        let message = Value::Object(message);
        assert_eq!(schema.is_valid(&message), is_valid, "schema: {message}");
        let outcome = accept(&app, &message.to_string(), &format!("m{number}")).await;
        let is_accepted = matches!(outcome, QueueMessageOutcome::Accepted(_));
        assert_eq!(is_accepted, is_valid, "{message}: {outcome:?}");
    }
}
