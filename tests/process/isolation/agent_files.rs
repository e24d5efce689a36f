//! An isolated turn uses the agents of its parent process, although a file on disk is invalid by
//! then.

use serde_json::{Value, json};

use super::tool_server::{kill, process_of_peer};
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;
use crate::support::step_server::{AGENT, StepServer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspect_turn_completes_while_agent_file_is_broken() {
    let mut steps = StepServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents/worker.agent.md");
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(&file, AGENT).unwrap();
    let data = folder.path().join("data");
    let settings = [("STEPS", steps.url.clone())];
    let start = || DevProcess::start_in(folder.path(), &data, &settings);
    let mut dev = start();
    let client = reqwest::Client::new();
    let body = json!({"conversationId": "c", "input": "use step with {} then say done"});
    let accepted = client.post(dev.url("/api/prompts")).json(&body).send_validated().await.unwrap();
    let accepted: Value = accepted.json().await.unwrap();
    let id = accepted["promptId"].as_str().unwrap();

    // Calls come from serving processes until the step runs in isolation.
    let mut unanswered = Vec::new();
    let child = loop {
        let step = steps.next_call().await.unwrap_or_else(|| panic!("{}", dev.log()));
        let process = process_of_peer(step.peer);
        unanswered.push(step);
        match process {
            Some(process) if process != dev.id() => break process,
            Some(_) => {}
            // The process of the call has ended meanwhile.
            None => continue,
        }
        dev.kill();
        dev = start();
    };
    std::fs::write(&file, "---\ndescription: [\n---\n").unwrap();
    dev.wait_for_log(&["the previous revision stays in force"]).await;
    kill(child);

    let step = steps.next_call().await.unwrap_or_else(|| panic!("{}", dev.log()));
    assert_ne!(process_of_peer(step.peer), Some(dev.id()), "the step runs in isolation");
    step.finish();
    let path = format!("/api/conversations/c/prompts/{id}?wait=60");
    let ended = client.get(dev.url(&path)).send_validated().await.unwrap();
    let ended: Value = ended.json().await.unwrap();
    assert_eq!(ended["state"], "completed", "{ended} {}", dev.log());
}
