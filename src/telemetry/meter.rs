//! Cost meter: requests and request units of one unit of work, counted where they are sent.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

tokio::task_local! {
    static METER: Arc<Meter>;
}

/// Costs of one unit of work. Clones of the `Arc` share them.
#[derive(Debug, Default)]
pub struct Meter(Mutex<BTreeMap<&'static str, Cost>>);

/// Cost of one operation, such as `cosmos.write` or `queue.send`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub requests: u32,
    pub request_units: f64,
}

impl Meter {
    /// Returns the costs by operation.
    pub fn costs(&self) -> BTreeMap<&'static str, Cost> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the sum of the operations whose name starts with `prefix`.
    pub fn total(&self, prefix: &str) -> Cost {
        let costs = self.costs();
        let parts = costs.iter().filter(|(operation, _)| operation.starts_with(prefix));
        parts.fold(Cost::default(), |sum, (_, cost)| Cost {
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
pub async fn metered<T>(meter: Arc<Meter>, work: impl Future<Output = T>) -> T {
    METER.scope(meter, work).await
}

/// Returns the meter of this task.
pub fn running() -> Option<Arc<Meter>> {
    METER.try_with(Arc::clone).ok()
}

/// Counts one request. Without a meter it does nothing.
pub fn count(operation: &'static str, request_units: f64) {
    let _ = METER.try_with(|meter| meter.add(operation, request_units));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_counted_for_the_work_that_sends_them_and_for_nobody_else() {
        let (one, other) = (Arc::new(Meter::default()), Arc::new(Meter::default()));
        let work = || async {
            count("cosmos.write", 7.5);
            count("cosmos.read", 1.0);
            count("queue.send", 0.0);
        };
        tokio::join!(metered(Arc::clone(&one), work()), metered(Arc::clone(&other), work()));
        count("cosmos.write", 100.0);
        assert_eq!(one.total("cosmos."), Cost { requests: 2, request_units: 8.5 });
        assert_eq!(
            one.costs().keys().copied().collect::<Vec<_>>(),
            ["cosmos.read", "cosmos.write", "queue.send"]
        );
        assert_eq!(one.costs(), other.costs());
    }
}
