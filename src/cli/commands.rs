//! Implementation of the commands of the `turnwheel` program.

mod doctor;
mod operator;
mod terminal;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::cli::arguments::{CliArguments, Command, StorageArguments};
use crate::cli::banner::{Banner, ModelSource};
use crate::cli::certify::{self, CertifyRequest};
use crate::cli::open_approvals::show_open_approvals;
use crate::cli::pending_work::DATA_DIR;
use crate::cli::system_report::SystemReport;
use crate::cli::usage::UsageQuery;
use crate::cli::{bench, help, new_project};
use crate::package::{self, PackageOptions, ScriptFiles};
use crate::start::agent_files::AgentFiles;
use crate::start::console::{print_line, show_progress};
use crate::start::hosted_process::{self, HostProcess};
use crate::start::options::{ServiceOptions, Supervision, read_settings};
use crate::start::ports::Storage;
use crate::start::shared_user::shared_user_note;
use crate::start::start_error::{StartError, io_error};
use crate::start::stop_signals::StopSignals;
use crate::start::supervisor;
use crate::start::{deployed_functions, function_handlers, telemetry_setup};
use turnwheel_agent_files::{LoadedAgents, agent_file_schema};
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::Auth;
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_platform::telemetry::{FLUSH_TIMEOUT, LogStyle};

#[cfg(unix)]
use crate::start::isolation;
#[cfg(target_os = "linux")]
use turnwheel_tools::shell::sandbox;

const SUCCESS: u8 = 0;
const FAILED: u8 = 1;
const BAD_ARGUMENTS: u8 = 2;

pub(crate) fn run(app: App, arguments: CliArguments) -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(Command::ShellSandbox { stage }) = arguments.command {
        return sandbox::run_stage(stage);
    }
    let code = match run_command(app, arguments.command) {
        Ok(code) => code,
        Err(StartError::Arguments(text)) => print_argument_error(&text),
        Err(error) => print_error(&error),
    };
    ExitCode::from(code)
}

/// Returns the exit code.
fn run_command(app: App, command: Option<Command>) -> Result<u8, StartError> {
    match command {
        None => serve(app),
        Some(Command::Dev { port, data, agents, storage, no_supervisor, supervised }) => {
            if !no_supervisor && !supervised {
                return supervisor::run(port);
            }
            let start = supervised.then(supervisor::read_start).transpose();
            let start = start.map_err(io_error("read the start from the supervisor"))?;
            let options = ServiceOptions {
                data,
                agents,
                port: start.as_ref().map_or(port, |start| start.port),
                supervision: start.map(|start| Supervision { replaced: start.replaced }),
                ..ServiceOptions::default()
            };
            run_dev(app, options, &storage)
        }
        Some(Command::New { folder, template }) => {
            Ok(print_done(&new_project::create(&folder, template)?))
        }
        Some(Command::Package { out, binary, force, azd }) => {
            run_package(&app, &out, binary.as_deref(), force, azd)
        }
        Some(Command::RebuildQueue { place }) => operator::run_maintenance(&place, None),
        Some(Command::Redrive { queue, place }) => operator::run_maintenance(&place, Some(queue)),
        Some(Command::Usage { by, from, to, tenant, data, json }) => {
            operator::print_usage(UsageQuery { by, from, to, tenant }, &data, json)
        }
        Some(Command::Bench(arguments)) => {
            block_on(async { Box::pin(bench::run_bench(&arguments)).await.map(|()| SUCCESS) })
        }
        Some(Command::BenchWorker { data, agents }) => run_bench_worker(app, data, agents),
        #[cfg(unix)]
        Some(Command::IsolatedTurn) => {
            block_on(async { Box::pin(isolation::child::run(app)).await.map(|()| SUCCESS) })
        }
        #[cfg(target_os = "linux")]
        Some(Command::ShellSandbox { .. }) => Ok(BAD_ARGUMENTS),
        Some(Command::Agents { name, agents, json, service }) => {
            terminal::print_agents(&app, name.as_deref(), agents, &service, json)
        }
        Some(Command::Schema) => Ok(print_done(&format!("{:#}", agent_file_schema()))),
        Some(Command::Why { id, json, service }) => terminal::print_why(&id, &service, json),
        Some(Command::Export { id, format, place }) => {
            operator::export_conversation(&id, format.name(), &place)
        }
        Some(Command::Import { file, agent, place, json }) => {
            operator::import_file(&file, agent.as_deref(), &place, json)
        }
        Some(Command::Ls { stuck, waiting, json, service }) => {
            terminal::print_backlog(stuck, waiting, &service, json)
        }
        Some(Command::Certify { names, agents, tools, json, junit, only }) => run_certify(
            app,
            CertifyRequest { names, agents, tools: tools.to_tools(), junit, only },
            json,
        ),
        Some(Command::Terminal(command)) => terminal::run(command),
        Some(Command::Completions { shell }) => Ok(help::print_completions(shell)),
        Some(Command::Man { out }) => help::write_pages(out.as_deref()),
        Some(Command::Doctor { offline, format, agents, data }) => Ok(doctor::run_doctor(
            &app,
            &doctor::DoctorOptions { agents, data, is_offline: offline },
            format,
        )),
    }
}

