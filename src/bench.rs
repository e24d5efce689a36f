//! A repeatable benchmark: conversations on a separate worker process, with a model that takes no
//! time, over HTTP as a client would, every turn durable.

pub(crate) mod case;
pub(crate) mod fake_model;
mod load;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod worker;

use std::path::Path;

use crate::bench::case::{BenchArguments, Case};
use crate::bench::fake_model::FakeModel;
use crate::bench::load::Load;
use crate::bench::report::{BenchReport, Figures, Machine};
use crate::bench::worker::Worker;

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("could not {doing}")]
    Io { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the worker process ended: {0}")]
    Worker(String),
    /// A benchmark that counted failures as work would measure nothing.
    #[error("a prompt failed, so nothing was measured: {0}")]
    PromptFailed(String),
}

fn io_error<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> BenchError {
    move |source| BenchError::Io { doing, source: source.into() }
}

/// Runs every case, each with its own worker and data folder. `report_line` receives each line
/// as soon as it is complete.
///
/// # Errors
/// Show the error and exit.
pub(crate) async fn run_cases(
    program: &Path,
    arguments: &BenchArguments,
    report_line: impl Fn(&str),
) -> Result<BenchReport, BenchError> {
    let data_root = arguments.data.clone().unwrap_or_else(std::env::temp_dir);
    let machine = Machine::measure(&data_root).map_err(io_error("measure the disk"))?;
    report_line(&machine.to_string());
    let binary_bytes =
        std::fs::metadata(program).map(|file| file.len()).map_err(io_error("read"))?;
    let mut report = BenchReport::new(machine, binary_bytes);
    report_line(&report.heading());
    for case in arguments.cases() {
        let figures = Box::pin(measure_case(program, &case, &data_root)).await?;
        report_line(&figures.to_line(&case));
        report.add(case, figures);
    }
    Ok(report)
}

async fn measure_case(
    program: &Path,
    case: &Case,
    data_root: &Path,
) -> Result<Figures, BenchError> {
    let folder = tempfile::Builder::new().prefix("turnwheel-bench-").tempdir_in(data_root);
    let folder = folder.map_err(io_error("make a data folder"))?;
    let model = FakeModel::start(case).await.map_err(io_error("start the fake model"))?;
    let mut worker = Worker::start(program, folder.path(), case, &model.base_url()).await?;
    let loaded = Box::pin(Load { case, model: &model }.drive(&mut worker)).await?;
    let cold_start = worker.cold_start;
    worker.stop().await?;
    Ok(Figures::from_load(case, &loaded, cold_start))
}
