//! The example of the prompt loop source: plugins for skills, triggers and blueprints rebuild the
//! tools and the system prompt before every model call.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use turnwheel::extensions::{Plugin, PluginError, PluginTools, Prepare};
use turnwheel::messages::{Content, Message};
use turnwheel::{App, Effect, Tool, ToolContext, ToolError, ToolResult};

use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;
use crate::support::service::Service;

/// A tool that returns its name.
struct NamedTool(&'static str);

#[derive(Deserialize, JsonSchema)]
struct Subject {
    /// For example the name of a skill.
    subject: String,
}

impl Tool for NamedTool {
    type Args = Subject;

    fn name(&self) -> &str {
        self.0
    }

    fn description(&self) -> &'static str {
        "Does what its name says."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Subject, _cx: ToolContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(format!("{} {}", self.0, args.subject)))
    }
}

/// Offers the email tools once the model has opened the skill.
#[derive(Debug)]
struct Skills;

#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
struct SkillState {
    active: Vec<String>,
}

impl Plugin for Skills {
    type State = SkillState;

    fn name(&self) -> &'static str {
        "skills"
    }

    fn tools(&self, tools: &mut PluginTools) {
        tools.tool(NamedTool("open_skill"));
        tools.tool(NamedTool("email_send")).tool(NamedTool("email_read"));
    }

    async fn prepare(&self, cx: &mut Prepare<'_, SkillState>) -> Result<(), PluginError> {
        cx.activate("open_skill")?;
        let mut state = cx.state().cloned().unwrap_or_default();
        let is_open = |message: &&Message| matches!(message, Message::ToolResult(result) if result.tool_name == "open_skill");
        if state.active.is_empty() && cx.prompt().messages.iter().any(is_open) {
            state.active.push("email".to_owned());
            cx.set_state(state.clone())?;
        }
        if state.active.contains(&"email".to_owned()) {
            cx.activate("email_send")?;
            cx.activate("email_read")?;
            cx.context("Email skill is active");
        }
        Ok(())
    }
}

/// Offers its tools in every round.
#[derive(Debug)]
struct Triggers;

impl Plugin for Triggers {
    type State = ();

    fn name(&self) -> &'static str {
        "triggers"
    }

    fn tools(&self, tools: &mut PluginTools) {
        tools.tool(NamedTool("trigger_create")).tool(NamedTool("trigger_list"));
    }

    async fn prepare(&self, cx: &mut Prepare<'_, ()>) -> Result<(), PluginError> {
        cx.activate("trigger_create")?;
        cx.activate("trigger_list")
    }
}

/// Searches once for each prompt, and reads the state of the skills.
#[derive(Debug)]
struct Blueprints;

#[derive(Serialize, Deserialize, JsonSchema)]
struct BlueprintState {
    prompt: String,
    found: String,
    searches: u32,
}

impl Plugin for Blueprints {
    type State = BlueprintState;

    fn name(&self) -> &'static str {
        "blueprints"
    }

    async fn prepare(&self, cx: &mut Prepare<'_, BlueprintState>) -> Result<(), PluginError> {
        let prompt = cx.prompt().id.to_string();
        let searches = cx.state().map_or(0, |state| state.searches);
        if cx.state().is_none_or(|state| state.prompt != prompt) {
            let input = cx.prompt().messages.iter().find_map(|message| {
                let Message::User(user) = message else { return None };
                Some(user.content.clone())
            });
            let Some(Content::Text(found)) = input else {
                return Err(PluginError::new("the prompt has no text"));
            };
            cx.set_state(BlueprintState { prompt, found, searches: searches + 1 })?;
        }
        let active = cx.state_of(&Skills)?.unwrap_or_default().active.len();
        let found = cx.state().map(|state| state.found.clone()).unwrap_or_default();
        cx.context(format!("Relevant blueprints: {found} ({active} skills)"));
        Ok(())
    }
}

fn tool_names(body: &Value) -> Vec<&str> {
    let tools = body["tools"].as_array().unwrap().iter();
    tools.map(|tool| tool["name"].as_str().unwrap()).collect()
}

fn app() -> App {
    App::new().plugin(Triggers).plugin(Blueprints).plugin(Skills)
}

