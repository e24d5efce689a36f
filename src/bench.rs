//! The benchmark that strangers can repeat: conversations on a worker process of their own, against a model that takes no
//! time, over HTTP as a user would, every turn durable.

pub mod case;
mod load;
pub mod model;
pub mod process;
pub mod report;
pub mod worker;

use std::path::Path;

use crate::bench::case::{BenchArguments, Case};
use crate::bench::report::{Figures, Machine, Report};
use crate::bench::worker::Worker;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("could not {doing}")]
    Io { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the worker process ended: {0}")]
    Worker(String),
    /// A benchmark that counts failures as work measures nothing.
    #[error("a prompt did not end well, so nothing was measured: {0}")]
    Prompt(String),
}

fn io<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Io { doing, source: source.into() }
}

/// Runs every case, each with a worker and a data folder of its own. `tell` is given each line as it is known.
///
/// # Errors
/// Show it and exit.
pub async fn run(
    program: &Path,
    arguments: &BenchArguments,
    tell: impl Fn(&str),
) -> Result<Report, BenchError> {
    let place = arguments.data.clone().unwrap_or_else(std::env::temp_dir);
    let machine = Machine::look(&place).map_err(io("look at the disk"))?;
    tell(&machine.to_string());
    let binary_bytes = std::fs::metadata(program).map(|file| file.len()).map_err(io("read"))?;
    let mut report = Report::new(machine, binary_bytes);
    tell(&report.heading());
    for case in arguments.cases() {
        let figures = Box::pin(run_case(program, &case, &place)).await?;
        tell(&figures.line(&case));
        report.add(case, figures);
    }
    Ok(report)
}

async fn run_case(program: &Path, case: &Case, place: &Path) -> Result<Figures, BenchError> {
    let folder = tempfile::Builder::new().prefix("turnwheel-bench-").tempdir_in(place);
    let folder = folder.map_err(io("make a data folder"))?;
    let model = model::FakeModel::start(case).await.map_err(io("start the fake model"))?;
    let mut worker = Worker::start(program, folder.path(), case, &model.base_url()).await?;
    let loaded = Box::pin(load::drive(case, &mut worker, &model)).await?;
    let cold_start = worker.cold_start;
    worker.stop().await?;
    Ok(Figures::of(case, &loaded, cold_start))
}
