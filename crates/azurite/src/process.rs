//! Azurite's process, and the pipe whose end stops it when its starter is gone.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use url::Url;

use super::{ACCOUNT, AzuriteError, AzuriteOptions, Endpoints, io_error};

/// Bound on a cold start on a busy machine.
const START_MAX: Duration = Duration::from_secs(90);
/// Time to write its data; it saves every few seconds anyway.
const STOP_MAX: Duration = Duration::from_secs(5);
const RECENT_LINES_MAX: usize = 20;

/// Runs Azurite's main file, and ends when its standard input closes. The pipe closes when its
/// other end does, even when the starter is killed.
const WRAPPER_SCRIPT: &str = "\
process.stdin.resume();
process.stdin.on('close', () => {
  setTimeout(() => process.exit(0), 4000).unref();
  process.kill(process.pid, 'SIGTERM');
});
require(process.argv[1]);";

/// Only for tests: a number of milliseconds on standard input advances Azurite's clock, so that no
/// test waits for a message to become visible.
#[cfg(any(test, feature = "testing"))]
const CLOCK_SCRIPT: &str = "\
const System = Date;
let ahead = 0;
globalThis.Date = class extends System {
  constructor(...given) { if (given.length) super(...given); else super(System.now() + ahead); }
  static now() { return System.now() + ahead; }
};
process.stdin.on('data', span => { ahead += Number(span); console.log('clock moved'); });
";
#[cfg(not(any(test, feature = "testing")))]
const CLOCK_SCRIPT: &str = "";

#[derive(Debug)]
pub(super) struct Process {
    pub(super) endpoints: Endpoints,
    child: Child,
    /// Open for as long as Azurite runs.
    stdin: Mutex<Option<ChildStdin>>,
    /// Lines of its output; ends with the process.
    lines: Mutex<mpsc::Receiver<String>>,
    /// Its data is on disk, so that it gets time to write it.
    is_persistent: bool,
}

/// The last lines of both outputs.
type RecentOutput = Arc<Mutex<VecDeque<String>>>;

impl Process {
    pub(super) fn start(main: &Path, options: &AzuriteOptions) -> Result<Self, AzuriteError> {
        let mut child = command(main, options)?.spawn().map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                AzuriteError::NoNode("node")
            } else {
                io_error("start node")(error)
            }
        })?;
        let stdin = Mutex::new(child.stdin.take());
        let recent_output = RecentOutput::default();
        let (sender, lines) = mpsc::channel();
        let readers = [
            read_output(child.stderr.take(), &recent_output, None),
            read_output(child.stdout.take(), &recent_output, Some(sender)),
        ];
        if let Some(endpoints) = read_endpoints(&lines) {
            let lines = Mutex::new(lines);
            return Ok(Self {
                endpoints,
                child,
                stdin,
                lines,
                is_persistent: options.data.is_some(),
            });
        }
        let _ = child.kill();
        let _ = child.wait();
        for reader in readers.into_iter().flatten() {
            let _ = reader.join();
        }
        let recent_output = recent_output.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = recent_output.iter().map(String::as_str).collect();
        Err(AzuriteError::Start(lines.join("\n")))
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    #[cfg(any(test, feature = "testing"))]
    #[expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
    pub(super) fn advance(&self, span: Duration) {
        use std::io::Write as _;

        let mut stdin = self.stdin.lock().unwrap();
        // One write, since each chunk advances the clock.
        let text = format!("{}\n", span.as_millis());
        stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        let lines = self.lines.lock().unwrap();
        while lines.recv_timeout(START_MAX).unwrap() != "clock moved" {}
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stdin.get_mut().map(Option::take));
        if self.is_persistent {
            let deadline = Instant::now() + STOP_MAX;
            let lines = self.lines.get_mut().unwrap_or_else(PoisonError::into_inner);
            while lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(main: &Path, options: &AzuriteOptions) -> Result<Command, AzuriteError> {
    let main = std::path::absolute(main).map_err(io_error("find the main file"))?;
    let mut command = Command::new("node");
    command
        .args(["-e", &format!("{CLOCK_SCRIPT}{WRAPPER_SCRIPT}"), "--"])
        .arg(main)
        .args(["--disableTelemetry", "--silent"]);
    for (name, port) in [
        ("--blobPort", options.ports.blob),
        ("--queuePort", options.ports.queue),
        ("--tablePort", options.ports.table),
    ] {
        command.args([name, &port.to_string()]);
    }
    match &options.data {
        None => command.arg("--inMemoryPersistence"),
        Some(folder) => command.arg("--location").arg(folder),
    };
    if let Some(tls) = &options.tls {
        command.arg("--cert").arg(&tls.certificate).arg("--key").arg(&tls.key);
        command.args(["--oauth", "basic"]);
    }
    // This variable would replace the default account.
    command.env_remove("AZURITE_ACCOUNTS");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C in a terminal is for the starter, which still needs the queues for its own shutdown.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Ok(command)
}

/// Reads an output to its end in its own thread, so that it never blocks. Threads outlive any
/// runtime.
fn read_output(
    output: Option<impl Read + Send + 'static>,
    recent_output: &RecentOutput,
    sender: Option<mpsc::Sender<String>>,
) -> Option<JoinHandle<()>> {
    let output = output?;
    let recent_output = Arc::clone(recent_output);
    Some(std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            {
                let mut recent_output =
                    recent_output.lock().unwrap_or_else(PoisonError::into_inner);
                recent_output.push_back(line.clone());
                if recent_output.len() > RECENT_LINES_MAX {
                    recent_output.pop_front();
                }
            }
            if let Some(sender) = &sender {
                let _ = sender.send(line);
            }
        }
    }))
}

