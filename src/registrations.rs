//! The tools, extensions and plugins that a program registers, for the service or an embedded agent.

use std::sync::Arc;

use turnwheel_extensions::command::find_command_mistakes;
use turnwheel_extensions::permissions::find_extension_mistakes;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::runner::ErrorListeners;
use turnwheel_extensions::{Extension, Plugin};
use turnwheel_tools::CallableTool;
use turnwheel_tools::code::{ServiceRegistry, Tool, build_code_tool_with_services};

#[derive(Default)]
pub(crate) struct Registrations {
    pub(crate) tools: Vec<Arc<dyn CallableTool>>,
    pub(crate) extensions: Vec<Arc<dyn Extension>>,
    pub(crate) plugins: Vec<Arc<RegisteredPlugin>>,
    pub(crate) error_listeners: ErrorListeners,
    services: ServiceRegistry,
    /// The start fails and reports all of them.
    pub(crate) mistakes: Vec<String>,
}

impl Registrations {
    pub(crate) fn add_tool<T: Tool>(&mut self, tool: T) {
        match build_code_tool_with_services(tool, self.services.clone(), None) {
            Ok(tool) => self.tools.push(tool),
            Err(mistake) => self.mistakes.push(mistake),
        }
    }

    pub(crate) fn add_service<T: Send + Sync + 'static>(&mut self, service: T) {
        self.mistakes.extend(self.services.add(service).err());
    }

    pub(crate) fn add_extension(&mut self, extension: impl Extension + 'static) {
        self.extensions.push(Arc::new(extension));
    }

    pub(crate) fn add_plugin(&mut self, plugin: impl Plugin) {
        let registered = RegisteredPlugin::register(plugin, &mut self.plugins, &self.services);
        self.mistakes.extend(registered.err().into_iter().flatten());
    }

    /// Adds the mistakes of the extensions as a whole.
    pub(crate) fn check_extensions(&mut self) {
        let plugins: Vec<&str> = self.plugins.iter().map(|plugin| plugin.name()).collect();
        self.mistakes.extend(find_extension_mistakes(&self.extensions, &plugins));
        self.mistakes.extend(find_command_mistakes(&self.extensions));
    }
}
