//! Checks a staged folder before its upload. Azure would respond to most of these mistakes with an
//! app without functions.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::config::HostConfig;
use super::exposure;
use super::function::{Function, Trigger};
use super::problem::HostProblem;
use super::root::{self, ScriptRoot};
use super::{program, upload};
use turnwheel_storage::queue::{self, output_binding};

/// Depth of the folders below the root that are searched for misplaced files.
const DEPTH_MAX: usize = 4;

/// Returns every problem of a staged folder; empty: upload it.
pub fn check_package(dir: &Path) -> Vec<HostProblem> {
    let mut problems = Vec::new();
    find_misplaced_files(dir, "", DEPTH_MAX, &mut problems);
    let functions = match root::read_function_files(dir, "") {
        Ok(functions) => functions,
        Err(problem) => {
            problems.push(problem);
            BTreeMap::new()
        }
    };
    if functions.is_empty() {
        problems.push(HostProblem::new(
            "<name>/function.json",
            "is not in any folder directly below the root: the host would find no functions",
        ));
    }
    match root::read_if_present(dir, "host.json") {
        Ok(Some(host_json)) => {
            let executable = HostConfig::read(&host_json, false).map(|config| config.executable);
            problems.extend(upload::host_json_problems(&host_json));
            let root = ScriptRoot { host_json, functions, parent: "" };
            match root.read() {
                Ok((_, functions)) => {
                    problems.extend(functions.iter().filter_map(missing_nudge_output));
                    problems.extend(exposure::route_problems(&root, &functions));
                }
                Err(found) => problems.extend(found),
            }
            if let Ok(executable) = executable
                && let Some(problem) = executable_problem(dir, &executable)
            {
                problems.push(problem);
            }
        }
        Ok(None) => problems.push(HostProblem::new(
            "host.json",
            "is not at the root: the host would find no functions",
        )),
        Err(problem) => problems.push(problem),
    }
    problems.extend(upload::secrets_problem(dir));
    problems.extend(upload::excluded_file_problems(dir));
    problems
}

/// Reports a background function whose nudges the host would drop: they would wait for the sweep.
fn missing_nudge_output(function: &Function) -> Option<HostProblem> {
    let has_nudge_output = function
        .outputs
        .iter()
        .any(|output| output.name == output_binding::NUDGES && output.queue == queue::TURNS);
    if has_nudge_output || matches!(function.trigger, Trigger::Http(_)) {
        return None;
    }
    let binding = json!({
        "type": "queue", "direction": "out", "name": output_binding::NUDGES, "queueName": queue::TURNS,
        "connection": "AzureWebJobsStorage",
    });
    Some(HostProblem::new(
        format!("{}/function.json", function.name),
        format!(
            "its nudges would be dropped, and turns wait for the sweep: add the binding {binding}"
        ),
    ))
}

/// Finds a second `host.json`, and `function.json` files where the host does not search.
fn find_misplaced_files(
    dir: &Path,
    parent: &str,
    depth_left: usize,
    problems: &mut Vec<HostProblem>,
) {
    let Ok(entries) = fs::read_dir(dir.join(parent)) else { return };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in names {
        let folder = if parent.is_empty() { name } else { format!("{parent}/{name}") };
        if dir.join(&folder).join("host.json").is_file() {
            problems.push(HostProblem::new(
                format!("{folder}/host.json"),
                "is below the root: upload the folder it is in, or remove it",
            ));
        }
        if !parent.is_empty() && dir.join(&folder).join("function.json").is_file() {
            problems.push(HostProblem::new(
                format!("{folder}/function.json"),
                "is too deep: the host reads only folders directly below the root",
            ));
        }
        if depth_left > 1 {
            find_misplaced_files(dir, &folder, depth_left - 1, problems);
        }
    }
}

fn executable_problem(dir: &Path, executable: &str) -> Option<HostProblem> {
    let refuse = |message: &str| Some(HostProblem::new(executable, message));
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
    program::read_requirements(&path)
        .err()
        .map(|misfit| HostProblem::new(executable, misfit.to_string()))
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::program::sample::SampleElf;

    fn stage_package() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in ScriptRoot::embedded().files() {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        write_program(dir.path(), &SampleElf::default().to_bytes(), 0o755);
        dir
    }

    fn write_program(dir: &Path, bytes: &[u8], mode: u32) {
        let path = dir.join("turnwheel");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn problem_lines(dir: &Path) -> Vec<String> {
        check_package(dir).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn shipped_package_has_no_problems() {
        assert_eq!(problem_lines(stage_package().path()), Vec::<String>::new());
    }

    #[test]
    fn missing_execute_bit_is_reported() {
        let dir = stage_package();
        let path = dir.path().join("turnwheel");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let lines = problem_lines(dir.path());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("execute bit"), "{lines:?}");
    }

    #[test]
    fn package_problems_are_reported_together() {
        let dir = stage_package();
        let root = dir.path();
        write_program(root, b"#!/bin/sh\nexec ./other\n", 0o755);
        fs::create_dir_all(root.join("functions/extra")).unwrap();
        fs::write(root.join("functions/extra/function.json"), "{}").unwrap();
        fs::write(root.join("functions/host.json"), "{}").unwrap();
        fs::create_dir_all(root.join("9lives")).unwrap();
        fs::write(root.join("9lives/function.json"), "{}").unwrap();
        fs::write(root.join("turn/function.json"), r#"{"bindings":[]}"#).unwrap();
        insta::assert_snapshot!(problem_lines(root).join("\n"));
    }

    #[test]
    fn missing_nudge_output_is_reported() {
        let dir = stage_package();
        let file = dir.path().join("sweep/function.json");
        let text = fs::read_to_string(&file).unwrap().replace("\"nudges\"", "\"other\"");
        fs::write(file, text).unwrap();
        let lines = problem_lines(dir.path());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("sweep/function.json: its nudges would be dropped"),
            "{lines:?}"
        );
    }

    #[test]
    fn empty_folder_is_reported_as_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        insta::assert_snapshot!(problem_lines(dir.path()).join("\n"), @r"
        <name>/function.json: is not in any folder directly below the root: the host would find no functions
        host.json: is not at the root: the host would find no functions
        ");
    }

    #[test]
    fn missing_program_and_dot_path_are_reported() {
        let dir = stage_package();
        fs::remove_file(dir.path().join("turnwheel")).unwrap();
        assert!(problem_lines(dir.path())[0].starts_with("turnwheel: is missing"));
        let text = ScriptRoot::embedded().host_json.replace("\"turnwheel\"", "\"./turnwheel\"");
        fs::write(dir.path().join("host.json"), text).unwrap();
        assert!(problem_lines(dir.path())[0].contains("leave `./` away"));
    }
}
