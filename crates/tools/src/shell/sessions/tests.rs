//! Tests of the runner with a session pool on this machine.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use self::fake::{Fake, Fault, TOKEN};
use crate::shell::{
    RefusalReason, ShellCommandEnd, ShellError, ShellLimits, ShellOutcome, ShellRequest,
    ShellRunner as _,
};
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};

mod fake;

fn request(command: &str) -> ShellRequest {
    let files =
        [("a.txt", "one"), ("b/c.txt", "two"), ("gone.txt", "three"), ("bin", "\u{0}\r\n--")];
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), Bytes::from(*text)));
    ShellRequest {
        files: files.collect(),
        ..ShellRequest::new(conversation("c1"), command.to_owned())
    }
}

fn conversation(id: &str) -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("u"),
        conversation_id: ConversationId::new(id),
    }
}

async fn run(fake: &Fake, request: ShellRequest) -> ShellOutcome {
    fake.runner().run(request).await.unwrap()
}

fn text(outcome: &ShellOutcome) -> String {
    String::from_utf8(outcome.output.to_vec()).unwrap()
}

#[tokio::test]
async fn command_changes_the_workspace_in_three_requests() {
    let fake = Fake::start().await;
    let command = "cat a.txt bin; echo err >&2; echo more >> a.txt; rm gone.txt; mkdir d; \
                   printf '\\377\\000' > d/new; ln -s /etc/passwd link; mkfifo pipe; exit 3";
    let outcome = run(&fake, request(command)).await;
    assert_eq!(outcome.end, ShellCommandEnd::Exited(3));
    assert_eq!(text(&outcome), "one\u{0}\r\n--err\n");
    let changes = outcome.changes.unwrap();
    let written: BTreeMap<&str, &[u8]> =
        changes.written.iter().map(|(path, content)| (path.as_str(), content.as_ref())).collect();
    assert_eq!(
        written,
        BTreeMap::from([("a.txt", &b"onemore\n"[..]), ("d/new", &b"\xff\0"[..])]),
        "unchanged files do not move"
    );
    assert_eq!(changes.deleted.into_iter().collect::<Vec<_>>(), ["gone.txt"]);
    assert_eq!(
        changes.refused.into_iter().collect::<Vec<_>>(),
        [
            ("link".to_owned(), RefusalReason::SymbolicLink),
            ("pipe".to_owned(), RefusalReason::SpecialFile)
        ]
    );
    assert_eq!(fake.lines(), ["POST files", "POST executions", "GET files"]);
}

#[tokio::test]
async fn command_without_changes_takes_two_requests() {
    let fake = Fake::start().await;
    let outcome = run(&fake, ShellRequest { folder: "b".to_owned(), ..request("ls") }).await;
    assert_eq!((text(&outcome), outcome.changes), ("c.txt\n".to_owned(), Ok(<_>::default())));
    assert_eq!(fake.lines(), ["POST files", "POST executions"]);
}

#[tokio::test]
async fn each_call_has_a_clean_workspace_and_no_process_of_an_earlier_one() {
    let fake = Fake::start().await;
    let runner = fake.runner();
    // No other run of this test has the same command.
    let marker = format!("sleep 79{}", std::process::id());
    let command = format!("touch left; setsid {marker} >/dev/null 2>&1 & disown; echo started");
    let first = runner.run(request(&command)).await.unwrap();
    assert_eq!(text(&first), "started\n");
    assert!(first.changes.unwrap().written.contains_key("left"));
    let second = runner.run(request("ls; env | sort")).await.unwrap();
    let text = text(&second);
    assert!(text.starts_with("a.txt\nb\nbin\ngone.txt\n"), "{text}");
    assert!(!text.contains("CARGO"), "the environment is the command's own: {text}");
    let running = std::process::Command::new("pgrep").args(["-fx", &marker]).output().unwrap();
    assert!(running.stdout.is_empty(), "the process outlived its command");
    let identifiers: Vec<String> =
        fake.received().into_iter().map(|received| received.identifier).collect();
    assert!(identifiers.iter().all(|one| one == &identifiers[0]), "one session a conversation");
}

