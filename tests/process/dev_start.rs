//! Lines that `dev` prints at its start.

use serde_json::json;

use crate::commands::agent_folder;
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;

/// Sends a prompt of a tenant that waits for an approval. Returns the path of the approval, which `dev` has printed.
async fn request_approval(dev: &DevProcess, tenant: &str, id: &str) -> String {
    let client = reqwest::Client::new();
    let body = json!({"agent": "payments-clerk", "conversationId": id, "input": "Pay 250 to Ada"});
    let request = client.post(dev.url("/api/prompts?wait=60")).json(&body);
    let prompt = openapi_check::send(request.header("turnwheel-tenant", tenant)).await;
    let prompt = prompt.unwrap().json();
    assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}");
    let request = client.get(dev.url(&format!("/api/conversations/{id}")));
    let conversation = openapi_check::send(request.header("turnwheel-tenant", tenant)).await;
    let approval = conversation.unwrap().json()["pendingApprovals"][0]["id"].clone();
    let path = format!("/api/conversations/{id}/approvals/{}", approval.as_str().unwrap());
    // Otherwise the next process sends the notification again.
    dev.wait_for_log(&[&path]).await;
    path
}

/// The links and commands of requests are in the output of an earlier process only.
#[tokio::test]
async fn dev_shows_open_approvals_of_all_tenants_at_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = DevProcess::start(folder.path(), &[]);
    let decided = request_approval(&dev, "default", "decided").await;
    let mine = request_approval(&dev, "default", "mine").await;
    let theirs = request_approval(&dev, "acme", "theirs").await;
    let decision =
        reqwest::Client::new().post(dev.url(&decided)).json(&json!({"decision": "reject"}));
    assert_eq!(openapi_check::send(decision).await.unwrap().status, 200);
    dev.kill();
    let dev = DevProcess::start(folder.path(), &[]);
    // Requests of a tenant are listed in their order.
    let log = dev.wait_for_log(&[&mine, &theirs]).await;
    assert!(!log.contains(&decided), "{log}");
    let command = log.lines().find(|line| line.contains(&theirs)).unwrap();
    assert!(command.contains("-H 'turnwheel-tenant: acme'"), "{command}");
}

/// With function keys all callers are one user, so data of single users is off.
#[test]
fn start_warns_of_agents_that_need_single_users() {
    let folder = agent_folder();
    std::fs::write(folder.path().join("agents/friend.agent.md"), "---\nmemory: true\n---\nHelp.\n")
        .unwrap();
    let warning = "friend: memory, profile, `recall` and skills of users are off, because with TURNWHEEL_AUTH=keys all callers are one user";
    for (auth, is_warned) in [("keys", true), ("header", false)] {
        let data = tempfile::tempdir().unwrap();
        let settings = [("TURNWHEEL_AUTH", auth.to_owned())];
        let log = DevProcess::start_in(folder.path(), data.path(), &settings).whole_log();
        assert_eq!(log.contains(warning), is_warned, "{auth}: {log}");
    }
}
