//! Tests of the delivery loop over in-memory ports; one seed decides all injected faults.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::clone_on_ref_ptr,
    reason = "tests match one variant and clone shared handles"
)]

mod aborts;
mod accepts;
mod actions;
mod agent_hooks;
mod approval_names;
mod argument_checks;
mod audit;
mod backlog;
mod bounds;
mod branches;
mod budgets;
mod call_approval;
mod changed_arguments;
mod changed_calls;
mod clock_changes;
mod cold_reads;
mod command_questions;
mod compaction;
mod compaction_questions;
mod concurrent_requests;
mod cost_table;
mod deliveries;
mod delivery_cost;
mod file_calls;
mod finish_turn;
mod frame;
mod frame_documents;
mod given_back_results;
mod hooks;
mod inbox;
mod invariant_checks;
mod invariants;
mod isolation;
mod leases;
mod left_items;
mod lost_queues;
mod lost_responses;
mod mcp;
mod memory;
mod memory_changes;
mod parallel_calls;
mod pauses;
mod plugins;
mod profile;
mod protocol;
mod questions;
mod reader_versions;
mod recall;
mod recorded_requests;
mod recovery;
mod refused_calls;
mod refused_input;
mod result_hooks;
mod retries;
mod schedules;
mod session_imports;
mod shell;
mod shutdown;
mod simulated_week;
mod simulation;
mod simulation_runs;
mod skill_files;
mod skill_search;
mod steers;
mod store_outages;
mod store_requests;
mod system_prompt;
mod take_over_latency;
mod telemetry;
mod test_env;
mod titles;
mod tool_progress;
mod user_skill_writes;
mod user_skills;
mod versions;
mod waiting_clients;
mod waiting_session_changes;
mod why;
mod workspace_context;
