//! Latency of a steer, from 202 to the model request: with a busy worker, an idle one, and none.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnwheel::App;

use crate::support::call_blocker::{BlockableTool, CallBlocker};
use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;
use crate::support::service::Service;
use crate::support::tools::{Echo, Runs};
use turnwheel_test_support::time_bound::check_time;

/// Longer than any step takes here, on the slowest machine.
const TIMEOUT: Duration = Duration::from_mins(2);
const LATENCY_MAX: Duration = Duration::from_secs(5);
const AGENT: &str = "---\ndescription: Plays.\nmodel: gpt-5.1\n---\nYou are helpful.\n";
const AGENT_WITH_TOOL: &str =
    "---\ndescription: Plays.\nmodel: gpt-5.1\ntools: [echo]\n---\nYou are helpful.\n";

fn agent_folder(agent: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/player.agent.md"), agent).unwrap();
    folder
}

/// Time of the first model request that contains the text; polled each millisecond.
async fn wait_for_model_input(model: &FakeModel, text: &str) -> Instant {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if model.request_bodies().iter().any(|body| body["input"].to_string().contains(text)) {
            return Instant::now();
        }
        assert!(Instant::now() < deadline, "the model never read {text}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn send_steer(service: &Service, text: &str) -> Instant {
    let body = json!({"input": text, "mode": "steer"});
    let (status, answer) = service.post("/api/conversations/c/prompts", &body).await;
    assert_eq!(status, 202, "{answer}");
    Instant::now()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steer_reaches_model_request_quickly() {
    let calls = [
        ScriptedResponse::Response(ResponseScript::call("c1", "echo", json!({"value": "1"}))),
        ScriptedResponse::Response(ResponseScript::text("turned")),
        ScriptedResponse::Response(ResponseScript::text("again")),
    ];
    let model = FakeModel::start(calls).await;
    let (gate, folder) = (CallBlocker::default(), agent_folder(AGENT_WITH_TOOL));
    let settings =
        [("AZURE_OPENAI_BASE_URL", model.url.as_str()), ("AZURE_OPENAI_API_KEY", "a-key")];
    let app = App::new().tool(BlockableTool(Echo(Runs::default()), gate.clone()));
    let service = Service::start(app, folder.path(), &settings).await;
    gate.block("c1");
    let body = json!({"conversationId": "c", "input": "go"});
    let (_, begun) = service.post("/api/prompts", &body).await;
    gate.started("c1").await;
    let accepted = send_steer(&service, "turn left").await;
    gate.release("c1");
    check_time(
        "steer applied by a busy worker",
        wait_for_model_input(&model, "turn left").await - accepted,
        LATENCY_MAX,
    );
    service.wait_for_prompt("c", begun["promptId"].as_str().unwrap()).await;
    let accepted = send_steer(&service, "turn right").await;
    check_time(
        "steer applied by an idle worker",
        wait_for_model_input(&model, "turn right").await - accepted,
        LATENCY_MAX,
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_steer_is_applied_after_restart() {
    let model = FakeModel::start(
        ["hello", "turned"].map(|text| ScriptedResponse::Response(ResponseScript::text(text))),
    )
    .await;
    let folder = agent_folder(AGENT);
    let data = folder.path().join("data");
    let settings = |halt_at: &str| {
        let mut settings = vec![
            ("TURNWHEEL_MODEL", "gpt-5.1".to_owned()),
            ("AZURE_OPENAI_BASE_URL", model.url.clone()),
            ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
        ];
        settings.extend((!halt_at.is_empty()).then(|| ("TURNWHEEL_HALT_AT", halt_at.to_owned())));
        settings
    };
    // The process stops when the second input is stored and no nudge is sent.
    let mut dev = DevProcess::start_in(folder.path(), &data, &settings("admission.accepted#2"));
    let client = reqwest::Client::new();
    let body = json!({"conversationId": "c", "input": "go"});
    let begun =
        client.post(dev.url("/api/prompts?wait=60")).json(&body).send_validated().await.unwrap();
    assert_eq!(begun.json::<Value>().await.unwrap()["state"], "completed");
    let body = json!({"input": "turn left", "mode": "steer"});
    let path = "/api/conversations/c/prompts";
    let request = client.post(dev.url(path)).header("idempotency-key", "k").json(&body);
    let halted = data.join("halted");
    let deadline = Instant::now() + TIMEOUT;
    let mut request = std::pin::pin!(request.send_validated());
    while !halted.exists() {
        assert!(Instant::now() < deadline, "{}", dev.log());
        let _ = tokio::time::timeout(Duration::from_millis(10), &mut request).await;
    }
    dev.kill();
    let killed = Instant::now();
    let dev = DevProcess::start_in(folder.path(), &data, &settings(""));
    let alive = Instant::now();
    let read = wait_for_model_input(&model, "turn left").await;
    check_time("start of a worker", alive - killed, LATENCY_MAX);
    let took = read.saturating_duration_since(alive);
    check_time("stored steer applied after that start", took, LATENCY_MAX);
    // A repeated request returns the first response.
    let request = client.post(dev.url(path)).header("idempotency-key", "k").json(&body);
    let again = request.send_validated().await.unwrap();
    assert_eq!(again.headers()["idempotency-replayed"], "true");
}
