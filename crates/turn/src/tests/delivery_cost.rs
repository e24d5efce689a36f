//! Log line with the cost of a delivery.

use std::sync::Arc;

use super::test_env::TestEnv;
use crate::delivery_cost::log_delivery_cost;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::telemetry::cost_meter;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_test_support::captured_log::CapturedLog;

async fn delivery_log_line(operations: &[&'static str], handled: DeliveryOutcome) -> String {
    let services = TestEnv::new(1).new_worker(Arc::new(NoFailPoints));
    let log = CapturedLog::start();
    let work = async {
        for operation in operations {
            cost_meter::count_request(operation, 0.0);
        }
        Ok(handled)
    };
    log_delivery_cost(&services, &TestEnv::key(), work).await.unwrap();
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
