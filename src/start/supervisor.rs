//! Supervisor of `turnwheel dev`: starts the service as a child process, and starts it again after a kill.
//!
//! It holds no store and no lease. The child reads its start from standard input, and ends when that closes: it never
//! outlives its supervisor.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, ErrorKind, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use crate::start::start_error::{StartError, io_error};
use crate::start::stop_signals::StopSignals;
use turnwheel_platform::clock::{Clock as _, SystemClock, Timestamp};

/// Hidden option of the child.
pub(crate) const OPTION: &str = "--supervised";
/// Bounds of the delay after which a child that was killed soon after its start is started again.
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// A child that lived so long is started again without a delay.
const STEADY_AFTER: Duration = Duration::from_secs(5);
const FAILED: u8 = 1;
/// Ports that a supervisor chooses from.
const PORT_MIN: u16 = 20_000;
const PORTS: u64 = 12_000;
const PORT_TRIES: u32 = 100;

/// The start of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChildStart {
    /// Port of the local host, the same for each child.
    pub(crate) port: u16,
    /// The killed process that this one replaces.
    pub(crate) replaced: Option<ReplacedProcess>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReplacedProcess {
    pub(crate) id: u32,
    /// `SIGKILL`, or the number of another signal.
    pub(crate) signal: String,
    pub(crate) ended_at: Timestamp,
}

impl ReplacedProcess {
    /// The line for the terminal, once this process serves requests.
    pub(crate) fn describe_restart(&self) -> String {
        let now = SystemClock::default().now();
        let ms = now.0.saturating_sub(self.ended_at.0);
        format!("process {} killed ({}), restarted in {ms} ms", self.id, self.signal)
    }
}

/// Runs children until one ends by itself. Returns its exit code.
///
/// # Errors
/// No child can be started: print the error and exit.
pub(crate) fn run(port: u16) -> Result<u8, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(io_error("start the runtime"))?.block_on(supervise(port))
}

async fn supervise(port: u16) -> Result<u8, StartError> {
    let port =
        if port == 0 { find_free_port().map_err(io_error("find a free port"))? } else { port };
    let mut signals = StopSignals::listen().map_err(io_error("listen to signals"))?;
    let (mut replaced, mut delay, mut is_stopping) = (None, Duration::ZERO, false);
    loop {
        let started_at = Instant::now();
        // The child ends when its standard input closes.
        let (mut child, _input) =
            spawn(ChildStart { port, replaced }).await.map_err(io_error("start the service"))?;
        let id = child.id().unwrap_or_default();
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(io_error("wait for the service"))?,
                () = signals.next() => {
                    is_stopping = true;
                    forward_stop(id);
                }
            }
        };
        let Some(signal) = find_signal(status).filter(|_| !is_stopping) else {
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED));
        };
        replaced = Some(ReplacedProcess { id, signal, ended_at: SystemClock::default().now() });
        delay = next_delay(delay, started_at.elapsed());
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = signals.next() => return Ok(FAILED),
        }
    }
}

/// Doubles the delay for each child in a row that did not live long. The first one is replaced at once.
fn next_delay(last: Duration, lived: Duration) -> Duration {
    if lived >= STEADY_AFTER { Duration::ZERO } else { (last * 2).clamp(DELAY_MIN, DELAY_MAX) }
}

/// A free port below those that the system gives by default to connections and to servers that leave the
/// choice to it, so that none of them takes it before the child listens. Each call tries other ports.
///
/// # Errors
/// Each tried port is taken.
pub fn find_free_port() -> std::io::Result<u16> {
    static TRIED: AtomicU64 = AtomicU64::new(0);
    // Random: other supervisors choose at the same time.
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()) % PORTS);
    let mut error = None;
    for _ in 0..PORT_TRIES {
        let number = (*FIRST + TRIED.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = PORT_MIN + u16::try_from(number).unwrap_or_default();
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(taken) => error = Some(taken),
        }
    }
    Err(error.unwrap_or_else(|| ErrorKind::AddrInUse.into()))
}

async fn spawn(start: ChildStart) -> std::io::Result<(Child, Option<ChildStdin>)> {
    use tokio::io::AsyncWriteExt as _;

    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg(OPTION).stdin(Stdio::piped());
    // In a group of its own: a terminal then sends Ctrl-C to the supervisor alone, which forwards it once.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command.spawn()?;
    let mut input = child.stdin.take();
    let line = serde_json::to_string(&start)? + "\n";
    if let Some(input) = &mut input {
        input.write_all(line.as_bytes()).await?;
    }
    Ok((child, input))
}

/// Reads the start of this process, and ends the process when its supervisor has ended.
///
/// # Errors
/// No supervisor started this process: print the error and exit.
pub(crate) fn read_start() -> std::io::Result<ChildStart> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let start = serde_json::from_str(&line)?;
    std::thread::Builder::new().name("supervisor".to_owned()).spawn(end_with_supervisor)?;
    Ok(start)
}

#[expect(clippy::exit, reason = "no service may continue after the end of its supervisor")]
fn end_with_supervisor() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    let _ = std::io::stdout().flush();
    std::process::exit(i32::from(FAILED))
}

/// Sends the stop to the child. In Windows the console has sent Ctrl-C to both processes.
fn forward_stop(process: u32) {
    #[cfg(unix)]
    if let Some(process) = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw) {
        // The child may have ended already.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
    }
    #[cfg(not(unix))]
    let _ = process;
}

/// The signal that ended a process. `None`: it ended by itself.
#[cfg(unix)]
fn find_signal(status: ExitStatus) -> Option<String> {
    use std::os::unix::process::ExitStatusExt as _;

    let number = status.signal()?;
    Some(if number == rustix::process::Signal::KILL.as_raw() {
        "SIGKILL".to_owned()
    } else {
        format!("signal {number}")
    })
}

/// Windows has no signals: a process that is terminated has an exit code above those of this program.
#[cfg(not(unix))]
fn find_signal(status: ExitStatus) -> Option<String> {
    status.code().filter(|code| u8::try_from(*code).is_err()).map(|code| format!("code {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_only_for_short_lives() {
        let seconds = Duration::from_secs;
        assert_eq!(next_delay(seconds(1), STEADY_AFTER), Duration::ZERO);
        assert_eq!(next_delay(Duration::ZERO, seconds(1)), DELAY_MIN);
        assert_eq!(next_delay(DELAY_MIN, seconds(1)), DELAY_MIN * 2);
        assert_eq!(next_delay(seconds(4), seconds(1)), DELAY_MAX);
    }
}
