//! The commands that `why` prints work as printed.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::program::{Finished, run, run_in_shell};
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;

const TIMEOUT: Duration = Duration::from_mins(2);

/// The commands that `why` prints, in the order of their effects.
fn commands(id: &str, data: &Path) -> Vec<String> {
    commands_of(&["why", id, "--data", data.to_str().unwrap()])
}

fn commands_of(arguments: &[&str]) -> Vec<String> {
    let why = run(arguments, "");
    assert_eq!(why.code, Some(0), "{why:?}");
    let lines = why.stdout.lines().filter_map(|line| line.strip_prefix("    turnwheel "));
    lines.map(|line| format!("turnwheel {line}")).collect()
}

fn run_command(line: &str) -> Finished {
    let finished = run_in_shell(&line.replace("TEXT", "'say done'"));
    assert_eq!(finished.code, Some(0), "{line}: {finished:?}");
    finished
}

async fn post(dev: &DevProcess, path: &str, body: &Value) -> Value {
    let request = reqwest::Client::new().post(dev.url(path)).json(body);
    openapi_check::send(request).await.unwrap().json()
}

async fn prompt(dev: &DevProcess, id: &str, agent: &str, input: &str) -> Value {
    let body = json!({"agent": agent, "conversationId": id, "input": input});
    post(dev, "/api/prompts?wait=60", &body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_waiting_prompt_work_as_printed() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    for (number, verb) in ["approve", "reject", "abort"].into_iter().enumerate() {
        let id = format!("waiting{number}");
        let waiting = prompt(&dev, &id, "payments-clerk", "Pay 250 to Ada").await;
        assert_eq!(waiting["state"], "waiting_for_approval", "{waiting}");
        let commands = commands(&id, folder.path());
        assert_eq!(commands.len(), 3, "{commands:?}");
        let command = &commands[number];
        assert!(command.starts_with(&format!("turnwheel {verb} ")), "{command}");
        run_command(command);
        // It has the effect that its name says.
        let ended = run_command(&format!("turnwheel tail {id} --data {}", folder.path().display()));
        let shown = run_command(&format!("turnwheel show {id} --data {}", folder.path().display()));
        let effect = match verb {
            "approve" => "✓ send_payment",
            "reject" => "✗ send_payment rejected",
            _ => "prompt aborted",
        };
        assert!(shown.stdout.contains(effect), "{effect}: {ended:?} {shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_failed_prompt_work_as_printed() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    for number in 0..3 {
        let id = format!("failed{number}");
        let failed = prompt(&dev, &id, "assistant", "fail finally").await;
        assert_eq!(failed["state"], "failed", "{failed}");
        let commands = commands(&id, folder.path());
        assert_eq!(commands.len(), 3, "{commands:?}");
        let line = commands[number].replace("TEXT", "'say done'");
        let finished = run_in_shell(&line);
        // The failed prompt fails again, and the next ones do not.
        assert_eq!(finished.code, Some(i32::from(number == 0)), "{line}: {finished:?}");
        let has_run =
            finished.stdout.contains("done") || finished.stderr.contains("✗ the prompt failed");
        assert!(has_run, "{line}: {finished:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_service_at_a_url_work_as_printed() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let url = dev.url("");
    let send =
        ["send", "--agent", "payments-clerk", "--url", &url, "--tenant", "shop", "--user", "ada"];
    let waiting = run(&[&send[..], &["Pay 250 to Ada"]].concat(), "");
    assert_eq!(waiting.code, Some(3), "{waiting:?}");
    let id = waiting.stderr.lines().find_map(|line| line.strip_prefix("conversation ")).unwrap();
    let options = ["--url", &url, "--tenant", "shop", "--user", "ada"];
    let why = [&["why", id][..], &options].concat();
    let printed = commands_of(&why);
    let [approve, _, _] = &printed[..] else { panic!("{printed:?}") };
    assert!(approve.ends_with(&format!(" {}", options.join(" "))), "{approve}");
    run_command(approve);
    let tail = run(&[&["tail", id][..], &options].concat(), "");
    assert_eq!(tail.code, Some(0), "{tail:?}");
    let ended = run(&[&why[..], &["--json"]].concat(), "");
    assert_eq!(ended.json()["waitsFor"], "nothing", "{ended:?}");
    // Another user has no such conversation, and a service that is none of ours is named.
    let missing = run(&["why", id, "--url", &url], "");
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("404 Not Found"), "{missing:?}");
    let wrong = run(&["why", "a b", "--url", &url], "");
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    drop(dev);
    let unreachable = run(&why, "");
    assert_eq!(unreachable.code, Some(1), "{unreachable:?}");
    assert!(unreachable.stderr.contains("no response from"), "{unreachable:?}");
}

/// A write whose process dies before its result is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_an_unknown_outcome_work_as_printed() {
    for decision in ["happened", "did_not_happen", "again"] {
        let folder = tempfile::tempdir().unwrap();
        let halt = [("TURNWHEEL_HALT_AT", "tool.after".to_owned())];
        let mut dev = DevProcess::start(folder.path(), &halt);
        let halted = folder.path().join("halted");
        let body =
            json!({"agent": "payments-clerk", "conversationId": "lost", "input": "Pay 40 to Ada"});
        post(&dev, "/api/prompts", &body).await;
        let deadline = Instant::now() + TIMEOUT;
        while !halted.exists() {
            assert!(Instant::now() < deadline, "{}", dev.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        dev.kill();
        std::fs::remove_file(&halted).unwrap();
        let dev = DevProcess::start(folder.path(), &[]);
        let command = loop {
            let commands = commands("lost", folder.path());
            if let Some(command) = commands.iter().find(|command| command.contains(decision)) {
                break command.clone();
            }
            assert!(Instant::now() < deadline, "{commands:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        run_command(&command);
        let tail = run_command(&format!("turnwheel tail lost --url {}", dev.url("")));
        let shown = run_command(&format!("turnwheel show lost --url {}", dev.url("")));
        let row = format!("{}, decided by `default`", decision.replace('_', " "));
        assert!(shown.stdout.contains(&row), "{row}: {tail:?} {shown:?}");
    }
}
