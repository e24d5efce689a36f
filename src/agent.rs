//! The core: the state of a conversation and its transitions. Pure: no I/O, no clock, no
//! randomness, no logging.

pub mod batch;
pub mod brake;
pub mod budget;
pub mod compaction;
pub mod content;
pub mod draft;
pub mod entry;
pub mod event;
#[cfg(test)]
mod fuzz;
pub mod head;
pub mod inbox;
pub mod message;
pub mod notice;
pub mod path;
pub mod phase;
pub mod projection;
pub mod raw;
pub mod receipt;
pub mod request;
pub mod schedule;
pub mod settings;
pub mod step;
pub mod strict;
pub mod suspicion;
pub mod text;
pub mod usage;
pub mod view;
pub mod workspace;

#[cfg(test)]
mod tests;
