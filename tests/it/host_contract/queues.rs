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
use turnwheel::host::ScriptRoot;

use super::rig::{GOOD, Replace, Rig, Setting};
use super::shelf::{SOON, Shelf};

const TURNS: &str = "agent-turns";

fn good() -> Response {
    ([(CONTENT_TYPE, "application/json")], GOOD).into_response()
}

/// A handler whose `turn` runs the closure.
fn handler<F, Fut>(turn: F) -> Router
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send + 'static,
{
    let act = move || turn();
    Router::new()
        .route("/", get(|| async { StatusCode::NOT_FOUND }))
        .route("/turn", post(act.clone()))
        .route("/turn-poison", post(act))
}

async fn soon<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, waiting).await.expect("timed out")
}

#[tokio::test]
async fn a_message_reaches_the_handler_within_20_ms_of_being_visible() {
    let (heard, mut calls) = mpsc::unbounded_channel();
    let rig = Rig::start(handler(move || {
        let heard = heard.clone();
        async move {
            heard.send(Instant::now()).unwrap();
            good()
        }
    }))
    .await;
    let mut delays = Vec::new();
    for round in 1..=30 {
        let sent = Instant::now();
        rig.shelf.put(TURNS, "nudge").await;
        delays.push(soon(calls.recv()).await.unwrap() - sent);
        rig.shelf.until("the message is deleted", |state| state.deletions == round).await;
    }
    delays.sort();
    // The median: the machine may be busy. Polling would take an hour here.
    let middle = delays[delays.len() / 2];
    assert!(middle < Duration::from_millis(20), "{delays:?}");
}

#[tokio::test]
async fn an_invocation_looks_like_azures() {
    let (heard, mut calls) = mpsc::unbounded_channel();
    let router = Router::new().fallback(move |request: Request| {
        if request.method() == Method::POST {
            heard.send(format!("POST {}\n{:#?}", request.uri(), request.headers())).unwrap();
        }
        async { good() }
    });
    let rig = Rig::start(router).await;
    rig.shelf.put("agent-turns-poison", "nudge").await;
    let told = soon(calls.recv()).await.unwrap();
    let (before, rest) = told.split_once("127.0.0.1:").unwrap();
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
async fn after_five_failures_a_message_goes_to_the_poison_queue_as_it_was() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let rig = Rig::start(handler(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { StatusCode::INTERNAL_SERVER_ERROR.into_response() }
    }))
    .await;
    // The function of the poison queue fails too: the message stays there, hidden.
    let text = r#"{"dequeueCount":"0","DequeueCount":0}"#;
    rig.shelf.put(TURNS, text).await;
    rig.shelf
        .until("the message is in the poison queue", |state| {
            state.deletions == 1 && state.texts("agent-turns-poison") == [text]
        })
        .await;
    rig.shelf.until("the poison function was called", |state| state.deliveries == 6).await;
    soon(async { while rig.errors().await.len() < 6 {} }).await;
    assert_eq!(calls.load(Ordering::SeqCst), 6);
    assert_eq!(rig.shelf.change(|state| state.texts(TURNS).len()), 0);
    let mut told = rig.errors().await;
    told.dedup();
    assert_eq!(
        told,
        [
            "turn: the handler responded with 500 Internal Server Error",
            "turn-poison: the handler responded with 500 Internal Server Error"
        ]
    );
}

#[tokio::test]
async fn a_message_that_failed_comes_back_after_the_wait_of_the_shipped_host_json() {
    let root = ScriptRoot::embedded();
    let setting = Setting { root, ..Setting::default() };
    let fails = || async { StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let rig = Rig::start_with(handler(fails), setting).await;
    rig.shelf.put(TURNS, "nudge").await;
    let is_waiting =
        |hidden: Duration| (Duration::from_secs(1)..=Duration::from_secs(15)).contains(&hidden);
    rig.shelf
        .until("the message is hidden for 1 to 15 s", |state| {
            state.renewals == 1 && state.hidden_for().is_some_and(is_waiting)
        })
        .await;
    assert_eq!(rig.shelf.change(|state| state.deliveries), 1);
}

#[tokio::test]
async fn a_message_that_works_the_second_time_is_deleted() {
    let calls = Arc::new(AtomicUsize::new(0));
    let rig =
        Rig::start(handler(move || {
            let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if is_first { StatusCode::SERVICE_UNAVAILABLE.into_response() } else { good() }
            }
        }))
        .await;
    rig.shelf.put(TURNS, "nudge").await;
    rig.shelf.until("the message is deleted", |state| state.deletions == 1).await;
    assert_eq!(rig.shelf.change(|state| state.deliveries), 2);
}

