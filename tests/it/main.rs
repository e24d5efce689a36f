//! All integration tests in one binary, so that the library is linked once.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod api;
mod azure_model;
mod bench;
mod certify;
mod clients;
mod cluster;
mod commands;
mod compacting;
mod conformance;
mod edge;
mod first_hour;
mod fsyncs;
mod host_contract;
mod hosted;
mod http_tools;
mod identity;
mod infra;
mod interrupt;
mod isolation;
mod kill;
mod looking;
mod modes;
mod payload;
mod payments;
mod recordings;
mod retrying;
mod secrets;
mod steering;
mod support;
mod telemetry;
mod tidy;
mod tool_errors;
mod tools;
mod tour;
mod upkeep;
mod webhooks;
