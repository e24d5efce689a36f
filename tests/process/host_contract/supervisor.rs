//! A supervisor that starts the handler program, and reacts to its end, as the Functions host does.
//! `dev` has none: it calls the handler in its own process.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use turnwheel::testing::app::find_free_port;

use super::recording_queue::TIMEOUT;
use super::test_host::client;

/// Interval of the readiness checks.
const PROBE_INTERVAL: Duration = Duration::from_millis(25);
/// Ends of the process that stop the host.
pub(crate) const COUNTED_ENDS_MAX: u32 = 3;
/// An exit code with which the handler asks for a restart.
const RESTART_CODE: i32 = 200;
/// Time between a time-out and the kill of the process.
pub(crate) const KILL_DELAY: Duration = Duration::from_secs(2);
/// Two time-outs within this time stop the host.
const SIMULTANEOUS: Duration = Duration::from_millis(30);

/// Times of the host that tests shorten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostTimes {
    /// Limit of the waits between the probes of one start.
    pub(crate) initialization: Duration,
    /// Counted ends are forgotten if the one before is older.
    pub(crate) memory: Duration,
}

impl HostTimes {
    pub(crate) const REAL: Self =
        Self { initialization: Duration::from_secs(30), memory: Duration::from_mins(30) };
}

/// The host's reaction to the end of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reaction {
    /// Another process has the port.
    Restarted,
    /// The host goes on without a handler.
    LeftAlone,
    HostStopped,
}

/// Killed when dropped.
pub(crate) struct Supervisor {
    /// A new command for each start.
    command: Box<dyn Fn() -> Command + Send>,
    port: u16,
    process: Child,
    times: HostTimes,
    counted_ends: u32,
    last_counted: Option<Instant>,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Supervisor {
    pub(crate) fn start(command: impl Fn() -> Command + Send + 'static) -> Self {
        Self::start_with(HostTimes::REAL, command)
    }

    pub(crate) fn start_with(
        times: HostTimes,
        command: impl Fn() -> Command + Send + 'static,
    ) -> Self {
        let port = find_free_port().unwrap();
        let process = spawn(command(), port);
        Self {
            command: Box::new(command),
            port,
            process,
            times,
            counted_ends: 0,
            last_counted: None,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Waits until the process answers with any status.
    pub(crate) async fn until_ready(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while client().get(self.url("/")).send().await.is_err() {
            assert!(Instant::now() < deadline, "the handler does not respond");
            assert!(self.process.try_wait().unwrap().is_none(), "the handler ended");
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    }

    /// Waits for the end of the process, and reacts to it.
    pub(crate) async fn react_to_end(&mut self) -> (ExitStatus, Reaction) {
        let deadline = Instant::now() + TIMEOUT;
        let ended = loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the handler does not end");
            tokio::time::sleep(PROBE_INTERVAL).await;
        };
        let reaction = match ended.code() {
            Some(0) => Reaction::LeftAlone,
            Some(RESTART_CODE) => Reaction::Restarted,
            // A signal counts like any other code.
            Some(_) | None => self.count_end(),
        };
        if reaction == Reaction::Restarted {
            self.restart();
        }
        (ended, reaction)
    }

    fn count_end(&mut self) -> Reaction {
        if self.last_counted.is_some_and(|last| last.elapsed() > self.times.memory) {
            self.counted_ends = 0;
        }
        self.last_counted = Some(Instant::now());
        self.counted_ends += 1;
        if self.counted_ends == COUNTED_ENDS_MAX {
            Reaction::HostStopped
        } else {
            Reaction::Restarted
        }
    }

    /// Probes the process for the time of one start. One that does not answer is killed, and that
    /// counts. Returns the reaction; `None` if the process is ready.
    pub(crate) async fn probe_start(&mut self) -> Option<Reaction> {
        let mut waited = Duration::ZERO;
        while waited < self.times.initialization {
            if client().get(self.url("/")).send().await.is_ok() {
                return None;
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
            waited += PROBE_INTERVAL;
        }
        self.kill();
        let reaction = self.count_end();
        if reaction == Reaction::Restarted {
            self.restart();
        }
        Some(reaction)
    }

    /// The host stops with nothing in flight: it sends no signal.
    pub(crate) fn stop_idle_host(mut self) -> ExitStatus {
        self.kill()
    }

    /// Sends an invocation that must end within the time-out of the function. Returns the answer, if
    /// one came.
    pub(crate) async fn invoke(
        &mut self,
        function: &str,
        envelope: &Value,
        timeout: Duration,
    ) -> Option<reqwest::Response> {
        let calls = vec![(Duration::ZERO, function, envelope)];
        self.invoke_all(calls, timeout).await.0.pop().unwrap()
    }

    /// Sends invocations, each after its wait. After a time-out the process is killed and started
    /// again, which is not counted; two at once stop the host. Returns the answers that came, and
    /// the reaction to a time-out.
    pub(crate) async fn invoke_all(
        &mut self,
        calls: Vec<(Duration, &str, &Value)>,
        timeout: Duration,
    ) -> (Vec<Option<reqwest::Response>>, Option<Reaction>) {
        let outcomes = calls.into_iter().map(|(wait, function, envelope)| {
            let request = client().post(self.url(&format!("/{function}"))).json(envelope);
            async move {
                tokio::time::sleep(wait).await;
                let answer = tokio::time::timeout(timeout, request.send()).await;
                let timed_out = answer.is_err().then(Instant::now);
                (answer.ok().and_then(Result::ok), timed_out)
            }
        });
        let outcomes = futures_util::future::join_all(outcomes).await;
        let (answers, timed_out): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
        let mut timed_out: Vec<Instant> = timed_out.into_iter().flatten().collect();
        if timed_out.is_empty() {
            return (answers, None);
        }
        timed_out.sort();
        let stops = timed_out.windows(2).any(|two| two[1] - two[0] < SIMULTANEOUS);
        tokio::time::sleep(KILL_DELAY).await;
        self.kill();
        if stops {
            return (answers, Some(Reaction::HostStopped));
        }
        self.restart();
        (answers, Some(Reaction::Restarted))
    }

    fn kill(&mut self) -> ExitStatus {
        self.process.kill().unwrap();
        self.process.wait().unwrap()
    }

    fn restart(&mut self) {
        self.process = spawn((self.command)(), self.port);
    }
}

/// The variables that the host adds to its own environment. The root is the folder of `host.json`.
pub(crate) fn added_variables(port: u16, root: &Path) -> [(&'static str, String); 5] {
    let id = "5b0f7d2e-0f6c-4a55-9d0e-1d8c7d3c8c11".to_owned();
    [
        ("FUNCTIONS_CUSTOMHANDLER_PORT", port.to_string()),
        ("FUNCTIONS_HTTPWORKER_PORT", port.to_string()),
        ("FUNCTIONS_CUSTOMHANDLER_WORKER_ID", id.clone()),
        ("FUNCTIONS_HTTPWORKER_ID", id),
        ("FUNCTIONS_APP_ROOT_PATH", root.display().to_string()),
    ]
}

fn spawn(mut command: Command, port: u16) -> Child {
    let root = command.get_current_dir().unwrap_or(Path::new("/")).to_owned();
    command.envs(added_variables(port, &root)).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().unwrap()
}
