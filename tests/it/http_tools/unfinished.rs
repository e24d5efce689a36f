//! Responses without an end: whole JSON is the result, and an approver reads the beginning of the others.

use serde_json::json;

use super::server::{Reply, Server};
use super::tool_caller::{ToolCaller, text, tool};
use super::{payment_arguments, read_spec, write_spec};

const RECEIPT: &str = r#"{"receipt":"r1","amount":12.50}"#;
const NDJSON: &str = "application/x-ndjson";
const SSE: &str = "text/event-stream";

/// The responses with this body that have no end.
fn unfinished_replies(mime_type: &str, body: &str) -> [Reply; 3] {
    let whole = Reply::status(200).with_body(mime_type, body);
    [whole.clone().cut_short(), whole.clone().without_last_chunk(), whole.unfinished()]
}

async fn reason_of_write(reply: &Reply) -> String {
    let server = Server::start(std::slice::from_ref(reply));
    let spec = write_spec("timeout: 500ms\nheaders: { x-key: '${KEY}' }");
    let tool = tool(&spec, &server);
    let reason = ToolCaller::new().expect_unknown(&tool, &payment_arguments().to_string()).await;
    assert_eq!(server.requests().len(), 1, "{reply:?}");
    reason
}

#[tokio::test]
async fn whole_json_without_the_end_of_its_response_is_the_result() {
    for mime_type in ["application/json", "application/json; charset=utf-8", ""] {
        for reply in unfinished_replies(mime_type, RECEIPT) {
            for spec in [write_spec("timeout: 500ms"), read_spec("timeout: 500ms")] {
                let server = Server::start(&[reply.clone(), Reply::status(500)]);
                let arguments = if spec.contains("POST") { payment_arguments() } else { json!({}) };
                let tool = tool(&spec, &server);
                let result = ToolCaller::new().expect_result(&tool, &arguments.to_string()).await;
                assert_eq!(text(&result), RECEIPT, "{reply:?}");
                assert_eq!(result.structured.unwrap().text(), RECEIPT, "{reply:?}");
                assert_eq!(server.requests().len(), 1, "{reply:?}");
            }
        }
    }
    let declined = r#"{"content":[{"type":"text","text":"declined"}],"isError":true}"#;
    for reply in unfinished_replies("application/json", declined) {
        let server = Server::start(&[reply]);
        let tool = tool(&write_spec("timeout: 500ms"), &server);
        let arguments = payment_arguments().to_string();
        let result = ToolCaller::new().expect_result(&tool, &arguments).await;
        assert_eq!((text(&result).as_str(), result.is_error), ("declined", true));
    }
}

#[tokio::test]
async fn reason_of_unknown_write_shows_the_part_that_arrived() {
    let events = format!("data: {{\"progress\":1}}\n\ndata: {RECEIPT}\n\n");
    for (mime_type, body, shown) in [
        ("application/json", r#"{"receipt":"r1""#, r#"{"receipt":"r1""#),
        ("application/json", r#"{"receipt":"r1"}{"#, r#"{"receipt":"r1"}{"#),
        ("application/json", "{\"progress\":1}\n", "{\"progress\":1}"),
        // The first of several lines, which may end with an error.
        ("application/json", "{\"status\":\"accepted\"}\n", "{\"status\":\"accepted\"}"),
        ("", "{\"status\":\"accepted\"}\n", "{\"status\":\"accepted\"}"),
        ("application/json", r#"{"k":"kee-p-this-secr"#, r#"{"k":"[KEY]"#),
        ("text/plain", "paid r1 kee-p-this-secr", "paid r1 [KEY]"),
        ("text/plain", RECEIPT, RECEIPT),
        ("text/plain", "paid r1 kee-p-this-secret", "paid r1 [KEY]"),
        ("text/html", "<h1>Paid</h1> r1", "Paid r1"),
        (NDJSON, &format!("{RECEIPT}\n"), RECEIPT),
        (SSE, &events, &format!("data: {{\"progress\":1}} data: {RECEIPT}")),
    ] {
        for (reply, cause) in unfinished_replies(mime_type, body).iter().zip([
            "the response (200 OK) was cut off",
            "the response (200 OK) was cut off",
            "the response (200 OK) did not end within 500 ms",
        ]) {
            assert_eq!(reason_of_write(reply).await, format!("{cause}: {shown}"), "{reply:?}");
        }
    }
    for (mime_type, body) in [("application/json", ""), ("application/pdf", "%PDF")] {
        let cut = Reply::status(200).with_body(mime_type, body).cut_short();
        assert_eq!(reason_of_write(&cut).await, "the response (200 OK) was cut off");
    }
}

#[tokio::test]
async fn reason_of_unknown_write_is_bounded_and_shows_no_setting() {
    let long = format!("{{\"key\":\"kee-p-this-secret\",\"rows\":\"{}", "é".repeat(9_000));
    for mime_type in ["application/json", "text/plain"] {
        for reply in unfinished_replies(mime_type, &long) {
            let reason = reason_of_write(&reply.truncated()).await;
            assert!(reason.contains("{\"key\":\"[KEY]\",\"rows\":\"éé"), "{reason}");
            assert!((2_000..2_304).contains(&reason.len()), "{}", reason.len());
        }
    }
}

/// A redirect may follow the work, and its page may have a receipt.
#[tokio::test]
async fn reason_of_redirected_write_shows_its_page() {
    let page = Reply::status(303).with_body("text/html", "<p>Receipt r1, kee-p-this-secret</p>");
    let reason = reason_of_write(&page.with("location", "/receipts/r1")).await;
    assert!(reason.ends_with("must be the final one: Receipt r1, [KEY]"), "{reason}");
}
