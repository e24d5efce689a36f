//! Log of a simulated run, one event a line: time, worker, fail point and event.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::ids::fate::Mishap;

tokio::task_local! {
    /// Position of the current worker.
    pub(super) static SCENE: Scene;
}

/// A worker, and the last fail point that it hit.
#[derive(Clone, Debug, Default)]
pub(in crate::turn::tests) struct Scene(Arc<Mutex<(String, &'static str)>>);

impl Scene {
    pub(super) fn is(&self, who: &str) {
        who.clone_into(&mut self.0.lock().unwrap().0);
    }

    pub(super) fn reached(&self, boundary: &'static str) {
        self.0.lock().unwrap().1 = boundary;
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, boundary) = &*self.0.lock().unwrap();
        match *boundary {
            "" => f.write_str(who),
            boundary => write!(f, "{who} after {boundary}"),
        }
    }
}

#[derive(Clone)]
pub(in crate::turn::tests) struct Story {
    began: Instant,
    lines: Arc<Mutex<Vec<(bool, String)>>>,
}

impl Default for Story {
    fn default() -> Self {
        Self { began: Instant::now(), lines: Arc::default() }
    }
}

impl Story {
    pub(in crate::turn::tests) fn push(&self, line: impl fmt::Display) {
        self.add(false, line);
    }

    /// Adds an injected fault.
    pub(super) fn tell(&self, mishap: &Mishap) {
        match SCENE.try_with(ToString::to_string) {
            Ok(scene) => self.add(true, format_args!("{scene}: {mishap}")),
            Err(_) => self.add(true, format_args!("client or environment: {mishap}")),
        }
    }

    fn add(&self, is_mishap: bool, line: impl fmt::Display) {
        let at = self.began.elapsed().as_secs_f64();
        let line = format!("{at:9.1} s  {}{line}", if is_mishap { "! " } else { "" });
        self.lines.lock().unwrap().push((is_mishap, line));
    }

    /// The lines of injected faults.
    pub(in crate::turn::tests) fn mishaps(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(is_mishap, _)| *is_mishap).map(|(_, line)| line.clone()).collect()
    }
}

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.lock().unwrap().iter().try_for_each(|(_, line)| writeln!(f, "{line}"))
    }
}
