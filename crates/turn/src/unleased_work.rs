//! Work of a delivery after the release of the lease: the title of the conversation, and the messages
//! for the profile of its user.

use crate::leased_conversation::LeasedConversation;
use crate::unleased_call::UnleasedCall;
use crate::{profile, title};
use turnwheel_conversation::head::Head;

/// Completed prompts and messages of a conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedWork {
    prompts: usize,
    /// `seq` of the newest completed message for the profile.
    profile_seq: u64,
}

impl CompletedWork {
    pub(crate) fn of(head: &Head) -> Self {
        let messages = head.profile_messages.as_ref();
        Self {
            prompts: title::completed_prompts(head),
            profile_seq: messages.map_or(0, |messages| messages.completed_seq()),
        }
    }
}

/// Work that follows the release of the lease.
pub(crate) struct UnleasedWork<'w> {
    call: Box<UnleasedCall<'w>>,
    has_title: bool,
    has_profile_messages: bool,
}

impl<'w> UnleasedWork<'w> {
    /// `before`: as of the beginning of the delivery. `None`: there is no such work.
    pub(crate) fn find(
        conversation: &LeasedConversation<'w>,
        before: CompletedWork,
    ) -> Option<Self> {
        let has_title = title::is_due(conversation, before.prompts);
        let has_profile_messages = profile::is_due(conversation, before.profile_seq);
        let is_any = has_title || has_profile_messages;
        is_any.then(|| Self {
            call: Box::new(UnleasedCall::new(conversation)),
            has_title,
            has_profile_messages,
        })
    }

    /// Failures are logged.
    pub(crate) async fn perform(self) {
        if self.has_title {
            Box::pin(title::make_title(&self.call)).await;
        }
        // The head keeps the messages for a later delivery.
        if self.has_profile_messages && !self.call.services.shutdown.is_begun() {
            Box::pin(profile::pass_on_messages(&self.call)).await;
        }
    }
}
