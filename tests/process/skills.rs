//! Skills, prompt templates, context files, titles and paths of extensions, through the built binary with the fake model.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;

const TIMEOUT: Duration = Duration::from_mins(2);

const FILES: &[(&str, &str)] = &[
    (
        "agents/desk.agent.md",
        "---\ndescription: Desk.\ntools: [ls, write]\nactiveTools: [ls]\nskills: all\n---\nWork.",
    ),
    ("agents/plain.agent.md", "Work."),
    ("agents/boats.agent.md", "---\ntitle: auto\nsystemPrompt: { contextFiles: all }\n---\nSell."),
    ("context/company.md", "We sell boats."),
    (
        "prompts/greet.md",
        "---\ndescription: Greets.\nargument-hint: <name>\n---\nsay Hello $1 of ${@:2}",
    ),
    (
        "skills/files/SKILL.md",
        "---\nname: files\ndescription: Writes files.\ntools: [write]\n---\nWrite a.txt as in form.md.",
    ),
    ("skills/files/form.md", "The form."),
];

struct TestApp {
    dev: DevProcess,
    client: reqwest::Client,
    folder: tempfile::TempDir,
}

impl TestApp {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in FILES {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let dev = DevProcess::start_in(folder.path(), &folder.path().join("data"), &[]);
        Self { dev, client: reqwest::Client::new(), folder }
    }

    async fn get(&self, path: &str) -> Value {
        let request = self.client.get(self.dev.url(path)).timeout(TIMEOUT);
        openapi_check::send(request).await.unwrap().json()
    }

    /// Runs a prompt in a new conversation, by default `c`.
    async fn prompt(&self, mut body: Value) -> Value {
        body["conversationId"] = body.get("conversationId").cloned().unwrap_or(json!("c"));
        self.post("/api/prompts?wait=60", &body).await
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.client.post(self.dev.url(path)).json(body).timeout(TIMEOUT);
        let response = openapi_check::send(request).await.unwrap();
        assert!(response.status.is_success(), "{response:?}\n{}", self.dev.log());
        response.json()
    }

    /// Texts of the messages of a role in a conversation.
    async fn texts(&self, conversation: &str, role: &str) -> Vec<String> {
        let messages =
            self.get(&format!("/api/conversations/{conversation}/messages?limit=100")).await;
        let messages = messages["items"].as_array().unwrap().iter();
        let text = |message: &Value| {
            let content = &message["content"];
            content.as_str().or(content[0]["text"].as_str()).unwrap_or_default().to_owned()
        };
        messages.filter(|message| message["role"] == role).map(text).collect()
    }
}

#[tokio::test]
async fn template_expands_and_the_prompt_keeps_the_original() {
    let app = TestApp::start();
    let input = "/greet Ada \"the office\" here";
    let prompt = app.prompt(json!({"agent": "plain", "input": input})).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    assert_eq!(app.texts("c", "user").await, ["say Hello Ada of the office here"]);
    assert_eq!(app.texts("c", "assistant").await, ["Hello Ada of the office here"]);
    let path = format!("/api/conversations/c/prompts/{}", prompt["promptId"].as_str().unwrap());
    assert_eq!(app.get(&path).await["original"], input);
    // A name that is unknown, and a text that is not to be expanded, reach the model.
    let as_text =
        json!({"agent": "plain", "input": "/greet Ada", "expand": false, "conversationId": "d"});
    app.prompt(as_text).await;
    assert_eq!(app.texts("d", "user").await, ["/greet Ada"]);
    app.prompt(json!({"agent": "plain", "input": "/gret Ada", "conversationId": "e"})).await;
    assert_eq!(app.texts("e", "user").await, ["/gret Ada"]);
}

