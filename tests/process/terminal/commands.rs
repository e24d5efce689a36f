//! `send`, `show`, `tail` and decisions without a terminal: output and exit codes.

use super::program::{run, run_with};
use crate::support::dev_process::DevProcess;

/// The id that `send` prints.
fn conversation_id(stderr: &str) -> String {
    stderr.lines().find_map(|line| line.strip_prefix("conversation ")).unwrap().to_owned()
}

/// The id in a command that the output names.
fn word_after(text: &str, command: &str) -> String {
    let (_, rest) = text.split_once(command).unwrap_or_else(|| panic!("no `{command}`: {text}"));
    rest.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn input_from_a_pipe_prints_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let url = dev.url("");
    let done = run(&["chat", "assistant", "--url", &url], "say **hello**\nand more\n");
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "**hello**\nand more\n"), "{done:?}");
    assert!(!done.stderr.contains('\u{1b}'), "{done:?}");
    let empty = run(&["chat", "assistant", "--url", &url], "\n");
    assert_eq!(empty.code, Some(2), "{empty:?}");
    let json = run(&["chat", "assistant", "--url", &url, "--json"], "say hello");
    let types: Vec<String> = json.json_lines().iter().map(|it| it["type"].to_string()).collect();
    assert_eq!(types.last().unwrap(), "\"prompt.completed\"", "{types:?}");
}

#[test]
fn waiting_prompt_is_decided_by_the_printed_command() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let data = folder.path().to_str().unwrap();
    let send = |text: &str| run(&["send", "--agent", "payments-clerk", "--data", data, text], "");
    let waiting = send("Pay 250 to Ada");
    assert_eq!(waiting.code, Some(3), "{waiting:?}");
    let id = conversation_id(&waiting.stderr);
    let request = word_after(&waiting.stderr, "turnwheel approve ");
    let approved = run(&["approve", &request, "--data", data], "");
    assert_eq!(approved.code, Some(0), "{approved:?}");
    assert!(approved.stdout.contains("approve, decided by `default`"), "{approved:?}");
    let tail = run(&["tail", &id, "--data", data], "");
    assert_eq!(tail.code, Some(0), "{tail:?}");
    let shown = run(&["show", &id, "--data", data], "");
    for row in
        ["> you Pay 250 to Ada", "? May send_payment run?", "✓ send_payment", "prompt completed"]
    {
        assert!(shown.stdout.contains(row), "{row}: {shown:?}");
    }
    let entries = run(&["show", &id, "--data", data, "--json", "--limit", "3"], "").json_lines();
    assert_eq!(entries.len(), 3);
    // By the id of the conversation, and with a reason.
    let waiting = send("Pay 300 to Bob");
    let id = conversation_id(&waiting.stderr);
    let rejected = run(&["reject", &id, "too much", "--url", &dev.url("")], "");
    assert!(rejected.stdout.contains("reject, decided by `default` (too much)"), "{rejected:?}");
    let again = run(&["approve", &id, "--data", data], "");
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("no open request"), "{again:?}");
    let wrong = send("Pay 400 to Cy");
    let request = word_after(&wrong.stderr, "turnwheel approve ");
    let id = conversation_id(&wrong.stderr);
    let behind = ["send", "--conversation", &id, "--mode", "follow-up", "--data", data, "And 5"];
    let behind = run(&behind, "");
    assert_eq!(behind.code, Some(3), "an input behind a decision does not wait for it: {behind:?}");
    assert!(behind.stderr.contains(&request), "{behind:?}");
    let wrong = run(&["decide", &request, "again", "--data", data], "");
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("use `approve`, `reject`"), "{wrong:?}");
}

