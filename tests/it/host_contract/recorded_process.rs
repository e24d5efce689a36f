//! Recorded starts, ends, restarts and time-outs of the handler's process: the supervisor plays
//! them, also with the packaged program.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::supervisor::{KILL_DELAY, Reaction, Supervisor, added_variables};
use crate::packaged_handler::{PackagedProgram, send_signal, silent_model};
use crate::support::shared_data::find_shared_data;

/// The value of a recorded fact; `None` without the shared data.
fn recorded(subject: &str, fact: &str) -> Option<Value> {
    let path = find_shared_data("recordings/functions-host/process.json")?;
    let facts: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let found = facts[subject].as_array().unwrap().iter().find(|one| one["fact"] == fact);
    Some(found.unwrap_or_else(|| panic!("no fact {subject}: {fact}"))["value"].clone())
}

/// A recorded reaction, by the words of the capture.
fn recorded_reaction(fact: &str) -> Option<Reaction> {
    let value = recorded("exit_codes", fact)?;
    let text = value.as_str().unwrap();
    Some(match text {
        text if text.starts_with("not restarted") => Reaction::LeftAlone,
        text if text.starts_with("restarted") => Reaction::Restarted,
        text if text.starts_with("the host stops") => Reaction::HostStopped,
        other => panic!("{other}"),
    })
}

/// A handler that ends by this script.
fn shell(script: &'static str) -> Supervisor {
    Supervisor::start(move || {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    })
}

fn envelope(message: &str) -> Value {
    json!({"Data": {"message": json!(message).to_string()}, "Metadata": {}})
}

async fn reactions(supervisor: &mut Supervisor, count: usize) -> Vec<Reaction> {
    let mut reactions = Vec::new();
    for _ in 0..count {
        reactions.push(supervisor.react_to_end().await.1);
    }
    reactions
}

#[test]
fn supervisor_adds_the_recorded_variables() {
    let Some(recorded) = recorded("start", "variables added to the environment") else { return };
    assert_eq!(json!(added_variables(1, Path::new("/")).map(|(name, _)| name)), recorded);
    let delay = self::recorded("function_timeout", "SIGKILL to the process after the time-out");
    assert_eq!(delay, Some(json!(KILL_DELAY.as_secs())));
}

#[tokio::test]
async fn exit_codes_restart_the_program_or_stop_the_host() {
    let ended = shell("exit 0").react_to_end().await;
    let Some(expected) = recorded_reaction("0") else { return };
    assert_eq!((ended.0.code(), ended.1), (Some(0), expected));
    let restart = recorded_reaction("200").unwrap();
    assert_eq!(reactions(&mut shell("exit 200"), 4).await, [restart; 4]);
    let first = recorded_reaction("any other, first and second").unwrap();
    let third = recorded_reaction("any other, third").unwrap();
    for script in ["exit 1", "exit 101", "kill -9 $$"] {
        assert_eq!(reactions(&mut shell(script), 3).await, [first, first, third], "{script}");
    }
}

/// The program ends with 200 after a signal: the host starts it again as often as that happens. A
/// kill from outside counts.
#[tokio::test]
async fn packaged_program_is_restarted_after_signals_and_kills() {
    let program = PackagedProgram::new(&[("TURNWHEEL_MODEL", "scripted")]).await;
    let mut supervisor = Supervisor::start(program.command());
    supervisor.until_ready().await;
    let first = supervisor.id();
    // The second signal ends it at once.
    send_signal(supervisor.id(), "-INT");
    tokio::time::sleep(Duration::from_millis(300)).await;
    send_signal(supervisor.id(), "-INT");
    let (ended, reaction) = supervisor.react_to_end().await;
    assert_eq!((ended.code(), reaction), (Some(200), Reaction::Restarted));
    supervisor.until_ready().await;
    assert_ne!(supervisor.id(), first, "another process has the port");
    for expected in [Reaction::Restarted, Reaction::Restarted, Reaction::HostStopped] {
        send_signal(supervisor.id(), "-KILL");
        assert_eq!(supervisor.react_to_end().await.1, expected);
        if expected == Reaction::Restarted {
            supervisor.until_ready().await;
        }
    }
}

/// A time-out of one invocation ends the process. The next one serves the port.
#[tokio::test]
async fn packaged_program_survives_a_function_timeout() {
    let (_model, url) = silent_model();
    let program = PackagedProgram::new(&[
        ("TURNWHEEL_MODEL", "gpt-5.1"),
        ("AZURE_OPENAI_BASE_URL", &url),
        ("AZURE_OPENAI_API_KEY", "k"),
    ])
    .await;
    let mut supervisor = Supervisor::start(program.command());
    supervisor.until_ready().await;
    let first = supervisor.id();
    let prompt = json!({"agent": "assistant", "conversationId": "timed-out", "input": "Hello"});
    let timeout = Duration::from_secs(15);
    let accepted = supervisor.invoke("prompt", &envelope(&prompt.to_string()), timeout).await;
    let accepted: Value = accepted.expect("an answer in time").json().await.unwrap();
    let nudge = accepted["Outputs"]["nudges"][0].as_str().expect("a nudge");
    let begun = Instant::now();
    let timeout = Duration::from_secs(2);
    assert!(
        supervisor.invoke("turn", &envelope(nudge), timeout).await.is_none(),
        "no answer in time"
    );
    assert!(begun.elapsed() >= timeout + KILL_DELAY);
    assert_ne!(supervisor.id(), first, "the host killed the process");
    supervisor.until_ready().await;
    let other = json!({"agent": "assistant", "conversationId": "later", "input": "Hello"});
    let timeout = Duration::from_secs(15);
    let response = supervisor.invoke("prompt", &envelope(&other.to_string()), timeout).await;
    assert_eq!(response.expect("a response of the next process").status(), 200);
}
