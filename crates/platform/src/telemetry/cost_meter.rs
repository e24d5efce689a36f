//! Cost meter: requests and request units of one unit of work, counted where they are sent.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

tokio::task_local! {
    static METER: Arc<CostMeter>;
}

/// Costs of one unit of work. Clones of the `Arc` share them.
#[derive(Debug, Default)]
pub struct CostMeter(Mutex<BTreeMap<&'static str, MeteredCost>>);

/// Cost of one operation, such as `cosmos.write` or `queue.send`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeteredCost {
    pub requests: u32,
    pub request_units: f64,
}

impl CostMeter {
    /// Returns the costs by operation.
    pub fn costs(&self) -> BTreeMap<&'static str, MeteredCost> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the sum of the operations whose name starts with `prefix`.
    pub fn total(&self, prefix: &str) -> MeteredCost {
        let costs = self.costs();
        let parts = costs.iter().filter(|(operation, _)| operation.starts_with(prefix));
        parts.fold(MeteredCost::default(), |sum, (_, cost)| MeteredCost {
            requests: sum.requests + cost.requests,
            request_units: sum.request_units + cost.request_units,
        })
    }

    fn add(&self, operation: &'static str, request_units: f64) {
        let mut costs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cost = costs.entry(operation).or_default();
        cost.requests += 1;
        cost.request_units += request_units;
    }
}

/// Runs the work and counts its requests on `meter`, as long as the work stays in its task.
pub async fn with_meter<T>(meter: Arc<CostMeter>, work: impl Future<Output = T>) -> T {
    METER.scope(meter, work).await
}

/// Returns the meter of this task.
pub fn current_meter() -> Option<Arc<CostMeter>> {
    METER.try_with(Arc::clone).ok()
}

/// Counts one request. Without a meter it does nothing.
pub fn count_request(operation: &'static str, request_units: f64) {
    let _ = METER.try_with(|meter| meter.add(operation, request_units));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cost_meter_counts_only_requests_of_its_work() {
        let (one, other) = (Arc::new(CostMeter::default()), Arc::new(CostMeter::default()));
        let work = || async {
            count_request("cosmos.write", 7.5);
            count_request("cosmos.read", 1.0);
            count_request("queue.send", 0.0);
        };
        tokio::join!(with_meter(Arc::clone(&one), work()), with_meter(Arc::clone(&other), work()));
        count_request("cosmos.write", 100.0);
        assert_eq!(one.total("cosmos."), MeteredCost { requests: 2, request_units: 8.5 });
        assert_eq!(
            one.costs().keys().copied().collect::<Vec<_>>(),
            ["cosmos.read", "cosmos.write", "queue.send"]
        );
        assert_eq!(one.costs(), other.costs());
    }
}
