//! For crash tests: stops the process for ever at a named boundary, so that it can be killed there.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::settings::halt::HaltAt;
use crate::turn::Probe;

/// What is written into the data folder when the boundary is reached: every boundary reached until then, a line each. What
/// other tasks come to until the kill is added.
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

    /// Whether whoever came to this boundary stays there.
    fn halts(&self, boundary: &'static str) -> bool {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        way.reached.push(boundary);
        // Whoever comes to any boundary after it waits too: the whole process stands still, as if it were cut there.
        let times = way.reached.iter().filter(|reached| **reached == self.at.boundary).count();
        way.is_halted |= boundary == self.at.boundary && times == self.at.occurrence.get() as usize;
        if way.is_halted {
            // Without the file the test would wait for ever; nothing better can be done about it here.
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
