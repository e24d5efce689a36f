//! Loader of the folder of agent files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::file;
use crate::file_context::AgentFileContext;
use crate::mistakes::{Findings, Mistake};
use crate::text_file::read_text_file;
use crate::yaml::Position;
use crate::{AgentDefinition, BrokenAgent, Catalog, McpServers};

const FILE_SUFFIX: &str = ".agent.md";
/// Bytes of one agent file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Agents and errors of a folder of agent files.
#[derive(Debug, Default)]
pub struct LoadedAgents {
    /// Its `broken` has the files with mistakes.
    pub catalog: Catalog,
    /// In the order of file and line. `package`, `certify` and `doctor` fail if there is any; a
    /// service starts without the agent.
    pub mistakes: Vec<Mistake>,
    /// Agents by name whose only mistakes are app settings without a value, for checks alone. Texts with
    /// these settings are stand-ins.
    pub unset_agents: BTreeMap<String, Arc<AgentDefinition>>,
    /// Those in templates and skills. `package`, `certify` and `doctor` fail if there is any; a
    /// service starts without the file.
    pub resource_mistakes: Vec<Mistake>,
    /// Servers of `mcp.json`.
    pub mcp: McpServers,
    /// Reason, for operators, why there are no agents and no mistakes.
    pub note: Option<String>,
}

/// Reads every `<name>.agent.md` of the folder. Messages contain `display_path` as the folder's
/// path. The caller sets `catalog.default_agent`.
pub fn load_folder(
    folder: &Path,
    display_path: &str,
    context: &AgentFileContext<'_>,
) -> LoadedAgents {
    let mut loaded = LoadedAgents::default();
    let names = match list_agent_files(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            loaded.note = Some(format!(
                "There is no folder `{display_path}`, so there are no agents: write {display_path}/assistant{FILE_SUFFIX}, or name another folder with `--agents` or TURNWHEEL_AGENTS_DIR."
            ));
            return loaded;
        }
        Err(error) => {
            let mut findings = Findings::new(display_path);
            findings.add(Position::START, format!("the folder cannot be read: {error}"));
            loaded.mistakes = findings.into_sorted();
            return loaded;
        }
    };
    if names.is_empty() {
        loaded.note = Some(format!(
            "No file in `{display_path}` ends in {FILE_SUFFIX}, so there are no agents: write {display_path}/assistant{FILE_SUFFIX}."
        ));
    }
    for file_name in names {
        let name = file_name.strip_suffix(FILE_SUFFIX).unwrap_or(&file_name);
        loaded.add_agent(
            display_path,
            name,
            read_text_file(folder, Path::new(&file_name), FILE_BYTES_MAX),
            context,
        );
    }
    loaded
}

/// Like [`load_folder`], but from the texts of agent files by agent name.
pub fn load_texts(
    texts: &BTreeMap<String, String>,
    display_path: &str,
    context: &AgentFileContext<'_>,
) -> LoadedAgents {
    let mut loaded = LoadedAgents::default();
    for (name, text) in texts {
        loaded.add_agent(display_path, name, Ok(text.clone()), context);
    }
    loaded
}

impl LoadedAgents {
    /// Adds an agent. `text` is its file, or the reason why the file cannot be read.
    fn add_agent(
        &mut self,
        display_path: &str,
        name: &str,
        text: Result<String, String>,
        context: &AgentFileContext<'_>,
    ) {
        let mut findings = Findings::new(format!("{display_path}/{name}{FILE_SUFFIX}"));
        let text = text.map_err(|reason| findings.add(Position::START, reason)).ok();
        let agent = text.and_then(|text| {
            file::parse_agent_file(name, &text, context, &mut findings).map(|agent| (agent, text))
        });
        let mistakes = findings.into_sorted();
        match agent {
            Some((agent, text)) if mistakes.is_empty() => {
                self.catalog.agents.insert(name.to_owned(), Arc::new(agent));
                self.catalog.texts.insert(name.to_owned(), text);
                return;
            }
            Some((agent, _)) => {
                self.unset_agents.insert(name.to_owned(), Arc::new(agent));
            }
            None => {}
        }
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
pub fn list_agent_files(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let file_name = entry?.file_name();
        let file_name = file_name.to_string_lossy();
        if file_name.ends_with(FILE_SUFFIX) && !file_name.starts_with('.') {
            names.push(file_name.into_owned());
        }
    }
    names.sort();
    Ok(names)
}
