//! Second stage of the sandbox: the first process of its namespaces. It starts the command, ends
//! all of its processes at a limit, and returns the output and the changed files.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::changes::{self, FilesBefore};
use super::frame::{
    RequestHeader, ResponseHeader, SandboxCommand, SandboxResult, read_header, write_header,
};
use super::{COMMAND, Stage, THIS_PROGRAM, root, setup_error, usage};
use crate::shell::{ShellCommandEnd, ShellLimits};

/// Time between two checks of the limits.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

enum Event {
    /// The runner closed its end: it has ended, or it ends the command.
    RunnerGone,
    OutputLimit,
}

/// The last bytes of the output.
#[derive(Default)]
struct Output {
    kept: VecDeque<u8>,
    dropped: u64,
}

pub(super) fn run() -> ExitCode {
    let result = run_request();
    let mut to = io::stdout().lock();
    let written = match result {
        Ok(Some(finished)) => finished.write(&mut to),
        Ok(None) => return ExitCode::FAILURE,
        Err(text) => write_header(&mut to, &ResponseHeader::Unavailable(text)),
    };
    match written.and_then(|()| to.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns `None` if the runner no longer waits.
fn run_request() -> Result<Option<Finished>, String> {
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| setup_error("follow its parent", &error))?;
    let mut input = io::stdin();
    let header: RequestHeader =
        read_header(&mut input).map_err(|error| setup_error("read the request", &error))?;
    root::enter(&header.limits)?;
    let before = changes::unpack(&header, &mut input)
        .map_err(|error| setup_error("write the workspace", &error))?;
    let (events, received) = mpsc::channel();
    watch_runner(events.clone());
    let request =
        SandboxCommand { command: header.command, folder: header.folder, limits: header.limits };
    let (pid, reader) =
        start(&request, events).map_err(|error| setup_error("start the command", &error))?;
    let end = wait_for_end(pid, &received, &request.limits);
    end_all();
    let output = reader.join().unwrap_or_default();
    Ok(end.map(|end| Finished { end, output, before, limits: request.limits }))
}

fn watch_runner(events: Sender<Event>) {
    thread::spawn(move || {
        // Nothing follows a request.
        let _ = io::stdin().read(&mut [0]);
        let _ = events.send(Event::RunnerGone);
    });
}

fn start(request: &SandboxCommand, events: Sender<Event>) -> io::Result<(Pid, JoinHandle<Output>)> {
    let (from, to) = io::pipe()?;
    let mut child = Command::new(THIS_PROGRAM)
        .args([COMMAND, Stage::Command.name()])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(to.try_clone()?)
        .stderr(to)
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        write_header(&mut input, request)?;
    }
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let limits = request.limits.clone();
    Ok((Pid::from_raw(pid), thread::spawn(move || read_output(from, &limits, &events))))
}

/// Reads until no process has the output open. A read error counts as the end.
fn read_output(mut from: PipeReader, limits: &ShellLimits, events: &Sender<Event>) -> Output {
    let mut output = Output::default();
    let mut buffer = vec![0; 64 * 1024];
    let mut total: u64 = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        total = total.saturating_add(count as u64);
        output.kept.extend(buffer.iter().take(count));
        let excess = (output.kept.len() as u64).saturating_sub(limits.output_bytes);
        let excess = usize::try_from(excess).unwrap_or(usize::MAX).min(output.kept.len());
        output.kept.drain(..excess);
        output.dropped = output.dropped.saturating_add(excess as u64);
        if total > limits.flood_bytes {
            let _ = events.send(Event::OutputLimit);
        }
    }
    output
}

/// Waits until the command ends or reaches a limit. Returns `None` if the runner no longer waits.
fn wait_for_end(
    pid: Pid,
    events: &Receiver<Event>,
    limits: &ShellLimits,
) -> Option<ShellCommandEnd> {
    let until = Instant::now() + limits.time;
    loop {
        match events.recv_timeout(CHECK_INTERVAL) {
            Ok(Event::OutputLimit) => return Some(ShellCommandEnd::OutputLimit),
            Ok(Event::RunnerGone) | Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(code) = reap(pid) {
            return Some(ShellCommandEnd::Exited(code));
        }
        if Instant::now() >= until {
            return Some(ShellCommandEnd::TimeLimit);
        }
        // Usage that cannot be read is not within the limit.
        if usage::used_bytes().map_or(true, |used| used > limits.memory_bytes) {
            return Some(ShellCommandEnd::MemoryLimit);
        }
    }
}

/// Reaps ended processes, and returns the exit code of `command` if it is among them.
fn reap(command: Pid) -> Option<i32> {
    loop {
        let code = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => Some(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => Some(128 + signal as i32),
            Ok(WaitStatus::StillAlive) | Err(_) => return None,
            Ok(_) => None,
        };
        if code.is_some() {
            return code;
        }
    }
}

/// Ends every other process of the namespace, and waits until they have ended.
fn end_all() {
    while kill(Pid::from_raw(-1), Signal::SIGKILL) != Err(Errno::ESRCH) {
        if waitpid(None, None) == Err(Errno::ECHILD) {
            return;
        }
    }
}

struct Finished {
    end: ShellCommandEnd,
    output: Output,
    before: FilesBefore,
    limits: ShellLimits,
}

impl Finished {
    fn write(self, to: &mut impl Write) -> io::Result<()> {
        let (changes, contents) = match changes::collect(&self.before, &self.limits) {
            Ok((header, contents)) => (Ok(header), contents),
            Err(text) => (Err(text), Vec::new()),
        };
        let Output { mut kept, dropped } = self.output;
        let output = kept.make_contiguous();
        let finished = SandboxResult {
            end: self.end,
            output_bytes: output.len() as u64,
            dropped_bytes: dropped,
            changes,
        };
        write_header(to, &ResponseHeader::Finished(finished))?;
        to.write_all(output)?;
        contents.iter().try_for_each(|bytes| to.write_all(bytes))
    }
}
