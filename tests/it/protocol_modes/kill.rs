//! A process that is killed in the middle of a response over a socket.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{RESUME, done};
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;
use crate::support::socket_model::{Reply, SocketModel, Transport, Upgrades};

const TIMEOUT: Duration = Duration::from_mins(2);
const KEY: &str = "canary5ecret-of-the-socket";

/// The next process has no connection: it opens one and sends the whole input.
#[tokio::test]
async fn next_process_sends_whole_input_after_kill() {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    let file = format!("---\ndescription: Helps.\nloop: protocol\n{RESUME}\n---\nBe brief.\n");
    std::fs::write(agents.join("helper.agent.md"), file).unwrap();
    // No tool has this name: the result is a failure, without a side effect.
    let calls = Reply::Text(r#"<execute>[{"name": "nope", "args": {}}]</execute>"#.to_owned());
    let model = SocketModel::start(Upgrades::Accepted, [calls, Reply::Hang, done()]).await;
    let settings = [
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", KEY.to_owned()),
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("RUST_LOG", "turnwheel=debug".to_owned()),
    ];
    let data = folder.path().join("data");
    let mut dev = DevProcess::start_in(folder.path(), &data, &settings);
    let client = reqwest::Client::new();
    let request = client.post(dev.url("/api/prompts")).json(&json!({ "input": "go" }));
    let accepted = openapi_check::send(request).await.unwrap().json();
    tokio::time::timeout(TIMEOUT, model.wait_for_turns(2)).await.unwrap();
    let first_log = dev.whole_log();

    let mut dev = DevProcess::start_in(folder.path(), &data, &settings);
    let id = |name: &str| accepted[name].as_str().unwrap().to_owned();
    let path =
        format!("/api/conversations/{}/prompts/{}?wait=60", id("conversationId"), id("promptId"));
    let deadline = Instant::now() + TIMEOUT;
    let prompt = loop {
        assert!(Instant::now() < deadline, "{}", dev.log());
        let prompt = openapi_check::send(client.get(dev.url(&path))).await.unwrap().json();
        if prompt["state"] != "running" {
            break prompt;
        }
    };
    assert_eq!(prompt["output"].as_array().unwrap().last().unwrap()["content"], "Done.");
    let turns = model.turns();
    assert_eq!(model.transports(), vec![Transport::Socket; 3]);
    assert_eq!(turns[1].body["input"].as_array().unwrap().len(), 1);
    assert_eq!(turns[2].body["input"].as_array().unwrap().len(), 4, "the whole input");
    assert_eq!(turns[2].body.get("previous_response_id"), None);
    assert_eq!(turns[1].context, turns[2].context, "the model reads the same");
    let logs = [first_log, dev.whole_log()].concat();
    assert!(logs.contains("Turnwheel is at") && !logs.contains(KEY), "the key is in the log");
}
