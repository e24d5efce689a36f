//! The packaged program with a Functions host, as `func start` runs it: the host's queues, the
//! sample settings, no Cosmos DB.

mod host_overrides;
mod local_page;
mod outages;
#[cfg(unix)]
mod recovery;
#[cfg(unix)]
mod stops;
mod waiting_clients;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use turnwheel::testing::app::find_free_port;
use turnwheel::testing::azure::storage::TransportSettings;
use turnwheel::testing::queue::{Queue as _, StorageQueue, TURNS};

use crate::support::azure::storage_settings;
use crate::support::azurite::shared_azurite;
use crate::support::openapi_check::{self, SendValidated as _};
use turnwheel_test_support::time_bound::check_time;

const TIMEOUT: Duration = Duration::from_mins(2);
/// Time in which a handler without its host ends, whatever it does.
#[cfg(unix)]
const END_MAX: Duration = Duration::from_secs(5);

/// Killed when dropped, as the host kills it.
struct Handler {
    process: Child,
    base: String,
    client: reqwest::Client,
    queue: StorageQueue,
    folder: Arc<tempfile::TempDir>,
    settings: BTreeMap<String, String>,
}

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Handler {
    /// Packages the program and starts it with the sample settings and these.
    async fn start(model: &[(&str, &str)]) -> Self {
        Self::start_as(model, |program| Command::new(program)).await
    }

    async fn start_as(model: &[(&str, &str)], command: impl FnOnce(&Path) -> Command) -> Self {
        let handler = Self::spawn(model, command).await;
        handler.wait_until_it_responds().await;
        handler
    }

    async fn wait_until_it_responds(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.client.get(&self.base).send_validated().await.is_err() {
            assert!(Instant::now() < deadline, "the handler does not respond");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    /// Starts the program, which does not listen yet.
    async fn spawn(model: &[(&str, &str)], command: impl FnOnce(&Path) -> Command) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        package_into(&folder.path().join("dist"));
        Self::spawn_in(folder, model, command).await
    }

    /// Starts the program of a package.
    async fn spawn_in(
        folder: Arc<tempfile::TempDir>,
        model: &[(&str, &str)],
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        let dist = folder.path().join("dist");
        let emulator = shared_azurite().await;
        let [(_, storage)] = storage_settings(emulator).try_into().unwrap();
        let port = find_free_port().unwrap();
        let mut settings = settings(&dist, &storage, port);
        settings.extend(model.iter().map(|(name, it)| ((*name).to_owned(), (*it).to_owned())));
        let process = run(command(&dist.join("turnwheel")), &dist, &settings);
        let queue =
            StorageQueue::connect(&emulator.account(), None, "", &TransportSettings::default());
        Self {
            process,
            base: format!("http://127.0.0.1:{port}"),
            client: reqwest::Client::new(),
            queue: queue.unwrap(),
            folder,
            settings,
        }
    }

    /// Kills the handler and starts another one at once, as the host does.
    fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let dist = self.folder.path().join("dist");
        self.process = run(Command::new(dist.join("turnwheel")), &dist, &self.settings);
    }

    /// Kills the processes of the host and its handler at once. Another host starts a handler on the
    /// same machine, at a port of its own choice.
    #[cfg(unix)]
    fn kill_host_and_restart(&mut self) {
        let group = format!("-{}", self.process.id());
        assert!(Command::new("kill").args(["-KILL", "--", &group]).status().unwrap().success());
        self.process.wait().unwrap();
        let port = find_free_port().unwrap();
        self.base = format!("http://127.0.0.1:{port}");
        self.settings.insert("FUNCTIONS_CUSTOMHANDLER_PORT".to_owned(), port.to_string());
        let dist = self.folder.path().join("dist");
        self.process = run(host_process(&dist.join("turnwheel")), &dist, &self.settings);
    }

    async fn wait_for_end(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the handler does not end");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Accepts a prompt. Returns the path of its resource.
    async fn prompt(&self, conversation: &str) -> String {
        let prompt =
            json!({"agent": "assistant", "conversationId": conversation, "input": "Hello"});
        let url = format!("{}/api/prompts", self.base);
        let accepted = self.client.post(url).json(&prompt).send_validated().await.unwrap();
        assert_eq!(accepted.status(), 202);
        let accepted: Value = accepted.json().await.unwrap();
        let id = accepted["promptId"].as_str().unwrap();
        format!("{}/api/conversations/{conversation}/prompts/{id}", self.base)
    }

    /// Nudges of the conversation that the handler has sent to the queue. The test acts as the host.
    /// Those of other tests are visible again after a second.
    async fn receive_nudges(&self, conversation: &str) -> Vec<String> {
        let mut nudges = Vec::new();
        for message in self.queue.receive(TURNS, 32, Duration::from_secs(1)).await.unwrap() {
            if message.text.contains(&format!("\"{conversation}\"")) {
                // Two receivers of one message are harmless.
                let _ = self.queue.delete(TURNS, &message.id, &message.pop_receipt).await;
                nudges.push(message.text);
            }
        }
        nudges
    }

    /// Delivers a nudge. Returns those of the response.
    async fn deliver(&self, nudge: &str) -> reqwest::Result<Vec<String>> {
        let url = format!("{}/turn", self.base);
        let answer = self.client.post(url).json(&envelope(nudge)).send_validated().await?;
        assert_eq!(answer.status(), 200);
        let answer: Value = answer.json().await?;
        let outputs = answer["Outputs"]["nudges"].as_array().cloned().unwrap_or_default();
        Ok(outputs.iter().map(|nudge| nudge.as_str().unwrap().to_owned()).collect())
    }
}

/// A process that starts the program, as the host does, and lives on. Both are in a process group of
/// their own. The file `handler.pid` has the program's process id.
#[cfg(unix)]
fn host_process(program: &Path) -> Command {
    use std::os::unix::process::CommandExt as _;
    let mut shell = Command::new("/bin/sh");
    let script = format!("'{}' & echo $! > handler.pid; exec sleep 600", program.display());
    shell.args(["-c", &script]).process_group(0);
    shell
}

/// The invocation that delivers a nudge.
fn envelope(nudge: &str) -> Value {
    json!({"Data": {"message": json!(nudge).to_string()}, "Metadata": {}})
}

fn run(mut command: Command, dist: &Path, settings: &BTreeMap<String, String>) -> Child {
    command
        .current_dir(dist)
        .env_clear()
        .envs(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The packaged program with the sample settings and these, for a host that chooses the port.
#[cfg(unix)]
pub(crate) struct PackagedProgram {
    folder: tempfile::TempDir,
    settings: BTreeMap<String, String>,
}

#[cfg(unix)]
impl PackagedProgram {
    pub(crate) async fn new(added: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        package_into(&folder.path().join("dist"));
        let [(_, storage)] = storage_settings(shared_azurite().await).try_into().unwrap();
        let mut settings = settings(&folder.path().join("dist"), &storage, 0);
        settings
            .extend(added.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Self { folder, settings }
    }

    pub(crate) fn command(&self) -> impl Fn() -> Command + Send + use<> {
        let (dist, settings) = (self.folder.path().join("dist"), self.settings.clone());
        move || {
            let mut command = Command::new(dist.join("turnwheel"));
            command.current_dir(&dist).env_clear().envs(&settings);
            command
        }
    }
}

fn package_into(folder: &Path) {
    let program = env!("CARGO_BIN_EXE_turnwheel");
    let staged = Command::new(program)
        .args(["package", "--binary", program, "--out"])
        .arg(folder)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(staged.status.success(), "{}", String::from_utf8_lossy(&staged.stderr));
}

/// The sample settings, and those that `func` and the user add.
fn settings(folder: &Path, storage: &str, port: u16) -> BTreeMap<String, String> {
    let sample = std::fs::read_to_string(folder.join("local.settings.sample.json")).unwrap();
    let sample: Value = serde_json::from_str(&sample).unwrap();
    let values = sample["Values"].as_object().unwrap().iter();
    let mut settings: BTreeMap<String, String> =
        values.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    let added = [
        ("AzureWebJobsStorage", storage),
        ("TURNWHEEL_SIGNING_KEYS", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        ("WEBSITE_HOSTNAME", "localhost:7071"),
        ("FUNCTIONS_CUSTOMHANDLER_PORT", &port.to_string()),
    ];
    settings.extend(added.map(|(name, value)| (name.to_owned(), value.to_owned())));
    settings
}

#[tokio::test]
async fn packaged_handler_completes_prompt_with_functions_host() {
    let handler = Handler::start(&[("TURNWHEEL_MODEL", "scripted")]).await;
    let path = handler.prompt("hosted").await;
    deliver_until_completed(&handler, "hosted", &path).await;
}

/// Delivers the nudges of the queue until the prompt has completed.
async fn deliver_until_completed(handler: &Handler, conversation: &str, path: &str) {
    let deadline = Instant::now() + TIMEOUT;
    let mut nudges = Vec::new();
    loop {
        let view = handler.client.get(path).send_validated().await.unwrap();
        let view: Value = view.json().await.unwrap();
        if view["state"] == "completed" {
            break;
        }
        assert!(Instant::now() < deadline, "the prompt does not end: {view}");
        nudges.extend(handler.receive_nudges(conversation).await);
        for nudge in std::mem::take(&mut nudges) {
            nudges.extend(handler.deliver(&nudge).await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Settings of a model that accepts connections and never responds.
pub(crate) fn silent_model() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/openai/v1", listener.local_addr().unwrap());
    (listener, url)
}

/// Starts a handler whose turn waits for the model. Returns the delivery of its nudge.
async fn start_waiting_turn(
    conversation: &str,
    command: impl FnOnce(&Path) -> Command,
    url: &str,
) -> (Arc<Handler>, String, JoinHandle<reqwest::Result<Vec<String>>>) {
    let model = [
        ("TURNWHEEL_MODEL", "gpt-5.1"),
        ("AZURE_OPENAI_BASE_URL", url),
        ("AZURE_OPENAI_API_KEY", "k"),
    ];
    let handler = Arc::new(Handler::start_as(&model, command).await);
    let path = handler.prompt(conversation).await;
    let nudge = wait_for_nudge(&handler, conversation).await;
    let (delivering, delivered) = (Arc::clone(&handler), nudge.clone());
    #[expect(clippy::disallowed_methods, reason = "the test awaits the task")]
    let delivery = tokio::task::spawn(async move { delivering.deliver(&delivered).await });
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let why = format!("{}/api/conversations/{conversation}/why", handler.base);
        let why = handler.client.get(why).send_validated().await.unwrap().text().await.unwrap();
        if why.contains("calling the model") {
            return (handler, path, delivery);
        }
        assert!(Instant::now() < deadline, "the turn does not begin: {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn wait_for_nudge(handler: &Handler, conversation: &str) -> String {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(nudge) = handler.receive_nudges(conversation).await.pop() {
            return nudge;
        }
        assert!(Instant::now() < deadline, "no nudge arrives");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(unix)]
pub(crate) fn send_signal(process: u32, signal: &str) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

#[cfg(unix)]
#[tokio::test]
async fn signal_gives_work_back_and_keeps_the_port_open() {
    let (_model, url) = silent_model();
    let (handler, path, delivery) =
        start_waiting_turn("signalled", |program| Command::new(program), &url).await;
    let events = format!("{}/api/conversations/signalled/events", handler.base);
    let mut events = handler.client.get(events).send().await.unwrap();
    let mut stream = String::new();
    while !stream.contains("agent_start") {
        let chunk = events.chunk().await.unwrap().expect("the stream has all events");
        stream.push_str(str::from_utf8(&chunk).unwrap());
    }
    let waiting = handler.client.get(format!("{path}?wait=60"));
    #[expect(clippy::disallowed_methods, reason = "the test awaits the task")]
    let waiting =
        tokio::task::spawn(async move { waiting.send_validated().await.unwrap().status() });
    tokio::time::sleep(Duration::from_millis(200)).await;

    send_signal(handler.process.id(), "-TERM");
    stream.push_str(&events.text().await.expect("the stream ends cleanly"));
    openapi_check::check_events(&stream);
    assert_eq!(waiting.await.unwrap(), 200, "the state so far");
    let nudges = delivery.await.unwrap().expect("the invocation gets its response");
    assert_eq!(nudges.len(), 1, "another worker is woken");
    // Messages that still arrive are put back, and prompts are accepted.
    assert_eq!(handler.deliver(&nudges[0]).await.unwrap(), [""; 0]);
    handler.prompt("late").await;

    let mut handler = Arc::into_inner(handler).unwrap();
    assert_eq!(handler.wait_for_end().await.code(), Some(200));
    wait_for_nudge(&handler, "signalled").await;
}

#[cfg(unix)]
#[tokio::test]
async fn second_signal_ends_the_handler_at_once() {
    // A collector that does not respond delays nothing.
    let (_collector, endpoint) = silent_model();
    let settings =
        [("TURNWHEEL_MODEL", "scripted"), ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let mut handler = Handler::start(&settings).await;
    handler.prompt("second-signal").await;
    send_signal(handler.process.id(), "-INT");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(handler.process.try_wait().unwrap().is_none(), "the host ends it");
    let second = Instant::now();
    // Signals that arrive before the first is handled count as one.
    let ended = loop {
        if let Some(status) = handler.process.try_wait().unwrap() {
            break status;
        }
        send_signal(handler.process.id(), "-INT");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(ended.code(), Some(200));
    // It does not wait for the host.
    check_time("end after the second signal", second.elapsed(), Duration::from_secs(2));
}

#[cfg(unix)]
#[tokio::test]
async fn handler_without_its_host_gives_work_back_and_ends() {
    let (_model, url) = silent_model();
    let (handler, _, delivery) = start_waiting_turn("orphan", host_process, &url).await;
    let pid = handler.folder.path().join("dist/handler.pid");
    let pid: u32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    delivery.abort();
    let _ = delivery.await;
    let killed = Instant::now();
    send_signal(handler.process.id(), "-KILL");
    let deadline = Instant::now() + TIMEOUT;
    while Command::new("kill")
        .args(["-0", &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
    {
        assert!(Instant::now() < deadline, "the handler lives on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let time = killed.elapsed();
    check_time("end after the host", time, END_MAX);
    let mut handler = Arc::into_inner(handler).unwrap();
    if time > END_MAX {
        // On a busy machine the time was over before the turn was given back: the next handler does it.
        handler.kill_and_restart();
    }
    // Its connection was closed, so the handler sends the nudge itself.
    wait_for_nudge(&handler, "orphan").await;
}
