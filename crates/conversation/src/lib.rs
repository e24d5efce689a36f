//! The core: the state of a conversation and its transitions. Pure: no I/O, no clock, no
//! randomness, no logging.

pub mod action;
pub mod approval_binding;
pub mod branch;
pub mod budget;
pub mod call_batch;
mod changed_arguments;
pub mod clock_correction;
pub mod compaction;
pub mod content;
pub mod context_ranges;
pub mod continue_check;
pub mod destination;
pub mod entry;
pub mod event;
pub mod finished_prompt;
pub mod fork;
pub mod frame_entry;
#[cfg(test)]
mod fuzz;
pub mod head;
pub mod inbox;
pub mod input_repair;
pub mod label;
pub mod leaf_move;
pub mod memory;
pub mod message;
pub mod name;
pub mod notification;
pub mod path;
pub mod path_settings;
pub mod pause;
pub mod person_messages;
pub mod phase;
pub mod plugin_state;
pub mod profile;
pub mod projection;
pub mod prompt_receipt;
mod prompt_span;
pub mod prompt_view;
pub mod protocol_details;
pub mod question;
mod reader_version;
pub mod request;
pub mod run_prompt;
pub mod schedule;
pub mod settings;
pub mod step;
pub mod suspicion;
pub mod tagged;
pub mod transition;
pub mod tree;
pub mod unknown_members;
pub mod usage;
pub mod user_skills;
pub mod waiting_command;
pub mod waits;
pub mod workspace;

#[cfg(test)]
mod tests;
