//! Command-line arguments of the `turnwheel` program.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::PROGRAM_VERSION;
use crate::bench::case::BenchArguments;
use crate::cli::new_project::ProjectTemplate;
use crate::cli::pending_work;
use crate::doctor::Format;
use crate::start::ports::Storage;
use turnwheel_certify::{RunFilter, ToolMode};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_queries::usage::UsageGrouping;
use turnwheel_storage::queue;
use turnwheel_terminal::{ServiceArguments, TerminalCommand};
#[cfg(target_os = "linux")]
use turnwheel_tools::shell::sandbox;

/// Durable runtime for AI agents on Azure Functions.
#[derive(Debug, Parser)]
#[command(name = "turnwheel", version = PROGRAM_VERSION, about)]
pub(crate) struct CliArguments {
    /// Without a command, the program is the custom handler of the Functions host.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the service on this machine: host, handler, store and, without Azure settings, the fake
    /// model (scripted).
    Dev {
        /// Port of the HTTP API on 127.0.0.1; 0 selects a free port.
        #[arg(long, default_value_t = turnwheel_devhost::PORT)]
        port: u16,
        /// Data folder of the conversations.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
        /// Folder of the agent files. Default: `TURNWHEEL_AGENTS_DIR`, else `agents`.
        #[arg(long, value_name = "DIR")]
        agents: Option<PathBuf>,
        #[command(flatten)]
        storage: StorageArguments,
        /// Run in one process, which no other one starts again after a kill.
        #[arg(long)]
        no_supervisor: bool,
        /// Set by the supervisor, which writes the start of the process to its standard input.
        #[arg(long, hide = true)]
        supervised: bool,
    },
    /// Create a folder with an agent, a CI workflow and the files for Azure.
    New {
        /// Folder to create. Its last part names the project.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Kind of the agent.
        #[arg(long, value_enum, default_value = "chat")]
        template: ProjectTemplate,
    },
    /// Create the folder that `func azure functionapp publish` uploads.
    Package {
        /// Folder to create.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Program to package. Default: this program.
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// Write to `--out` even if it contains other files.
        #[arg(long)]
        force: bool,
        /// Also create azure.yaml and infra/ in the current folder if they are missing; `azd up`
        /// needs them.
        #[arg(long)]
        azd: bool,
    },
    /// Show the agents as the model receives them: system prompt, tools and budget. With `--url`,
    /// those of a service.
    Agents {
        /// Name of one agent.
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Folder of the agent files. Default: `TURNWHEEL_AGENTS_DIR`, else `agents`.
        #[arg(long, value_name = "DIR", conflicts_with = "url")]
        agents: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: ServiceArguments,
    },
    /// Print the JSON Schema of agent files: the keys of the front matter, for editors.
    Schema,
    /// Enqueue all pending work now, as the recovery sweep does, without its grace period. Use it
    /// after the turn queue was lost or emptied.
    RebuildQueue {
        #[command(flatten)]
        place: MaintenanceArguments,
    },
    /// Move rejected messages from the poison queue back to their queue.
    Redrive {
        /// Queue of the rejected messages.
        queue: RedriveQueue,
        #[command(flatten)]
        place: MaintenanceArguments,
    },
    /// Show model usage and its cost by tenant, user, agent or day.
    Usage {
        /// Grouping of the rows.
        #[arg(long, value_enum)]
        by: UsageGrouping,
        /// First day, in UTC. Default: a period of 30 days.
        #[arg(long, value_name = "YYYY-MM-DD")]
        from: Option<String>,
        /// Last day, in UTC. Default: today.
        #[arg(long, value_name = "YYYY-MM-DD")]
        to: Option<String>,
        /// Tenant of the usage.
        #[arg(long, value_name = "ID", default_value = "default")]
        tenant: String,
        /// Data folder of `dev`, used unless conversations are in Cosmos DB.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure throughput on this machine: durable conversations over HTTP, with a model that
    /// responds at once.
    Bench(BenchArguments),
    /// Worker process that `bench` measures.
    #[command(hide = true, name = crate::bench::worker::COMMAND)]
    BenchWorker {
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        #[arg(long, value_name = "DIR")]
        agents: PathBuf,
    },
    /// Run one suspect turn for the parent process, which starts this command.
    #[cfg(unix)]
    #[command(hide = true, name = crate::start::isolation::COMMAND)]
    IsolatedTurn,
    /// Run a stage of the sandbox of shell tools for the parent process, which starts this command.
    #[cfg(target_os = "linux")]
    #[command(hide = true, name = sandbox::COMMAND)]
    ShellSandbox { stage: sandbox::Stage },
    /// Explain why a conversation waits: the reason, the worker with its lease, and the ways to
    /// continue it.
    #[command(after_help = WHY_EXAMPLES)]
    Why {
        /// Conversation id.
        #[arg(value_name = "ID")]
        id: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: ServiceArguments,
    },
    /// Write a conversation of a running `dev` to the standard output.
    Export {
        /// Conversation id.
        #[arg(value_name = "ID")]
        id: String,
        /// Form of the file.
        #[arg(long, value_enum, default_value_t)]
        format: SessionFormat,
        #[command(flatten)]
        place: SessionPlace,
    },
    /// Create a conversation of a running `dev` from a session file, and print the skipped lines.
    Import {
        /// File of Pi or of `turnwheel export`.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Name of an agent. Default: the one in the file, or the default agent.
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        #[command(flatten)]
        place: SessionPlace,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the conversations that are not idle, each with the reason why it waits.
    #[command(after_help = LS_NOTE)]
    Ls {
        /// Only conversations that are overdue by at least this time and are not paused.
        #[arg(long, value_name = "SPAN", value_parser = pending_work::parse_duration, num_args = 0..=1, default_missing_value = "10m")]
        stuck: Option<Duration>,
        /// Only conversations that wait for an approver's decision.
        #[arg(long)]
        waiting: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: ServiceArguments,
    },
    /// Run a conversation with each agent, inject a fault at every fail point, and check the
    /// invariants: no lost input, no repeated effect. Exit code 1 if an invariant is violated.
    Certify {
        /// Agents to certify. Default: all.
        #[arg(value_name = "AGENT")]
        names: Vec<String>,
        /// Folder of the agent files. Default: `TURNWHEEL_AGENTS_DIR`, else `agents`.
        #[arg(long, value_name = "DIR")]
        agents: Option<PathBuf>,
        /// `stub`: HTTP tools and tools of the app return at once and have no effect. `real`: they
        /// are called, hundreds of times.
        #[arg(long, value_enum, default_value_t)]
        tools: ToolsFlag,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Write a `JUnit` report to this file, with one test case for each run.
        #[arg(long, value_name = "FILE")]
        junit: Option<PathBuf>,
        /// Only these runs: `tool.after`, `tool.after#2` or `tool.after#2:kill`.
        #[arg(long, value_name = "RUN")]
        only: Option<RunFilter>,
    },
    #[command(flatten)]
    Terminal(TerminalCommand),
    /// Print a script that completes the commands in a shell.
    #[command(after_help = "Example:\n  source <(turnwheel completions bash)")]
    Completions {
        /// Shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command.
    #[command(after_help = "Example:\n  turnwheel man | man -l -")]
    Man {
        /// Folder for the pages of all commands.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Check configuration, identity, storage, store, model and agents: one line for each, with the
    /// fix if it fails.
    Doctor {
        /// Send no requests to other machines.
        #[arg(long)]
        offline: bool,
        /// Format of the report.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        /// Folder of the agent files. Default: `TURNWHEEL_AGENTS_DIR`, else `agents`.
        #[arg(long, value_name = "DIR")]
        agents: Option<PathBuf>,
        /// Data folder of `dev`, used unless conversations are in Cosmos DB.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ToolsFlag {
    #[default]
    Stub,
    Real,
}

impl ToolsFlag {
    pub(crate) fn to_tools(self) -> ToolMode {
        match self {
            Self::Stub => ToolMode::Stub,
            Self::Real => ToolMode::Real,
        }
    }
}

const WHY_EXAMPLES: &str = "Examples:
  turnwheel why c_1
  turnwheel why c_1 --url https://my-app.azurewebsites.net

Without `--url`: from Cosmos DB if the settings have it, else from `dev` or its data folder.";

const LS_NOTE: &str = "With `--url`: those of the caller's tenant, for operators. Without: from Cosmos DB if the settings have it, else from
`dev` or its data folder; all tenants, or one with `--tenant`.";

/// Location of queues, artifacts and conversations.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct StorageArguments {
    /// `embedded`: all data in the data folder. `azurite`: queues and artifacts in the storage
    /// emulator, which is started if none runs. `azure`: queues and artifacts in the storage
    /// account of the settings. With `azurite` and `azure`, conversations are in Cosmos DB if
    /// `COSMOS__accountEndpoint` is set.
    #[arg(long, value_enum)]
    pub(crate) storage: Option<StorageKind>,
    /// Prefix of all queue names, so that this process does not process the work of other
    /// processes.
    #[arg(long, value_name = "NAME")]
    pub(crate) queue_prefix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StorageKind {
    Embedded,
    Azurite,
    Azure,
}

/// Storage arguments of the maintenance commands.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MaintenanceArguments {
    #[command(flatten)]
    pub(crate) storage: StorageArguments,
    /// Data folder of `dev`.
    #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
    pub(crate) data: PathBuf,
}

impl StorageArguments {
    /// Storage of `dev`, which processes the messages of the queues.
    ///
    /// # Errors
    /// Returns the text to print before exit code 2.
    pub(crate) fn dev_storage(&self) -> Result<Storage, &'static str> {
        let prefix = self.queue_prefix.clone().unwrap_or_default();
        match self.storage {
            None | Some(StorageKind::Embedded) if self.queue_prefix.is_some() => Err(
                "--queue-prefix requires --storage azurite or azure: no other process uses the queues of the data folder.",
            ),
            None | Some(StorageKind::Embedded) => Ok(Storage::Embedded),
            Some(StorageKind::Azurite) => Ok(Storage::Azurite { queue_prefix: prefix }),
            Some(StorageKind::Azure) if prefix.is_empty() => Err(
                "--storage azure would process the work of production. Use separate queues for this machine: --queue-prefix NAME",
            ),
            Some(StorageKind::Azure) => Ok(Storage::Account { queue_prefix: prefix }),
        }
    }

    /// Storage of a maintenance command. Without `--storage`, this is the account of the settings
    /// if it is in Azure, else as for `dev`.
    ///
    /// # Errors
    /// Returns the text to print before exit code 2.
    pub(crate) fn maintenance_storage(
        &self,
        settings: &ServiceSettings,
    ) -> Result<Storage, &'static str> {
        let is_in_azure = settings.storage.as_ref().is_some_and(|account| !account.is_local());
        let prefix = self.queue_prefix.clone().unwrap_or_default();
        match self.storage {
            None if is_in_azure => Ok(Storage::Account { queue_prefix: prefix }),
            Some(StorageKind::Azure) => Ok(Storage::Account { queue_prefix: prefix }),
            None | Some(StorageKind::Embedded | StorageKind::Azurite) => self.dev_storage(),
        }
    }
}

/// Queues whose messages are the only copy of a user's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RedriveQueue {
    #[value(name = "agent-prompts")]
    Prompts,
}

impl RedriveQueue {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prompts => queue::PROMPTS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_arguments(line: &str) -> CliArguments {
        CliArguments::try_parse_from(line.split(' ')).unwrap()
    }

