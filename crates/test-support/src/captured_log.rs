//! Log lines of a test.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};

/// Captures the log lines of this thread, down to level debug, until it is dropped. The lines have
/// neither times nor targets.
#[derive(Debug)]
pub struct CapturedLog {
    lines: Lines,
    _subscriber: DefaultGuard,
    _other: Dispatch,
}

impl CapturedLog {
    #[must_use]
    pub fn start() -> Self {
        let lines = Lines::default();
        let out = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || out.clone())
            .finish();
        // With a second dispatcher, callsites ask every subscriber, not only the one of the thread
        // that hits them first.
        let other = Dispatch::new(NoSubscriber::default());
        Self { lines, _subscriber: tracing::subscriber::set_default(subscriber), _other: other }
    }

    /// The lines until now.
    #[must_use]
    pub fn text(&self) -> String {
        let bytes = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
