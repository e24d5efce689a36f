//! App settings (`${NAME}`) in agent files and in `mcp.json`.

use std::iter;

use crate::file_context::AgentFileContext;
use crate::mistakes::Findings;
use crate::yaml::Position;
use turnwheel_platform::settings::is_unresolved;
use turnwheel_tools::http::template::{Piece, Template, TemplateError};

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

/// A url and value of a header. It replaces a text with settings that are not set, so that the rest
/// of the file is read.
const STAND_IN: &str = "https://setting.example/";

/// The value of an app setting that the file names.
///
/// # Errors
/// The setting may not be used, or has no value here. An empty value counts as absent, and so does a
/// Key Vault reference, which only Azure resolves.
fn find_setting(name: &str, context: &AgentFileContext<'_>) -> Result<String, TemplateError> {
    let upper = name.to_ascii_uppercase();
    if FORBIDDEN_SETTING_PREFIXES.iter().any(|prefix| upper.starts_with(prefix)) {
        return Err(TemplateError::Invalid(format!(
            "the app setting {name} belongs to the platform or to Turnwheel and may not be sent: give the tool a setting of its own"
        )));
    }
    (context.app_settings)(name)
        .filter(|value| !value.trim().is_empty() && !is_unresolved(value))
        .ok_or_else(|| TemplateError::MissingSetting(name.to_owned()))
}

/// Parses a text with placeholders, and adds a finding for each mistake. Returns `None` if one of them
/// is in the text itself. If only settings are missing, returns a template with the same arguments.
/// `context`: `None` for the `reason` of an approval.
pub(super) fn parse_text(
    text: &str,
    at: Position,
    context: Option<&AgentFileContext<'_>>,
    findings: &mut Findings,
) -> Option<Template> {
    let settings = |name: &str| match context {
        Some(context) => find_setting(name, context),
        None => Err(TemplateError::Invalid(
            "`reason` is shown to users: it may hold arguments and no app setting".to_owned(),
        )),
    };
    let wrong = match Template::parse(text, &settings) {
        Ok(template) => return Some(template),
        Err(wrong) => wrong,
    };
    let mut is_valid = true;
    for flaw in wrong {
        match flaw {
            TemplateError::Invalid(reason) => {
                is_valid = false;
                findings.add(at, reason);
            }
            TemplateError::MissingSetting(name) => {
                let value = context.and_then(|context| (context.app_settings)(&name));
                let is_reference = value.is_some_and(|value| is_unresolved(&value));
                findings.add_missing_setting(at, &name, is_reference);
            }
        }
    }
    is_valid.then(|| stand_in(text))
}

fn stand_in(text: &str) -> Template {
    let parsed = Template::parse(text, &|_| Ok(String::new())).unwrap_or_default();
    let arguments = parsed.0.into_iter().filter(|piece| matches!(piece, Piece::Argument(_)));
    Template(iter::once(Piece::Text(STAND_IN.to_owned())).chain(arguments).collect())
}
