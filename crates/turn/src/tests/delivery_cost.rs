//! Log line with the cost of a delivery.

use std::sync::{Arc, Mutex};

use super::test_env::TestEnv;
use crate::delivery_cost::log_delivery_cost;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::telemetry::cost_meter;
use turnwheel_record::error::DeliveryOutcome;

/// Log lines without times.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Logs the lines of this thread until the guard is dropped.
    pub(super) fn start() -> (Self, LogGuard) {
        let log = Self::default();
        let out = log.clone();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || out.clone())
            .finish();
        // With a second dispatcher, callsites ask every subscriber, not only the one of the thread
        // that hits them first.
        let other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        (log, LogGuard { _lines: tracing::subscriber::set_default(lines), _other: other })
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Ends the capture when dropped.
pub(super) struct LogGuard {
    _lines: tracing::subscriber::DefaultGuard,
    _other: tracing::Dispatch,
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn delivery_log_line(operations: &[&'static str], handled: DeliveryOutcome) -> String {
    let services = TestEnv::new(1).new_worker(Arc::new(NoFailPoints));
    let (log, guard) = Log::start();
    let work = async {
        for operation in operations {
            cost_meter::count_request(operation, 0.0);
        }
        Ok(handled)
    };
    log_delivery_cost(&services, &TestEnv::key(), work).await.unwrap();
    drop(guard);
    log.text().lines().filter(|line| line.contains("delivery")).collect()
}

#[tokio::test]
async fn delivery_without_store_requests_is_logged_at_debug() {
    let (store, queue) = ("cosmos.write", "queue.output");
    let cases = [
        (&[store, queue][..], DeliveryOutcome::Worked, "INFO", "delivery completed"),
        (&[queue], DeliveryOutcome::Worked, "DEBUG", "delivery completed"),
        (&[store], DeliveryOutcome::NoWork, "DEBUG", "delivery found no pending work"),
    ];
    for (operations, handled, level, event) in cases {
        let line = delivery_log_line(operations, handled).await;
        assert!(line.trim().starts_with(level) && line.contains(event), "{line}");
    }
}