#[tokio::test]
async fn s2_skills_triggers_and_blueprint() {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    let file = "---\nplugins: [skills, triggers, blueprints]\n---\nHelp.\n";
    std::fs::write(agents.join("helper.agent.md"), file).unwrap();
    let subject = json!({"subject": "email"});
    let model = FakeModel::start(
        [
            ResponseScript::call("c1", "open_skill", subject.clone()),
            ResponseScript::call("c2", "email_send", subject),
            ResponseScript::text("sent"),
            ResponseScript::text("again"),
        ]
        .map(ScriptedResponse::Response),
    )
    .await;
    let settings = [
        ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
        ("AZURE_OPENAI_API_KEY", "a-key"),
        ("TURNWHEEL_MODEL", "gpt-5-mini"),
    ];
    let service = Service::start(app(), folder.path(), &settings).await;
    let (status, accepted) = service.post("/api/prompts", &json!({"input": "Write to Ada"})).await;
    assert_eq!(status, 202, "{accepted}");
    let id = accepted["conversationId"].as_str().unwrap().to_owned();
    let prompt = service.wait_for_prompt(&id, accepted["promptId"].as_str().unwrap()).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    let path = format!("/api/conversations/{id}");
    let (_, accepted) =
        service.post(&format!("{path}/prompts"), &json!({"input": "And to Bob"})).await;
    service.wait_for_prompt(&id, accepted["promptId"].as_str().unwrap()).await;

    let bodies = model.request_bodies();
    assert_eq!(tool_names(&bodies[0]), ["open_skill", "trigger_create", "trigger_list"]);
    let all = ["open_skill", "email_send", "email_read", "trigger_create", "trigger_list"];
    for body in &bodies[1..] {
        assert_eq!(tool_names(body), all, "{body}");
    }
    let system = |body: &Value| body["input"][0].to_string();
    let texts = [
        r"Help.\n\nRelevant blueprints: Write to Ada (0 skills)",
        r"Help.\n\nEmail skill is active\n\nRelevant blueprints: Write to Ada (1 skills)",
        r"Help.\n\nEmail skill is active\n\nRelevant blueprints: Write to Ada (1 skills)",
        r"Help.\n\nEmail skill is active\n\nRelevant blueprints: And to Bob (1 skills)",
    ];
    for (body, text) in bodies.iter().zip(texts) {
        assert!(system(body).contains(text), "{}", system(body));
    }
    let plugins = service.get(&format!("{path}/plugins")).await;
    let states: Vec<&Value> = plugins["items"].as_array().unwrap().iter().collect();
    assert_eq!(states[0]["state"]["searches"], 2);
    assert_eq!(states[1], &json!({"name": "skills", "schema": 1, "state": {"active": ["email"]}}));
    assert_eq!(states.len(), 2, "triggers has no state");
    let other = service.client.get(format!("{}{path}/plugins", service.base));
    let other = other.header("turnwheel-user", "eve").send_validated().await.unwrap();
    assert_eq!(other.status(), 404);
    let entries = service.get(&format!("{path}/entries?limit=100")).await;
    let count = |kind: &str| {
        entries["items"].as_array().unwrap().iter().filter(|entry| entry["type"] == kind).count()
    };
    assert_eq!(count("frame"), 3, "the third round has the frame of the second");
    service.stop().await;
}

#[tokio::test]
async fn agent_file_names_known_plugins_once() {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    let file = "---\nplugins: [skill, triggers, triggers, 7]\n---\nHelp.\n";
    std::fs::write(agents.join("helper.agent.md"), file).unwrap();
    let service = Service::start(app(), folder.path(), &[]).await;
    let listed = service.get("/api/agents").await;
    let problem = listed["items"][0]["problem"].as_str().unwrap();
    for mistake in [
        "helper.agent.md:2: there is no plugin `skill`",
        "helper.agent.md:2: the plugin `triggers` is listed twice",
        "helper.agent.md:2: a plugin is the name of a plugin of the app, or a map that begins with `http:`",
    ] {
        assert!(problem.contains(mistake), "{problem}");
    }
    service.stop().await;
}

#[tokio::test]
async fn plugins_of_one_name_refuse_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::new().plugin(Skills).plugin(Skills);
    let error = Service::try_start(app, folder.path(), &[]).await.unwrap_err();
    assert!(error.to_string().contains("two plugins are called `skills`"), "{error}");
}
