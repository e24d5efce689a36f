//! Fail points for crash tests: halt the process at a named fail point, so that a test can kill it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use turnwheel_platform::fail_points::FailPoints;
use turnwheel_platform::settings::fail_point::ArmedFailPoint;

/// File in the data folder, written when the fail point is hit. It lists every fail point hit so
/// far, one a line. Fail points that other tasks hit before the kill are added.
const HALT_FILE: &str = "halted";

#[derive(Debug)]
pub(crate) struct HaltingFailPoints {
    at: ArmedFailPoint,
    file: PathBuf,
    log: Mutex<HitLog>,
}

#[derive(Debug, Default)]
struct HitLog {
    hits: Vec<&'static str>,
    is_halted: bool,
}

impl HaltingFailPoints {
    pub(crate) fn new(at: ArmedFailPoint, data: &std::path::Path) -> Self {
        Self { at, file: data.join(HALT_FILE), log: Mutex::default() }
    }

    /// Records a hit. Returns true if the task must halt at this fail point.
    fn record_hit(&self, fail_point: &'static str) -> bool {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.hits.push(fail_point);
        // After the halt, every task halts at its next fail point, as if the process were killed.
        let times = log.hits.iter().filter(|hit| **hit == self.at.name).count();
        log.is_halted |= fail_point == self.at.name && times == self.at.occurrence.get() as usize;
        if log.is_halted {
            // If the file cannot be written, the test times out. There is no better way to report
            // it.
            let _ = self.write(&log.hits);
        }
        log.is_halted
    }

    /// Replaces the file in one step: a reader never sees a part of it.
    fn write(&self, hits: &[&str]) -> std::io::Result<()> {
        let draft = self.file.with_extension("new");
        std::fs::write(&draft, hits.join("\n"))?;
        std::fs::rename(draft, &self.file)
    }
}

#[async_trait]
impl FailPoints for HaltingFailPoints {
    async fn hit(&self, fail_point: &'static str) {
        if self.record_hit(fail_point) {
            std::future::pending::<()>().await;
        }
    }
}
