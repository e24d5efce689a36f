//! A speculative transition: the result of a list of inputs, extended input by input and reused for
//! the commit if the head has not changed.

use std::time::Duration;

use crate::agent::draft::Draft;
use crate::agent::step::{Input, step};
use crate::store::ETag;
use crate::turn::hold::Hold;

/// The lease written by a commit starts with its transition. An older transition is computed again.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Inputs, and the transition they produce.
pub(super) struct Tried {
    inputs: Vec<Input>,
    draft: Draft,
    /// Start of the transition, on the monotonic clock.
    began: Duration,
    /// Version of the head that the transition starts from.
    etag: ETag,
}

impl Tried {
    /// Applies and appends one input.
    pub(super) fn add(&mut self, input: Input) {
        step(&mut self.draft, &input);
        self.inputs.push(input);
    }

    pub(super) fn draft(&self) -> &Draft {
        &self.draft
    }

    pub(super) fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Takes the inputs to compute the plan again: the transition is void.
    pub(super) fn take_inputs(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.inputs)
    }

    pub(super) fn into_inputs(self) -> Vec<Input> {
        self.inputs
    }

    /// The inputs. Also the transition and its start, if it can be committed unchanged.
    pub(super) fn into_parts(self, hold: &Hold<'_>) -> (Vec<Input>, Option<(Draft, Duration)>) {
        let now = hold.world.clock.monotonic();
        let is_current = self.etag == hold.etag && now.saturating_sub(self.began) <= AGE_MAX;
        (self.inputs, is_current.then_some((self.draft, self.began)))
    }
}

impl Hold<'_> {
    /// Applies the inputs to a copy of the current head.
    pub(super) fn try_out(&self, inputs: Vec<Input>) -> Tried {
        let began = self.world.clock.monotonic();
        let draft = self.draft(&inputs);
        Tried { inputs, draft, began, etag: self.etag.clone() }
    }

    pub(super) fn draft(&self, inputs: &[Input]) -> Draft {
        let (head, answer) = (self.head.clone(), self.answer.clone());
        let mut draft = Draft::new(head, answer, self.rules(), self.world.clock.now());
        draft.kept.clone_from(&self.kept);
        for input in inputs {
            step(&mut draft, input);
        }
        draft
    }
}
