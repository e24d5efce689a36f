//! A speculative transition: the result of a list of inputs, extended input by input and reused for
//! the commit if the head has not changed.

use std::time::Duration;

use crate::context::TurnContext;
use crate::conversation_state::ConversationState;
use turnwheel_conversation::step::{Input, step};
use turnwheel_conversation::transition::Transition;
use turnwheel_record::services::Services;
use turnwheel_storage::store::ETag;

/// The lease written by a commit starts with its transition. An older transition is computed again.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Inputs, and the transition they produce.
#[derive(Debug)]
pub struct CommitPlan {
    inputs: Vec<Input>,
    transition: Transition,
    context: TurnContext,
    /// Start of the transition, on the monotonic clock.
    began: Duration,
    /// Version of the head that the transition starts from.
    etag: ETag,
}

impl CommitPlan {
    /// Applies and appends one input.
    pub fn add(&mut self, input: Input) {
        step(&mut self.transition, &input);
        self.inputs.push(input);
    }

    pub fn transition(&self) -> &Transition {
        &self.transition
    }

    pub fn context(&self) -> &TurnContext {
        &self.context
    }

    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Takes the inputs to compute the plan again: the transition is void.
    pub(crate) fn take_inputs(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.inputs)
    }

    pub(crate) fn into_inputs(self) -> Vec<Input> {
        self.inputs
    }

    /// The inputs. Also the transition and its start, if it can be committed unchanged.
    pub fn into_parts(
        self,
        etag: &ETag,
        now: Duration,
    ) -> (Vec<Input>, Option<(Transition, Duration)>) {
        let is_current = self.etag == *etag && now.saturating_sub(self.began) <= AGE_MAX;
        (self.inputs, is_current.then_some((self.transition, self.began)))
    }
}

impl ConversationState {
    /// Applies the inputs to a copy of the current head.
    pub fn plan(&self, services: &Services, inputs: Vec<Input>) -> CommitPlan {
        let began = services.clock.monotonic();
        let mut context = self.context(services);
        let transition = self.apply_inputs(services, &context, &inputs);
        context.set_run_prompt(self.run_prompt_after(&transition.head, &transition.entries));
        CommitPlan { inputs, transition, context, began, etag: self.etag.clone() }
    }

    pub(crate) fn build_transition(&self, services: &Services, inputs: &[Input]) -> Transition {
        self.apply_inputs(services, &self.context(services), inputs)
    }

    fn apply_inputs(
        &self,
        services: &Services,
        context: &TurnContext,
        inputs: &[Input],
    ) -> Transition {
        let (head, response) = (self.head.clone(), self.response.clone());
        let policy = context.policy(services, &self.head);
        let mut transition = Transition::new(head, response, policy, services.clock.now());
        transition.buffered.clone_from(&self.buffered);
        for input in inputs {
            step(&mut transition, input);
        }
        transition
    }
}
