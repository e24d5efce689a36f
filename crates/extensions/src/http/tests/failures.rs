//! Failures: each names its reason and holds no text of a body.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;

use super::server::{HookServer, Reply};
use super::*;
use crate::ToolCallDecision;

const SECONDS: Duration = Duration::from_secs(30);

/// The error of `tool_call` with these replies, and the number of requests.
async fn failure(replies: Vec<Reply>, timeout: Duration) -> (String, usize) {
    let server = HookServer::start(replies).await;
    let extension = extension(&server.url, timeout);
    let arguments = pay();
    let call = pending_call(&arguments);
    let outcome = extension.before_tool_call(&context(Hook::ToolCall), &call).await;
    let text = outcome.expect_err("a failure").to_string();
    (text, server.received().len())
}

#[tokio::test]
async fn unusable_responses_are_failures_with_their_reason() {
    let body = |text: &str| Reply::Signed(text.to_owned());
    let invalid = |reason: &str| format!("its response is not valid: {reason}");
    let unsigned = |reason: &str| format!("its response is not signed correctly: {reason}");
    let long = "a".repeat(3_000);
    for (reply, expected) in [
        (body("no JSON"), invalid("the text is not JSON at line 1 column 2")),
        (body(""), invalid("the JSON ends too early at line 1 column 0")),
        (body("[]"), invalid("it is a list, not an object")),
        (
            body("{\0}\0"),
            "its response is UTF-16 text, as Windows PowerShell writes it with `>`: save it as UTF-8".to_owned(),
        ),
        (body("{}"), invalid("decision or ask is missing")),
        (
            Reply::json(&json!({"decision": "change"})),
            invalid("the decision change, and no other one, needs arguments"),
        ),
        (
            Reply::json(&json!({"decision": "allow", "arguments": {}})),
            invalid("the decision change, and no other one, needs arguments"),
        ),
        (body(r#"{"decison":"block"}"#), invalid("a member is unknown at line 1 column 10")),
        (body(r#"{"decision":"deny"}"#), invalid("a value is unknown at line 1 column 18")),
        (
            body(r#"{"decision":"allow","approvers":["owner"]}"#),
            invalid("approvers, notRequester, expiresAfter and refusal need the decision requireApproval"),
        ),
        (
            body(r#"{"decision":"requireApproval"}"#),
            invalid("requireApproval needs a reason"),
        ),
        (
            Reply::json(&json!({"decision": "requireApproval", "reason": long})),
            invalid("reason has 3000 bytes; the maximum is 2048"),
        ),
        (
            Reply::json(&json!({"decision": "requireApproval", "reason": "r", "approvers": ["eve"]})),
            invalid("approvers is a list of at most 16 of owner, link and role:NAME"),
        ),
        (
            Reply::json(&json!({"decision": "requireApproval", "reason": "r", "expiresAfter": "91d"})),
            invalid("expiresAfter is a duration of at most 90d, such as 24h"),
        ),
        (
            Reply::json(&json!({"decision": "requireApproval", "reason": "r", "notRequester": true})),
            invalid("notRequester needs link or role:NAME among approvers"),
        ),
        (body(&" ".repeat(BODY_BYTES_MAX + 1)), "its response has more than 262144 bytes".to_owned()),
        (Reply::Unsigned, unsigned("it has no webhook-signature")),
        (Reply::SignedAs(8, "", 0), unsigned("its webhook-signature is not valid for the secret")),
        (Reply::SignedAs(7, "old", 0), unsigned("its webhook-id is not the one of the request")),
        (Reply::SignedAs(7, "", -400), unsigned("its webhook-timestamp is more than 5 minutes off")),
        (Reply::Echo, invalid("a member is unknown at line 1 column 8")),
        (Reply::Status(404, None), "its server responded 404 Not Found".to_owned()),
        (
            Reply::Status(302, None),
            "its server responded 302 Found, a redirect, which is not followed".to_owned(),
        ),
        (Reply::Status(500, Some("0")), "its server responded 500 Internal Server Error".to_owned()),
        (Reply::Status(503, None), "its server responded 503 Service Unavailable".to_owned()),
        (
            Reply::Status(429, Some("60")),
            "its server responded 429 Too Many Requests; another attempt after 60s is beyond its time-out of 30s".to_owned(),
        ),
    ] {
        let name = format!("{reply:.80?}");
        assert_eq!(failure(vec![reply], SECONDS).await, (expected, 1), "{name}");
    }
}

#[tokio::test]
async fn response_may_have_a_byte_order_mark() {
    let reply = Reply::Signed("\u{feff}{\"decision\":\"allow\"}".to_owned());
    let server = HookServer::start(vec![reply]).await;
    let extension = extension(&server.url, SECONDS);
    let arguments = pay();
    let call = pending_call(&arguments);
    let outcome = extension.before_tool_call(&context(Hook::ToolCall), &call).await;
    assert_eq!(outcome.unwrap(), ToolCallDecision::Allow);
}

#[tokio::test]
async fn slow_server_fails_within_the_time_out() {
    let (text, count) = failure(vec![Reply::Never], Duration::from_secs(2)).await;
    assert_eq!((text.as_str(), count), ("its server did not respond within 2s", 1));
}

#[tokio::test(start_paused = true)]
async fn unreachable_server_is_tried_twice_if_time_is_left() {
    // Bound, so that no other server listens on this port.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/hook", bound.local_addr().unwrap());
    let arguments = pay();
    for (timeout, expected) in [
        (SECONDS, "its server could not be reached: the connection was refused"),
        (
            Duration::from_millis(150),
            "its server could not be reached: the connection was refused; another attempt after 200ms is beyond its time-out of 150ms",
        ),
    ] {
        let extension = extension(&url, timeout);
        let call = pending_call(&arguments);
        let outcome = extension.before_tool_call(&context(Hook::ToolCall), &call).await;
        assert_eq!(outcome.unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn private_address_is_refused_before_a_connection() {
    let mut extension = extension("http://10.1.2.3/hook", SECONDS);
    extension.endpoint.client = HttpClient::new(AddressRules::default()).unwrap();
    let arguments = pay();
    let call = pending_call(&arguments);
    let outcome = extension.before_tool_call(&context(Hook::ToolCall), &call).await;
    let text = outcome.unwrap_err().to_string();
    assert!(text.contains("not listed in TURNWHEEL_HTTP_TOOLS_ALLOW"), "{text}");
}

#[tokio::test]
async fn oversized_request_is_not_sent() {
    let server = HookServer::start(vec![Reply::json(&json!({"decision": "allow"}))]).await;
    let extension = extension(&server.url, SECONDS);
    let arguments = arguments(json!({"text": "a".repeat(BODY_BYTES_MAX)}));
    let call = pending_call(&arguments);
    let outcome = extension.before_tool_call(&context(Hook::ToolCall), &call).await;
    let text = outcome.unwrap_err().to_string();
    assert!(text.starts_with("its request would have 2624"), "{text}");
    assert!(text.ends_with("bytes; the maximum is 262144"), "{text}");
    assert_eq!(server.received().len(), 0);
}

#[tokio::test]
async fn second_attempt_has_the_same_id() {
    for first in [Reply::Status(503, Some("0")), Reply::Status(429, Some("1")), Reply::Cut] {
        let allow = Reply::json(&json!({"decision": "allow"}));
        let server = HookServer::start(vec![first, allow]).await;
        let extension = extension(&server.url, SECONDS);
        let (arguments, cx) = (pay(), context(Hook::ToolCall));
        let decision = extension.before_tool_call(&cx, &pending_call(&arguments)).await.unwrap();
        assert_eq!(decision, ToolCallDecision::Allow);
        let ids: Vec<String> = server.received().into_iter().map(|request| request.id).collect();
        assert_eq!(ids, [cx.hook_id(), cx.hook_id()]);
    }
}

#[tokio::test]
async fn errors_and_debug_output_hold_no_address_and_no_secret() {
    let extension = extension("http://127.0.0.1:9/key-in-path", SECONDS);
    let shown = format!("{extension:?}");
    assert!(!shown.contains("key-in-path") && !shown.contains("7, 7"), "{shown}");
    let arguments = pay();
    let call = pending_call(&arguments);
    let error = extension.before_tool_call(&context(Hook::ToolCall), &call).await.unwrap_err();
    assert!(!error.to_string().contains("key-in-path"), "{error}");
}

#[tokio::test]
async fn extensions_of_one_server_share_a_connection() {
    let server = HookServer::start(vec![Reply::json(&json!({"decision": "allow"}))]).await;
    let first = extension(&server.url, SECONDS);
    // An app has one client, and each agent file gets a clone of it.
    let client = first.endpoint.client.clone();
    let shared = HttpEndpoint { client, ..endpoint(&server.url, SECONDS) };
    let second = HttpExtension { endpoint: shared, ..extension(&server.url, SECONDS) };
    let arguments = pay();
    for extension in [&first, &second].repeat(5) {
        let cx = context(Hook::ToolCall);
        extension.before_tool_call(&cx, &pending_call(&arguments)).await.unwrap();
    }
    let received = server.received();
    let connections: HashSet<_> = received.iter().map(|request| request.peer).collect();
    assert_eq!((received.len(), connections.len()), (10, 1));
}
