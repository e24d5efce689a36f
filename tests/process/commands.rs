//! The commands as a user runs them in a folder: output, errors and exit codes.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const AGENT: &str = "---\ndescription: Helps.\n---\nYou help.\n";

/// A folder with one agent and nothing else.
pub(crate) fn agent_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
    folder
}

/// Returns the exit code, and the text of stdout and stderr.
fn run_command(folder: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&text).into_owned())
}

/// The smallest program without dependencies: an ELF header without segments.
pub(crate) fn minimal_elf() -> Vec<u8> {
    let mut program = vec![0; 64];
    program[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // An executable, for x86-64, of version 1; sizes of the header and of a program header.
    program[16] = 2;
    program[18] = 62;
    program[20] = 1;
    program[52] = 64;
    program[54] = 56;
    program
}

#[test]
fn folder_with_only_agents_is_packaged_for_azd() {
    let folder = agent_folder();
    let root = folder.path();
    std::fs::write(root.join("handler"), minimal_elf()).unwrap();
    let arguments = ["package", "--out", "dist", "--binary", "handler", "--azd"];
    let (code, text) = run_command(root, &arguments, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("From the program, since this folder has none: host.json, functions/."));
    assert!(text.contains("Written into this folder from the program: azure.yaml, infra."));
    for file in
        ["dist/host.json", "dist/turn/function.json", "dist/agents/helper.agent.md", "azure.yaml"]
    {
        assert!(root.join(file).is_file(), "{file}");
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["azure.yaml", "infra/main.bicep", "infra/hooks/package.sh"] {
        let [ours, theirs] = [repository, root].map(|root| std::fs::read(root.join(file)).unwrap());
        assert_eq!(ours, theirs, "{file}");
    }
    let (code, text) = run_command(root, &arguments, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Kept unchanged in this folder: azure.yaml, infra."), "{text}");
}

/// With function keys the callers in Azure are one user, so what agents keep for a user is off.
#[test]
fn package_warns_of_agents_that_need_single_users() {
    let folder = agent_folder();
    let root = folder.path();
    std::fs::write(root.join("handler"), minimal_elf()).unwrap();
    std::fs::write(root.join("agents/friend.agent.md"), "---\nmemory: true\n---\nYou help.\n")
        .unwrap();
    let arguments = ["package", "--out", "dist", "--binary", "handler"];
    let warning = "Warning: friend: memory, profile, `recall` and skills of users are off, because with TURNWHEEL_AUTH=keys all callers are one user";
    for (auth, is_warned) in [("keys", true), ("easyauth", false), ("header", false)] {
        let (code, text) = run_command(root, &arguments, &[("TURNWHEEL_AUTH", auth)]);
        assert_eq!(code, 0, "{auth}: {text}");
        assert_eq!(text.contains(warning), is_warned, "{auth}: {text}");
    }
}

#[test]
fn mistyped_setting_fails_startup_and_doctor() {
    let folder = agent_folder();
    let root = folder.path();
    let mistyped = [("TURNWHEEL_BUDGET", r#"{"user": {"day": {"usd": 5}}}"#)];
    for arguments in
        [&["dev", "--port", "0"][..], &["doctor", "--offline"], &["package", "--out", "d"]]
    {
        let (code, text) = run_command(root, arguments, &mistyped);
        assert_eq!(code, 1, "{text}");
        let expected = ["TURNWHEEL_BUDGET", "is no setting: did you mean TURNWHEEL_BUDGETS?"];
        assert!(expected.iter().all(|part| text.contains(part)), "{arguments:?}: {text}");
    }
    let file = |values: &str| std::fs::write(root.join("local.settings.json"), values).unwrap();
    file(r#"{"Values": {"TURNWHEEL_AUHT": "keys"}}"#);
    let (code, text) = run_command(root, &["doctor", "--offline"], &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("TURNWHEEL_AUHT: is no setting: did you mean TURNWHEEL_AUTH?"), "{text}");
    file("[]");
    let (code, text) = run_command(root, &["doctor", "--offline"], &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("local.settings.json: is not a JSON object: expected {"), "{text}");
}

/// The Functions host reads the setting before host.json, and ignores the case of its name.
#[test]
fn override_of_host_json_fails_package_and_doctor() {
    let folder = agent_folder();
    let root = folder.path();
    std::fs::write(root.join("handler"), minimal_elf()).unwrap();
    let package = ["package", "--out", "dist", "--binary", "handler"];
    let commands = [&package[..], &["doctor", "--offline"]];
    let name = "AzureFunctionsJobHost__extensions__http__RoutePrefix";
    let file = |value: &str| {
        let text = format!(r#"{{"Values": {{"{name}": "{value}"}}}}"#);
        std::fs::write(root.join("local.settings.json"), text).unwrap();
    };
    let expected = format!(
        "{name}: remove or correct this app setting, which overrides host.json: `extensions.http.routePrefix` is"
    );
    for arguments in commands {
        std::fs::write(root.join("local.settings.json"), r#"{"Values": {}}"#).unwrap();
        for value in ["", "v1"] {
            let (code, text) = run_command(root, arguments, &[(name, value)]);
            assert_eq!(code, 1, "{text}");
            assert!(text.contains(&expected), "{text}");
        }
        file("v1");
        let (code, text) = run_command(root, arguments, &[]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(&expected), "{text}");
        file("api");
        let (code, text) = run_command(root, arguments, &[]);
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn doctor_reports_missing_agents_and_unused_files() {
    let folder = agent_folder();
    let root = folder.path();
    let (code, text) = run_command(root, &["doctor", "--offline"], &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("every agent can be used"), "{text}");
    std::fs::create_dir(root.join("other")).unwrap();
    let other = ["doctor", "--offline", "--agents", "other", "--data", "kept"];
    let (code, text) = run_command(root, &other, &[]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("No file in `other` ends in .agent.md"), "{text}");
    std::fs::write(root.join("other/x.agent.MD"), AGENT).unwrap();
    std::fs::write(root.join("other/ghost.certify.yaml"), "").unwrap();
    let (_, text) = run_command(root, &other, &[]);
    for name in ["other/x.agent.MD", "other/ghost.certify.yaml"] {
        assert!(text.contains(&format!("{name}:1: nothing reads this file")), "{text}");
    }
    let (code, text) =
        run_command(root, &["doctor", "--offline"], &[("TURNWHEEL_DEFAULT_AGENT", "gone")]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("there is no agent `gone`; there are: helper"), "{text}");
}

#[test]
fn invalid_arguments_exit_with_2() {
    let folder = agent_folder();
    for (arguments, expected) in [
        (&["usage", "--by", "day", "--from", "2026-13-01"][..], "`--from` is a day such as"),
        (&["usage", "--by", "day", "--to", "today"], "`--to` is a day such as"),
        (&["usage", "--by", "day", "--from", "2020-01-01"], "days"),
        (&["why", "../x"], "`../x` is no id"),
        (&["why", "x", "--user", "a/b"], "`a/b` is no id"),
    ] {
        let (code, text) = run_command(folder.path(), arguments, &[]);
        assert_eq!(code, 2, "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}
