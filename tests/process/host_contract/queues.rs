//! Queue triggers: immediate delivery, renewal while a function runs, retries and the poison queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::{Semaphore, mpsc, watch};
use turnwheel::testing::host::ScriptRoot;

use super::recording_queue::{RecordingQueue, TIMEOUT};
use super::test_host::{EditHostJson, OK_RESPONSE, TestHost, TestHostConfig};
use turnwheel_test_support::time_bound::check_time;

const TURNS: &str = "agent-turns";

fn ok_response() -> Response {
    ([(CONTENT_TYPE, "application/json")], OK_RESPONSE).into_response()
}

/// A handler whose `turn` runs the closure.
fn handler<F, Fut>(turn: F) -> Router
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send + 'static,
{
    let respond = move || turn();
    Router::new()
        .route("/", get(|| async { StatusCode::NOT_FOUND }))
        .route("/turn", post(respond.clone()))
        .route("/turn-poison", post(respond))
}

async fn within_timeout<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, waiting).await.expect("timed out")
}

#[tokio::test]
async fn message_is_delivered_within_20_ms() {
    let (sender, mut calls) = mpsc::unbounded_channel();
    let host = TestHost::start(handler(move || {
        let sender = sender.clone();
        async move {
            sender.send(Instant::now()).unwrap();
            ok_response()
        }
    }))
    .await;
    let mut delays = Vec::new();
    for round in 1..=30 {
        let sent = Instant::now();
        host.queue.put(TURNS, "nudge").await;
        delays.push(within_timeout(calls.recv()).await.unwrap() - sent);
        host.queue.until("the message is deleted", |state| state.deletions == round).await;
    }
    delays.sort();
    // Polling would take an hour here.
    check_time("median delivery of a message", delays[15], Duration::from_millis(20));
}

#[tokio::test]
async fn invocation_request_matches_azure() {
    let (sender, mut calls) = mpsc::unbounded_channel();
    let router = Router::new().fallback(move |request: Request| {
        if request.method() == Method::POST {
            sender.send(format!("POST {}\n{:#?}", request.uri(), request.headers())).unwrap();
        }
        async { ok_response() }
    });
    let host = TestHost::start(router).await;
    host.queue.put("agent-turns-poison", "nudge").await;
    let invocation = within_timeout(calls.recv()).await.unwrap();
    let (before, rest) = invocation.split_once("127.0.0.1:").unwrap();
    let (_port, after) = rest.split_once('"').unwrap();
    insta::assert_snapshot!(format!("{before}127.0.0.1:PORT\"{after}"), @r#"
    POST /turn-poison
    {
        "host": "127.0.0.1:PORT",
        "content-type": "application/json; charset=utf-8",
        "x-azure-functions-hostversion": "4.1037.0.0",
        "x-azure-functions-invocationid": "00000000-0000-0001-0000-000000000007",
        "user-agent": "Azure-Functions-Host/4.1037.0.0",
        "transfer-encoding": "chunked",
    }
    "#);
}

#[tokio::test]
async fn message_moves_to_poison_queue_after_five_failures() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let host = TestHost::start(handler(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { StatusCode::INTERNAL_SERVER_ERROR.into_response() }
    }))
    .await;
    // The function of the poison queue fails too: the message stays there, hidden.
    let text = r#"{"dequeueCount":"0","DequeueCount":0}"#;
    host.queue.put(TURNS, text).await;
    host.queue
        .until("the message is in the poison queue", |state| {
            state.deletions == 1 && state.texts("agent-turns-poison") == [text]
        })
        .await;
    host.queue.until("the poison function was called", |state| state.deliveries == 6).await;
    within_timeout(async { while host.errors().await.len() < 6 {} }).await;
    assert_eq!(calls.load(Ordering::SeqCst), 6);
    assert_eq!(host.queue.change(|state| state.texts(TURNS).len()), 0);
    let mut errors = host.errors().await;
    errors.dedup();
    assert_eq!(
        errors,
        [
            "turn: the handler responded with 500 Internal Server Error",
            "turn-poison: the handler responded with 500 Internal Server Error"
        ]
    );
}

