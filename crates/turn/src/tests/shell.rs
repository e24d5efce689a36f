//! The tools `bash` and `shell`: approval, results, aborts and kills, with a runner that records
//! its requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::parallel_calls::result_texts;
use super::store_requests::handle_next_nudge;
use super::test_env::{
    LoggedRequests as _, PauseFailPoint, RequestLogStore, Script, TestEnv, idempotency, kill_at,
    text,
};
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_conversation::entry::{Entry, PromptState};
use turnwheel_conversation::request::RequestKind;
use turnwheel_conversation::workspace::collect_files;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::approvals::pending_approvals;
use turnwheel_record::services::Services;
use turnwheel_tools::shell::tool::shell_tools;
use turnwheel_tools::shell::{
    RefusalReason, ShellCommandEnd, ShellError, ShellOutcome, ShellRequest, ShellRunner,
    WorkspaceChanges,
};

#[derive(Clone, Copy)]
enum Reply {
    /// By the number of the request.
    Outcome(fn(usize) -> ShellOutcome),
    Lost,
    /// The command runs until it is aborted.
    AfterAbort,
}

/// Records its requests and replies to each by its number.
struct RecordingRunner {
    reply: Reply,
    requests: Mutex<Vec<ShellRequest>>,
    started: Notify,
}

impl std::fmt::Debug for RecordingRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordingRunner")
    }
}

impl RecordingRunner {
    fn commands(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| request.command.clone()).collect()
    }

    /// Names of the files that a request had.
    fn files(&self, index: usize) -> Vec<String> {
        self.requests.lock().unwrap()[index].files.keys().cloned().collect()
    }
}

#[async_trait]
impl ShellRunner for RecordingRunner {
    async fn run(&self, request: ShellRequest) -> Result<ShellOutcome, ShellError> {
        let abort = request.abort.clone();
        let number = {
            let mut requests = self.requests.lock().unwrap();
            requests.push(request);
            requests.len()
        };
        self.started.notify_one();
        match self.reply {
            Reply::Outcome(reply) => Ok(reply(number)),
            Reply::Lost => Err(ShellError::Lost("the result is lost".to_owned())),
            Reply::AfterAbort => {
                abort.cancelled().await;
                Ok(outcome(ShellCommandEnd::Aborted, "", WorkspaceChanges::default()))
            }
        }
    }
}

fn outcome(end: ShellCommandEnd, output: &'static str, changes: WorkspaceChanges) -> ShellOutcome {
    ShellOutcome { end, output: Bytes::from(output), dropped_bytes: 0, changes: Ok(changes) }
}

fn writes(files: &[(&str, &'static str)]) -> WorkspaceChanges {
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), Bytes::from(*text)));
    WorkspaceChanges { written: files.collect(), ..WorkspaceChanges::default() }
}

fn succeeds(_number: usize) -> ShellOutcome {
    outcome(ShellCommandEnd::Exited(0), "made\n", writes(&[("a.txt", "one"), ("b.txt", "two")]))
}

fn bash(command: &str) -> Value {
    let arguments = json!({"command": command});
    json!({"type": "toolCall", "id": "c1", "name": "bash", "arguments": arguments})
}

/// A long command, whose end an approver must see.
fn long_command() -> String {
    format!("echo {} && rm -r data", "x".repeat(2_000))
}

fn runs_long_command(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![bash(&long_command())] } else { vec![text("done")] }
}

fn runs_two_commands(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![bash("make")],
        1 => vec![bash("make again")],
        _ => vec![text("done")],
    }
}

struct ShellEnv {
    env: TestEnv,
    runner: Arc<RecordingRunner>,
    services: Services,
}

impl ShellEnv {
    fn new(script: Script, reply: Reply) -> Self {
        let mut env = TestEnv::with_script(1, script);
        let runner =
            Arc::new(RecordingRunner { reply, requests: Mutex::default(), started: Notify::new() });
        let port: Arc<dyn ShellRunner> = runner.clone();
        let tools = shell_tools(&port);
        env.change_agent(|agent| agent.tools.clone_from(&tools));
        let services = env.new_worker(Arc::new(NoFailPoints));
        Self { env, runner, services }
    }

