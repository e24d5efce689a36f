//! Implementation of the commands of the `turnwheel` program.

mod doctor;
mod operating;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use crate::agents::Loaded;
use crate::app::agent_files::AgentFiles;
use crate::app::arguments::{Arguments, Command, StorageArguments};
use crate::app::banner::{Banner, ModelSource};
use crate::app::certify::Wish;
#[cfg(unix)]
use crate::app::isolation;
use crate::app::looking::Named;
use crate::app::ports::Storage;
use crate::app::service::{ServiceOptions, StartError};
use crate::app::usage::Question;
use crate::app::{App, bench, certify, functions, voice};
use crate::azure::credential::Credentials;
use crate::ids::TenantId;
use crate::package::{self, Order, Script};
use crate::settings::Settings;
use crate::settings::links::Auth;
use crate::settings::mistake::Mistake;
use crate::telemetry::{Style, Telemetry};
use crate::turn::views::work::WorkQuery;

/// Default data folder.
const DATA: &str = ".turnwheel";
const DONE: u8 = 0;
const FAILED: u8 = 1;
const BAD_ARGUMENTS: u8 = 2;

pub(super) fn run(app: App, arguments: Arguments) -> ExitCode {
    let code = match arguments.command {
        None => serve(app),
        Some(Command::Dev { port, data, agents, storage }) => {
            dev(app, port, (data, agents), &storage)
        }
        Some(Command::Package { out, binary, force, azd }) => {
            package(&app, &out, binary.as_deref(), force, azd)
        }
        Some(Command::RebuildQueue { place }) => operating::upkeep(&place, None),
        Some(Command::Redrive { queue, place }) => operating::upkeep(&place, Some(queue)),
        Some(Command::Usage { by, from, to, tenant, data, json }) => {
            operating::usage(Question { by: by.by(), from, to, tenant }, &data, json)
        }
        Some(Command::Bench(arguments)) => match arguments.check() {
            Err(text) => refuse(&text),
            Ok(()) => block_on(async {
                Box::pin(bench::measure(&arguments))
                    .await
                    .map_or_else(|error| complain(&error), |()| DONE)
            }),
        },
        Some(Command::BenchWorker { data, agents, queue_prefix }) => {
            bench_worker(app, (data, agents), queue_prefix)
        }
        #[cfg(unix)]
        Some(Command::IsolatedTurn) => block_on(async {
            Box::pin(isolation::child::run(app))
                .await
                .map_or_else(|error| complain(&error), |()| DONE)
        }),
        Some(Command::Why { id, tenant, user, data, json }) => {
            operating::why(&Named { id, tenant, user }, &data, json)
        }
        Some(Command::Ls { stuck, waiting, tenant, data, json }) => {
            let tenant = tenant.map(TenantId::new);
            operating::ls(WorkQuery { tenant, stuck, is_waiting: waiting }, &data, json)
        }
        Some(Command::Certify { names, agents, tools, json, junit, only }) => {
            certify(app, Wish { names, agents, tools: tools.tools(), junit, only }, json)
        }
        Some(Command::Doctor { offline, format, agents, data }) => {
            doctor::examine(&app, &doctor::Examined { agents, data, is_offline: offline }, format)
        }
    };
    ExitCode::from(code)
}

/// Writes a line to standard output. Unlike log lines, it is for the user of the command.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn complain(error: &dyn std::error::Error) -> u8 {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    let _ = writeln!(std::io::stderr(), "turnwheel: {text}");
    FAILED
}

fn refuse(text: &str) -> u8 {
    let _ = writeln!(std::io::stderr(), "turnwheel: {text}");
    BAD_ARGUMENTS
}

/// Settings of this machine: environment variables, then `local.settings.json`.
pub(super) fn read_settings() -> Result<Settings, Vec<Mistake>> {
    Settings::of_folder(Path::new("."))
}

