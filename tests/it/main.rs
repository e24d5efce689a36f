//! Integration tests of the service in one binary, so that the library is linked once. `tests/process`
//! has those of the program as a process.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod api;
mod argument_validation;
mod azure_model;
mod changed_destinations;
mod chat_model;
mod compaction;
mod conformance;
mod edge;
mod extension_events;
mod fsyncs;
mod http_tools;
mod infra;
mod mcp;
mod memory;
mod modes;
mod payload;
mod payments;
mod plugins;
mod protocol_modes;
mod recordings;
mod retries;
#[cfg(target_os = "linux")]
mod shell;
mod steering;
mod support;
mod tool_errors;
