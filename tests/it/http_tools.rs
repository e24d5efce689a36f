//! HTTP tools against correct and faulty servers.

use serde_json::{Value, json};

use self::server::{Reply, Server};
use self::tool_caller::{ToolCaller, tool, tool_at_url};
use turnwheel::testing::tools::http::address_rules::AddressRules;

mod address_rules;
mod identity;
mod numbers;
mod responses;
mod scrape;
pub(crate) mod server;
mod streaming;
pub(crate) mod tool_caller;
mod unfinished;

/// Specification of a write in an agent file, without its name.
fn write_spec(more: &str) -> String {
    format!(
        "method: POST\nurl: ${{SERVER}}/pay/{{to}}\nparameters: {{ required: [to], properties: {{ to: {{}}, amount: {{}}, note: {{}} }} }}\n{more}"
    )
}

fn read_spec(more: &str) -> String {
    format!("url: ${{SERVER}}/look\nparameters: {{ properties: {{ q: {{}}, tag: {{}} }} }}\n{more}")
}

fn payment_arguments() -> Value {
    json!({"to": "Ada", "amount": 250})
}

#[tokio::test]
async fn call_sends_arguments_and_service_headers() {
    let server = Server::start(&[Reply::json(r#"{"receipt":"r1"}"#)]);
    let tool = tool(&write_spec("headers: { x-tenant: '${KEY}' }"), &server);
    let result = ToolCaller::new()
        .expect_result(&tool, r#"{"to":"Ada Byron/../x","amount":250.00,"note":"a\r\nb"}"#)
        .await;
    assert_eq!(result.structured.unwrap().to_value(), json!({"receipt": "r1"}));
    let request = server.only_request();
    assert_eq!(request.line, "POST /pay/Ada%20Byron%2F..%2Fx HTTP/1.1");
    assert_eq!(
        request.body, r#"{"amount":250.00,"note":"a\r\nb"}"#,
        "numbers as the model wrote them"
    );
    for (name, value) in [
        ("content-type", "application/json"),
        ("x-tenant", "kee-p-this-secret"),
        ("idempotency-key", "tw_c1_i1_7_0"),
        ("turnwheel-conversation", "c1"),
        ("turnwheel-tool-call", "call_1|fc_%0D%0A1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn get_sends_arguments_in_the_query() {
    let server = Server::start(&[Reply::text("fine")]);
    let result = ToolCaller::new()
        .expect_result(&tool(&read_spec(""), &server), r#"{"q":"a&b=c","tag":["x",2]}"#)
        .await;
    assert_eq!(tool_caller::text(&result), "fine");
    let request = server.only_request();
    assert_eq!(request.line, "GET /look?q=a%26b%3Dc&tag=x&tag=2 HTTP/1.1");
    assert_eq!(request.body, "");
}

#[tokio::test]
async fn custom_body_keeps_types_and_omits_absent_arguments() {
    let server = Server::start(&[Reply::text("ok")]);
    let more = "body: { total: '{amount}', memo: 'for {to}: {note}', note: '{note}', key: '${KEY}', fixed: [1, '{to}'] }";
    ToolCaller::new()
        .expect_result(&tool(&write_spec(more), &server), r#"{"to":"A\"da","amount":1e2}"#)
        .await;
    assert_eq!(
        server.only_request().body,
        r#"{"total":1e2,"memo":"for A\"da: ","key":"kee-p-this-secret","fixed":[1,"A\"da"]}"#
    );
}

#[tokio::test]
async fn argument_cannot_inject_a_header() {
    let server = Server::start(&[Reply::text("ok")]);
    let tool = tool(&write_spec("headers: { if-match: '{note}' }"), &server);
    let bad =
        ToolCaller::new().expect_result(&tool, r#"{"to":"Ada","note":"x\r\nx-admin: 1"}"#).await;
    assert!(
        bad.is_error && tool_caller::text(&bad).contains("one line"),
        "{}",
        tool_caller::text(&bad)
    );
    assert_eq!(server.requests().len(), 0, "nothing was sent");
    ToolCaller::new().expect_result(&tool, r#"{"to":"Ada","note":"\"e1\""}"#).await;
    assert_eq!(server.only_request().header("if-match"), Some("\"e1\""));
}

#[tokio::test]
async fn invalid_arguments_are_rejected_unsent() {
    let server = Server::start(&[]);
    for arguments in [r#"{"to":".."}"#, r#"{"to":""}"#, r"{}", r#"{"to":{"a":1}}"#, r"[1]"] {
        let result =
            ToolCaller::new().expect_result(&tool(&write_spec(""), &server), arguments).await;
        assert!(result.is_error, "{arguments}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn read_is_retried_with_the_same_key() {
    for first in [
        Reply::status(503),
        Reply::Cut,
        Reply::text("x").truncated(),
        Reply::status(429).with("retry-after", "0"),
    ] {
        let server = Server::start(&[first.clone(), Reply::status(500), Reply::text("there")]);
        let result = ToolCaller::new().expect_result(&tool(&read_spec(""), &server), "{}").await;
        assert_eq!(
            (tool_caller::text(&result).as_str(), result.is_error),
            ("there", false),
            "{first:?}"
        );
        let keys: Vec<_> = server
            .requests()
            .iter()
            .map(|request| request.header("idempotency-key").map(ToOwned::to_owned))
            .collect();
        assert_eq!(keys, vec![Some("tw_c1_i1_7_0".to_owned()); 3]);
    }
}

#[tokio::test]
async fn hanging_read_is_retried() {
    let server = Server::start(&[Reply::Hang, Reply::text("there")]);
    let result =
        ToolCaller::new().expect_result(&tool(&read_spec("timeout: 300ms"), &server), "{}").await;
    assert_eq!(tool_caller::text(&result), "there");
}

#[tokio::test]
async fn read_fails_after_three_attempts() {
    let server = Server::start(&[
        Reply::status(503),
        Reply::status(503),
        Reply::status(503).with_body("text/plain", "down"),
        Reply::text("late"),
    ]);
    let result = ToolCaller::new().expect_result(&tool(&read_spec(""), &server), "{}").await;
    assert!(result.is_error);
    assert_eq!(
        tool_caller::text(&result),
        "The tool responded 503 Service Unavailable:\ndown (Tried 3 times.)"
    );
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn idempotent_call_is_retried_then_fails() {
    let server = Server::start(&[Reply::Cut, Reply::Cut, Reply::Cut]);
    let result = ToolCaller::new()
        .expect_result(
            &tool(&write_spec("effect: idempotent"), &server),
            &payment_arguments().to_string(),
        )
        .await;
    assert!(result.is_error);
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn write_with_lost_response_is_unknown() {
    for (lost, expected) in [
        (Reply::Cut, "the connection was cut before a response arrived"),
        (Reply::Hang, "there was no response within 500 ms"),
        (Reply::status(500), "The tool responded 500 Internal Server Error."),
        (
            Reply::status(503).with("retry-after", "0"),
            "The tool responded 503 Service Unavailable.",
        ),
        (Reply::status(408), "The tool responded 408 Request Timeout."),
        (
            Reply::status(303).with("location", "/done"),
            "The tool responded 303 See Other, a redirect, which is not followed: its url must be the final one.",
        ),
        (
            Reply::json(r#"{"receipt":"r1"}"#).truncated(),
            r#"the response (200 OK) was cut off: {"receipt":"r1""#,
        ),
    ] {
        let server = Server::start(&[lost.clone(), Reply::json("{}")]);
        let reason = ToolCaller::new()
            .expect_unknown(
                &tool(&write_spec("timeout: 500ms"), &server),
                &payment_arguments().to_string(),
            )
            .await;
        assert_eq!(reason, expected, "{lost:?}");
        assert_eq!(server.requests().len(), 1, "{lost:?}");
    }
}

#[tokio::test]
async fn write_uses_a_new_connection() {
    let server = Server::start(&[Reply::json("{}").keep_open()]);
    let tool = tool(&write_spec("timeout: 1s"), &server);
    for _ in 0..3 {
        ToolCaller::new().expect_result(&tool, &payment_arguments().to_string()).await;
    }
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn unsent_write_is_a_plain_error() {
    // Bound, so that no other server listens on this port.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed_url = format!("http://{}", bound.local_addr().unwrap());
    // Accepts and never starts TLS: the connection is never made.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("https://{}", silent.local_addr().unwrap());
    let plain = Server::start(&[Reply::text("this is not TLS")]);
    let not_tls = plain.url.replace("http:", "https:");
    for url in [closed_url, silent_url, not_tls] {
        let tool = tool_at_url(
            &write_spec("timeout: 500ms"),
            &url,
            AddressRules::default().with_loopback(),
        );
        let result = ToolCaller::new().expect_result(&tool, &payment_arguments().to_string()).await;
        assert!(
            result.is_error && tool_caller::text(&result).ends_with("Nothing was sent."),
            "{url}: {}",
            tool_caller::text(&result)
        );
        assert!(
            !tool_caller::text(&result).contains("127.0.0.1"),
            "the address came from a setting"
        );
    }
}

#[tokio::test]
async fn rejected_write_is_a_plain_error() {
    for (reply, expected) in [
        (Reply::status(429).with("retry-after", "0"), "The tool responded 429 Too Many Requests."),
        (
            Reply::status(409).with_body("text/plain", "taken"),
            "The tool responded 409 Conflict:\ntaken",
        ),
        (
            Reply::status(400).with_body("text/html", "<h1>No</h1>"),
            "The tool responded 400 Bad Request:\nNo",
        ),
    ] {
        let server = Server::start(&[reply, Reply::json("{}")]);
        let result = ToolCaller::new()
            .expect_result(&tool(&write_spec(""), &server), &payment_arguments().to_string())
            .await;
        assert!(result.is_error);
        assert_eq!(tool_caller::text(&result), expected);
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn error_body_is_truncated_and_shows_no_setting() {
    let long = format!("you sent kee-p-this-secret {}", "é".repeat(9_000));
    let server = Server::start(&[Reply::status(403).with_body("text/plain; charset=utf-8", &long)]);
    let result = ToolCaller::new()
        .expect_result(
            &tool(&write_spec("headers: { x-key: '${KEY}' }"), &server),
            &payment_arguments().to_string(),
        )
        .await;
    let text = tool_caller::text(&result);
    assert!(text.starts_with("The tool responded 403 Forbidden:\nyou sent [KEY] éé"), "{text}");
    assert!(text.len() < 2_200, "{}", text.len());
}

#[tokio::test]
async fn error_with_hanging_body_is_still_reported() {
    let server = Server::start(&[Reply::status(404).with_body("text/plain", "gone").unfinished()]);
    let result = ToolCaller::new()
        .expect_result(&tool(&write_spec("timeout: 1s"), &server), &payment_arguments().to_string())
        .await;
    assert_eq!(tool_caller::text(&result), "The tool responded 404 Not Found:\ngone");
}

#[tokio::test]
async fn retry_after_beyond_deadline_is_not_awaited() {
    for after in ["3600", "Fri, 31 Dec 2055 23:59:59 GMT"] {
        let server =
            Server::start(&[Reply::status(503).with("retry-after", after), Reply::text("x")]);
        let result = ToolCaller::new().expect_result(&tool(&read_spec(""), &server), "{}").await;
        assert!(result.is_error);
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn hanging_tool_ends_at_its_deadline() {
    let server = Server::start(&[Reply::Hang, Reply::Hang, Reply::Hang]);
    let mut caller = ToolCaller::new();
    caller.time_limit = std::time::Duration::from_millis(400);
    let result = caller.expect_result(&tool(&read_spec("timeout: 30s"), &server), "{}").await;
    assert!(
        result.is_error && tool_caller::text(&result).contains("no response"),
        "{}",
        tool_caller::text(&result)
    );
    let reason = caller
        .expect_unknown(
            &tool(&write_spec("timeout: 30s"), &server),
            &payment_arguments().to_string(),
        )
        .await;
    assert!(reason.contains("no response"), "{reason}");
}
