//! Tests of packages: their contents, their errors, and the files that they keep.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;

const CLERK_AGENT: &str = "---\ndescription: Pays.\n---\nYou pay.\n";

/// A folder inside its own parent folder: writes that wrongly leave it damage nothing.
struct Project {
    path: PathBuf,
    _parent: TempDir,
}

impl Project {
    fn path(&self) -> &Path {
        &self.path
    }
}

/// A small project with a program, two agents and four functions.
fn new_project() -> Project {
    let parent = tempfile::tempdir().unwrap();
    let root = Project { path: parent.path().join("project"), _parent: parent };
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("host.json", "{\"version\":\"2.0\"}\n");
    put("agents/clerk.agent.md", CLERK_AGENT);
    put("agents/assistant.agent.md", CLERK_AGENT);
    put("agents/notes.txt", "not an agent");
    put("local.settings.json", "secrets");
    put("local.settings.sample.json", "{}");
    let program = turnwheel_devhost::program::sample::SampleElf::default().to_bytes();
    fs::create_dir_all(root.path().join("target")).unwrap();
    fs::write(root.path().join("target/turnwheel"), program).unwrap();
    let http = |level: &str| {
        format!(
            r#"{{"bindings":[{{"type":"httpTrigger","authLevel":"{level}"}},{{"type":"http"}}]}}"#
        )
    };
    put("functions/api/function.json", &http("anonymous"));
    put("functions/health/function.json", &http("function"));
    put("functions/ops/function.json", &http("admin"));
    put("functions/turn/function.json", r#"{"bindings":[{"type":"queueTrigger","name":"m"}]}"#);
    root
}

fn package_options<'a>(root: &'a Project, out: &'a str) -> PackageOptions<'a> {
    PackageOptions {
        root: root.path(),
        out: Path::new(out),
        binary: Some(Path::new("target/turnwheel")),
        agents_dir: Path::new("agents"),
        auth: Auth::Keys,
        has_console: false,
        progress: |_| {},
        is_forced: false,
    }
}

fn stage_package(options: &PackageOptions<'_>) -> Result<Package, PackageError> {
    let script = ScriptFiles::read(options.root)?;
    package(options, &script, &[], |_| Vec::new())
}

fn list_files(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, root: &Path, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, root, files);
            } else {
                files.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut files = Vec::new();
    walk(folder, folder, &mut files);
    files.sort();
    files
}

