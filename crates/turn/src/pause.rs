//! Operator pauses: paused work is kept and not started. The first worker marks the head; later
//! deliveries write nothing until the pause is lifted.

use std::time::Duration;

use crate::plan::CommitPlan;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::pause::Pause;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::step::Input;
use turnwheel_platform::clock::Timestamp;
use turnwheel_record::services::Services;

/// Delay of the first check; the sweep repeats it once a minute.
const RECHECK_AFTER: Duration = Duration::from_mins(1);

/// Adds the pause that defers the model call which the inputs lead to.
pub(crate) fn pause_model_call(services: &Services, before: &Head, plan: &mut CommitPlan) {
    let head = &plan.transition().head;
    // Work that waits for an approver is not paused as well.
    let is_model = matches!(head.phase, Phase::Model { .. } | Phase::Summary { .. })
        && !head.is_waiting_for_decision();
    if let Some(on) = services.pauses.find_for_agent(&head.agent).filter(|_| is_model) {
        plan.add(paused_input(services, before, on));
    }
}

/// The pause that applies to a call of that tool.
pub(crate) fn pause_of_call<'s>(
    services: &'s Services,
    head: &Head,
    tool: &str,
) -> Option<&'s str> {
    let pauses = &services.pauses;
    pauses.find_for_agent(&head.agent).or_else(|| pauses.find_for_tool(tool))
}

/// The pause mark for the head. A pause that was active before keeps its start.
pub(crate) fn paused_input(services: &Services, head: &Head, on: &str) -> Input {
    let now = services.clock.now();
    let before = head.pause.as_ref().filter(|before| before.target == on);
    let since = before.map_or(now, |before| before.since);
    Input::Paused(Pause { target: on.to_owned(), since, recheck_at: now.plus(RECHECK_AFTER) })
}

/// True if the pause in the head is still active, so that this delivery changes nothing.
pub(crate) fn is_still_paused(services: &Services, head: &Head, now: Timestamp) -> bool {
    let is_settling = head.metering.settle_at.is_some_and(|at| at <= now);
    head.pause.is_some() && !is_pause_lifted(services, head) && !is_settling
}

/// True if the pause in the head was lifted: work continues without waiting for the recheck time.
pub(crate) fn is_pause_lifted(services: &Services, head: &Head) -> bool {
    head.pause.as_ref().is_some_and(|pause| !services.pauses.contains(&pause.target))
}
