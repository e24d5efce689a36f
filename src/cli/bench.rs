//! `turnwheel bench` and the worker process that it measures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::bench::case::BenchArguments;
use crate::bench::report::BenchReport;
use crate::bench::worker::{ReadyLine, StoreCounters};
use crate::bench::{self, BenchError};
use crate::start::console::print_line;
use crate::start::options::ServiceOptions;
use crate::start::start_error::{StartError, io_error};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::telemetry::Telemetry;
use turnwheel_platform::text_encoding::decode_utf8;
use turnwheel_storage::store::embedded::EmbeddedStore;

/// Runs the benchmark and prints its report.
///
/// # Errors
/// Print the error and exit.
pub(crate) async fn run_bench(arguments: &BenchArguments) -> Result<(), StartError> {
    // Read first, so that an invalid report fails before the measurement.
    let earlier = arguments.compare.as_deref().map(read_report).transpose()?;
    let program = std::env::current_exe().map_err(io_error("find this program"))?;
    let measured = Box::pin(bench::run_cases(&program, arguments, print_line)).await;
    let report = measured.map_err(io_error("measure"))?;
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&report).unwrap_or_default();
        std::fs::write(file, text + "\n").map_err(io_error("write the report"))?;
    }
    if let Some(earlier) = earlier {
        print_line(&format!("\n{}", report.compare_with(&earlier)));
    }
    Ok(())
}

fn read_report(file: &Path) -> Result<BenchReport, StartError> {
    const ACTION: &str = "read the report to compare with";
    let bytes = std::fs::read(file).map_err(io_error(ACTION))?;
    let text =
        decode_utf8(&bytes).map_err(|error| io_error(ACTION)(format!("the file {error}")))?;
    serde_json::from_str(text).map_err(io_error("parse the report to compare with"))
}

/// Runs a service like `dev` under the control of the parent process: see [`bench::worker`].
///
/// # Errors
/// Print the error and exit.
pub(crate) async fn run_worker(
    app: App,
    settings: ServiceSettings,
    data: PathBuf,
    agents: PathBuf,
    telemetry: Telemetry,
) -> Result<(), StartError> {
    let options = ServiceOptions {
        root: PathBuf::from("."),
        data,
        agents: Some(agents),
        telemetry,
        ..ServiceOptions::default()
    };
    let running = Box::pin(app.start(settings, options)).await?;
    let address = running.address().map_err(io_error("read the port"))?.to_string();
    print_json(&ReadyLine { address });
    let stop = CancellationToken::new();
    let (stop_on_exit, store) = (stop.clone(), running.embedded_store());
    let reporting = async move {
        report_counters(store).await;
        stop_on_exit.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = Box::pin(running.run(stop)) => outcome,
        () = reporting => {
            Err(io_error("continue")(BenchError::Worker("the benchmark process has exited".to_owned())))
        }
    }
}

/// Writes the counters for each line on standard input, until it closes.
async fn report_counters(store: Option<Arc<EmbeddedStore>>) {
    let mut requests = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = requests.next_line().await {
        let counters = store.as_ref().map(|store| StoreCounters {
            commits: store.commit_count(),
            checkpoints: store.checkpoint_count(),
        });
        print_json(&counters.unwrap_or_default());
    }
}

fn print_json(line: &impl serde::Serialize) {
    print_line(&serde_json::to_string(line).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use turnwheel_platform::error_chain::error_chain;

    use super::*;

    #[test]
    fn report_may_have_a_byte_order_mark() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.json");
        for (bytes, reason) in [
            (&b"\xef\xbb\xbf{}"[..], "missing field `version`"),
            (b"\xff\xfe{\0}\0", "the file is UTF-16 text"),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let error = error_chain(&read_report(&file).unwrap_err());
            assert!(error.contains(reason), "{error}");
        }
    }
}
