//! The core: what a conversation is and what happens next in it. Pure: no I/O, no clock, no chance, no logging.

pub mod content;
pub mod entry;
pub mod event;
pub mod head;
pub mod inbox;
pub mod message;
pub mod path;
pub mod phase;
pub mod raw;
pub mod request;
pub mod settings;
pub mod text;
pub mod usage;
pub mod view;
