//! First steps with `turnwheel dev`: a real model, a changed agent file, and a failed model call.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::{self, SendValidated as _};
use crate::tour::blocks;

const TIMEOUT: Duration = Duration::from_mins(2);

fn write_agent(folder: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder.join("agents")).unwrap();
    std::fs::write(folder.join("agents").join(name), text).unwrap();
}

/// Starts `dev` without the setting that selects the fake model.
fn start_dev(folder: &Path, settings: &[(&str, String)]) -> Result<DevProcess, String> {
    let mut all = vec![("TURNWHEEL_MODEL", String::new())];
    all.extend_from_slice(settings);
    DevProcess::try_start_with(folder, &folder.join("data"), &[], &all)
}

async fn get(dev: &DevProcess, path: &str) -> Value {
    let request = reqwest::Client::new().get(dev.url(path));
    openapi_check::send(request).await.unwrap().json()
}

async fn send_prompt(dev: &DevProcess, body: Value) -> Value {
    let request = reqwest::Client::new().post(dev.url("/api/prompts?wait=60")).json(&body);
    openapi_check::send(request).await.unwrap().json()
}

/// Polls until the response satisfies the condition.
async fn poll_until(dev: &DevProcess, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = get(dev, path).await;
        if is_wanted(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{found}\n{}", dev.log());
        tokio::task::yield_now().await;
    }
}

/// Pages with a block `sh model`.
const PAGES: [&str; 2] = ["README.md", "docs/quickstart.md"];

/// Returns the settings that the page's block `sh model` exports, with page and line of the block.
fn model_settings(page: &str) -> (Vec<(String, String)>, String) {
    let blocks = blocks(page);
    let block = blocks.iter().find(|block| block.info == "sh model");
    let block = block.unwrap_or_else(|| panic!("{page} has no block `sh model`"));
    let setting = |line: &str| {
        let setting = line.strip_prefix("export ").and_then(|line| line.split_once('='));
        let (name, value) =
            setting.unwrap_or_else(|| panic!("{}: `{line}` is no `export`", block.location));
        (name.to_owned(), value.split_whitespace().next().unwrap_or_default().to_owned())
    };
    let settings: Vec<(String, String)> = block.text.lines().map(setting).collect();
    assert_eq!(settings.len(), 3, "{}: three lines: {}", block.location, block.text);
    (settings, block.location.clone())
}

#[tokio::test]
async fn printed_settings_make_a_real_model_respond() {
    for page in PAGES {
        let folder = tempfile::tempdir().unwrap();
        write_agent(folder.path(), "ops.agent.md", "You are the on-call assistant.");
        let response = ScriptedResponse::Response(ResponseScript::text("Hello."));
        let model = FakeModel::start(vec![response]).await;
        let (mut printed, location) = model_settings(page);
        let endpoint = printed.iter_mut().find(|(name, _)| name == "AZURE_OPENAI_ENDPOINT");
        endpoint.unwrap_or_else(|| panic!("{location}: no endpoint")).1.clone_from(&model.url);
        let settings: Vec<(&str, String)> =
            printed.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let dev =
            start_dev(folder.path(), &settings).unwrap_or_else(|log| panic!("{location}: {log}"));
        let responded = send_prompt(&dev, json!({"agent": "ops", "input": "Hi"})).await;
        assert_eq!(responded["state"], "completed", "{location}: {responded}\n{}", dev.log());
        let wanted = settings.iter().find(|(name, _)| *name == "TURNWHEEL_MODEL");
        let wanted = &wanted.unwrap_or_else(|| panic!("{location}: no model")).1;
        assert_eq!(model.request_bodies()[0]["model"], json!(wanted), "{location}");
        let line = format!("model:  {wanted} at {}", model.url);
        let example = r#"{"agent":"ops","input":"What can you do?"}"#;
        dev.wait_for_log(&[&line, example]).await;
    }
}

