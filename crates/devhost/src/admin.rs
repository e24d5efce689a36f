//! The host's own routes: status, manual runs, and messages sent to its queues. Loopback only, no
//! keys.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, PRAGMA};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::envelope::TimerRun;
use super::{CONSOLE_FUNCTION, Function, HostState, Trigger, envelope, timer};
use turnwheel_platform::text_encoding::decode_utf8;
use turnwheel_storage::queue::{MESSAGE_BYTES_MAX, QueueError, poison_queue};

/// Enough for a message that is escaped as JSON.
const BODY_BYTES_MAX: usize = 8 * MESSAGE_BYTES_MAX;
/// Manual runs at a time.
const MANUAL_RUNS_MAX: usize = 16;

/// One requested run.
#[derive(Debug)]
pub(super) struct ManualRun {
    function: Function,
    input: String,
}

#[derive(Deserialize)]
struct RunInput {
    input: Value,
}

pub(super) fn router() -> Router<Arc<HostState>> {
    Router::new()
        .route("/", get(show_home))
        .route("/admin/functions", get(list_functions))
        .route("/admin/functions/{name}", post(request_run))
        .route("/admin/host/status", get(host_status))
        .route("/admin/host/ping", get(ping).post(ping))
        .route("/admin/queues/{queue}", get(queue_length))
        .route("/admin/queues/{queue}/messages", post(send_message))
        .route("/admin/queues/{queue}/redrive", post(redrive_queue))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// Shows browsers the console, and other clients a list of pages.
async fn show_home(State(host): State<Arc<HostState>>, headers: HeaderMap) -> Response {
    let prefix = &host.config.route_prefix;
    let has_console = host.functions.iter().any(|function| function.name == CONSOLE_FUNCTION);
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if has_console && accepted.contains("text/html") {
        return Redirect::temporary(&format!("/{prefix}/console/")).into_response();
    }
    let pages = [
        (format!("/{prefix}/openapi.json"), "the API as OpenAPI"),
        (format!("/{prefix}/agents"), "the agents, and why one is unavailable"),
        (format!("/{prefix}/approvals"), "the pending approval requests"),
        (format!("/{prefix}/health"), "the state of store and queues"),
        ("/admin/functions".to_owned(), "the functions and their routes"),
    ];
    let mut text = "Turnwheel's local Functions host.\n\n".to_owned();
    for (path, shows) in pages {
        let _ = writeln!(text, "  {path:<20}  {shows}");
    }
    (text + "\nThe terminal of `turnwheel dev` shows a request to try.\n").into_response()
}

async fn list_functions(State(host): State<Arc<HostState>>) -> Json<Value> {
    let prefix = &host.config.route_prefix;
    let entries = host.functions.iter().map(|function| {
        let route = match &function.trigger {
            Trigger::Http(http) => Some(format!("/{prefix}/{}", http.route.text())),
            Trigger::Queue { .. } | Trigger::Timer { .. } => None,
        };
        json!({ "name": function.name, "config": function.json, "route": route, "language": "custom" })
    });
    Json(entries.collect())
}

async fn host_status(State(host): State<Arc<HostState>>) -> Json<Value> {
    let uptime = host.clock.monotonic().saturating_sub(host.started_at);
    Json(json!({
        "id": "turnwheel-dev",
        "state": "Running",
        "version": super::invoke::HOST_VERSION.to_str().unwrap_or_default(),
        "processUptime": turnwheel_platform::clock::millis(uptime),
        "errors": host.handler.errors(),
    }))
}

async fn ping(State(host): State<Arc<HostState>>) -> Response {
    if host.handler.is_ready().await {
        let headers = [(CACHE_CONTROL, "no-store,no-cache"), (PRAGMA, "no-cache")];
        (StatusCode::OK, headers).into_response()
    } else {
        reject(StatusCode::SERVICE_UNAVAILABLE, "The handler does not respond.")
    }
}

async fn request_run(
    State(host): State<Arc<HostState>>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return rejection.into_response(),
    };
    let found = host.functions.iter().find(|function| function.name == name);
    let Some(function) = found else {
        let names: Vec<&str> =
            host.functions.iter().map(|function| function.name.as_str()).collect();
        return reject(
            StatusCode::NOT_FOUND,
            &format!("Function not found. Available: {}.", names.join(", ")),
        );
    };
    if let Trigger::Http(http) = &function.trigger {
        let text = format!("Call its route: /{}/{}", host.config.route_prefix, http.route.text());
        return reject(StatusCode::BAD_REQUEST, &text);
    }
    let text = match decode_utf8(&body) {
        Ok(text) => text,
        Err(error) => return reject(StatusCode::BAD_REQUEST, &format!("The body {error}.")),
    };
    // The Functions host accepts a run without input and never starts it.
    let input = serde_json::from_str(text).ok().and_then(|RunInput { input }| {
        let input = super::Json::from(input);
        input.scalar_text().filter(|_| input != super::Json::Null).map(Cow::into_owned)
    });
    let Some(input) = input else {
        return reject(StatusCode::BAD_REQUEST, r#"The body is not {"input": "text"}."#);
    };
    match host.manual_runs.try_send(ManualRun { function: function.clone(), input }) {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(_) => {
            reject(StatusCode::SERVICE_UNAVAILABLE, "Too many runs are queued. Try again later.")
        }
    }
}

/// Starts requested runs until the host stops, then waits for the running ones.
pub(super) async fn start_requested_runs(
    host: Arc<HostState>,
    mut requests: mpsc::Receiver<ManualRun>,
) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            () = host.stop.cancelled() => break,
            Some(ended) = running.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(error = %error, "manual run panicked");
                }
            }
            Some(manual) = requests.recv(), if running.len() < MANUAL_RUNS_MAX => {
                let host = Arc::clone(&host);
                running.spawn(async move { run_manually(&host, manual).await });
            }
        }
    }
    while running.join_next().await.is_some() {}
}

