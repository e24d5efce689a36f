//! The driver: leases a conversation, loads it, runs the state machine, commits, performs effects.

pub(crate) mod abort_channel;
pub(crate) mod abort_signal;
pub(crate) mod budget_check;
pub(crate) mod call_costs;
pub(crate) mod commit;
pub(crate) mod compaction;
pub(crate) mod context;
pub(crate) mod conversation_state;
pub(crate) mod crash_count;
pub(crate) mod delivery;
pub(crate) mod delivery_cost;
pub(crate) mod delta_publisher;
pub(crate) mod documents;
pub(crate) mod entry_cache;
pub(crate) mod error;
pub(crate) mod error_domain;
pub(crate) mod event_log;
pub(crate) mod expiry;
pub(crate) mod finish_turn;
pub(crate) mod frame;
pub(crate) mod head_commit;
pub(crate) mod hooks;
pub(crate) mod inbox;
pub(crate) mod invariants;
pub(crate) mod isolation;
pub(crate) mod isolator;
pub(crate) mod lease;
pub(crate) mod leased_conversation;
pub(crate) mod model_call;
pub(crate) mod nudge;
pub(crate) mod nudge_sender;
pub(crate) mod offered_tools;
pub(crate) mod oversize;
pub(crate) mod pause;
pub(crate) mod pending_work;
pub(crate) mod plan;
pub(crate) mod preflight;
pub(crate) mod prepare;
pub(crate) mod spans;
pub(crate) mod sweep;
pub(crate) mod tool_batch;
pub(crate) mod tool_call;
pub(crate) mod turn_progress;

#[cfg(test)]
mod tests;