/// Reads the addresses that Azurite prints once it listens. `None` if it ends before, or takes too
/// long.
fn read_endpoints(lines: &mpsc::Receiver<String>) -> Option<Endpoints> {
    let deadline = Instant::now() + START_MAX;
    let (mut blob, mut queue) = (None, None);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).ok()?;
        let Some((service, address)) = line.split_once(" service is successfully listening at ")
        else {
            continue;
        };
        let url = Url::parse(&format!("{address}/{ACCOUNT}")).ok();
        match service {
            "Azurite Blob" => blob = url,
            "Azurite Queue" => queue = url,
            // The service that starts last.
            _ => return Some(Endpoints { blob: blob?, queue: queue? }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::install::find_or_install;
    use super::super::shared::{install_folder, print_to_stderr};
    use super::*;

    fn start_process(options: &AzuriteOptions) -> Result<Process, AzuriteError> {
        Process::start(&find_or_install(&install_folder(), &print_to_stderr)?, options)
    }

    #[test]
    fn azurite_saves_data_and_exits_with_starter() {
        let data = tempfile::tempdir().unwrap();
        let options = AzuriteOptions { data: Some(data.path().to_owned()), ..Default::default() };
        let mut process = start_process(&options).unwrap();
        // A killed starter leaves only a closed pipe.
        drop(process.stdin.get_mut().unwrap().take());
        assert!(process.child.wait().unwrap().success());
        let closed = process
            .lines
            .get_mut()
            .unwrap()
            .iter()
            .any(|line| line.contains("Queue service successfully closed"));
        assert!(closed, "Azurite did not shut down cleanly");
    }

    #[test]
    fn azurite_start_fails_when_port_is_taken() {
        let port_holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = port_holder.local_addr().unwrap().port();
        let ports = super::super::AzuritePorts { blob: port, ..Default::default() };
        let error = start_process(&AzuriteOptions { ports, ..Default::default() }).unwrap_err();
        assert!(error.to_string().contains("EADDRINUSE"), "{error}");
        assert!(error.to_string().contains(&port.to_string()), "{error}");
    }
}
