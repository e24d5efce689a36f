//! Test host: the local host, a queue and a test handler in this process, over loopback HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use turnwheel::clock::{Clock, SystemClock};
use turnwheel::host::{HostError, HostOptions, LEASE, ScriptRoot};
use turnwheel::ids::SeededIds;
use turnwheel::server::Bounds;
use turnwheel::settings::origins::AllowedOrigins;

use super::shelf::{SOON, Shelf};

pub(crate) const GOOD: &str = r#"{"Outputs":{},"Logs":[],"ReturnValue":null}"#;

pub(crate) struct Rig {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) address: SocketAddr,
    pub(crate) client: reqwest::Client,
    stop: CancellationToken,
    host: JoinSet<Result<(), HostError>>,
    _handler: JoinSet<()>,
}

/// Configuration of a test host.
pub(crate) struct Setting {
    pub(crate) root: ScriptRoot,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    pub(crate) bounds: Bounds,
    /// True if the queue does not signal new messages.
    pub(crate) is_silent: bool,
}

impl Default for Setting {
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
            grace: Duration::from_hours(1),
            bounds: Bounds::LOCAL_HOST,
            is_silent: false,
        }
    }
}

pub(crate) trait Replace {
    fn replace(&mut self, from: &str, to: &str);
}

impl Replace for ScriptRoot {
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
    let builder = reqwest::Client::builder().no_proxy().timeout(SOON);
    builder.redirect(reqwest::redirect::Policy::none()).build().unwrap()
}

impl Rig {
    pub(crate) async fn start(handler: Router) -> Self {
        Self::start_with(handler, Setting::default()).await
    }

    pub(crate) async fn start_with(handler: Router, setting: Setting) -> Self {
        let (handler_address, handler) = serve(handler).await;
        let shelf = Arc::new(Shelf::default());
        shelf.change(|state| state.is_silent = setting.is_silent);
        let options = HostOptions {
            port: 0,
            root: setting.root,
            handler: handler_address.to_string().parse().unwrap(),
            queues: Arc::clone(&shelf) as _,
            clock: setting.clock,
            ids: Arc::new(SeededIds::new(7)),
            names: Vec::new(),
            allowed_origins: AllowedOrigins::default(),
            lease: setting.lease,
            grace: setting.grace,
            bounds: setting.bounds,
        };
        let running = turnwheel::host::start(options).await.unwrap();
        let address = running.address();
        let stop = CancellationToken::new();
        let mut host = JoinSet::new();
        host.spawn(running.run(stop.clone()));
        Self { shelf, address, client: client(), stop, host, _handler: handler }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        read(self.client.get(self.url(path))).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
        read(self.client.post(self.url(path)).body(body)).await
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

    pub(crate) fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the host has ended.
    pub(crate) async fn ended(&mut self) {
        let ended = tokio::time::timeout(SOON, self.host.join_next()).await;
        ended.expect("the host does not stop").unwrap().unwrap().unwrap();
    }
}

async fn read(request: reqwest::RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}
