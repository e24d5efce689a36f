//! The inputs of the state machine and their parts.

use std::collections::BTreeMap;

use crate::action::{ActionOrigin, HookActions, StartChanges};
use crate::content::Block;
use crate::destination::Destination;
use crate::entry::Output;
use crate::frame_entry::FrameInput;
use crate::input_repair::RefusedInput;
use crate::message::{AssistantMessage, Rejection, ToolResultMessage, WorkspaceFile};
use crate::pause::Pause;
use crate::phase::OnUnknown;
use crate::plugin_state::PluginStateChange;
use crate::question::QuestionSpec;
use crate::request::Effect;
use crate::step::budget::BudgetInput;
use crate::step::compaction::SummaryAttempt;
use crate::step::retry::FailureKind;
use crate::transition::{FinishTurn, PendingItem};
use crate::unknown_members::Extra;
use crate::usage::Usage;
use crate::waiting_command::CommandRun;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;

/// An input of the state machine: a fact that the driver found out, or an action that it took.
///
/// The same inputs on the same head produce the same transition, so the driver can compute a
/// transition again after a lost commit.
#[derive(Clone, Debug)]
pub enum Input {
    /// All waiting inbox items, oldest first. [`Input::DrainInbox`] applies them, or a response
    /// that would end the run.
    InboxRead(Vec<PendingItem>),
    /// Applies the pending inbox items that can be applied in this state.
    DrainInbox,
    /// This worker took over the lease of a worker that stopped during a step.
    LeaseTakenOver,
    /// The model returned a response, or the model call failed.
    ResponseReceived(Box<ResponseInput>),
    /// The next model input leaves too little room in the context window.
    ContextWindowExceeded,
    /// Instructions and tools alone exceed the threshold of compactions, with the text for users; or they
    /// no longer do.
    FixedPartMeasured(Option<String>),
    /// An attempt to create a summary ended.
    SummaryFinished(Box<SummaryAttempt>),
    /// The preflight of a ready call ended.
    ToolCallChecked { index: usize, preflight: Preflight },
    /// A started call returned its result.
    ToolCallReturned { index: usize, result: Box<CallResult> },
    /// Appends buffered results that are next in source order and had no room in earlier commits.
    FlushBufferedResults,
    /// The result of a started call was lost, so it is unknown whether the call took effect.
    ToolOutcomeUnknown { index: usize, reason: String, expires_at: Timestamp },
    /// The step cannot succeed: it repeatedly kills its process, or no commit can hold it.
    Poisoned { reason: String },
    /// A budget check, a settlement or a deferral of a model call.
    BudgetChecked(Box<BudgetInput>),
    /// The next step does not start because an operator paused the agent or the tool.
    Paused(Pause),
    /// The decision of an extension on the turn that a later input of the same commit closes.
    FinishTurn(FinishTurn),
    /// Actions of an extension. They follow the input of their hook. Those of `turn_end` follow the
    /// decision, those of `tool_call` may precede the check, so that an abort starts no call.
    HookActions(Box<HookActions>),
    /// The hooks of a command that waits for answers have run again.
    CommandRan(Box<CommandRun>),
    /// Changes of extensions to an agent run that the inbox read of the same commit starts.
    StartChanges(Box<StartChanges>),
}

/// Why the inputs of a commit become those of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replan {
    /// Senders changed inbox items. The plan is made again on the current inbox.
    ChangedInbox,
    /// The inbox cannot be read. The next commit reads it.
    WithoutInbox,
    /// The commit is too large. The next commit has the rest.
    SmallerCommit,
}

impl Input {
    /// The inputs that stay in a commit that replaces theirs.
    pub fn retain(inputs: &[Self], replan: Replan) -> Vec<Self> {
        inputs.iter().filter(|input| input.survives(replan)).cloned().collect()
    }

