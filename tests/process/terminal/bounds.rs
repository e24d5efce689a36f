//! Bounds of the terminal commands: requests of each command, bytes on the terminal, and memory of `chat`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Method, Uri};

use super::chat::{start_chat, start_helper};
use super::program::run;
use super::screen::ChatTerminal;
use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};

const READY: &str = "/help lists the commands.";
/// Bytes of a response with [`ROWS`] rows.
const RESPONSE_BYTES: usize = 1_000_000;
const ROWS: usize = 15_625;
/// Resident memory of `chat` without the program itself.
const MEMORY_KB_MAX: u64 = 20_000;

/// Forwards requests to a service, and counts them.
struct CountingProxy {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone)]
struct Forwarder {
    target: String,
    client: reqwest::Client,
    requests: Arc<Mutex<Vec<String>>>,
}

impl CountingProxy {
    async fn start(dev: &DevProcess) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let client = reqwest::Client::new();
        let state = Forwarder { target: dev.url(""), client, requests: Arc::clone(&requests) };
        let router = Router::new().fallback(forward).with_state(state);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, requests }
    }

    /// The requests since the last call, such as `GET /api/agents`.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

async fn forward(
    State(forwarder): State<Forwarder>,
    method: Method,
    uri: Uri,
    mut headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Forwarder { target, client, requests } = forwarder;
    requests.lock().unwrap().push(format!("{method} {}", uri.path()));
    headers.remove("host");
    let request = client.request(method, format!("{target}{uri}")).headers(headers).body(body);
    let response = request.send().await.unwrap();
    let mut forwarded = Response::new(Body::empty());
    *forwarded.status_mut() = response.status();
    *forwarded.headers_mut() = response.headers().clone();
    forwarded.headers_mut().remove("transfer-encoding");
    *forwarded.body_mut() = Body::from_stream(response.bytes_stream());
    forwarded
}

/// In Azure each request costs money and about 100 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_send_few_requests() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let proxy = CountingProxy::start(&dev).await;
    let url = proxy.url.as_str();
    let run_counted = |arguments: &[&str], code: i32| {
        let finished = run(&[arguments, &["--url", url]].concat(), "");
        assert_eq!(finished.code, Some(code), "{arguments:?}: {finished:?}");
        (finished, proxy.take())
    };
    let (sent, requests) = run_counted(&["send", "--agent", "payments-clerk", "Pay 250 to Ada"], 3);
    let id = sent.stderr.lines().find_map(|line| line.strip_prefix("conversation ")).unwrap();
    assert_eq!(requests.len(), 2, "the input and one stream: {requests:?}");
    for (arguments, count) in [
        (&["why", id][..], 1),
        (&["show", id], 3),
        (&["approve", id], 2),
        (&["tail", id], 4),
        (&["abort", id], 1),
    ] {
        let (_, requests) = run_counted(arguments, 0);
        assert!(requests.len() <= count, "{arguments:?}: {requests:?}");
    }
    let chat = ChatTerminal::start(folder.path(), &["chat", "assistant", "--url", url], &[]);
    chat.wait_for(READY).await;
    assert_eq!(proxy.take(), ["GET /api/agents"]);
    chat.press("Hello\r");
    chat.wait_for("\nconversation c_").await;
    chat.wait_until(|text| text.ends_with("assistant >")).await;
    let requests = proxy.take();
    assert_eq!(requests.len(), 2, "the input and one stream: {requests:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(proxy.take(), [""; 0], "a chat without a running prompt sends nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_prints_a_large_response_once_in_little_memory() {
    let row = |number: usize| format!("row {number:0>59}\n");
    let text: String = (1..=ROWS).map(row).collect();
    assert_eq!(text.len(), RESPONSE_BYTES);
    let pieces: Vec<String> = text
        .as_bytes()
        .chunks(RESPONSE_BYTES / 100)
        .map(|piece| String::from_utf8(piece.to_vec()).unwrap())
        .collect();
    let response = ResponseScript { text: pieces, ..ResponseScript::default() };
    let model = FakeModel::start([ScriptedResponse::Response(response)]).await;
    let (dev, folder) = start_helper(&model);
    let chat = start_chat(&dev, folder.path(), "helper");
    chat.wait_for(READY).await;
    chat.press("Hello\r");
    let last = row(ROWS);
    chat.wait_for(last.trim_end()).await;
    chat.wait_until(|text| text.ends_with("helper >")).await;
    let output = String::from_utf8_lossy(&chat.bytes()).into_owned();
    let printed = output.matches("row 0000").count();
    assert_eq!(printed, ROWS, "each row is printed, and none again");
    // The prompt below the rows, about 80 bytes for each row.
    assert!(output.len() < 3 * RESPONSE_BYTES, "{} bytes", output.len());
    let memory = chat.memory_kb();
    assert!(memory < MEMORY_KB_MAX, "{memory} KB");
}
