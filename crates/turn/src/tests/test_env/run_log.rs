//! Log of a simulated run, one event a line: time, worker, fail point and event.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use turnwheel_platform::ids::fault_plan::InjectedFault;

tokio::task_local! {
    /// Position of the current worker.
    pub(super) static POSITION: WorkerPosition;
}

/// A worker, and the last fail point that it hit.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerPosition(Arc<Mutex<(String, &'static str)>>);

impl WorkerPosition {
    pub(super) fn set_worker(&self, worker: &str) {
        worker.clone_into(&mut self.0.lock().unwrap().0);
    }

    pub(super) fn set_fail_point(&self, fail_point: &'static str) {
        self.0.lock().unwrap().1 = fail_point;
    }
}

impl fmt::Display for WorkerPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (worker, fail_point) = &*self.0.lock().unwrap();
        match *fail_point {
            "" => f.write_str(worker),
            fail_point => write!(f, "{worker} after {fail_point}"),
        }
    }
}

#[derive(Clone)]
pub(crate) struct RunLog {
    started_at: Instant,
    lines: Arc<Mutex<Vec<(bool, String)>>>,
}

impl Default for RunLog {
    fn default() -> Self {
        Self { started_at: Instant::now(), lines: Arc::default() }
    }
}

impl RunLog {
    pub(crate) fn push(&self, line: impl fmt::Display) {
        self.push_line(false, line);
    }

    /// Adds an injected fault.
    pub(super) fn push_fault(&self, fault: &InjectedFault) {
        match POSITION.try_with(ToString::to_string) {
            Ok(position) => self.push_line(true, format_args!("{position}: {fault}")),
            Err(_) => self.push_line(true, format_args!("client or environment: {fault}")),
        }
    }

    fn push_line(&self, is_fault: bool, line: impl fmt::Display) {
        let at = self.started_at.elapsed().as_secs_f64();
        let line = format!("{at:9.1} s  {}{line}", if is_fault { "! " } else { "" });
        self.lines.lock().unwrap().push((is_fault, line));
    }

    /// The lines of injected faults.
    pub(crate) fn fault_lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(is_fault, _)| *is_fault).map(|(_, line)| line.clone()).collect()
    }
}

impl fmt::Debug for RunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.lock().unwrap().iter().try_for_each(|(_, line)| writeln!(f, "{line}"))
    }
}