    /// False: speculative. A stage before the commit adds the input again, or the next commit does.
    fn survives(&self, replan: Replan) -> bool {
        let is_decision_kept = replan != Replan::ChangedInbox;
        match self {
            Self::LeaseTakenOver
            | Self::ResponseReceived(_)
            | Self::SummaryFinished(_)
            | Self::ToolCallReturned { .. }
            | Self::FlushBufferedResults
            | Self::ToolOutcomeUnknown { .. }
            | Self::Poisoned { .. } => true,
            Self::InboxRead(_) | Self::DrainInbox => replan == Replan::ChangedInbox,
            Self::ContextWindowExceeded | Self::FixedPartMeasured(_) | Self::BudgetChecked(_) => {
                replan != Replan::SmallerCommit
            }
            Self::ToolCallChecked { .. }
            | Self::Paused(_)
            | Self::CommandRan(_)
            | Self::StartChanges(_) => false,
            Self::FinishTurn(_) => is_decision_kept,
            Self::HookActions(hook) => match hook.origin {
                ActionOrigin::Kept => true,
                ActionOrigin::WithTurnDecision => is_decision_kept,
                ActionOrigin::Recomputed => false,
            },
        }
    }

    /// True for a decision or action that has no effect without another input.
    pub fn is_of_extension(&self) -> bool {
        matches!(self, Self::FinishTurn(_) | Self::HookActions(_))
    }
}

/// A finished model call: the response or the failure.
#[derive(Clone, Debug)]
pub struct ResponseInput {
    /// The part of the input that the service refused, if this is a refusal.
    pub refused: Option<RefusedInput>,
    pub message: AssistantMessage,
    /// Revision of the agent file that the call used.
    pub revision: String,
    pub started_at: Timestamp,
    /// Kind of the failure; meaningless if the call succeeded.
    pub failure_kind: FailureKind,
    /// Type of the prompt's error if the failure ends it: `model`, or `plugin` for a call that a
    /// plugin prevented.
    pub error_type: &'static str,
    /// Validation error of a final response that does not fit the agent's response schema.
    pub schema_error: Option<String>,
    /// The frame of the call. `None`: that in the head, if there is one. Stored only with a complete
    /// response.
    pub frame: Option<FrameInput>,
    /// Changes that plugins made before the call. Stored only with a complete response.
    pub plugin_state: Vec<PluginStateChange>,
}

/// Outcome of the preflight of a tool call.
#[derive(Clone, Debug)]
pub enum Preflight {
    /// The call will not run: unknown tool, invalid arguments or blocked. The model receives the
    /// text.
    Rejected {
        text: String,
        /// True if the rejection asks to end the prompt without another model call.
        terminate: bool,
    },
    /// The call with index `earlier` must finish first: both change files or the state of plugins, or
    /// both are the same write.
    BlockedBy { earlier: usize },
    /// An extension asks a question. The call is checked again when it has its answer.
    Asked(Box<AskedQuestion>),
    /// The call may start, or needs an approval first.
    Admitted(Box<CallPlan>),
}

/// A question about a call, and the call to which its answer applies.
#[derive(Clone, Debug)]
pub struct AskedQuestion {
    pub question: QuestionSpec,
    /// See [`approval_binding`](crate::approval_binding).
    pub binding: String,
    /// `None`: the call runs in the app itself.
    pub destination: Option<Destination>,
    /// Display name of the tool. `None`: its name.
    pub label: Option<String>,
}

/// Facts about a call that may start.
#[derive(Clone, Debug)]
pub struct CallPlan {
    pub effect: Effect,
    pub on_unknown: OnUnknown,
    /// Time after which the attempt is certainly over.
    pub until: Timestamp,
    /// Scope of an approval of the call. See [`approval_binding`](crate::approval_binding).
    pub binding: String,
    /// `None`: the call runs in the app itself.
    pub destination: Option<Destination>,
    /// Display name of the tool. `None`: its name.
    pub label: Option<String>,
    /// Arguments that an extension set. `None`: those of the model's call.
    pub changed_arguments: Option<RawJson>,
    /// The arguments that are sent. `None`: the model's, as they are written.
    pub sent_arguments: Option<RawJson>,
    /// Hash of tool name and arguments. It is equal for equal calls in every deployment.
    pub fingerprint: String,
    /// Set if the call needs an approval.
    pub approval: Option<ApprovalSpec>,
}

/// Approval that a call needs before it starts.
#[derive(Clone, Debug)]
pub struct ApprovalSpec {
    pub reason: String,
    pub approvers: Vec<String>,
    pub not_requester: bool,
    pub expires_at: Timestamp,
    /// See [`Request::refusal`](crate::request::Request::refusal).
    pub refusal: Option<String>,
}

