//! All integration tests in one binary, so that the library is linked once.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod agent_files_page;
mod api;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod archives;
mod argument_validation;
mod azure_model;
mod bench;
mod certify;
mod changed_destinations;
mod chat_model;
mod client_module;
mod client_pages;
mod clients;
mod cluster;
mod commands;
mod compaction;
mod conformance;
mod console;
mod data_folder;
mod edge;
mod extension_events;
mod fairness;
mod fsyncs;
mod generated_clients;
mod getting_started;
mod guardrails;
mod host_contract;
mod http_extensions;
mod http_tools;
mod identity;
mod infra;
mod interrupt;
mod isolation;
mod kill;
mod kill_demonstration;
mod maintenance_commands;
mod mcp;
mod memory;
mod modes;
mod new_project;
mod packaged_handler;
mod payload;
mod payments;
mod plugins;
mod profile;
mod protocol_modes;
mod queue_page;
mod recordings;
mod retries;
mod rust_extension;
mod secrets;
mod session_file_commands;
#[cfg(target_os = "linux")]
mod shell;
mod skills;
mod steering;
mod support;
mod telemetry;
mod tool_errors;
#[cfg(unix)]
mod tool_programs;
mod tour;
mod tree_kills;
mod webhooks;
mod why_command;
