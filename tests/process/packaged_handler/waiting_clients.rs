//! Turns of `execution: here`: the handler that accepts a prompt takes them itself, and the host
//! delivers no message.

use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::outages::start_database;
use super::{Handler, TIMEOUT, package_into, silent_model, wait_for_nudge};
use crate::support::openapi_check::{self, SendValidated as _};

const AGENT: &str =
    "---\ndescription: Chats.\nexecution: here\ntools: []\n---\nYou are a helpful assistant.\n";

/// A handler with the agent `chat`.
async fn start(settings: &[(&str, &str)]) -> Handler {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let dist = folder.path().join("dist");
    package_into(&dist);
    std::fs::write(dist.join("agents/chat.agent.md"), AGENT).unwrap();
    let handler = Handler::spawn_in(folder, settings, |program| Command::new(program)).await;
    handler.wait_until_it_responds().await;
    handler
}

fn prompt(handler: &Handler, conversation: &str, wait: u32) -> reqwest::RequestBuilder {
    let body = json!({"agent": "chat", "conversationId": conversation, "input": "Hello"});
    handler.client.post(format!("{}/api/prompts?wait={wait}", handler.base)).json(&body)
}

#[tokio::test]
async fn prompt_of_a_waiting_client_needs_no_message() {
    let (_database, settings) = start_database();
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    let handler = start(&settings).await;
    let began = Instant::now();
    let response = prompt(&handler, "here", 60).send_validated().await.unwrap();
    assert_eq!(response.status(), 200);
    let completed = began.elapsed();
    let prompt: Value = response.json().await.unwrap();
    assert_eq!(prompt["state"], "completed", "{prompt}");

    // The stream of the same instance shows the next response as it arrives.
    let mut events = open_stream(&handler, "here").await;
    let url = format!("{}/api/conversations/here/prompts?wait=60", handler.base);
    let next = handler.client.post(url).json(&json!({"input": "Say the word tangerine"}));
    let (began, next) = (Instant::now(), next.send_validated());
    let first_text = async {
        read_first_text(&mut events, "tangerine").await;
        began.elapsed()
    };
    let (next, first_text) = tokio::join!(next, first_text);
    assert_eq!(next.unwrap().status(), 200);
    let nudges = handler.receive_nudges("here").await;
    assert_eq!(nudges, [""; 0], "no turn waited for the queue");
    let times = format!(
        "`execution: here`, the model responds at once: first prompt completed after {completed:?}, first text of the next after {first_text:?}"
    );
    writeln!(std::io::stderr(), "{times}").unwrap();
}

/// Reads the stream until the first piece of the response to that input.
async fn read_first_text(events: &mut reqwest::Response, input: &str) {
    let mut stream = String::new();
    while !stream.split_once(input).is_some_and(|(_, rest)| rest.contains("text_delta")) {
        let chunk = events.chunk().await.unwrap().expect("the stream has the response");
        stream.push_str(&String::from_utf8_lossy(&chunk));
    }
    // The last event may have arrived in part.
    let (complete, _) = stream.rsplit_once("\n\n").unwrap();
    openapi_check::check_events(&format!("{complete}\n\n"));
}

async fn open_stream(handler: &Handler, conversation: &str) -> reqwest::Response {
    let url = format!("{}/api/conversations/{conversation}/events", handler.base);
    handler.client.get(url).send().await.unwrap()
}

async fn read_state(handler: &Handler, path: &str) -> Value {
    let url = format!("{}/api/conversations/{path}", handler.base);
    let view: Value = handler.client.get(url).send_validated().await.unwrap().json().await.unwrap();
    view["state"].clone()
}

async fn send_next(handler: &Handler, conversation: &str, input: &str) {
    let url = format!("{}/api/conversations/{conversation}/prompts", handler.base);
    let next = handler.client.post(url).json(&json!({"input": input}));
    assert_eq!(next.send_validated().await.unwrap().status(), 202);
}

