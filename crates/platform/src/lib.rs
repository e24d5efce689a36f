//! The base of all crates: clocks, identifiers, settings, telemetry, the HTTP server, fail points, and small helpers
//! without knowledge of conversations.

pub mod clock;
pub mod digest;
pub mod error_chain;
pub mod fail_points;
pub mod ids;
pub mod server;
pub mod settings;
pub mod shutdown;
pub mod telemetry;
pub mod text_encoding;
pub mod webhook_signature;
