//! Entry point of the library: [`App`] runs Turnwheel with your own tools and extensions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::registrations::Registrations;
use turnwheel_extensions::{Extension, ExtensionError, Plugin};
use turnwheel_tools::code::Tool;

/// Source of the settings of a process.
#[cfg(unix)]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum SettingsSource {
    /// Environment variables, which the Functions host sets.
    Environment,
    /// Environment variables, then `local.settings.json`.
    Local,
}

/// Turnwheel with additional tools and extensions. It has all commands of the `turnwheel` program.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     turnwheel::App::new().main()
/// }
/// ```
#[derive(Default)]
pub struct App {
    pub(crate) registrations: Registrations,
    /// Source of the settings in child processes for isolated turns. `None` without [`App::main`]:
    /// the program may then not support the hidden command that a child runs.
    #[cfg(unix)]
    pub(crate) child_settings: Option<SettingsSource>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registrations { tools, extensions, .. } = &self.registrations;
        write!(f, "App({} tools, {} extensions)", tools.len(), extensions.len())
    }
}

impl App {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a tool. Agent files refer to it by name; it may replace a built-in tool of the
    /// same name. The start fails if two tools of the app have the same name.
    #[must_use]
    pub fn tool<T: Tool>(mut self, tool: T) -> Self {
        self.registrations.add_tool(tool);
        self
    }

    /// Registers a value that tools get by its type with [`CallContext::service`]. The order of
    /// tool and service registrations does not matter.
    ///
    /// [`CallContext::service`]: turnwheel_tools::code::CallContext::service
    #[must_use]
    pub fn service<T: Send + Sync + 'static>(mut self, service: T) -> Self {
        self.registrations.add_service(service);
        self
    }

    /// Registers an extension. Hooks run in the order of registration.
    #[must_use]
    pub fn extension(mut self, extension: impl Extension + 'static) -> Self {
        self.registrations.add_extension(extension);
        self
    }

    /// Registers a plugin. Agent files select plugins by name. The start fails if two plugins have
    /// the same name.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Plugin) -> Self {
        self.registrations.add_plugin(plugin);
        self
    }

    /// Registers a listener for failures of hooks. It must not block: the turn waits for it. A
    /// turn in a child process calls it there.
    #[must_use]
    pub fn on_extension_error(
        mut self,
        listener: impl Fn(&ExtensionError) + Send + Sync + 'static,
    ) -> Self {
        self.registrations.error_listeners.add(listener);
        self
    }

    /// Runs suspect turns in child processes, which read their settings from the same source.
    /// Requires that this program runs the commands of [`App::main`].
    #[cfg(unix)]
    pub(crate) fn with_isolation(mut self, is_dev: bool) -> Self {
        use SettingsSource::{Environment, Local};
        self.child_settings = Some(if is_dev { Local } else { Environment });
        self
    }

    #[cfg(not(unix))]
    pub(crate) fn with_isolation(self, _is_dev: bool) -> Self {
        self
    }
}
