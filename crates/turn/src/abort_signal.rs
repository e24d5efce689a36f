//! Abort signals: immediate within this process, polled across processes.

use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::inbox;
use crate::inbox::WaitingItem;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxBody, InboxItem};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::request::Verdict;
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_record::abort_channel::abort_id;
use turnwheel_record::services::Services;
use turnwheel_record::{documents, expiry};
use turnwheel_storage::store::{DocumentKind, Freshness, HEAD_ID, Partition, StoreError};

/// Interval of the first polls for an abort while an effect runs. One poll reads one document.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
pub(crate) const FIRST_POLLS: u32 = 5;
/// Interval of the later polls.
pub(crate) const LATER_INTERVAL: Duration = Duration::from_secs(4);
/// Every so many polls also read the head, because a deletion leaves no abort item.
pub(crate) const POLLS_PER_HEAD_READ: u32 = 3;
/// Time for a running write to finish after an abort.
pub(crate) const WRITE_GRACE: Duration = Duration::from_secs(2);

/// Completes when the prompt is aborted or the conversation is deleted. It listens from the call
/// on, not from the first poll. A poll decides only when the effect stops, so it need not see the
/// latest commit: the commit after the effect reads the inbox.
pub(crate) fn wait_for_abort(
    services: &Services,
    key: &ConversationKey,
    prompt: Option<PromptId>,
) -> impl Future<Output = ()> + use<> {
    let (services, key) = (services.clone(), key.clone());
    let mut signals = services.abort_signals.0.subscribe();
    async move {
        for poll in 1_u32.. {
            let interval = if poll <= FIRST_POLLS { FIRST_INTERVAL } else { LATER_INTERVAL };
            let signal = tokio::time::timeout(interval, receive_signal(&mut signals, &key)).await;
            let freshness = if signal.is_ok() { Freshness::Latest } else { Freshness::Any };
            let is_over = async {
                if let Some(prompt) = &prompt
                    && is_abort_pending(&services, &key, prompt, freshness).await?
                {
                    return Ok(true);
                }
                let reads_head = signal.is_ok() || poll % POLLS_PER_HEAD_READ == 0;
                // An old version may be from before the creation.
                let is_deleted = reads_head
                    && is_conversation_deleted(&services, &key, freshness).await?
                    && is_conversation_deleted(&services, &key, Freshness::Latest).await?;
                Ok::<_, StoreError>(is_deleted)
            };
            match is_over.await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(conversation.id = %key.conversation_id, error = %error, "abort check failed, retrying");
                }
            }
        }
    }
}

/// True if the conversation is deleted or has no head.
pub(crate) async fn is_conversation_deleted(
    services: &Services,
    key: &ConversationKey,
    freshness: Freshness,
) -> Result<bool, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let stored = services.store.read(&partition, HEAD_ID, freshness).await?;
    let Some(stored) = stored else { return Ok(true) };
    Ok(documents::read_head(&stored).is_ok_and(|head| head.phase == Phase::Deleted))
}

async fn receive_signal(signals: &mut broadcast::Receiver<ConversationKey>, key: &ConversationKey) {
    loop {
        match signals.recv().await {
            Ok(aborted) if &aborted != key => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

async fn is_abort_pending(
    services: &Services,
    key: &ConversationKey,
    prompt: &PromptId,
    freshness: Freshness,
) -> Result<bool, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let item = services.store.read(&partition, abort_id(prompt).as_str(), freshness).await?;
    Ok(item.is_some_and(|stored| stored.document.kind == DocumentKind::Inbox))
}

/// True if the item aborts that prompt.
fn aborts_prompt(item: &InboxItem, prompt: Option<&PromptId>) -> bool {
    matches!(&item.body, InboxBody::Abort(abort) if abort.prompt_id.as_ref() == prompt && prompt.is_some())
}

/// True if the inbox aborts the running prompt.
pub(crate) fn is_aborted_by(head: &Head, inbox: &[WaitingItem]) -> bool {
    let prompt = head.prompt.as_ref().map(|run| &run.id);
    inbox.iter().any(|waiting| aborts_prompt(&waiting.item, prompt))
}

/// Adds the decisions of all open requests of an aborted prompt. An approver's that waits stays.
pub(crate) fn add_abort_decisions(services: &Services, head: &Head, inbox: &mut Vec<WaitingItem>) {
    if !is_aborted_by(head, inbox) {
        return;
    }
    let now = services.clock.now();
    let decisions = head.step_requests().map(|request| {
        let decision = expiry::automatic_decision(request, Verdict::Aborted, "abort", now);
        expiry::decision_item(decision)
    });
    inbox::add_new_items(inbox, decisions);
}
