//! Tests of every rule of a package, by name: the shipped project follows it, and a folder that
//! breaks it is rejected.

use std::fs;
use std::path::Path;

use super::*;
use crate::host::program::sample::Sample;

/// Packages this project with a hand-made program.
fn packaged() -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    fs::write(&program, Sample::default().bytes()).unwrap();
    let order = Order {
        root,
        out: &dir.path().join("dist"),
        binary: Some(&program),
        agents_dir: Path::new("agents"),
        auth: Auth::Keys,
        is_forced: false,
    };
    package(&order, &Script::read(root).unwrap(), &[], told).unwrap();
    dir
}

fn told(folder: &Path) -> Vec<String> {
    crate::host::check_package(folder).iter().map(ToString::to_string).collect()
}

/// Returns the problems of the shipped package after `change`.
fn after(change: impl Fn(&Path)) -> String {
    let dir = packaged();
    let folder = dir.path().join("dist");
    assert_eq!(told(&folder), [""; 0], "the shipped package must follow every rule");
    change(&folder);
    told(&folder).join("\n")
}

/// Returns the problems after a part of a file was replaced.
fn with(file: &str, from: &str, to: &str) -> String {
    after(|folder| {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no `{from}`");
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    })
}

fn host(from: &str, to: &str) -> String {
    with("host.json", from, to)
}

