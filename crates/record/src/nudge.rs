//! Nudges: queue messages that wake a worker for a conversation or a schedule.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId, is_plain_text};
use turnwheel_storage::store::validate::CONVERSATION_ID_MAX;

/// Work due sooner than this gets a nudge; the sweep enqueues the rest.
pub const NUDGE_WITHIN: Duration = Duration::from_mins(2);

/// Says that a conversation may have pending work, and nothing more. A lost or duplicate nudge
/// costs only time.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nudge {
    #[serde(flatten)]
    pub key: ConversationKey,
    pub traceparent: Option<String>,
    /// Document id of a schedule that may be due. The key then names no conversation, so a worker
    /// without schedule support finds nothing there.
    pub schedule: Option<String>,
    /// End of the lease that the head had when the nudge was enqueued, if a clock that was ahead has
    /// set it. The delay of the nudge is longer than a lease: a lease that still ends then is over.
    pub expired_lease: Option<Timestamp>,
}

impl Nudge {
    pub fn for_conversation(key: ConversationKey, traceparent: Option<String>) -> Self {
        Self { key, traceparent, schedule: None, expired_lease: None }
    }

    /// Returns the member that no document of ours can have, since the store would refuse its id.
    pub fn find_impossible_member(&self) -> Option<&'static str> {
        let key = &self.key;
        let id = key.conversation_id.as_str();
        let members = [
            ("tenant", Some(key.tenant.as_str())),
            ("user", Some(key.user.as_str())),
            ("conversationId", Some(id)),
            ("schedule", self.schedule.as_deref()),
        ];
        let is_impossible = |text: Option<&str>| text.is_some_and(|text| !is_plain_text(text));
        let found = members.into_iter().find(|(_, text)| is_impossible(*text));
        // The nudge of a schedule has the id of its document there.
        let is_too_long = self.schedule.is_none() && id.len() > CONVERSATION_ID_MAX;
        found.map(|(name, _)| name).or(is_too_long.then_some("conversationId"))
    }

    /// The nudge of a schedule, by its document id.
    pub fn for_schedule(tenant: &TenantId, document_id: &str) -> Self {
        let key = ConversationKey {
            tenant: tenant.clone(),
            user: UserId::new("-"),
            conversation_id: ConversationId::new(document_id),
        };
        Self { schedule: Some(document_id.to_owned()), ..Self::for_conversation(key, None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_that_no_document_has_is_found() {
        let find = |tenant: &str, id: &str, schedule: Option<&str>| {
            let key = ConversationKey {
                tenant: TenantId::new(tenant),
                user: UserId::new("default"),
                conversation_id: ConversationId::new(id),
            };
            let schedule = schedule.map(ToOwned::to_owned);
            Nudge { schedule, ..Nudge::for_conversation(key, None) }.find_impossible_member()
        };
        let long = "x".repeat(5_000);
        for id in ["", "..", "../../etc", "IMMORTAL/1", "a b", long.as_str()] {
            assert_eq!(find("default", id, None), Some("conversationId"), "{id}");
        }
        assert_eq!(find("a tenant", "c", None), Some("tenant"));
        assert_eq!(find("default", "c", Some("a/b")), Some("schedule"));
        assert_eq!(find("default", "c", Some("schedule-of-0123-s")), None);
        assert_eq!(find("default", "c-1", None), None);
        let longest = "x".repeat(128);
        assert_eq!(find("default", &longest, None), None);
        assert_eq!(find("default", &format!("{longest}x"), None), Some("conversationId"));
        assert_eq!(find("default", &"x".repeat(255), Some(&"x".repeat(255))), None);
    }

    /// One output of an invocation that the Functions host cannot write fails all that follow it.
    #[test]
    fn largest_nudge_fits_a_queue_message() {
        let longest = "x".repeat(255);
        let key = ConversationKey {
            tenant: TenantId::new(longest.as_str()),
            user: UserId::new(longest.as_str()),
            conversation_id: ConversationId::new(longest.as_str()),
        };
        let traceparent = Some(format!("00-{}-{}-01", "a".repeat(32), "b".repeat(16)));
        let nudge = Nudge { schedule: Some(longest), ..Nudge::for_conversation(key, traceparent) };
        assert_eq!(nudge.find_impossible_member(), None);
        let text = serde_json::to_string(&nudge).unwrap();
        // The host sends it as JSON in XML, perhaps in base64.
        assert!(text.len() * 4 < 64 * 1024, "{}", text.len());
        assert!(!text.chars().any(char::is_control));
    }
}