/// Prints the result of a command.
fn print_done(text: &str) -> u8 {
    print_line(text);
    SUCCESS
}

fn print_error(error: &dyn std::error::Error) -> u8 {
    let _ = writeln!(std::io::stderr(), "turnwheel: {}", error_chain(error));
    FAILED
}

fn print_argument_error(text: &str) -> u8 {
    let _ = writeln!(std::io::stderr(), "turnwheel: {text}");
    BAD_ARGUMENTS
}

fn run_dev(
    app: App,
    options: ServiceOptions,
    storage: &StorageArguments,
) -> Result<u8, StartError> {
    let storage = storage.dev_storage().map_err(|text| StartError::Arguments(text.to_owned()))?;
    let settings = read_settings()?.with_dev_defaults();
    let options = ServiceOptions { root: PathBuf::from("."), storage, is_dev: true, ..options };
    block_on(run_with_telemetry(app.with_isolation(true), settings, options))
}

fn serve(app: App) -> Result<u8, StartError> {
    let host_process = HostProcess::default();
    let settings = ServiceSettings::from_environment()?;
    let Some(port) = settings.port else {
        let help = help::grouped_command().render_help();
        let _ = writeln!(
            std::io::stderr(),
            "{help}\nFUNCTIONS_CUSTOMHANDLER_PORT is not set; the Functions host sets it. To run locally: turnwheel dev"
        );
        return Ok(BAD_ARGUMENTS);
    };
    let missing = settings.missing_required();
    if !missing.is_empty() {
        return Err(missing.into());
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
        data: PathBuf::from(DATA_DIR),
        handler_port: port,
        storage,
        is_hosted,
        host_process,
        ..ServiceOptions::default()
    };
    block_on(run_with_telemetry(app.with_isolation(false), settings, options))
}

/// Runs the measured worker. It reads its settings from the environment only and ignores files in
/// the current folder.
fn run_bench_worker(app: App, data: PathBuf, agents: PathBuf) -> Result<u8, StartError> {
    let settings = ServiceSettings::from_environment()?.with_dev_defaults();
    block_on(async {
        let telemetry = match telemetry_setup::start_telemetry(&settings, LogStyle::dev(), false) {
            Ok(telemetry) => telemetry,
            Err(error) => return Ok(print_error(&error)),
        };
        let outcome =
            Box::pin(bench::run_worker(app, settings, data, agents, telemetry.clone())).await;
        telemetry.stop().await;
        outcome.map(|()| SUCCESS)
    })
}

fn run_certify(app: App, request: CertifyRequest, is_json: bool) -> Result<u8, StartError> {
    let settings = read_settings()?;
    block_on(async {
        let report = Box::pin(certify::run(app, settings, request)).await?;
        if let Some(missed) = report.unmatched_filter() {
            let _ = writeln!(std::io::stderr(), "turnwheel: {missed}");
            return Ok(BAD_ARGUMENTS);
        }
        if is_json {
            print_line(&serde_json::to_string_pretty(&report.json()).unwrap_or_default());
        } else {
            print_line(&report.to_string());
        }
        Ok(if report.is_ok() { SUCCESS } else { FAILED })
    })
}

