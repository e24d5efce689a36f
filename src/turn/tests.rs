//! Tests of the delivery loop over in-memory ports; one seed decides all injected faults.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::clone_on_ref_ptr,
    reason = "tests match one variant and clone shared handles"
)]

mod bench;
mod bounds;
mod brakes;
mod checks;
mod claims;
mod compacting;
mod economy;
mod finish_turn;
mod hooks;
mod invariants;
mod isolation;
mod lost_answers;
mod lost_queues;
mod money;
mod prices;
mod progress;
mod queues;
mod recovery;
mod retrying;
mod schedules;
mod seeds;
mod simulation;
mod soon;
mod spending;
mod stops;
mod telling;
mod together;
mod turns;
mod versions;
mod waiting;
mod week;
mod why;
mod work;
