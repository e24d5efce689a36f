//! The local development host: sends requests to the handler over loopback as the Functions host
//! does.
//!
//! It is stricter where Azure would hang or corrupt data silently. It uses the handler only by its
//! address, or as an HTTP service in this process. Nothing here calls the handler's internals.

mod admin;
mod config;
mod envelope;
mod exposure;
mod function;
mod function_timeout;
#[cfg(test)]
mod fuzz;
mod host_json;
mod invoke;
mod json;
mod keys;
mod listener;
mod origin_check;
mod output;
mod override_check;
mod package;
mod problem;
pub mod program;
mod proxy;
mod request_path;
mod resend;
mod root;
mod routes;
mod schedule;
mod timer;
mod upload;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::uri::Authority;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use config::HostConfig;
pub use exposure::{
    find_exposure, find_keyed_functions, find_unknown_routes, is_public, route_problems,
};
pub use function::{Function, HttpTrigger, Trigger};
pub use function_timeout::find_function_timeout;
pub use host_json::HostOverrides;
pub(crate) use invoke::InvocationError;
pub use json::{Json, JsonReader};
pub use keys::HostKeys;
pub use override_check::{find_invocation_problems, find_override_problems};
pub use package::check_package;
pub use problem::HostProblem;
pub use root::{CONSOLE_FUNCTION, ScriptRoot};
pub use schedule::TimerSchedule;
pub use timer::TimerStatuses;
#[cfg(any(test, feature = "testing"))]
pub use upload::exclusions;
pub use upload::host_json_problems;

use admin::ManualRun;
use envelope::EnvelopeContext;
use invoke::Handler;

use turnwheel_platform::clock::Clock;
use turnwheel_platform::ids::Ids;
use turnwheel_platform::server::{self, ServerLimits};
use turnwheel_platform::settings::origins::AllowedOrigins;
use turnwheel_storage::queue::Queue;

/// The same port as `func start`.
pub const PORT: u16 = 7071;
/// How long a received message stays hidden. The lease is renewed at half of this time.
pub const LEASE: Duration = Duration::from_mins(10);
/// The Functions host closes a response that sends no data for this long.
pub const IDLE_MAX: Duration = Duration::from_mins(4);
/// How long a stop waits for running invocations.
pub const GRACE: Duration = Duration::from_secs(10);

/// Interval of the readiness checks of the handler. The host gives up after [`READY_MAX`].
const READY_INTERVAL: Duration = Duration::from_millis(25);
const READY_MAX: Duration = Duration::from_secs(30);
/// Waiting runs that `POST /admin/functions/<name>` requested.
const QUEUED_RUNS_MAX: usize = 64;

#[derive(Debug)]
pub struct HostOptions {
    /// 0: any free port.
    pub port: u16,
    /// How long to wait for a port that is taken: zero, except after a kill of this host. A client that connects
    /// meanwhile may have been given the port for its own end of the connection.
    pub port_wait: Duration,
    pub root: ScriptRoot,
    /// The handler's address: `127.0.0.1:43997`.
    pub handler: Authority,
    pub queues: Arc<dyn Queue>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    /// `None`: requests need no key, as under `func start`.
    pub keys: Option<HostKeys>,
    /// Those of an earlier host, if it missed runs.
    pub timers: TimerStatuses,
    pub json: JsonReader,
    /// Host names accepted besides the loopback names: that of a tunnel.
    pub host_names: Vec<String>,
    /// Origins of pages that may call the API besides those of this machine.
    pub allowed_origins: AllowedOrigins,
    /// [`LEASE`], except in tests.
    pub lease: Duration,
    /// [`IDLE_MAX`], except in tests.
    pub idle_max: Duration,
    /// [`GRACE`], except in tests.
    pub grace: Duration,
    /// [`ServerLimits::LOCAL_HOST`], except in tests.
    pub bounds: ServerLimits,
}

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("the Functions files have mistakes:{}", problem::lines(.0))]
    Files(Vec<HostProblem>),
    #[error("port {port} is taken: choose another with `--port {}`", .port.wrapping_add(1).max(1024))]
    PortTaken { port: u16 },
    #[error("cannot listen on 127.0.0.1:{port}")]
    Listen { port: u16, source: std::io::Error },
    #[error("the handler did not respond to `GET /` within {} s", READY_MAX.as_secs())]
    HandlerNotReady,
    #[error("the local host stopped unexpectedly: {0}")]
    TaskFailed(String),
}

/// State that all tasks of a running host share.
struct HostState {
    config: HostConfig,
    functions: Vec<Function>,
    handler: Handler,
    queues: Arc<dyn Queue>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    keys: Option<HostKeys>,
    timers: TimerStatuses,
    json: JsonReader,
    host_names: Vec<String>,
    allowed_origins: AllowedOrigins,
    lease: Duration,
    idle_max: Duration,
    manual_runs: mpsc::Sender<ManualRun>,
    /// By queue: wakes the queue's listener after an output was sent there.
    output_signals: BTreeMap<String, watch::Sender<u64>>,
    stop: CancellationToken,
    /// On the monotonic clock.
    started_at: Duration,
}

impl HostState {
    fn envelope_context(&self) -> EnvelopeContext<'_> {
        let ids = self.ids.as_ref();
        EnvelopeContext { now: self.clock.now(), ids, json: self.json }
    }
}

/// Listens already; accepts requests once [`RunningHost::run`] runs.
pub struct RunningHost {
    shared: HostState,
    listener: TcpListener,
    address: SocketAddr,
    manual_runs: mpsc::Receiver<ManualRun>,
    own_routes: Router,
    grace: Duration,
    bounds: ServerLimits,
}

