//! The port that sends notifications.

use std::fmt;

use async_trait::async_trait;

use crate::agent::notification::Notification;
use crate::ids::ConversationKey;

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
}
