//! Reading the folder of agent files.

use std::path::Path;
use std::sync::Arc;

use crate::agents::file::{self, Sources};
use crate::agents::mistakes::{Findings, Mistake};
use crate::agents::yaml::At;
use crate::agents::{BrokenAgent, Catalog, ToolSet};
use crate::tools::http::client::HttpClient;

const ENDING: &str = ".agent.md";
/// A larger file is no set of instructions.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What a folder of agent files gave.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Files with mistakes are among `broken`.
    pub catalog: Catalog,
    /// By file and line. `dev`, `package` and `doctor` stop at any.
    pub mistakes: Vec<Mistake>,
    /// Why there is no agent although nothing is wrong: for people.
    pub note: Option<String>,
}

/// Reads every `<name>.agent.md` of the folder. `catalog.default_agent` is left to the caller.
pub fn load(
    folder: &Path,
    tools: &ToolSet,
    app_settings: &dyn Fn(&str) -> Option<String>,
    client: &HttpClient,
) -> Loaded {
    let mut loaded = Loaded::default();
    let shown = folder.file_name().map_or_else(|| "agents".into(), |name| name.to_string_lossy());
    let names = match names(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            loaded.note = Some(format!(
                "There is no folder `{shown}`, so there are no agents: make {shown}/assistant{ENDING}, or set TURNWHEEL_AGENTS_DIR."
            ));
            return loaded;
        }
        Err(error) => {
            let mut findings = Findings::of(shown);
            findings.add(At::START, format!("the folder cannot be read: {error}"));
            loaded.mistakes = findings.into_sorted();
            return loaded;
        }
    };
    if names.is_empty() {
        loaded.note =
            Some(format!("No file in `{shown}` ends in {ENDING}, so there are no agents."));
    }
    let sources = Sources { tools, app_settings, client };
    for name in names {
        let file_name = format!("{name}{ENDING}");
        let mut findings = Findings::of(format!("{shown}/{file_name}"));
        let agent = text_of(&folder.join(&file_name))
            .map_err(|reason| findings.add(At::START, reason))
            .ok()
            .and_then(|text| file::read(&name, &text, &sources, &mut findings));
        if let Some(agent) = agent {
            loaded.catalog.agents.insert(name, Arc::new(agent));
            continue;
        }
        let mistakes = findings.into_sorted();
        let problem = mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        loaded.catalog.broken.insert(name.clone(), BrokenAgent { name, problem });
        loaded.mistakes.extend(mistakes);
    }
    loaded
}

/// Sorted; hidden files (editors' locks) are passed over.
fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let file_name = entry?.file_name();
        let file_name = file_name.to_string_lossy();
        if let Some(name) = file_name.strip_suffix(ENDING)
            && !file_name.starts_with('.')
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn text_of(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    let facts = std::fs::metadata(path).map_err(unreadable)?;
    if facts.len() > FILE_BYTES_MAX {
        return Err(format!("the file is larger than {FILE_BYTES_MAX} bytes"));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())
}
