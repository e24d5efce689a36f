//! Rate limiter: one token bucket for each owner, in the memory of this instance. Several instances
//! together admit a multiple of the rate; the store is not involved.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use turnwheel_platform::ids::{TenantId, UserId};
use turnwheel_platform::settings::rate_limits::{Rate, RateLimits};

/// Number of owners with a bucket.
const OWNERS_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct RateLimiter {
    requests: Option<Buckets>,
    model_calls: Option<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    rate: Rate,
    by_owner: Mutex<HashMap<(TenantId, UserId), Bucket>>,
}

/// Remaining tokens, and the time they were computed.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Duration,
}

impl RateLimiter {
    pub fn new(limits: &RateLimits) -> Self {
        let buckets =
            |rate: Option<Rate>| rate.map(|rate| Buckets { rate, by_owner: Mutex::default() });
        Self { requests: buckets(limits.requests), model_calls: buckets(limits.model_calls) }
    }

    /// Takes one request. `now` is monotonic.
    ///
    /// # Errors
    /// The owner exceeds the rate: retry after the returned wait.
    pub fn take_request(
        &self,
        tenant: &TenantId,
        user: &UserId,
        now: Duration,
    ) -> Result<(), Duration> {
        self.requests.as_ref().map_or(Ok(()), |buckets| buckets.take(tenant, user, now))
    }

    /// Takes one model call. `now` is monotonic.
    ///
    /// # Errors
    /// As [`RateLimiter::take_request`].
    pub fn take_model_call(
        &self,
        tenant: &TenantId,
        user: &UserId,
        now: Duration,
    ) -> Result<(), Duration> {
        self.model_calls.as_ref().map_or(Ok(()), |buckets| buckets.take(tenant, user, now))
    }
}

impl Bucket {
    fn tokens_at(self, now: Duration, rate: Rate) -> f64 {
        let since = now.saturating_sub(self.filled_at).as_secs_f64();
        let refilled = since * f64::from(rate.count) / rate.period.as_secs_f64();
        (self.tokens + refilled).min(f64::from(rate.count))
    }
}

impl Buckets {
    fn take(&self, tenant: &TenantId, user: &UserId, now: Duration) -> Result<(), Duration> {
        let mut by_owner = self.by_owner.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = (tenant.clone(), user.clone());
        let full = Bucket { tokens: f64::from(self.rate.count), filled_at: now };
        if !by_owner.contains_key(&owner) && by_owner.len() >= OWNERS_MAX {
            // A full bucket is the same as none.
            by_owner.retain(|_, bucket| bucket.tokens_at(now, self.rate) < full.tokens);
            if by_owner.len() >= OWNERS_MAX {
                // Too many active owners: reset all buckets.
                by_owner.clear();
            }
        }
        let bucket = by_owner.entry(owner).or_insert(full);
        let tokens = bucket.tokens_at(now, self.rate);
        if tokens < 1.0 {
            let wait = (1.0 - tokens) * self.rate.period.as_secs_f64() / f64::from(self.rate.count);
            return Err(Duration::from_secs_f64(wait));
        }
        *bucket = Bucket { tokens: tokens - 1.0, filled_at: now };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ledger::rate_limit::*;

    fn limiter(count: u32) -> RateLimiter {
        let rate = Rate { count, period: Duration::from_mins(1) };
        RateLimiter::new(&RateLimits { requests: Some(rate), model_calls: None })
    }

    #[test]
    fn rate_limit_refills_separately_for_each_owner() {
        let limiter = limiter(2);
        let tenant = TenantId::new("t");
        let (ada, bob) = (UserId::new("ada"), UserId::new("bob"));
        let request = |user: &UserId, seconds| {
            limiter.take_request(&tenant, user, Duration::from_secs(seconds))
        };
        assert_eq!([request(&ada, 0), request(&ada, 0)], [Ok(()), Ok(())]);
        assert_eq!(request(&ada, 0), Err(Duration::from_secs(30)));
        assert_eq!(request(&bob, 0), Ok(()), "other owners are not delayed");
        assert_eq!(request(&ada, 20), Err(Duration::from_secs(10)));
        assert_eq!(request(&ada, 31), Ok(()));
        assert_eq!(
            limiter.take_model_call(&tenant, &ada, Duration::ZERO),
            Ok(()),
            "no rate, no limit"
        );
    }

    #[test]
    fn rate_limiter_forgets_owners_when_too_many() {
        let limiter = limiter(1);
        let tenant = TenantId::new("t");
        for number in 0..OWNERS_MAX * 2 {
            let user = UserId::new(format!("u{number}"));
            assert_eq!(limiter.take_request(&tenant, &user, Duration::ZERO), Ok(()));
        }
        let held = limiter.requests.as_ref().unwrap().by_owner.lock().unwrap().len();
        assert!(held <= OWNERS_MAX, "{held}");
    }
}
