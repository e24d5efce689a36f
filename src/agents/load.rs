//! Loader of the folder of agent files.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use crate::agents::file::{self, Sources};
use crate::agents::mistakes::{Findings, Mistake};
use crate::agents::yaml::At;
use crate::agents::{BrokenAgent, Catalog, ToolSet};
use crate::tools::http::client::HttpClient;

const ENDING: &str = ".agent.md";
/// Bytes of one agent file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Agents and errors of a folder of agent files.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Its `broken` has the files with mistakes.
    pub catalog: Catalog,
    /// In the order of file and line. `package`, `certify` and `doctor` fail if there is any; a
    /// service starts without the agent.
    pub mistakes: Vec<Mistake>,
    /// Reason, for operators, why there are no agents and no mistakes.
    pub note: Option<String>,
}

/// Reads every `<name>.agent.md` of the folder. Messages contain `display_path` as the folder's
/// path. The caller sets `catalog.default_agent`.
pub fn load(
    folder: &Path,
    shown: &str,
    tools: &ToolSet,
    app_settings: &dyn Fn(&str) -> Option<String>,
    client: &HttpClient,
) -> Loaded {
    let mut loaded = Loaded::default();
    let names = match file_names(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            loaded.note = Some(format!(
                "There is no folder `{shown}`, so there are no agents: write {shown}/assistant{ENDING}, or name another folder with `--agents` or TURNWHEEL_AGENTS_DIR."
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
        loaded.note = Some(format!(
            "No file in `{shown}` ends in {ENDING}, so there are no agents: write {shown}/assistant{ENDING}."
        ));
    }
    let sources = Sources { tools, app_settings, client };
    for file_name in names {
        let name = file_name.strip_suffix(ENDING).unwrap_or(&file_name);
        loaded.add(shown, name, text_of(folder, &file_name), &sources);
    }
    loaded
}

/// Like [`load_folder`], but from the texts of agent files by agent name.
pub fn load_texts(
    texts: &BTreeMap<String, String>,
    shown: &str,
    tools: &ToolSet,
    app_settings: &dyn Fn(&str) -> Option<String>,
    client: &HttpClient,
) -> Loaded {
    let sources = Sources { tools, app_settings, client };
    let mut loaded = Loaded::default();
    for (name, text) in texts {
        loaded.add(shown, name, Ok(text.clone()), &sources);
    }
    loaded
}

impl Loaded {
    /// Adds an agent. `text` is its file, or the reason why the file cannot be read.
    fn add(
        &mut self,
        shown: &str,
        name: &str,
        text: Result<String, String>,
        sources: &Sources<'_>,
    ) {
        let mut findings = Findings::of(format!("{shown}/{name}{ENDING}"));
        let text = text.map_err(|reason| findings.add(At::START, reason)).ok();
        let agent = text.and_then(|text| {
            file::read(name, &text, sources, &mut findings).map(|agent| (agent, text))
        });
        if let Some((agent, text)) = agent {
            self.catalog.agents.insert(name.to_owned(), Arc::new(agent));
            self.catalog.texts.insert(name.to_owned(), text);
            return;
        }
        let mistakes = findings.into_sorted();
        let problem = mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let broken = BrokenAgent { name: name.to_owned(), problem };
        self.catalog.broken.insert(name.to_owned(), broken);
        self.mistakes.extend(mistakes);
    }
}

/// Lists the names of the agent files, sorted, without hidden files (lock files of editors).
///
/// # Errors
/// The folder cannot be read. Report it with the folder's path.
pub fn file_names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let file_name = entry?.file_name();
        let file_name = file_name.to_string_lossy();
        if file_name.ends_with(ENDING) && !file_name.starts_with('.') {
            names.push(file_name.into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Reads an agent file. A symbolic link may point to another file in the folder, as in mounts of
/// some platforms. A link out of the folder is an error: any file of this machine could become
/// instructions, which the model may repeat to a user.
fn text_of(folder: &Path, file_name: &str) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    let folder = folder.canonicalize().map_err(unreadable)?;
    let path = folder.join(file_name).canonicalize().map_err(unreadable)?;
    if !path.starts_with(&folder) {
        return Err(
            "the file is a link to a target outside of the folder: copy the target".to_owned()
        );
    }
    if !path.is_file() {
        return Err("this is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("the file is larger than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())
}
