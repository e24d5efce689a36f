//! Isolation in the real program: a conversation that kills its process, external kills, and
//! restarts. Other conversations lose nothing.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::tool_server::{ClientRun, ToolServer, run_rounds};
use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;
use turnwheel_test_support::time_bound::check_time;

mod agent_files;
mod tool_server;

const NEIGHBOUR_COUNT: usize = 12;
const TIMEOUT: Duration = Duration::from_mins(4);
/// Each death costs them a restart and the step that ran.
const NEIGHBOURS_MAX: Duration = Duration::from_secs(12);
/// Time limit from the start of a process until it continues pending work.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killer_fails_alone_and_all_neighbours_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (server, client) = (ToolServer::start().await, reqwest::Client::new());
    let mut client_runs: Vec<ClientRun> = vec![ClientRun::with_crash("killer")];
    client_runs
        .extend((1..=NEIGHBOUR_COUNT).map(|number| ClientRun::with_write(&format!("n{number}"))));
    let mut dev = server.start_dev(folder.path());
    let (began, mut starts) = (Instant::now(), 1);
    let (mut neighbours_done, mut why) = (None, String::new());
    while client_runs.iter().any(|client_run| client_run.end.is_none()) {
        assert!(began.elapsed() < TIMEOUT, "{client_runs:#?} {}", dev.log());
        if dev.has_ended() {
            dev = server.start_dev(folder.path());
            starts += 1;
        }
        run_rounds(&mut client_runs, &client, (&dev, &server)).await;
        if client_runs[1..].iter().all(|client_run| client_run.end.is_some()) {
            neighbours_done.get_or_insert_with(|| began.elapsed());
        }
        let view = client.get(dev.url("/api/conversations/killer/why")).send_validated().await;
        if let Ok(view) = view
            && let Ok(view) = view.json::<Value>().await
            && view["waitsFor"] == "back_off"
        {
            why = view["why"].as_str().unwrap().to_owned();
        }
    }
    let end = client_runs[0].end.as_ref().unwrap();
    assert_eq!((&end["state"], &end["error"]["type"]), (&json!("failed"), &json!("poisoned")));
    assert_eq!(
        end["error"]["message"],
        "The process died three times while it ran this step alone: the call of tool `crash`."
    );
    for neighbour in &client_runs[1..] {
        let end = neighbour.end.as_ref().unwrap();
        assert_eq!(end["state"], "completed", "{}: {end}", neighbour.id);
    }
    let lost = client_runs.iter().filter(|client_run| client_run.is_write_lost).count();
    assert_eq!(
        (server.write_count() + lost, server.requests_per_write_max()),
        (NEIGHBOUR_COUNT, 1),
        "no write is repeated, and none is lost without a question"
    );
    // Two deaths beside other work, and three in isolation while the service stayed up.
    assert_eq!((server.killed_processes().len(), starts), (5, 3));
    assert!(why.contains("while it ran this step alone"), "{why}");
    assert!(why.contains("it is retried in isolation at "), "{why}");
    let report = format!("the killer failed after {:?}", began.elapsed());
    writeln!(std::io::stderr(), "{report}").unwrap();
    check_time("neighbours of a killer", neighbours_done.unwrap(), NEIGHBOURS_MAX);
}

/// Number of kills; `TURNWHEEL_KILLS=200` for a long run.
#[expect(clippy::disallowed_methods, reason = "the length of a test is no setting of the service")]
fn kill_count() -> usize {
    std::env::var("TURNWHEEL_KILLS").map_or(8, |kills| kills.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_kills_fail_no_prompt() {
    const AT_ONCE: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let (server, client) = (ToolServer::start().await, reqwest::Client::new());
    let mut rng = fastrand::Rng::with_seed(13);
    let mut client_runs: Vec<ClientRun> = Vec::new();
    let (kills, mut killed) = (kill_count(), 0);
    let mut dev = server.start_dev(folder.path());
    let mut last_start = Instant::now();
    while killed < kills {
        let span = Duration::from_millis(rng.u64(300..2_000));
        let until = last_start + span;
        while Instant::now() < until {
            let open = client_runs.iter().filter(|client_run| client_run.end.is_none()).count();
            for _ in open..AT_ONCE {
                client_runs.push(ClientRun::with_write(&format!("c{}", client_runs.len())));
            }
            let round = run_rounds(&mut client_runs, &client, (&dev, &server));
            let _ = tokio::time::timeout(until - Instant::now(), round).await;
        }
        dev.kill();
        killed += 1;
        dev = server.start_dev(folder.path());
        last_start = Instant::now();
    }
    while client_runs.iter().any(|client_run| client_run.end.is_none()) {
        assert!(last_start.elapsed() < TIMEOUT, "{}", dev.log());
        run_rounds(&mut client_runs, &client, (&dev, &server)).await;
    }
    let states: Vec<&Value> =
        client_runs.iter().map(|client_run| &client_run.end.as_ref().unwrap()["state"]).collect();
    let failed: Vec<&ClientRun> = client_runs
        .iter()
        .filter(|client_run| client_run.end.as_ref().unwrap()["state"] != "completed")
        .collect();
    let report = format!(
        "{killed} kills: {} of {} prompts failed; all ended within {:?} of the last start",
        failed.len(),
        states.len(),
        last_start.elapsed()
    );
    writeln!(std::io::stderr(), "{report}").unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(server.requests_per_write_max(), 1, "no write is repeated");
}

/// The step may be the cause, so later deaths delay it as in Azure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_restarts_during_model_call_delay_nothing() {
    const RESTARTS: usize = 3;
    const AGENT: &str = "---\ndescription: Answers.\nmodel: gpt-5-mini\n---\nBe brief.\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
    let hanging = std::iter::repeat_n(ScriptedResponse::Hang, RESTARTS);
    let model =
        FakeModel::start(hanging.chain([ScriptedResponse::Response(ResponseScript::text("done"))]))
            .await;
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
    ];
    let data = folder.path().join("data");
    let start = || DevProcess::start_in(folder.path(), &data, &settings);
    let mut dev = start();
    let client = reqwest::Client::new();
    let body = json!({"conversationId": "c", "input": "go"});
    let accepted = client.post(dev.url("/api/prompts")).json(&body).send_validated().await.unwrap();
    let accepted: Value = accepted.json().await.unwrap();
    let prompt = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    let mut longest = Duration::ZERO;
    let mut started = Instant::now();
    for restart in 1..=RESTARTS {
        while model.received_requests().len() < restart {
            assert!(started.elapsed() < TIMEOUT, "restart {restart}: {}", dev.log());
            tokio::task::yield_now().await;
        }
        longest = longest.max(started.elapsed());
        dev.kill();
        dev = start();
        started = Instant::now();
    }
    let ended = client.get(dev.url(&format!("{prompt}?wait=60"))).send_validated().await.unwrap();
    let ended: Value = ended.json().await.unwrap();
    assert_eq!(ended["state"], "completed", "{ended}");
    longest = longest.max(started.elapsed());
    check_time("continuation of the step after a restart", longest, RECOVERY_MAX);
}