#[tokio::test]
async fn limits_end_the_command() {
    let fake = Fake::start().await;
    let limits = ShellLimits {
        time: Duration::from_mins(1),
        output_bytes: 10,
        flood_bytes: 100_000,
        file_bytes: 4,
        files: 7,
        ..ShellLimits::default()
    };
    let limited = |command: &str| ShellRequest { limits: limits.clone(), ..request(command) };
    let hasty = ShellLimits { time: Duration::from_secs(2), ..limits.clone() };
    let slow = ShellRequest { limits: hasty, ..request("echo begun; sleep 60") };
    let slow = run(&fake, slow).await;
    assert_eq!((slow.end.clone(), text(&slow)), (ShellCommandEnd::TimeLimit, "begun\n".to_owned()));
    assert_eq!(run(&fake, limited("yes")).await.end, ShellCommandEnd::OutputLimit);
    let long = run(&fake, limited("printf 0123456789abcdef")).await;
    assert_eq!((text(&long), long.dropped_bytes), ("6789abcdef".to_owned(), 6));
    let large = run(&fake, limited("echo 12345 > large")).await.changes.unwrap();
    assert_eq!(large.refused["large"], RefusalReason::TooLarge);
    assert!(large.deleted.is_empty() && large.written.is_empty());
    let many = run(&fake, limited("touch z1 z2 z3 z4")).await.changes.unwrap();
    assert_eq!(many.refused["z4"], RefusalReason::TooManyFiles);
    let memory = ShellLimits { memory_bytes: 64 << 20, ..ShellLimits::default() };
    let hog = ShellRequest {
        limits: memory,
        ..request("python3 -c 'import time; x=bytearray(200<<20); time.sleep(20)'")
    };
    assert_eq!(run(&fake, hog).await.end, ShellCommandEnd::MemoryLimit);
}

#[tokio::test]
async fn refused_execution_did_not_run_and_other_failures_are_lost() {
    for (code, is_refused, advice) in [
        (400, true, "PythonLTS"),
        (401, true, "Azure ContainerApps Session Executor"),
        (403, true, "Azure ContainerApps Session Executor"),
        (404, true, "TURNWHEEL_SHELL_POOL"),
        (409, true, "try again"),
        (413, true, "too large"),
        (429, true, "maxConcurrentSessions"),
        (302, false, "302"),
        (408, false, "408"),
        (500, false, "500"),
        (503, false, "503"),
    ] {
        let fake = Fake::start().await;
        fake.set_fault("POST executions", Fault::Status(code));
        let error = fake.runner().run(request("true")).await.unwrap_err();
        assert_eq!(matches!(error, ShellError::Unavailable(_)), is_refused, "{code}: {error}");
        assert!(error.to_string().contains(advice), "{error}");
        let executions = fake.lines().iter().filter(|line| *line == "POST executions").count();
        assert_eq!(executions, 1, "{code}: an execution is sent once");
    }
}

