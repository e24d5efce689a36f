//! `turnwheel package`: stages the folder that `func azure functionapp publish` uploads.
//!
//! All files are staged and checked beside the folder; a rejected package leaves the folder
//! unchanged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

mod azd;
mod binary;
mod folder;
mod report;
#[cfg(test)]
mod rules;
mod script;
#[cfg(test)]
mod tests;

pub(crate) use azd::{AzdFiles, write_azd_files};
pub(crate) use folder::is_package;
pub(crate) use report::{Package, StagedFile};
pub(crate) use script::{ScriptError, ScriptFiles};

use turnwheel_agent_files::MCP_FILE;
use turnwheel_platform::settings::links::Auth;
use turnwheel_platform::text_encoding::decode_utf8;

/// The handler's name in the package and `defaultExecutablePath` of host.json.
pub(crate) const BINARY: &str = "turnwheel";
const AGENTS: &str = "agents";
/// Folders and a file beside the folder of the agents.
const RESOURCES: [&str; 4] = ["context", "prompts", "skills", MCP_FILE];
const SETTINGS_SAMPLE: &str = "local.settings.sample.json";
/// The data folder of a handler that runs in the package, as under `func start`.
const DATA_DIR: &str = ".turnwheel";

/// First line of the `.funcignore` of every package: only such a folder is replaced without
/// `--force`.
const PACKAGE_MARK: &str = "# Staged by `turnwheel package`: the next one replaces what is here.";
/// git, `func` and the check of a package read these lines alike. `func pack` leaves
/// a zip file in the folder; one of a skill belongs to the package.
const IGNORED_FILES: &str =
    "local.settings.json\nlocal.settings.sample.json\n.git\n.git*\n.vscode\n.turnwheel\n/*.zip\n";

/// Input of `package`.
#[derive(Debug)]
pub(crate) struct PackageOptions<'a> {
    /// The project's folder: relative paths are relative to it.
    pub root: &'a Path,
    pub out: &'a Path,
    /// `None`: the running program, or the newest release build below `target` if Azure cannot
    /// start the running one.
    pub binary: Option<&'a Path>,
    pub agents_dir: &'a Path,
    pub auth: Auth,
    /// False: the function of the web console is left out.
    pub has_console: bool,
    /// Shows the progress.
    pub progress: fn(&str),
    /// True to stage also into a folder that is not empty and not an earlier package.
    pub is_forced: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PackageError {
    /// One line per mistake, with file and line.
    #[error("the agents have mistakes; correct them and package again:\n  {}", .0.join("\n  "))]
    Agents(Vec<String>),
    #[error("there is no agent: put at least one NAME.agent.md into {}", .0.display())]
    NoAgents(PathBuf),
    #[error("{} is not empty and not an earlier package: choose another --out, or use --force", .0.display())]
    NotAPackage(PathBuf),
    #[error("{} contains the files to package: choose an --out beside it, such as dist", .0.display())]
    Overlap(PathBuf),
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The staged folder would not run in Azure.
    #[error("Azure would not run this package:\n  {}", .0.join("\n  "))]
    Rejected(Vec<String>),
    #[error("could not {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

/// `.map_err(io_error("read", path))`
fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_owned();
    move |source| PackageError::Io { doing, path, source }
}

/// Stages the package. `agent_mistakes` stop it before anything is written. `check` returns the
/// reasons why the host would reject the staged folder.
///
/// # Errors
/// Nothing was changed at `order.out`, unless the very last moves failed: the text says what to do.
pub(crate) fn package(
    options: &PackageOptions<'_>,
    script: &ScriptFiles,
    agent_mistakes: &[String],
    check: impl Fn(&Path) -> Vec<String>,
) -> Result<Package, PackageError> {
    if !agent_mistakes.is_empty() {
        return Err(PackageError::Agents(agent_mistakes.to_vec()));
    }
    let out = folder::open_output(options)?;
    let stage = folder::stage_beside(&out.path)?;
    let package = stage_files(options, script, &stage).and_then(|package| {
        (options.progress)("checking the package");
        let problems = check(&stage);
        if problems.is_empty() { Ok(package) } else { Err(PackageError::Rejected(problems)) }
    });
    let package = package.and_then(|package| folder::replace(&out, &stage).map(|()| package));
    // Best effort: the next package removes the remains of a failure.
    let _ = fs::remove_dir_all(&stage);
    package
}

