//! Streaming HTTP tools: progress while the call runs, then the result. Also log lines of failed
//! calls.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use serde_json::json;

use super::server::{Reply, Server};
use super::tool_caller::{ToolCaller, text, tool, tool_at_url};
use super::{payment_arguments, read_spec, write_spec};
use turnwheel::testing::tools::http::address_rules::AddressRules;
use turnwheel_test_support::captured_log::CapturedLog;

const NDJSON: &str = "application/x-ndjson";
const SSE: &str = "text/event-stream";

#[tokio::test]
async fn streamed_response_reports_progress_then_result() {
    let lines = "{\"progress\":\"half\"}\n{\"progress\":{\"percent\":90}}\n{\"rows\":2}\n";
    let events = "data: {\"progress\":\"half\"}\n\ndata: {\"progress\":{\"percent\":90}}\n\ndata: {\"rows\":2}\n\n";
    for (mime_type, body) in [(NDJSON, lines), (SSE, events)] {
        let server = Server::start(&[Reply::status(200).with_body(mime_type, body)]);
        let caller = ToolCaller::new();
        let result = caller.expect_result(&tool(&read_spec(""), &server), "{}").await;
        assert_eq!(result.structured.unwrap().to_value(), json!({"rows": 2}), "{mime_type}");
        let progress: Vec<String> = caller.progress.lock().unwrap().iter().map(text).collect();
        assert_eq!(progress, ["half", "{\"percent\":90}"]);
    }
}

#[tokio::test]
async fn last_event_may_be_a_full_result() {
    let body = "data: {\"progress\":1}\n\ndata: {\"content\":[{\"type\":\"text\",\"text\":\"no\"}],\"isError\":true}\n\n";
    let server = Server::start(&[Reply::status(200).with_body(SSE, body)]);
    let result = ToolCaller::new().expect_result(&tool(&read_spec(""), &server), "{}").await;
    assert_eq!((text(&result).as_str(), result.is_error), ("no", true));
}

#[tokio::test]
async fn progress_arrives_while_the_call_runs() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (proceed, wait) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: {NDJSON}\r\n\r\n{{\"progress\":\"half\"}}\n");
        stream.write_all(head.as_bytes()).unwrap();
        wait.recv().unwrap();
        stream.write_all(b"\"whole\"").unwrap();
    });
    let tool = tool_at_url(&read_spec(""), &url, AddressRules::default().with_loopback());
    let caller = ToolCaller::new();
    let call = caller.expect_result(&tool, "{}");
    let progress_seen = async {
        while caller.progress.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        proceed.send(()).unwrap();
    };
    let (result, ()) = tokio::join!(call, progress_seen);
    assert_eq!(text(&result), "\"whole\"");
}

#[tokio::test]
async fn stream_without_result_is_retried_or_unknown() {
    let unfinished = Reply::status(200).with_body(NDJSON, "{\"progress\":\"half\"}\n");
    let server = Server::start(std::slice::from_ref(&unfinished));
    let reason = ToolCaller::new()
        .expect_unknown(&tool(&write_spec(""), &server), &payment_arguments().to_string())
        .await;
    assert_eq!(
        reason,
        r#"the response (200 OK) ended after its progress, without a result: {"progress":"half"}"#
    );
    let server = Server::start(&[unfinished, Reply::status(200).with_body(NDJSON, "\"there\"")]);
    let result = ToolCaller::new().expect_result(&tool(&read_spec(""), &server), "{}").await;
    assert_eq!(text(&result), "\"there\"");
}

#[tokio::test]
async fn progress_with_deep_details_precedes_the_result() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    let lines =
        format!("{{\"progress\":{{\"content\":\"half\",\"details\":{deep}}}}}\n{{\"rows\":2}}\n");
    let server = Server::start(&[Reply::status(200).with_body(NDJSON, &lines)]);
    let caller = ToolCaller::new();
    let result = caller.expect_result(&tool(&read_spec(""), &server), "{}").await;
    assert_eq!(result.structured.unwrap().to_value(), json!({"rows": 2}));
    let progress = caller.progress.lock().unwrap().remove(0);
    assert_eq!(text(&progress), "half");
    let details: serde_json::Value = progress.details.unwrap().read().unwrap();
    assert!(details.is_array(), "only the part that nests too deep is a text: {details}");
}

#[tokio::test]
async fn progress_hides_setting_values() {
    let body = "{\"progress\":\"you sent kee-p-this-secret\"}\n1\n";
    let server = Server::start(&[Reply::status(200).with_body(NDJSON, body)]);
    let caller = ToolCaller::new();
    caller.expect_result(&tool(&read_spec("headers: { x-key: '${KEY}' }"), &server), "{}").await;
    assert_eq!(text(&caller.progress.lock().unwrap()[0]), "you sent [KEY]");
}

/// Log lines of failed calls during one call.
async fn failed_call_lines(spec: &str, server: &Server) -> Vec<String> {
    let log = CapturedLog::start();
    ToolCaller::new().call(&tool(spec, server), &payment_arguments().to_string()).await;
    let text = log.text();
    let failed_calls = text.lines().filter(|line| line.contains("tool call failed"));
    failed_calls
        .map(|line| line.split(" conversation.id").next().unwrap().trim().to_owned())
        .collect()
}

#[tokio::test]
async fn failed_attempts_are_logged_without_data() {
    let secret = Reply::status(503).with_body("text/plain", "Ada owes 250");
    let server = Server::start(&[secret]);
    assert_eq!(
        failed_call_lines(&read_spec(""), &server).await,
        [
            r#"WARN tool call failed tool=the_tool status=503 attempt=1/3 retry_in="200ms" cause="the server responded 503 Service Unavailable""#,
            r#"WARN tool call failed tool=the_tool status=503 attempt=2/3 retry_in="400ms" cause="the server responded 503 Service Unavailable""#,
            r#"WARN tool call failed tool=the_tool status=503 attempt=3/3 cause="the server responded 503 Service Unavailable""#,
        ]
    );
    let server = Server::start(&[Reply::Cut]);
    assert_eq!(
        failed_call_lines(&write_spec(""), &server).await,
        [
            r#"WARN tool call failed tool=the_tool attempt=1/1 cause="the connection was cut before a response arrived""#
        ]
    );
    let server = Server::start(&[Reply::json(r#"{"content":"Ada","isError":true}"#)]);
    assert_eq!(
        failed_call_lines(&write_spec(""), &server).await,
        [
            r#"WARN tool call failed tool=the_tool status=200 attempt=1/1 cause="its result is an error, or could not be read""#
        ]
    );
    let server = Server::start(&[Reply::json("{}")]);
    assert_eq!(failed_call_lines(&write_spec(""), &server).await, Vec::<String>::new());
}
