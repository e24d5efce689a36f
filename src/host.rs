//! The local development host: sends requests to the handler over loopback as the Functions host
//! does.
//!
//! It is stricter where Azure would hang or corrupt data silently. It uses the handler only by its
//! address, or as an HTTP service in this process. Nothing here calls the handler's internals.

mod admin;
mod config;
mod envelope;
mod function;
#[cfg(test)]
mod fuzz;
mod gate;
mod invoke;
mod listener;
mod output;
mod package;
mod problem;
pub mod program;
mod proxy;
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

pub use config::{HostConfig, QueueConfig};
pub use function::{Function, Trigger};
pub use invoke::InvocationError;
pub use output::Output;
pub use package::check_package;
pub use problem::Problem;
pub use root::ScriptRoot;
pub use routes::Template;
pub use schedule::Schedule;

use admin::Manual;
use invoke::Handler;

use crate::clock::Clock;
use crate::ids::Ids;
use crate::queue::Queue;
use crate::server::{self, Bounds};
use crate::settings::origins::AllowedOrigins;

/// The same port as `func start`.
pub const PORT: u16 = 7071;
/// How long a received message stays hidden. The lease is renewed at half of this time.
pub const LEASE: Duration = Duration::from_mins(10);
/// How long a stop waits for running invocations.
pub const GRACE: Duration = Duration::from_secs(10);

/// Interval of the readiness checks of the handler. The host gives up after [`READY_MAX`].
const READY_INTERVAL: Duration = Duration::from_millis(25);
const READY_MAX: Duration = Duration::from_secs(30);
/// Waiting runs that `POST /admin/functions/<name>` requested.
const MANUAL_MAX: usize = 64;

#[derive(Debug)]
pub struct HostOptions {
    /// 0: any free port.
    pub port: u16,
    pub root: ScriptRoot,
    /// The handler's address: `127.0.0.1:43997`.
    pub handler: Authority,
    pub queues: Arc<dyn Queue>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    /// Host names accepted besides the loopback names: that of a tunnel.
    pub names: Vec<String>,
    /// Origins of pages that may call the API besides those of this machine.
    pub allowed_origins: AllowedOrigins,
    /// [`LEASE`], except in tests.
    pub lease: Duration,
    /// [`GRACE`], except in tests.
    pub grace: Duration,
    /// [`Bounds::LOCAL_HOST`], except in tests.
    pub bounds: Bounds,
}

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("the Functions files have mistakes:{}", problem::lines(.0))]
    Files(Vec<Problem>),
    #[error("port {port} is taken: choose another with `--port {}`", .port.wrapping_add(1).max(1024))]
    PortTaken { port: u16 },
    #[error("cannot listen on 127.0.0.1:{port}")]
    Listen { port: u16, source: std::io::Error },
    #[error("the handler did not respond to `GET /` within {} s", READY_MAX.as_secs())]
    HandlerSilent,
    #[error("the local host stopped unexpectedly: {0}")]
    Broken(String),
}

/// State that all tasks of a running host share.
#[derive(Debug)]
struct Shared {
    config: HostConfig,
    functions: Vec<Function>,
    handler: Handler,
    queues: Arc<dyn Queue>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    names: Vec<String>,
    allowed_origins: AllowedOrigins,
    lease: Duration,
    manual: mpsc::Sender<Manual>,
    /// By queue: wakes the queue's listener after an output was sent there.
    woken: BTreeMap<String, watch::Sender<u64>>,
    stop: CancellationToken,
    /// On the monotonic clock.
    started: Duration,
}

/// Listens already; accepts requests once [`RunningHost::run`] runs.
pub struct RunningHost {
    shared: Shared,
    listener: TcpListener,
    address: SocketAddr,
    manual: mpsc::Receiver<Manual>,
    grace: Duration,
    bounds: Bounds,
}