fn stage_files(
    options: &PackageOptions<'_>,
    script: &ScriptFiles,
    stage: &Path,
) -> Result<Package, PackageError> {
    let mut staged = Vec::new();
    staged.push(write_staged(stage, "host.json", script.host_json.as_bytes(), "")?);
    for function in script.stage_functions(options)? {
        let path = format!("{}/function.json", function.name);
        staged.push(write_staged(stage, &path, function.json.as_bytes(), &function.note)?);
    }
    let (program, warnings) = binary::stage_program(options, stage)?;
    staged.push(program);
    for (name, text) in read_agents(options)? {
        staged.push(write_staged(stage, &format!("{AGENTS}/{name}"), &text, "")?);
    }
    for name in RESOURCES {
        for (path, bytes) in read_resources(options, name)? {
            staged.push(write_staged(stage, &path, &bytes, "")?);
        }
    }
    staged.push(write_staged(stage, ".funcignore", funcignore(options.root)?.as_bytes(), "")?);
    let sample = settings_sample(options.root)?;
    staged.push(write_staged(stage, SETTINGS_SAMPLE, sample.as_bytes(), "")?);
    let embedded = script.embedded.clone();
    let (out, auth) = (options.out.to_owned(), options.auth);
    Ok(Package { out, auth, staged, embedded, azd_files: None, warnings })
}

/// Returns the agent files by name, with their bytes; never empty.
fn read_agents(options: &PackageOptions<'_>) -> Result<Vec<(String, Vec<u8>)>, PackageError> {
    let dir = options.root.join(options.agents_dir);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(PackageError::NoAgents(dir));
        }
        Err(error) => return Err(io_error("list", &dir)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(io_error("list", &dir))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.ends_with(".agent.md") {
            found.push((name.to_owned(), fs::read(&path).map_err(io_error("read", &path))?));
        }
    }
    found.sort();
    if found.is_empty() { Err(PackageError::NoAgents(dir)) } else { Ok(found) }
}

/// Returns the file beside the folder of the agents, or the files below a folder there, by path in the
/// package, without hidden ones. None if it has neither. Links in the folder are not followed.
fn read_resources(
    options: &PackageOptions<'_>,
    name: &str,
) -> Result<Vec<(String, Vec<u8>)>, PackageError> {
    let root = options.root.join(options.agents_dir).with_file_name(name);
    if root.is_file() {
        let bytes = fs::read(&root).map_err(io_error("read", &root))?;
        return Ok(vec![(name.to_owned(), bytes)]);
    }
    let mut found = Vec::new();
    let mut folders = vec![(root, name.to_owned())];
    while let Some((dir, staged)) = folders.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_error("list", &dir)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(io_error("list", &dir))?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let kind = entry.file_type().map_err(io_error("read", &path))?;
            if name.starts_with('.') {
                continue;
            }
            let staged = format!("{staged}/{name}");
            if kind.is_dir() {
                folders.push((path, staged));
            } else if kind.is_file() {
                found.push((staged, fs::read(&path).map_err(io_error("read", &path))?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the package's lines, then the project's own lines, which stay in force.
fn funcignore(root: &Path) -> Result<String, PackageError> {
    let own = read_text(&root.join(".funcignore"))?.unwrap_or_default();
    Ok(format!("{PACKAGE_MARK}\n{IGNORED_FILES}{own}"))
}

/// Returns the project's sample, or the embedded one: `package` also works outside a clone.
fn settings_sample(root: &Path) -> Result<String, PackageError> {
    let own = read_text(&root.join(SETTINGS_SAMPLE))?;
    Ok(own.unwrap_or_else(|| include_str!("../local.settings.sample.json").to_owned()))
}

/// Reads a text file, without a byte order mark. `None`: there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, PackageError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    let text = decode_utf8(&bytes).map_err(|error| {
        let reason = format!("the file {error}");
        io_error("read", path)(io::Error::new(io::ErrorKind::InvalidData, reason))
    })?;
    Ok(Some(text.to_owned()))
}

fn write_staged(
    stage: &Path,
    path: &str,
    bytes: &[u8],
    note: &str,
) -> Result<StagedFile, PackageError> {
    let target = stage.join(path);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(io_error("create", parent))?;
    }
    fs::write(&target, bytes).map_err(io_error("write", &target))?;
    let size_bytes = bytes.len() as u64;
    Ok(StagedFile { path: path.to_owned(), size_bytes, note: note.to_owned() })
}