fn put(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Asserts that a broken rule of the host or a tool is reported in a line that begins with
/// `expected`.
fn kept(rule: &str, told: &str, refusal: &str) {
    let is_told = told.lines().any(|line| line.starts_with(refusal));
    assert!(is_told, "{rule}: expected `{refusal}` in:\n{told}");
}

fn replace_handler(folder: &Path, program: Sample) {
    fs::write(folder.join("turnwheel"), program.bytes()).unwrap();
}

#[test]
fn a_package_lies_as_the_host_looks_for_it() {
    kept(
        "host.json is at the root",
        &after(|folder| {
            fs::create_dir(folder.join("inner")).unwrap();
            fs::rename(folder.join("host.json"), folder.join("inner/host.json")).unwrap();
        }),
        "inner/host.json: is below the root",
    );
    kept(
        "functions are one level deep",
        &after(|folder| put(folder, "functions/late/function.json", "{}")),
        "functions/late/function.json: is too deep",
    );
    kept(
        "there are functions",
        &after(|folder| {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.join("function.json").is_file() {
                    fs::remove_dir_all(path).unwrap();
                }
            }
        }),
        "<name>/function.json: is not in any folder",
    );
    kept(
        "a function's name is a letter, then letters, digits, _ and -",
        &after(|folder| put(folder, "1st/function.json", "{}")),
        "1st/function.json: `1st` is not a valid function name",
    );
    kept(
        "no function is called host",
        &after(|folder| put(folder, "Host/function.json", "{}")),
        "Host/function.json: `Host` is not a valid function name",
    );
    kept(
        "a function has one trigger",
        &after(|folder| put(folder, "turn/function.json", r#"{"bindings":[]}"#)),
        "turn/function.json: has 0 triggers",
    );
    kept(
        "a queue's connection is the host's storage",
        &with("turn/function.json", "\"AzureWebJobsStorage\"", "\"QUEUES\""),
        "turn/function.json: `connection` is `QUEUES`",
    );
}

#[test]
fn host_json_names_the_handler_as_the_tools_look_for_it() {
    let description = "\"description\": {";
    let executable = "\"defaultExecutablePath\": \"turnwheel\"";
    kept(
        "host.json has version 2.0",
        &host("\"2.0\"", "\"2\""),
        "host.json: `version` is not \"2.0\"",
    );
    kept(
        "defaultExecutablePath is set",
        &host(executable, "\"defaultExecutablePath\": \"\""),
        "host.json: `customHandler.description.defaultExecutablePath` is missing",
    );
    kept(
        "defaultExecutablePath does not begin with ./",
        &host("\"turnwheel\"", "\"./turnwheel\""),
        "host.json: `customHandler.description.defaultExecutablePath` is `./turnwheel`: leave `./` away",
    );
    kept(
        "defaultExecutablePath is a name in the package",
        &host("\"turnwheel\"", "\"/usr/bin/turnwheel\""),
        "host.json: `defaultExecutablePath` is `/usr/bin/turnwheel`",
    );
    kept(
        "the handler is where host.json says",
        &host("\"turnwheel\"", "\"handler\""),
        "handler: is missing",
    );
    kept(
        "the handler is found at the root",
        &host(description, "\"description\": {\"workerDirectory\": \"bin\","),
        "host.json: `customHandler.description.workerDirectory` is `bin`",
    );
    kept(
        "the handler is started at the root",
        &host("\"workingDirectory\": \"\"", "\"workingDirectory\": \"api\""),
        "host.json: `customHandler.description.workingDirectory` is `api`",
    );
}

#[test]
fn the_handler_is_a_program_that_azure_can_start() {
    kept(
        "the handler is a program, no script: only its own execute bit survives",
        &after(|folder| put(folder, "turnwheel", "#!/bin/sh\nexec ./real\n")),
        "turnwheel: is a script",
    );
    kept(
        "the handler runs on Linux and x86-64",
        &after(|folder| replace_handler(folder, Sample { machine: 183, ..Sample::default() })),
        "turnwheel: is a program for ARM",
    );
    kept(
        "the handler's glibc is not newer than Azure's",
        &after(|folder| {
            replace_handler(folder, Sample { versions: &["GLIBC_2.39"], ..Sample::default() });
        }),
        "turnwheel: needs glibc 2.39",
    );
}

#[test]
fn host_json_says_what_the_host_needs() {
    let description = "\"description\": {";
    kept(
        "HTTP is proxied, so that responses are streamed",
        &host("\"enableProxyingHttpRequest\": true", "\"enableForwardingHttpRequest\": true"),
        "host.json: `customHandler.enableProxyingHttpRequest` is not true",
    );
    kept(
        "no customHandler.http.routes beside function.json",
        &host(
            description,
            "\"http\": {\"routes\": [{\"route\": \"{*path}\"}]}, \"description\": {",
        ),
        "host.json: `customHandler.http.routes` is set",
    );
    kept(
        "no profile with routes beside function.json",
        &host("\"version\"", "\"configurationProfile\": \"mcp-custom-handler\", \"version\""),
        "host.json: `configurationProfile` is `mcp-custom-handler`",
    );
    kept(
        "the extension bundle is named",
        &host("\"id\": \"Microsoft.Azure.Functions.ExtensionBundle\"", "\"name\": \"bundle\""),
        "host.json: `extensionBundle` is missing",
    );
    kept(
        "the extension bundle is a 4",
        &host("[4.*, 5.0.0)", "[3.*, 4.0.0)"),
        "host.json: `extensionBundle.version` is `[3.*, 4.0.0)`",
    );
    kept(
        "routePrefix protects background functions from HTTP callers",
        &host("\"routePrefix\": \"api\"", "\"routePrefix\": \"\""),
        "host.json: `extensions.http.routePrefix` is empty",
    );
    kept(
        "queue messages are plain text",
        &host("\"messageEncoding\": \"none\",", ""),
        "host.json: `extensions.queues.messageEncoding` is not \"none\"",
    );
}

#[test]
fn the_upload_has_all_and_no_keys() {
    kept(
        "no keys of a developer's machine",
        &after(|folder| {
            put(folder, "local.settings.json", "{}");
            put(folder, ".funcignore", "*.log\n");
        }),
        "local.settings.json: holds keys",
    );
    kept(
        ".funcignore excludes no function",
        &after(|folder| put(folder, ".funcignore", "*.log\nturn\n")),
        ".funcignore:2: leaves turn/function.json out",
    );
    kept(
        ".funcignore excludes no agent",
        &after(|folder| put(folder, ".funcignore", "# ours\n\n*.md\n")),
        ".funcignore:3: leaves agents/",
    );
    kept(
        ".funcignore excludes no handler",
        &after(|folder| put(folder, ".funcignore", "/turnwheel\n")),
        ".funcignore:1: leaves turnwheel out",
    );
}

#[cfg(unix)]
#[test]
fn the_handler_may_be_executed_by_everyone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = packaged();
    let handler = dir.path().join("dist/turnwheel");
    assert_eq!(fs::metadata(&handler).unwrap().permissions().mode() & 0o777, 0o755);
    fs::set_permissions(&handler, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(told(&dir.path().join("dist"))[0].contains("execute bit"));
}

/// The upload tools use an entry's name unchanged, and set the bit of exactly the entry that
/// host.json names.
#[test]
fn the_handler_has_the_name_that_host_json_and_the_upload_use() {
    let dir = packaged();
    let text = fs::read_to_string(dir.path().join("dist/host.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["customHandler"]["description"]["defaultExecutablePath"], BINARY);
    assert!(dir.path().join("dist").join(BINARY).is_file());
}

#[test]
fn what_funcignore_takes_in_again_is_not_left_out() {
    let told =
        after(|folder| put(folder, ".funcignore", "*.md\n!*.agent.md\nlocal.settings.json\n"));
    assert_eq!(told, "");
    let told = after(|folder| put(folder, ".funcignore", "agents/\n!*.agent.md\n"));
    assert!(told.contains("leaves agents/"), "an excluded folder excludes its files: {told}");
}

/// Files of a developer's machine are neither staged nor uploaded.
#[test]
fn a_package_has_no_settings_with_keys_and_says_so_to_the_tools() {
    let dir = packaged();
    let folder = dir.path().join("dist");
    assert!(!folder.join("local.settings.json").exists());
    let ignored = fs::read_to_string(folder.join(".funcignore")).unwrap();
    for name in
        ["local.settings.json", "local.settings.sample.json", ".git*", ".vscode/", ".turnwheel/"]
    {
        assert!(
            ignored.lines().any(|line| line == name),
            "{name} is not in .funcignore:\n{ignored}"
        );
    }
    assert!(folder.join("local.settings.sample.json").is_file(), "`func start` needs it");
}
