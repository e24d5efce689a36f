//! Fail points for crash tests: halt the process at a named fail point, so that a test can kill it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::settings::halt::HaltAt;
use crate::turn::Probe;

/// File in the data folder, written when the fail point is hit. It lists every fail point hit so
/// far, one a line. Fail points that other tasks hit before the kill are added.
const FILE: &str = "halted";

#[derive(Debug)]
pub(super) struct HaltProbe {
    at: HaltAt,
    file: PathBuf,
    way: Mutex<Way>,
}

#[derive(Debug, Default)]
struct Way {
    reached: Vec<&'static str>,
    is_halted: bool,
}

impl HaltProbe {
    pub(super) fn new(at: HaltAt, data: &std::path::Path) -> Self {
        Self { at, file: data.join(FILE), way: Mutex::default() }
    }

    /// Records a hit. Returns true if the task must halt at this fail point.
    fn halts(&self, boundary: &'static str) -> bool {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        way.reached.push(boundary);
        // After the halt, every task halts at its next fail point, as if the process were killed.
        let times = way.reached.iter().filter(|reached| **reached == self.at.boundary).count();
        way.is_halted |= boundary == self.at.boundary && times == self.at.occurrence.get() as usize;
        if way.is_halted {
            // If the file cannot be written, the test times out. There is no better way to report
            // it.
            let _ = std::fs::write(&self.file, way.reached.join("\n"));
        }
        way.is_halted
    }
}

#[async_trait]
impl Probe for HaltProbe {
    async fn reached(&self, boundary: &'static str) {
        if self.halts(boundary) {
            std::future::pending::<()>().await;
        }
    }
}
