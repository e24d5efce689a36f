//! Log line with the cost of a delivery.

use std::sync::{Arc, Mutex};

use super::bench::Bench;
use crate::telemetry::meter;
use crate::turn::NoProbe;
use crate::turn::delivery::Handled;
use crate::turn::spending::told;

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

async fn logged(operations: &[&'static str], handled: Handled) -> String {
    let log = Log::default();
    let out = log.clone();
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || out.clone())
        .finish();
    let world = Bench::new(1).worker(Arc::new(NoProbe));
    // With a second dispatcher, callsites ask every subscriber, not only the one of the thread that
    // hits them first.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let guard = tracing::subscriber::set_default(lines);
    let work = async {
        for operation in operations {
            meter::count(operation, 0.0);
        }
        Ok(handled)
    };
    told(&world, &Bench::key(), work).await.unwrap();
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().filter(|line| line.contains("delivery")).collect()
}

#[tokio::test]
async fn delivery_without_store_requests_is_logged_at_debug() {
    let (store, queue) = ("cosmos.write", "queue.output");
    let cases = [
        (&[store, queue][..], Handled::Worked, "INFO", "delivery completed"),
        (&[queue], Handled::Worked, "DEBUG", "delivery completed"),
        (&[store], Handled::Nothing, "DEBUG", "delivery found no pending work"),
    ];
    for (operations, handled, level, event) in cases {
        let line = logged(operations, handled).await;
        assert!(line.trim().starts_with(level) && line.contains(event), "{line}");
    }
}
