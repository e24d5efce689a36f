//! Command of a worker that records the title which the model made for a conversation. It needs no
//! lease.

use crate::conversation::append_entry;
use crate::head_change::new_event;
use crate::unleased_change::{UnleasedCalls, UnleasedChange, add_usage, change_without_lease};
use turnwheel_conversation::entry::{Entry, EntryBody, SessionInfo};
use turnwheel_conversation::event::{Event, EventBody, SessionInfoChanged};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::usage::Usage;
use turnwheel_platform::clock::Timestamp;
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;

/// The outcome of the model call for a title.
#[derive(Clone, Debug)]
pub struct TitleCall {
    /// `None`: the response is unusable.
    pub title: Option<String>,
    pub usage: Usage,
}

/// Records the usage of the call, and the title if the conversation still has no name. A
/// conversation that was deleted meanwhile is left alone.
///
/// # Errors
/// The store is unavailable, or other writers came first: the title is lost.
pub async fn record_title(
    services: &Services,
    head_at_call: &Head,
    call: &TitleCall,
) -> Result<(), CommandError> {
    let calls = UnleasedCalls { usage: call.usage, count: 1 };
    let change = |head: &mut Head, now| {
        add_usage(services, head, calls, now);
        let title = call.title.clone().filter(|_| head.name.is_none());
        let renaming = title.map(|title| rename(head, title, call.usage, now));
        let (entry, event) = renaming.unzip();
        Some(UnleasedChange { entry, event, has_news: true })
    };
    change_without_lease(services, head_at_call, change).await.map(|_| ())
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
