//! A repeatable benchmark: conversations on separate worker processes, with a model that takes no
//! time, over HTTP as a client would, every turn durable.

pub mod accounts;
mod bare;
pub mod case;
mod load;
pub mod model;
pub mod process;
pub mod report;
pub mod requests;
mod wire;
pub mod worker;

use std::path::Path;
use std::time::Duration;

use crate::bench::accounts::Accounts;
use crate::bench::case::{BenchArguments, Case};
use crate::bench::load::{Load, Loaded};
use crate::bench::report::{Figures, Machine, Report};
use crate::bench::requests::Requests;
use crate::bench::wire::Wire;
use crate::bench::worker::{Place, Worker};
use crate::ids::{Ids as _, SystemIds};

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("could not {doing}")]
    Io { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the worker process ended: {0}")]
    Worker(String),
    /// A benchmark that counted failures as work would measure nothing.
    #[error("a prompt failed, so nothing was measured: {0}")]
    Prompt(String),
    #[error("the bare requests were not answered like those of the workers: {0}")]
    Bare(String),
}

fn io<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Io { doing, source: source.into() }
}

/// Runs every case, each with its own workers and its own folder or queues. `accounts` are the
/// accounts of cases that are not embedded. `report_line` receives each line as soon as it is complete.
///
/// # Errors
/// Show the error and exit.
pub async fn run(
    program: &Path,
    arguments: &BenchArguments,
    accounts: Option<&Accounts>,
    tell: impl Fn(&str),
) -> Result<Report, BenchError> {
    let place = arguments.data.clone().unwrap_or_else(std::env::temp_dir);
    let machine = Machine::look(&place).map_err(io("measure the disk"))?;
    tell(&machine.to_string());
    let binary_bytes = std::fs::metadata(program).map(|file| file.len()).map_err(io("read"))?;
    let mut report = Report::new(machine, binary_bytes);
    tell(&report.heading(arguments.storage));
    for case in arguments.cases() {
        let figures = Box::pin(run_case(program, &case, &place, accounts)).await?;
        tell(&figures.line(&case));
        report.add(case, figures);
    }
    Ok(report)
}

async fn run_case(
    program: &Path,
    case: &Case,
    place: &Path,
    accounts: Option<&Accounts>,
) -> Result<Figures, BenchError> {
    let stage = Stage { program, case, place };
    let requests = match accounts {
        Some(accounts) => Some(Box::pin(stage.count(accounts)).await?),
        None => None,
    };
    let (loaded, cold_start) = Box::pin(stage.play(accounts, &tag(), None)).await?;
    Ok(Figures::of(case, &loaded, cold_start, requests))
}

/// Prefix of everything that one run leaves in the accounts, so that the next run does not find it.
fn tag() -> String {
    SystemIds.fresh().chars().skip(24).collect()
}

/// The context of a case.
struct Stage<'a> {
    program: &'a Path,
    case: &'a Case,
    place: &'a Path,
}

impl Stage<'_> {
    /// Counts the workers' storage requests, and measures the same requests without the workers.
    async fn count(&self, accounts: &Accounts) -> Result<Requests, BenchError> {
        let (tag, bare_tag) = (tag(), tag());
        let wire = Wire::start(accounts).await?;
        let (loaded, _) = self.play(Some(&wire.accounts), &tag, Some(&wire)).await?;
        drop(wire);
        let (lanes, tags) = (self.case.conversations, (tag.as_str(), bare_tag.as_str()));
        let bare = Box::pin(bare::time(&loaded.sent, accounts, lanes, tags)).await?;
        Ok(Requests::of(self.case.turns(), &loaded.sent, bare))
    }

    /// Runs the case once. Also returns the longest start of its workers.
    async fn play(
        &self,
        accounts: Option<&Accounts>,
        tag: &str,
        wire: Option<&Wire>,
    ) -> Result<(Loaded, Duration), BenchError> {
        let Self { program, case, place } = self;
        let folder = tempfile::Builder::new().prefix("turnwheel-bench-").tempdir_in(place);
        let folder = folder.map_err(io("make a data folder"))?;
        let model = model::FakeModel::start(case).await.map_err(io("start the fake model"))?;
        let mut workers = Vec::with_capacity(case.workers);
        for number in 0..case.workers {
            let place = Place { folder: folder.path(), number, accounts, tag };
            workers.push(Worker::start(program, &place, case, &model.base_url()).await?);
        }
        let load = Load { case, model: &model, tag, wire };
        let loaded = Box::pin(load.drive(&mut workers)).await?;
        let cold_start = workers.iter().map(|worker| worker.cold_start).max();
        for worker in workers {
            worker.stop().await?;
        }
        Ok((loaded, cold_start.unwrap_or_default()))
    }
}
