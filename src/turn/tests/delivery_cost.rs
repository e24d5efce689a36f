//! Log line with the cost of a delivery.

use std::sync::{Arc, Mutex};

use super::test_env::TestEnv;
use crate::fail_points::NoFailPoints;
use crate::telemetry::cost_meter;
use crate::turn::delivery_cost::log_delivery_cost;
use crate::turn::error::DeliveryOutcome;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

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
    let log = Log::default();
    let out = log.clone();
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || out.clone())
        .finish();
    let services = TestEnv::new(1).new_worker(Arc::new(NoFailPoints));
    // With a second dispatcher, callsites ask every subscriber, not only the one of the thread that
    // hits them first.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let guard = tracing::subscriber::set_default(lines);
    let work = async {
        for operation in operations {
            cost_meter::count_request(operation, 0.0);
        }
        Ok(handled)
    };
    log_delivery_cost(&services, &TestEnv::key(), work).await.unwrap();
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().filter(|line| line.contains("delivery")).collect()
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
