//! Checks a staged folder before its upload. Azure would respond to most of these mistakes with an
//! app without functions.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::config::HostConfig;
use super::function::{Function, Trigger};
use super::problem::Problem;
use super::root::{self, ScriptRoot};
use super::{program, upload};
use crate::queue::{self, doorbell};

/// Depth of the folders below the root that are searched for misplaced files.
const DEPTH_MAX: usize = 4;

/// Returns every problem of a staged folder; empty: upload it.
pub fn check_package(dir: &Path) -> Vec<Problem> {
    let mut problems = Vec::new();
    misplaced(dir, "", DEPTH_MAX, &mut problems);
    let functions = match root::folders(dir, "") {
        Ok(functions) => functions,
        Err(problem) => {
            problems.push(problem);
            BTreeMap::new()
        }
    };
    if functions.is_empty() {
        problems.push(Problem::new(
            "<name>/function.json",
            "is not in any folder directly below the root: the host would find no functions",
        ));
    }
    match root::read(dir, "host.json") {
        Ok(Some(host_json)) => {
            let executable = HostConfig::read(&host_json, false).map(|config| config.executable);
            problems.extend(upload::refuse_host_json(&host_json));
            let root = ScriptRoot { host_json, functions, below: "" };
            match root.read() {
                Ok((_, functions)) => problems.extend(functions.iter().filter_map(refuse_deaf)),
                Err(found) => problems.extend(found),
            }
            if let Ok(executable) = executable
                && let Some(problem) = refuse_executable(dir, &executable)
            {
                problems.push(problem);
            }
        }
        Ok(None) => problems.push(Problem::new(
            "host.json",
            "is not at the root: the host would find no functions",
        )),
        Err(problem) => problems.push(problem),
    }
    problems.extend(upload::refuse_secrets(dir));
    problems.extend(upload::refuse_left_out(dir));
    problems
}

/// Reports a background function whose nudges the host would drop: they would wait for the sweep.
fn refuse_deaf(function: &Function) -> Option<Problem> {
    let is_heard = function
        .outputs
        .iter()
        .any(|output| output.name == doorbell::NUDGES && output.queue == queue::TURNS);
    if is_heard || matches!(function.trigger, Trigger::Http { .. }) {
        return None;
    }
    let binding = json!({
        "type": "queue", "direction": "out", "name": doorbell::NUDGES, "queueName": queue::TURNS,
        "connection": "AzureWebJobsStorage",
    });
    Some(Problem::new(
        format!("{}/function.json", function.name),
        format!(
            "its nudges would be dropped, and turns wait for the sweep: add the binding {binding}"
        ),
    ))
}

/// Finds a second `host.json`, and `function.json` files where the host does not search.
fn misplaced(dir: &Path, below: &str, depth_left: usize, problems: &mut Vec<Problem>) {
    let Ok(entries) = fs::read_dir(dir.join(below)) else { return };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in names {
        let folder = if below.is_empty() { name } else { format!("{below}/{name}") };
        if dir.join(&folder).join("host.json").is_file() {
            problems.push(Problem::new(
                format!("{folder}/host.json"),
                "is below the root: upload the folder it is in, or remove it",
            ));
        }
        if !below.is_empty() && dir.join(&folder).join("function.json").is_file() {
            problems.push(Problem::new(
                format!("{folder}/function.json"),
                "is too deep: the host reads only folders directly below the root",
            ));
        }
        if depth_left > 1 {
            misplaced(dir, &folder, depth_left - 1, problems);
        }
    }
}

fn refuse_executable(dir: &Path, executable: &str) -> Option<Problem> {
    let refuse = |message: &str| Some(Problem::new(executable, message));
    let path = dir.join(executable);
    let Ok(metadata) = fs::metadata(&path) else {
        return refuse("is missing: host.json names it as the handler; put it here");
    };
    if !metadata.is_file() {
        return refuse("is not a file: host.json names it as the handler");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o111 != 0o111 {
            return refuse("has no execute bit for everyone: chmod 755, or Azure cannot start it");
        }
    }
    program::needs(&path).err().map(|misfit| Problem::new(executable, misfit.to_string()))
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::host::program::sample::Sample;

    fn staged() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in ScriptRoot::embedded().files() {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        write_program(dir.path(), &Sample::default().bytes(), 0o755);
        dir
    }

    fn write_program(dir: &Path, bytes: &[u8], mode: u32) {
        let path = dir.join("turnwheel");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn told(dir: &Path) -> Vec<String> {
        check_package(dir).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_shipped_files_and_a_linux_program_make_a_package() {
        assert_eq!(told(staged().path()), Vec::<String>::new());
    }

    #[test]
    fn a_lost_execute_bit_is_told() {
        let dir = staged();
        let path = dir.path().join("turnwheel");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let told = told(dir.path());
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("execute bit"), "{told:?}");
    }

    #[test]
    fn every_other_mistake_is_told_at_once() {
        let dir = staged();
        let root = dir.path();
        write_program(root, b"#!/bin/sh\nexec ./other\n", 0o755);
        fs::create_dir_all(root.join("functions/extra")).unwrap();
        fs::write(root.join("functions/extra/function.json"), "{}").unwrap();
        fs::write(root.join("functions/host.json"), "{}").unwrap();
        fs::create_dir_all(root.join("9lives")).unwrap();
        fs::write(root.join("9lives/function.json"), "{}").unwrap();
        fs::write(root.join("turn/function.json"), r#"{"bindings":[]}"#).unwrap();
        insta::assert_snapshot!(told(root).join("\n"));
    }

    #[test]
    fn a_function_whose_nudges_would_be_dropped_is_told() {
        let dir = staged();
        let file = dir.path().join("sweep/function.json");
        let text = fs::read_to_string(&file).unwrap().replace("\"nudges\"", "\"other\"");
        fs::write(file, text).unwrap();
        let told = told(dir.path());
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("sweep/function.json: its nudges would be dropped"),
            "{told:?}"
        );
    }

    #[test]
    fn an_empty_folder_lacks_everything() {
        let dir = tempfile::tempdir().unwrap();
        insta::assert_snapshot!(told(dir.path()).join("\n"), @r"
        <name>/function.json: is not in any folder directly below the root: the host would find no functions
        host.json: is not at the root: the host would find no functions
        ");
    }

    #[test]
    fn a_path_with_a_leading_dot_and_a_missing_program_are_told() {
        let dir = staged();
        fs::remove_file(dir.path().join("turnwheel")).unwrap();
        assert!(told(dir.path())[0].starts_with("turnwheel: is missing"));
        let text = ScriptRoot::embedded().host_json.replace("\"turnwheel\"", "\"./turnwheel\"");
        fs::write(dir.path().join("host.json"), text).unwrap();
        assert!(told(dir.path())[0].contains("leave `./` away"));
    }
}
