//! The texts of `host.json` and of the functions' folders: from the current folder, else from the
//! binary.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::config::HostConfig;
use super::function::{Function, Trigger};
use super::problem::HostProblem;
use turnwheel_platform::text_encoding::decode_utf8;

/// The folder that holds the functions' folders in a clone; a deployed folder has them at its root.
const FUNCTIONS_FOLDER: &str = "functions";

/// Serves the web console; left out where the console is off.
pub const CONSOLE_FUNCTION: &str = "console";

const HOST_JSON: &str = include_str!("../../../host.json");

const FUNCTIONS: [(&str, &str); 13] = [
    ("approve", include_str!("../../../functions/approve/function.json")),
    (CONSOLE_FUNCTION, include_str!("../../../functions/console/function.json")),
    ("health", include_str!("../../../functions/health/function.json")),
    ("notify", include_str!("../../../functions/notify/function.json")),
    ("notify-poison", include_str!("../../../functions/notify-poison/function.json")),
    ("openapi", include_str!("../../../functions/openapi/function.json")),
    ("openapi-3-0", include_str!("../../../functions/openapi-3-0/function.json")),
    ("preflight", include_str!("../../../functions/preflight/function.json")),
    ("prompt", include_str!("../../../functions/prompt/function.json")),
    ("sweep", include_str!("../../../functions/sweep/function.json")),
    ("turn", include_str!("../../../functions/turn/function.json")),
    ("turn-poison", include_str!("../../../functions/turn-poison/function.json")),
    ("web", include_str!("../../../functions/web/function.json")),
];

/// The unchecked texts of `host.json` and of every `function.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptRoot {
    pub host_json: String,
    /// By the folder's name.
    pub functions: BTreeMap<String, String>,
    /// The folder that holds them, relative to the root; used only in messages.
    pub parent: &'static str,
}

impl ScriptRoot {
    /// Returns the copies in the binary.
    pub fn embedded() -> Self {
        let functions =
            FUNCTIONS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Self {
            host_json: HOST_JSON.to_owned(),
            functions: functions.collect(),
            parent: FUNCTIONS_FOLDER,
        }
    }

    /// Reads `host.json` and `functions/<name>/function.json` (or, as in a deployed folder,
    /// `<name>/function.json`) of `dir`. Each of the two that `dir` does not have comes from the
    /// binary.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub fn find(dir: &Path) -> Result<Self, HostProblem> {
        let embedded = Self::embedded();
        let Some(host_json) = read_if_present(dir, "host.json")? else {
            // Without a host.json beside it, a `functions` folder may belong to another project.
            return Ok(embedded);
        };
        for below in [FUNCTIONS_FOLDER, ""] {
            let functions = read_function_files(dir, below)?;
            if !functions.is_empty() {
                return Ok(Self { host_json, functions, parent: below });
            }
        }
        Ok(Self { host_json, ..embedded })
    }

    /// Reads the files that the Functions host reads in a deployed folder. An absent `host.json` is an
    /// empty text.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub fn read_deployed(dir: &Path) -> Result<Self, HostProblem> {
        let host_json = read_if_present(dir, "host.json")?.unwrap_or_default();
        Ok(Self { host_json, functions: read_function_files(dir, "")?, parent: "" })
    }

    /// Reads only the files below `functions/`, with or without a host.json beside them.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub fn read_functions(dir: &Path) -> Result<BTreeMap<String, String>, HostProblem> {
        read_function_files(dir, FUNCTIONS_FOLDER)
    }

    /// # Errors
    /// All problems of all files.
    pub fn read(&self) -> Result<(HostConfig, Vec<Function>), Vec<HostProblem>> {
        let mut problems = Vec::new();
        let mut functions = Vec::new();
        for (name, text) in &self.functions {
            match Function::read(name, &self.function_file(name), text) {
                Ok(function) => functions.push(function),
                Err(found) => problems.extend(found),
            }
        }
        let is_queue = |function: &Function| matches!(function.trigger, Trigger::Queue { .. });
        let config = HostConfig::read(&self.host_json, functions.iter().any(is_queue));
        let config = config.map_err(|found| problems.splice(0..0, found)).ok();
        let is_http = |function: &Function| matches!(function.trigger, Trigger::Http(_));
        let http: Vec<&str> =
            functions.iter().filter(|one| is_http(one)).map(|one| one.name.as_str()).collect();
        let mut background = self.functions.keys().filter(|name| !http.contains(&name.as_str()));
        if let Some(prefix) = config.as_ref().map(|config| &config.route_prefix)
            && background.any(|name| name.eq_ignore_ascii_case(prefix))
        {
            problems.push(HostProblem::new(
                "host.json",
                format!("`extensions.http.routePrefix` is `{prefix}`, the name of a function: anyone could call it"),
            ));
        }
        match config {
            Some(config) if problems.is_empty() => Ok((config, functions)),
            _ => Err(problems),
        }
    }

    /// Returns the path of a function's file for messages.
    pub(super) fn function_file(&self, name: &str) -> String {
        function_file(self.parent, name)
    }

    /// Returns the files of a deployed folder: path relative to its root, and text.
    pub fn files(&self) -> impl Iterator<Item = (String, &str)> {
        let functions = self
            .functions
            .iter()
            .map(|(name, text)| (format!("{name}/function.json"), text.as_str()));
        std::iter::once(("host.json".to_owned(), self.host_json.as_str())).chain(functions)
    }
}

