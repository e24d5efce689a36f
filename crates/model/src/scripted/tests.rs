//! Responses of the scripted model, and their streams.

#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better without `&`")]

use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;
use crate::ToolOffer;

#[derive(Default)]
struct RecordingListener(Mutex<Vec<AssistantMessageEvent>>);

impl Listener for RecordingListener {
    fn on_event(&self, event: AssistantMessageEvent) {
        self.0.lock().unwrap().push(event);
    }
}

fn messages(list: Value) -> Vec<Message> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let mut message = message.clone();
            message["timestamp"] = json!(0);
            serde_json::from_value(message).unwrap()
        })
        .collect()
}

fn user_message(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn tool_result(tool: &str, text: &str, is_error: bool) -> Value {
    json!({
        "role": "toolResult", "toolCallId": "c", "toolName": tool,
        "content": [{ "type": "text", "text": text }], "isError": is_error,
    })
}

fn parameters() -> Value {
    json!({
        "type": "object", "required": ["to", "amount"],
        "properties": { "to": { "type": "string" }, "amount": { "type": "number" } },
    })
}

async fn call_model(
    list: Value,
    change: impl FnOnce(&mut ModelRequest<'_>),
) -> (ModelResponse, Vec<AssistantMessageEvent>) {
    let (messages, parameters) = (messages(list), parameters());
    let tools = [ToolOffer {
        name: "send_payment",
        description: "",
        parameters: &parameters,
        strict: false,
    }];
    let messages: Vec<&Message> = messages.iter().collect();
    let record = ScriptedModel.record("normal").unwrap();
    let mut request =
        ModelRequest { tools: &tools, session_id: "c", ..ModelRequest::new(&record, &messages) };
    change(&mut request);
    let listener = RecordingListener::default();
    let answer = ScriptedModel.respond(request, &listener).await;
    (answer, listener.0.into_inner().unwrap())
}

async fn response_text(list: Value) -> String {
    let (answer, _) = call_model(list, |_| {}).await;
    let calls: Vec<String> = answer
        .message
        .tool_calls()
        .map(|call| format!("{}{}", call.name, call.arguments.text()))
        .collect();
    [joined_text(&answer.message.content), calls.join(" & ")].join(" → ")
}

#[tokio::test]
async fn scripted_model_runs_payments_example() {
    let asked = "I will pay 250 to Ada. → send_payment{\"to\":\"Ada\",\"amount\":250}";
    for text in ["Pay 250 to Ada", "please pay $250 to Ada now", "Pay 250 dollars to Ada."] {
        assert_eq!(response_text(json!([user_message(text)])).await, asked, "{text}");
    }
    assert_eq!(
        response_text(json!([user_message("pay ada 99.50 dollars")])).await,
        "I will pay 99.50 to ada. → send_payment{\"to\":\"ada\",\"amount\":99.50}"
    );
    assert_eq!(
        response_text(json!([user_message("Transfer 1,250 EUR to Ada Lovelace today")])).await,
        "I will pay 1250 to Ada Lovelace. → send_payment{\"to\":\"Ada Lovelace\",\"amount\":1250}"
    );
    assert!(
        response_text(json!([user_message("Pay 250k to Ada")]))
            .await
            .starts_with("I am the scripted model")
    );
    let after = |text: &'static str, is_error| {
        response_text(json!([
            user_message("Pay 250 to Ada"),
            tool_result("send_payment", text, is_error)
        ]))
    };
    assert_eq!(
        after(r#"{"receipt":"r-7"}"#, false).await,
        "Paid 250 to Ada. The receipt is r-7. → "
    );
    assert_eq!(after("ok", false).await, "Paid 250 to Ada: ok → ");
    assert_eq!(
        after("Rejected by user", true).await,
        "The payment of 250 to Ada was not made: Rejected by user → "
    );
    assert_eq!(
        after("The outcome is unknown.", true).await,
        "The outcome of the payment of 250 to Ada is unknown: The outcome is unknown. → "
    );
}

#[tokio::test]
async fn scripted_payment_keeps_the_digits_as_typed() {
    for amount in
        ["250.000000000000000000001", "12345678901234567890123", "0.10", "9007199254740993"]
    {
        let request = user_message(&format!("Pay {amount} to Ada"));
        let expected = format!(
            "I will pay {amount} to Ada. → send_payment{{\"to\":\"Ada\",\"amount\":{amount}}}"
        );
        assert_eq!(response_text(json!([request])).await, expected);
        let receipt = format!("{{\"receipt\":{amount}}}");
        let paid = json!([request, tool_result("send_payment", &receipt, false)]);
        let expected = format!("Paid {amount} to Ada. The receipt is {amount}. → ");
        assert_eq!(response_text(paid).await, expected);
    }
    let no_number = response_text(json!([user_message("Pay 007 to Ada")])).await;
    assert!(no_number.ends_with("{\"to\":\"Ada\",\"amount\":\"007\"}"), "{no_number}");
}

#[tokio::test]
async fn scripted_model_puts_payments_in_one_response() {
    assert_eq!(
        response_text(json!([user_message("Pay 10 to Ada and 20 to Bo")])).await,
        "I will make 2 payments. → send_payment{\"to\":\"Ada\",\"amount\":10} & send_payment{\"to\":\"Bo\",\"amount\":20}"
    );
}

#[tokio::test]
async fn scripted_model_follows_script_steps() {
    let script = user_message("use a with {} then use b with {\"x\":1} then say done");
    assert_eq!(response_text(json!([script])).await, " → a{}");
    assert_eq!(response_text(json!([script, tool_result("a", "1", false)])).await, " → b{\"x\":1}");
    assert_eq!(
        response_text(json!([script, tool_result("a", "1", false), tool_result("b", "2", false)]))
            .await,
        "done → "
    );
    let short = user_message("use a with {}");
    assert_eq!(
        response_text(json!([short, tool_result("a", "1", false)])).await,
        "a returned: 1 → "
    );
    assert_eq!(
        response_text(json!([short, tool_result("a", "bad", true)])).await,
        "a failed: bad → "
    );
    assert_eq!(
        response_text(json!([short, tool_result("a", "1", false), user_message("say hi")])).await,
        "hi → "
    );
}

#[tokio::test]
async fn scripted_model_describes_prompt_without_script() {
    assert_eq!(
        response_text(json!([user_message("Hello there")])).await,
        "I am the scripted model, and received 2 words: “Hello there”. I can use send_payment. Try: use send_payment with \
         {\"to\":\"…\",\"amount\":1} then say done → "
    );
    assert_eq!(
        response_text(json!([])).await.split('.').next().unwrap(),
        "I am the scripted model, and received no text"
    );
}

#[tokio::test]
async fn scripted_model_titles_a_message_with_its_first_words() {
    let request = "<message>\nsay Hello then use send_payment with {} for me\n</message>";
    let title = response_text(json!([user_message(request)])).await;
    // The response has no calls after the arrow.
    assert_eq!(title, "say Hello then use send_payment with → ");
}

#[tokio::test]
async fn scripted_model_records_the_newest_messages_in_a_profile() {
    let messages =
        json!([{"at": "t", "text": "a"}, {"text": "b"}, {"text": "c"}, {"text": "say d"}]);
    let request =
        format!("<profile>\n{{\"who\":\"x\"}}\n</profile>\n<messages>\n{messages}\n</messages>");
    let profile = response_text(json!([user_message(&request)])).await;
    // The response has no calls after the arrow.
    assert_eq!(profile, r#"{"who":"x","misc":"say d; c; b"} → "#);
    let request = "<profile>\n{\"who\":\"x\"}\n</profile>";
    let shortened = response_text(json!([user_message(request)])).await;
    assert_eq!(shortened, r#"{"who":"x"} → "#);
}

#[tokio::test]
async fn scripted_model_streams_its_response() {
    let (answer, events) = call_model(json!([user_message("Pay 250 to Ada")]), |request| {
        request.thinking = ThinkingLevel::Low;
    })
    .await;
    let streamed = |kind: &str, index: u64| -> String {
        let values = events.iter().map(|event| serde_json::to_value(event).unwrap());
        let deltas = values.filter(|event| event["type"] == kind && event["contentIndex"] == index);
        deltas.map(|event| event["delta"].as_str().unwrap().to_owned()).collect()
    };
    let thinking = streamed("thinking_delta", 0);
    let (text, arguments) = (streamed("text_delta", 1), streamed("toolcall_delta", 2));
    assert_eq!(thinking, "One tool is to be called.");
    assert_eq!(text, "I will pay 250 to Ada.");
    assert_eq!(arguments, answer.message.tool_calls().next().unwrap().arguments.text());
    assert_eq!(answer.message.stop_reason, StopReason::ToolUse);
    let usage = answer.message.usage;
    assert!(usage.input > 0 && usage.output > usage.reasoning && usage.reasoning > 0);
    assert_eq!(usage.total_tokens, usage.input + usage.output);
    assert!(usage.cost.total.abs() < f64::EPSILON);
}

#[tokio::test]
async fn scripted_model_fails_as_requested() {
    for (text, expected) in [
        ("fail with 503", ModelFailure::Retryable { after: None }),
        ("fail with 429", ModelFailure::Retryable { after: Some(Duration::from_secs(1)) }),
        ("fail with overflow", ModelFailure::ContextOverflow),
        ("fail finally", ModelFailure::Permanent),
    ] {
        let (answer, _) = call_model(json!([user_message(text)]), |_| {}).await;
        assert_eq!(answer.failure, Some(expected), "{text}");
        assert_eq!(answer.message.stop_reason, StopReason::Error);
        assert!(answer.message.error_message.unwrap().contains("fails as requested"));
    }
}

#[tokio::test]
async fn scripted_model_truncates_at_output_limit() {
    let (answer, _) = call_model(json!([user_message("say one two three")]), |request| {
        request.max_output_tokens = Some(2);
    })
    .await;
    assert_eq!(joined_text(&answer.message.content), "one two ");
    assert_eq!(answer.message.stop_reason, StopReason::Length);
}

#[tokio::test]
async fn scripted_model_response_matches_schema() {
    let schema = json!({
        "type": "object", "required": ["summary", "count", "kind", "tags"],
        "properties": {
            "summary": { "type": "string" }, "count": { "type": "integer", "minimum": 3 },
            "kind": { "enum": ["a", "b"] }, "tags": { "type": "array", "minItems": 1, "items": { "type": "string" } },
        },
    });
    let messages = messages(json!([user_message("say hi")]));
    let messages: Vec<&Message> = messages.iter().collect();
    let record = ScriptedModel.record("x").unwrap();
    let request = ModelRequest {
        response_schema: Some(&schema),
        session_id: "c",
        ..ModelRequest::new(&record, &messages)
    };
    let answer = ScriptedModel.respond(request, &RecordingListener::default()).await;
    let value: Value = serde_json::from_str(&joined_text(&answer.message.content)).unwrap();
    assert!(jsonschema::is_valid(&schema, &value), "{value}");
}