/// A handler that responds after this number of lease renewals.
fn slow(renewals: usize) -> (Router, watch::Sender<Option<Arc<Shelf>>>) {
    let shelf = watch::Sender::new(None::<Arc<Shelf>>);
    let given = shelf.clone();
    let router = handler(move || {
        let mut given = given.subscribe();
        async move {
            let shelf = given.wait_for(Option::is_some).await.unwrap().clone().unwrap();
            shelf.until("the lease is renewed", |state| state.renewals >= renewals).await;
            good()
        }
    });
    (router, shelf)
}

fn short_lease() -> Setting {
    Setting { lease: Duration::from_millis(400), ..Setting::default() }
}

#[tokio::test]
async fn a_message_stays_hidden_for_as_long_as_its_function_runs() {
    let (router, shelf) = slow(4);
    let rig = Rig::start_with(router, short_lease()).await;
    shelf.send_replace(Some(Arc::clone(&rig.shelf)));
    rig.shelf.put(TURNS, "nudge").await;
    rig.shelf.until("the message is deleted", |state| state.deletions == 1).await;
    assert_eq!(rig.shelf.change(|state| state.deliveries), 1, "twice the lease time has passed");
}

#[tokio::test]
async fn who_lost_the_lease_leaves_the_message_alone() {
    let (router, shelf) = slow(1);
    let rig = Rig::start_with(router, short_lease()).await;
    shelf.send_replace(Some(Arc::clone(&rig.shelf)));
    rig.shelf.change(|state| state.steals = true);
    rig.shelf.put(TURNS, "stolen").await;
    rig.shelf.until("the renewal fails", |state| state.renewals == 1).await;
    // This function returns at once, so the next deletion is that of this message.
    rig.shelf.put(TURNS, "mine").await;
    rig.shelf.until("the other is deleted", |state| state.texts(TURNS) == ["stolen"]).await;
    assert_eq!(rig.shelf.change(|state| state.deletions), 1);
}

#[tokio::test]
async fn at_most_a_batch_and_the_threshold_run_at_once() {
    let gate = Arc::new(Semaphore::new(0));
    let (running, mut counts) = watch::channel((0_usize, 0_usize));
    let opened = Arc::clone(&gate);
    let rig = Rig::start(handler(move || {
        let (gate, running) = (Arc::clone(&opened), running.clone());
        async move {
            running.send_modify(|(now, max)| {
                *now += 1;
                *max = (*max).max(*now);
            });
            gate.acquire().await.unwrap().forget();
            running.send_modify(|(now, _)| *now -= 1);
            good()
        }
    }))
    .await;
    for _ in 0..192 {
        rig.shelf.put(TURNS, "nudge").await;
    }
    // The host fetches the next 32 messages when at most 96 run.
    soon(counts.wait_for(|(now, _)| *now == 128)).await.unwrap();
    gate.add_permits(31);
    soon(counts.wait_for(|(now, _)| *now == 97)).await.unwrap();
    gate.add_permits(1);
    soon(counts.wait_for(|(now, _)| *now == 128)).await.unwrap();
    gate.add_permits(192);
    rig.shelf.until("all are deleted", |state| state.deletions == 192).await;
    assert_eq!(counts.borrow().1, 128);
}

/// Errors that the host reports for this response of `turn`; the message ends in the poison queue.
async fn told_about(answer: fn() -> Response) -> Vec<String> {
    let router = Router::new()
        .route("/turn", post(move || async move { answer() }))
        .route("/turn-poison", post(async || good()));
    let rig = Rig::start(router).await;
    rig.shelf.put(TURNS, "nudge").await;
    rig.shelf.until("the message passed the poison queue", |state| state.deletions == 2).await;
    let mut told = rig.errors().await;
    assert_eq!(told.len(), 5, "{told:?}");
    told.dedup();
    told
}

