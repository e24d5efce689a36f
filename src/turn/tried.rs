//! What inputs come to before they are committed: worked out once, and carried on with each that is added.

use std::time::Duration;

use crate::agent::draft::Draft;
use crate::agent::step::{Input, step};
use crate::store::ETag;
use crate::turn::hold::Hold;

/// The claim that a commit writes begins when its draft was begun; one that took longer to prepare is made anew.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Inputs, and the draft that they come to.
pub(super) struct Tried {
    inputs: Vec<Input>,
    draft: Draft,
    /// When it was begun, on the monotonic clock.
    began: Duration,
    /// Of the head that it goes out from.
    etag: ETag,
}

impl Tried {
    /// One more input, after the others.
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

    /// To try them out anew: the draft is void.
    pub(super) fn take_inputs(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.inputs)
    }

    pub(super) fn into_inputs(self) -> Vec<Input> {
        self.inputs
    }

    /// The inputs, and the draft with its beginning where it can be committed as it is.
    pub(super) fn into_parts(self, hold: &Hold<'_>) -> (Vec<Input>, Option<(Draft, Duration)>) {
        let now = hold.world.clock.monotonic();
        let is_current = self.etag == hold.etag && now.saturating_sub(self.began) <= AGE_MAX;
        (self.inputs, is_current.then_some((self.draft, self.began)))
    }
}

impl Hold<'_> {
    /// A draft of the head as it is, with the inputs applied: to see what they come to.
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
