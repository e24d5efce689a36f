//! Reading the folder of agent files.

use std::io::Read as _;
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
        let agent = text_of(folder, &file_name)
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

/// A link may lead to another place in the folder, as where a platform mounts it. One that leads out of it would make
/// instructions, which the model repeats to anybody, of whatever file of this machine its author names.
fn text_of(folder: &Path, file_name: &str) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    let folder = folder.canonicalize().map_err(unreadable)?;
    let path = folder.join(file_name).canonicalize().map_err(unreadable)?;
    if !path.starts_with(&folder) {
        return Err(
            "the file is a link that leads out of the folder: put the file itself there".to_owned()
        );
    }
    if !path.is_file() {
        return Err("this is no file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("the file is larger than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())
}
