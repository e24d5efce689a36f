//! The stages that extend the plan of a commit, in their order, and the commits that each runs in.

use crate::commit::CommitKind;
use crate::finish_turn::run_finish_turn;
use crate::leased_conversation::LeasedConversation;
use crate::pause;
use crate::plan::CommitPlan;
use crate::waiting_commands::run_waiting_commands;
use turnwheel_record::error::TurnError;

/// A stage. It reads the transition so far and adds inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before the calls: a command may abort the prompt.
    WaitingCommands,
    ReadyCalls,
    FinishTurn,
    AgentHooks,
    ContextWindow,
    Pause,
    Reservation,
}

const STAGES: [Stage; 7] = [
    Stage::WaitingCommands,
    Stage::ReadyCalls,
    Stage::FinishTurn,
    Stage::AgentHooks,
    Stage::ContextWindow,
    Stage::Pause,
    Stage::Reservation,
];

/// The inbox of a commit's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InboxRead {
    /// Read just before the plan.
    First,
    /// Read again: senders changed items that the first plan applied.
    Again,
    /// The store was unavailable. Known results are committed, and nothing new may start, because
    /// an abort could be waiting.
    Unavailable,
}

impl Stage {
    /// True if the stage runs before a commit of this kind.
    fn runs_before(self, kind: CommitKind, inbox: InboxRead) -> bool {
        match kind {
            CommitKind::PendingWork
            | CommitKind::Response
            | CommitKind::ToolResults
            | CommitKind::Summary => {}
            // They change only the head.
            CommitKind::Reservation | CommitKind::Settlement | CommitKind::Renewal => return false,
        }
        match self {
            // They decide on results, which are committed in any case.
            Self::FinishTurn | Self::AgentHooks => true,
            Self::ReadyCalls | Self::Pause => inbox != InboxRead::Unavailable,
            Self::WaitingCommands => match inbox {
                // After an effect the next delivery runs them.
                InboxRead::First => kind == CommitKind::PendingWork,
                InboxRead::Again => true,
                InboxRead::Unavailable => false,
            },
            // A repeated plan keeps the inputs of the first one. `next_effect` reserves the budget
            // of a call that has no reservation.
            Self::ContextWindow | Self::Reservation => inbox == InboxRead::First,
        }
    }
}

/// Runs the stages before a commit of this kind. The caller awaits it as a trait object: the compiler
/// would check the whole future for `Send` at each task that has it.
///
/// # Errors
/// The lease was lost, or an entry could not be read: stop the delivery.
pub(crate) async fn run_stages(
    conversation: &mut LeasedConversation<'_>,
    plan: &mut CommitPlan,
    kind: CommitKind,
    inbox: InboxRead,
) -> Result<(), TurnError> {
    for stage in STAGES.into_iter().filter(|stage| stage.runs_before(kind, inbox)) {
        match stage {
            Stage::WaitingCommands => run_waiting_commands(conversation, plan).await?,
            Stage::ReadyCalls => conversation.check_ready_calls(plan).await?,
            Stage::FinishTurn => run_finish_turn(conversation, plan).await?,
            Stage::AgentHooks => conversation.run_agent_hooks(plan).await?,
            Stage::ContextWindow => conversation.check_context_window(plan).await?,
            Stage::Pause => {
                pause::pause_model_call(conversation.services, &conversation.state.head, plan);
            }
            // The first call of a delivery is always made.
            Stage::Reservation if kind == CommitKind::PendingWork => {
                conversation.plan_reservation(plan).await?;
            }
            Stage::Reservation => conversation.reserve_next(plan).await?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(kind: CommitKind, inbox: InboxRead) -> Vec<Stage> {
        STAGES.into_iter().filter(|stage| stage.runs_before(kind, inbox)).collect()
    }

    #[test]
    fn first_commit_of_a_delivery_runs_all_stages() {
        assert_eq!(stages(CommitKind::PendingWork, InboxRead::First), STAGES);
    }

    #[test]
    fn commit_of_an_effect_runs_all_but_commands() {
        for kind in [CommitKind::Response, CommitKind::ToolResults, CommitKind::Summary] {
            assert_eq!(stages(kind, InboxRead::First), STAGES[1..]);
        }
    }

    #[test]
    fn commit_without_inbox_starts_nothing() {
        use CommitKind::{PendingWork, Response, Summary, ToolResults};
        for kind in [PendingWork, Response, ToolResults, Summary] {
            let expected = [Stage::FinishTurn, Stage::AgentHooks];
            assert_eq!(stages(kind, InboxRead::Unavailable), expected);
        }
    }

    #[test]
    fn repeated_plan_keeps_measurement_and_reservation() {
        use CommitKind::{PendingWork, Response, Summary, ToolResults};
        for kind in [PendingWork, Response, ToolResults, Summary] {
            let expected = [
                Stage::WaitingCommands,
                Stage::ReadyCalls,
                Stage::FinishTurn,
                Stage::AgentHooks,
                Stage::Pause,
            ];
            assert_eq!(stages(kind, InboxRead::Again), expected);
        }
    }

    #[test]
    fn commits_of_the_head_alone_run_no_stage() {
        for kind in [CommitKind::Reservation, CommitKind::Settlement, CommitKind::Renewal] {
            for inbox in [InboxRead::First, InboxRead::Again, InboxRead::Unavailable] {
                assert_eq!(stages(kind, inbox), []);
            }
        }
    }
}
