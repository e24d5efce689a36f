//! The host's own routes: status, manual runs, and messages sent to its queues. Loopback only, no
//! keys.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::envelope::TimerStatus;
use super::{Function, Shared, Trigger, envelope, timer};
use crate::queue::{MESSAGE_BYTES_MAX, QueueError, Received, poison_of};

/// Enough for a message that is escaped as JSON.
const BODY_BYTES_MAX: usize = 8 * MESSAGE_BYTES_MAX;
/// Manual runs at a time.
const RUNNING_MAX: usize = 16;

/// One requested run.
#[derive(Debug)]
pub(super) struct Manual {
    function: Function,
    input: String,
}

#[derive(Deserialize)]
struct Input {
    #[serde(default)]
    input: String,
}

pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/", get(home))
        .route("/admin/functions", get(functions))
        .route("/admin/functions/{name}", post(run))
        .route("/admin/host/status", get(status))
        .route("/admin/host/ping", get(ping).post(ping))
        .route("/admin/queues/{queue}", get(length))
        .route("/admin/queues/{queue}/messages", post(put))
        .route("/admin/queues/{queue}/redrive", post(redrive))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

async fn home(State(host): State<Arc<Shared>>) -> String {
    let prefix = &host.config.route_prefix;
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
    text + "\nThe terminal of `turnwheel dev` shows a request to try.\n"
}

async fn functions(State(host): State<Arc<Shared>>) -> Json<Value> {
    let prefix = &host.config.route_prefix;
    let told = host.functions.iter().map(|function| {
        let route = match &function.trigger {
            Trigger::Http { route, methods: _ } => Some(format!("/{prefix}/{}", route.text())),
            Trigger::Queue { .. } | Trigger::Timer { .. } => None,
        };
        json!({ "name": function.name, "config": function.json, "route": route, "language": "custom" })
    });
    Json(told.collect())
}

async fn status(State(host): State<Arc<Shared>>) -> Json<Value> {
    let up = host.clock.monotonic().saturating_sub(host.started);
    Json(json!({
        "id": "turnwheel-dev",
        "state": "Running",
        "version": super::invoke::HOST_VERSION.to_str().unwrap_or_default(),
        "processUptime": crate::clock::millis(up),
        "errors": host.handler.errors(),
    }))
}

async fn ping(State(host): State<Arc<Shared>>) -> Response {
    if host.handler.is_ready().await {
        StatusCode::OK.into_response()
    } else {
        refuse(StatusCode::SERVICE_UNAVAILABLE, "The handler does not respond.")
    }
}

async fn run(
    State(host): State<Arc<Shared>>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return rejection.into_response(),
    };
    let found = host.functions.iter().find(|function| function.name.eq_ignore_ascii_case(&name));
    let Some(function) = found else {
        let names: Vec<&str> =
            host.functions.iter().map(|function| function.name.as_str()).collect();
        return refuse(
            StatusCode::NOT_FOUND,
            &format!("Function not found. Available: {}.", names.join(", ")),
        );
    };
    if let Trigger::Http { route, methods: _ } = &function.trigger {
        let text = format!("Call its route: /{}/{}", host.config.route_prefix, route.text());
        return refuse(StatusCode::BAD_REQUEST, &text);
    }
    let input = if body.trim_ascii().is_empty() {
        Ok(Input { input: String::new() })
    } else {
        serde_json::from_slice(&body)
    };
    let Ok(Input { input }) = input else {
        return refuse(StatusCode::BAD_REQUEST, r#"The body is not {"input": "text"}."#);
    };
    match host.manual.try_send(Manual { function: function.clone(), input }) {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, "Too many runs are queued. Try again later."),
    }
}

/// Starts requested runs until the host stops, then waits for the running ones.
pub(super) async fn run_manual(host: Arc<Shared>, mut asked: mpsc::Receiver<Manual>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            () = host.stop.cancelled() => break,
            Some(ended) = running.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(error = %error, "manual run panicked");
                }
            }
            Some(manual) = asked.recv(), if running.len() < RUNNING_MAX => {
                let host = Arc::clone(&host);
                running.spawn(async move { run_one(&host, manual).await });
            }
        }
    }
    while running.join_next().await.is_some() {}
}

async fn run_one(host: &Shared, Manual { function, input }: Manual) {
    match &function.trigger {
        // `request_run` rejects these.
        Trigger::Http { .. } => {}
        Trigger::Timer { .. } => timer::run(host, &function, TimerStatus::default()).await,
        Trigger::Queue { .. } => {
            let now = host.clock.now();
            let id = envelope::guid(host.ids.as_ref());
            let message = Received {
                id: id.clone(),
                pop_receipt: id.clone(),
                dequeue_count: 1,
                text: input,
                inserted_at: now,
                expires_at: now.plus(Duration::from_hours(7 * 24)),
                next_visible_at: now.plus(host.lease),
            };
            let body = envelope::of_message(&function, &message, now, host.ids.as_ref());
            // `invoke` has logged the failure.
            drop(Box::pin(host.invoke(&function, &id, &body)).await);
        }
    }
}

async fn length(State(host): State<Arc<Shared>>, Path(queue): Path<String>) -> Response {
    if let Some(refusal) = refuse_queue(&host, &queue) {
        return refusal;
    }
    match host.queues.length(&queue).await {
        Ok(length) => Json(json!({ "length": length })).into_response(),
        Err(error) => refuse(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}. Try again.")),
    }
}

async fn put(
    State(host): State<Arc<Shared>>,
    Path(queue): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    if let Some(refusal) = refuse_queue(&host, &queue) {
        return refusal;
    }
    let too_large = || {
        let text = format!("A message has at most {MESSAGE_BYTES_MAX} bytes.");
        refuse(StatusCode::PAYLOAD_TOO_LARGE, &text)
    };
    let Some(body) = body.ok().filter(|body| body.len() <= MESSAGE_BYTES_MAX) else {
        return too_large();
    };
    let Ok(text) = String::from_utf8(body.into()) else {
        return refuse(StatusCode::BAD_REQUEST, "A message is UTF-8 text.");
    };
    match host.queues.send(&queue, text, Duration::ZERO).await {
        Ok(()) => (StatusCode::CREATED, Json(json!({ "queue": queue }))).into_response(),
        Err(QueueError::TooLarge(_)) => too_large(),
        Err(error @ QueueError::BadCharacter(_)) => {
            refuse(StatusCode::BAD_REQUEST, &format!("{error}."))
        }
        Err(error) => refuse(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}. Try again.")),
    }
}

async fn redrive(State(host): State<Arc<Shared>>, Path(queue): Path<String>) -> Response {
    if let Some(refusal) = refuse_queue(&host, &queue) {
        return refusal;
    }
    match crate::queue::redrive(&*host.queues, &queue).await {
        Ok(count) => Json(json!({ "redriven": count })).into_response(),
        Err(error) => refuse(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}. Try again.")),
    }
}

/// Rejects every queue except those that functions read and their poison queues.
fn refuse_queue(host: &Shared, queue: &str) -> Option<Response> {
    let mut known: Vec<String> = Vec::new();
    for function in &host.functions {
        if let Trigger::Queue { queue } = &function.trigger {
            known.push(queue.clone());
            if !queue.ends_with("-poison") {
                known.push(poison_of(queue));
            }
        }
    }
    if known.iter().any(|name| name == queue) {
        return None;
    }
    known.sort();
    known.dedup();
    let text = format!("No function reads this queue. Available: {}.", known.join(", "));
    Some(refuse(StatusCode::NOT_FOUND, &text))
}

fn refuse(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}
