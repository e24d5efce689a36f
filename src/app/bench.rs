//! `turnwheel bench` and the worker process that it measures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::app::commands::say;
use crate::app::ports::Storage;
use crate::app::service::{ServiceOptions, StartError, io};
use crate::bench::accounts::Accounts;
use crate::bench::case::{self, BenchArguments};
use crate::bench::report::Report;
use crate::bench::worker::{Counted, Ready};
use crate::bench::{self, BenchError};
use crate::settings::Settings;
use crate::store::embedded::EmbeddedStore;
use crate::telemetry::Telemetry;

/// Runs the benchmark and prints its report.
///
/// # Errors
/// Print the error and exit.
pub(super) async fn measure(arguments: &BenchArguments) -> Result<(), StartError> {
    // Read first, so that an invalid report fails before the measurement.
    let earlier = arguments.compare.as_deref().map(read).transpose()?;
    let accounts = match arguments.storage {
        case::Storage::Embedded => None,
        case::Storage::Azure => {
            let settings = Settings::of_environment()?;
            let accounts = Accounts::of(&settings);
            Some(accounts.map_err(|mistake| StartError::Settings(vec![mistake]))?)
        }
    };
    let program = std::env::current_exe().map_err(io("find this program"))?;
    let measured = Box::pin(bench::run(&program, arguments, accounts.as_ref(), say)).await;
    let report = measured.map_err(io("measure"))?;
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&report).unwrap_or_default();
        std::fs::write(file, text + "\n").map_err(io("write the report"))?;
    }
    if let Some(earlier) = earlier {
        say(&format!("\n{}", report.compared_with(&earlier)));
    }
    Ok(())
}

fn read(file: &Path) -> Result<Report, StartError> {
    let text = std::fs::read(file).map_err(io("read the report to compare with"))?;
    serde_json::from_slice(&text).map_err(io("parse the report to compare with"))
}

/// Runs a service like `dev` under the control of the parent process: see [`bench::worker`].
///
/// # Errors
/// Print the error and exit.
pub(super) async fn work(
    app: App,
    settings: Settings,
    (data, agents, storage): (PathBuf, PathBuf, Storage),
    telemetry: Telemetry,
) -> Result<(), StartError> {
    let options = ServiceOptions {
        root: PathBuf::from("."),
        data,
        agents: Some(agents),
        port: 0,
        handler_port: 0,
        storage,
        is_hosted: false,
        is_dev: false,
        telemetry,
    };
    let running = Box::pin(app.start(settings, options)).await?;
    let address = running.address().map_err(io("read the port"))?.to_string();
    tell(&Ready { address });
    let stop = CancellationToken::new();
    let (asked, store) = (stop.clone(), running.embedded_store());
    let answering = async move {
        answer(store).await;
        asked.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = Box::pin(running.run(stop)) => outcome,
        () = answering => {
            Err(io("continue")(BenchError::Worker("the benchmark process has exited".to_owned())))
        }
    }
}

/// Writes the counters for each line on standard input, until it closes.
async fn answer(store: Option<Arc<EmbeddedStore>>) {
    let mut questions = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = questions.next_line().await {
        let counted = store
            .as_ref()
            .map(|store| Counted { commits: store.commits(), checkpoints: store.checkpoints() });
        tell(&counted.unwrap_or_default());
    }
}

fn tell(line: &impl serde::Serialize) {
    say(&serde_json::to_string(line).unwrap_or_default());
}