async fn run_manually(host: &HostState, ManualRun { function, input }: ManualRun) {
    match &function.trigger {
        // `request_run` rejects these.
        Trigger::Http(_) => {}
        Trigger::Timer { .. } => {
            let status = host.timers.find(&function.name);
            let run = TimerRun { status, is_past_due: false, input: Some(&input) };
            timer::run_once(host, &function, run).await;
        }
        Trigger::Queue { .. } => {
            let id = envelope::new_guid(host.ids.as_ref());
            let body = envelope::manual_envelope(&function, &input, host.envelope_context());
            // `invoke` has logged the failure.
            drop(Box::pin(host.invoke(&function, &id, &body)).await);
        }
    }
}

async fn queue_length(State(host): State<Arc<HostState>>, Path(queue): Path<String>) -> Response {
    if let Some(refusal) = reject_unknown_queue(&host, &queue) {
        return refusal;
    }
    match host.queues.length(&queue).await {
        Ok(length) => Json(json!({ "length": length })).into_response(),
        Err(error) => reject(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}. Try again.")),
    }
}

async fn send_message(
    State(host): State<Arc<HostState>>,
    Path(queue): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    if let Some(refusal) = reject_unknown_queue(&host, &queue) {
        return refusal;
    }
    let too_large = || {
        let text = format!("A message has at most {MESSAGE_BYTES_MAX} bytes.");
        reject(StatusCode::PAYLOAD_TOO_LARGE, &text)
    };
    let Some(body) = body.ok().filter(|body| body.len() <= MESSAGE_BYTES_MAX) else {
        return too_large();
    };
    let text = match decode_utf8(&body) {
        Ok(text) => text.to_owned(),
        Err(error) => return reject(StatusCode::BAD_REQUEST, &format!("The message {error}.")),
    };
    match host.queues.send(&queue, text, Duration::ZERO).await {
        Ok(()) => (StatusCode::CREATED, Json(json!({ "queue": queue }))).into_response(),
        Err(QueueError::TooLarge(_)) => too_large(),
        Err(error @ QueueError::BadCharacter(_)) => {
            reject(StatusCode::BAD_REQUEST, &format!("{error}."))
        }
        Err(error) => reject(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}. Try again.")),
    }
}

async fn redrive_queue(State(host): State<Arc<HostState>>, Path(queue): Path<String>) -> Response {
    if let Some(refusal) = reject_unknown_queue(&host, &queue) {
        return refusal;
    }
    match turnwheel_storage::queue::redrive(&*host.queues, &queue).await {
        Ok(count) => Json(json!({ "redriven": count })).into_response(),
        Err(error) => reject(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}. Try again.")),
    }
}

/// Rejects every queue except those that functions read and their poison queues.
fn reject_unknown_queue(host: &HostState, queue: &str) -> Option<Response> {
    let mut known: Vec<String> = Vec::new();
    for function in &host.functions {
        if let Trigger::Queue { queue } = &function.trigger {
            known.push(queue.clone());
            if !queue.ends_with("-poison") {
                known.push(poison_queue(queue));
            }
        }
    }
    if known.iter().any(|name| name == queue) {
        return None;
    }
    known.sort();
    known.dedup();
    let text = format!("No function reads this queue. Available: {}.", known.join(", "));
    Some(reject(StatusCode::NOT_FOUND, &text))
}

fn reject(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}
