//! Streaming HTTP tools: progress while the call runs, then the result. Also log lines of failed
//! calls.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::bench::{Bench, text, tool, tool_with};
use super::server::{Reply, Server};
use super::{ada, look, pay};
use turnwheel::tools::http::addresses::AddressRules;

const NDJSON: &str = "application/x-ndjson";
const SSE: &str = "text/event-stream";

#[tokio::test]
async fn streamed_answer_reports_progress_and_ends_with_the_result() {
    let lines = "{\"progress\":\"half\"}\n{\"progress\":{\"percent\":90}}\n{\"rows\":2}\n";
    let events = "data: {\"progress\":\"half\"}\n\ndata: {\"progress\":{\"percent\":90}}\n\ndata: {\"rows\":2}\n\n";
    for (mime_type, body) in [(NDJSON, lines), (SSE, events)] {
        let server = Server::start(&[Reply::status(200).with_body(mime_type, body)]);
        let bench = Bench::new();
        let result = bench.returned(&tool(&look(""), &server), "{}").await;
        assert_eq!(result.structured.unwrap().value(), json!({"rows": 2}), "{mime_type}");
        let progress: Vec<String> = bench.progress.lock().unwrap().iter().map(text).collect();
        assert_eq!(progress, ["half", "{\"percent\":90}"]);
    }
}

#[tokio::test]
async fn last_event_may_be_a_full_result() {
    let body = "data: {\"progress\":1}\n\ndata: {\"content\":[{\"type\":\"text\",\"text\":\"no\"}],\"isError\":true}\n\n";
    let server = Server::start(&[Reply::status(200).with_body(SSE, body)]);
    let result = Bench::new().returned(&tool(&look(""), &server), "{}").await;
    assert_eq!((text(&result).as_str(), result.is_error), ("no", true));
}

#[tokio::test]
async fn progress_arrives_while_the_call_runs() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: {NDJSON}\r\n\r\n{{\"progress\":\"half\"}}\n");
        stream.write_all(head.as_bytes()).unwrap();
        wait.recv().unwrap();
        stream.write_all(b"\"whole\"").unwrap();
    });
    let tool = tool_with(&look(""), &url, AddressRules::default().with_loopback());
    let bench = Bench::new();
    let call = bench.returned(&tool, "{}");
    let seen = async {
        while bench.progress.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        go_on.send(()).unwrap();
    };
    let (result, ()) = tokio::join!(call, seen);
    assert_eq!(text(&result), "\"whole\"");
}

#[tokio::test]
async fn stream_without_a_result_leaves_a_write_in_doubt_and_a_read_is_repeated() {
    let unfinished = Reply::status(200).with_body(NDJSON, "{\"progress\":\"half\"}\n");
    let server = Server::start(std::slice::from_ref(&unfinished));
    let reason = Bench::new().unknown(&tool(&pay(""), &server), &ada().to_string()).await;
    assert_eq!(reason, "the response (200 OK) ended after its progress, without a result");
    let server = Server::start(&[unfinished, Reply::status(200).with_body(NDJSON, "\"there\"")]);
    let result = Bench::new().returned(&tool(&look(""), &server), "{}").await;
    assert_eq!(text(&result), "\"there\"");
}

#[tokio::test]
async fn progress_shows_no_setting() {
    let body = "{\"progress\":\"you sent kee-p-this-secret\"}\n1\n";
    let server = Server::start(&[Reply::status(200).with_body(NDJSON, body)]);
    let bench = Bench::new();
    bench.returned(&tool(&look("headers: { x-key: '${KEY}' }"), &server), "{}").await;
    assert_eq!(text(&bench.progress.lock().unwrap()[0]), "you sent [KEY]");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Log lines of failed calls during one call.
    async fn of(spec: &str, server: &Server) -> Vec<String> {
        let log = Self::default();
        let out = log.clone();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || out.clone())
            .finish();
        // With a second dispatcher, callsites check every subscriber, not only the one of the first
        // thread that reaches them.
        let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let guard = tracing::subscriber::set_default(lines);
        Bench::new().call(&tool(spec, server), &ada().to_string()).await;
        drop(guard);
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let of_calls = text.lines().filter(|line| line.contains("tool call failed"));
        of_calls
            .map(|line| line.split(" conversation.id").next().unwrap().trim().to_owned())
            .collect()
    }
}

#[tokio::test]
async fn every_failed_attempt_is_logged_with_its_cause_and_without_data() {
    let secret = Reply::status(503).with_body("text/plain", "Ada owes 250");
    let server = Server::start(&[secret]);
    assert_eq!(
        Log::of(&look(""), &server).await,
        [
            r#"WARN tool call failed tool=the_tool status=503 attempt=1/3 retry_in="200ms" cause="the server responded 503 Service Unavailable""#,
            r#"WARN tool call failed tool=the_tool status=503 attempt=2/3 retry_in="400ms" cause="the server responded 503 Service Unavailable""#,
            r#"WARN tool call failed tool=the_tool status=503 attempt=3/3 cause="the server responded 503 Service Unavailable""#,
        ]
    );
    let server = Server::start(&[Reply::Cut]);
    assert_eq!(
        Log::of(&pay(""), &server).await,
        [
            r#"WARN tool call failed tool=the_tool attempt=1/1 cause="the connection was cut before a response arrived""#
        ]
    );
    let server = Server::start(&[Reply::json(r#"{"content":"Ada","isError":true}"#)]);
    assert_eq!(
        Log::of(&pay(""), &server).await,
        [
            r#"WARN tool call failed tool=the_tool status=200 attempt=1/1 cause="its result is an error, or could not be read""#
        ]
    );
    let server = Server::start(&[Reply::json("{}")]);
    assert_eq!(Log::of(&pay(""), &server).await, Vec::<String>::new());
}
