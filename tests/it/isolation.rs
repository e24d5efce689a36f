//! Isolation in the real program: a conversation that kills its process, external kills, and
//! restarts. Other conversations lose nothing.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::town::{Errand, Town, go_on};
use crate::support::fake_model::{FakeModel, Play, Script};
use crate::support::process::Dev;

mod agent_files;
mod town;

const NEIGHBOURS: usize = 12;
const PATIENCE: Duration = Duration::from_mins(4);
/// Time limit from the start of a process until it continues pending work.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killer_fails_alone_and_all_neighbours_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (town, client) = (Town::start().await, reqwest::Client::new());
    let mut errands: Vec<Errand> = vec![Errand::deadly("killer")];
    errands.extend((1..=NEIGHBOURS).map(|number| Errand::honest(&format!("n{number}"))));
    let mut dev = town.dev(folder.path());
    let (began, mut starts) = (Instant::now(), 1);
    let (mut neighbours_done, mut why) = (None, String::new());
    while errands.iter().any(|errand| errand.end.is_none()) {
        assert!(began.elapsed() < PATIENCE, "{errands:#?} {}", dev.log());
        if dev.has_ended() {
            dev = town.dev(folder.path());
            starts += 1;
        }
        go_on(&mut errands, &client, (&dev, &town)).await;
        if errands[1..].iter().all(|errand| errand.end.is_some()) {
            neighbours_done.get_or_insert_with(|| began.elapsed());
        }
        let view = client.get(dev.url("/api/conversations/killer/why")).send().await;
        if let Ok(view) = view
            && let Ok(view) = view.json::<Value>().await
            && view["waitsFor"] == "back_off"
        {
            why = view["why"].as_str().unwrap().to_owned();
        }
    }
    let end = errands[0].end.as_ref().unwrap();
    assert_eq!((&end["state"], &end["error"]["type"]), (&json!("failed"), &json!("poisoned")));
    assert_eq!(
        end["error"]["message"],
        "The process died three times while it ran this step alone: the call of tool `crash`."
    );
    for neighbour in &errands[1..] {
        let end = neighbour.end.as_ref().unwrap();
        assert_eq!(end["state"], "completed", "{}: {end}", neighbour.id);
    }
    assert_eq!((town.writes(), town.writes_max()), (NEIGHBOURS, 1), "no write is repeated");
    // Two deaths beside other work, and three in isolation while the service stayed up.
    assert_eq!((town.killed().len(), starts), (5, 3));
    assert!(why.contains("while it ran this step alone"), "{why}");
    assert!(why.contains("it is retried in isolation at "), "{why}");
    let report = format!(
        "the killer failed after {:?}, its {NEIGHBOURS} neighbours completed after {neighbours_done:?}",
        began.elapsed()
    );
    writeln!(std::io::stderr(), "{report}").unwrap();
}

/// Number of kills; `TURNWHEEL_KILLS=200` for a long run.
#[expect(clippy::disallowed_methods, reason = "the length of a test is no setting of the service")]
fn kills() -> usize {
    std::env::var("TURNWHEEL_KILLS").map_or(8, |kills| kills.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_kills_fail_no_prompt() {
    const AT_ONCE: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let (town, client) = (Town::start().await, reqwest::Client::new());
    let mut dice = fastrand::Rng::with_seed(13);
    let mut errands: Vec<Errand> = Vec::new();
    let (kills, mut killed) = (kills(), 0);
    let mut dev = town.dev(folder.path());
    let mut last_start = Instant::now();
    while killed < kills {
        let span = Duration::from_millis(dice.u64(300..2_000));
        let until = last_start + span;
        while Instant::now() < until {
            let open = errands.iter().filter(|errand| errand.end.is_none()).count();
            for _ in open..AT_ONCE {
                errands.push(Errand::honest(&format!("c{}", errands.len())));
            }
            let round = go_on(&mut errands, &client, (&dev, &town));
            let _ = tokio::time::timeout(until - Instant::now(), round).await;
        }
        dev.kill();
        killed += 1;
        dev = town.dev(folder.path());
        last_start = Instant::now();
    }
    while errands.iter().any(|errand| errand.end.is_none()) {
        assert!(last_start.elapsed() < PATIENCE, "{}", dev.log());
        go_on(&mut errands, &client, (&dev, &town)).await;
    }
    let states: Vec<&Value> =
        errands.iter().map(|errand| &errand.end.as_ref().unwrap()["state"]).collect();
    let failed: Vec<&Errand> = errands
        .iter()
        .filter(|errand| errand.end.as_ref().unwrap()["state"] != "completed")
        .collect();
    let report = format!(
        "{killed} kills: {} of {} prompts failed; all ended within {:?} of the last start",
        failed.len(),
        states.len(),
        last_start.elapsed()
    );
    writeln!(std::io::stderr(), "{report}").unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(town.writes_max(), 1, "no write is repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_with_a_model_call_under_way_delay_nothing() {
    const RESTARTS: usize = 7;
    const AGENT: &str = "---\ndescription: Answers.\nmodel: gpt-5-mini\n---\nBe brief.\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
    let hanging = std::iter::repeat_n(Play::Hang, RESTARTS);
    let model = FakeModel::start(hanging.chain([Play::Answer(Script::text("done"))])).await;
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
    ];
    let data = folder.path().join("data");
    let start = || Dev::start_in(folder.path(), &data, &settings);
    let mut dev = start();
    let client = reqwest::Client::new();
    let body = json!({"conversationId": "c", "input": "go"});
    let accepted = client.post(dev.url("/api/prompts")).json(&body).send().await.unwrap();
    let accepted: Value = accepted.json().await.unwrap();
    let prompt = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    let mut longest = Duration::ZERO;
    let mut started = Instant::now();
    for asked in 1..=RESTARTS {
        while model.asked().len() < asked {
            assert!(started.elapsed() < RECOVERY_MAX, "restart {asked}: {}", dev.log());
            tokio::task::yield_now().await;
        }
        longest = longest.max(started.elapsed());
        dev.kill();
        dev = start();
        started = Instant::now();
    }
    let ended = client.get(dev.url(&format!("{prompt}?wait=10"))).send().await.unwrap();
    let ended: Value = ended.json().await.unwrap();
    assert_eq!(ended["state"], "completed", "{ended}");
    longest = longest.max(started.elapsed());
    assert!(longest < RECOVERY_MAX, "{longest:?}");
    let report = format!("{RESTARTS} restarts: the step continued within {longest:?} of each");
    writeln!(std::io::stderr(), "{report}").unwrap();
}
