//! Start of the service: its ports, agents and functions, and the processes that it runs.

pub(crate) mod agent_files;
#[cfg(unix)]
pub(crate) mod child_doctor;
pub(crate) mod console;
pub(crate) mod dead_processes;
pub(crate) mod deployed_functions;
pub(crate) mod example_payments;
pub(crate) mod fail_point;
pub(crate) mod function_handlers;
pub(crate) mod handler_port;
pub(crate) mod hosted_process;
pub(crate) mod hosted_start;
mod instance_memory;
#[cfg(unix)]
pub(crate) mod isolation;
pub(crate) mod kill_switch;
mod local_turns;
pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod owner_turns;
pub(crate) mod ports;
pub(crate) mod prices;
pub(crate) mod read_check;
pub(crate) mod router;
pub(crate) mod service;
pub(crate) mod setting_names;
pub(crate) mod shared_user;
pub(crate) mod shell;
pub(crate) mod signing_keys;
pub(crate) mod start_error;
pub(crate) mod stop_signals;
pub(crate) mod supervisor;
pub(crate) mod telemetry_setup;
#[cfg(test)]
pub(crate) mod test_services;
pub(crate) mod tool_programs;
pub(crate) mod turn_duration;
pub(crate) mod work_file;
