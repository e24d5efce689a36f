//! Command that appends entries to an idle conversation, for callers in this process.

use std::time::Duration;

use crate::conversation::append_entry;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::certain_write::write_and_confirm_head;
use turnwheel_record::contract::CommandError;
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of lost writes after which the command gives up.
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Appends entries after the leaf.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond, or if a newer version wrote
/// the conversation.
pub async fn append_entries(
    services: &Services,
    key: &ConversationKey,
    bodies: &[EntryBody],
) -> Result<(), CommandError> {
    let attempt = || async {
        let (mut head, etag) = load::head(services, key).await?;
        // A write by this version would drop the members that only a newer version supports.
        if head.min_reader > services.limits.reader_version {
            return Err(load::newer_version_error());
        }
        let now = services.clock.now();
        let bodies = bodies.iter().cloned();
        let entries: Vec<Entry> = bodies.map(|body| append_entry(&mut head, body, now)).collect();
        stamp_head(services, &mut head, Some(now));
        let commit = HeadCommit::replace(&head, etag).with_entries(&entries);
        Ok(write_and_confirm_head(services, key, commit).await?.map(drop))
    };
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), attempt).await
}
