//! Routes of the queue and timer functions that the Functions host calls: `POST /<function>`, and
//! `GET /` for its start-up check.
//!
//! These routes have no authentication. The route prefix `api` protects them: the host forwards no
//! other path.

mod invocation;
mod response;
#[cfg(test)]
mod time_limits;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;

use turnwheel_platform::shutdown::Shutdown;
use turnwheel_platform::telemetry::trace;
use turnwheel_storage::queue::output_binding;

pub use invocation::Invocation;
pub use invocation::{InvocationMeta, MESSAGE_BINDING, TIMER_BINDING, TimerInfo, binding_text};
pub(crate) use response::{failure_response, success_response};

/// Maximum bytes of an envelope. A message of 64 KiB fits, escaped twice and copied into the
/// metadata.
pub(crate) const ENVELOPE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The reason why an invocation failed. The host delivers a queue message again. The text is
/// logged, so it holds no content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FunctionFailure(pub String);

/// Arrival of an invocation that waited before it was routed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedAt(pub(crate) Instant);

/// Headers of browsers, and of requests that the Functions host passes on. Its own have none.
const CLIENT_HEADERS: [&str; 5] =
    ["origin", "sec-fetch-site", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// Names of the function folders, which are the last part of the paths.
pub(crate) const FUNCTION_NAMES: [&str; 6] =
    ["turn", "prompt", "notify", "sweep", "turn-poison", "notify-poison"];

/// Time before `functionTimeout` at which a turn has ended.
const END_MARGIN: Duration = Duration::from_secs(15);
/// Time from the deadline of writes in which a turn gives itself back: a commit and a nudge.
const GIVE_BACK_TIME: Duration = Duration::from_millis(300);
/// Time from the deadline of writes to the response. The host gives 10 s, of which 9 are over.
const STOP_TIME: Duration = Duration::from_millis(700);

#[derive(Clone)]
struct Handlers {
    functions: Arc<dyn Functions>,
    shutdown: Shutdown,
    turn_duration: Duration,
}

/// Handlers of the queue and timer functions, one method per folder in `functions/`.
#[async_trait]
pub trait Functions: Send + Sync + fmt::Debug {
    async fn turn(&self, message: String, meta: InvocationMeta) -> Result<(), FunctionFailure>;
    async fn prompt(&self, message: String, meta: InvocationMeta) -> Result<(), FunctionFailure>;
    async fn notify(&self, message: String, meta: InvocationMeta) -> Result<(), FunctionFailure>;
    async fn sweep(&self, timer: TimerInfo, meta: InvocationMeta) -> Result<(), FunctionFailure>;
    async fn turn_poison(
        &self,
        message: String,
        meta: InvocationMeta,
    ) -> Result<(), FunctionFailure>;
    async fn notify_poison(
        &self,
        message: String,
        meta: InvocationMeta,
    ) -> Result<(), FunctionFailure>;
    /// Puts the message of an invocation that the end of the process cut back on its queue. By
    /// default the Functions host delivers it again.
    async fn put_back(
        &self,
        _function: &str,
        _message: String,
        _meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        Err(FunctionFailure("the process ends".to_owned()))
    }
}

/// The router with one route per function, and the start-up check.
///
/// An invocation ends by itself, also if the host closes its connection: a turn that stops in the
/// middle would keep its lease. It ends before `functionTimeout`, after which the host would kill the
/// process with all its work; `turn_duration` is at most half of that.
pub fn functions_router(
    functions: Arc<dyn Functions>,
    shutdown: Shutdown,
    turn_duration: Duration,
) -> Router {
    let handlers = Handlers { functions, shutdown, turn_duration };
    let mut router = Router::new();
    for name in FUNCTION_NAMES {
        router = router.route(&format!("/{name}"), post(handle_invocation));
    }
    router
        // The host calls this until it gets a response, and again with every health check.
        .route("/", get(|| async { "Turnwheel is running.\n" }))
        .with_state(handlers)
        .layer(DefaultBodyLimit::max(ENVELOPE_BYTES_MAX))
        .layer(CatchPanicLayer::custom(|_: Box<dyn Any + Send>| panic_response()))
}

async fn handle_invocation(
    State(handlers): State<Handlers>,
    uri: Uri,
    headers: HeaderMap,
    arrival: Option<Extension<ArrivedAt>>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let began = arrival.map_or_else(Instant::now, |Extension(ArrivedAt(time))| time);
    let function = uri.path().trim_matches('/').to_owned();
    if let Some(header) = CLIENT_HEADERS.into_iter().find(|name| headers.contains_key(*name)) {
        tracing::warn!(faas.name = %function, header, "invocation refused: not a request of the Functions host");
        return (StatusCode::FORBIDDEN, "Only the Functions host calls functions.\n")
            .into_response();
    }
    let body = match body {
        Ok(body) => body,
        Err(rejection) => {
            let reason = rejection.body_text();
            tracing::error!(faas.name = %function, error = %reason, "invocation envelope unreadable");
            return (rejection.status(), reason).into_response();
        }
    };
    let invocation = match Invocation::decode(function, &headers, &body) {
        Ok(invocation) => invocation,
        Err(error) => {
            tracing::error!(error = %error, "invocation envelope unreadable");
            return failure_response(&error.to_string());
        }
    };
    let span = tracing::info_span!(
        "invocation",
        faas.name = %invocation.function,
        faas.invocation_id = invocation.invocation_id.as_deref(),
    );
    // The host's span of the invocation. Nudges link to it, and new traces start in it.
    let caller = invocation.traceparent.clone();
    let (reply, response) = oneshot::channel();
    let shutdown = handlers.shutdown.clone();
    shutdown.spawn(async move {
        let work = dispatch(&handlers, &invocation, began, reply).instrument(span);
        trace::run_with_caller(caller.as_deref(), work).await;
    });
    // Without a reply the task panicked.
    response.await.unwrap_or_else(|_| panic_response())
}

async fn dispatch(
    handlers: &Handlers,
    invocation: &Invocation,
    began: Instant,
    reply: oneshot::Sender<Response>,
) {
    let call = Box::pin(call_function(handlers.functions.as_ref(), invocation));
    let calling = Box::pin(call_in_time(handlers, invocation, began, call));
    let (EndedCall { outcome, turn }, nudges) = output_binding::buffer_nudges(calling).await;
    let response = match &outcome {
        Ok(()) => success_response(&nudges.texts()),
        Err(failure) => {
            tracing::warn!(error = %failure, "invocation failed");
            failure_response(&failure.0)
        }
    };
    // Before the nudges are sent: the host may be about to kill the process.
    let is_received = reply.send(response).is_ok();
    let sending = async {
        // The host sends those of a success, unless it has closed the connection.
        if outcome.is_err() || !is_received {
            nudges.send().await;
        }
    };
    let ending = async {
        if let Some(turn) = turn {
            let _ = turn.await;
        }
    };
    tokio::join!(sending, ending);
}

/// The end of an invocation.
struct EndedCall<F> {
    outcome: Result<(), FunctionFailure>,
    /// A turn that is not over: it may still store the result of a call until the process ends.
    turn: Option<F>,
}

async fn call_in_time<F>(
    handlers: &Handlers,
    invocation: &Invocation,
    began: Instant,
    mut call: F,
) -> EndedCall<F>
where
    F: Future<Output = Result<(), FunctionFailure>> + Unpin,
{
    let is_turn = invocation.function == "turn";
    // A turn has a limit of its own, and a commit after that.
    let limit = if is_turn {
        (handlers.turn_duration * 2).saturating_sub(END_MARGIN)
    } else {
        handlers.turn_duration
    };
    let is_late = handlers.shutdown.is_work_stopped();
    let stopped = async {
        if is_late {
            std::future::pending::<()>().await;
        }
        handlers.shutdown.wait_for_deadline(true).await;
        let respond_by = Instant::now() + STOP_TIME;
        if is_turn {
            tokio::time::sleep(GIVE_BACK_TIME).await;
        }
        respond_by
    };
    tokio::select! {
        outcome = &mut call => EndedCall { outcome, turn: None },
        () = tokio::time::sleep_until(began + limit) => {
            let text = format!("the invocation did not end within {} s", limit.as_secs());
            EndedCall { outcome: Err(FunctionFailure(text)), turn: None }
        }
        respond_by = stopped => {
            let functions = handlers.functions.as_ref();
            let outcome = end_unfinished(functions, invocation, respond_by).await;
            EndedCall { outcome, turn: is_turn.then_some(call) }
        }
    }
}

/// The Functions host must not see a failure when the process ends, unless it has to keep the message.
async fn end_unfinished(
    functions: &dyn Functions,
    invocation: &Invocation,
    respond_by: Instant,
) -> Result<(), FunctionFailure> {
    // The next sweep follows within a minute.
    if invocation.function == "sweep" {
        return Ok(());
    }
    let (message, meta) = queue_message(invocation)?;
    let put_back = functions.put_back(&invocation.function, message, meta);
    match tokio::time::timeout_at(respond_by, put_back).await {
        Ok(outcome) => outcome,
        // Only the queue has the prompt: the host keeps the message.
        Err(_elapsed) if invocation.function == "prompt" => {
            Err(FunctionFailure("the message was not put back in time".to_owned()))
        }
        Err(_elapsed) => {
            tracing::warn!(faas.name = %invocation.function, "nudge not put back in time; the sweep will enqueue the work");
            Ok(())
        }
    }
}

async fn call_function(
    functions: &dyn Functions,
    invocation: &Invocation,
) -> Result<(), FunctionFailure> {
    if invocation.function == "sweep" {
        return functions.sweep(invocation.timer(), invocation.meta(None)).await;
    }
    let (message, meta) = queue_message(invocation)?;
    match invocation.function.as_str() {
        "turn" => functions.turn(message, meta).await,
        "prompt" => functions.prompt(message, meta).await,
        "notify" => functions.notify(message, meta).await,
        "turn-poison" => functions.turn_poison(message, meta).await,
        "notify-poison" => functions.notify_poison(message, meta).await,
        other => Err(FunctionFailure(format!("unknown function `{other}`"))),
    }
}

fn queue_message(invocation: &Invocation) -> Result<(String, InvocationMeta), FunctionFailure> {
    invocation.message().map_err(|error| FunctionFailure(error.to_string()))
}

/// The panic hook logs the payload at `debug`: it may quote content.
fn panic_response() -> Response {
    tracing::error!("function panicked");
    failure_response("the function panicked")
}

#[cfg(test)]
mod stop_tests;
