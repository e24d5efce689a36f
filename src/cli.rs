//! The command line: arguments, the commands and their output.

pub(crate) mod arguments;
pub(crate) mod banner;
pub(crate) mod bench;
pub(crate) mod certify;
pub(crate) mod commands;
pub(crate) mod doctor_checks;
pub(crate) mod maintenance;
pub(crate) mod new_project;
pub(crate) mod pending_work;
pub(crate) mod session_files;
pub(crate) mod show_agents;
pub(crate) mod system_report;
pub(crate) mod usage;
