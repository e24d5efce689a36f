//! The port that sends notifications.

use std::fmt;

use async_trait::async_trait;
use serde_json::Value;

use turnwheel_conversation::notification::Notification;
use turnwheel_platform::ids::ConversationKey;

/// Outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    Accepted,
    /// The receiver wants no further attempt (HTTP 410).
    Gone,
    /// Try again later. Holds the reason.
    RetryLater(String),
}

/// Sends notifications to their receiver.
#[async_trait]
pub trait NotificationSender: Send + Sync + fmt::Debug {
    async fn send(&self, key: &ConversationKey, notification: &Notification) -> SendOutcome;

    /// Shows a request that was open before this process started. A receiver of webhooks has its
    /// notification already.
    fn show_open(&self, _key: &ConversationKey, _title: &str, _approval: Value) {}
}