    fn parse_dev_storage(line: &str) -> Result<Storage, &'static str> {
        match parse_arguments(line).command {
            Some(Command::Dev { storage, .. }) => storage.dev_storage(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dev_requires_queue_prefix_for_azure_storage() {
        assert!(
            parse_dev_storage("turnwheel dev --storage azure")
                .unwrap_err()
                .contains("work of production")
        );
        let prefixed = Storage::Account { queue_prefix: "ada".to_owned() };
        assert_eq!(
            parse_dev_storage("turnwheel dev --storage azure --queue-prefix ada"),
            Ok(prefixed)
        );
        assert_eq!(parse_dev_storage("turnwheel dev"), Ok(Storage::Embedded));
        assert!(parse_dev_storage("turnwheel dev --queue-prefix ada").is_err());
        let emulator = Storage::Azurite { queue_prefix: String::new() };
        assert_eq!(parse_dev_storage("turnwheel dev --storage azurite"), Ok(emulator));
    }

    #[test]
    fn maintenance_uses_azure_account_of_settings() {
        let storage_of = |line: &str, storage: &'static str| {
            let settings = ServiceSettings::read(move |name| {
                (name == "AzureWebJobsStorage").then(|| storage.to_owned())
            });
            match parse_arguments(line).command {
                Some(Command::RebuildQueue { place } | Command::Redrive { place, .. }) => {
                    place.storage.maintenance_storage(&settings.unwrap()).unwrap()
                }
                other => panic!("{other:?}"),
            }
        };
        let azure = "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=AAAA;EndpointSuffix=core.windows.net";
        let account = Storage::Account { queue_prefix: String::new() };
        assert_eq!(storage_of("turnwheel rebuild-queue", azure), account);
        assert_eq!(storage_of("turnwheel redrive agent-prompts", azure), account);
        assert_eq!(
            storage_of("turnwheel rebuild-queue", "UseDevelopmentStorage=true"),
            Storage::Embedded
        );
        assert_eq!(
            storage_of("turnwheel rebuild-queue --storage embedded", azure),
            Storage::Embedded
        );
        assert!(CliArguments::try_parse_from(["turnwheel", "redrive", "agent-turns"]).is_err());
    }

    #[test]
    fn stuck_filter_defaults_to_ten_minutes() {
        let filters_of = |line: &str| match parse_arguments(line).command {
            Some(Command::Ls { stuck, waiting, .. }) => (stuck, waiting),
            other => panic!("{other:?}"),
        };
        assert_eq!(filters_of("turnwheel ls"), (None, false));
        assert_eq!(filters_of("turnwheel ls --stuck"), (Some(Duration::from_mins(10)), false));
        assert_eq!(
            filters_of("turnwheel ls --stuck 90s --waiting"),
            (Some(Duration::from_secs(90)), true)
        );
        assert!(CliArguments::try_parse_from(["turnwheel", "ls", "--stuck", "soon"]).is_err());
    }
}

/// Forms of `turnwheel export`.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum SessionFormat {
    /// Loses nothing.
    #[default]
    Turnwheel,
    /// Version 3 of Pi's files.
    Pi,
    /// One static page.
    Html,
}

impl SessionFormat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Turnwheel => "turnwheel",
            Self::Pi => "pi",
            Self::Html => "html",
        }
    }
}

/// The service and the owner of a conversation.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionPlace {
    /// Tenant of the conversation.
    #[arg(long, value_name = "ID", default_value = "default")]
    pub(crate) tenant: String,
    /// Owner of the conversation. Default: the user of requests without a user.
    #[arg(long, value_name = "ID")]
    pub(crate) user: Option<String>,
    /// Data folder of `dev`.
    #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
    pub(crate) data: PathBuf,
}
