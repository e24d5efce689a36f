//! The built binary as a separate process: started as by a user, killed as by a power failure.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The output of a process so far.
pub(crate) type ProcessLog = Arc<Mutex<String>>;

/// `turnwheel dev` on a free port. Killed when dropped.
pub(crate) struct DevProcess {
    child: Child,
    address: String,
    log: ProcessLog,
    /// Threads that read the output until the process has closed it.
    readers: [JoinHandle<()>; 2],
}

impl DevProcess {
    pub(crate) fn start(data: &Path, settings: &[(&str, String)]) -> Self {
        Self::start_in(Path::new(env!("CARGO_MANIFEST_DIR")), data, settings)
    }

    /// Like [`Self::start`], in another folder.
    pub(crate) fn start_in(folder: &Path, data: &Path, settings: &[(&str, String)]) -> Self {
        Self::start_with(folder, data, &[], settings)
    }

    /// Like [`Self::start_in`], with additional arguments.
    pub(crate) fn start_with(
        folder: &Path,
        data: &Path,
        arguments: &[&str],
        settings: &[(&str, String)],
    ) -> Self {
        Self::try_start_with(folder, data, arguments, settings)
            .unwrap_or_else(|log| panic!("{log}"))
    }

    /// Like [`Self::start_with`], but returns the output if the process does not start, because its
    /// services may be down for a moment.
    pub(crate) fn try_start_with(
        folder: &Path,
        data: &Path,
        arguments: &[&str],
        settings: &[(&str, String)],
    ) -> Result<Self, String> {
        let program = Path::new(env!("CARGO_BIN_EXE_turnwheel"));
        Self::try_start_program(program, (folder, data), arguments, settings)
    }

    /// Starts an example of this package with its own agents, in its own folder.
    pub(crate) fn start_example(name: &str, data: &Path, settings: &[(&str, String)]) -> Self {
        let built = Path::new(env!("CARGO_BIN_EXE_turnwheel")).with_file_name("examples");
        let program = built.join(name);
        assert!(program.exists(), "build the example first: `cargo build --example {name}`");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
        Self::try_start_program(&program, (&folder, data), &[], settings)
            .unwrap_or_else(|log| panic!("{log}"))
    }

    /// Starts an installed program.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub(crate) fn start_installed(program: &Path, folder: &Path, data: &Path) -> Self {
        Self::try_start_program(program, (folder, data), &[], &[])
            .unwrap_or_else(|log| panic!("{log}"))
    }

    /// Like [`Self::try_start_with`], with another program.
    pub(crate) fn try_start_program(
        program: &Path,
        (folder, data): (&Path, &Path),
        arguments: &[&str],
        settings: &[(&str, String)],
    ) -> Result<Self, String> {
        // A kill must end the service at once, and no other process may start it again.
        let arguments = [&["--no-supervisor"], arguments].concat();
        Self::try_start_command(program, (folder, data), &arguments, settings)
    }

    /// As a user starts it: a supervisor replaces a killed process.
    pub(crate) fn start_supervised(data: &Path, settings: &[(&str, String)]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_turnwheel"));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self::try_start_command(program, (folder, data), &[], settings)
            .unwrap_or_else(|log| panic!("{log}"))
    }

    /// Like [`Self::start_supervised`], with another program in another folder.
    pub(crate) fn start_supervised_program(program: &Path, folder: &Path, data: &Path) -> Self {
        Self::try_start_command(program, (folder, data), &[], &[])
            .unwrap_or_else(|log| panic!("{log}"))
    }

    fn try_start_command(
        program: &Path,
        (folder, data): (&Path, &Path),
        arguments: &[&str],
        settings: &[(&str, String)],
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        command
            .args(["dev", "--port", "0", "--data"])
            .arg(data)
            .args(arguments)
            .current_dir(folder)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", std::env::var_os("HOME").unwrap_or_default())
            .env("TURNWHEEL_MODEL", "scripted")
            .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary must start");
        let log = Arc::new(Mutex::new(String::new()));
        let mut errors = child.stderr.take().unwrap();
        let error_log = Arc::clone(&log);
        let error_reader = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            error_log.lock().unwrap().push_str(&text);
        });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, receiver) = std::sync::mpsc::channel();
        let line_log = Arc::clone(&log);
        let line_reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("Turnwheel is at http://") {
                    let _ = sender.send(address.trim().to_owned());
                }
                let mut log = line_log.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let Ok(address) = receiver.recv_timeout(TIMEOUT) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("turnwheel dev did not start: {}", log.lock().unwrap()));
        };
        Ok(Self { child, address, log, readers: [error_reader, line_reader] })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The output so far, for messages of failed assertions only: a line may arrive after the
    /// response that it precedes in the process.
    pub(crate) fn log(&self) -> impl Display + use<> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the output has all texts. Returns it.
    pub(crate) async fn wait_for_log(&self, texts: &[&str]) -> String {
        self.wait_until_log(|log| texts.iter().all(|text| log.contains(text))).await
    }

    /// Waits until the output satisfies the condition. Returns it.
    pub(crate) async fn wait_until_log(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let log = self.log.lock().unwrap().clone();
            if is_wanted(&log) {
                return log;
            }
            assert!(Instant::now() < deadline, "the output lacks a text: {log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the process, if it has not ended. Returns its whole output.
    pub(crate) fn whole_log(&mut self) -> String {
        self.kill();
        let deadline = Instant::now() + TIMEOUT;
        while !self.readers.iter().all(JoinHandle::is_finished) {
            assert!(Instant::now() < deadline, "another process keeps the output open");
            std::thread::yield_now();
        }
        self.log.lock().unwrap().clone()
    }

    /// The output, readable after the process has ended.
    pub(crate) fn shared_log(&self) -> ProcessLog {
        Arc::clone(&self.log)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Sends SIGKILL: the process cannot clean up.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Interrupts the process as Ctrl-C does; returns the exit status if it ends within the time.
    pub(crate) fn interrupt(&mut self, within: Duration) -> Option<std::process::ExitStatus> {
        let _ = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        self.wait(within)
    }

    /// Waits for the exit status; `None` if the process does not end within the time.
    pub(crate) fn wait(&mut self, within: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Drop for DevProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
