//! For crash tests: stops the process for ever at a named boundary, so that it can be killed there.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;

use crate::settings::halt::HaltAt;
use crate::turn::Probe;

/// What is written into the data folder when the boundary is reached.
const FILE: &str = "halted";

#[derive(Debug)]
pub(super) struct HaltProbe {
    at: HaltAt,
    file: PathBuf,
    reached: AtomicU32,
    is_halted: AtomicBool,
}

impl HaltProbe {
    pub(super) fn new(at: HaltAt, data: &std::path::Path) -> Self {
        Self {
            at,
            file: data.join(FILE),
            reached: AtomicU32::new(0),
            is_halted: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl Probe for HaltProbe {
    async fn reached(&self, boundary: &'static str) {
        // Whoever comes to any boundary after it waits too: the whole process stands still, as if it were cut there.
        if self.is_halted.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if boundary != self.at.boundary
            || self.reached.fetch_add(1, Ordering::SeqCst) + 1 != self.at.occurrence.get()
        {
            return;
        }
        self.is_halted.store(true, Ordering::SeqCst);
        // Without the file the test would wait for ever; nothing better can be done about it here.
        let _ = std::fs::write(&self.file, boundary);
        std::future::pending::<()>().await;
    }
}