/// Runs the service between the start and the flush of its telemetry.
async fn run_with_telemetry(
    app: App,
    settings: ServiceSettings,
    options: ServiceOptions,
) -> Result<u8, StartError> {
    let is_dev = options.is_dev;
    // First: a signal ends the process otherwise, and the Functions host counts that as a crash.
    let signals = StopSignals::listen().map_err(io_error("listen to signals"))?;
    let style = if is_dev { LogStyle::dev() } else { LogStyle::for_handler(settings.is_in_azure) };
    let telemetry = match telemetry_setup::start_telemetry(&settings, style, !is_dev) {
        Ok(telemetry) => telemetry,
        Err(error) => return Ok(print_error(&error)),
    };
    if !is_dev {
        let SystemReport { glibc, system } = SystemReport::read();
        tracing::info!(version = env!("CARGO_PKG_VERSION"), %glibc, %system, "handler starting");
    }
    let options = ServiceOptions { telemetry: telemetry.clone(), ..options };
    let shutdown = options.shutdown.clone();
    let code = Box::pin(run_service(app, settings, options, signals)).await;
    telemetry.stop_within(shutdown.flush_time_left().unwrap_or(FLUSH_TIMEOUT)).await;
    code
}

async fn run_service(
    app: App,
    settings: ServiceSettings,
    options: ServiceOptions,
    mut signals: StopSignals,
) -> Result<u8, StartError> {
    let is_dev = options.is_dev;
    let source = ModelSource::from_settings(&settings);
    let agents_dir = options.agents.as_ref().unwrap_or(&settings.agents_dir).display().to_string();
    let stopped = if is_dev { FAILED } else { hosted_process::RESTART };
    let (is_hosted, shutdown) = (options.is_hosted, options.shutdown.clone());
    let host_process = options.host_process;
    let stop = CancellationToken::new();
    let replaced = options.supervision.as_ref().and_then(|it| it.replaced.clone());
    let running = tokio::select! {
        started = Box::pin(app.start(settings, options)) => started?,
        () = wait_for_end_of_start(&mut signals, &stop, is_hosted.then_some((host_process, &shutdown))) => return Ok(stopped),
    };
    if let Some(replaced) = replaced {
        print_line(&replaced.describe_restart());
    } else if is_dev {
        let address = running.address().map_err(io_error("read the port"))?;
        let services = running.services();
        let (catalog, model) = (services.agents.current(), &*services.model);
        let agents_dir = &agents_dir;
        let banner = Banner { address, catalog: &catalog, model, source: &source, agents_dir };
        print_line(&banner.render());
        show_open_approvals(services).await;
    }
    let stop_requested = stop.clone();
    let stopping = async move {
        // The first signal may have come during the start.
        if !stop_requested.is_cancelled() {
            signals.next().await;
        }
        if is_dev {
            let seconds = function_handlers::DEV_STOP_TIMEOUT.as_secs();
            print_line(&format!(
                "Stopping: model responses and tool calls under way have up to {seconds} s to be committed. Ctrl-C again ends at once."
            ));
        } else {
            tracing::info!(
                "service stopping: turns are given back, and writes under way may finish"
            );
        }
        stop_requested.cancel();
        signals.next().await;
    };
    tokio::select! {
        outcome = Box::pin(running.run(stop)) => {
            outcome.map(|()| if is_dev { SUCCESS } else { hosted_process::RESTART })
        }
        () = stopping => {
            shutdown.limit_flush(Duration::ZERO);
            Ok(stopped)
        }
        () = hosted_process::leave_with_host(host_process, &shutdown), if !is_dev && !is_hosted => {
            Ok(stopped)
        }
    }
}