    async fn deliver_all(&mut self) {
        while self.env.deliver().await {}
    }

    /// Sends a prompt and approves all calls.
    async fn run_approved(&mut self) {
        self.env.send_prompt(&self.services).await;
        self.deliver_all().await;
        while !self.env.head().await.unwrap().requests.is_empty() {
            self.env.decide_all("approve").await;
            self.deliver_all().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn command_runs_once_after_an_approval_that_shows_it_whole() {
    let mut shell = ShellEnv::new(runs_long_command, Reply::Outcome(succeeds));
    shell.env.send_prompt(&shell.services).await;
    shell.deliver_all().await;
    assert_eq!(shell.runner.commands(), Vec::<String>::new(), "it ran before the approval");
    let head = shell.env.head().await.unwrap();
    let open = pending_approvals(&shell.services, &head).await.unwrap();
    let shown = open[0].arguments.as_ref().unwrap().to_value();
    assert_eq!(shown["command"], long_command());
    let reason = &head.requests[0].reason;
    assert!(reason.contains("2019 characters"), "{reason}");
    shell.env.decide_all("approve").await;
    shell.deliver_all().await;
    assert_eq!(shell.runner.commands(), [long_command()]);
    assert_eq!(result_texts(&shell.env).await, ["made"]);
}

#[tokio::test(start_paused = true)]
async fn rejected_command_does_not_run() {
    let mut shell = ShellEnv::new(runs_long_command, Reply::Outcome(succeeds));
    shell.env.send_prompt(&shell.services).await;
    shell.deliver_all().await;
    shell.env.decide_all("reject").await;
    shell.deliver_all().await;
    assert_eq!(shell.runner.commands(), Vec::<String>::new());
    let results = result_texts(&shell.env).await;
    assert!(results[0].contains("Rejected"), "{results:?}");
}

fn runs_refused_commands(results: usize, _said: &str) -> Vec<Value> {
    let shell = |arguments: Value| json!({"type": "toolCall", "id": "c1", "name": "shell", "arguments": arguments});
    match results {
        0 => vec![shell(json!({"command": "ls; rm -r data"}))],
        1 => vec![shell(json!({"command": "ls", "cwd": "../x"}))],
        2 => vec![bash(" ")],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn refused_commands_need_no_approval_and_do_not_run() {
    let mut shell = ShellEnv::new(runs_refused_commands, Reply::Outcome(succeeds));
    shell.env.send_prompt(&shell.services).await;
    shell.deliver_all().await;
    assert_eq!(shell.runner.commands(), Vec::<String>::new());
    let results = result_texts(&shell.env).await;
    assert_eq!(results.len(), 3, "{results:?}");
    for result in &results {
        assert!(result.contains("Invalid input: "), "{result}");
    }
}

fn changes_files(number: usize) -> ShellOutcome {
    if number == 1 {
        let refused = BTreeMap::from([("link".to_owned(), RefusalReason::SymbolicLink)]);
        let files =
            [("a.txt", "one"), ("d/b.txt", "two"), (".turnwheel/x", "no"), ("a.txt/c", "no")];
        let changes = WorkspaceChanges { refused, further_refused: 2, ..writes(&files) };
        return outcome(ShellCommandEnd::Exited(0), "", changes);
    }
    let deleted = BTreeSet::from(["a.txt".to_owned()]);
    let changes = WorkspaceChanges { deleted, ..writes(&[("d/b.txt", "changed")]) };
    outcome(ShellCommandEnd::Exited(2), "failed\n", changes)
}

#[tokio::test(start_paused = true)]
async fn changed_files_return_and_refused_ones_are_named() {
    let mut shell = ShellEnv::new(runs_two_commands, Reply::Outcome(changes_files));
    shell.run_approved().await;
    assert_eq!(shell.runner.files(0), Vec::<String>::new());
    assert_eq!(shell.runner.files(1), ["a.txt", "d/b.txt"]);
    let results = result_texts(&shell.env).await;
    insta::assert_snapshot!(results[0], @r#"
    Error in tool "bash": (no output)

    [5 changes did not return to the workspace:
    .turnwheel/x: The path .turnwheel/x is reserved for Turnwheel: choose one outside of `.turnwheel`.
    a.txt/c: a.txt is a file, so a.txt/c cannot be below it.
    link: a symbolic link
    and 2 more]
    "#);
    assert_eq!(results[1], "Error in tool \"bash\": failed\n\nCommand exited with code 2");
    let entries: Vec<Arc<Entry>> = shell.env.entries().await.into_iter().map(Arc::new).collect();
    let files = collect_files(&entries);
    let paths: Vec<&String> = files.keys().collect();
    assert_eq!(paths, ["d/b.txt"]);
}

#[tokio::test(start_paused = true)]
async fn command_with_a_lost_result_is_not_repeated() {
    let mut shell = ShellEnv::new(runs_long_command, Reply::Lost);
    shell.env.send_prompt(&shell.services).await;
    shell.deliver_all().await;
    shell.env.decide_all("approve").await;
    shell.deliver_all().await;
    let requests = shell.env.head().await.unwrap().requests;
    assert_eq!(requests[0].kind, RequestKind::Outcome);
    shell.env.decide_all("happened").await;
    shell.deliver_all().await;
    assert_eq!(shell.runner.commands().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn killed_command_is_not_repeated() {
    for (fail_point, decision, runs) in [
        ("tool.before", "happened", 0),
        ("tool.before", "did_not_happen", 0),
        ("tool.after", "happened", 1),
        ("result.before", "happened", 1),
        ("result.before", "did_not_happen", 1),
    ] {
        let mut shell = ShellEnv::new(runs_long_command, Reply::Outcome(succeeds));
        shell.env.send_prompt(&shell.services).await;
        shell.deliver_all().await;
        shell.env.decide_all("approve").await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = shell.env.new_worker(pause.clone());
        kill_at(victim, &pause).await;
        let ran = shell.runner.commands().len();
        tokio::time::sleep(std::time::Duration::from_mins(5)).await;
        shell.env.run_sweep().await;
        shell.deliver_all().await;
        assert_eq!(shell.runner.commands().len(), ran, "{fail_point}: repeated");
        let requests = shell.env.head().await.unwrap().requests;
        assert_eq!(requests[0].kind, RequestKind::Outcome, "{fail_point}");
        shell.env.decide_all(decision).await;
        shell.deliver_all().await;
        assert_eq!(shell.runner.commands().len(), runs, "{fail_point} {decision}");
    }
}

#[tokio::test(start_paused = true)]
async fn abort_ends_the_command() {
    let mut shell = ShellEnv::new(runs_long_command, Reply::AfterAbort);
    shell.env.send_prompt(&shell.services).await;
    shell.deliver_all().await;
    shell.env.decide_all("approve").await;
    let (runner, services) = (Arc::clone(&shell.runner), shell.services.clone());
    tokio::join!(shell.deliver_all(), async {
        runner.started.notified().await;
        let request = AbortRequest::default();
        abort(&services, &TestEnv::key(), request, &idempotency("stop")).await.unwrap();
    });
    let head = shell.env.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Aborted);
    assert!(head.indeterminate_writes.is_empty(), "the end of the command is known");
    assert_eq!(shell.runner.commands().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn approved_command_costs_the_requests_of_a_tool_round() {
    let mut shell = ShellEnv::new(runs_long_command, Reply::Outcome(succeeds));
    let counting = RequestLogStore::wrap(shell.env.store.clone());
    shell.env.worker_store = counting.clone();
    let services = shell.env.new_worker(Arc::new(NoFailPoints));
    shell.env.send_prompt(&services).await;
    handle_next_nudge(&shell.env, &services, &counting).await;
    shell.env.decide_all("approve").await;
    insta::assert_snapshot!(handle_next_nudge(&shell.env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, commit, receipt
    write head, commit
    write head, commit
    ");
}
