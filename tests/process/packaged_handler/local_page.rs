//! The commands of docs/local.md for the Functions host.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Handler, deliver_until_completed};
use crate::support::openapi_check::SendValidated as _;

const PAGE: &str = include_str!("../../../docs/local.md");

/// The text between two others.
fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no `{start}`"));
    rest.split_once(end).unwrap_or_else(|| panic!("no `{end}`")).0
}

/// The host shows a line of stderr that quotes "warn" as a warning, and any other as an error.
#[tokio::test]
async fn first_command_of_local_page_completes_without_errors() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let command = |program: &Path| {
        let mut command = Command::new(program);
        command.stderr(fs::File::create(&log).unwrap());
        command
    };
    // The page's commands write these settings.
    assert!(PAGE.contains(r#"|"TURNWHEEL_MODEL": "scripted"|"#));
    let handler = Handler::start_as(&[("TURNWHEEL_MODEL", "scripted")], command).await;

    let call = between(PAGE, "curl -s 'http://localhost:7071/api/prompts?wait=20'", "```");
    let body: Value = serde_json::from_str(between(call, "-d '", "'")).unwrap();
    let url = format!("{}/api/prompts", handler.base);
    let accepted = handler.client.post(url).json(&body).send_validated().await.unwrap();
    let status = accepted.status();
    let accepted: Value = accepted.json().await.unwrap();
    assert_eq!(status, 202, "{accepted}");
    let [conversation, prompt] =
        ["conversationId", "promptId"].map(|name| accepted[name].as_str().unwrap());
    let path = format!("{}/api/conversations/{conversation}/prompts/{prompt}", handler.base);
    deliver_until_completed(&handler, conversation, &path).await;

    let log = fs::read_to_string(&log).unwrap();
    let errors: Vec<&str> =
        log.lines().filter(|line| !line.to_ascii_lowercase().contains("warn")).collect();
    assert_eq!(errors, [""; 0], "{log}");
    assert!(log.contains("PAYMENTS_URL"), "the clerk is unavailable: {log}");
}

/// `npx` confirms an installation in the terminal unless it has `--yes`, and a background job that reads the
/// terminal is stopped.
#[test]
fn background_npx_reads_no_terminal() {
    let azurite: Value =
        serde_json::from_str(include_str!("../../../azurite/package.json")).unwrap();
    let pinned = azurite["dependencies"]["azurite"].as_str().unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|suffix| suffix != "md") {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        for line in page.lines().filter(|line| line.contains("npx ")) {
            let command = line.split(" #").next().unwrap().trim_end();
            let is_background = command.ends_with(" &");
            assert!(!is_background || command.contains("npx --yes "), "{}: {line}", path.display());
        }
        for named in page.split("azurite@").skip(1) {
            assert!(named.starts_with(pinned), "{}: azurite@{named:.20}", path.display());
        }
    }
    assert!(PAGE.contains(&format!("\nnpx --yes azurite@{pinned} ")));
}

/// BSD's sed takes the word after `-i` as a suffix.
#[cfg(unix)]
#[test]
fn settings_commands_work_with_every_sed() {
    assert!(!PAGE.contains("sed -i"));
    let folder = tempfile::tempdir().unwrap();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("local.settings.sample.json");
    fs::copy(sample, folder.path().join("local.settings.sample.json")).unwrap();
    let script = format!("key={}", between(PAGE, "\nkey=", "\nnpx "));
    let mut shell = Command::new("/bin/sh");
    let ran = shell.args(["-ec", &script]).current_dir(&folder).status().unwrap();
    assert!(ran.success(), "{script}");
    let text = fs::read_to_string(folder.path().join("local.settings.json")).unwrap();
    let settings: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(settings["Values"]["TURNWHEEL_MODEL"], "scripted");
    assert_eq!(settings["Values"]["TURNWHEEL_SIGNING_KEYS"].as_str().unwrap().len(), 44);
}