#[test]
fn package_has_host_files_and_no_secrets() {
    let root = new_project();
    let report = stage_package(&package_options(&root, "dist")).unwrap().to_string();
    let out = root.path().join("dist");
    assert_eq!(
        list_files(&out),
        [
            ".funcignore",
            "agents/assistant.agent.md",
            "agents/clerk.agent.md",
            "api/function.json",
            "health/function.json",
            "host.json",
            "local.settings.sample.json",
            "ops/function.json",
            "turn/function.json",
            "turnwheel"
        ]
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(out.join("turnwheel")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }
    insta::assert_snapshot!(report, @r"
    Packaged into dist (TURNWHEEL_AUTH=keys):
      host.json                        18 B
      api/function.json               129 B  authLevel function
      health/function.json            130 B  authLevel anonymous
      ops/function.json               126 B  authLevel admin
      turn/function.json               84 B
      turnwheel                       608 B  executable, glibc 2.34, from target/turnwheel
      agents/assistant.agent.md        36 B
      agents/clerk.agent.md            36 B
      .funcignore                     153 B
      local.settings.sample.json        2 B
    10 files, 1.3 kB.
    Warning: the program: it needs glibc 2.34, so it starts on Debian 12 and not on an older image: to be safe, build with `cargo zigbuild --release --target x86_64-unknown-linux-gnu.2.31`.
    Next: cd dist && func azure functionapp publish APP_NAME --custom --no-build
    ");
}

#[test]
fn package_has_the_files_beside_the_agents() {
    let root = new_project();
    fs::write(root.path().join("mcp.json"), "{\"servers\": {}}").unwrap();
    fs::write(root.path().join(".funcignore"), "notes/\n").unwrap();
    stage_package(&package_options(&root, "dist")).unwrap();
    let out = root.path().join("dist");
    assert_eq!(fs::read_to_string(out.join("mcp.json")).unwrap(), "{\"servers\": {}}");
    let ignored = fs::read_to_string(out.join(".funcignore")).unwrap();
    assert!(ignored.ends_with("notes/\n") && !ignored.contains("mcp"), "{ignored}");
}

#[test]
fn byte_order_marks_of_the_project_are_left_out() {
    let root = new_project();
    let write = |file: &str, bytes: &[u8]| fs::write(root.path().join(file), bytes).unwrap();
    write(".funcignore", b"\xef\xbb\xbfnotes/\n");
    write(SETTINGS_SAMPLE, b"\xef\xbb\xbf{}");
    stage_package(&package_options(&root, "dist")).unwrap();
    let out = root.path().join("dist");
    let ignored = fs::read_to_string(out.join(".funcignore")).unwrap();
    assert!(ignored.ends_with("\nnotes/\n"), "{ignored:?}");
    assert_eq!(fs::read_to_string(out.join(SETTINGS_SAMPLE)).unwrap(), "{}");
    // An editor may save the file of the package with a mark.
    fs::write(out.join(".funcignore"), format!("\u{feff}{ignored}")).unwrap();
    stage_package(&package_options(&root, "dist")).unwrap();

    for file in [".funcignore", SETTINGS_SAMPLE] {
        write(file, b"\xff\xfe{\0}\0");
        let error = stage_package(&package_options(&root, "dist")).unwrap_err();
        let PackageError::Io { path, source, .. } = &error else { panic!("{error}") };
        assert_eq!(*path, root.path().join(file));
        assert!(source.to_string().starts_with("the file is UTF-16 text"), "{source}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn auth_levels_follow_authentication_mode() {
    let root = new_project();
    let level = |auth, function: &str| {
        stage_package(&PackageOptions { auth, ..package_options(&root, "dist") }).unwrap();
        let path = root.path().join("dist").join(function).join("function.json");
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        json["bindings"][0]["authLevel"].as_str().map(str::to_owned)
    };
    for auth in [Auth::Keys, Auth::Header] {
        assert_eq!(level(auth, "api").as_deref(), Some("function"));
    }
    assert_eq!(level(Auth::SignIn, "api").as_deref(), Some("anonymous"));
    for auth in [Auth::Keys, Auth::Header, Auth::SignIn] {
        assert_eq!(level(auth, "health").as_deref(), Some("anonymous"));
        assert_eq!(level(auth, "ops").as_deref(), Some("admin"));
        assert_eq!(level(auth, "turn"), None);
    }
}

#[test]
fn package_replaces_earlier_one_and_keeps_other_files() {
    let root = new_project();
    let resources = ["context/a.md", "mcp.json", "prompts/a.md", "skills/a/SKILL.md"];
    for file in resources {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "{}").unwrap();
    }
    stage_package(&package_options(&root, "dist")).unwrap();
    let files = list_files(&root.path().join("dist"));
    assert!(resources.iter().all(|file| files.contains(&(*file).to_owned())), "{files:?}");
    fs::write(root.path().join("dist/local.settings.json"), "mine").unwrap();
    fs::remove_dir_all(root.path().join("functions/ops")).unwrap();
    fs::remove_file(root.path().join("agents/clerk.agent.md")).unwrap();
    for file in resources {
        fs::remove_file(root.path().join(file)).unwrap();
    }
    stage_package(&package_options(&root, "dist")).unwrap();
    let files = list_files(&root.path().join("dist"));
    assert!(!resources.iter().any(|file| files.contains(&(*file).to_owned())), "{files:?}");
    assert!(files.contains(&"local.settings.json".to_owned()), "{files:?}");
    assert!(!files.iter().any(|file| file.contains("ops") || file.contains("clerk")), "{files:?}");
}

#[test]
fn package_has_data_folder_and_keeps_its_data() {
    let root = new_project();
    stage_package(&package_options(&root, "dist")).unwrap();
    let data = root.path().join("dist/.turnwheel");
    assert_eq!(list_files(&data), [""; 0]);
    for file in ["conversations.db", "function.json"] {
        fs::write(data.join(file), "data").unwrap();
    }
    stage_package(&package_options(&root, "dist")).unwrap();
    assert_eq!(list_files(&data), ["conversations.db", "function.json"]);
    // Also a folder that is no package.
    fs::remove_file(root.path().join("dist/.funcignore")).unwrap();
    let forced = PackageOptions { is_forced: true, ..package_options(&root, "dist") };
    stage_package(&forced).unwrap();
    assert_eq!(list_files(&data), ["conversations.db", "function.json"]);
}

#[test]
fn foreign_output_folder_is_kept_unless_forced() {
    let root = new_project();
    fs::create_dir_all(root.path().join("theirs/agents")).unwrap();
    fs::write(root.path().join("theirs/agents/thesis.txt"), "years of work").unwrap();
    let error = stage_package(&package_options(&root, "theirs")).unwrap_err();
    assert!(error.to_string().contains("--force"), "{error}");
    assert_eq!(list_files(&root.path().join("theirs")), ["agents/thesis.txt"]);
    stage_package(&PackageOptions { is_forced: true, ..package_options(&root, "theirs") }).unwrap();
    assert!(root.path().join("theirs/host.json").is_file());
}

#[test]
fn project_folder_is_rejected_as_output() {
    let root = new_project();
    let before = list_files(root.path());
    for out in [".", "..", "agents", "functions/api", "dist/..", "agents/new/deep"] {
        let forced = PackageOptions { is_forced: true, ..package_options(&root, out) };
        assert!(stage_package(&forced).is_err(), "{out}");
    }
    assert_eq!(list_files(root.path()), before);
}

#[test]
fn rejected_package_leaves_output_unchanged() {
    let root = new_project();
    let script = ScriptFiles::read(root.path()).unwrap();
    stage_package(&package_options(&root, "dist")).unwrap();
    let before = list_files(root.path());
    fs::remove_dir_all(root.path().join("functions/ops")).unwrap();
    let check = |stage: &Path| vec![format!("turnwheel: {}", stage.join("turnwheel").is_file())];
    let error = package(&package_options(&root, "dist"), &script, &[], check).unwrap_err();
    assert_eq!(error.to_string(), "Azure would not run this package:\n  turnwheel: true");
    assert!(root.path().join("dist/ops/function.json").is_file());
    let mistakes = ["agents/clerk.agent.md:2: no such tool".to_owned()];
    let error =
        package(&package_options(&root, "new"), &script, &mistakes, |_| Vec::new()).unwrap_err();
    assert!(error.to_string().contains("clerk.agent.md:2"), "{error}");
    assert_eq!(
        list_files(root.path()).len(),
        before.len() - 1,
        "a failed package must leave no files"
    );
}

#[test]
fn missing_file_is_named_in_error() {
    let root = new_project();
    let without = |path: &str| {
        let root = new_project();
        let path = root.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        stage_package(&package_options(&root, "dist")).unwrap_err().to_string()
    };
    assert!(without("host.json").contains("write host.json, or remove functions/"));
    assert!(without("agents").contains("NAME.agent.md"));
    assert!(without("target/turnwheel").starts_with("could not copy"));
    fs::write(root.path().join("functions/api/function.json"), "{}").unwrap();
    let error = stage_package(&package_options(&root, "dist")).unwrap_err().to_string();
    assert_eq!(error, "functions/api/function.json is not usable: it has no array `bindings`");
}

#[test]
fn project_with_only_agents_is_packaged() {
    let root = new_project();
    fs::remove_dir_all(root.path().join("functions")).unwrap();
    fs::remove_file(root.path().join("host.json")).unwrap();
    let report = stage_package(&package_options(&root, "dist")).unwrap().to_string();
    assert!(
        report.contains("\nFrom the program, since this folder has none: host.json, functions/.\n"),
        "{report}"
    );
    let staged = |path: &str| fs::read_to_string(root.path().join("dist").join(path)).unwrap();
    let embedded = turnwheel_devhost::ScriptRoot::embedded();
    assert_eq!(staged("host.json"), embedded.host_json);
    // The console is off.
    for name in
        embedded.functions.keys().filter(|name| *name != turnwheel_devhost::CONSOLE_FUNCTION)
    {
        assert!(staged(&format!("{name}/function.json")).contains("bindings"), "{name}");
    }
    assert_eq!(turnwheel_devhost::check_package(&root.path().join("dist")).len(), 0);

    // The project's own host.json takes precedence; the functions still come from the program.
    fs::write(root.path().join("host.json"), "{\"version\":\"2.0\"}\n").unwrap();
    let report = stage_package(&package_options(&root, "dist")).unwrap().to_string();
    assert!(report.contains("since this folder has none: functions/.\n"), "{report}");
    assert_eq!(staged("host.json"), "{\"version\":\"2.0\"}\n");
}

#[test]
fn report_names_files_for_azd() {
    let root = new_project();
    let azd = AzdFiles { written: vec!["azure.yaml"], unchanged: vec!["infra"] };
    let package =
        Package { azd_files: Some(azd), ..stage_package(&package_options(&root, "dist")).unwrap() };
    let report = package.to_string();
    assert!(report.contains("Written into this folder from the program: azure.yaml.\nKept unchanged in this folder: infra.\n"), "{report}");
    assert!(report.ends_with("Next: azd up\n"), "{report}");
}
