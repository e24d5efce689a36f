//! Tests of every rule of a package, by name: the shipped project follows it, and a folder that
//! breaks it is rejected.

use std::fs;
use std::path::Path;

use super::*;
use turnwheel_devhost::program::sample::SampleElf;

/// Packages this project with a hand-made program.
fn stage_shipped_package() -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    fs::write(&program, SampleElf::default().to_bytes()).unwrap();
    let options = PackageOptions {
        root,
        out: &dir.path().join("dist"),
        binary: Some(&program),
        agents_dir: Path::new("agents"),
        auth: Auth::Keys,
        has_console: true,
        progress: |_| {},
        is_forced: false,
    };
    package(&options, &ScriptFiles::read(root).unwrap(), &[], problem_lines).unwrap();
    dir
}

fn problem_lines(folder: &Path) -> Vec<String> {
    turnwheel_devhost::check_package(folder).iter().map(ToString::to_string).collect()
}

/// Returns the problems of the shipped package after `change`.
fn problems_after(change: impl Fn(&Path)) -> String {
    let dir = stage_shipped_package();
    let folder = dir.path().join("dist");
    assert_eq!(problem_lines(&folder), [""; 0], "the shipped package must follow every rule");
    change(&folder);
    problem_lines(&folder).join("\n")
}

/// Returns the problems after a part of a file was replaced.
fn problems_after_replacing(file: &str, from: &str, to: &str) -> String {
    problems_after(|folder| {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no `{from}`");
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    })
}

fn problems_after_host_json_edit(from: &str, to: &str) -> String {
    problems_after_replacing("host.json", from, to)
}