#[tokio::test]
async fn lost_response_is_never_repeated() {
    let fake = Fake::start().await;
    for fault in
        [Fault::CutAfter, Fault::Body("garbage"), Fault::Body(r#"{"result": {"stdout": "other"}}"#)]
    {
        let before = fake.lines().len();
        fake.set_fault("POST executions", fault);
        let error = fake.runner().run(request("true")).await.unwrap_err();
        assert!(matches!(error, ShellError::Lost(_)), "{error}");
        assert_eq!(fake.lines()[before..], ["POST files", "POST executions", "DELETE session"]);
    }
}

#[tokio::test]
async fn failures_before_the_execution_run_nothing() {
    let fake = Fake::start().await;
    fake.set_fault("POST files", Fault::Status(500));
    let error = fake.runner().run(request("true")).await.unwrap_err();
    assert!(matches!(error, ShellError::Unavailable(_)), "{error}");
    assert_eq!(fake.lines(), ["POST files"]);
    let long = ShellLimits { time: Duration::from_secs(201), ..ShellLimits::default() };
    let error = fake.runner().run(ShellRequest { limits: long, ..request("true") }).await;
    assert!(error.unwrap_err().to_string().contains("at most 200 seconds"));
    assert_eq!(fake.lines().len(), 1, "nothing was sent");
}

#[tokio::test]
async fn lost_files_leave_the_result_of_the_command() {
    let fake = Fake::start().await;
    fake.set_fault("GET files", Fault::Status(503));
    let outcome = run(&fake, request("echo done; touch new")).await;
    assert_eq!(
        (outcome.end.clone(), text(&outcome)),
        (ShellCommandEnd::Exited(0), "done\n".to_owned())
    );
    assert!(outcome.changes.unwrap_err().contains("503"));
    fake.set_fault("GET files", Fault::Body("more bytes than the report has"));
    let outcome = run(&fake, request("echo 1 > new")).await;
    assert!(outcome.changes.unwrap_err().contains("more than 2 bytes"));
    fake.set_fault("GET files", Fault::Body("XX"));
    let outcome = run(&fake, request("echo 1 > new")).await;
    assert!(outcome.changes.unwrap_err().contains("altered"));
}

#[tokio::test]
async fn repeated_or_moved_execution_runs_nothing() {
    let fake = Fake::start().await;
    run(&fake, request("true")).await;
    let received = fake.received();
    let (identifier, body) = (&received[1].identifier, &received[1].body);
    let sent: serde_json::Value = serde_json::from_slice(body).unwrap();
    let code = sent["code"].as_str().unwrap();
    let response = fake.client().execute(identifier, code, Duration::from_secs(9)).await.unwrap();
    let response = String::from_utf8(response.to_vec()).unwrap();
    assert!(response.contains("missing"), "{response}");
    fake.lose_sessions();
    assert_eq!(
        text(&run(&fake, request("cat a.txt")).await),
        "one",
        "nothing depends on a session"
    );
}

#[tokio::test]
async fn abort_ends_the_session() {
    let fake = Fake::start().await;
    fake.set_fault("POST executions", Fault::Hang);
    let request = request("sleep 60");
    let abort = request.abort.clone();
    let runner = fake.runner();
    let (outcome, ()) = tokio::join!(runner.run(request), async {
        fake.hanging.notified().await;
        abort.cancel();
    });
    let outcome = outcome.unwrap();
    assert_eq!((outcome.end, outcome.changes.is_err()), (ShellCommandEnd::Aborted, true));
    assert_eq!(fake.lines(), ["POST files", "POST executions", "DELETE session"]);
}

#[tokio::test]
async fn conversations_have_unguessable_sessions_and_the_code_has_no_content() {
    let fake = Fake::start().await;
    let runner = fake.runner();
    let secret = "echo my-content";
    runner.run(request(secret)).await.unwrap();
    let other = ShellRequest { conversation: conversation("c2"), ..request(secret) };
    runner.run(other).await.unwrap();
    run(&fake, request(secret)).await;
    let received = fake.received();
    let identifiers: std::collections::BTreeSet<&String> =
        received.iter().map(|received| &received.identifier).collect();
    assert_eq!(identifiers.len(), 3, "each conversation, and each key, has its own session");
    assert!(identifiers.iter().all(|one| one.len() == 64));
    assert!(received.iter().all(|one| one.authorization == format!("Bearer {TOKEN}")));
    for one in received.iter().filter(|one| one.line == "POST executions") {
        assert!(!String::from_utf8_lossy(&one.body).contains("my-content"));
    }
    let shown = format!("{runner:?} {:?}", request(secret));
    assert!(!shown.contains("my-content") && !shown.contains(TOKEN), "{shown}");
}

/// A conversation whose rounds run on several instances has one session, which the service bills.
#[tokio::test]
async fn instances_with_one_signing_key_share_the_session() {
    let fake = Fake::start().await;
    let (key, other_key) = ([7; 32], [8; 32]);
    for key in [&key, &key, &other_key] {
        fake.runner_with_key(Some(key)).run(request("true")).await.unwrap();
    }
    let received = fake.received();
    let sessions: Vec<&String> = received
        .iter()
        .filter(|one| one.line == "POST executions")
        .map(|one| &one.identifier)
        .collect();
    let [first, second, third] = sessions.as_slice() else { panic!("{sessions:?}") };
    assert_eq!(first, second);
    assert_ne!(first, third, "another deployment has sessions of its own");
}

/// The signing key itself signs approval links. The expected value is from another implementation, and each version has
/// the same, so that the instances of two versions share a session.
#[tokio::test]
async fn session_identifier_has_a_key_for_this_purpose_alone() {
    let runner = Fake::start().await.runner_with_key(Some(&[7; 32]));
    assert_eq!(
        runner.session_identifier(&conversation("c1")).unwrap(),
        "09c7979f9aab8c3fd67466d85886e50eac10d3522fc74f08116544f0de4d4ad7"
    );
}

#[tokio::test]
async fn check_of_the_pool_starts_no_session() {
    let fake = Fake::start().await;
    fake.client().check().await.unwrap();
    assert!(fake.received()[0].identifier.is_empty());
    fake.set_fault("GET metadata", Fault::Status(403));
    let advice = fake.client().check().await.unwrap_err().into_text();
    assert!(advice.contains("Azure ContainerApps Session Executor"), "{advice}");
}
