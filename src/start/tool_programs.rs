//! MCP servers that are programs of `dev`: started with it, and again after an end or a change of their code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use turnwheel_agent_files::SharedCatalog;
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_tools::mcp::McpServer;

const INTERVAL: Duration = Duration::from_secs(1);
/// Files of code that are watched for one program.
const FILES_MAX: usize = 1_000;
/// Folders without code of the project.
const OTHER_FOLDERS: [&str; 4] = ["node_modules", "venv", "__pycache__", "target"];

/// Modification times of the code of a program.
type Stamps = BTreeMap<PathBuf, SystemTime>;

/// Runs until `stop` is cancelled.
pub(crate) async fn watch(agents: SharedCatalog, stop: CancellationToken) {
    let mut watched: Vec<WatchedProgram> = Vec::new();
    loop {
        let catalog = agents.current();
        let sources = catalog.agents.values().flat_map(|agent| &agent.mcp);
        let programs: Vec<_> =
            sources.map(|source| &source.server).filter(|server| server.is_program()).collect();
        watched.retain(|old| programs.iter().any(|server| Arc::ptr_eq(server, &old.server)));
        for server in programs {
            if !watched.iter().any(|old| Arc::ptr_eq(server, &old.server)) {
                watched.push(WatchedProgram::new(server));
            }
        }
        let polls = join_all(watched.iter_mut().map(WatchedProgram::poll));
        tokio::select! {
            () = stop.cancelled() => return,
            _polled = polls => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

struct WatchedProgram {
    server: Arc<McpServer>,
    /// At the last start; `None` before the first one.
    started: Option<Stamps>,
    /// At the last poll.
    last: Stamps,
    /// True after a start that failed: only other code or a call starts the program again.
    has_failed: bool,
}

impl WatchedProgram {
    fn new(server: &Arc<McpServer>) -> Self {
        let server = Arc::clone(server);
        Self { server, started: None, last: Stamps::new(), has_failed: false }
    }

    async fn poll(&mut self) {
        let files = self.server.program_files();
        let read = tokio::task::spawn_blocking(move || read_stamps(&files)).await;
        // The panic hook logs a panic.
        let Ok(stamps) = read else { return };
        // Code that is still being written is not started.
        let is_changed = match &self.started {
            None => true,
            Some(started) => *started != stamps && self.last == stamps,
        };
        self.last.clone_from(&stamps);
        if !is_changed && (self.has_failed || self.server.has_session().await) {
            return;
        }
        self.started = Some(stamps);
        let started = self.server.restart(SystemClock::default().now()).await;
        self.has_failed = started.is_err();
        // `restart` logs a failure.
        if let Ok(definitions) = started {
            let names: Vec<&str> =
                definitions.tools.iter().map(|tool| tool.name.as_str()).collect();
            tracing::info!(server = %self.server.name, tools = %names.join(", "), "tool program started");
        }
    }
}

/// The files, and those of the same language beside and below them.
fn read_stamps(files: &[PathBuf]) -> Stamps {
    let mut stamps = Stamps::new();
    for file in files {
        let (Some(folder), Some(extension)) = (file.parent(), file.extension()) else { continue };
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let (path, kind) = (entry.path(), entry.file_type());
                if kind.as_ref().is_ok_and(std::fs::FileType::is_dir) {
                    folders.extend(Some(path).filter(|path| is_code_folder(path)));
                } else if path.extension() == Some(extension) && stamps.len() < FILES_MAX {
                    let modified = entry.metadata().and_then(|it| it.modified());
                    stamps.insert(path, modified.unwrap_or(SystemTime::UNIX_EPOCH));
                }
            }
        }
    }
    stamps
}

fn is_code_folder(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| !name.starts_with('.') && !OTHER_FOLDERS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_the_project_is_watched() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let main = write("tools.py");
        let module = write("shop/orders.py");
        for other in ["notes.md", ".venv/lib/x.py", "node_modules/a/b.py", "shop/__pycache__/o.py"]
        {
            write(other);
        }
        let stamps = read_stamps(std::slice::from_ref(&main));
        assert_eq!(stamps.into_keys().collect::<Vec<_>>(), [module, main]);
    }
}