impl fmt::Debug for RunningHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningHost").field("address", &self.address).finish_non_exhaustive()
    }
}

async fn listen(port: u16, wait: Duration) -> Result<TcpListener, HostError> {
    const INTERVAL: Duration = Duration::from_millis(50);
    let until = tokio::time::Instant::now() + wait;
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                if tokio::time::Instant::now() >= until {
                    return Err(HostError::PortTaken { port });
                }
                tokio::time::sleep(INTERVAL).await;
            }
            bound => return bound.map_err(|source| HostError::Listen { port, source }),
        }
    }
}

/// Reads the files and opens the port.
///
/// # Errors
/// Show the error and exit: each text says what to do.
pub async fn start(options: HostOptions) -> Result<RunningHost, HostError> {
    let (config, mut functions) = options.root.read().map_err(HostError::Files)?;
    functions.sort_by_key(Function::order);
    let port = options.port;
    let listener = listen(port, options.port_wait).await?;
    let address = listener.local_addr().map_err(|source| HostError::Listen { port, source })?;
    let (sender, receiver) = mpsc::channel(QUEUED_RUNS_MAX);
    let queues = functions.iter().filter_map(|function| match &function.trigger {
        Trigger::Queue { queue } => Some(queue.clone()),
        Trigger::Http(_) | Trigger::Timer { .. } => None,
    });
    let shared = HostState {
        output_signals: queues.map(|queue| (queue, watch::Sender::new(0))).collect(),
        config,
        functions,
        handler: Handler::new(options.handler),
        queues: options.queues,
        started_at: options.clock.monotonic(),
        clock: options.clock,
        ids: options.ids,
        keys: options.keys,
        timers: options.timers,
        json: options.json,
        host_names: options.host_names,
        allowed_origins: options.allowed_origins,
        lease: options.lease,
        idle_max: options.idle_max,
        manual_runs: sender,
        stop: CancellationToken::new(),
    };
    let (grace, bounds) = (options.grace, options.bounds);
    let own_routes = Router::new();
    Ok(RunningHost { shared, listener, address, manual_runs: receiver, own_routes, grace, bounds })
}

impl RunningHost {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Uses a handler in this process: requests reach it without a connection.
    #[must_use]
    pub fn with_local_handler(mut self, handler: Router) -> Self {
        self.shared.handler = self.shared.handler.in_process(handler);
        self
    }

    /// Adds routes of the program, below `/admin`. The checks of the host's own routes protect them.
    #[must_use]
    pub fn with_own_routes(self, own_routes: Router) -> Self {
        Self { own_routes, ..self }
    }

    /// Runs until `stop`, then accepts nothing new and waits for running invocations, at most
    /// [`HostOptions::grace`].
    ///
    /// # Errors
    /// The handler never responded, or a task of the host failed: show the error and exit.
    pub async fn run(self, stop: CancellationToken) -> Result<(), HostError> {
        let Self { shared, listener, manual_runs: manual, own_routes, grace, bounds, address: _ } =
            self;
        let shared = Arc::new(shared);
        // Every exit from here also ends the streams to readers.
        let ended = shared.stop.clone().drop_guard();
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            is_ready = wait_until_ready(&shared.handler) => if !is_ready { return Err(HostError::HandlerNotReady) },
        }
        let mut tasks = JoinSet::new();
        for function in shared.functions.clone() {
            let host = Arc::clone(&shared);
            match function.trigger.clone() {
                Trigger::Http(_) => {}
                Trigger::Queue { queue } => {
                    tasks.spawn(listener::listen(host, function, queue));
                }
                Trigger::Timer { schedule } => {
                    tasks.spawn(timer::run_schedule(host, function, schedule));
                }
            }
        }
        tasks.spawn(admin::start_requested_runs(Arc::clone(&shared), manual));
        tasks.spawn(serve(Arc::clone(&shared), own_routes, listener, bounds));
        let failure = tokio::select! {
            () = stop.cancelled() => None,
            ended = tasks.join_next() => Some(match ended {
                Some(Err(error)) => error.to_string(),
                Some(Ok(())) | None => "one of its tasks ended".to_owned(),
            }),
        };
        drop(ended);
        let drain = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, drain).await.is_err() {
            tracing::warn!(
                "stop timed out with running invocations; their messages return when the leases end"
            );
        }
        failure.map_or(Ok(()), |reason| Err(HostError::TaskFailed(reason)))
    }
}

/// Polls until the handler responds with any status. Returns false after [`READY_MAX`].
async fn wait_until_ready(handler: &Handler) -> bool {
    let polling = async {
        while !handler.is_ready().await {
            tokio::time::sleep(READY_INTERVAL).await;
        }
    };
    tokio::time::timeout(READY_MAX, polling).await.is_ok()
}

async fn serve(
    host: Arc<HostState>,
    own_routes: Router,
    listener: TcpListener,
    bounds: ServerLimits,
) {
    let stop = host.stop.clone();
    let router = admin::router()
        .merge(own_routes.with_state(()))
        .fallback(proxy::forward_request)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&host), origin_check::check_origin))
        .with_state(host);
    server::serve(listener, router, bounds, stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn taken_port_is_an_error_at_once_or_awaited() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let refused = listen(port, Duration::ZERO).await;
        assert!(matches!(refused, Err(HostError::PortTaken { port: at }) if at == port));
        let release = async {
            tokio::time::sleep(Duration::from_millis(120)).await;
            drop(taken);
        };
        let (listener, ()) = tokio::join!(listen(port, Duration::from_mins(1)), release);
        assert_eq!(listener.unwrap().local_addr().unwrap().port(), port);
    }
}
