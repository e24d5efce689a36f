//! The event `resources_discover`: extensions name further prompt templates and skills.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use crate::runner::{ErrorListeners, FailureCause, HookFailure};
use crate::{Extension, Hook};

/// Why templates and skills are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryReason {
    /// The service or a command starts.
    Startup,
    /// `dev` reads changed files.
    Reload,
}

/// Files and folders that an extension adds. Relative paths are relative to the project's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredResources {
    pub skill_paths: Vec<PathBuf>,
    pub prompt_paths: Vec<PathBuf>,
    /// Accepted for extensions of other hosts, and not used: a service has no themes.
    pub theme_paths: Vec<PathBuf>,
}

/// Runs the hook of an extension. A failure is reported, and the extension adds nothing.
pub fn discover_resources(
    extension: &dyn Extension,
    reason: DiscoveryReason,
    listeners: &ErrorListeners,
) -> DiscoveredResources {
    if !extension.events().contains(Hook::ResourcesDiscover) {
        return DiscoveredResources::default();
    }
    let found = catch_unwind(AssertUnwindSafe(|| extension.discover_resources(reason)));
    let cause = match found {
        Ok(Ok(found)) => {
            if !found.theme_paths.is_empty() && reason == DiscoveryReason::Startup {
                tracing::warn!(extension = extension.name(), "theme paths are not used");
            }
            return found;
        }
        Ok(Err(error)) => FailureCause::Error(error.to_string()),
        Err(_payload) => FailureCause::Panic,
    };
    let extension = extension.name().to_owned();
    let failure = HookFailure { extension, hook: Hook::ResourcesDiscover, cause };
    tracing::warn!(extension = failure.extension, "hook failed: {failure}");
    listeners.notify(&failure);
    DiscoveredResources::default()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::HookError;

    #[derive(Debug)]
    struct Broken {
        panics: bool,
    }

    impl Extension for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }

        fn discover_resources(
            &self,
            _reason: DiscoveryReason,
        ) -> Result<DiscoveredResources, HookError> {
            assert!(!self.panics, "it panics");
            Err(HookError::new("no share"))
        }
    }

    #[test]
    fn failed_discovery_is_reported_and_adds_nothing() {
        let errors = Arc::new(Mutex::new(Vec::new()));
        let mut listeners = ErrorListeners::default();
        let all = Arc::clone(&errors);
        listeners.add(move |error| all.lock().unwrap().push(error.clone()));
        for panics in [true, false] {
            let found =
                discover_resources(&Broken { panics }, DiscoveryReason::Startup, &listeners);
            assert_eq!(found, DiscoveredResources::default());
        }
        let errors = errors.lock().unwrap();
        let texts: Vec<&str> = errors.iter().map(|error| error.text.as_str()).collect();
        assert_eq!(texts, ["it panicked", "no share"]);
        assert!(errors.iter().all(|error| error.event == "resources_discover"));
    }
}
