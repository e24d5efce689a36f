//! The kill demonstration of `turnwheel dev`: the process sends itself SIGKILL, at once or at the next model response or tool
//! call. Its supervisor starts it again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use serde_json::json;

use turnwheel_http::api::ProcessIdentity;
use turnwheel_platform::clock::{Clock, Timestamp};
use turnwheel_platform::fail_points::FailPoints;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_storage::live::{
    Interest, Live, LiveEvent, LiveReader, RemoteSubscription, Snapshot,
};

/// File in the data folder with the requested kills of the last minute.
const FILE: &str = "requested-kills.json";
const KILLS_MAX: usize = 3;
const PERIOD: Duration = Duration::from_mins(1);
/// Time until the response to a request has left the process.
const RESPONSE_TIME: Duration = Duration::from_millis(50);
/// After this time a kill that waits for a response or a call is dropped.
const ARMED_MAX: Duration = Duration::from_mins(2);
/// The part of a streamed response at which the process is killed.
const STREAMED_PART: u32 = 3;
/// The response of a call has arrived, and is not stored.
const AFTER_CALL: &str = "tool.after";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KillTime {
    Now,
    /// While the next model response streams.
    ModelStreaming,
    /// After the next tool call has been sent, and before its result is stored.
    WriteInFlight,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KillRequest {
    when: KillTime,
    /// That of `GET /api/me`: another page cannot read it.
    nonce: String,
}

/// One requested kill.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct RequestedKill {
    process: u32,
    at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct KillSwitch {
    file: PathBuf,
    nonce: String,
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
    armed: Mutex<Option<(KillTime, Timestamp)>>,
    streamed_parts: AtomicU32,
}

impl KillSwitch {
    pub(crate) fn new(
        data: &std::path::Path,
        nonce: String,
        clock: Arc<dyn Clock>,
        shutdown: Shutdown,
    ) -> Arc<Self> {
        let (armed, streamed_parts) = (Mutex::new(None), AtomicU32::new(0));
        let file = data.join(FILE);
        Arc::new(Self { file, nonce, clock, shutdown, armed, streamed_parts })
    }

    /// True if that process was killed by request. Such an end is no fault of the work that it interrupted.
    pub(crate) fn was_requested(&self, process: u32) -> bool {
        self.read_kills().iter().any(|kill| kill.process == process)
    }

    /// The requested kills of the last minute; none if the file cannot be read.
    fn read_kills(&self) -> Vec<RequestedKill> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let mut kills: Vec<RequestedKill> = serde_json::from_str(&text).unwrap_or_default();
        let since = self.clock.now().minus(PERIOD);
        kills.retain(|kill| kill.at > since);
        kills
    }

    fn is_armed_for(&self, when: KillTime) -> bool {
        let armed = *self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        armed.is_some_and(|(armed, until)| armed == when && self.clock.now() < until)
    }

    fn arm(self: &Arc<Self>, when: KillTime) {
        self.streamed_parts.store(0, Ordering::Relaxed);
        let until = self.clock.now().plus(ARMED_MAX);
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some((when, until));
        if when == KillTime::Now {
            let switch = Arc::clone(self);
            self.shutdown.spawn(async move {
                tokio::time::sleep(RESPONSE_TIME).await;
                switch.kill();
            });
        }
    }

    fn kill(&self) {
        let mut kills = self.read_kills();
        kills.push(RequestedKill { process: std::process::id(), at: self.clock.now() });
        // Without the file the kill counts as any other one.
        let _ = std::fs::write(&self.file, serde_json::to_string(&kills).unwrap_or_default());
        #[cfg(unix)]
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // Reached only without signals: ends at once as well.
        std::process::abort();
    }

    /// This process, for `GET /api/me`.
    pub(crate) fn process(&self) -> ProcessIdentity {
        ProcessIdentity { id: std::process::id(), nonce: self.nonce.clone() }
    }

    pub(crate) fn fail_points(self: &Arc<Self>) -> Arc<dyn FailPoints> {
        Arc::new(KillingFailPoints(Arc::clone(self)))
    }

    pub(crate) fn live(self: &Arc<Self>, inner: Arc<dyn Live>) -> Arc<dyn Live> {
        Arc::new(KillingLive { inner, switch: Arc::clone(self) })
    }

    /// The route of the local host.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        Router::new().route("/admin/process/kill", post(kill_process)).with_state(Arc::clone(self))
    }
}

async fn kill_process(
    State(switch): State<Arc<KillSwitch>>,
    headers: HeaderMap,
    Json(request): Json<KillRequest>,
) -> Response {
    let refuse = |status: StatusCode, text: &'static str| (status, text).into_response();
    if !is_same_origin(&headers) {
        return refuse(
            StatusCode::FORBIDDEN,
            "Only the console of this service kills its process.\n",
        );
    }
    if request.nonce != switch.nonce {
        return refuse(
            StatusCode::CONFLICT,
            "The nonce is not that of the running process: read GET /api/me again.\n",
        );
    }
    if switch.read_kills().len() >= KILLS_MAX {
        return refuse(StatusCode::CONFLICT, "At most 3 kills in a minute: wait.\n");
    }
    switch.arm(request.when);
    (StatusCode::ACCEPTED, Json(json!({"process": std::process::id()}))).into_response()
}

/// The local host has checked `Host`. Pages of other local ports may call the API, and not this route.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_own = |origin: &str| {
        let origin: Option<Uri> = origin.parse().ok();
        origin.and_then(|it| it.authority().map(ToString::to_string)).as_deref()
            == text(HOST.as_str())
    };
    text(ORIGIN.as_str()).is_none_or(is_own)
        && text("sec-fetch-site").is_none_or(|site| site == "same-origin")
}

#[derive(Debug)]
struct KillingFailPoints(Arc<KillSwitch>);

#[async_trait]
impl FailPoints for KillingFailPoints {
    async fn hit(&self, name: &'static str) {
        if name == AFTER_CALL && self.0.is_armed_for(KillTime::WriteInFlight) {
            self.0.kill();
        }
    }
}

#[derive(Debug)]
struct KillingLive {
    inner: Arc<dyn Live>,
    switch: Arc<KillSwitch>,
}

impl Live for KillingLive {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        let is_part = matches!(event, LiveEvent::Delta { .. });
        self.inner.publish(key, event);
        if is_part && self.switch.is_armed_for(KillTime::ModelStreaming) {
            let parts = self.switch.streamed_parts.fetch_add(1, Ordering::Relaxed) + 1;
            if parts >= STREAMED_PART {
                self.switch.kill();
            }
        }
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        self.inner.subscribe(key)
    }

    fn subscribe_remote(
        &self,
        key: &ConversationKey,
        interest: Interest,
    ) -> Box<dyn RemoteSubscription> {
        self.inner.subscribe_remote(key, interest)
    }

    fn wake_pollers(&self, key: &ConversationKey) {
        self.inner.wake_pollers(key);
    }

    fn poll_interval(&self) -> Duration {
        self.inner.poll_interval()
    }
}
