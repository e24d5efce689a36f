//! Time from `kill -9` of the handler, or of host and handler together, during a model call to the next
//! call of the model. Leases are in the database, as in Azure. The killed delivery never returns, as
//! after the end of the host: the next handler on the same machine sends the wake-up message. So the
//! rows of a third kill also stand for a host that this kill has ended.
//!
//! `TURNWHEEL_RECOVERY` sets the number of kills per row (default: 1).

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::outages::start_database;
use super::{Handler, TIMEOUT};
use crate::support::openapi_check::SendValidated as _;
use turnwheel_test_support::time_bound::check_time;

/// A lease ends after 60 s.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
const POLLING_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a model that never responds, and adds its settings. Returns the number of its calls.
async fn start_silent_model(
    tasks: &mut JoinSet<()>,
    settings: &mut Vec<(&'static str, String)>,
) -> Arc<AtomicUsize> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/openai/v1", listener.local_addr().unwrap());
    settings.extend([
        ("TURNWHEEL_MODEL", "gpt-5.1".to_owned()),
        ("AZURE_OPENAI_BASE_URL", url),
        ("AZURE_OPENAI_API_KEY", "k".to_owned()),
    ]);
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    tasks.spawn(async move {
        let mut connections = Vec::new();
        loop {
            connections.push(listener.accept().await.unwrap());
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    calls
}

/// Delivers wake-up messages as the host does, until the model has been called.
async fn deliver_until_called(
    handler: &Handler,
    conversation: &str,
    calls: &AtomicUsize,
    deliveries: &mut JoinSet<()>,
) {
    let before = calls.load(Ordering::Relaxed);
    let deadline = Instant::now() + 2 * TIMEOUT;
    while calls.load(Ordering::Relaxed) == before {
        assert!(Instant::now() < deadline, "the model is not called");
        for nudge in handler.receive_nudges(conversation).await {
            let (client, url) = (handler.client.clone(), format!("{}/turn", handler.base));
            deliveries.spawn(async move {
                // A killed handler closes the connection.
                let _ = client.post(url).json(&super::envelope(&nudge)).send_validated().await;
            });
        }
        tokio::time::sleep(POLLING_INTERVAL).await;
    }
}

/// A row of the table in `docs/operating.md`, "Recovery times".
struct Row {
    name: &'static str,
    /// Kills of the handler before the one that is measured.
    earlier_kills: usize,
    /// True if the instance of another machine receives the wake-up message.
    is_received_elsewhere: bool,
    /// True if the host is killed together with its handler.
    kills_host: bool,
}

const fn row(name: &'static str, earlier_kills: usize) -> Row {
    Row { name, earlier_kills, is_received_elsewhere: false, kills_host: false }
}

const ROWS: [Row; 6] = [
    row("one instance", 0),
    Row { is_received_elsewhere: true, ..row("another instance continues", 0) },
    row("third kill, after two of an idle handler", 2),
    Row {
        is_received_elsewhere: true,
        ..row("third kill, after two of an idle handler; another instance continues", 2)
    },
    Row { kills_host: true, ..row("host and handler", 0) },
    Row {
        kills_host: true,
        is_received_elsewhere: true,
        ..row("host and handler; another instance continues", 0)
    },
];

impl Row {
    /// Starts a handler, below a host of its own if that is to be killed.
    async fn start_handler(&self, settings: &[(&str, &str)]) -> Handler {
        if self.kills_host {
            Handler::start_as(settings, super::host_process).await
        } else {
            Handler::start_as(settings, |program| Command::new(program)).await
        }
    }

    fn kill_and_restart(&self, handler: &mut Handler) {
        if self.kills_host {
            handler.kill_host_and_restart();
        } else {
            handler.kill_and_restart();
        }
    }
}

/// Times from the kill, and from the readiness of the next handler.
#[derive(Default)]
struct RecoveryTimes {
    from_kill: Vec<Duration>,
    from_ready: Vec<Duration>,
}

impl RecoveryTimes {
    /// Shows the times (with `--nocapture`), and checks the longest.
    /// Returns the median and the longest time after the next handler is ready.
    #[expect(clippy::print_stderr, reason = "the output of a run has the times")]
    fn report(mut self, row: &str) -> (Duration, Duration) {
        let kills = self.from_kill.len();
        let [(median, longest), (median_ready, longest_ready)] =
            [&mut self.from_kill, &mut self.from_ready].map(|times| {
                times.sort();
                (times[kills / 2], times[kills - 1])
            });
        let line = format!(
            "recovery, {row}, {kills} kills: median {median:.1?}, longest {longest:.1?}; after the next handler is ready: \
             median {median_ready:.1?}, longest {longest_ready:.1?}"
        );
        eprintln!("{line}");
        assert!(longest < RECOVERY_MAX, "{line}");
        (median_ready, longest_ready)
    }
}

impl Handler {
    async fn abort(&self, conversation: &str) {
        let url = format!("{}/api/conversations/{conversation}/abort", self.base);
        let aborted = self.client.post(url).json(&serde_json::json!({})).send_validated().await;
        assert!(aborted.unwrap().status().is_success());
    }
}

/// Waits until the handler serves.
async fn wait_until_ready(base: String) -> Instant {
    let client = reqwest::Client::new();
    while client.get(&base).send_validated().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Instant::now()
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the variable selects a stage")]
async fn next_handler_continues_turns_of_a_killed_one() {
    let kills: usize =
        std::env::var("TURNWHEEL_RECOVERY").map_or(1, |kills| kills.parse().unwrap());
    let (_database, mut settings) = start_database();
    let mut tasks = JoinSet::new();
    let calls = start_silent_model(&mut tasks, &mut settings).await;
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    // The instance of another machine, which may receive the wake-up message.
    let other = Handler::start_as(&settings, |program| Command::new(program)).await;
    for row in ROWS {
        let mut times = RecoveryTimes::default();
        for number in 0..kills {
            let mut handler = row.start_handler(&settings).await;
            for _ in 0..row.earlier_kills {
                row.kill_and_restart(&mut handler);
                wait_until_ready(handler.base.clone()).await;
            }
            let conversation =
                format!("recovery-{}-{number}", row.name.replace([' ', ',', ';'], ""));
            handler.prompt(&conversation).await;
            deliver_until_called(&handler, &conversation, &calls, &mut tasks).await;
            let killed = Instant::now();
            row.kill_and_restart(&mut handler);
            let ready = wait_until_ready(handler.base.clone());
            let receiver = if row.is_received_elsewhere { &other } else { &handler };
            let called = async {
                deliver_until_called(receiver, &conversation, &calls, &mut tasks).await;
                Instant::now()
            };
            let (ready, called) = tokio::join!(ready, called);
            times.from_kill.push(called.duration_since(killed));
            times.from_ready.push(called.saturating_duration_since(ready));
            // Its model call would be repeated after a time-out, during a later measurement.
            receiver.abort(&conversation).await;
        }
        let (median, longest) = times.report(row.name);
        check_time("median of the recovery", median, Duration::from_secs(2));
        check_time("longest recovery", longest, Duration::from_secs(5));
    }
}

/// The process whose parent is this one.
#[cfg(target_os = "linux")]
fn find_child(parent: u32) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|id: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{parent}"))
    })
}

#[cfg(target_os = "linux")]
async fn read_why(handler: &Handler, conversation: &str) -> serde_json::Value {
    let url = format!("{}/api/conversations/{conversation}/why", handler.base);
    handler.client.get(url).send_validated().await.unwrap().json().await.unwrap()
}

/// Kills the handler twice during a step, which is suspect then.
#[cfg(target_os = "linux")]
async fn make_step_suspect(
    handler: &mut Handler,
    conversation: &str,
    calls: &AtomicUsize,
    deliveries: &mut JoinSet<()>,
) {
    handler.prompt(conversation).await;
    for _ in 0..2 {
        deliver_until_called(handler, conversation, calls, deliveries).await;
        assert_eq!(find_child(handler.process.id()), None);
        handler.kill_and_restart();
        wait_until_ready(handler.base.clone()).await;
    }
}

/// A child that runs a suspect step ends with its handler. The next handler takes the step over,
/// whose attempts keep their delays.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn suspect_step_of_a_killed_handler_is_taken_over() {
    let (_database, mut settings) = start_database();
    let mut tasks = JoinSet::new();
    let calls = start_silent_model(&mut tasks, &mut settings).await;
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    let mut handler = Handler::start_as(&settings, |program| Command::new(program)).await;
    make_step_suspect(&mut handler, "suspect", &calls, &mut tasks).await;
    deliver_until_called(&handler, "suspect", &calls, &mut tasks).await;
    let child = find_child(handler.process.id()).expect("a child runs the suspect step");

    handler.kill_and_restart();
    wait_until_ready(handler.base.clone()).await;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let why = read_why(&handler, "suspect").await;
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        // The state of an ended process that its new parent has not waited for is `Z`.
        let has_child = !status.is_empty() && !status.contains("State:\tZ");
        if why["waitsFor"] == "back_off" && !has_child {
            let due = why["due"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
            let since = why["since"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
            // The second delay of decision 0083, with a random part.
            let delay = due.duration_since(since).as_secs_f64();
            assert!((20.0..45.0).contains(&delay), "{why}");
            break;
        }
        assert!(Instant::now() < deadline, "child: {has_child}; {why}");
        tokio::time::sleep(POLLING_INTERVAL).await;
    }
}

/// Delivers wake-up messages until one has called the model and its invocation has ended. Returns the
/// wake-up messages of the last response.
#[cfg(target_os = "linux")]
async fn deliver_until_given_back(
    handler: &Handler,
    conversation: &str,
    calls: &AtomicUsize,
) -> Vec<String> {
    let before = calls.load(Ordering::Relaxed);
    loop {
        for nudge in handler.receive_nudges(conversation).await {
            let nudges = handler.deliver(&nudge).await.expect("the invocation gets its response");
            if calls.load(Ordering::Relaxed) > before {
                return nudges;
            }
        }
        tokio::time::sleep(POLLING_INTERVAL).await;
    }
}

/// Never completes.
#[cfg(target_os = "linux")]
async fn check_that_no_third_death_is_counted(handler: &Handler, conversation: &str) {
    loop {
        let why = read_why(handler, conversation).await;
        let is_counted =
            why["waitsFor"] == "back_off" && !why["why"].to_string().contains("died twice");
        assert!(!is_counted, "{why}");
        tokio::time::sleep(POLLING_INTERVAL).await;
    }
}

/// The child of a suspect step gives it back through its handler, which stays until the host ends
/// it. A handler that has ended sends no response.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn suspect_step_of_a_stopped_handler_is_given_back() {
    use turnwheel::testing::queue::Queue as _;

    const ID: &str = "suspect-stopped";
    let (_database, mut settings) = start_database();
    let mut tasks = JoinSet::new();
    let calls = start_silent_model(&mut tasks, &mut settings).await;
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    let mut handler = Handler::start_as(&settings, |program| Command::new(program)).await;
    make_step_suspect(&mut handler, ID, &calls, &mut tasks).await;

    let before = calls.load(Ordering::Relaxed);
    let signal = async {
        let deadline = Instant::now() + 2 * TIMEOUT;
        while calls.load(Ordering::Relaxed) == before {
            assert!(Instant::now() < deadline, "the model is not called");
            tokio::time::sleep(POLLING_INTERVAL).await;
        }
        find_child(handler.process.id()).expect("a child runs the suspect step");
        super::send_signal(handler.process.id(), "-TERM");
    };
    let (nudges, ()) = tokio::join!(deliver_until_given_back(&handler, ID, &calls), signal);
    assert_eq!(nudges.len(), 1, "another worker is woken");
    assert_eq!(handler.wait_for_end().await.code(), Some(200));

    handler.kill_and_restart();
    wait_until_ready(handler.base.clone()).await;
    for nudge in nudges {
        handler.queue.send(super::TURNS, nudge, Duration::ZERO).await.unwrap();
    }
    tokio::select! {
        () = check_that_no_third_death_is_counted(&handler, ID) => {}
        () = deliver_until_called(&handler, ID, &calls, &mut tasks) => {}
    }
}
