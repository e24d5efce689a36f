//! Ports for stored data and their implementations: conversations, queues, artifacts, and live events.

pub mod artifacts;
pub mod live;
pub mod queue;
pub mod store;