fn dev(
    app: App,
    port: u16,
    (data, agents): (PathBuf, Option<PathBuf>),
    storage: &StorageArguments,
) -> u8 {
    let storage = match storage.of_dev() {
        Ok(storage) => storage,
        Err(text) => return refuse(text),
    };
    let settings = match read_settings() {
        Ok(settings) => settings,
        Err(mistakes) => return complain(&StartError::from(mistakes)),
    };
    let settings = settings.for_dev();
    let options = ServiceOptions {
        root: PathBuf::from("."),
        data,
        agents,
        port,
        handler_port: 0,
        storage,
        is_hosted: false,
        is_dev: true,
        telemetry: Telemetry::default(),
    };
    block_on(work(app.with_children(true), settings, options, true))
}

fn serve(app: App) -> u8 {
    let settings = match Settings::of_environment() {
        Ok(settings) => settings,
        Err(mistakes) => return complain(&StartError::from(mistakes)),
    };
    let Some(port) = settings.port else {
        let help = <Arguments as clap::CommandFactory>::command().render_help();
        let _ = writeln!(
            std::io::stderr(),
            "{help}\nFUNCTIONS_CUSTOMHANDLER_PORT is not set; the Functions host sets it. To run locally: turnwheel dev"
        );
        return BAD_ARGUMENTS;
    };
    let missing = settings.missing_to_serve();
    if !missing.is_empty() {
        return complain(&StartError::from(missing));
    }
    // Without a storage account the queues are in this process, which an external Functions host
    // cannot read. The built-in host then reads them.
    let is_hosted = settings.storage.is_some();
    let storage = if is_hosted {
        Storage::Account { queue_prefix: String::new() }
    } else {
        Storage::Embedded
    };
    let options = ServiceOptions {
        root: PathBuf::from("."),
        data: PathBuf::from(DATA),
        agents: None,
        port: 0,
        handler_port: port,
        storage,
        is_hosted,
        is_dev: false,
        telemetry: Telemetry::default(),
    };
    block_on(work(app.with_children(false), settings, options, false))
}

/// Runs the measured worker. It reads its settings from the environment only and ignores files in
/// the current folder.
fn bench_worker(app: App, (data, agents): (PathBuf, PathBuf), queue_prefix: Option<String>) -> u8 {
    let storage =
        queue_prefix.map_or(Storage::Embedded, |queue_prefix| Storage::Account { queue_prefix });
    let settings = match Settings::of_environment() {
        Ok(settings) => settings,
        Err(mistakes) => return complain(&StartError::from(mistakes)),
    };
    let settings = settings.for_dev();
    block_on(async {
        let telemetry = match voice::start(&settings, Style::dev(), false) {
            Ok(telemetry) => telemetry,
            Err(error) => return complain(&error),
        };
        let place = (data, agents, storage);
        let outcome = Box::pin(bench::work(app, settings, place, telemetry.clone())).await;
        telemetry.stop().await;
        outcome.map_or_else(|error| complain(&error), |()| DONE)
    })
}

fn certify(app: App, wish: Wish, is_json: bool) -> u8 {
    let settings = match read_settings() {
        Ok(settings) => settings,
        Err(mistakes) => return complain(&StartError::from(mistakes)),
    };
    block_on(async {
        let report = match Box::pin(certify::run(app, settings, wish)).await {
            Ok(report) => report,
            Err(error) => return complain(&error),
        };
        if let Some(missed) = report.missed() {
            let _ = writeln!(std::io::stderr(), "turnwheel: {missed}");
            return BAD_ARGUMENTS;
        }
        if is_json {
            say(&serde_json::to_string_pretty(&report.json()).unwrap_or_default());
        } else {
            say(&report.to_string());
        }
        if report.is_ok() { DONE } else { FAILED }
    })
}

/// Runs the service between the start and the flush of its telemetry.
async fn work(app: App, settings: Settings, options: ServiceOptions, is_dev: bool) -> u8 {
    let style = if is_dev { Style::dev() } else { Style::served(settings.is_in_azure) };
    let telemetry = match voice::start(&settings, style, !is_dev) {
        Ok(telemetry) => telemetry,
        Err(error) => return complain(&error),
    };
    let options = ServiceOptions { telemetry: telemetry.clone(), ..options };
    let code = Box::pin(run_service(app, settings, options, is_dev)).await;
    telemetry.stop().await;
    code
}

