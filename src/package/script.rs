//! The Functions host's files: host.json and one function.json per function, with the authorization
//! levels for callers.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::PackageOptions;
use turnwheel_devhost as host;
use turnwheel_devhost::{HostProblem, ScriptRoot};
use turnwheel_platform::settings::links::Auth;

const HOST_JSON: &str = "host.json";
const FUNCTIONS: &str = "functions/";
const AUTH_LEVEL: &str = "authLevel";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptFiles {
    pub host_json: String,
    /// Name of the function → text of its function.json; never empty.
    pub functions: BTreeMap<String, String>,
    /// Files from the program that the folder does not have: `host.json`, `functions/`.
    pub embedded: Vec<&'static str>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ScriptError {
    #[error("{0}")]
    Unreadable(HostProblem),
    #[error(
        "functions/ has functions, but there is no host.json beside it: write host.json, or remove functions/ to use both from the program"
    )]
    NoHostJson,
    #[error("functions/{name}/function.json is not usable: {reason}")]
    Function { name: String, reason: String },
}

/// A function.json as it is staged.
pub(super) struct StagedFunction {
    pub(super) name: String,
    pub(super) json: String,
    /// Authorization level for the report; empty without an HTTP trigger.
    pub(super) note: String,
}

impl ScriptFiles {
    /// Reads `host.json` and `functions/*/function.json` of a project; missing ones come from the
    /// program.
    ///
    /// # Errors
    /// Show the text: it says what to do.
    pub(crate) fn read(root: &Path) -> Result<Self, ScriptError> {
        let found = ScriptRoot::find(root).map_err(ScriptError::Unreadable)?;
        let is_own = root.join(HOST_JSON).exists();
        let own_functions = ScriptRoot::read_functions(root).map_err(ScriptError::Unreadable)?;
        if !is_own && !own_functions.is_empty() {
            return Err(ScriptError::NoHostJson);
        }
        let mut embedded = Vec::new();
        if !is_own {
            embedded.push(HOST_JSON);
        }
        let is_embedded = found.functions == ScriptRoot::embedded().functions;
        if own_functions.is_empty() && is_embedded {
            embedded.push(FUNCTIONS);
        }
        Ok(Self { host_json: found.host_json, functions: found.functions, embedded })
    }

    pub(super) fn stage_functions(
        &self,
        options: &PackageOptions<'_>,
    ) -> Result<Vec<StagedFunction>, ScriptError> {
        let is_staged = |name: &str| options.has_console || name != host::CONSOLE_FUNCTION;
        let functions = self.functions.iter().filter(|(name, _)| is_staged(name));
        functions.map(|(name, json)| stage_function(name, json, options.auth)).collect()
    }
}

fn stage_function(name: &str, json: &str, auth: Auth) -> Result<StagedFunction, ScriptError> {
    let invalid = |reason: String| ScriptError::Function { name: name.to_owned(), reason };
    let mut function: Value =
        serde_json::from_str(json).map_err(|error| invalid(error.to_string()))?;
    let bindings = function
        .get_mut("bindings")
        .and_then(Value::as_array_mut)
        .ok_or_else(|| invalid("it has no array `bindings`".to_owned()))?;
    let mut note = String::new();
    for binding in bindings.iter_mut().filter_map(Value::as_object_mut) {
        let kind = binding.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind.eq_ignore_ascii_case("httpTrigger") {
            let is_public = host::is_public(name, binding);
            let level = if is_public { "anonymous" } else { auth_level(binding, auth) };
            note = format!("authLevel {level}");
            // The Functions host reads every spelling of the name.
            binding.retain(|key, _| key == AUTH_LEVEL || !key.eq_ignore_ascii_case(AUTH_LEVEL));
            binding.insert(AUTH_LEVEL.to_owned(), Value::from(level));
        }
    }
    let mut json =
        serde_json::to_string_pretty(&function).map_err(|error| invalid(error.to_string()))?;
    json.push('\n');
    Ok(StagedFunction { name: name.to_owned(), json, note })
}

/// The level of a function whose requests need a caller.
fn auth_level(binding: &Map<String, Value>, auth: Auth) -> &'static str {
    let mut levels = binding.iter().filter(|(key, _)| key.eq_ignore_ascii_case(AUTH_LEVEL));
    let is_admin = |level: &str| level.eq_ignore_ascii_case("admin");
    match auth {
        // The owner closed this function to all but admins: it stays closed.
        _ if levels.any(|(_, level)| level.as_str().is_some_and(is_admin)) => "admin",
        Auth::Keys | Auth::Header => "function",
        // The platform authenticates callers first; requiring a key as well would lock users out.
        Auth::SignIn => "anonymous",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The trigger of a staged function.
    fn stage_trigger(name: &str, trigger: &Value, auth: Auth) -> Value {
        let json = json!({"bindings": [trigger, {"type": "http", "direction": "out"}]}).to_string();
        let staged = stage_function(name, &json, auth).unwrap();
        let staged: Value = serde_json::from_str(&staged.json).unwrap();
        staged["bindings"][0].clone()
    }

    #[test]
    fn staged_trigger_has_one_level_in_one_spelling() {
        let trigger = json!({"type": "httpTrigger", "AuthLevel": "admin", "AUTHLEVEL": "function"});
        for auth in [Auth::Keys, Auth::Header, Auth::SignIn] {
            let staged = json!({"type": "httpTrigger", "authLevel": "admin"});
            assert_eq!(stage_trigger("ops", &trigger, auth), staged, "{auth:?}");
        }
        let trigger = json!({"type": "httpTrigger", "AuthLevel": "anonymous"});
        let level = |auth| stage_trigger("web", &trigger, auth);
        assert_eq!(level(Auth::Keys), json!({"type": "httpTrigger", "authLevel": "function"}));
        assert_eq!(level(Auth::SignIn), json!({"type": "httpTrigger", "authLevel": "anonymous"}));
    }

    #[test]
    fn route_in_two_spellings_is_public_only_if_both_are() {
        let level = |other: &str| {
            let trigger = json!({"type": "httpTrigger", "route": "health", "Route": other});
            stage_trigger("health", &trigger, Auth::Keys)["authLevel"].clone()
        };
        assert_eq!(level("HEALTH"), "anonymous");
        assert_eq!(level("{*path}"), "function");
    }
}
