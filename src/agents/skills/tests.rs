//! Tests of the skills of an agent.

use crate::agents::resources::{ResourcePath, ResourcePaths, Resources};
use crate::agents::tests::{builtin_tools, file_context};
use crate::agents::{Agent, AgentFileContext, LoadedAgents, load_folder};
use crate::tools::http::address_rules::AddressRules;
use crate::tools::http::client::HttpClient;

use super::load_skill::read_reference;
use super::*;
use crate::tools::code::ToolError;

fn skill(name: &str, tools: &[&str]) -> Arc<Skill> {
    Arc::new(Skill {
        name: name.to_owned(),
        description: format!("About\n  {name}."),
        location: format!("skills/{name}/SKILL.md"),
        folder: None,
        tools: tools.iter().map(|&tool| tool.to_owned()).collect(),
        is_hidden: name.starts_with("hidden"),
        body: format!("Do {name}."),
    })
}

fn load(front_matter: &str, skills: &[Arc<Skill>]) -> LoadedAgents {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("---\n{front_matter}\n---\nWork.");
    std::fs::write(folder.path().join("a.agent.md"), text).unwrap();
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let tools = builtin_tools();
    let context = AgentFileContext { skills, ..file_context(&tools, &client) };
    load_folder(folder.path(), "agents", &context)
}

fn load_agent(front_matter: &str, skills: &[Arc<Skill>]) -> Arc<Agent> {
    let loaded = load(front_matter, skills);
    assert_eq!(loaded.mistakes, []);
    Arc::clone(&loaded.catalog.agents["a"])
}

fn tool_names(agent: &Agent) -> Vec<&str> {
    let tools = agent.plugins.iter().flat_map(|plugin| plugin.tools());
    tools.map(|tool| tool.definition().name.as_str()).collect()
}

#[test]
fn agent_selects_skills_by_name_or_all() {
    let all =
        [skill("review", &["grep", "unknown"]), skill("poem", &["grep"]), skill("hidden-a", &[])];
    let agent = load_agent("skills: [poem]", &all);
    assert_eq!(agent.skills, [Arc::clone(&all[1])]);
    assert_eq!(tool_names(&agent), ["load_skill", "grep"]);
    let agent = load_agent("skills: all", &all);
    assert_eq!(agent.skills, all);
    let without = load_agent("description: x", &all);
    assert!(without.skills.is_empty() && without.plugins.is_empty());
    assert!(load_agent("skills: all", &[]).plugins.is_empty());
}

#[test]
fn changed_skill_changes_the_revision_of_its_agents() {
    let revision = |skills: &[Arc<Skill>]| load_agent("skills: [a]", skills).revision.clone();
    let before = revision(&[skill("a", &[])]);
    assert_eq!(before, revision(&[skill("a", &[]), skill("b", &[])]));
    assert_ne!(before, revision(&[skill("a", &["grep"])]));
}

#[test]
fn wrong_skills_are_reported_with_their_line() {
    let all = [skill("review", &["write"])];
    let reason =
        |front_matter: &str, all: &[Arc<Skill>]| load(front_matter, all).mistakes[0].to_string();
    for (front_matter, expected) in [
        (
            "skills: [revew]",
            "agents/a.agent.md:2: there is no skill `revew`: did you mean `review`?",
        ),
        ("skills: review", "agents/a.agent.md:2: `skills` is `all` or a list of names of skills"),
        ("skills: [review, review]", "agents/a.agent.md:2: the skill `review` is listed twice"),
    ] {
        assert_eq!(reason(front_matter, &all), expected);
    }
    let many: Vec<_> = (0..=SKILLS_MAX).map(|number| skill(&format!("s{number}"), &[])).collect();
    let found = reason("skills: all", &many);
    assert!(found.contains("the agent has 201 skills"), "{found}");
    let long = Skill { description: "d".repeat(ITEMS_BYTES_MAX), ..(*all[0]).clone() };
    let found = reason("skills: all", &[Arc::new(long)]);
    assert!(found.contains("at most 200 skills and 32768 bytes are allowed"), "{found}");
}