#[tokio::test]
async fn where_azure_would_hang_or_corrupt_silently_the_host_is_loud() {
    let empty = told_about(|| StatusCode::OK.into_response()).await;
    assert!(empty[0].contains("Azure would wait until functionTimeout"), "{empty:?}");
    let no_content = told_about(|| StatusCode::NO_CONTENT.into_response()).await;
    assert_eq!(no_content, empty);
    let plain = told_about(|| "{}".into_response()).await;
    assert!(plain[0].contains("application/json and text/json only"), "{plain:?}");
    let base64 = told_about(|| {
        ([(CONTENT_TYPE, "application/json")], r#"{"Outputs":{"out":"jobs"}}"#).into_response()
    })
    .await;
    assert!(base64[0].contains("happens to be base64"), "{base64:?}");
    let moved = told_about(|| axum::response::Redirect::temporary("/x").into_response()).await;
    assert!(moved[0].contains("Azure follows redirects"), "{moved:?}");
}

#[tokio::test]
async fn a_function_that_takes_too_long_fails_and_says_what_azure_would_do() {
    let mut setting = Setting::default();
    setting.root.replace("00:10:00", "00:00:00.2");
    setting.root.replace("\"maxDequeueCount\": 5", "\"maxDequeueCount\": 1");
    let router = Router::new()
        .route("/turn", post(|| async { std::future::pending::<Response>().await }))
        .route("/turn-poison", post(async || good()));
    let rig = Rig::start_with(router, setting).await;
    rig.shelf.put(TURNS, "nudge").await;
    rig.shelf.until("the message passed the poison queue", |state| state.deletions == 2).await;
    let told = rig.errors().await;
    assert!(told[0].contains("Azure would kill the process"), "{told:?}");
}

#[tokio::test]
async fn what_is_not_base64_goes_aside_at_once_where_host_json_says_base64() {
    let (heard, mut calls) = mpsc::unbounded_channel();
    let mut setting = Setting::default();
    setting.root.replace("\"messageEncoding\": \"none\"", "\"messageEncoding\": \"base64\"");
    let router = Router::new().route(
        "/prompt",
        post(move |body: String| {
            heard.send(body).unwrap();
            async { good() }
        }),
    );
    let rig = Rig::start_with(router, setting).await;
    rig.shelf.put("agent-prompts", r#"{"input":"plain"}"#).await;
    rig.shelf.put("agent-prompts", "aGVsbG8=").await;
    rig.shelf.until("both messages are deleted", |state| state.deletions == 2).await;
    rig.shelf.change(|state| {
        assert_eq!(state.texts("agent-prompts-poison"), [r#"{"input":"plain"}"#]);
    });
    let body = soon(calls.recv()).await.unwrap();
    assert!(body.contains(r#""message":"\"hello\"""#), "{body}");
    assert!(calls.try_recv().is_err(), "the invalid message was delivered");
}

#[tokio::test]
async fn a_silent_queue_is_asked_less_and_less() {
    let mut setting = Setting { is_silent: true, ..Setting::default() };
    setting.root.replace("01:00:00", "00:00:00.4");
    let rig = Rig::start_with(handler(|| async { good() }), setting).await;
    rig.shelf.until("the queue is polled five times", |state| state.asked_at.len() >= 5).await;
    let gaps: Vec<Duration> = rig
        .shelf
        .change(|state| state.asked_at.windows(2).take(4).map(|pair| pair[1] - pair[0]).collect());
    let least = [100, 200, 400, 400].map(Duration::from_millis);
    assert!(gaps.iter().zip(&least).all(|(gap, least)| gap >= least), "{gaps:?}");
    rig.shelf.put(TURNS, "nudge").await;
    rig.shelf.until("the message is deleted", |state| state.deletions == 1).await;
}

#[tokio::test]
async fn a_stop_waits_for_what_runs_and_settles_it() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let mut rig = Rig::start(handler(move || {
        let gate = Arc::clone(&opened);
        async move {
            gate.acquire().await.unwrap().forget();
            good()
        }
    }))
    .await;
    rig.shelf.put(TURNS, "running").await;
    rig.shelf.until("the function runs", |state| state.deliveries == 1).await;
    rig.begin_stop();
    gate.add_permits(1);
    rig.ended().await;
    assert_eq!(rig.shelf.change(|state| (state.deliveries, state.deletions)), (1, 1));
    rig.shelf.put(TURNS, "too late").await;
    assert_eq!(rig.shelf.change(|state| state.deliveries), 1);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let setting = Setting { grace: Duration::from_millis(50), ..Setting::default() };
    let router = handler(|| async { std::future::pending::<Response>().await });
    let mut rig = Rig::start_with(router, setting).await;
    rig.shelf.put(TURNS, "stuck").await;
    rig.shelf.until("the function runs", |state| state.deliveries == 1).await;
    rig.begin_stop();
    rig.ended().await;
    assert_eq!(rig.shelf.change(|state| state.texts(TURNS).len()), 1, "the message stays in the queue");
}
