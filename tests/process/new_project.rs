//! Each template of `turnwheel new` as its user meets it: created, checked, started and prompted.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;

fn turnwheel(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}");
    text
}

/// Creates a project from the template, and checks its agents.
fn create(parent: &Path, template: &str) -> std::path::PathBuf {
    let text = turnwheel(parent, &["new", "shop", "--template", template]);
    assert!(text.contains("Next:\n  cd shop\n"), "{text}");
    let folder = parent.join("shop");
    for file in ["azure.yaml", "infra/main.bicep", ".github/workflows/ci.yml", ".gitignore"] {
        assert!(folder.join(file).is_file(), "{template}: {file}");
    }
    folder
}

/// Sends the examples of the agent, and approves what waits. Returns the last prompt.
async fn run_examples(dev: &DevProcess, agent: &str) -> Value {
    let client = reqwest::Client::new();
    let get = async |path: &str| -> Value {
        client.get(dev.url(path)).send_validated().await.unwrap().json().await.unwrap()
    };
    let agents = get("/api/agents").await;
    let found = agents["items"].as_array().unwrap().iter().find(|it| it["name"] == agent);
    let found = found.unwrap_or_else(|| panic!("{agents}\n{}", dev.log()));
    assert_eq!(found["available"], true, "{found}");
    let mut last = Value::Null;
    for (number, input) in found["examples"].as_array().unwrap().iter().enumerate() {
        let id = format!("c{number}");
        let body = json!({"agent": agent, "conversationId": id, "input": input});
        let url = dev.url("/api/prompts?wait=60");
        let sent = client.post(url).json(&body).send_validated().await.unwrap();
        last = sent.json().await.unwrap();
        if last["state"] == "waiting_for_approval" {
            let waiting = get(&format!("/api/conversations/{id}")).await;
            let approval = waiting["pendingApprovals"][0]["id"].as_str().unwrap();
            let url = dev.url(&format!("/api/conversations/{id}/approvals/{approval}"));
            let decision = json!({"decision": "approve"});
            client.post(url).json(&decision).send_validated().await.unwrap();
            let prompt = last["id"].as_str().unwrap();
            last = get(&format!("/api/conversations/{id}/prompts/{prompt}?wait=60")).await;
        }
        assert_eq!(last["state"], "completed", "{input}: {last}\n{}", dev.log());
        let outputs = last["output"].as_array().unwrap();
        let is_error = |output: &Value| output["result"]["type"] == "error";
        assert!(!outputs.iter().any(is_error), "{input}: {last}");
    }
    last
}

#[tokio::test]
async fn chat_template_works() {
    let parent = tempfile::tempdir().unwrap();
    let folder = create(parent.path(), "chat");
    turnwheel(&folder, &["doctor", "--offline"]);
    let dev = DevProcess::start_in(&folder, &folder.join("data"), &[]);
    run_examples(&dev, "assistant").await;
    turnwheel(&folder, &["certify", "--only", "tool.after"]);
}

#[tokio::test]
async fn approval_template_works() {
    let parent = tempfile::tempdir().unwrap();
    let folder = create(parent.path(), "approval");
    let dev = DevProcess::start_in(&folder, &folder.join("data"), &[]);
    let prompt = run_examples(&dev, "payments-clerk").await;
    assert!(prompt.to_string().contains("rcpt_"), "{prompt}");
}

/// The API of the template.
struct OpsServer(Child);

impl Drop for OpsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn ops_template_works() {
    let parent = tempfile::tempdir().unwrap();
    let folder = create(parent.path(), "ops");
    turnwheel(&folder, &["doctor", "--offline"]);
    let mut server = Command::new("node")
        .arg("server.mjs")
        .current_dir(&folder)
        .env("PORT", "0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(server.stdout.take().unwrap()));
    let _server = OpsServer(server);
    let line = lines.next().unwrap().unwrap();
    let (_, url) = line.split_once("operations API at ").unwrap();
    let settings = [("OPS_URL", url.to_owned())];
    let dev = DevProcess::start_in(&folder, &folder.join("data"), &settings);
    run_examples(&dev, "ops").await;
    let status = reqwest::Client::new().get(format!("{url}/services/web")).send_validated();
    let status: Value = status.await.unwrap().json().await.unwrap();
    assert_eq!(status["restarts"], 1, "{status}");
}

/// Gives the program of a template its environment.
pub(crate) fn set_program_env(folder: &Path, env: Value) {
    let file = std::fs::read_to_string(folder.join("mcp.json")).unwrap();
    let mut servers: Value = serde_json::from_str(&file).unwrap();
    servers["servers"]["shop"]["env"] = env;
    std::fs::write(folder.join("mcp.json"), servers.to_string()).unwrap();
}

/// Environment with the package for tools in Python of this repository.
pub(crate) fn python_env() -> Value {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/python-tools/src");
    json!({"PYTHONPATH": package.display().to_string()})
}

/// Starts a template with a program in the way of its README, with the packages of this repository.
async fn run_tool_template(template: &str, env: Value, prepare: impl FnOnce(&Path)) {
    let parent = tempfile::tempdir().unwrap();
    let folder = create(parent.path(), template);
    prepare(&folder);
    set_program_env(&folder, env);
    let dev = DevProcess::start_in(&folder, &folder.join("data"), &[]);
    dev.wait_for_log(&["tool program started", "server=shop"]).await;
    let prompt = run_examples(&dev, "shop").await;
    assert!(prompt.to_string().contains("o-2"), "{prompt}");
}

#[tokio::test]
async fn python_template_works() {
    run_tool_template("python-tools", python_env(), |_| {}).await;
}

#[tokio::test]
async fn typescript_template_works() {
    run_tool_template("typescript-tools", json!({}), crate::tool_programs::link_node_packages)
        .await;
}

/// Its program and its test are those of the example `template-rust`, which `cargo test` runs.
#[test]
fn rust_template_names_what_it_uses() {
    let parent = tempfile::tempdir().unwrap();
    let folder = create(parent.path(), "rust");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    assert!(manifest.starts_with("[package]\nname = \"shop\"\n"), "{manifest}");
    let source = std::fs::read_to_string(folder.join("src/refund.rs")).unwrap();
    for name in ["schemars", "serde", "turnwheel"] {
        assert!(source.contains(&format!("use {name}::")), "{name}");
        assert!(manifest.contains(&format!("\n{name} = ")), "{name}: {manifest}");
    }
    // The tool is in the program, so the agent is checked by it alone.
    let agent = std::fs::read_to_string(folder.join("agents/clerk.agent.md")).unwrap();
    assert!(agent.contains("\n  - refund\n"), "{agent}");
}