#[test]
fn index_lists_each_skill_in_one_line() {
    let index = render_index(&render_lines(&[skill("a", &[]), skill("b", &[])]), "");
    let expected = "Available skills:\n- a: About a.\n- b: About b.\n\nUse load_skill(name) to access full instructions.";
    assert_eq!(index, expected);
}

#[test]
fn user_skills_are_a_key_of_their_own() {
    let tools = |front_matter: &str, skills: &[Arc<Skill>]| {
        let agent = load_agent(front_matter, skills);
        let names: Vec<String> = tool_names(&agent).into_iter().map(str::to_owned).collect();
        (agent.has_user_skills, names)
    };
    let all = [skill("review", &["grep"])];
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    for (front_matter, has_user_skills, expected) in [
        ("userSkills: true", true, names(&["load_skill", "create_skill"])),
        ("userSkills: { create: false }", true, names(&["load_skill"])),
        ("userSkills: false", false, names(&[])),
        ("userSkills: true\ntools: [read]", true, names(&["load_skill", "create_skill", "read"])),
        (
            "skills: all\nuserSkills: true\ntools: [read]",
            true,
            names(&["load_skill", "create_skill", "grep", "read"]),
        ),
    ] {
        assert_eq!(tools(front_matter, &all), (has_user_skills, expected), "{front_matter}");
    }
    for (front_matter, expected) in [
        ("userSkills: maybe", "`userSkills` is true, or a map of create and approvers"),
        ("userSkills: { creat: true }", "unknown key `creat` of `userSkills`"),
        ("userSkills: { approvers: [boss] }", "agents/a.agent.md:2"),
    ] {
        let found = load(front_matter, &[]).mistakes;
        assert!(found[0].to_string().contains(expected), "{found:?}");
    }
}

#[test]
fn expanded_skill_has_the_form_of_the_source() {
    let expected = "<skill name=\"a\" location=\"skills/a/SKILL.md\">\nReferences are relative to skills/a.\n\nDo a.\n</skill>";
    assert_eq!(skill("a", &[]).expand("").unwrap(), expected);
    assert_eq!(skill("a", &[]).expand("x y").unwrap(), format!("{expected}\n\nx y"));
    assert_eq!(skill("a", &[]).expand(&"x".repeat(256 * 1024)), Err(ExpansionTooLarge));
}

#[tokio::test]
async fn other_files_of_a_skill_can_be_loaded() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("skills/a");
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("SKILL.md"), "---\ndescription: d\n---\nSee refs/x.md.").unwrap();
    std::fs::write(folder.join("refs/x.md"), "X").unwrap();
    std::fs::write(root.path().join("secret"), "hush").unwrap();
    let path = ResourcePath {
        path: root.path().join("skills"),
        display: "skills".to_owned(),
        is_required: false,
    };
    let paths = ResourcePaths { skills: vec![path], ..ResourcePaths::default() };
    let Resources { skills, .. } = Resources::load(&paths, &Resources::default());
    let load = |file: &str| read_reference(&skills[0], file.to_owned());
    assert_eq!(load("refs/x.md").await, Ok("X".to_owned()));
    for file in ["../../secret", "/etc/hostname", "refs/../../../secret"] {
        let error = load(file).await.unwrap_err();
        let expected = "A file of a skill has a relative path without `..`.";
        assert_eq!(error, ToolError::failed(expected), "{file}");
    }
    let ToolError::Failed(missing) = load("refs/y.md").await.unwrap_err() else { panic!() };
    assert!(missing.starts_with("The file cannot be loaded: "), "{missing}");
    let alone = read_reference(&skill("b", &[]), "x".to_owned()).await.unwrap_err();
    assert_eq!(alone, ToolError::failed("The skill `b` has no other files."));
}