#[test]
fn agents_and_pending_work_of_a_service_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let url = dev.url("");
    let service = ["--url", &url, "--tenant", "shop", "--user", "ada"];
    let run_there = |arguments: &[&str]| run(&[arguments, &service].concat(), "");
    let idle = run_there(&["ls"]);
    assert_eq!((idle.code, &*idle.stdout), (Some(0), "All conversations are idle.\n"), "{idle:?}");
    let waiting = run_there(&["send", "--agent", "payments-clerk", "Pay 250 to Ada"]);
    let id = conversation_id(&waiting.stderr);
    let listed = run_there(&["ls", "--waiting"]);
    assert!(listed.stdout.contains(&format!("shop/ada/{id} (payments-clerk)")), "{listed:?}");
    let json = run_there(&["ls", "--json"]).json();
    assert_eq!(json["items"][0]["waitsFor"], "approval", "{json}");
    let other = run(&["ls", "--url", &url, "--tenant", "other"], "");
    assert_eq!(other.stdout, "All conversations are idle.\n", "{other:?}");
    let stuck = run_there(&["ls", "--stuck", "1h"]);
    assert_eq!(stuck.stdout, "Nothing is stuck.\n", "{stuck:?}");

    let agents = run_there(&["agents"]);
    assert!(agents.stdout.contains("payments-clerk\n"), "{agents:?}");
    let agent = run_there(&["agents", "payments-clerk"]);
    assert!(agent.stdout.contains("approval: ") && agent.stdout.contains("instructions:"));
    let json = run_there(&["agents", "payments-clerk", "--json"]).json();
    assert_eq!(json["name"], "payments-clerk", "{json}");
    let missing = run_there(&["agents", "nobody"]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("404 Not Found"), "{missing:?}");
    for wrong in [
        &["agents", "--tenant", "shop"][..],
        &["agents", "--url", &url, "--agents", "agents"],
        &["agents", "a b", "--url", &url],
        &["ls", "--user", "ada"],
    ] {
        let wrong_run = run(wrong, "");
        assert_eq!(wrong_run.code, Some(2), "{wrong:?} {wrong_run:?}");
    }
}

#[test]
fn exit_codes_name_the_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let url = dev.url("");
    let failed = run(&["send", "--agent", "assistant", "--url", &url, "fail finally"], "");
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("✗ the prompt failed"), "{failed:?}");
    let missing = run(&["show", "nothing", "--url", &url], "");
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("404 Not Found"), "{missing:?}");
    for wrong in [
        &["show", "a b", "--url", &url][..],
        &["show", "c", "--url", "ftp://a"],
        &["chat", "--nonsense"],
        &["send"],
        &["chat", "nobody-has-this", "--url", "not an address"],
    ] {
        let wrong_run = run(wrong, "x");
        assert_eq!(wrong_run.code, Some(2), "{wrong:?} {wrong_run:?}");
    }
    drop(dev);
    let unreachable = run(&["show", "c", "--url", &url], "");
    assert_eq!(unreachable.code, Some(1), "{unreachable:?}");
    assert!(unreachable.stderr.contains("start `turnwheel dev`"), "{unreachable:?}");
}

#[test]
fn credentials_are_read_from_the_environment_or_a_file() {
    let both = [("TURNWHEEL_KEY", "k"), ("TURNWHEEL_TOKEN", "t")];
    let refused = run_with(&["show", "c", "--url", "https://a.example"], &both, "");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(!refused.stderr.contains("\"k\""), "{refused:?}");
    let plain = run_with(&["show", "c", "--url", "http://a.example"], &both[..1], "");
    assert_eq!(plain.code, Some(2), "{plain:?}");
    assert!(plain.stderr.contains("use https"), "{plain:?}");
    let missing =
        run(&["show", "c", "--url", "https://a.example", "--key-file", "no-such-file"], "");
    assert_eq!(missing.code, Some(2), "{missing:?}");
}

#[test]
fn help_completions_and_pages_name_the_commands() {
    let help = run(&["--help"], "");
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("\nConverse:\n") && help.stdout.contains("  chat "), "{help:?}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = run(&["completions", shell], "");
        assert!(script.code == Some(0) && script.stdout.contains("approve"), "{shell}");
    }
    let page = run(&["man"], "");
    assert!(page.stdout.contains(".TH turnwheel 1"), "{page:?}");
    let folder = tempfile::tempdir().unwrap();
    let written = run(&["man", "--out", folder.path().to_str().unwrap()], "");
    assert_eq!(written.code, Some(0), "{written:?}");
    assert!(folder.path().join("turnwheel-chat.1").exists());
}
