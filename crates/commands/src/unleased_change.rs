//! Change of a head by a worker without the lease. Like a change of the name by a client, it may come
//! between two commits of a turn.

use std::time::Duration;

use crate::head_change::publish_events;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::event::Event;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::usage::{Usage, UsageTotals};
use turnwheel_platform::clock::Timestamp;
use turnwheel_record::certain_write::write_and_confirm_head;
use turnwheel_record::contract::CommandError;
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of lost writes after which the change is given up. A running turn writes often.
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Model calls without the lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnleasedCalls {
    pub usage: Usage,
    pub count: u64,
}

/// Additions of a change beside the changed head.
#[derive(Default)]
pub(super) struct UnleasedChange {
    pub(super) entry: Option<Entry>,
    pub(super) event: Option<Event>,
    /// True if readers see the change.
    pub(super) has_news: bool,
}

/// The end of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnleasedOutcome {
    Changed,
    /// The conversation was deleted meanwhile.
    Deleted,
}

/// Changes the head until the change wins. `change` returns `None` if nothing is to be changed.
///
/// # Errors
/// The store is unavailable, or other writers came first: the change is not made.
pub(super) async fn change_without_lease(
    services: &Services,
    head_at_release: &Head,
    change: impl Fn(&mut Head, Timestamp) -> Option<UnleasedChange>,
) -> Result<UnleasedOutcome, CommandError> {
    let key = head_at_release.key();
    let attempt = || async {
        let Some((mut head, etag)) = load::find_head(services, &key).await? else {
            return Ok(Some(UnleasedOutcome::Deleted));
        };
        if head.incarnation != head_at_release.incarnation {
            return Ok(Some(UnleasedOutcome::Deleted));
        }
        // A write by this version would drop the members that only a newer version supports.
        if head.min_reader > services.limits.reader_version {
            return Err(load::newer_version_error());
        }
        let now = services.clock.now();
        let Some(UnleasedChange { entry, event, has_news }) = change(&mut head, now) else {
            return Ok(Some(UnleasedOutcome::Changed));
        };
        stamp_head(services, &mut head, has_news.then_some(now));
        let commit = HeadCommit::replace(&head, etag)
            .with_entries(entry.as_slice())
            .with_events(event.as_slice());
        let written = write_and_confirm_head(services, &key, commit).await?;
        if written.is_some() && event.is_some() {
            publish_events(services, &head);
        }
        Ok(written.map(|_| UnleasedOutcome::Changed))
    };
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), attempt).await
}

/// Adds the usage of model calls to the conversation. It belongs to no prompt. The ledger receives it
/// later.
pub(super) fn add_usage(
    services: &Services,
    head: &mut Head,
    calls: UnleasedCalls,
    now: Timestamp,
) {
    head.usage += calls.usage;
    let cost = UsageTotals { calls: calls.count, ..UsageTotals::from_usage(&calls.usage) };
    head.metering.add_cost(cost, now, now.plus(services.limits.settle_after));
    head.due = head.due.into_iter().chain(head.metering.settle_at).min();
}