/// The console and the terminal read a stream, and their requests do not wait.
#[tokio::test]
async fn prompt_of_a_client_with_a_stream_runs_without_a_worker() {
    let (_database, settings) = start_database();
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    let handler = start(&settings).await;
    // The id of a new conversation comes with the response, so its stream opens later: on a busy machine
    // perhaps too late.
    let mut number = 0;
    let (conversation, mut events, first) = loop {
        let (conversation, began) = (format!("streamed-{number}"), Instant::now());
        let response = prompt(&handler, &conversation, 0).send_validated().await.unwrap();
        assert_eq!(response.status(), 202);
        let mut events = open_stream(&handler, &conversation).await;
        let first_text = read_first_text(&mut events, "Hello");
        if tokio::time::timeout(Duration::from_secs(20), first_text).await.is_ok() {
            break (conversation, events, began.elapsed());
        }
        number += 1;
        assert!(number < 5, "no turn runs here");
    };
    assert_eq!(read_state(&handler, &format!("{conversation}?wait=60")).await, "idle");
    // For the case without a stream.
    wait_for_nudge(&handler, &conversation).await;

    let began = Instant::now();
    send_next(&handler, &conversation, "Say the word tangerine").await;
    read_first_text(&mut events, "tangerine").await;
    let times = format!(
        "`execution: here`, with a stream, the model responds at once: first text of a new conversation after {first:?}, of its next prompt after {:?}",
        began.elapsed()
    );
    // The service detects a little later that the connection has ended.
    drop(events);
    let deadline = Instant::now() + TIMEOUT;
    while handler.receive_nudges(&conversation).await.is_empty() {
        assert!(Instant::now() < deadline, "turns still run here without a stream");
        // A prompt for which a worker was woken runs on: its message stays in the queue.
        if read_state(&handler, &conversation).await == "idle" {
            send_next(&handler, &conversation, "Hello again").await;
        }
    }
    writeln!(std::io::stderr(), "{times}").unwrap();
}

async fn wait_until_model_is_called(handler: &Handler, conversation: &str) {
    let deadline = Instant::now() + TIMEOUT;
    let url = format!("{}/api/conversations/{conversation}/why", handler.base);
    loop {
        let why = handler.client.get(&url).send_validated().await.unwrap().text().await.unwrap();
        if why.contains("calling the model") {
            return;
        }
        assert!(Instant::now() < deadline, "the turn does not begin: {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn silent_settings(url: &str) -> [(&str, &str); 3] {
    [("TURNWHEEL_MODEL", "gpt-5.1"), ("AZURE_OPENAI_BASE_URL", url), ("AZURE_OPENAI_API_KEY", "k")]
}

#[tokio::test]
async fn queue_continues_a_turn_whose_handler_was_killed() {
    let (_model, url) = silent_model();
    let mut handler = start(&silent_settings(&url)).await;
    let response = prompt(&handler, "here-killed", 1).send_validated().await.unwrap();
    assert_eq!(response.status(), 202, "the prompt continues after the wait");
    wait_until_model_is_called(&handler, "here-killed").await;
    assert_eq!(handler.receive_nudges("here-killed").await, [""; 0]);
    handler.kill_and_restart();
    // The next handler finds the conversation on its machine.
    wait_for_nudge(&handler, "here-killed").await;
}

async fn read_lease(handler: &Handler, conversation: &str) -> Value {
    let url = format!("{}/api/conversations/{conversation}/why", handler.base);
    let why: Value = handler.client.get(url).send_validated().await.unwrap().json().await.unwrap();
    why["claim"].clone()
}

/// The lease is in the database, as in Azure, where it stays after its end until a worker takes over. No
/// worker does here, since the test delivers no message: only the next handler ends the lease.
#[tokio::test]
async fn next_handler_ends_lease_of_a_client_turn() {
    let (_database, settings) = start_database();
    let (_model, url) = silent_model();
    let settings = settings.iter().map(|(name, it)| (*name, &**it));
    let settings: Vec<(&str, &str)> = settings.chain(silent_settings(&url)).collect();
    let mut handler = start(&settings).await;
    let response = prompt(&handler, "here-leased", 1).send_validated().await.unwrap();
    assert_eq!(response.status(), 202, "the prompt continues after the wait");
    wait_until_model_is_called(&handler, "here-leased").await;
    assert!(!read_lease(&handler, "here-leased").await.is_null());
    assert_eq!(handler.receive_nudges("here-leased").await, [""; 0]);
    handler.kill_and_restart();
    handler.wait_until_it_responds().await;
    let deadline = Instant::now() + TIMEOUT;
    while !read_lease(&handler, "here-leased").await.is_null() {
        assert!(Instant::now() < deadline, "the lease of the killed handler stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    wait_for_nudge(&handler, "here-leased").await;
}

#[cfg(unix)]
#[tokio::test]
async fn signal_gives_a_turn_back_that_runs_for_a_client() {
    let (_model, url) = silent_model();
    let handler = start(&silent_settings(&url)).await;
    let waiting = prompt(&handler, "here-signalled", 60).send_validated();
    let signal = async {
        wait_until_model_is_called(&handler, "here-signalled").await;
        super::send_signal(handler.process.id(), "-TERM");
    };
    let (response, ()) = tokio::join!(waiting, signal);
    assert_eq!(response.unwrap().status(), 202, "the state so far");
    let mut handler = handler;
    assert_eq!(handler.wait_for_end().await.code(), Some(200));
    wait_for_nudge(&handler, "here-signalled").await;
}
