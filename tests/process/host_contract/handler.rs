//! The handler: envelopes as the host's source makes them, in both framings, and exact responses.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use turnwheel::testing::http::functions::{
    FunctionFailure, Functions, InvocationMeta, MESSAGE_BINDING, TIMER_BINDING, TimerInfo,
    functions_router,
};
use turnwheel::testing::shutdown::Shutdown;

use super::recorded_invocations::FAILING_MESSAGE;
use super::test_host::{OK_RESPONSE, TestHost, client, serve};

/// Records its calls; some texts make it fail.
#[derive(Debug, Default)]
pub(super) struct RecordingFunctions {
    calls: Mutex<Vec<(&'static str, String, InvocationMeta)>>,
}

impl RecordingFunctions {
    fn record(
        &self,
        name: &'static str,
        text: String,
        meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        assert!(text != "panic", "a secret in a panic");
        let is_failing = text == "fail" || (name == "turn" && text == FAILING_MESSAGE);
        let outcome =
            if is_failing { Err(FunctionFailure("failure requested".into())) } else { Ok(()) };
        self.calls.lock().unwrap().push((name, text, meta));
        outcome
    }

    pub(super) fn texts(&self) -> Vec<(&'static str, String)> {
        let calls = self.calls.lock().unwrap();
        calls.iter().map(|(name, text, _)| (*name, text.clone())).collect()
    }
}

#[async_trait]
impl Functions for RecordingFunctions {
    async fn turn(&self, message: String, meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.record("turn", message, meta)
    }
    async fn prompt(&self, message: String, meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.record("prompt", message, meta)
    }
    async fn notify(&self, message: String, meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.record("notify", message, meta)
    }
    async fn sweep(&self, timer: TimerInfo, meta: InvocationMeta) -> Result<(), FunctionFailure> {
        self.record("sweep", timer.is_past_due.to_string(), meta)
    }
    async fn turn_poison(
        &self,
        message: String,
        meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        self.record("turn-poison", message, meta)
    }
    async fn notify_poison(
        &self,
        message: String,
        meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        self.record("notify-poison", message, meta)
    }
}

pub(super) fn recording_handler() -> (Arc<RecordingFunctions>, Router) {
    let functions = Arc::new(RecordingFunctions::default());
    (
        Arc::clone(&functions),
        functions_router(functions as _, Shutdown::default(), Duration::from_mins(5)),
    )
}

/// Reconstructed from the host's source, names and encodings included.
const QUEUE_ENVELOPE: &str = r#"{
  "Data": { "message": "\"{\\\"jobId\\\":\\\"j-1\\\",\\\"n\\\":3}\"" },
  "Metadata": {
    "DequeueCount": "1",
    "ExpirationTime": "2026-11-28T20:15:00+00:00",
    "Id": "\"800ae4b3-bdd2-4c08-badd-f08e5a34b865\"",
    "InsertionTime": "2026-11-21T20:15:00+00:00",
    "NextVisibleTime": "2026-11-21T20:25:02+00:00",
    "PopReceipt": "\"AgAAAAMAAAAAAAAAAgtnj8x+1QE=\"",
    "sys": { "MethodName": "turn", "UtcNow": "2026-11-21T20:15:02.2205399Z", "RandGuid": "24ad4c06-24ad-4e5b-8294-3da9714877e9" },
    "jobId": "\"j-1\"",
    "n": "\"3\""
  }
}"#;

const TIMER_ENVELOPE: &str = r#"{
  "Data": { "timer": { "Schedule": {"AdjustForDST": true},
    "ScheduleStatus": {"Last":"2026-11-21T20:10:00.0079999+00:00","Next":"2026-11-21T20:15:00+00:00","LastUpdated":"2026-11-21T20:10:00.0079999+00:00"},
    "IsPastDue": true } },
  "Metadata": { "sys": { "MethodName": "sweep", "UtcNow": "2026-11-21T20:15:02.2205399Z", "RandGuid": "24ad4c06-24ad-4e5b-8294-3da9714877e9" } }
}"#;

/// Sends bytes and reads the response to its end.
async fn send_raw(address: std::net::SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn request_head(path: &str, framing: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:43997\r\nContent-Type: application/json; charset=utf-8\r\n\
         {framing}\r\nX-Azure-Functions-HostVersion: 4.1037.0.0\r\nX-Azure-Functions-InvocationId: 6f6c4e0e\r\n\
         traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nConnection: close\r\n\r\n"
    )
}

