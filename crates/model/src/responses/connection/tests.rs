//! The check that only new items are sent, on request bodies.

use serde_json::Value;

use super::*;

/// A body with these items after the instructions.
fn body(system: &str, items: &[Value]) -> Vec<u8> {
    let mut input = vec![json!({ "role": "developer", "content": system })];
    input.extend_from_slice(items);
    let body = json!({ "model": "m", "input": input, "stream": true, "store": false });
    body.to_string().into_bytes()
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": [{ "type": "input_text", "text": text }] })
}

fn assistant(text: &str) -> Value {
    let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
    json!({ "type": "message", "role": "assistant", "content": content, "status": "completed", "id": "msg_1" })
}

/// A state that has sent `[user("go")]` and received `response`.
fn state_after(response: Option<&str>) -> ConnectionState {
    let mut state = ConnectionState::new(ProtocolMode::Resume);
    let (event, previous) = state.next_event(&body("S", &[user("go")])).unwrap();
    assert_eq!(previous, None);
    let event: Value = serde_json::from_str(&event).unwrap();
    assert_eq!(event["type"], "response.create");
    assert_eq!(event["input"].as_array().unwrap().len(), 2);
    assert_eq!((&event["store"], event.get("stream")), (&json!(false), None));
    state.known = state.sent.take().map(|sent| KnownContext {
        response_id: "resp_1".to_owned(),
        response_text: response.map(ToOwned::to_owned),
        ..sent
    });
    state
}

/// The input of the next event if it continues the response; `None` if it has the whole input.
fn continued(mut state: ConnectionState, body: &[u8]) -> Option<Vec<Value>> {
    let whole: Value = serde_json::from_slice(body).unwrap();
    let (event, previous) = state.next_event(body).unwrap();
    let event: Value = serde_json::from_str(&event).unwrap();
    if previous.is_none() {
        assert_eq!(event["input"], whole["input"], "the whole input");
        assert_eq!(event.get("previous_response_id"), None);
        return None;
    }
    assert_eq!(event["previous_response_id"], "resp_1");
    Some(event["input"].as_array().unwrap().clone())
}

#[test]
fn only_items_after_known_response_are_sent() {
    let next = body("S", &[user("go"), assistant("A"), user("r1"), user("steer")]);
    assert_eq!(continued(state_after(Some("A")), &next).unwrap(), [user("r1"), user("steer")]);
    let added = body("S\n\nFinal.", &[user("go"), assistant("A"), user("r1")]);
    let instructions = json!({ "role": "developer", "content": "Final." });
    assert_eq!(continued(state_after(Some("A")), &added).unwrap(), [instructions, user("r1")]);
}

#[test]
fn whole_input_is_sent_after_any_difference() {
    let next = |items: &[Value]| body("S", items);
    let cases = [
        ("another response", next(&[user("go"), assistant("B"), user("r1")])),
        ("an edited prompt", next(&[user("stop"), assistant("A"), user("r1")])),
        ("an inserted message", next(&[user("x"), user("go"), assistant("A"), user("r1")])),
        ("a history window", next(&[assistant("A"), user("r1")])),
        ("no response", next(&[user("go"), user("r1"), user("r2")])),
        ("nothing new", next(&[user("go"), assistant("A")])),
        ("other instructions", body("T", &[user("go"), assistant("A"), user("r1")])),
        ("shorter instructions", body("", &[user("go"), assistant("A"), user("r1")])),
    ];
    for (name, next) in cases {
        assert_eq!(continued(state_after(Some("A")), &next), None, "{name}");
    }
    let next = next(&[user("go"), assistant("A"), user("r1")]);
    assert_eq!(continued(state_after(None), &next), None, "an unconfirmed response");
    let model = String::from_utf8(next.clone()).unwrap().replace(r#""m""#, r#""n""#);
    assert_eq!(continued(state_after(Some("A")), model.as_bytes()), None, "another model");
    assert!(continued(state_after(Some("A")), &next).is_some(), "no difference");
}

#[test]
fn body_without_items_is_not_sent() {
    let mut state = ConnectionState::new(ProtocolMode::Auto);
    for body in
        [r#"{"input":"text"}"#, "{}", "no JSON", r#"{"input":[],"previous_response_id":"r"}"#]
    {
        assert!(state.next_event(body.as_bytes()).is_none(), "{body}");
    }
}
