//! Tests of the parts of an embedded agent's system prompt, and of its skills.

use super::*;
use turnwheel_tools::code::DynTool;

/// A folder with the skill `restart`, which offers the tool `echo`.
fn skill_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let skill = folder.path().join("restart");
    std::fs::create_dir(&skill).unwrap();
    let text = "---\ndescription: How to restart.\ntools: [echo]\n---\nWait.\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();
    folder
}

/// The system prompt with a fixed date.
fn undated(system: &str) -> String {
    let (before, rest) = system.split_once("Current date: ").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    format!("{before}Current date: DAY\n{rest}")
}

#[tokio::test]
async fn system_prompt_has_the_parts_of_agent_files() {
    let folder = skill_folder();
    let load = json!([tool_call("load_skill", &json!({"name": "restart"}))]);
    let model = TestModel::new(&[load, json!("1"), json!("2"), json!("3")]);
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .tool(Echo::default())
        .system_prompt("Be brief.")
        .append_system_prompt("Never guess.\n")
        .append_system_prompt("Cite.")
        .context_file("company.md", "We sell boats.\n")
        .date("Europe/Berlin")
        .skills(folder.path())
        .start()
        .await
        .unwrap();
    with_timeout(agent.prompt("go")).await.unwrap();
    insta::assert_snapshot!(undated(&lock(&model.systems)[0]), @r"
    Be brief.

    Never guess.

    Cite.

    # Project Context

    Project-specific instructions and guidelines:

    ## company.md

    We sell boats.

    Available skills:
    - restart: How to restart.

    Use load_skill(name) to access full instructions.

    Current date: DAY
    Current working directory: /
    ");
    assert!(model.requests()[1].contains(&"toolResult:Wait.".to_owned()));
    agent.set_system_prompt("Be long.");
    with_timeout(agent.prompt("/skill:restart now")).await.unwrap();
    let system = lock(&model.systems)[2].clone();
    assert!(system.starts_with("Be long.\n\nNever guess.") && system.contains("- restart: "));
    let sent = model.requests()[2].last().unwrap().clone();
    assert!(sent.starts_with("user:<skill name=\"restart\" location="), "{sent}");
    assert!(sent.ends_with("\n\nWait.\n</skill>\n\nnow"), "{sent}");
}

#[tokio::test]
async fn default_system_prompt_lists_the_tools() {
    let model = TestModel::new(&[json!("1"), json!("2")]);
    let agent = Agent::builder()
        .models(Arc::clone(&model) as Arc<dyn Model>)
        .tool(Echo::default())
        .default_system_prompt()
        .append_system_prompt("Cite.")
        .start()
        .await
        .unwrap();
    with_timeout(agent.prompt("go")).await.unwrap();
    let system = lock(&model.systems)[0].clone();
    assert!(system.starts_with("You are a helpful assistant."), "{system}");
    assert!(system.contains("\n- echo: ") && system.ends_with("\n\nCite."), "{system}");
    agent.set_system_prompt("Be brief.");
    with_timeout(agent.prompt("go")).await.unwrap();
    assert_eq!(lock(&model.systems)[1], "Be brief.\n\nCite.");
}

/// A tool with the name of a tool of skills.
struct LoadSkill;

#[derive(Deserialize, JsonSchema)]
struct LoadSkillArgs {}

impl Tool for LoadSkill {
    type Args = LoadSkillArgs;

    fn name(&self) -> &'static str {
        "load_skill"
    }

    fn description(&self) -> &'static str {
        "Loads another kind of skill."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, _args: LoadSkillArgs, _cx: CallContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(""))
    }
}

#[tokio::test]
async fn wrong_parts_are_mistakes_of_the_builder() {
    let model = TestModel::new(&[]);
    let builder = || Agent::builder().models(Arc::clone(&model) as Arc<dyn Model>);
    let folder = skill_folder();
    std::fs::write(folder.path().join("no.skill.md"), "no front matter").unwrap();
    for (builder, expected) in [
        (builder().date("Europe/Nowhere"), "Europe/Nowhere"),
        (builder().skills("/no/such/folder"), "/no/such/folder"),
        (builder().skills(folder.path()), "the skill has no `description`"),
        (builder().context_file("a.md", "x".repeat(300 * 1024)), "at most 262144 are allowed"),
    ] {
        let error = builder.start().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    std::fs::remove_file(folder.path().join("no.skill.md")).unwrap();
    let error = builder().skills(folder.path()).tool(LoadSkill).start().await.unwrap_err();
    assert!(error.to_string().contains("load_skill"), "{error}");
    let agent = builder().skills(folder.path()).start().await.unwrap();
    let error = agent.set_tools(vec![DynTool::new(LoadSkill).unwrap()]).unwrap_err();
    assert!(error.to_string().contains("load_skill"), "{error}");
    assert!(agent.add_tool(LoadSkill).is_err());
    agent.add_tool(Echo::default()).unwrap();
    assert_eq!(agent.state().tools, ["echo"]);
}
