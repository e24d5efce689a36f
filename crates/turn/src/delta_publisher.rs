//! Publishes the deltas of a model response to live readers of this instance. It also collects
//! them: an aborted response keeps the published content.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use turnwheel_conversation::content::Block;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_model::Listener;
use turnwheel_platform::ids::{ConversationKey, EntryId};
use turnwheel_storage::live::{Live, LiveEvent, LiveResponse, PartialResponse};

pub(crate) struct DeltaPublisher<'a> {
    live: &'a dyn Live,
    key: &'a ConversationKey,
    message_id: EntryId,
    published: Mutex<PublishedResponse>,
}

struct PublishedResponse {
    partial_response: PartialResponse,
    /// Indexes of content blocks that have started and not ended.
    open_blocks: BTreeSet<usize>,
}

impl fmt::Debug for DeltaPublisher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeltaPublisher")
            .field("message_id", &self.message_id)
            .finish_non_exhaustive()
    }
}

impl<'a> DeltaPublisher<'a> {
    /// Publishes the start of the response.
    pub(crate) fn start(
        live: &'a dyn Live,
        key: &'a ConversationKey,
        response: LiveResponse,
    ) -> Self {
        let message_id = response.message_id.clone();
        live.publish(key, LiveEvent::ResponseStarted(response.clone()));
        let published = Mutex::new(PublishedResponse {
            partial_response: PartialResponse::new(response),
            open_blocks: BTreeSet::new(),
        });
        Self { live, key, message_id, published }
    }

    /// Makes readers discard everything published.
    pub(crate) fn publish_reset(&self) {
        self.live.publish(self.key, LiveEvent::Reset { message_id: self.message_id.clone() });
    }

    /// Ends open text and thinking blocks, and returns the published content. An incomplete tool
    /// call gets no end event. No further event may follow.
    pub(crate) fn close(&self) -> Vec<Block> {
        let (content, open) = {
            let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
            (
                published.partial_response.snapshot().content,
                std::mem::take(&mut published.open_blocks),
            )
        };
        let ends = open.into_iter().filter_map(|content_index| {
            Some(match content.get(content_index)? {
                Block::Text(text) => {
                    AssistantMessageEvent::TextEnd { content_index, content: text.text.clone() }
                }
                Block::Thinking(thought) => AssistantMessageEvent::ThinkingEnd {
                    content_index,
                    content: thought.thinking.clone(),
                },
                Block::ToolCall(_) | Block::Image(_) | Block::File(_) | Block::Other(_) => {
                    return None;
                }
            })
        });
        for end in ends {
            self.publish(end);
        }
        content
    }

    fn publish(&self, event: AssistantMessageEvent) {
        self.live
            .publish(self.key, LiveEvent::Delta { message_id: self.message_id.clone(), event });
    }
}

impl Listener for DeltaPublisher<'_> {
    fn on_event(&self, event: AssistantMessageEvent) {
        {
            let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
            published.partial_response.apply(&event);
            match &event {
                AssistantMessageEvent::TextStart { content_index }
                | AssistantMessageEvent::ThinkingStart { content_index } => {
                    published.open_blocks.insert(*content_index);
                }
                AssistantMessageEvent::TextEnd { content_index, .. }
                | AssistantMessageEvent::ThinkingEnd { content_index, .. } => {
                    published.open_blocks.remove(content_index);
                }
                AssistantMessageEvent::TextDelta { .. }
                | AssistantMessageEvent::ThinkingDelta { .. }
                | AssistantMessageEvent::ToolcallStart { .. }
                | AssistantMessageEvent::ToolcallDelta { .. }
                | AssistantMessageEvent::ToolcallEnd { .. } => {}
            }
        }
        self.publish(event);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use turnwheel_platform::ids::{ConversationId, PromptId, TenantId, UserId};
    use turnwheel_storage::live::{EmbeddedLive, ModelIdentity};

    #[test]
    fn aborted_response_closes_open_blocks_and_keeps_content() {
        let live = EmbeddedLive::default();
        let key = ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new("c"),
        };
        let (_, mut reader) = live.subscribe(&key);
        let response = LiveResponse {
            epoch: 1,
            event_seq: 0,
            message_id: EntryId::new("m"),
            number: 1,
            prompt_id: PromptId::new("p"),
            turn: 1,
            is_turn_start: false,
            is_agent_start: false,
            identity: ModelIdentity::default(),
        };
        let publisher = DeltaPublisher::start(&live, &key, response);
        let start = |content_index| AssistantMessageEvent::TextStart { content_index };
        publisher.on_event(start(0));
        publisher.on_event(AssistantMessageEvent::TextEnd {
            content_index: 0,
            content: "whole".to_owned(),
        });
        publisher.on_event(start(1));
        publisher.on_event(AssistantMessageEvent::TextDelta {
            content_index: 1,
            delta: "par".to_owned(),
        });
        let call = AssistantMessageEvent::ToolcallStart {
            content_index: 2,
            id: "c1".to_owned(),
            tool_name: "pay".to_owned(),
        };
        publisher.on_event(call);
        assert_eq!(
            publisher.close().iter().take(2).collect::<Vec<_>>(),
            [&Block::text("whole"), &Block::text("par")]
        );
        publisher.close();
        let events: Vec<LiveEvent> =
            std::iter::from_fn(|| reader.next_event().now_or_never()).collect();
        let ended: Vec<usize> = events
            .iter()
            .filter_map(|event| {
                let LiveEvent::Delta { event, .. } = event else { return None };
                let AssistantMessageEvent::TextEnd { content_index, .. } = event else {
                    return None;
                };
                Some(*content_index)
            })
            .collect();
        assert_eq!(ended, [0, 1]);
    }
}