impl fmt::Debug for RunningHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningHost").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Reads the files and opens the port.
///
/// # Errors
/// Show the error and exit: each text says what to do.
pub async fn start(options: HostOptions) -> Result<RunningHost, HostError> {
    let (config, mut functions) = options.root.read().map_err(HostError::Files)?;
    functions.sort_by_key(|function| match &function.trigger {
        Trigger::Http { route, methods: _ } => Some(route.precedence()),
        Trigger::Queue { .. } | Trigger::Timer { .. } => None,
    });
    let port = options.port;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|source| {
        if source.kind() == std::io::ErrorKind::AddrInUse {
            HostError::PortTaken { port }
        } else {
            HostError::Listen { port, source }
        }
    })?;
    let address = listener.local_addr().map_err(|source| HostError::Listen { port, source })?;
    let (sender, receiver) = mpsc::channel(MANUAL_MAX);
    let queues = functions.iter().filter_map(|function| match &function.trigger {
        Trigger::Queue { queue } => Some(queue.clone()),
        Trigger::Http { .. } | Trigger::Timer { .. } => None,
    });
    let shared = Shared {
        woken: queues.map(|queue| (queue, watch::Sender::new(0))).collect(),
        config,
        functions,
        handler: Handler::at(options.handler),
        queues: options.queues,
        started: options.clock.monotonic(),
        clock: options.clock,
        ids: options.ids,
        names: options.names,
        allowed_origins: options.allowed_origins,
        lease: options.lease,
        manual: sender,
        stop: CancellationToken::new(),
    };
    let (grace, bounds) = (options.grace, options.bounds);
    Ok(RunningHost { shared, listener, address, manual: receiver, grace, bounds })
}

impl RunningHost {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Uses a handler in this process: requests reach it without a connection.
    #[must_use]
    pub fn beside(mut self, handler: Router) -> Self {
        self.shared.handler = self.shared.handler.here(handler);
        self
    }

    /// Runs until `stop`, then accepts nothing new and waits for running invocations, at most
    /// [`HostOptions::grace`].
    ///
    /// # Errors
    /// The handler never responded, or a task of the host failed: show the error and exit.
    pub async fn run(self, stop: CancellationToken) -> Result<(), HostError> {
        let Self { shared, listener, manual, grace, bounds, address: _ } = self;
        let shared = Arc::new(shared);
        // Every exit from here also ends the streams to readers.
        let ended = shared.stop.clone().drop_guard();
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            is_ready = ready(&shared.handler) => if !is_ready { return Err(HostError::HandlerSilent) },
        }
        let mut tasks = JoinSet::new();
        for function in shared.functions.clone() {
            let host = Arc::clone(&shared);
            match function.trigger.clone() {
                Trigger::Http { .. } => {}
                Trigger::Queue { queue } => {
                    tasks.spawn(listener::listen(host, function, queue));
                }
                Trigger::Timer { schedule } => {
                    tasks.spawn(timer::tick(host, function, schedule));
                }
            }
        }
        tasks.spawn(admin::run_manual(Arc::clone(&shared), manual));
        tasks.spawn(serve(Arc::clone(&shared), listener, bounds));
        let broken = tokio::select! {
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
        broken.map_or(Ok(()), |reason| Err(HostError::Broken(reason)))
    }
}

/// Polls until the handler responds with any status. Returns false after [`READY_MAX`].
async fn ready(handler: &Handler) -> bool {
    let asking = async {
        while !handler.is_ready().await {
            tokio::time::sleep(READY_INTERVAL).await;
        }
    };
    tokio::time::timeout(READY_MAX, asking).await.is_ok()
}

async fn serve(host: Arc<Shared>, listener: TcpListener, bounds: Bounds) {
    let stop = host.stop.clone();
    let router = admin::router()
        .fallback(proxy::proxy)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&host), gate::gate))
        .with_state(host);
    server::serve(listener, router, bounds, stop).await;
}