fn write_file(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Asserts that a broken rule of the host or a tool is reported in a line that begins with
/// `expected`.
fn assert_rule(rule: &str, report: &str, expected: &str) {
    let is_reported = report.lines().any(|line| line.starts_with(expected));
    assert!(is_reported, "{rule}: expected `{expected}` in:\n{report}");
}

fn replace_handler(folder: &Path, program: SampleElf) {
    fs::write(folder.join("turnwheel"), program.to_bytes()).unwrap();
}

#[test]
fn package_layout_rules_are_checked() {
    assert_rule(
        "host.json is at the root",
        &problems_after(|folder| {
            fs::create_dir(folder.join("inner")).unwrap();
            fs::rename(folder.join("host.json"), folder.join("inner/host.json")).unwrap();
        }),
        "inner/host.json: is below the root",
    );
    assert_rule(
        "functions are one level deep",
        &problems_after(|folder| write_file(folder, "functions/late/function.json", "{}")),
        "functions/late/function.json: is too deep",
    );
    assert_rule(
        "there are functions",
        &problems_after(|folder| {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.join("function.json").is_file() {
                    fs::remove_dir_all(path).unwrap();
                }
            }
        }),
        "<name>/function.json: is not in any folder",
    );
    assert_rule(
        "no function takes requests of a later one",
        &problems_after(|folder| fs::rename(folder.join("web"), folder.join("api")).unwrap()),
        "api/function.json: its route `{*path}` takes requests of `approve`",
    );
    assert_rule(
        "a function's name is a letter, then letters, digits, _ and -",
        &problems_after(|folder| write_file(folder, "1st/function.json", "{}")),
        "1st/function.json: `1st` is not a valid function name",
    );
    assert_rule(
        "no function is called host",
        &problems_after(|folder| write_file(folder, "Host/function.json", "{}")),
        "Host/function.json: `Host` is not a valid function name",
    );
    assert_rule(
        "a function has one trigger",
        &problems_after(|folder| write_file(folder, "turn/function.json", r#"{"bindings":[]}"#)),
        "turn/function.json: has 0 triggers",
    );
    assert_rule(
        "a queue's connection is the host's storage",
        &problems_after_replacing("turn/function.json", "\"AzureWebJobsStorage\"", "\"QUEUES\""),
        "turn/function.json: `connection` is `QUEUES`",
    );
}

#[test]
fn host_json_handler_path_rules_are_checked() {
    let description = "\"description\": {";
    let executable = "\"defaultExecutablePath\": \"turnwheel\"";
    assert_rule(
        "host.json has version 2.0",
        &problems_after_host_json_edit("\"2.0\"", "\"2\""),
        "host.json: `version` is not \"2.0\"",
    );
    assert_rule(
        "defaultExecutablePath is set",
        &problems_after_host_json_edit(executable, "\"defaultExecutablePath\": \"\""),
        "host.json: `customHandler.description.defaultExecutablePath` is missing",
    );
    assert_rule(
        "defaultExecutablePath does not begin with ./",
        &problems_after_host_json_edit("\"turnwheel\"", "\"./turnwheel\""),
        "host.json: `customHandler.description.defaultExecutablePath` is `./turnwheel`: leave `./` away",
    );
    assert_rule(
        "defaultExecutablePath is a name in the package",
        &problems_after_host_json_edit("\"turnwheel\"", "\"/usr/bin/turnwheel\""),
        "host.json: `defaultExecutablePath` is `/usr/bin/turnwheel`",
    );
    assert_rule(
        "the handler is where host.json says",
        &problems_after_host_json_edit("\"turnwheel\"", "\"handler\""),
        "handler: is missing",
    );
    assert_rule(
        "the handler is found at the root",
        &problems_after_host_json_edit(
            description,
            "\"description\": {\"workerDirectory\": \"bin\",",
        ),
        "host.json: `customHandler.description.workerDirectory` is `bin`",
    );
    assert_rule(
        "the handler is started at the root",
        &problems_after_host_json_edit(
            "\"workingDirectory\": \"\"",
            "\"workingDirectory\": \"api\"",
        ),
        "host.json: `customHandler.description.workingDirectory` is `api`",
    );
}

#[test]
fn handler_program_rules_are_checked() {
    assert_rule(
        "the handler is a program, no script: only its own execute bit survives",
        &problems_after(|folder| write_file(folder, "turnwheel", "#!/bin/sh\nexec ./real\n")),
        "turnwheel: is a script",
    );
    assert_rule(
        "the handler runs on Linux and x86-64",
        &problems_after(|folder| {
            replace_handler(folder, SampleElf { machine: 183, ..SampleElf::default() });
        }),
        "turnwheel: is a program for ARM",
    );
    assert_rule(
        "the handler's glibc is not newer than Azure's",
        &problems_after(|folder| {
            replace_handler(
                folder,
                SampleElf { versions: &["GLIBC_2.39"], ..SampleElf::default() },
            );
        }),
        "turnwheel: needs glibc 2.39",
    );
}

#[test]
fn host_json_setting_rules_are_checked() {
    let description = "\"description\": {";
    assert_rule(
        "HTTP is proxied, so that responses are streamed",
        &problems_after_host_json_edit(
            "\"enableProxyingHttpRequest\": true",
            "\"enableForwardingHttpRequest\": true",
        ),
        "host.json: `customHandler.enableProxyingHttpRequest` is not true",
    );
    assert_rule(
        "no customHandler.http.routes beside function.json",
        &problems_after_host_json_edit(
            description,
            "\"http\": {\"routes\": [{\"route\": \"{*path}\"}]}, \"description\": {",
        ),
        "host.json: `customHandler.http.routes` is set",
    );
    assert_rule(
        "no profile with routes beside function.json",
        &problems_after_host_json_edit(
            "\"version\"",
            "\"configurationProfile\": \"mcp-custom-handler\", \"version\"",
        ),
        "host.json: `configurationProfile` is `mcp-custom-handler`",
    );
    assert_rule(
        "the extension bundle is named",
        &problems_after_host_json_edit(
            "\"id\": \"Microsoft.Azure.Functions.ExtensionBundle\"",
            "\"name\": \"bundle\"",
        ),
        "host.json: `extensionBundle` is missing",
    );
    assert_rule(
        "the extension bundle is a 4",
        &problems_after_host_json_edit("[4.*, 5.0.0)", "[3.*, 4.0.0)"),
        "host.json: `extensionBundle.version` is `[3.*, 4.0.0)`",
    );
    for prefix in ["", "v1", "turn", "api/conversations"] {
        assert_rule(
            "routePrefix is that of the API and protects background functions from HTTP callers",
            &problems_after_host_json_edit(
                "\"routePrefix\": \"api\"",
                &format!("\"routePrefix\": \"{prefix}\""),
            ),
            &format!("host.json: `extensions.http.routePrefix` is `{prefix}`"),
        );
    }
    assert_rule(
        "queue messages are plain text",
        &problems_after_host_json_edit("\"messageEncoding\": \"none\",", ""),
        "host.json: `extensions.queues.messageEncoding` is not \"none\"",
    );
}

/// The Functions host ignores the case of the names of host.json.
#[test]
fn host_json_rules_ignore_case_of_names() {
    for (from, to, expected) in [
        (
            "\"routePrefix\": \"api\"",
            "\"RoutePrefix\": \"\"",
            "`extensions.http.routePrefix` is ``",
        ),
        (
            "\"routePrefix\": \"api\"",
            "\"routePrefix\": \"api\", \"RoutePrefix\": \"\"",
            "has `extensions.http.routePrefix` and `extensions.http.RoutePrefix`",
        ),
        (
            "\"extensions\": {",
            "\"Extensions:Http:RoutePrefix\": \"v1\", \"extensions\": {",
            "has `Extensions.Http.RoutePrefix` and `extensions.http.routePrefix`",
        ),
        // These two are read in one case only: by the host's own reader, and by `func`.
        ("\"version\": \"2.0\"", "\"Version\": \"2.0\"", "`version` is not \"2.0\""),
        (
            "\"defaultExecutablePath\"",
            "\"DefaultExecutablePath\"",
            "write the name `customHandler.description.defaultExecutablePath`",
        ),
    ] {
        let report = problems_after_host_json_edit(from, to);
        assert_rule(to, &report, &format!("host.json: {expected}"));
    }
    let report = problems_after_host_json_edit("\"http\": {", "\"Http\": {");
    assert_eq!(report, "", "another case is no problem by itself");
}

#[test]
fn upload_exclusion_rules_are_checked() {
    assert_rule(
        "no keys of a developer's machine",
        &problems_after(|folder| {
            write_file(folder, "local.settings.json", "{}");
            write_file(folder, ".funcignore", "*.log\n");
        }),
        "local.settings.json: holds keys",
    );
    assert_rule(
        ".funcignore excludes no function",
        &problems_after(|folder| write_file(folder, ".funcignore", "*.log\nturn\n")),
        ".funcignore:2: leaves turn/function.json out",
    );
    assert_rule(
        ".funcignore excludes no agent",
        &problems_after(|folder| write_file(folder, ".funcignore", "# ours\n\n*.md\n")),
        ".funcignore:3: leaves agents/",
    );
    assert_rule(
        ".funcignore excludes no handler",
        &problems_after(|folder| write_file(folder, ".funcignore", "/turnwheel\n")),
        ".funcignore:1: leaves turnwheel out",
    );
    for (file, line) in [
        ("mcp.json", "mcp.json"),
        ("prompts/pay.md", "prompts"),
        ("context/company.md", "/context/"),
        ("skills/pay.skill.md", "*.skill.md"),
        ("skills/a/b/c/d/e/SKILL.md", "**/e"),
    ] {
        assert_rule(
            ".funcignore excludes no tool, template, context file and skill",
            &problems_after(|folder| {
                write_file(folder, file, "{}");
                write_file(folder, ".funcignore", &format!("{line}\n"));
            }),
            &format!(".funcignore:1: leaves {file} out"),
        );
    }
}

#[test]
fn line_that_excludes_a_folder_is_reported_once() {
    let report = problems_after(|folder| {
        for number in 0..3 {
            write_file(folder, &format!("prompts/{number}.md"), "");
        }
        write_file(folder, ".funcignore", "prompts\n");
    });
    assert_eq!(report, ".funcignore:1: leaves prompts/0.md out of the upload: remove `prompts`");
    let report = problems_after(|folder| {
        for number in 0..4 {
            write_file(folder, &format!("prompts/{number}.md"), "");
        }
        write_file(folder, ".funcignore", "prompts/[02].md\nprompts/[13].md\n");
    });
    assert_eq!(report.lines().count(), 2, "lines that alternate: {report}");
}

/// The loaders do not need these files, and lines of the package itself exclude some of them.
#[test]
fn funcignore_may_exclude_files_without_a_reader() {
    let report = problems_after(|folder| {
        for file in [
            "context/old/company.md",
            "prompts/notes.txt",
            "skills/func/local.settings.json",
            "skills/func/local.settings.sample.json",
            "skills/pdf/README.md",
            "skills/pdf/__pycache__/a.pyc",
            "skills/pdf/node_modules/x.js",
            "skills/pdf/node_modules/x/SKILL.md",
        ] {
            write_file(folder, file, "{}");
        }
        let path = folder.join(".funcignore");
        let lines = fs::read_to_string(&path).unwrap();
        let more = "old\n*.txt\nREADME.md\n__pycache__\nnode_modules\n";
        fs::write(path, format!("{lines}\n{more}")).unwrap();
    });
    assert_eq!(report, "");
}

#[cfg(unix)]
#[test]
fn handler_without_execute_bit_is_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = stage_shipped_package();
    let handler = dir.path().join("dist/turnwheel");
    assert_eq!(fs::metadata(&handler).unwrap().permissions().mode() & 0o777, 0o755);
    fs::set_permissions(&handler, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(problem_lines(&dir.path().join("dist"))[0].contains("execute bit"));
}

/// The upload tools use an entry's name unchanged, and set the bit of exactly the entry that
/// host.json names.
#[test]
fn handler_name_matches_host_json() {
    let dir = stage_shipped_package();
    let text = fs::read_to_string(dir.path().join("dist/host.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["customHandler"]["description"]["defaultExecutablePath"], BINARY);
    assert!(dir.path().join("dist").join(BINARY).is_file());
}

#[test]
fn funcignore_exception_includes_file_again() {
    let report = problems_after(|folder| {
        write_file(folder, ".funcignore", "*.md\n!*.agent.md\nlocal.settings.json\n");
    });
    assert_eq!(report, "");
    let report =
        problems_after(|folder| write_file(folder, ".funcignore", "agents/\n!*.agent.md\n"));
    assert!(report.contains("leaves agents/"), "an excluded folder excludes its files: {report}");
}

/// Files of a developer's machine are neither staged nor uploaded.
#[test]
fn package_excludes_local_settings() {
    let dir = stage_shipped_package();
    let folder = dir.path().join("dist");
    assert!(!folder.join("local.settings.json").exists());
    let ignored = fs::read_to_string(folder.join(".funcignore")).unwrap();
    for name in [
        "local.settings.json",
        "local.settings.sample.json",
        ".git*",
        ".vscode",
        ".turnwheel",
        "/*.zip",
    ] {
        assert!(
            ignored.lines().any(|line| line == name),
            "{name} is not in .funcignore:\n{ignored}"
        );
    }
    assert!(folder.join("local.settings.sample.json").is_file(), "`func start` needs it");
}

/// The lines of every package: git, `func` and `package` read them alike.
#[test]
fn lines_of_the_package_mean_the_same_to_all_tools() {
    let package = stage_shipped_package();
    for (file, is_excluded) in [
        ("local.settings.json", true),
        ("local.settings.sample.json", true),
        (".git/config", true),
        (".gitignore", true),
        (".github/workflows/ci.yml", true),
        (".vscode/settings.json", true),
        (".turnwheel/.tmp", true),
        (".turnwheel/.tmp/a", true),
        (".turnwheel/conversations.db", true),
        ("dist.zip", true),
        ("a.log", true),
        ("logs/a.log", true),
        ("turn/function.json", false),
        ("turn-poison/function.json", false),
        ("host.json", false),
        ("turnwheel", false),
        ("agents/clerk.agent.md", false),
        ("skills/zip/SKILL.md", false),
        ("skills/zip/data.zip", false),
        ("mcp.json", false),
    ] {
        let found = turnwheel_devhost::exclusions(&package.path().join("dist"), file);
        assert_eq!(found, [is_excluded; 2], "{file}");
    }
}
