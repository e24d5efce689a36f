//! Start and end of a turn.

use crate::content::Block;
use crate::event::{Empty, EventBody, TurnEnd};
use crate::message::{AssistantMessage, StopReason};
use crate::transition::Transition;

/// Opens a turn, once, before its first entry.
pub(super) fn open_turn(transition: &mut Transition) {
    let Some(run) = &mut transition.head.prompt else { return };
    if !std::mem::replace(&mut run.is_turn_open, true) {
        let starts_agent_run = std::mem::take(&mut run.is_between_attempts);
        run.run_turns = 1 + if starts_agent_run { 0 } else { run.run_turns };
        transition.head.turn += 1;
        if starts_agent_run {
            transition.emit(EventBody::AgentStart(Empty {}));
        }
        transition.emit(EventBody::TurnStart(Empty {}));
    }
}

/// Emits the end of the turn and marks it as closed.
pub(super) fn end_turn(transition: &mut Transition, message: u64, tool_results: Vec<u64>) {
    transition.emit(EventBody::TurnEnd(TurnEnd { message, tool_results }));
    if let Some(run) = &mut transition.head.prompt {
        run.is_turn_open = false;
    }
}

/// A message of the service itself, stored as a model response.
pub(super) fn service_message(text: String, transition: &Transition) -> AssistantMessage {
    let content = vec![Block::text(text)];
    AssistantMessage {
        model: "none".to_owned(),
        timestamp: transition.now,
        ..AssistantMessage::new_synthetic("turnwheel", content, StopReason::Stop)
    }
}
