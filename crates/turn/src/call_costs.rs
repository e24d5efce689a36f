//! Costs of a delivery's model calls between two commits.

use std::time::Duration;

use turnwheel_conversation::step::{BudgetInput, Input};
use turnwheel_conversation::usage::Usage;

/// Costs of model calls for the next commit and the ledger.
#[derive(Debug, Default)]
pub struct CallCosts {
    has_passed_rate_limit: bool,
    ledger_update: Option<BudgetInput>,
    uncommitted_usage: Option<(Usage, u32)>,
}

impl CallCosts {
    /// Asks the rate limit for one model call, unless it has admitted the call before.
    ///
    /// # Errors
    /// The time until the rate limit admits a call.
    pub(crate) fn pass_rate_limit(
        &mut self,
        take_model_call: impl FnOnce() -> Result<(), Duration>,
    ) -> Result<(), Duration> {
        if !self.has_passed_rate_limit {
            take_model_call()?;
            self.has_passed_rate_limit = true;
        }
        Ok(())
    }

    /// The admitted call is not made now: a later one asks the rate limit again.
    pub(crate) fn give_up_call(&mut self) {
        self.has_passed_rate_limit = false;
    }

    /// Calls were made, and the next commit records their usage.
    pub(crate) fn record_calls(&mut self, usage: Usage, calls: u32) {
        self.has_passed_rate_limit = false;
        self.uncommitted_usage = Some((usage, calls)).filter(|(_, calls)| *calls > 0);
    }

    /// Usage and number of the calls that no commit has recorded. Forgets them.
    pub(crate) fn take_uncommitted_usage(&mut self) -> Option<(Usage, u32)> {
        self.uncommitted_usage.take()
    }

    pub(crate) fn mark_committed(&mut self) {
        self.uncommitted_usage = None;
    }

    /// The ledger was updated; the next commit records it.
    pub(crate) fn record_ledger_update(&mut self, update: BudgetInput) {
        self.ledger_update = Some(update);
    }

    /// The input that records the ledger update since the last commit.
    pub(crate) fn take_ledger_input(&mut self) -> Option<Input> {
        self.ledger_update.take().map(|update| Input::BudgetChecked(Box::new(update)))
    }
}
