//! One step: an input changes what is owed. Cannot fail: every input has a meaning in every state, if only "ignored".

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

/// What the driver found out or did. The same inputs on the same head give the same draft, so a lost commit is made anew.
#[derive(Clone, Debug)]
pub enum Input {
    /// All that waits in the inbox, oldest first. It lands where the loop looks: with [`Input::TakeIn`], or where an answer
    /// would end the run.
    Looked(Vec<Pending>),
    /// What was looked at and can land now does.
    TakeIn,
    /// The worker that held the conversation stopped in the middle of something.
    TakenOver,
    /// The model answered, or failed.
    Answered(Box<Answered>),
    /// What the model is sent next comes too close to its window.
    Crowded,
    /// A summary was made, or could not be.
    Summarised(Box<Summarised>),
    /// A ready call was looked at.
    Prepared { index: usize, gate: Gate },
    /// A started call gave its result.
    Returned { index: usize, result: Box<CallResult> },
    /// Kept results whose turn has come are put in their places: there was no room for them before.
    Placing,
    /// A started call's answer was lost, and nobody knows whether it happened.
    OutcomeUnknown { index: usize, reason: String, expires_at: Timestamp },
    /// The step is proven to kill its process, or can never be made.
    Poisoned { reason: String },
    /// Something about money.
    Paying(Box<Paying>),
    /// What comes next is not begun: the agent or the tool is paused.
    Braked(Brake),
    /// An extension has decided on the turn that a later input of the same commit closes.
    FinishTurn(FinishTurn),
}

#[derive(Clone, Debug)]
pub struct Answered {
    pub message: AssistantMessage,
    /// Of the agent file that was in force.
    pub revision: String,
    pub started_at: Timestamp,
    /// What a failure means; of no meaning to an answer that has not failed.
    pub setback: Setback,
    /// Why a last response does not fit the agent's response schema, as the driver has found it.
    pub misfit: Option<String>,
}

/// What stands between a call and its start.
#[derive(Clone, Debug)]
pub enum Gate {
    /// It will not run: unknown tool, bad arguments, blocked. The model reads the text.
    Refused {
        text: String,
        /// Whether whoever refused it asks for an end without another answer.
        terminate: bool,
    },
    /// That call has to be done first: both change files, or are the same write.
    Behind {
        earlier: usize,
    },
    Open(Box<Start>),
}

#[derive(Clone, Debug)]
pub struct Start {
    pub effect: Effect,
    pub on_unknown: OnUnknown,
    /// When the attempt is certainly over.
    pub until: Timestamp,
    /// Hash of tool name, arguments and definition.
    pub binding: String,
    /// Hash of tool name and arguments: equal calls have equal ones, whatever the deployment.
    pub fingerprint: String,
    pub ask: Option<Asked>,
}

/// A person has to agree first.
#[derive(Clone, Debug)]
pub struct Asked {
    pub reason: String,
    pub approvers: Vec<String>,
    pub not_requester: bool,
    pub expires_at: Timestamp,
}

/// What a tool gave, as the record will have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallResult {
    pub content: Vec<Block>,
    pub details: Option<RawJson>,
    pub structured: Option<RawJson>,
    /// What the call cost beside the model.
    pub usage: Option<Box<Usage>>,
    pub is_error: bool,
    /// Asks for an end without another answer.
    pub terminate: bool,
    pub rejected: Option<Rejection>,
    pub outputs: Vec<Output>,
    pub workspace: BTreeMap<String, Option<WorkspaceFile>>,
}

impl CallResult {
    /// With empty details, as the sources have them (TO-04).
    pub fn error(text: impl Into<String>) -> Self {
        let details = Some(RawJson::of(&serde_json::Map::new()));
        Self { content: vec![Block::text(text)], details, is_error: true, ..Self::default() }
    }

    /// The result of a call that an approver has rejected.
    fn rejected(rejection: &Rejection) -> Self {
        Self { rejected: Some(rejection.clone()), ..Self::error(rejection.model_text()) }
    }
}

/// Applies one input to the draft.
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
