//! Turnwheel: a durable agent runtime. Each queue message starts one delivery, which continues one
//! conversation and commits its progress.

pub mod agent;
pub mod agents;
pub mod app;
pub mod artifacts;
pub mod azure;
pub mod azurite;
pub mod bench;
pub mod certify;
pub mod clock;
pub mod commands;
pub mod digest;
pub mod doctor;
pub mod error_chain;
pub mod extensions;
pub mod fail_points;
#[cfg(test)]
mod fuzz;
pub mod host;
pub mod http;
pub mod ids;
pub mod ledger;
pub mod live;
pub mod model;
pub mod notifications;
pub mod package;
pub mod payments;
pub mod queries;
pub mod queue;
pub mod schedules;
pub mod server;
pub mod services;
pub mod settings;
pub mod store;
pub mod telemetry;
pub mod tools;
pub mod turn;

pub use app::{Agent, App};
pub use tools::ToolResult;
pub use tools::code::{Approval, CallContext as ToolContext, Tool, ToolError};

/// Compiles the code examples of `docs/rust.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
struct RustPage;