#[tokio::test]
async fn first_completed_prompt_names_the_conversation() {
    let app = TestApp::start();
    let prompt = app.prompt(json!({"agent": "boats", "input": "say Hello to Ada"})).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    let named = async {
        loop {
            let name = app.get("/api/conversations/c").await["name"].clone();
            if name.is_string() {
                break name;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let name = tokio::time::timeout(TIMEOUT, named).await;
    let name = name.unwrap_or_else(|_| panic!("{}", app.dev.log()));
    assert_eq!(name, "say Hello to Ada");
}

#[tokio::test]
async fn changed_context_file_changes_its_agents() {
    let app = TestApp::start();
    let revision = async || {
        let agents = app.get("/api/agents").await;
        let mut agents = agents["items"].as_array().unwrap().iter();
        agents.find(|agent| agent["name"] == "boats").unwrap()["revision"].clone()
    };
    let before = revision().await;
    std::fs::write(app.folder.path().join("context/company.md"), "We sell ships.").unwrap();
    let changed = async {
        while revision().await == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, changed).await.unwrap_or_else(|_| panic!("{}", app.dev.log()));
}

#[tokio::test]
async fn loaded_skill_offers_its_tools_from_the_next_response() {
    let app = TestApp::start();
    let write = r#"use write with {"path": "a.txt", "content": "x"}"#;
    let input = format!(
        "{write} then use load_skill with {{\"name\": \"files\"}} then {write} then use load_skill with {{\"name\": \"files\", \"file\": \"form.md\"}} then use load_skill with {{\"name\": \"no\"}} then say done"
    );
    app.prompt(json!({"agent": "desk", "input": input})).await;
    let results = app.texts("c", "toolResult").await;
    assert_eq!(results.len(), 5, "{results:#?}");
    assert!(results[0].contains("write") && results[0].contains("not found"), "{}", results[0]);
    assert_eq!(results[1], "Write a.txt as in form.md.");
    assert!(results[2].contains("a.txt"), "{}", results[2]);
    assert_eq!(results[3..], ["The form.", "Error in tool \"load_skill\": Skill not found"]);
    // The tools stay in later prompts of the conversation, and no other one has them.
    let again = json!({"input": format!("{write} then say done")});
    app.post("/api/conversations/c/prompts?wait=60", &again).await;
    assert!(app.texts("c", "toolResult").await[5].contains("a.txt"));
    let other =
        json!({"agent": "desk", "input": format!("{write} then say done"), "conversationId": "d"});
    app.prompt(other).await;
    assert!(app.texts("d", "toolResult").await[0].contains("not found"));
}

#[tokio::test]
async fn user_loads_a_skill_with_its_tools() {
    let app = TestApp::start();
    let input =
        r#"/skill:files then use write with {"path": "a.txt", "content": "x"} then say done"#;
    app.prompt(json!({"agent": "desk", "input": input})).await;
    let text = &app.texts("c", "user").await[0];
    let expected = "<skill name=\"files\" location=\"skills/files/SKILL.md\">\nReferences are relative to skills/files.\n\nWrite a.txt as in form.md.\n</skill>\n\nthen use write";
    assert!(text.starts_with(expected), "{text}");
    assert!(app.texts("c", "toolResult").await[0].contains("a.txt"));
    // An agent without the skill receives the text.
    app.prompt(json!({"agent": "plain", "input": "/skill:files", "conversationId": "d"})).await;
    assert_eq!(app.texts("d", "user").await, ["/skill:files"]);
}

#[tokio::test]
async fn commands_list_templates_and_skills_and_changed_files_take_effect() {
    let app = TestApp::start();
    let commands = app.get("/api/commands?agent=desk").await;
    let greet = json!({
        "name": "greet", "description": "Greets.", "kind": "template",
        "location": "prompts/greet.md", "argumentHint": "<name>",
    });
    let files = json!({
        "name": "skill:files", "description": "Writes files.", "kind": "skill",
        "location": "skills/files/SKILL.md",
    });
    assert_eq!(commands["items"], json!([greet, files]));
    std::fs::write(app.folder.path().join("prompts/bye.md"), "say Bye").unwrap();
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        let commands = app.get("/api/commands?agent=plain").await;
        if commands["items"][0]["name"] == "bye" {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{commands}\n{}", app.dev.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
