//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::app::looking;
use crate::app::ports::Storage;
use crate::bench::case::BenchArguments;
use crate::certify::{Only, Tools};
use crate::doctor::Format;
use crate::queue;
use crate::settings::Settings;
use crate::turn::views::usage::By;

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
        #[command(flatten)]
        storage: StorageArguments,
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
        /// Also write azure.yaml and infra/ into this folder, where it has none: `azd up` needs them.
        #[arg(long)]
        azd: bool,
    },
    /// Ring for all that is owed, as the sweep does, with no grace: after the turn queue was lost or emptied.
    RebuildQueue {
        #[command(flatten)]
        place: Place,
    },
    /// Put messages that were rejected back on their queue.
    Redrive {
        queue: Redriven,
        #[command(flatten)]
        place: Place,
    },
    /// Add up what was spent: by tenant, user, agent or day.
    Usage {
        #[arg(long, value_enum)]
        by: UsageBy,
        /// The first day, in UTC; else 30 days are added up.
        #[arg(long, value_name = "YYYY-MM-DD")]
        from: Option<String>,
        /// The last day; else today.
        #[arg(long, value_name = "YYYY-MM-DD")]
        to: Option<String>,
        #[arg(long, value_name = "ID", default_value = "default")]
        tenant: String,
        /// Of `dev`: where conversations are kept, when they are not in Cosmos DB.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// Measure this machine: conversations against a model that takes no time, each turn durable, over HTTP.
    Bench(BenchArguments),
    /// What `bench` measures.
    #[command(hide = true, name = crate::bench::worker::COMMAND)]
    BenchWorker {
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        #[arg(long, value_name = "DIR")]
        agents: PathBuf,
        /// Without it everything is in the data folder.
        #[arg(long, value_name = "NAME")]
        queue_prefix: Option<String>,
    },
    /// A turn that may kill its process, for the one that starts this.
    #[cfg(unix)]
    #[command(hide = true, name = crate::app::isolation::COMMAND)]
    IsolatedTurn,
    /// Say in one sentence what a conversation waits for, who has it, and what would let it go on.
    Why {
        #[arg(value_name = "ID")]
        id: String,
        #[arg(long, value_name = "ID", default_value = "default")]
        tenant: String,
        /// Its owner; else whoever has a conversation of that id.
        #[arg(long, value_name = "ID")]
        user: Option<String>,
        /// Of `dev`: where conversations are kept, when they are not in Cosmos DB.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// List the conversations that are not at rest, each with what it waits for.
    Ls {
        /// Only what was due so long ago and is not paused: somebody should have come.
        #[arg(long, value_name = "SPAN", value_parser = looking::span, num_args = 0..=1, default_missing_value = "10m")]
        stuck: Option<Duration>,
        /// Only what waits for a person.
        #[arg(long)]
        waiting: bool,
        /// Else every tenant's; of a running `dev`, those of `default`.
        #[arg(long, value_name = "ID")]
        tenant: Option<String>,
        /// Of `dev`: where conversations are kept, when they are not in Cosmos DB.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// Play a conversation with each agent, cut and disturbed at every boundary, and hold it to the invariants: nothing lost,
    /// nothing done twice. Exit 1: something broke.
    Certify {
        /// All of them, if none is named.
        #[arg(value_name = "AGENT")]
        names: Vec<String>,
        /// Where the agents are; else `TURNWHEEL_AGENTS_DIR`, else `agents`.
        #[arg(long, value_name = "DIR")]
        agents: Option<PathBuf>,
        /// `stub`: HTTP tools and those of the app answer at once and do nothing. `real`: they are called, hundreds of times.
        #[arg(long, value_enum, default_value_t)]
        tools: CertifiedTools,
        /// For programs.
        #[arg(long)]
        json: bool,
        /// For build servers: a test case for each run.
        #[arg(long, value_name = "FILE")]
        junit: Option<PathBuf>,
        /// Only these runs: `tool.after`, `tool.after#2` or `tool.after#2:kill`.
        #[arg(long, value_name = "RUN")]
        only: Option<Only>,
    },
    /// Look at configuration, identity, storage, store, model and agents: a line each, ok or what to do.
    Doctor {
        /// Ask nobody outside this machine.
        #[arg(long)]
        offline: bool,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        /// Where the agents are; else `TURNWHEEL_AGENTS_DIR`, else `agents`.
        #[arg(long, value_name = "DIR")]
        agents: Option<PathBuf>,
        /// Of `dev`: where conversations are kept, when they are not in Cosmos DB.
        #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
        data: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum CertifiedTools {
    #[default]
    Stub,
    Real,
}

impl CertifiedTools {
    pub(super) fn tools(self) -> Tools {
        match self {
            Self::Stub => Tools::Stub,
            Self::Real => Tools::Real,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum UsageBy {
    Tenant,
    User,
    Agent,
    Day,
}

impl UsageBy {
    pub(super) fn by(self) -> By {
        match self {
            Self::Tenant => By::Tenant,
            Self::User => By::User,
            Self::Agent => By::Agent,
            Self::Day => By::Day,
        }
    }
}

/// Where queues, artifacts and conversations are.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct StorageArguments {
    /// `embedded`: all of it in the data folder. `azurite`: queues and artifacts in the storage emulator, which is started if
    /// none answers. `azure`: in the account of the settings. With the last two conversations are in Cosmos DB when
    /// `COSMOS__accountEndpoint` is set.
    #[arg(long, value_enum)]
    pub(super) storage: Option<StorageKind>,
    /// Begins the names of all queues, so that this process takes nobody else's work.
    #[arg(long, value_name = "NAME")]
    pub(super) queue_prefix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StorageKind {
    Embedded,
    Azurite,
    Azure,
}

/// The work that an operator means.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Place {
    #[command(flatten)]
    pub(super) storage: StorageArguments,
    /// Of `dev`: where conversations are kept.
    #[arg(long, value_name = "DIR", default_value = ".turnwheel")]
    pub(super) data: PathBuf,
}

impl StorageArguments {
    /// Of `dev`, which takes work off the queues.
    ///
    /// # Errors
    /// What to say before exit 2.
    pub(super) fn of_dev(&self) -> Result<Storage, &'static str> {
        let prefix = self.queue_prefix.clone().unwrap_or_default();
        match self.storage {
            None | Some(StorageKind::Embedded) if self.queue_prefix.is_some() => Err(
                "--queue-prefix belongs to --storage azurite or azure: the queues of the data folder are nobody else's.",
            ),
            None | Some(StorageKind::Embedded) => Ok(Storage::Embedded),
            Some(StorageKind::Azurite) => Ok(Storage::Azurite { queue_prefix: prefix }),
            Some(StorageKind::Azure) if prefix.is_empty() => Err(
                "This would take production's work. Give this machine queues of its own: --queue-prefix NAME",
            ),
            Some(StorageKind::Azure) => Ok(Storage::Account { queue_prefix: prefix }),
        }
    }

    /// Of a command that looks after the work of others: without a word the account of the settings, if it is a real one.
    ///
    /// # Errors
    /// What to say before exit 2.
    pub(super) fn of_upkeep(&self, settings: &Settings) -> Result<Storage, &'static str> {
        let is_real = settings.storage.as_ref().is_some_and(|account| !account.is_local());
        let prefix = self.queue_prefix.clone().unwrap_or_default();
        match self.storage {
            None if is_real => Ok(Storage::Account { queue_prefix: prefix }),
            Some(StorageKind::Azure) => Ok(Storage::Account { queue_prefix: prefix }),
            None | Some(StorageKind::Embedded | StorageKind::Azurite) => self.of_dev(),
        }
    }
}

/// The queues whose messages are somebody's only copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Redriven {
    #[value(name = "agent-prompts")]
    Prompts,
}

impl Redriven {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Prompts => queue::PROMPTS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Arguments {
        Arguments::try_parse_from(line.split(' ')).unwrap()
    }

    fn of_dev(line: &str) -> Result<Storage, &'static str> {
        match arguments(line).command {
            Some(Command::Dev { storage, .. }) => storage.of_dev(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dev_takes_no_work_of_production() {
        assert!(of_dev("turnwheel dev --storage azure").unwrap_err().contains("production's work"));
        let mine = Storage::Account { queue_prefix: "ada".to_owned() };
        assert_eq!(of_dev("turnwheel dev --storage azure --queue-prefix ada"), Ok(mine));
        assert_eq!(of_dev("turnwheel dev"), Ok(Storage::Embedded));
        assert!(of_dev("turnwheel dev --queue-prefix ada").is_err());
        let emulated = Storage::Azurite { queue_prefix: String::new() };
        assert_eq!(of_dev("turnwheel dev --storage azurite"), Ok(emulated));
    }

    #[test]
    fn upkeep_means_the_account_of_the_settings_if_it_is_a_real_one() {
        let of = |line: &str, storage: &'static str| {
            let settings = Settings::read(move |name| {
                (name == "AzureWebJobsStorage").then(|| storage.to_owned())
            });
            match arguments(line).command {
                Some(Command::RebuildQueue { place } | Command::Redrive { place, .. }) => {
                    place.storage.of_upkeep(&settings.unwrap()).unwrap()
                }
                other => panic!("{other:?}"),
            }
        };
        let real = "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=AAAA;EndpointSuffix=core.windows.net";
        let account = Storage::Account { queue_prefix: String::new() };
        assert_eq!(of("turnwheel rebuild-queue", real), account);
        assert_eq!(of("turnwheel redrive agent-prompts", real), account);
        assert_eq!(of("turnwheel rebuild-queue", "UseDevelopmentStorage=true"), Storage::Embedded);
        assert_eq!(of("turnwheel rebuild-queue --storage embedded", real), Storage::Embedded);
        assert!(Arguments::try_parse_from(["turnwheel", "redrive", "agent-turns"]).is_err());
    }

    #[test]
    fn what_is_stuck_was_due_ten_minutes_ago_unless_somebody_says_otherwise() {
        let of = |line: &str| match arguments(line).command {
            Some(Command::Ls { stuck, waiting, .. }) => (stuck, waiting),
            other => panic!("{other:?}"),
        };
        assert_eq!(of("turnwheel ls"), (None, false));
        assert_eq!(of("turnwheel ls --stuck"), (Some(Duration::from_mins(10)), false));
        assert_eq!(of("turnwheel ls --stuck 90s --waiting"), (Some(Duration::from_secs(90)), true));
        assert!(Arguments::try_parse_from(["turnwheel", "ls", "--stuck", "soon"]).is_err());
    }
}
