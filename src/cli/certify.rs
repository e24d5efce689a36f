//! `turnwheel certify`: loads agents and their test conversations, runs them, reports results.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::app::App;
use crate::start::agent_files::AgentFiles;
use crate::start::console::show_progress;
use crate::start::example_payments;
use crate::start::options::ServiceOptions;
use crate::start::start_error::{StartError, io_error};
use turnwheel_agent_files::AgentDefinition;
use turnwheel_azure::credential::Credentials;
use turnwheel_certify as certify;
use turnwheel_certify::{
    CertifyOptions, CertifyProgress, Conversation, Report, RunFilter, ToolMode,
};
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_tools::workspace::builtins;

/// Options of the command.
pub(crate) struct CertifyRequest {
    /// Agents to certify. Empty: all.
    pub(crate) names: Vec<String>,
    /// Folder of the agent files. `None`: the folder of the settings.
    pub(crate) agents: Option<PathBuf>,
    pub(crate) tools: ToolMode,
    pub(crate) junit: Option<PathBuf>,
    pub(crate) only: Option<RunFilter>,
}

/// Command line that repeats this run, without agent names.
fn repeat_command(request: &CertifyRequest) -> String {
    let mut words = vec!["turnwheel certify".to_owned()];
    if let Some(folder) = &request.agents {
        let folder = folder.to_string_lossy();
        let is_plain = folder.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        words.push("--agents".to_owned());
        words.push(if is_plain {
            folder.into_owned()
        } else {
            format!("'{}'", folder.replace('\'', r"'\''"))
        });
    }
    if request.tools == ToolMode::Real {
        words.push("--tools real".to_owned());
    }
    words.join(" ")
}

/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) async fn run(
    app: App,
    settings: ServiceSettings,
    request: CertifyRequest,
) -> Result<Report, StartError> {
    if !app.registrations.mistakes.is_empty() {
        return Err(StartError::Settings(app.registrations.mistakes));
    }
    // Real tools need the payments server of the example. Stubs need only its address.
    let (settings, payments) = match request.tools {
        ToolMode::Real => {
            let prepared = example_payments::start(settings, 0).await?;
            (prepared.settings, prepared.payments)
        }
        ToolMode::Stub if settings.app_setting("PAYMENTS_URL").is_none() => {
            (settings.with_app_setting("PAYMENTS_URL", "https://payments.example".to_owned()), None)
        }
        ToolMode::Stub => (settings, None),
    };
    let options = ServiceOptions {
        root: PathBuf::from("."),
        agents: request.agents.clone(),
        ..ServiceOptions::default()
    };
    let mut files = AgentFiles::new(&app, &settings, &options, &Credentials::default())?;
    let loaded = files.load_all()?;
    let folder = request.agents.clone().unwrap_or_else(|| settings.agents_dir.clone());
    let folder = options.root.join(folder);
    let agents: Vec<&Arc<AgentDefinition>> = if request.names.is_empty() {
        loaded.catalog.agents.values().collect()
    } else {
        let found = request.names.iter().map(|name| loaded.catalog.find(Some(name.as_str())));
        let found: Result<Vec<_>, _> = found.collect();
        found.map_err(|missing| StartError::Agents(vec![missing.to_string()]))?
    };
    if agents.is_empty() {
        let message = format!(
            "there is no agent in {}: add an agent file, or set the folder with `--agents`",
            folder.display()
        );
        return Err(StartError::Agents(vec![message]));
    }
    if request.tools == ToolMode::Real {
        for server in agents.iter().flat_map(|agent| &agent.mcp).map(|source| &source.server) {
            let read = server.refresh(SystemClock::default().now()).await;
            read.map_err(|reason| {
                let name = &server.name;
                StartError::Agents(vec![format!(
                    "the MCP server `{name}` cannot be read: {reason}"
                )])
            })?;
        }
    }
    let own: Vec<&str> =
        app.registrations.tools.iter().map(|tool| tool.definition().name.as_str()).collect();
    let harmless = builtins().into_iter().map(|tool| tool.definition().name.clone());
    let harmless = harmless.filter(|name| !own.contains(&name.as_str())).collect();
    let order = CertifyOptions {
        agents: load_conversations(agents, &folder)?,
        extensions: app.registrations.extensions,
        tools: request.tools,
        harmless,
        command: repeat_command(&request),
        filter: request.only,
        run_interval: 1,
        progress: print_progress,
    };
    let report = Box::pin(certify::run_certify(&order)).await?;
    drop(payments);
    if let Some(file) = request.junit {
        std::fs::write(&file, report.junit()).map_err(io_error("write the JUnit file"))?;
    }
    Ok(report)
}

/// Shows the runs so far, until the end.
fn print_progress(progress: CertifyProgress<'_>) {
    let CertifyProgress { agent, done, total } = progress;
    let is_end = done == total;
    show_progress(&if is_end { String::new() } else { format!("{agent}: {done} of {total} runs") });
}

fn load_conversations(
    agents: Vec<&Arc<AgentDefinition>>,
    folder: &Path,
) -> Result<Vec<(Arc<AgentDefinition>, Conversation)>, StartError> {
    let (mut found, mut mistakes) = (Vec::new(), Vec::new());
    for agent in agents {
        match Conversation::for_agent(agent, folder) {
            Ok(conversation) => found.push((Arc::clone(agent), conversation)),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() { Ok(found) } else { Err(StartError::Agents(mistakes)) }
}