/// Completes when a start that is not complete has to end. `hosted`: set behind the Functions host,
/// whose first signal cancels `stop` and lets the start go on.
async fn wait_for_end_of_start(
    signals: &mut StopSignals,
    stop: &CancellationToken,
    hosted: Option<(HostProcess, &Shutdown)>,
) {
    let Some((host, shutdown)) = hosted else { return signals.next().await };
    let second_signal = async {
        signals.next().await;
        stop.cancel();
        signals.next().await;
    };
    tokio::select! {
        () = hosted_process::wait_for_end(host, shutdown, stop.clone()) => {}
        () = second_signal => shutdown.limit_flush(Duration::ZERO),
    }
}

fn block_on(work: impl Future<Output = Result<u8, StartError>>) -> Result<u8, StartError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(io_error("start the runtime"))?;
    let code = runtime.block_on(Box::pin(work));
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

fn run_package(
    app: &App,
    out: &Path,
    binary: Option<&Path>,
    is_forced: bool,
    is_for_azd: bool,
) -> Result<u8, StartError> {
    let settings = read_settings()?;
    let root = Path::new(".");
    let agents_dir = settings.agents_dir.clone();
    show_progress("checking the agents");
    let checked = check_agents(app, &settings);
    let (warning, mistakes) = match checked {
        Ok(loaded) => (shared_user_note(&settings, &loaded.catalog), Vec::new()),
        Err(mistakes) => (None, mistakes),
    };
    let order = PackageOptions {
        root,
        out,
        binary,
        agents_dir: &agents_dir,
        auth: settings.auth.unwrap_or(Auth::Keys),
        has_console: settings.has_console(),
        progress: show_progress,
        is_forced,
    };
    let check = |folder: &Path| {
        let mut problems = turnwheel_devhost::check_package(folder);
        problems.extend(deployed_functions::find_setting_problems(&settings, folder));
        problems.iter().map(ToString::to_string).collect()
    };
    let packaged = ScriptFiles::read(root)
        .map_err(package::PackageError::from)
        .and_then(|script| package::package(&order, &script, &mistakes, check))
        .and_then(|package| {
            let azd = is_for_azd.then(|| package::write_azd_files(root)).transpose()?;
            let mut warnings = package.warnings;
            warnings.extend(warning);
            Ok(package::Package { azd_files: azd, warnings, ..package })
        });
    show_progress("");
    let package = match packaged {
        Ok(package) => package,
        Err(error) => return Ok(print_error(&error)),
    };
    print_line(&package.to_string());
    Ok(SUCCESS)
}

/// Loads the agents for `package`, with those that lack only app settings.
///
/// # Errors
/// Returns every mistake but missing app settings.
fn check_agents(app: &App, settings: &ServiceSettings) -> Result<LoadedAgents, Vec<String>> {
    let options = ServiceOptions { root: PathBuf::from("."), ..ServiceOptions::default() };
    let files = AgentFiles::new(app, settings, &options, &Credentials::default());
    let loaded = files.and_then(|mut files| files.load_for_package());
    let mut loaded = loaded.map_err(StartError::into_mistakes)?;
    loaded.catalog.agents.append(&mut loaded.unset_agents);
    Ok(loaded)
}

/// Loads the agents from `folder`, or from the folder of the settings if it is `None`. `is_dev`:
/// agents may have what only `dev` offers.
///
/// # Errors
/// Returns every mistake as `agents/clerk.agent.md:7: reason`: correct the files.
pub(crate) fn load_agents(
    app: &App,
    settings: &ServiceSettings,
    folder: Option<PathBuf>,
    is_dev: bool,
) -> Result<LoadedAgents, Vec<String>> {
    let options = ServiceOptions {
        root: PathBuf::from("."),
        data: PathBuf::from(DATA_DIR),
        agents: folder,
        is_dev,
        ..ServiceOptions::default()
    };
    // `dev` provides this setting. Without it, the check would report it as missing.
    let settings =
        settings.clone().with_app_setting("PAYMENTS_URL", "https://payments.example".to_owned());
    let files = AgentFiles::new(app, &settings, &options, &Credentials::default());
    files.and_then(|mut files| files.load_all()).map_err(StartError::into_mistakes)
}

#[cfg(test)]
mod tests;
