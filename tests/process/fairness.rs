//! Prompts of several users in `dev`: users take turns.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;
use turnwheel_test_support::time_bound::check_time;

const AGENT: &str = "---\ndescription: Answers.\nmodel: gpt-5-mini\n---\nBe brief.\n";
const TIMEOUT: Duration = Duration::from_mins(2);
/// Prompts of the first user: more than turns can run at once.
const PROMPTS: usize = 160;
/// Turns of one user that run at once.
const RUNNING_MAX: usize = 80;
const FIRST_TURN_MAX: Duration = Duration::from_secs(2);

/// No model call of the first user ends, so the other user can only start beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_turn_of_another_user_waits_for_no_turn() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
    let model = FakeModel::start(std::iter::repeat_n(ScriptedResponse::Hang, PROMPTS + 10)).await;
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
    ];
    let dev = DevProcess::start_in(folder.path(), &folder.path().join("data"), &settings);
    let client = reqwest::Client::new();
    let send = async |user: &str, input: &str| {
        let request = client.post(dev.url("/api/prompts")).header("Turnwheel-User", user);
        let response = request.json(&json!({"input": input})).send_validated().await.unwrap();
        assert_eq!(response.status(), 202, "{}", dev.log());
    };
    for number in 0..PROMPTS {
        send("ann", &format!("ann {number}")).await;
    }
    let deadline = Instant::now() + TIMEOUT;
    while model.received_requests().len() < RUNNING_MAX {
        assert!(Instant::now() < deadline, "{}", dev.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut longest = Duration::ZERO;
    for user in ["bob", "cy", "dan"] {
        let sent = Instant::now();
        let deadline = sent + TIMEOUT;
        send(user, &format!("words of {user}")).await;
        let words = format!("words of {user}");
        while !model.request_bodies().iter().any(|body| body.to_string().contains(&words)) {
            assert!(Instant::now() < deadline, "{user} waits: {}", dev.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        longest = longest.max(sent.elapsed());
    }
    assert_eq!(model.received_requests().len(), RUNNING_MAX + 3, "further turns of ann wait");
    check_time("first turn of a user beside 160 prompts of another", longest, FIRST_TURN_MAX);
}
