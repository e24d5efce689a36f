//! Details of a model response in protocol mode that its blocks do not show.

use serde::{Deserialize, Serialize};

use crate::message::AssistantMessage;

/// Member of the message that holds the details.
const MEMBER: &str = "protocolDetails";

/// Observations of the parser of the protocol text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProtocolDetails {
    /// Characters that are no white space and that no block contains: after the calls, and in
    /// results that the model wrote.
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_characters: u64,
    /// True if an execute block was malformed. A text replaces it, and no call runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_malformed_calls: bool,
    /// The tag that the response left open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unclosed_tag: Option<String>,
    /// True if the response has `<end>`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_end: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ProtocolDetails {
    /// Records the details in the message, if there are any.
    pub fn record(&self, message: &mut AssistantMessage) {
        if *self != Self::default()
            && let Ok(details) = serde_json::to_value(self)
        {
            message.extra.insert(MEMBER.to_owned(), details);
        }
    }

    /// True if the model ended its work explicitly.
    pub fn is_ended(message: &AssistantMessage) -> bool {
        Self::of(message).is_some_and(|details| details.has_end)
    }

    fn of(message: &AssistantMessage) -> Option<Self> {
        message.extra.get(MEMBER).and_then(|it| Self::deserialize(it).ok())
    }

    /// True if the model wrote calls that could not be read, and did not end its work. It is called
    /// again, because its own text names the error.
    pub fn needs_correction(message: &AssistantMessage) -> bool {
        Self::of(message).is_some_and(|details| details.has_malformed_calls && !details.has_end)
    }
}
