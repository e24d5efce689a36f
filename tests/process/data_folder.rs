//! The data folder of a running service: what happens when it is deleted.

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;

#[tokio::test]
async fn deleted_folder_makes_the_service_unhealthy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), "You help.\n").unwrap();
    let data = folder.path().join("data");
    let dev = DevProcess::start_in(folder.path(), &data, &[]);
    let client = reqwest::Client::new();
    let prompt = client.post(dev.url("/api/prompts?wait=60")).json(&json!({"input": "say hello"}));
    assert_eq!(prompt.send_validated().await.unwrap().status(), 200, "{}", dev.log());
    std::fs::remove_dir_all(&data).unwrap();
    // The first check; its result is reused for 30 s.
    let health = client.get(dev.url("/api/health")).send_validated().await.unwrap();
    assert_eq!(health.status(), 503, "{}", dev.log());
    dev.wait_for_log(&["was deleted while the service ran"]).await;
    let prompt = client.post(dev.url("/api/prompts")).json(&json!({"input": "say hello"}));
    let refused = prompt.send_validated().await.unwrap();
    assert_eq!(refused.status(), 503, "{}", dev.log());
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["type"], "urn:turnwheel:problem:unavailable", "{problem}");
    assert!(!data.exists(), "no other store is begun in its place");
}
