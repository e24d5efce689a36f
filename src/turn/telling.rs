//! Publishes the deltas of a model response to live readers of this instance. It also collects
//! them: an aborted response keeps the published content.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::agent::content::Block;
use crate::agent::event::AnswerEvent;
use crate::ids::{ConversationKey, EntryId};
use crate::live::{Live, LiveAnswer, LiveEvent, UnderWay};
use crate::model::Listener;

pub(super) struct Telling<'a> {
    live: &'a dyn Live,
    key: &'a ConversationKey,
    message_id: EntryId,
    told: Mutex<Told>,
}

struct Told {
    answer: UnderWay,
    /// Indexes of content blocks that have started and not ended.
    open: BTreeSet<usize>,
}

impl fmt::Debug for Telling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeltaPublisher").field("message_id", &self.message_id).finish_non_exhaustive()
    }
}

impl<'a> Telling<'a> {
    /// Publishes the start of the response.
    pub(super) fn begin(live: &'a dyn Live, key: &'a ConversationKey, answer: LiveAnswer) -> Self {
        let message_id = answer.message_id.clone();
        live.publish(key, LiveEvent::AnswerStarted(answer.clone()));
        let told = Mutex::new(Told { answer: UnderWay::new(answer), open: BTreeSet::new() });
        Self { live, key, message_id, told }
    }

    /// Makes readers discard everything published.
    pub(super) fn reset(&self) {
        self.live.publish(self.key, LiveEvent::Reset { message_id: self.message_id.clone() });
    }

    /// Ends open text and thinking blocks, and returns the published content. An incomplete tool
    /// call gets no end event. No further event may follow.
    pub(super) fn cut(&self) -> Vec<Block> {
        let (content, open) = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            (told.answer.snapshot().content, std::mem::take(&mut told.open))
        };
        let ends = open.into_iter().filter_map(|content_index| {
            Some(match content.get(content_index)? {
                Block::Text(text) => {
                    AnswerEvent::TextEnd { content_index, content: text.text.clone() }
                }
                Block::Thinking(thought) => {
                    AnswerEvent::ThinkingEnd { content_index, content: thought.thinking.clone() }
                }
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

    fn publish(&self, event: AnswerEvent) {
        self.live
            .publish(self.key, LiveEvent::Delta { message_id: self.message_id.clone(), event });
    }
}

impl Listener for Telling<'_> {
    fn hear(&self, event: AnswerEvent) {
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.answer.take_in(&event);
            match &event {
                AnswerEvent::TextStart { content_index }
                | AnswerEvent::ThinkingStart { content_index } => {
                    told.open.insert(*content_index);
                }
                AnswerEvent::TextEnd { content_index, .. }
                | AnswerEvent::ThinkingEnd { content_index, .. } => {
                    told.open.remove(content_index);
                }
                AnswerEvent::TextDelta { .. }
                | AnswerEvent::ThinkingDelta { .. }
                | AnswerEvent::ToolcallStart { .. }
                | AnswerEvent::ToolcallDelta { .. }
                | AnswerEvent::ToolcallEnd { .. } => {}
            }
        }
        self.publish(event);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::ids::{ConversationId, PromptId, TenantId, UserId};
    use crate::live::{Author, EmbeddedLive};

    #[test]
    fn a_cut_answer_ends_what_it_had_begun_and_is_what_was_told() {
        let live = EmbeddedLive::default();
        let key = ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new("c"),
        };
        let (_, mut reader) = live.subscribe(&key);
        let answer = LiveAnswer {
            epoch: 1,
            message_id: EntryId::new("m"),
            prompt_id: PromptId::new("p"),
            turn: 1,
            begins_turn: false,
            begins_agent: false,
            author: Author::default(),
        };
        let telling = Telling::begin(&live, &key, answer);
        let start = |content_index| AnswerEvent::TextStart { content_index };
        telling.hear(start(0));
        telling.hear(AnswerEvent::TextEnd { content_index: 0, content: "whole".to_owned() });
        telling.hear(start(1));
        telling.hear(AnswerEvent::TextDelta { content_index: 1, delta: "par".to_owned() });
        let call = AnswerEvent::ToolcallStart {
            content_index: 2,
            id: "c1".to_owned(),
            tool_name: "pay".to_owned(),
        };
        telling.hear(call);
        assert_eq!(
            telling.cut().iter().take(2).collect::<Vec<_>>(),
            [&Block::text("whole"), &Block::text("par")]
        );
        telling.cut();
        let told: Vec<LiveEvent> = std::iter::from_fn(|| reader.next().now_or_never()).collect();
        let ended: Vec<usize> = told
            .iter()
            .filter_map(|event| {
                let LiveEvent::Delta { event, .. } = event else { return None };
                let AnswerEvent::TextEnd { content_index, .. } = event else { return None };
                Some(*content_index)
            })
            .collect();
        assert_eq!(ended, [0, 1]);
    }
}
