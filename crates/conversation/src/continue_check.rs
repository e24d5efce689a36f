//! Check of the command `continue`: it needs a message without a response, or queued inputs.

use std::sync::Arc;

use crate::entry::Entry;
use crate::inbox::{InboxBody, InboxItem};
use crate::message::Message;
use crate::projection;

/// Texts of the source document (s3 §1.5).
const NO_MESSAGES: &str = "No messages to continue from";
pub(crate) const LAST_MESSAGE_IS_RESPONSE: &str = "Cannot continue from message role: assistant";

/// Returns true if the conversation continues from a model response, with its queued inputs. Failed
/// responses are not in the model input, so to continue is to retry.
///
/// # Errors
/// The conversation cannot continue: return the text to the client.
pub fn check_continue(path: &[Arc<Entry>], inbox: &[InboxItem]) -> Result<bool, &'static str> {
    let messages = projection::to_model_messages(projection::project_messages(path));
    let last = messages.last().ok_or(NO_MESSAGES)?;
    let has_response = matches!(last.as_ref(), Message::Assistant(_));
    let is_queued =
        |item: &InboxItem| matches!(item.body, InboxBody::Steer(_) | InboxBody::FollowUp(_));
    if has_response && !inbox.iter().any(is_queued) {
        return Err(LAST_MESSAGE_IS_RESPONSE);
    }
    Ok(has_response)
}
