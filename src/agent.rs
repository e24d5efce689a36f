//! The core: the state of a conversation and its transitions. Pure: no I/O, no clock, no
//! randomness, no logging.

pub mod budget;
pub mod call_batch;
pub mod compaction;
pub mod content;
pub mod entry;
pub mod event;
#[cfg(test)]
mod fuzz;
pub mod head;
pub mod inbox;
pub mod message;
pub mod notification;
pub mod path;
pub mod pause;
pub mod phase;
pub mod projection;
pub mod prompt_receipt;
pub mod prompt_view;
pub mod raw;
pub mod request;
pub mod schedule;
pub mod settings;
pub mod step;
pub mod strict;
pub mod suspicion;
pub mod text;
pub mod transition;
pub mod usage;
pub mod workspace;

#[cfg(test)]
mod tests;
