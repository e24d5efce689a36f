//! Start of a process that the Functions host started. The host stops after three failed starts, so
//! a process whose store is away, or whose data folder a former process still locks, opens its port
//! and connects later.

use std::time::Duration;

use tokio::time::Instant;

use crate::start::handler_port::{HandlerPort, WaitingHandler};
use crate::start::options::ServiceOptions;
use crate::start::ports::{self, PortContext, Ports};
use crate::start::start_error::{StartError, io_error};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_storage::store::conditional::back_off_up_to;

/// Time of the first attempt, before the port is open. The host waits 30 s for the port, and starts
/// another process then.
const FIRST_ATTEMPT_MAX: Duration = Duration::from_secs(10);
const ATTEMPT_MAX: Duration = Duration::from_mins(1);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Shortest time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

/// Opens the ports of the app and that of the handler, and waits for a store that is away.
///
/// # Errors
/// The configuration is refused: print the error and exit.
pub(crate) async fn open_ports(
    options: &ServiceOptions,
    context: &PortContext<'_>,
) -> Result<(Ports, HandlerPort), StartError> {
    let began = Instant::now();
    let mut error = match connect(options, context, FIRST_ATTEMPT_MAX).await {
        Ok(ports) => return Ok((ports, HandlerPort::bind(options.handler_port)?)),
        Err(error) => error,
    };
    let Some(awaited) = error.find_awaited(Duration::ZERO) else { return Err(error) };
    let waiting = WaitingHandler::start(options.handler_port, awaited, &options.shutdown)?;
    let mut warning = ConnectWarning::default();
    warning.log(&error, awaited);
    for wait in back_off_up_to(FIRST_WAIT, WAIT_MAX) {
        // An attempt that finds the data folder locked costs nothing.
        let wait = if error.is_folder_in_use() { FIRST_WAIT } else { wait };
        tokio::time::sleep(wait).await;
        wait_for_end_if_begun(&options.shutdown).await;
        error = match connect(options, context, ATTEMPT_MAX).await {
            Ok(ports) => {
                wait_for_end_if_begun(&options.shutdown).await;
                tracing::info!("store connected; the handler serves");
                return Ok((ports, HandlerPort::Waiting(waiting)));
            }
            Err(error) => error,
        };
        let Some(awaited) = error.find_awaited(began.elapsed()) else { return Err(error) };
        waiting.set_awaited(awaited);
        warning.log(&error, awaited);
    }
    Err(error)
}

async fn connect(
    options: &ServiceOptions,
    context: &PortContext<'_>,
    limit: Duration,
) -> Result<Ports, StartError> {
    let opening = Box::pin(ports::open_ports(&options.storage, context));
    match tokio::time::timeout(limit, opening).await {
        Ok(opened) => opened,
        Err(elapsed) => Err(io_error("reach storage account and database in time")(elapsed)),
    }
}

/// Nothing may begin in a process that ends: its port stays open as it is.
async fn wait_for_end_if_begun(shutdown: &Shutdown) {
    if shutdown.is_begun() {
        std::future::pending::<()>().await;
    }
}

#[derive(Default)]
struct ConnectWarning {
    logged_at: Option<Instant>,
}

impl ConnectWarning {
    fn log(&mut self, error: &StartError, awaited: &str) {
        let now = Instant::now();
        if self.logged_at.is_some_and(|at| now.duration_since(at) < WARNING_INTERVAL) {
            return;
        }
        self.logged_at = Some(now);
        tracing::warn!(error = %error_chain(error), "handler waits for {awaited}; it tries again at least every {} s", WAIT_MAX.as_secs());
    }
}
