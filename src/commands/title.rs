//! Command of a worker that records the title which the model made for a conversation. It needs no
//! lease: like a change of the name by a client, it may come between two commits of a turn.

use std::time::Duration;

use crate::agent::entry::{Entry, EntryBody, SessionInfo};
use crate::agent::event::{Event, EventBody, SessionInfoChanged};
use crate::agent::head::Head;
use crate::agent::usage::{Usage, UsageTotals};
use crate::clock::Timestamp;
use crate::commands::certain_write::write_and_confirm_head;
use crate::commands::contract::CommandError;
use crate::commands::conversation::append_entry;
use crate::commands::head_change::{new_event, publish_events};
use crate::queries::load;
use crate::services::Services;
use crate::store::conditional::{back_off, compare_and_set};
use crate::turn::head_commit::{HeadCommit, stamp_head};

/// Number of lost writes after which the title is given up. A running turn writes often.
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The outcome of the model call for a title.
#[derive(Clone, Debug)]
pub(crate) struct TitleCall {
    /// `None`: the response is unusable.
    pub(crate) title: Option<String>,
    pub(crate) usage: Usage,
}

/// Records the usage of the call, and the title if the conversation still has no name. A
/// conversation that was deleted meanwhile is left alone.
///
/// # Errors
/// The store is unavailable, or other writers came first: the title is lost.
pub(crate) async fn record_title(
    services: &Services,
    head_at_call: &Head,
    call: &TitleCall,
) -> Result<(), CommandError> {
    let key = head_at_call.key();
    let attempt = || async {
        let Some((mut head, etag)) = load::find_head(services, &key).await? else {
            return Ok(Some(()));
        };
        if head.incarnation != head_at_call.incarnation {
            return Ok(Some(()));
        }
        // A write by this version would drop the members that only a newer version supports.
        if head.min_reader > services.limits.reader_version {
            return Err(load::newer_version_error());
        }
        let now = services.clock.now();
        record_usage(services, &mut head, call.usage, now);
        let title = call.title.clone().filter(|_| head.name.is_none());
        let renaming = title.map(|title| rename(&mut head, title, call.usage, now));
        let (entry, event) = renaming.unzip();
        stamp_head(services, &mut head, Some(now));
        let commit = HeadCommit::replace(&head, etag)
            .with_entries(entry.as_slice())
            .with_events(event.as_slice());
        let written = write_and_confirm_head(services, &key, commit).await?;
        if written.is_some() && event.is_some() {
            publish_events(services, &head);
        }
        Ok(written.map(drop))
    };
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), attempt).await
}

/// Adds the usage to the conversation. It belongs to no prompt. The ledger receives it later.
fn record_usage(services: &Services, head: &mut Head, usage: Usage, now: Timestamp) {
    head.usage += usage;
    let cost = UsageTotals { calls: 1, ..UsageTotals::from_usage(&usage) };
    head.metering.add_cost(cost, (now, now.plus(services.limits.settle_after)));
    head.due = head.due.into_iter().chain(head.metering.settle_at).min();
}

fn rename(head: &mut Head, title: String, usage: Usage, now: Timestamp) -> (Entry, Event) {
    head.name = Some(title.clone());
    let mut info = SessionInfo::new(Some(title.clone()));
    info.extra.insert("usage".to_owned(), serde_json::json!(usage));
    info.extra.insert("calls".to_owned(), 1.into());
    let entry = append_entry(head, EntryBody::SessionInfo(info), now);
    let changed = SessionInfoChanged { name: Some(title) };
    let event = new_event(head, EventBody::SessionInfoChanged(changed), now);
    (entry, event)
}