#[test]
fn dev_refuses_an_endpoint_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    write_agent(folder.path(), "ops.agent.md", "You are the on-call assistant.");
    let sample = std::fs::read_to_string("local.settings.sample.json").unwrap();
    let sample = sample.replace(
        r#""AZURE_OPENAI_ENDPOINT": """#,
        r#""AZURE_OPENAI_ENDPOINT": "https://my-resource.openai.azure.com""#,
    );
    std::fs::write(folder.path().join("local.settings.json"), sample).unwrap();
    let run = |command: &str| {
        let ran = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
            .args(command.split(' '))
            .current_dir(folder.path())
            .env_clear()
            .output()
            .unwrap();
        let text = [ran.stdout, ran.stderr].concat();
        (ran.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    for command in ["dev --port 0", "doctor --offline"] {
        let (code, text) = run(command);
        assert_eq!(code, Some(1), "{command}: {text}");
        assert!(text.contains("No model configured for `normal`: set TURNWHEEL_MODEL"), "{text}");
    }
}

#[tokio::test]
async fn next_prompt_uses_changed_agent_file() {
    let folder = tempfile::tempdir().unwrap();
    let dev = start_dev(folder.path(), &[]).unwrap();
    write_agent(folder.path(), "ops.agent.md", "---\ntools: [ls]\n---\nBe kind.");
    let ops = |agents: &Value| agents["items"][0].clone();
    let added =
        ops(&poll_until(&dev, "/api/agents", |agents| ops(agents)["available"] == true).await);
    let responded =
        send_prompt(&dev, json!({"agent": "ops", "input": "use ls with {} then say done"})).await;
    assert_eq!(responded["state"], "completed", "{responded}");
    write_agent(folder.path(), "ops.agent.md", "---\ntools: [lss]\n---\nBe kind.");
    let broken =
        ops(&poll_until(&dev, "/api/agents", |agents| !ops(agents)["problem"].is_null()).await);
    assert_eq!(broken["revision"], added["revision"], "{broken}");
    assert_eq!(broken["available"], true);
    let problem = "agents/ops.agent.md:2: there is no tool `lss`";
    assert!(broken["problem"].as_str().unwrap().starts_with(problem), "{broken}");
    let error = format!("error={problem}");
    let texts = [
        "agents: none in agents",
        "agent file not reloaded; the previous revision stays in force",
        &*error,
    ];
    dev.wait_for_log(&texts).await;
    write_agent(folder.path(), "ops.agent.md", "---\ntools: [find]\n---\nBe kind.");
    poll_until(&dev, "/api/agents", |agents| ops(agents)["tools"] == json!(["find"])).await;
    let refused =
        send_prompt(&dev, json!({"agent": "ops", "input": "use ls with {} then say done"})).await;
    assert!(refused["output"].to_string().contains("not found"), "{refused}");
}

#[tokio::test]
async fn failed_model_call_logs_warning_with_cause() {
    let folder = tempfile::tempdir().unwrap();
    let agent = "---\nretry: { maxRetries: 1, baseDelayMs: 50000 }\n---\nBe kind.";
    write_agent(folder.path(), "ops.agent.md", agent);
    let fails = |status: u16, message: &str| ScriptedResponse::Http {
        status,
        headers: Vec::new(),
        body: json!({"error": {"message": message}}).to_string(),
    };
    let model = FakeModel::start(vec![fails(401, "wrong key"), fails(500, "out of order")]).await;
    let settings = [
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
    ];
    let mut dev = start_dev(folder.path(), &settings).unwrap();
    let failed =
        send_prompt(&dev, json!({"conversationId": "c1", "input": "a-secret-input"})).await;
    assert_eq!(failed["state"], "failed", "{failed}");
    let why = get(&dev, "/api/conversations/c1/why").await;
    let sentence = why["why"].as_str().unwrap();
    assert!(sentence.starts_with("No work is pending: the last prompt failed at"), "{sentence}");
    assert!(sentence.contains("HTTP 401: wrong key"), "{sentence}");

    let request = reqwest::Client::new().post(dev.url("/api/prompts"));
    let body = json!({"conversationId": "c2", "input": "a-secret-input"});
    assert_eq!(request.json(&body).send_validated().await.unwrap().status(), 202);
    let why = poll_until(&dev, "/api/conversations/c2/why", |why| why["waitsFor"] == "retry").await;
    let sentence = why["why"].as_str().unwrap();
    assert!(sentence.starts_with("The model call failed at"), "{sentence}");
    assert!(sentence.contains(": HTTP 500: out of order; attempt 2 is due at"), "{sentence}");
    let prompts = get(&dev, "/api/conversations/c2/prompts").await;
    let retry = &prompts["items"][0]["retry"];
    assert_eq!(retry["error"], "HTTP 500: out of order", "{prompts}");

    dev.wait_for_log(&["status=401", "status=500", "prompt failed"]).await;
    let log = dev.whole_log();
    let warnings: Vec<&str> =
        log.lines().filter(|line| line.contains(" warn  model call failed")).collect();
    assert_eq!(warnings.len(), 2, "{log}");
    for fact in
        ["agent=ops", "status=401", "attempt=1/2", "next=prompt fails", "error=HTTP 401: wrong key"]
    {
        assert!(warnings[0].contains(fact), "{fact}: {log}");
    }
    for fact in
        ["status=500", "attempt=1/2", "retry_in=", "next=retry", "error=HTTP 500: out of order"]
    {
        assert!(warnings[1].contains(fact), "{fact}: {log}");
    }
    let (call, prompt) =
        (log.find("model call failed").unwrap(), log.find("prompt failed").unwrap());
    assert!(call < prompt, "the cause comes first: {log}");
    assert!(!log.contains("a-secret-input"), "{log}");
}