#[tokio::test]
async fn recorded_envelopes_get_exact_responses_in_both_framings() {
    let (functions, router) = recording_handler();
    let (address, _server) = serve(router).await;

    let length = format!("Content-Length: {}", QUEUE_ENVELOPE.len());
    let whole =
        send_raw(address, (request_head("/turn", &length) + QUEUE_ENVELOPE).as_bytes()).await;
    let (first, second) = QUEUE_ENVELOPE.split_at(100);
    let chunks =
        format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len());
    let chunked = request_head("/turn", "Transfer-Encoding: chunked") + &chunks;
    let chunked = send_raw(address, chunked.as_bytes()).await;

    for answer in [whole, chunked] {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("content-type: application/json\r\n"), "{head}");
        assert!(head.contains("content-length: 43"), "{head}");
        assert_eq!(body, OK_RESPONSE);
    }
    let calls = functions.calls.lock().unwrap();
    assert_eq!(calls.len(), 2);
    for (name, text, meta) in calls.iter() {
        assert_eq!((*name, text.as_str()), ("turn", r#"{"jobId":"j-1","n":3}"#));
        assert_eq!(meta.message_id.as_deref(), Some("800ae4b3-bdd2-4c08-badd-f08e5a34b865"));
        assert_eq!(meta.invocation_id.as_deref(), Some("6f6c4e0e"));
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(meta.traceparent.as_deref(), Some(parent));
    }
}

/// The Functions host sends none of these headers itself, and a web page cannot leave them out.
#[tokio::test]
async fn functions_refuse_requests_of_clients() {
    let (functions, router) = recording_handler();
    let (address, _server) = serve(router).await;
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "127.0.0.1:7071"),
        ("x-forwarded-proto", "http"),
    ] {
        for function in ["turn", "prompt", "notify", "sweep", "turn-poison", "notify-poison"] {
            let request = client().post(format!("http://{address}/{function}")).header(name, value);
            let answer = request.body(QUEUE_ENVELOPE).send().await.unwrap();
            assert_eq!(answer.status(), 403, "{function} {name}");
        }
    }
    assert_eq!(functions.texts(), []);
}

#[tokio::test]
async fn past_due_timer_and_probe_are_handled() {
    let (functions, router) = recording_handler();
    let (address, _server) = serve(router).await;
    let url = format!("http://{address}");
    let answer = client().post(format!("{url}/sweep")).body(TIMER_ENVELOPE).send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap().as_str()),
        (200, OK_RESPONSE)
    );
    assert_eq!(functions.texts(), [("sweep", "true".to_owned())]);
    assert_eq!(client().get(url).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn failed_calls_return_500_and_server_continues() {
    let (functions, router) = recording_handler();
    let (address, _server) = serve(router).await;
    let post = async |path: &str, body: String| {
        let answer = client().post(format!("http://{address}{path}")).body(body).send().await;
        let answer = answer.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let envelope = |text: &str| serde_json::json!({"Data": {"message": text}}).to_string();

    let failed = post("/turn", envelope("fail")).await;
    assert_eq!(failed, (500, r#"{"error":"failure requested"}"#.to_owned()));
    let panicked = post("/turn", envelope("panic")).await;
    assert_eq!(panicked, (500, r#"{"error":"the function panicked"}"#.to_owned()));
    for nonsense in ["", "null", "{", r#"{"Data":[]}"#, r#"{"Data":{"other":"x"}}"#, "\u{fffd}"] {
        let (status, text) = post("/turn", nonsense.to_owned()).await;
        assert_eq!(status, 500, "{nonsense}");
        assert!(text.contains("the envelope"), "{nonsense}: {text}");
    }
    assert_eq!(post("/other", envelope("x")).await.0, 404);
    let (status, _) = post("/turn", envelope(&"x".repeat(3 * 1024 * 1024))).await;
    assert_eq!(status, 413);

    assert_eq!(post("/prompt", envelope("hello")).await, (200, OK_RESPONSE.to_owned()));
    assert_eq!(functions.texts().last(), Some(&("prompt", "hello".to_owned())));
}

#[tokio::test]
async fn messages_pass_host_and_handler_unchanged() {
    let (functions, router) = recording_handler();
    let host = TestHost::start(router).await;
    let texts = [
        "hello",
        "\"quoted\"",
        "3",
        "null",
        "[1,2]",
        "jobs",
        "aGVsbG8=",
        "line\nbreak ü 🙂 \u{2028} \\ \"",
        r#"{"jobId":"j-1","n":3}"#,
        r#"{"dequeueCount":"0","Id":"x","message":"y","Data":{"message":"z"},"Metadata":1}"#,
        "",
    ];
    for text in texts {
        host.queue.put("agent-prompts", text).await;
    }
    host.queue.put("agent-notify-poison", "poison").await;
    let sent = texts.len() + 1;
    host.queue.until("all are deleted", |state| state.deletions == sent).await;

    let mut expected: Vec<_> = texts.map(|text| ("prompt", text.to_owned())).into();
    expected.push(("notify-poison", "poison".to_owned()));
    expected.sort();
    let mut received = functions.texts();
    received.sort();
    assert_eq!(received, expected);
    assert_eq!(host.errors().await, Vec::<String>::new());
}

#[test]
fn function_json_bindings_match_the_handler() {
    for (name, text) in &turnwheel::testing::host::ScriptRoot::embedded().functions {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let binding = &json["bindings"][0];
        match binding["type"].as_str().unwrap() {
            "queueTrigger" => assert_eq!(binding["name"], MESSAGE_BINDING, "{name}"),
            "timerTrigger" => assert_eq!(binding["name"], TIMER_BINDING, "{name}"),
            _ => {}
        }
    }
}