/// The result of a tool call, as the entry stores it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallResult {
    pub content: Vec<Block>,
    pub details: Option<RawJson>,
    pub structured: Option<RawJson>,
    /// Usage of the call itself, in addition to the model's.
    pub usage: Option<Box<Usage>>,
    pub is_error: bool,
    /// True if the result asks to end the prompt without another model call.
    pub terminate: bool,
    pub rejected: Option<Rejection>,
    pub outputs: Vec<Output>,
    pub workspace: BTreeMap<String, Option<WorkspaceFile>>,
    /// Change of the state of the tool's plugin.
    pub state: Option<PluginStateChange>,
}

impl CallResult {
    /// An error result with empty details, as the source format has it (TO-04).
    pub fn error(text: impl Into<String>) -> Self {
        let details = Some(RawJson::from_value(&serde_json::Map::new()));
        Self { content: vec![Block::text(text)], details, is_error: true, ..Self::default() }
    }

    /// The result of a call that an approver has rejected. `refusal` replaces the general text.
    pub(super) fn from_rejection(rejection: &Rejection, refusal: Option<&str>) -> Self {
        Self { rejected: Some(rejection.clone()), ..Self::error(rejection.result_text(refusal)) }
    }

    /// The message of this result for the call that it answers.
    pub fn to_message(
        &self,
        tool_call_id: &str,
        tool_name: &str,
        timestamp: Timestamp,
    ) -> ToolResultMessage {
        ToolResultMessage {
            tool_call_id: tool_call_id.to_owned(),
            tool_name: tool_name.to_owned(),
            content: self.content.clone(),
            details: self.details.clone(),
            structured_content: self.structured.clone(),
            usage: self.usage.as_deref().map(|usage| Box::new((*usage).into())),
            is_error: self.is_error,
            terminate: self.terminate,
            rejected: self.rejected.clone(),
            timestamp,
            workspace: self.workspace.clone(),
            extra: Extra::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_platform::ids::PromptId;

    fn each_input() -> Vec<Input> {
        let now = Timestamp(0);
        let pause = Pause { target: "agent".to_owned(), since: now, recheck_at: now };
        let start = StartChanges {
            prompt_id: PromptId::new("pr_1"),
            messages: Vec::new(),
            system_prompt: None,
        };
        vec![
            Input::InboxRead(Vec::new()),
            Input::DrainInbox,
            Input::LeaseTakenOver,
            Input::ContextWindowExceeded,
            Input::FixedPartMeasured(None),
            Input::ToolCallChecked { index: 0, preflight: Preflight::BlockedBy { earlier: 0 } },
            Input::ToolCallReturned { index: 0, result: Box::default() },
            Input::FlushBufferedResults,
            Input::ToolOutcomeUnknown { index: 0, reason: String::new(), expires_at: now },
            Input::Poisoned { reason: String::new() },
            Input::BudgetChecked(Box::new(BudgetInput::RecheckAt(now))),
            Input::Paused(pause),
            Input::FinishTurn(FinishTurn::End),
            Input::StartChanges(Box::new(start)),
        ]
    }

    fn dropped(replan: Replan) -> Vec<String> {
        let dropped = each_input().into_iter().filter(|input| !input.survives(replan));
        let name = |input| format!("{input:?}").split(['(', ' ']).next().unwrap().to_owned();
        dropped.map(name).collect()
    }

    #[test]
    fn changed_inbox_drops_inputs_of_its_stages() {
        assert_eq!(
            dropped(Replan::ChangedInbox),
            ["ToolCallChecked", "Paused", "FinishTurn", "StartChanges"]
        );
    }

    #[test]
    fn commit_without_inbox_keeps_results() {
        assert_eq!(
            dropped(Replan::WithoutInbox),
            ["InboxRead", "DrainInbox", "ToolCallChecked", "Paused", "StartChanges"]
        );
    }

    #[test]
    fn smaller_commit_keeps_only_facts_and_decisions() {
        assert_eq!(
            dropped(Replan::SmallerCommit),
            [
                "InboxRead",
                "DrainInbox",
                "ContextWindowExceeded",
                "FixedPartMeasured",
                "ToolCallChecked",
                "BudgetChecked",
                "Paused",
                "StartChanges"
            ]
        );
    }
}
