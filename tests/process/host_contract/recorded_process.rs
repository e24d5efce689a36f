//! Recorded starts, ends, restarts and time-outs of the handler's process: the supervisor plays
//! them, also with the packaged program.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::testing::queue::TURNS;

use super::raw_handler::Script;
use super::recording_queue::TIMEOUT;
use super::supervisor::{
    COUNTED_ENDS_MAX, HostTimes, KILL_DELAY, Reaction, Supervisor, added_variables,
};
use super::test_host::{TestHost, TestHostConfig, client};
use crate::packaged_handler::{PackagedProgram, send_signal, silent_model};
use crate::support::shared_data::find_shared_data;
use turnwheel_test_support::time_bound::check_time;

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
    shell_with(HostTimes::REAL, script)
}

fn shell_with(times: HostTimes, script: &'static str) -> Supervisor {
    Supervisor::start_with(times, move || {
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
    let limit = self::recorded("readiness", "limit of one attempt (initializationTimeout)");
    assert_eq!(limit, Some(json!(HostTimes::REAL.initialization.as_secs())));
    let attempts = self::recorded("readiness", "attempts before the host stops");
    assert_eq!(attempts, Some(json!(COUNTED_ENDS_MAX)));
    let memory = self::recorded("exit_codes", "age at which counted errors are forgotten");
    assert_eq!(memory, Some(json!(HostTimes::REAL.memory.as_secs() / 60)));
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

#[tokio::test]
async fn counted_ends_are_forgotten_some_time_after_the_last_one() {
    let memory = Duration::from_millis(500);
    let mut supervisor = shell_with(HostTimes { memory, ..HostTimes::REAL }, "exit 1");
    for _ in 0..3 {
        assert_eq!(reactions(&mut supervisor, 2).await, [Reaction::Restarted; 2]);
        tokio::time::sleep(2 * memory).await;
    }
    let last = [Reaction::Restarted, Reaction::Restarted, Reaction::HostStopped];
    assert_eq!(reactions(&mut supervisor, 3).await, last);
}

#[tokio::test]
async fn program_that_opens_no_port_stops_the_host() {
    let initialization = Duration::from_millis(200);
    let times = HostTimes { initialization, ..HostTimes::REAL };
    let mut supervisor = shell_with(times, "exec sleep 600");
    let begun = Instant::now();
    for expected in [Reaction::Restarted, Reaction::Restarted, Reaction::HostStopped] {
        assert_eq!(supervisor.probe_start().await, Some(expected));
    }
    assert!(begun.elapsed() >= COUNTED_ENDS_MAX * initialization);
}

/// A handler that ended with 0 is not started again.
#[tokio::test]
async fn messages_of_a_handler_that_is_gone_move_to_poison() {
    let mut config = TestHostConfig::default();
    config.root.functions.remove("turn-poison");
    let respond = |_| Script::json("{}");
    let mut host = TestHost::start_raw(respond, config).await;
    assert_eq!(host.get("/api/x").await.0, 200);
    host.end_handler().await;
    host.queue.put(TURNS, "kept").await;
    host.queue.until("it is poison", |state| state.texts("agent-turns-poison") == ["kept"]).await;
    let errors = host.errors().await;
    assert_eq!(errors.iter().filter(|error| error.starts_with("turn: ")).count(), 5, "{errors:?}");
    let begun = Instant::now();
    assert_eq!(host.get("/api/x").await, (500, String::new()));
    assert!(begun.elapsed() > Duration::from_secs(1), "the request is repeated");
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

/// A host that stops sends no signal. The next one finds what its handler accepted.
#[tokio::test]
async fn packaged_program_keeps_its_work_when_the_host_stops() {
    use std::os::unix::process::ExitStatusExt as _;

    let program = PackagedProgram::new(&[("TURNWHEEL_MODEL", "scripted")]).await;
    let mut host = Supervisor::start(program.command());
    assert_eq!(host.probe_start().await, None);
    let nudge = accept_prompt(&mut host, "accepted").await;
    assert_eq!(host.stop_idle_host().signal(), Some(9));

    let mut next = Supervisor::start(program.command());
    assert_eq!(next.probe_start().await, None);
    let mut responses = Vec::new();
    // Recovery at the start may have the lease when the nudge comes: then another one follows.
    for _ in 0..REPEATED_NUDGES_MAX {
        let turn = next.invoke("turn", &envelope(&nudge), ANSWER_TIME).await.expect("an answer");
        assert_eq!(turn.status(), 200);
        responses.push(turn.text().await.unwrap());
        let view = client().get(next.url("/api/conversations/accepted/prompts"));
        if view.send().await.unwrap().text().await.unwrap().contains("completed") {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("the prompt is not completed: {responses:?}")
}

const ANSWER_TIME: Duration = Duration::from_mins(1);
/// Times that a prompt is sent.
const REPEATED_PROMPTS_MAX: u32 = 60;
/// Times that a nudge is sent.
const REPEATED_NUDGES_MAX: u32 = 60;

/// Returns the nudge of the prompt. A handler whose store does not respond in time, as on a loaded
/// machine, puts the message back into the queue, and answers without a nudge.
async fn accept_prompt(supervisor: &mut Supervisor, conversation: &str) -> String {
    // The prompt is sent again until a nudge comes, and the envelopes have no message id.
    let prompt = json!({
        "agent": "assistant",
        "conversationId": conversation,
        "input": "Hello",
        "idempotencyKey": conversation,
    });
    let prompt = envelope(&prompt.to_string());
    let mut accepted = Value::Null;
    for _ in 0..REPEATED_PROMPTS_MAX {
        let answer = supervisor.invoke("prompt", &prompt, ANSWER_TIME).await;
        accepted = answer.expect("an answer in time").json().await.unwrap();
        if let Some(nudge) = accepted["Outputs"]["nudges"][0].as_str() {
            return nudge.to_owned();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("no nudge: {accepted}")
}

/// The packaged program with a model that never responds, and the socket of the model.
async fn program_without_a_model() -> (PackagedProgram, std::net::TcpListener) {
    let (model, url) = silent_model();
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5.1"),
        ("AZURE_OPENAI_BASE_URL", &*url),
        ("AZURE_OPENAI_API_KEY", "k"),
    ];
    (PackagedProgram::new(&settings).await, model)
}

/// A time-out of one invocation ends the process. The next one serves the port.
#[tokio::test]
async fn packaged_program_survives_a_function_timeout() {
    let (program, _model) = program_without_a_model().await;
    let mut supervisor = Supervisor::start(program.command());
    supervisor.until_ready().await;
    let first = supervisor.id();
    let nudge = accept_prompt(&mut supervisor, "timed-out").await;
    let begun = Instant::now();
    let timeout = Duration::from_secs(2);
    assert!(
        supervisor.invoke("turn", &envelope(&nudge), timeout).await.is_none(),
        "no answer in time"
    );
    assert!(begun.elapsed() >= timeout + KILL_DELAY);
    assert_ne!(supervisor.id(), first, "the host killed the process");
    supervisor.until_ready().await;
    accept_prompt(&mut supervisor, "later").await;
}

/// An invocation in flight fails with the process. The host delivers its message again later.
#[tokio::test]
async fn invocation_in_flight_at_a_crash_fails_at_once() {
    let (program, _model) = program_without_a_model().await;
    let mut supervisor = Supervisor::start(program.command());
    supervisor.until_ready().await;
    let nudge = envelope(&accept_prompt(&mut supervisor, "crashed").await);
    let process = supervisor.id();
    let crash = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        send_signal(process, "-KILL");
        Instant::now()
    };
    let (answer, crashed) = tokio::join!(supervisor.invoke("turn", &nudge, TIMEOUT), crash);
    assert!(answer.is_none());
    check_time("end of the invocation", crashed.elapsed(), Duration::from_secs(2));
    assert_eq!(supervisor.react_to_end().await.1, Reaction::Restarted);
    supervisor.until_ready().await;
    accept_prompt(&mut supervisor, "later").await;
}

/// Invocations that arrive during a restart wait for it, and each is sent once.
#[tokio::test]
async fn invocations_during_a_restart_wait_and_are_sent_once() {
    let program = PackagedProgram::new(&[("TURNWHEEL_MODEL", "scripted")]).await;
    let mut supervisor = Supervisor::start(program.command());
    supervisor.until_ready().await;
    let mut nudges = Vec::new();
    for number in 0..5 {
        let nudge = accept_prompt(&mut supervisor, &format!("restarted-{number}")).await;
        nudges.push(envelope(&nudge));
    }
    send_signal(supervisor.id(), "-KILL");
    assert_eq!(supervisor.react_to_end().await.1, Reaction::Restarted);
    let calls = nudges.iter().map(|nudge| (Duration::ZERO, "turn", nudge)).collect();
    // The host keeps them until the next process is ready.
    supervisor.until_ready().await;
    let (answers, reaction) = supervisor.invoke_all(calls, ANSWER_TIME).await;
    assert_eq!(reaction, None);
    for (number, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.expect("an answer").status(), 200);
        let path = format!("/api/conversations/restarted-{number}/prompts");
        let view = client().get(supervisor.url(&path)).send().await.unwrap().text().await.unwrap();
        assert!(view.contains("completed"), "{view}");
    }
}

/// Time-outs at once stop the host, and two some time apart do not. The next host serves what the
/// handler accepted.
#[tokio::test]
async fn packaged_program_survives_simultaneous_function_timeouts() {
    let (program, _model) = program_without_a_model().await;
    for (count, apart, expected) in [
        (2, Duration::from_millis(100), Reaction::Restarted),
        (2, Duration::ZERO, Reaction::HostStopped),
        (15, Duration::ZERO, Reaction::HostStopped),
    ] {
        let mut supervisor = Supervisor::start(program.command());
        supervisor.until_ready().await;
        let mut nudges = Vec::new();
        for number in 0..count {
            let conversation = format!("timed-out-{count}-{}-{number}", apart.as_millis());
            nudges.push(envelope(&accept_prompt(&mut supervisor, &conversation).await));
        }
        let waits = (0..count).map(|number| apart * number);
        let calls = waits.zip(&nudges).map(|(wait, nudge)| (wait, "turn", nudge)).collect();
        let (answers, reaction) = supervisor.invoke_all(calls, Duration::from_secs(2)).await;
        assert!(answers.iter().all(Option::is_none));
        assert_eq!(reaction, Some(expected));
    }
    let mut next = Supervisor::start(program.command());
    next.until_ready().await;
    accept_prompt(&mut next, "later").await;
}