/// Reads the `function.json` of each immediate subfolder: the host ignores deeper ones.
pub(crate) fn read_function_files(
    dir: &Path,
    parent: &str,
) -> Result<BTreeMap<String, String>, HostProblem> {
    let folder = dir.join(parent);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(BTreeMap::new()),
        Err(error) => return Err(read_error(parent, &error)),
    };
    let mut functions = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|error| read_error(parent, &error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = function_file(parent, &name);
        if let Some(text) = read_if_present(dir, &file)? {
            functions.insert(name, text);
        }
    }
    Ok(functions)
}

fn function_file(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        format!("{name}/function.json")
    } else {
        format!("{parent}/{name}/function.json")
    }
}

pub(crate) fn read_if_present(dir: &Path, file: &str) -> Result<Option<String>, HostProblem> {
    match std::fs::read(dir.join(file)) {
        Ok(bytes) => match decode_utf8(&bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(error) => Err(HostProblem::new(file, error.to_string())),
        },
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(read_error(file, &error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn read_error(file: &str, error: &io::Error) -> HostProblem {
    HostProblem::new(file, format!("cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_without_host_json_uses_embedded_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("functions/other")).unwrap();
        std::fs::write(dir.path().join("functions/other/function.json"), "{}").unwrap();
        assert_eq!(ScriptRoot::find(dir.path()).unwrap(), ScriptRoot::embedded());
    }

    #[test]
    fn byte_order_mark_is_skipped_and_utf16_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let write =
            |file: &str, bytes: &[u8]| std::fs::write(dir.path().join(file), bytes).unwrap();
        std::fs::create_dir(dir.path().join("mine")).unwrap();
        write("host.json", b"\xef\xbb\xbf{}");
        write("mine/function.json", b"\xef\xbb\xbf{}");
        let root = ScriptRoot::find(dir.path()).unwrap();
        assert_eq!((root.host_json.as_str(), root.functions["mine"].as_str()), ("{}", "{}"));
        write("mine/function.json", b"\xff\xfe{\0}\0");
        let problem = format!("{:?}", ScriptRoot::find(dir.path()).unwrap_err());
        assert!(problem.contains("UTF-16"), "{problem}");
    }

    #[test]
    fn script_root_is_found_in_clone_and_deployment() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("host.json"), "{}").unwrap();
        for below in ["", "functions"] {
            let folder = dir.path().join(below);
            std::fs::create_dir_all(folder.join("mine")).unwrap();
            std::fs::create_dir_all(folder.join("no-function")).unwrap();
            std::fs::create_dir_all(folder.join("deep/er")).unwrap();
            std::fs::write(folder.join("mine/function.json"), below).unwrap();
            std::fs::write(folder.join("deep/er/function.json"), "{}").unwrap();
            let root = ScriptRoot::find(dir.path()).unwrap();
            assert_eq!(root.host_json, "{}");
            assert_eq!(root.functions, BTreeMap::from([("mine".to_owned(), below.to_owned())]));
        }
    }

    #[test]
    fn route_prefix_cannot_name_background_function() {
        let mut root = ScriptRoot::embedded();
        assert!(root.read().is_ok());
        let turn = root.functions.remove("turn").unwrap();
        root.functions.insert("Api".to_owned(), turn);
        let problems = root.read().unwrap_err();
        assert!(problems[0].message.contains("anyone could call it"), "{problems:?}");
    }

    #[test]
    fn embedded_functions_match_repository_folders() {
        let root =
            ScriptRoot::find(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).unwrap();
        assert_eq!(root, ScriptRoot::embedded());
    }
}
