//! What the Functions host reads: host.json and one function.json per function, with the levels that callers need.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::settings::links::Auth;

/// Functions that must answer without a key: a probe has none, and a link carries its own proof.
const ANONYMOUS: [&str; 2] = ["health", "approve"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    pub host_json: String,
    /// Name of the function → text of its function.json; never empty.
    pub functions: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("could not read {}: package from the project's folder, where host.json and functions/ are", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("functions/ holds no function: there must be functions/NAME/function.json")]
    NoFunctions,
    #[error("functions/{name}/function.json is not usable: {reason}")]
    Function { name: String, reason: String },
}

/// A function.json as it is staged.
pub(super) struct StagedFunction {
    pub(super) name: String,
    pub(super) json: String,
    /// Who may call it, for the report; empty when it is not called by HTTP.
    pub(super) note: String,
}

impl Script {
    /// `host.json` and `functions/*/function.json` of a project.
    ///
    /// # Errors
    /// Show the text: it says what is missing.
    pub fn read(root: &Path) -> Result<Self, ScriptError> {
        let text = |path: PathBuf| {
            fs::read_to_string(&path).map_err(|source| ScriptError::Read { path, source })
        };
        let dir = root.join("functions");
        let failed = |source| ScriptError::Read { path: dir.clone(), source };
        let mut functions = BTreeMap::new();
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let file = entry.map_err(failed)?.path().join("function.json");
            let name = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
            if let (Some(name), true) = (name, file.is_file()) {
                functions.insert(name.to_owned(), text(file.clone())?);
            }
        }
        if functions.is_empty() {
            return Err(ScriptError::NoFunctions);
        }
        Ok(Self { host_json: text(root.join("host.json"))?, functions })
    }

    pub(super) fn staged(&self, auth: Auth) -> Result<Vec<StagedFunction>, ScriptError> {
        self.functions.iter().map(|(name, json)| stage(name, json, auth)).collect()
    }
}

fn stage(name: &str, json: &str, auth: Auth) -> Result<StagedFunction, ScriptError> {
    let wrong = |reason: String| ScriptError::Function { name: name.to_owned(), reason };
    let mut function: Value =
        serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
    let bindings = function
        .get_mut("bindings")
        .and_then(Value::as_array_mut)
        .ok_or_else(|| wrong("it has no list `bindings`".to_owned()))?;
    let mut note = String::new();
    for binding in bindings.iter_mut().filter_map(Value::as_object_mut) {
        let kind = binding.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind.eq_ignore_ascii_case("httpTrigger") {
            let written = binding.get("authLevel").and_then(Value::as_str);
            let level = level(name, written, auth);
            note = format!("authLevel {level}");
            binding.insert("authLevel".to_owned(), Value::from(level));
        }
    }
    let mut json =
        serde_json::to_string_pretty(&function).map_err(|error| wrong(error.to_string()))?;
    json.push('\n');
    Ok(StagedFunction { name: name.to_owned(), json, note })
}

fn level(name: &str, written: Option<&str>, auth: Auth) -> &'static str {
    if ANONYMOUS.contains(&name) {
        return "anonymous";
    }
    match auth {
        // Somebody closed this one to all but the app's owner: it is not opened.
        _ if written.is_some_and(|level| level.eq_ignore_ascii_case("admin")) => "admin",
        Auth::Keys | Auth::Header => "function",
        // The platform has asked who it is before we are reached; a key on top would lock people out.
        Auth::SignIn => "anonymous",
    }
}
