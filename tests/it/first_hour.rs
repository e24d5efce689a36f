//! First steps with `turnwheel dev`: a real model, a changed agent file, and a failed model call.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::fake_model::{FakeModel, Play, Script};
use crate::support::process::Dev;

const PATIENCE: Duration = Duration::from_secs(30);

fn write_agent(folder: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(folder.join("agents")).unwrap();
    std::fs::write(folder.join("agents").join(name), text).unwrap();
}

/// Starts `dev` without the setting that selects the fake model.
fn start(folder: &Path, settings: &[(&str, String)]) -> Result<Dev, String> {
    let mut all = vec![("TURNWHEEL_MODEL", String::new())];
    all.extend_from_slice(settings);
    Dev::try_start_with(folder, &folder.join("data"), &[], &all)
}

async fn get(dev: &Dev, path: &str) -> Value {
    reqwest::get(dev.url(path)).await.unwrap().json().await.unwrap()
}

async fn prompt(dev: &Dev, body: Value) -> Value {
    let request = reqwest::Client::new().post(dev.url("/api/prompts?wait=20")).json(&body);
    request.send().await.unwrap().json().await.unwrap()
}

/// Polls until the response satisfies the condition.
async fn until(dev: &Dev, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = get(dev, path).await;
        if is_so(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{found}\n{}", dev.log());
        tokio::task::yield_now().await;
    }
}

/// The settings that the README's block `sh model` exports.
fn readme_settings() -> Vec<(&'static str, String)> {
    let readme = include_str!("../../README.md");
    let (_, block) = readme.split_once("```sh model\n").expect("the README has the block");
    let (block, _) = block.split_once("```").unwrap();
    let lines: Vec<&str> = block.lines().collect();
    assert_eq!(lines.len(), 3, "three lines: {block}");
    let setting = |line: &&'static str| {
        let (name, value) = line.strip_prefix("export ").unwrap().split_once('=').unwrap();
        (name, value.split_whitespace().next().unwrap().to_owned())
    };
    lines.iter().map(setting).collect()
}

#[tokio::test]
async fn readme_settings_make_a_real_model_respond() {
    let folder = tempfile::tempdir().unwrap();
    write_agent(folder.path(), "ops.agent.md", "You are the on-call assistant.");
    let model = FakeModel::start(vec![Play::Answer(Script::text("Hello."))]).await;
    let mut settings = readme_settings();
    let endpoint = settings.iter_mut().find(|(name, _)| *name == "AZURE_OPENAI_ENDPOINT").unwrap();
    endpoint.1.clone_from(&model.url);
    let dev = start(folder.path(), &settings).unwrap();
    let responded = prompt(&dev, json!({"agent": "ops", "input": "Hi"})).await;
    assert_eq!(responded["state"], "completed", "{responded}\n{}", dev.log());
    let wanted = &settings.iter().find(|(name, _)| *name == "TURNWHEEL_MODEL").unwrap().1;
    assert_eq!(model.requests()[0]["model"], json!(wanted));
    let banner = dev.log();
    assert!(banner.contains(&format!("model:  {wanted} at {}", model.url)), "{banner}");
    assert!(banner.contains(r#"{"agent":"ops","input":"What can you do?"}"#), "{banner}");
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
async fn changed_agent_file_is_used_by_the_next_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let dev = start(folder.path(), &[]).unwrap();
    write_agent(folder.path(), "ops.agent.md", "---\ntools: [ls]\n---\nBe kind.");
    let ops = |agents: &Value| agents["items"][0].clone();
    let added = ops(&until(&dev, "/api/agents", |agents| ops(agents)["available"] == true).await);
    let responded =
        prompt(&dev, json!({"agent": "ops", "input": "use ls with {} then say done"})).await;
    assert_eq!(responded["state"], "completed", "{responded}");
    write_agent(folder.path(), "ops.agent.md", "---\ntools: [lss]\n---\nBe kind.");
    let broken = ops(&until(&dev, "/api/agents", |agents| !ops(agents)["problem"].is_null()).await);
    assert_eq!(broken["revision"], added["revision"], "{broken}");
    assert_eq!(broken["available"], true);
    let problem = "agents/ops.agent.md:2: there is no tool `lss`";
    assert!(broken["problem"].as_str().unwrap().starts_with(problem), "{broken}");
    let log = dev.log();
    assert!(log.contains("agents: none in agents"), "{log}");
    assert!(log.contains("agent file not reloaded; the previous revision stays in force"), "{log}");
    assert!(log.contains(&format!("error={problem}")), "{log}");
    write_agent(folder.path(), "ops.agent.md", "---\ntools: [find]\n---\nBe kind.");
    until(&dev, "/api/agents", |agents| ops(agents)["tools"] == json!(["find"])).await;
    let refused =
        prompt(&dev, json!({"agent": "ops", "input": "use ls with {} then say done"})).await;
    assert!(refused["output"].to_string().contains("not found"), "{refused}");
}

#[tokio::test]
async fn failed_model_call_is_a_warning_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let agent = "---\nretry: { maxRetries: 1, baseDelayMs: 50000 }\n---\nBe kind.";
    write_agent(folder.path(), "ops.agent.md", agent);
    let fails = |status: u16, message: &str| Play::Http {
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
    let dev = start(folder.path(), &settings).unwrap();
    let failed = prompt(&dev, json!({"conversationId": "c1", "input": "a-secret-input"})).await;
    assert_eq!(failed["state"], "failed", "{failed}");
    let why = get(&dev, "/api/conversations/c1/why").await;
    let sentence = why["why"].as_str().unwrap();
    assert!(sentence.starts_with("No work is pending: the last prompt failed at"), "{sentence}");
    assert!(sentence.contains("HTTP 401: wrong key"), "{sentence}");

    let request = reqwest::Client::new().post(dev.url("/api/prompts"));
    let body = json!({"conversationId": "c2", "input": "a-secret-input"});
    assert_eq!(request.json(&body).send().await.unwrap().status(), 202);
    let why = until(&dev, "/api/conversations/c2/why", |why| why["waitsFor"] == "retry").await;
    let sentence = why["why"].as_str().unwrap();
    assert!(sentence.starts_with("The model call failed at"), "{sentence}");
    assert!(sentence.contains(": HTTP 500: out of order; attempt 2 is due at"), "{sentence}");
    let prompts = get(&dev, "/api/conversations/c2/prompts").await;
    let retry = &prompts["items"][0]["retry"];
    assert_eq!(retry["error"], "HTTP 500: out of order", "{prompts}");

    let log = dev.log();
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
