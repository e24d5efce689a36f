//! The core: the state of a conversation and its transitions. Pure: no I/O, no clock, no
//! randomness, no logging.

pub(crate) mod action;
pub(crate) mod approval_binding;
pub(crate) mod body_kind;
pub(crate) mod branch;
pub(crate) mod budget;
pub(crate) mod call_batch;
mod changed_arguments;
pub(crate) mod clock_correction;
pub(crate) mod compaction;
pub(crate) mod content;
pub(crate) mod context_ranges;
pub(crate) mod decimal;
pub(crate) mod destination;
pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod exact_json;
pub(crate) mod finished_prompt;
pub(crate) mod foreign_json;
pub(crate) mod fork;
pub(crate) mod frame_entry;
#[cfg(test)]
mod fuzz;
pub(crate) mod head;
pub(crate) mod inbox;
pub(crate) mod input_repair;
pub(crate) mod label;
pub(crate) mod leaf_move;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod name;
pub(crate) mod notification;
pub(crate) mod partial_json;
pub(crate) mod path;
pub(crate) mod path_settings;
pub(crate) mod pause;
pub(crate) mod person_messages;
pub(crate) mod phase;
pub(crate) mod plugin_state;
pub(crate) mod profile;
pub(crate) mod projection;
pub(crate) mod prompt_receipt;
pub(crate) mod prompt_view;
pub(crate) mod protocol_details;
pub(crate) mod question;
pub(crate) mod raw;
mod reader_version;
pub(crate) mod request;
pub(crate) mod run_prompt;
pub(crate) mod schedule;
pub(crate) mod schema_words;
pub(crate) mod session_file;
pub(crate) mod settings;
pub(crate) mod step;
pub(crate) mod strict;
pub(crate) mod suspicion;
pub(crate) mod text;
pub(crate) mod transition;
pub(crate) mod tree;
pub(crate) mod usage;
pub(crate) mod user_skills;
pub(crate) mod waiting_command;
pub(crate) mod waits;
pub(crate) mod workspace;

#[cfg(test)]
mod tests;
