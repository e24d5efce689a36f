//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::doctor::Format;

/// A durable agent runtime for Azure Functions: one queue message turns the wheel once.
#[derive(Debug, Parser)]
#[command(name = "turnwheel", version, about)]
pub(super) struct Arguments {
    /// Without one: serve as the custom handler of the Functions host.
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run everything on this machine: host, handler, store and, without Azure settings, the scripted model.
    Dev {
        /// 0 takes any free one.
        #[arg(long, default_value_t = crate::host::PORT)]
        port: u16,
        /// Where conversations are kept.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
        /// Where the agents are; else `TURNWHEEL_AGENTS_DIR`, else `agents`.
        #[arg(long, value_name = "DIR")]
        agents: Option<PathBuf>,
    },
    /// Stage what `func azure functionapp publish` uploads.
    Package {
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// The program to put in; else this one.
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// Also into a folder that holds something else.
        #[arg(long)]
        force: bool,
    },
    /// Look at configuration, identity, storage, store, model and agents: a line each, ok or what to do.
    Doctor {
        /// Ask nobody outside this machine.
        #[arg(long)]
        offline: bool,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}
