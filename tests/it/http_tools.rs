//! HTTP tools against correct and faulty servers.

use serde_json::{Value, json};

use self::bench::{Bench, tool, tool_with};
use self::server::{Reply, Server};
use turnwheel::tools::http::addresses::AddressRules;

mod answers;
pub(crate) mod bench;
mod guard;
mod identity;
mod server;
mod streamed;

/// Specification of a write in an agent file, without its name.
fn pay(more: &str) -> String {
    format!(
        "method: POST\nurl: ${{SERVER}}/pay/{{to}}\nparameters: {{ required: [to], properties: {{ to: {{}}, amount: {{}}, note: {{}} }} }}\n{more}"
    )
}

fn look(more: &str) -> String {
    format!("url: ${{SERVER}}/look\nparameters: {{ properties: {{ q: {{}}, tag: {{}} }} }}\n{more}")
}

fn ada() -> Value {
    json!({"to": "Ada", "amount": 250})
}

#[tokio::test]
async fn a_call_is_a_request_with_the_arguments_and_our_headers() {
    let server = Server::start(&[Reply::json(r#"{"receipt":"r1"}"#)]);
    let tool = tool(&pay("headers: { x-tenant: '${KEY}' }"), &server);
    let result = Bench::new()
        .returned(&tool, r#"{"to":"Ada Byron/../x","amount":250.00,"note":"a\r\nb"}"#)
        .await;
    assert_eq!(result.structured.unwrap().value(), json!({"receipt": "r1"}));
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
async fn a_get_has_its_arguments_in_the_query() {
    let server = Server::start(&[Reply::text("fine")]);
    let result =
        Bench::new().returned(&tool(&look(""), &server), r#"{"q":"a&b=c","tag":["x",2]}"#).await;
    assert_eq!(bench::text(&result), "fine");
    let request = server.only_request();
    assert_eq!(request.line, "GET /look?q=a%26b%3Dc&tag=x&tag=2 HTTP/1.1");
    assert_eq!(request.body, "");
}

#[tokio::test]
async fn a_body_of_its_own_keeps_kinds_and_leaves_out_what_was_not_given() {
    let server = Server::start(&[Reply::text("ok")]);
    let more = "body: { total: '{amount}', memo: 'for {to}: {note}', note: '{note}', key: '${KEY}', fixed: [1, '{to}'] }";
    Bench::new().returned(&tool(&pay(more), &server), r#"{"to":"A\"da","amount":1e2}"#).await;
    assert_eq!(
        server.only_request().body,
        r#"{"total":1e2,"memo":"for A\"da: ","key":"kee-p-this-secret","fixed":[1,"A\"da"]}"#
    );
}

#[tokio::test]
async fn no_argument_begins_another_header() {
    let server = Server::start(&[Reply::text("ok")]);
    let tool = tool(&pay("headers: { if-match: '{note}' }"), &server);
    let bad = Bench::new().returned(&tool, r#"{"to":"Ada","note":"x\r\nx-admin: 1"}"#).await;
    assert!(bad.is_error && bench::text(&bad).contains("one line"), "{}", bench::text(&bad));
    assert_eq!(server.requests().len(), 0, "nothing was sent");
    Bench::new().returned(&tool, r#"{"to":"Ada","note":"\"e1\""}"#).await;
    assert_eq!(server.only_request().header("if-match"), Some("\"e1\""));
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused_before_anything_is_sent() {
    let server = Server::start(&[]);
    for arguments in [r#"{"to":".."}"#, r#"{"to":""}"#, r"{}", r#"{"to":{"a":1}}"#, r"[1]"] {
        let result = Bench::new().returned(&tool(&pay(""), &server), arguments).await;
        assert!(result.is_error, "{arguments}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn a_read_is_tried_again_with_the_same_key() {
    for first in [
        Reply::status(503),
        Reply::Cut,
        Reply::text("x").half(),
        Reply::status(429).with("retry-after", "0"),
    ] {
        let server = Server::start(&[first.clone(), Reply::status(500), Reply::text("there")]);
        let result = Bench::new().returned(&tool(&look(""), &server), "{}").await;
        assert_eq!((bench::text(&result).as_str(), result.is_error), ("there", false), "{first:?}");
        let keys: Vec<_> = server
            .requests()
            .iter()
            .map(|request| request.header("idempotency-key").map(ToOwned::to_owned))
            .collect();
        assert_eq!(keys, vec![Some("tw_c1_i1_7_0".to_owned()); 3]);
    }
}

#[tokio::test]
async fn a_read_that_hangs_once_is_tried_again() {
    let server = Server::start(&[Reply::Hang, Reply::text("there")]);
    let result = Bench::new().returned(&tool(&look("timeout: 300ms"), &server), "{}").await;
    assert_eq!(bench::text(&result), "there");
}

#[tokio::test]
async fn three_failures_of_a_read_are_an_error() {
    let server = Server::start(&[
        Reply::status(503),
        Reply::status(503),
        Reply::status(503).with_body("text/plain", "down"),
        Reply::text("late"),
    ]);
    let result = Bench::new().returned(&tool(&look(""), &server), "{}").await;
    assert!(result.is_error);
    assert_eq!(
        bench::text(&result),
        "The tool responded 503 Service Unavailable:\ndown (Tried 3 times.)"
    );
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn an_idempotent_call_is_tried_again_and_its_loss_is_an_error() {
    let server = Server::start(&[Reply::Cut, Reply::Cut, Reply::Cut]);
    let result =
        Bench::new().returned(&tool(&pay("effect: idempotent"), &server), &ada().to_string()).await;
    assert!(result.is_error);
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_unknown_and_sent_once() {
    for lost in [
        Reply::Cut,
        Reply::Hang,
        Reply::status(500),
        Reply::status(503).with("retry-after", "0"),
        Reply::status(408),
        Reply::status(303).with("location", "/done"),
        Reply::json(r#"{"receipt":"r1"}"#).half(),
    ] {
        let server = Server::start(&[lost.clone(), Reply::json("{}")]);
        let reason =
            Bench::new().unknown(&tool(&pay("timeout: 500ms"), &server), &ada().to_string()).await;
        assert!(!reason.is_empty() && !reason.contains("127.0.0.1"), "{lost:?}: {reason}");
        assert_eq!(server.requests().len(), 1, "{lost:?}");
    }
}

#[tokio::test]
async fn a_write_takes_a_fresh_connection_so_that_a_stale_one_asks_nobody() {
    let server = Server::start(&[Reply::json("{}").kept_open()]);
    let tool = tool(&pay("timeout: 1s"), &server);
    for _ in 0..3 {
        Bench::new().returned(&tool, &ada().to_string()).await;
    }
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_write_that_was_never_sent_is_a_plain_error() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    // Accepts and never starts TLS: the connection is never made.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("https://{}", silent.local_addr().unwrap());
    let plain = Server::start(&[Reply::text("this is not TLS")]);
    let not_tls = plain.url.replace("http:", "https:");
    for url in [gone, silent_url, not_tls] {
        let tool = tool_with(&pay("timeout: 500ms"), &url, AddressRules::default().with_loopback());
        let result = Bench::new().returned(&tool, &ada().to_string()).await;
        assert!(
            result.is_error && bench::text(&result).ends_with("Nothing was sent."),
            "{url}: {}",
            bench::text(&result)
        );
        assert!(!bench::text(&result).contains("127.0.0.1"), "the address came from a setting");
    }
}

#[tokio::test]
async fn a_write_that_is_turned_away_is_a_plain_error() {
    for (reply, said) in [
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
        let result = Bench::new().returned(&tool(&pay(""), &server), &ada().to_string()).await;
        assert!(result.is_error);
        assert_eq!(bench::text(&result), said);
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_refusal_is_cut_at_two_kilobytes_and_echoes_no_setting() {
    let long = format!("you sent kee-p-this-secret {}", "é".repeat(9_000));
    let server = Server::start(&[Reply::status(403).with_body("text/plain; charset=utf-8", &long)]);
    let result = Bench::new()
        .returned(&tool(&pay("headers: { x-key: '${KEY}' }"), &server), &ada().to_string())
        .await;
    let text = bench::text(&result);
    assert!(text.starts_with("The tool responded 403 Forbidden:\nyou sent [KEY] éé"), "{text}");
    assert!(text.len() < 2_200, "{}", text.len());
}

#[tokio::test]
async fn a_refusal_whose_body_hangs_is_still_the_refusal() {
    let server = Server::start(&[Reply::status(404).with_body("text/plain", "gone").endless()]);
    let result =
        Bench::new().returned(&tool(&pay("timeout: 1s"), &server), &ada().to_string()).await;
    assert_eq!(bench::text(&result), "The tool responded 404 Not Found:\ngone");
}

#[tokio::test]
async fn a_wait_that_does_not_fit_is_not_waited_for() {
    for after in ["3600", "Fri, 31 Dec 2055 23:59:59 GMT"] {
        let server =
            Server::start(&[Reply::status(503).with("retry-after", after), Reply::text("x")]);
        let result = Bench::new().returned(&tool(&look(""), &server), "{}").await;
        assert!(result.is_error);
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_hanging_tool_ends_within_its_deadline() {
    let server = Server::start(&[Reply::Hang, Reply::Hang, Reply::Hang]);
    let mut bench = Bench::new();
    bench.time = std::time::Duration::from_millis(400);
    let result = bench.returned(&tool(&look("timeout: 30s"), &server), "{}").await;
    assert!(
        result.is_error && bench::text(&result).contains("no response"),
        "{}",
        bench::text(&result)
    );
    let reason = bench.unknown(&tool(&pay("timeout: 30s"), &server), &ada().to_string()).await;
    assert!(reason.contains("no response"), "{reason}");
}
