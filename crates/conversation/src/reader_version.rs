//! The reader version that a head requires.

use crate::changed_arguments::keeps_digits_as_json;
use crate::head::{Head, PromptRun};
use crate::phase::Phase;
use crate::settings::LoopKind;

impl Head {
    /// Minimum reader version for the current state. An older worker would mishandle it:
    ///
    /// - 2 for parallel calls, which version 1 would run one after the other; for a budget, which
    ///   version 1 does not know; and for a compacted conversation, or one being compacted, which
    ///   version 1 would send to the model in full.
    /// - 3 while paused: version 2 does not know the pause.
    /// - 4 while the step is suspect: version 3 would run it beside other turns, and fail it for
    ///   deaths that other turns may have caused.
    /// - 5 while an agent run has a system prompt of its own: version 4 would send the agent's. Also
    ///   for questions of extensions, which version 4 would leave open after the answer.
    /// - 6 while an extension has changed the arguments of a call: version 5 would send the model's. Also
    ///   while a branch is summarised: version 5 would summarise the path instead.
    /// - 7 while a command waits for an answer: version 6 would let the prompt wait for it.
    /// - 8 while a prompt runs in the loop `protocol`, or the settings require that loop, a history
    ///   window or a mode: version 7 would offer native tools, and does not know the others.
    /// - 9 while arguments that an extension changed are stored as text: version 8 would send the text.
    pub fn required_reader(&self) -> u32 {
        let calls = self.phase.call_batch().calls;
        let changed: Vec<_> = calls.iter().filter_map(|it| it.changed_arguments.as_ref()).collect();
        if !changed.iter().all(|arguments| keeps_digits_as_json(arguments)) {
            return 9;
        }
        let is_protocol = |run: &PromptRun| run.is_protocol;
        if self.prompt.as_ref().is_some_and(is_protocol)
            || self.settings.loop_kind == Some(LoopKind::Protocol)
            || self.settings.history_window.is_some()
            || self.settings.protocol_mode.is_some()
        {
            return 8;
        }
        if !self.waiting_commands.is_empty() {
            return 7;
        }
        if !changed.is_empty() || self.phase.is_branch_summary() {
            return 6;
        }
        let has_system_prompt = |run: &PromptRun| run.system_prompt_seq.is_some();
        if self.prompt.as_ref().is_some_and(has_system_prompt) || self.has_questions() {
            return 5;
        }
        // Version 3 would also drop a reservation that the cost report of a deleted conversation's
        // call must end.
        if self.is_suspect() || self.unreported_call.is_some() {
            return 4;
        }
        if self.pause.is_some() {
            return 3;
        }
        let is_bounded = self.settings.budget.is_some()
            || self.reservation.is_some()
            || self.is_waiting_for_budget();
        match self.phase {
            Phase::Calls { concurrency: 2.., .. } | Phase::Summary { .. } => 2,
            Phase::Idle | Phase::Model { .. } | Phase::Calls { .. } if self.is_compacted => 2,
            Phase::Idle | Phase::Model { .. } | Phase::Calls { .. } | Phase::Deleted => {
                1 + u32::from(is_bounded)
            }
        }
    }
}
