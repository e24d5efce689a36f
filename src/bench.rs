//! A repeatable benchmark: conversations on separate worker processes, with a model that takes no
//! time, over HTTP as a client would, every turn durable.

pub mod accounts;
mod baseline;
pub mod case;
pub mod fake_model;
mod load;
pub mod process;
mod recording_proxy;
pub mod report;
pub mod requests;
pub mod worker;

use std::path::Path;
use std::time::Duration;

use crate::bench::accounts::Accounts;
use crate::bench::case::{BenchArguments, Case};
use crate::bench::load::{Load, LoadResult};
use crate::bench::recording_proxy::RecordingProxy;
use crate::bench::report::{Figures, Machine, Report};
use crate::bench::requests::RequestFigures;
use crate::bench::worker::{Worker, WorkerLocation};
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
    PromptFailed(String),
    #[error("the bare requests were not answered like those of the workers: {0}")]
    Baseline(String),
}

fn io_error<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Io { doing, source: source.into() }
}

/// Runs every case, each with its own workers and its own folder or queues. `accounts` are the
/// accounts of cases that are not embedded. `report_line` receives each line as soon as it is complete.
///
/// # Errors
/// Show the error and exit.
pub async fn run_cases(
    program: &Path,
    arguments: &BenchArguments,
    accounts: Option<&Accounts>,
    report_line: impl Fn(&str),
) -> Result<Report, BenchError> {
    let data_root = arguments.data.clone().unwrap_or_else(std::env::temp_dir);
    let machine = Machine::measure(&data_root).map_err(io_error("measure the disk"))?;
    report_line(&machine.to_string());
    let binary_bytes =
        std::fs::metadata(program).map(|file| file.len()).map_err(io_error("read"))?;
    let mut report = Report::new(machine, binary_bytes);
    report_line(&report.heading(arguments.storage));
    for case in arguments.cases() {
        let figures = Box::pin(measure_case(program, &case, &data_root, accounts)).await?;
        report_line(&figures.to_line(&case));
        report.add(case, figures);
    }
    Ok(report)
}

async fn measure_case(
    program: &Path,
    case: &Case,
    data_root: &Path,
    accounts: Option<&Accounts>,
) -> Result<Figures, BenchError> {
    let case_run = CaseRun { program, case, data_root };
    let requests = match accounts {
        Some(accounts) => Some(Box::pin(case_run.measure_requests(accounts)).await?),
        None => None,
    };
    let (loaded, cold_start) = Box::pin(case_run.run_load(accounts, &new_tag(), None)).await?;
    Ok(Figures::from_load(case, &loaded, cold_start, requests))
}

/// Prefix of everything that one run leaves in the accounts, so that the next run does not find it.
fn new_tag() -> String {
    SystemIds.new_id().chars().skip(24).collect()
}

/// The context of a case.
struct CaseRun<'a> {
    program: &'a Path,
    case: &'a Case,
    data_root: &'a Path,
}

impl CaseRun<'_> {
    /// Counts the workers' storage requests, and measures the same requests without the workers.
    async fn measure_requests(&self, accounts: &Accounts) -> Result<RequestFigures, BenchError> {
        let (tag, bare_tag) = (new_tag(), new_tag());
        let wire = RecordingProxy::start(accounts).await?;
        let (loaded, _) = self.run_load(Some(&wire.accounts), &tag, Some(&wire)).await?;
        drop(wire);
        let (lanes, tags) = (self.case.conversations, (tag.as_str(), bare_tag.as_str()));
        let bare =
            Box::pin(baseline::measure_replay(&loaded.requests, accounts, lanes, tags)).await?;
        Ok(RequestFigures::from_recorded(self.case.turns(), &loaded.requests, bare))
    }

    /// Runs the case once. Also returns the longest start of its workers.
    async fn run_load(
        &self,
        accounts: Option<&Accounts>,
        tag: &str,
        wire: Option<&RecordingProxy>,
    ) -> Result<(LoadResult, Duration), BenchError> {
        let Self { program, case, data_root: place } = self;
        let folder = tempfile::Builder::new().prefix("turnwheel-bench-").tempdir_in(place);
        let folder = folder.map_err(io_error("make a data folder"))?;
        let model =
            fake_model::FakeModel::start(case).await.map_err(io_error("start the fake model"))?;
        let mut workers = Vec::with_capacity(case.workers);
        for number in 0..case.workers {
            let place = WorkerLocation { folder: folder.path(), number, accounts, tag };
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
