//! Test host: the local host, a queue and a test handler in this process, over loopback HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwheel::testing::clock::{Clock, SystemClock};
use turnwheel::testing::host::{
    HostError, HostKeys, HostOptions, IDLE_MAX, JsonReader, LEASE, ScriptRoot, TimerStatuses,
};
use turnwheel::testing::ids::SeededIds;
use turnwheel::testing::server::ServerLimits;
use turnwheel::testing::settings::origins::AllowedOrigins;

use super::raw_handler::{RawRequest, Script, serve_raw};
use super::recording_queue::{RecordingQueue, TIMEOUT};

pub(crate) const OK_RESPONSE: &str = r#"{"Outputs":{},"Logs":[],"ReturnValue":null}"#;

pub(crate) struct TestHost {
    pub(crate) queue: Arc<RecordingQueue>,
    pub(crate) address: SocketAddr,
    /// Address of the handler.
    pub(crate) handler: SocketAddr,
    pub(crate) client: reqwest::Client,
    stop: CancellationToken,
    host: JoinSet<Result<(), HostError>>,
    handler_tasks: JoinSet<()>,
}

/// Configuration of a test host.
pub(crate) struct TestHostConfig {
    pub(crate) root: ScriptRoot,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lease: Duration,
    pub(crate) idle_max: Duration,
    pub(crate) grace: Duration,
    pub(crate) bounds: ServerLimits,
    pub(crate) keys: Option<HostKeys>,
    pub(crate) timers: TimerStatuses,
    pub(crate) json: JsonReader,
    /// True if the queue does not signal new messages.
    pub(crate) is_silent: bool,
}

impl Default for TestHostConfig {
    fn default() -> Self {
        let mut root = ScriptRoot::embedded();
        // Polls are rare, so that no test passes because of one.
        root.replace("00:00:02", "01:00:00");
        // A failed message is delivered again at once.
        root.replace("00:00:15", "00:00:00");
        Self {
            root,
            clock: Arc::new(SystemClock::default()),
            lease: LEASE,
            idle_max: IDLE_MAX,
            grace: Duration::from_hours(1),
            bounds: ServerLimits::LOCAL_HOST,
            keys: None,
            timers: TimerStatuses::default(),
            json: JsonReader::default(),
            is_silent: false,
        }
    }
}

pub(crate) trait EditHostJson {
    fn replace(&mut self, from: &str, to: &str);
}

impl EditHostJson for ScriptRoot {
    /// Changes `host.json`.
    fn replace(&mut self, from: &str, to: &str) {
        assert!(self.host_json.contains(from), "host.json has no {from}");
        self.host_json = self.host_json.replace(from, to);
    }
}

pub(crate) async fn serve(router: Router) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, tasks)
}

pub(crate) fn client() -> reqwest::Client {
    let builder = reqwest::Client::builder().no_proxy().timeout(TIMEOUT);
    builder.redirect(reqwest::redirect::Policy::none()).build().unwrap()
}

impl TestHost {
    pub(crate) async fn start(handler: Router) -> Self {
        Self::start_with(handler, TestHostConfig::default()).await
    }

    pub(crate) async fn start_with(handler: Router, config: TestHostConfig) -> Self {
        let (address, handler) = serve(handler).await;
        Self::start_before(address, handler, config).await
    }

    /// A host with a handler that answers in bytes.
    pub(crate) async fn start_raw(
        respond: impl Fn(RawRequest) -> Script + Send + Sync + 'static,
        config: TestHostConfig,
    ) -> Self {
        let (address, handler) = serve_raw(respond).await;
        Self::start_before(address, handler, config).await
    }

    pub(crate) async fn start_before(
        handler_address: SocketAddr,
        handler: JoinSet<()>,
        config: TestHostConfig,
    ) -> Self {
        let queue = Arc::new(RecordingQueue::default());
        queue.change(|state| state.is_silent = config.is_silent);
        let options = HostOptions {
            port: 0,
            port_wait: Duration::ZERO,
            root: config.root,
            handler: handler_address.to_string().parse().unwrap(),
            queues: Arc::clone(&queue) as _,
            clock: config.clock,
            ids: Arc::new(SeededIds::new(7)),
            keys: config.keys,
            timers: config.timers,
            json: config.json,
            host_names: Vec::new(),
            allowed_origins: AllowedOrigins::default(),
            lease: config.lease,
            idle_max: config.idle_max,
            grace: config.grace,
            bounds: config.bounds,
        };
        let running = turnwheel::testing::host::start(options).await.unwrap();
        let address = running.address();
        let stop = CancellationToken::new();
        let mut host = JoinSet::new();
        host.spawn(running.run(stop.clone()));
        Self {
            queue,
            address,
            handler: handler_address,
            client: client(),
            stop,
            host,
            handler_tasks: handler,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        send_and_read(self.client.get(self.url(path))).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
        send_and_read(self.client.post(self.url(path)).body(body)).await
    }

    /// Errors that the host reports, without those of the sweep: a full minute may fall into any
    /// test, and few test handlers have a sweep.
    pub(crate) async fn errors(&self) -> Vec<String> {
        let mut errors = self.all_errors().await;
        errors.retain(|error| !error.starts_with("sweep"));
        errors
    }

    pub(crate) async fn all_errors(&self) -> Vec<String> {
        let (_, body) = self.get("/admin/host/status").await;
        let status: serde_json::Value = serde_json::from_str(&body).unwrap();
        serde_json::from_value(status.get("errors").unwrap().clone()).unwrap()
    }

    /// Closes the handler's port and connections.
    pub(crate) async fn end_handler(&mut self) {
        self.handler_tasks.shutdown().await;
    }

    pub(crate) fn begin_shutdown(&self) {
        self.stop.cancel();
    }

    /// Waits until the host has ended.
    pub(crate) async fn wait_for_end(&mut self) {
        let ended = tokio::time::timeout(TIMEOUT, self.host.join_next()).await;
        ended.expect("the host does not stop").unwrap().unwrap().unwrap();
    }
}

async fn send_and_read(request: reqwest::RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}