async fn run_service(app: App, settings: Settings, options: ServiceOptions, is_dev: bool) -> u8 {
    let source = ModelSource::of(&settings);
    let agents_dir = options.agents.as_ref().unwrap_or(&settings.agents_dir).display().to_string();
    let running = match Box::pin(app.start(settings, options)).await {
        Ok(running) => running,
        Err(error) => return complain(&error),
    };
    if is_dev {
        match running.address() {
            Ok(address) => {
                let world = running.world();
                let (catalog, model) = (world.agents.now(), &*world.model);
                let agents_dir = &agents_dir;
                let banner =
                    Banner { address, catalog: &catalog, model, source: &source, agents_dir };
                say(&banner.text());
            }
            Err(error) => return complain(&error),
        }
    }
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let stopping = async move {
        stop_signal().await;
        if is_dev {
            let seconds = functions::DEV_STOP_WITHIN.as_secs();
            say(&format!(
                "Stopping: model responses and tool calls under way have up to {seconds} s to be committed. Ctrl-C again ends at once."
            ));
        } else {
            tracing::info!("service stopping; active turns may finish");
        }
        asked.cancel();
        stop_signal().await;
    };
    tokio::select! {
        outcome = Box::pin(running.run(stop)) => match outcome {
            Ok(()) => DONE,
            Err(error) => complain(&error),
        },
        () = stopping => FAILED,
    }
}

/// Resolves at Ctrl-C or, on Unix, at SIGTERM.
async fn stop_signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {},
                _ = terminate.recv() => {},
            }
            return;
        }
    }
    let _ = interrupt.await;
}

fn block_on(work: impl Future<Output = u8>) -> u8 {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(Box::pin(work));
            runtime.shutdown_timeout(std::time::Duration::from_secs(1));
            code
        }
        Err(error) => complain(&error),
    }
}

fn package(app: &App, out: &Path, binary: Option<&Path>, is_forced: bool, is_for_azd: bool) -> u8 {
    let settings = match read_settings() {
        Ok(settings) => settings,
        Err(mistakes) => return complain(&StartError::from(mistakes)),
    };
    let root = Path::new(".");
    let agents_dir = settings.agents_dir.clone();
    let mistakes = agents(app, &settings, None).err().unwrap_or_default();
    let order = Order {
        root,
        out,
        binary,
        agents_dir: &agents_dir,
        auth: settings.auth.unwrap_or(Auth::Keys),
        is_forced,
    };
    let check = |folder: &Path| {
        crate::host::check_package(folder).iter().map(ToString::to_string).collect()
    };
    let packaged = Script::read(root)
        .map_err(package::PackageError::from)
        .and_then(|script| package::package(&order, &script, &mistakes, check))
        .and_then(|package| {
            let azd = is_for_azd.then(|| package::write_azd_files(root)).transpose()?;
            Ok(package::Package { azd, ..package })
        });
    match packaged {
        Ok(package) => {
            say(&package.to_string());
            DONE
        }
        Err(error) => complain(&error),
    }
}

/// Loads the agents from `folder`, or from the folder of the settings if it is `None`.
///
/// # Errors
/// Returns every mistake as `agents/clerk.agent.md:7: reason`: correct the files.
pub(super) fn agents(
    app: &App,
    settings: &Settings,
    folder: Option<PathBuf>,
) -> Result<Loaded, Vec<String>> {
    let options = ServiceOptions {
        root: PathBuf::from("."),
        data: PathBuf::from(DATA),
        agents: folder,
        port: 0,
        handler_port: 0,
        storage: Storage::Embedded,
        is_hosted: false,
        is_dev: false,
        telemetry: Telemetry::default(),
    };
    // `dev` provides this setting, and in Azure it is set. Without it, the check would report it
    // as missing.
    let settings =
        settings.clone().with_app_setting("PAYMENTS_URL", "https://payments.example".to_owned());
    let files = AgentFiles::new(app, &settings, &options, &Credentials::default());
    match files.and_then(|mut files| files.load_all()) {
        Ok(loaded) => Ok(loaded),
        Err(StartError::Agents(mistakes) | StartError::Settings(mistakes)) => Err(mistakes),
        Err(error) => Err(vec![error.to_string()]),
    }
}
