//! App settings (`${NAME}`) in agent files.

use crate::file_context::AgentFileContext;
use crate::mistakes::Findings;
use crate::yaml::Position;
use turnwheel_platform::settings::{UNRESOLVED, is_unresolved};
use turnwheel_tools::http::template::{SettingLookup, Template, TemplateError};

/// Prefixes of settings of the platform and of Turnwheel. They hold identities and keys, which an
/// agent file must not send.
const FORBIDDEN_SETTING_PREFIXES: [&str; 15] = [
    "AZUREWEBJOBS",
    "WEBSITE_",
    "IDENTITY_",
    "COSMOS",
    "AZURE_",
    "TURNWHEEL_",
    "MSI_",
    "FUNCTIONS_",
    "CONTAINER_",
    "MACHINEKEY_",
    "APPINSIGHTS_",
    "APPLICATIONINSIGHTS_",
    "OTEL_",
    "SCM_",
    "DOCKER_",
];

/// The value of an app setting that the file names.
///
/// # Errors
/// The setting may not be used, has no value, or is missing.
pub(super) fn find_setting(
    name: &str,
    context: &AgentFileContext<'_>,
) -> Result<String, TemplateError> {
    let upper = name.to_ascii_uppercase();
    if FORBIDDEN_SETTING_PREFIXES.iter().any(|prefix| upper.starts_with(prefix)) {
        return Err(TemplateError::Invalid(format!(
            "the app setting {name} belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own"
        )));
    }
    match (context.app_settings)(name) {
        Some(value) if is_unresolved(&value) => {
            Err(TemplateError::Invalid(format!("the app setting {name} {UNRESOLVED}")))
        }
        Some(value) if !value.is_empty() => Ok(value),
        Some(_) => {
            Err(TemplateError::Invalid(format!("the app setting {name} is empty: give it a value")))
        }
        None => Err(TemplateError::MissingSetting(name.to_owned())),
    }
}

/// Parses a text with placeholders. Returns `None` after adding a finding for each mistake.
pub(super) fn parse_text(
    text: &str,
    at: Position,
    settings: SettingLookup<'_>,
    findings: &mut Findings,
) -> Option<Template> {
    let wrong = match Template::parse(text, settings) {
        Ok(template) => return Some(template),
        Err(wrong) => wrong,
    };
    for flaw in wrong {
        match flaw {
            TemplateError::Invalid(reason) => findings.add(at, reason),
            TemplateError::MissingSetting(name) => findings.add_missing_setting(at, &name),
        }
    }
    None
}
