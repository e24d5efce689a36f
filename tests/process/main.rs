//! Tests of the program as a process: started, killed, packaged, called by its clients and its host.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod agent_files_page;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod archives;
mod bench;
mod certify;
mod chat_messages;
mod client_module;
mod client_pages;
mod clients;
mod cluster;
mod commands;
mod console;
mod data_folder;
mod dev_start;
mod doctor_route;
mod fairness;
mod generated_clients;
mod getting_started;
mod guardrails;
mod host_contract;
mod http_extensions;
mod identity;
mod interrupt;
mod isolation;
mod kill;
mod kill_demonstration;
mod maintenance_commands;
mod new_project;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod newcomer;
mod own_ports;
mod packaged_handler;
mod profile;
mod queue_page;
mod readme_code;
mod rust_extension;
mod secrets;
mod session_file_commands;
mod skills;
mod support;
mod telemetry;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod tool_programs;
mod tour;
mod tree_kills;
mod webhooks;
mod why_command;
