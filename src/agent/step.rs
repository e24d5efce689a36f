//! The step function: it applies one input to the transition.
//!
//! It cannot fail: every input is defined in every state, if only as "ignored".

mod answer;
mod budget_alerts;
mod calls;
mod compacting;
mod ending;
mod finish_turn;
mod going_on;
mod landing;
mod paying;
mod response_schema;
mod results;
mod retrying;
mod stopping;
mod taking_in;

use std::collections::BTreeMap;

use crate::agent::brake::Brake;
use crate::agent::content::Block;
use crate::agent::draft::{Draft, Pending};
use crate::agent::entry::Output;
use crate::agent::message::{AssistantMessage, Rejection, WorkspaceFile};
use crate::agent::phase::OnUnknown;
use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::agent::usage::Usage;
use crate::clock::Timestamp;

pub use answer::CALLS_MAX;
pub use calls::UNKNOWN_OUTCOME;
pub use compacting::{CompactInput, Summarised, SummaryOutcome, wants_measuring};
pub use finish_turn::{ClosedTurn, FinishTurn};
pub use paying::{Asks, Paying, own_shortage};
pub use retrying::{Setback, wait_after};
pub use taking_in::{gives_way, is_understood};

/// An input of the state machine: a fact that the driver found out, or an action that it took.
///
/// The same inputs on the same head produce the same transition, so the driver can compute a
/// transition again after a lost commit.
#[derive(Clone, Debug)]
pub enum Input {
    /// All waiting inbox items, oldest first. [`Input::DrainInbox`] applies them, or a response
    /// that would end the run.
    Looked(Vec<Pending>),
    /// Applies the pending inbox items that can be applied in this state.
    TakeIn,
    /// This worker took over the lease of a worker that stopped during a step.
    TakenOver,
    /// The model returned a response, or the model call failed.
    Answered(Box<Answered>),
    /// The next model input leaves too little room in the context window.
    Crowded,
    /// An attempt to create a summary ended.
    Summarised(Box<Summarised>),
    /// The preflight of a ready call ended.
    Prepared { index: usize, gate: Gate },
    /// A started call returned its result.
    Returned { index: usize, result: Box<CallResult> },
    /// Appends buffered results that are next in source order and had no room in earlier commits.
    Placing,
    /// The result of a started call was lost, so it is unknown whether the call took effect.
    OutcomeUnknown { index: usize, reason: String, expires_at: Timestamp },
    /// The step cannot succeed: it repeatedly kills its process, or no commit can hold it.
    Poisoned { reason: String },
    /// A budget check, a settlement or a deferral of a model call.
    Paying(Box<Paying>),
    /// The next step does not start because an operator paused the agent or the tool.
    Braked(Brake),
    /// The decision of an extension on the turn that a later input of the same commit closes.
    FinishTurn(FinishTurn),
}

/// A finished model call: the response or the failure.
#[derive(Clone, Debug)]
pub struct Answered {
    pub message: AssistantMessage,
    /// Revision of the agent file that the call used.
    pub revision: String,
    pub started_at: Timestamp,
    /// Kind of the failure; meaningless if the call succeeded.
    pub setback: Setback,
    /// Validation error of a final response that does not fit the agent's response schema.
    pub misfit: Option<String>,
}

/// Outcome of the preflight of a tool call.
#[derive(Clone, Debug)]
pub enum Gate {
    /// The call will not run: unknown tool, invalid arguments or blocked. The model receives the
    /// text.
    Refused {
        text: String,
        /// True if the rejection asks to end the prompt without another model call.
        terminate: bool,
    },
    /// The call with index `earlier` must finish first: both change files, or both are the same
    /// write.
    Behind {
        earlier: usize,
    },
    /// The call may start, or needs an approval first.
    Open(Box<Start>),
}

/// Facts about a call that may start.
#[derive(Clone, Debug)]
pub struct Start {
    pub effect: Effect,
    pub on_unknown: OnUnknown,
    /// Time after which the attempt is certainly over.
    pub until: Timestamp,
    /// Hash of tool name, arguments and definition. An approval is valid for this hash only.
    pub binding: String,
    /// Hash of tool name and arguments. It is equal for equal calls in every deployment.
    pub fingerprint: String,
    /// Set if the call needs an approval.
    pub ask: Option<Asked>,
}

/// Approval that a call needs before it starts.
#[derive(Clone, Debug)]
pub struct Asked {
    pub reason: String,
    pub approvers: Vec<String>,
    pub not_requester: bool,
    pub expires_at: Timestamp,
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
}

impl CallResult {
    /// An error result with empty details, as the source format has it (TO-04).
    pub fn error(text: impl Into<String>) -> Self {
        let details = Some(RawJson::of(&serde_json::Map::new()));
        Self { content: vec![Block::text(text)], details, is_error: true, ..Self::default() }
    }

    /// The result of a call that an approver has rejected.
    fn rejected(rejection: &Rejection) -> Self {
        Self { rejected: Some(rejection.clone()), ..Self::error(rejection.model_text()) }
    }
}

/// Applies one input to the transition.
pub fn step(draft: &mut Draft, input: &Input) {
    match input {
        Input::Looked(pending) => taking_in::look(draft, pending),
        Input::TakeIn => taking_in::take_in(draft),
        Input::TakenOver => calls::take_over(draft),
        Input::Answered(answered) => answer::accept(draft, answered),
        Input::Crowded => compacting::crowd(draft),
        Input::Summarised(summarised) => compacting::accept(draft, summarised),
        Input::Prepared { index, gate } => calls::pass_gate(draft, *index, gate),
        Input::Returned { index, result } => calls::settle(draft, *index, result),
        Input::Placing => results::put_kept(draft),
        Input::OutcomeUnknown { index, reason, expires_at } => {
            calls::lose_outcome(draft, *index, reason, *expires_at);
        }
        Input::Poisoned { reason } => ending::poison(draft, reason),
        Input::Paying(paying) => paying::pay(draft, paying),
        Input::Braked(brake) => {
            draft.head.brake = draft.head.step_owed_at(draft.now).map(|_| brake.clone());
        }
        Input::FinishTurn(decision) => draft.finish_turn = Some(*decision),
    }
}
