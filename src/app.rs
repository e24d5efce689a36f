//! The front door of the library: the product, with your tools and extensions in it.

mod agent;
mod agent_files;
mod arguments;
mod banner;
mod bench;
mod certify;
mod checks;
mod commands;
mod functions;
mod halt;
#[cfg(unix)]
mod isolation;
mod looking;
mod model;
mod named;
mod ports;
mod prices;
mod service;
mod signing;
mod upkeep;
mod usage;
mod voice;

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;

use crate::extensions::Extension;
use crate::tools::RunTool;
use crate::tools::code::{Services, Tool, code_tool_with};

pub use agent::{
    Agent, AgentBuilder, AgentError, AgentEvent, AgentEvents, AgentState, EventStream, Subscription,
};
pub use ports::Storage;
pub use service::{Running, ServiceOptions, StartError};

/// Turnwheel with more tools. Every command comes along.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     turnwheel::App::new().main()
/// }
/// ```
#[derive(Default)]
pub struct App {
    tools: Vec<Arc<dyn RunTool>>,
    extensions: Vec<Arc<dyn Extension>>,
    services: Services,
    /// Tools that cannot be offered, and why; told at start, all at once.
    mistakes: Vec<String>,
    /// Where a process that this program starts of itself reads its settings; `None`: [`App::main`] does not run, so that
    /// nobody knows what this program does with a command of ours.
    #[cfg(unix)]
    children: Option<isolation::SettingsSource>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "App({} tools, {} extensions)", self.tools.len(), self.extensions.len())
    }
}

impl App {
    pub fn new() -> Self {
        Self::default()
    }

    /// Agent files name it like a built-in, whose name it may take. Two tools of the app with one name are a mistake at start.
    #[must_use]
    pub fn tool<T: Tool>(mut self, tool: T) -> Self {
        match code_tool_with(tool, self.services.clone()) {
            Ok(tool) => self.tools.push(tool),
            Err(mistake) => self.mistakes.push(mistake),
        }
        self
    }

    /// Injects a value into the tools: [`CallContext::service`] finds it by its type, whether the tool is registered before
    /// or after it.
    ///
    /// [`CallContext::service`]: crate::tools::code::CallContext::service
    #[must_use]
    pub fn service<T: Send + Sync + 'static>(mut self, service: T) -> Self {
        self.mistakes.extend(self.services.add(service).err());
        self
    }

    /// Asked in the order of registration.
    #[must_use]
    pub fn extension(mut self, extension: impl Extension + 'static) -> Self {
        self.extensions.push(Arc::new(extension));
        self
    }

    /// Where the command line is ours: suspect turns run in processes of their own, whose settings are read as here.
    #[cfg(unix)]
    fn with_children(mut self, is_dev: bool) -> Self {
        use isolation::SettingsSource::{Environment, Local};
        self.children = Some(if is_dev { Local } else { Environment });
        self
    }

    #[cfg(not(unix))]
    fn with_children(self, _is_dev: bool) -> Self {
        self
    }

    /// Reads the command line and does what it says. 0 done, 1 failed, 2 bad arguments.
    pub fn main(self) -> ExitCode {
        let arguments = match arguments::Arguments::try_parse() {
            Ok(arguments) => arguments,
            Err(error) => {
                // Help and version are printed in the same way as mistakes, and are none.
                let _ = error.print();
                return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            }
        };
        commands::run(self, arguments)
    }
}