#[tokio::test]
async fn failing_poison_message_is_delivered_without_limit() {
    let fails = || async { StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let host = TestHost::start(handler(fails)).await;
    host.queue.put("agent-turns-poison", "kept").await;
    host.queue.until("the function was called", |state| state.deliveries == 1).await;
    within_timeout(async { while host.errors().await.is_empty() {} }).await;
    let hidden = host.queue.change(|state| state.hidden_for().unwrap());
    assert!(hidden > Duration::from_mins(9), "the end of the lease: {hidden:?}");

    let mut config =
        TestHostConfig { lease: Duration::from_millis(50), ..TestHostConfig::default() };
    config.root.replace("01:00:00", "00:00:00.1");
    let host = TestHost::start_with(handler(fails), config).await;
    host.queue.put("agent-turns-poison", "kept").await;
    host.queue.until("the limit is passed", |state| state.deliveries == 8).await;
    within_timeout(async { while host.errors().await.len() < 8 {} }).await;
    host.queue.change(|state| assert_eq!(state.texts("agent-turns-poison"), ["kept"]));
}

#[tokio::test]
async fn failed_message_waits_for_host_json_visibility_timeout() {
    let root = ScriptRoot::embedded();
    let config = TestHostConfig { root, ..TestHostConfig::default() };
    let fails = || async { StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let host = TestHost::start_with(handler(fails), config).await;
    host.queue.put(TURNS, "nudge").await;
    let is_waiting =
        |hidden: Duration| (Duration::from_secs(1)..=Duration::from_secs(15)).contains(&hidden);
    host.queue
        .until("the message is hidden for 1 to 15 s", |state| {
            state.renewals == 1 && state.hidden_for().is_some_and(is_waiting)
        })
        .await;
    assert_eq!(host.queue.change(|state| state.deliveries), 1);
}

#[tokio::test]
async fn message_is_deleted_after_successful_retry() {
    let calls = Arc::new(AtomicUsize::new(0));
    let host = TestHost::start(handler(move || {
        let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first { StatusCode::SERVICE_UNAVAILABLE.into_response() } else { ok_response() }
        }
    }))
    .await;
    host.queue.put(TURNS, "nudge").await;
    host.queue.until("the message is deleted", |state| state.deletions == 1).await;
    assert_eq!(host.queue.change(|state| state.deliveries), 2);
}

/// A handler that responds after this number of lease renewals.
fn slow_handler(renewals: usize) -> (Router, watch::Sender<Option<Arc<RecordingQueue>>>) {
    let queue = watch::Sender::new(None::<Arc<RecordingQueue>>);
    let given = queue.clone();
    let router = handler(move || {
        let mut given = given.subscribe();
        async move {
            let queue = given.wait_for(Option::is_some).await.unwrap().clone().unwrap();
            queue.until("the lease is renewed", |state| state.renewals >= renewals).await;
            ok_response()
        }
    });
    (router, queue)
}

fn short_lease() -> TestHostConfig {
    TestHostConfig { lease: Duration::from_secs(2), ..TestHostConfig::default() }
}

#[tokio::test]
async fn message_stays_hidden_while_function_runs() {
    let (router, queue) = slow_handler(4);
    let host = TestHost::start_with(router, short_lease()).await;
    queue.send_replace(Some(Arc::clone(&host.queue)));
    host.queue.put(TURNS, "nudge").await;
    host.queue.until("the message is deleted", |state| state.deletions == 1).await;
    assert_eq!(host.queue.change(|state| state.deliveries), 1, "twice the lease time has passed");
}

#[tokio::test]
async fn lost_message_lease_prevents_deletion() {
    let (router, queue) = slow_handler(1);
    let host = TestHost::start_with(router, short_lease()).await;
    queue.send_replace(Some(Arc::clone(&host.queue)));
    host.queue.change(|state| state.is_stolen = true);
    host.queue.put(TURNS, "stolen").await;
    host.queue.until("the renewal fails", |state| state.renewals == 1).await;
    // This function returns at once, so the next deletion is that of this message.
    host.queue.put(TURNS, "mine").await;
    host.queue.until("the other is deleted", |state| state.texts(TURNS) == ["stolen"]).await;
    assert_eq!(host.queue.change(|state| state.deletions), 1);
}

#[tokio::test]
async fn concurrency_is_bounded_by_batch_and_threshold() {
    let gate = Arc::new(Semaphore::new(0));
    let (running, mut counts) = watch::channel((0_usize, 0_usize));
    let opened = Arc::clone(&gate);
    let host = TestHost::start(handler(move || {
        let (gate, running) = (Arc::clone(&opened), running.clone());
        async move {
            running.send_modify(|(now, max)| {
                *now += 1;
                *max = (*max).max(*now);
            });
            gate.acquire().await.unwrap().forget();
            running.send_modify(|(now, _)| *now -= 1);
            ok_response()
        }
    }))
    .await;
    for _ in 0..192 {
        host.queue.put(TURNS, "nudge").await;
    }
    // The host fetches the next 32 messages when at most 96 run.
    within_timeout(counts.wait_for(|(now, _)| *now == 128)).await.unwrap();
    gate.add_permits(31);
    within_timeout(counts.wait_for(|(now, _)| *now == 97)).await.unwrap();
    gate.add_permits(1);
    within_timeout(counts.wait_for(|(now, _)| *now == 128)).await.unwrap();
    gate.add_permits(192);
    host.queue.until("all are deleted", |state| state.deletions == 192).await;
    assert_eq!(counts.borrow().1, 128);
}

/// Errors that the host reports for this response of `turn`; the message ends in the poison queue.
async fn errors_for_response(answer: fn() -> Response) -> Vec<String> {
    let router = Router::new()
        .route("/turn", post(move || async move { answer() }))
        .route("/turn-poison", post(async || ok_response()));
    let host = TestHost::start(router).await;
    host.queue.put(TURNS, "nudge").await;
    host.queue.until("the message passed the poison queue", |state| state.deletions == 2).await;
    let mut errors = host.errors().await;
    assert_eq!(errors.len(), 5, "{errors:?}");
    errors.dedup();
    errors
}

#[tokio::test]
async fn responses_that_break_azure_are_reported() {
    let empty = errors_for_response(|| StatusCode::OK.into_response()).await;
    assert!(empty[0].contains("Azure would wait until functionTimeout"), "{empty:?}");
    let no_content = errors_for_response(|| StatusCode::NO_CONTENT.into_response()).await;
    assert_eq!(no_content, empty);
    let plain = errors_for_response(|| "{}".into_response()).await;
    assert!(plain[0].contains("application/json and text/json only"), "{plain:?}");
    let base64 = errors_for_response(|| {
        ([(CONTENT_TYPE, "application/json")], r#"{"Outputs":{"out":"jobs"}}"#).into_response()
    })
    .await;
    assert!(base64[0].contains("happens to be base64"), "{base64:?}");
    let moved =
        errors_for_response(|| axum::response::Redirect::temporary("/x").into_response()).await;
    assert!(moved[0].contains("Azure follows redirects"), "{moved:?}");
}

#[tokio::test]
async fn function_timeout_error_names_azure_behaviour() {
    let mut config = TestHostConfig::default();
    config.root.replace("00:10:00", "00:00:00.2");
    config.root.replace("\"maxDequeueCount\": 5", "\"maxDequeueCount\": 1");
    let router = Router::new()
        .route("/turn", post(|| async { std::future::pending::<Response>().await }))
        .route("/turn-poison", post(async || ok_response()));
    let host = TestHost::start_with(router, config).await;
    host.queue.put(TURNS, "nudge").await;
    host.queue.until("the message passed the poison queue", |state| state.deletions == 2).await;
    let errors = host.errors().await;
    assert!(errors[0].contains("Azure would kill the process"), "{errors:?}");
}

#[tokio::test]
async fn invalid_base64_message_moves_to_poison_queue() {
    let (sender, mut calls) = mpsc::unbounded_channel();
    let mut config = TestHostConfig::default();
    config.root.replace("\"messageEncoding\": \"none\"", "\"messageEncoding\": \"base64\"");
    let router = Router::new().route(
        "/prompt",
        post(move |body: String| {
            sender.send(body).unwrap();
            async { ok_response() }
        }),
    );
    let host = TestHost::start_with(router, config).await;
    host.queue.put("agent-prompts", r#"{"input":"plain"}"#).await;
    host.queue.put("agent-prompts", "aGVsbG8=").await;
    host.queue.until("both messages are deleted", |state| state.deletions == 2).await;
    host.queue.change(|state| {
        assert_eq!(state.texts("agent-prompts-poison"), [r#"{"input":"plain"}"#]);
    });
    let body = within_timeout(calls.recv()).await.unwrap();
    assert!(body.contains(r#""message":"\"hello\"""#), "{body}");
    assert!(calls.try_recv().is_err(), "the invalid message was delivered");
}

#[tokio::test]
async fn empty_queue_is_polled_less_often() {
    let mut config = TestHostConfig { is_silent: true, ..TestHostConfig::default() };
    config.root.replace("01:00:00", "00:00:00.4");
    let host = TestHost::start_with(handler(|| async { ok_response() }), config).await;
    host.queue.until("the queue is polled five times", |state| state.polled_at.len() >= 5).await;
    let gaps: Vec<Duration> = host
        .queue
        .change(|state| state.polled_at.windows(2).take(4).map(|pair| pair[1] - pair[0]).collect());
    let least = [100, 200, 400, 400].map(Duration::from_millis);
    assert!(gaps.iter().zip(&least).all(|(gap, least)| gap >= least), "{gaps:?}");
    host.queue.put(TURNS, "nudge").await;
    host.queue.until("the message is deleted", |state| state.deletions == 1).await;
}

#[tokio::test]
async fn shutdown_waits_for_running_functions() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let mut host = TestHost::start(handler(move || {
        let gate = Arc::clone(&opened);
        async move {
            gate.acquire().await.unwrap().forget();
            ok_response()
        }
    }))
    .await;
    host.queue.put(TURNS, "running").await;
    host.queue.until("the function runs", |state| state.deliveries == 1).await;
    host.begin_shutdown();
    gate.add_permits(1);
    host.wait_for_end().await;
    assert_eq!(host.queue.change(|state| (state.deliveries, state.deletions)), (1, 1));
    host.queue.put(TURNS, "too late").await;
    assert_eq!(host.queue.change(|state| state.deliveries), 1);
}

#[tokio::test]
async fn shutdown_wait_is_bounded() {
    let config = TestHostConfig { grace: Duration::from_millis(50), ..TestHostConfig::default() };
    let router = handler(|| async { std::future::pending::<Response>().await });
    let mut host = TestHost::start_with(router, config).await;
    host.queue.put(TURNS, "stuck").await;
    host.queue.until("the function runs", |state| state.deliveries == 1).await;
    host.begin_shutdown();
    host.wait_for_end().await;
    assert_eq!(
        host.queue.change(|state| state.texts(TURNS).len()),
        1,
        "the message stays in the queue"
    );
}
