//! Tests of the skills of an agent.

use crate::resources::{ResourcePath, ResourcePaths, Resources};
use crate::tests::{builtin_tools, file_context};
use crate::{AgentDefinition, AgentFileContext, LoadedAgents, load_folder};
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;

use super::index::{AppLines, LISTED_SKILLS_MAX, is_match, render_index, render_skills};
use super::load_skill::read_reference;
use super::*;
use turnwheel_conversation::user_skills::UserSkillLines;
use turnwheel_extensions::prepare::ITEMS_BYTES_MAX;
use turnwheel_tools::code::ToolError;
use turnwheel_tools::workspace::builtins;

fn skill(name: &str, tools: &[&str]) -> Arc<Skill> {
    Arc::new(Skill {
        name: name.to_owned(),
        description: format!("About\n  {name}."),
        location: format!("skills/{name}/SKILL.md"),
        folder: None,
        files: vec![("SKILL.md".to_owned(), package_file())],
        tools: tools.iter().map(|&tool| tool.to_owned()).collect(),
        is_hidden: name.starts_with("hidden"),
        body: format!("Do {name}."),
    })
}

fn package_file() -> PackageFile {
    PackageFile { folder: "skills".into(), path: "a".into(), size: 1 }
}

fn load(front_matter: &str, skills: &[Arc<Skill>]) -> LoadedAgents {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("---\n{front_matter}\n---\nWork.");
    std::fs::write(folder.path().join("a.agent.md"), text).unwrap();
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let mut tools = builtin_tools();
    // `read` is the built-in one, `grep` is another tool of its name.
    let read = builtins().into_iter().find(|tool| tool.definition().name == "read").unwrap();
    tools.insert("read".to_owned(), read);
    let context = AgentFileContext { skills, ..file_context(&tools, &client) };
    load_folder(folder.path(), "agents", &context)
}

fn load_agent(front_matter: &str, skills: &[Arc<Skill>]) -> Arc<AgentDefinition> {
    let loaded = load(front_matter, skills);
    assert_eq!(loaded.mistakes, []);
    Arc::clone(&loaded.catalog.agents["a"])
}

fn tool_names(agent: &AgentDefinition) -> Vec<&str> {
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
    assert!(found.contains("the agent has 2001 skills: at most 2000 are allowed"), "{found}");
}

/// The index without skills of the user.
fn index(lines: &AppLines, form: SkillIndex) -> String {
    render_index(&lines.text, &UserSkillLines::default(), lines.unlisted, form)
}

#[test]
fn index_lists_each_skill_in_one_line() {
    let lines = AppLines::new(&[skill("a", &[]), skill("b", &[])], SkillIndex::List);
    let expected = "Available skills:\n- a: About a.\n- b: About b.\n\nUse load_skill(name) to access full instructions.";
    assert_eq!(index(&lines, SkillIndex::List), expected);
}

/// The output of `formatSkillsForPrompt` of Pi 0.52.9 for these skills, without the two line breaks
/// before it, which separate the parts of a system prompt.
#[test]
fn index_of_files_equals_that_of_pi() {
    let restart = Skill {
        description: "How to restart \"a\" <service> & it's peers.\nTwo lines.".to_owned(),
        ..(*skill("restart", &[])).clone()
    };
    let report = Skill { description: "Reports.".to_owned(), ..(*skill("report", &[])).clone() };
    let skills = [Arc::new(restart), skill("hidden-a", &[]), Arc::new(report)];
    let lines = AppLines::new(&skills, SkillIndex::Files);
    let expected = "The following skills provide specialized instructions for specific tasks.\nUse the read tool to load a skill's file when the task matches its description.\nWhen a skill file references a relative path, resolve it against the skill directory (parent of SKILL.md / dirname of the path) and use that absolute path in tool commands.\n\n<available_skills>\n  <skill>\n    <name>restart</name>\n    <description>How to restart &quot;a&quot; &lt;service&gt; &amp; it&apos;s peers.\nTwo lines.</description>\n    <location>/.turnwheel/skills/restart/SKILL.md</location>\n  </skill>\n  <skill>\n    <name>report</name>\n    <description>Reports.</description>\n    <location>/.turnwheel/skills/report/SKILL.md</location>\n  </skill>\n</available_skills>";
    assert_eq!(index(&lines, SkillIndex::Files), expected);
    let hidden = AppLines::new(&[skill("hidden-a", &[])], SkillIndex::Files);
    assert_eq!(index(&hidden, SkillIndex::Files), "");
}

#[test]
fn long_index_is_cut_and_names_the_search() {
    for form in [SkillIndex::List, SkillIndex::Files] {
        let number = |number| skill(&format!("s{number}"), &[]);
        let exact: Vec<_> = (0..LISTED_SKILLS_MAX).map(number).collect();
        let lines = AppLines::new(&exact, SkillIndex::List);
        assert_eq!(lines.unlisted, 0);
        let many: Vec<_> = (0..LISTED_SKILLS_MAX + 3).map(number).collect();
        let lines = AppLines::new(&many, form);
        let text = index(&lines, form);
        let sentence = format!(
            "\n{} more skills are not listed. Use find_skills(query) to find them.\n",
            lines.unlisted
        );
        assert!(lines.unlisted >= 3 && text.contains(&sentence), "{text}");
        // One that does not fit does not hide the shorter ones after it.
        let mut long = Skill { description: "d".repeat(ITEMS_BYTES_MAX), ..(*many[0]).clone() };
        long.name = "long".to_owned();
        let lines = AppLines::new(&[Arc::new(long), skill("b", &[])], form);
        let text = index(&lines, form);
        assert!(lines.unlisted == 1 && text.contains("About") && text.len() < ITEMS_BYTES_MAX);
    }
}

#[test]
fn search_is_offered_only_if_a_skill_may_be_unlisted() {
    let many: Vec<_> = (0..201).map(|number| skill(&format!("s{number}"), &[])).collect();
    assert_eq!(tool_names(&load_agent("skills: all", &many)), ["load_skill", "find_skills"]);
    assert_eq!(tool_names(&load_agent("skills: all", &many[..200])), ["load_skill"]);
    for (query, expected) in [("ABOUT restart", true), ("start", true), ("stop", false)] {
        assert_eq!(is_match(query, "restart", "About it."), expected, "{query}");
    }
    assert_eq!(render_skills(&[], SkillIndex::Files), "");
}

#[test]
fn files_form_of_the_index_needs_the_builtin_read() {
    let all = [skill("review", &[]), skill("hidden-a", &[])];
    let agent = load_agent("skills: all\nskillsIndex: files\ntools: [read]", &all);
    assert_eq!(agent.skill_index, SkillIndex::Files);
    assert_eq!(tool_names(&agent), ["load_skill"]);
    let same = load_agent("skills: all\nskillsIndex: list\ntools: [read]", &all);
    assert_eq!(same.skill_index, SkillIndex::List);
    let http =
        "skills: all\nskillsIndex: files\ntools: [{http: {name: read, url: 'https://a.example/'}}]";
    for (front_matter, expected) in [
        ("skills: all\nskillsIndex: files", "needs the built-in tool `read`"),
        (http, "needs the built-in tool `read`"),
        (
            "skillsIndex: files\ntools: [read]",
            "agents/a.agent.md:2: `skillsIndex` is for the skills of the app",
        ),
        ("skills: all\nskillsIndex: xml", "`xml` is not a value of `skillsIndex`"),
    ] {
        let found = load(front_matter, &all).mistakes;
        assert!(found[0].to_string().contains(expected), "{found:?}");
    }
    for name in ["a/b", "..", ".", ""] {
        let wrong = Skill { name: name.to_owned(), ..(*all[0]).clone() };
        let found = load("skills: all\nskillsIndex: files\ntools: [read]", &[Arc::new(wrong)]);
        assert!(found.mistakes[0].to_string().contains("no name for a folder"), "{name}");
    }
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
        ("userSkills: true", true, names(&["load_skill", "create_skill", "find_skills"])),
        ("userSkills: { create: false }", true, names(&["load_skill", "find_skills"])),
        ("userSkills: false", false, names(&[])),
        (
            "userSkills: true\ntools: [read]",
            true,
            names(&["load_skill", "create_skill", "find_skills", "read"]),
        ),
        (
            "skills: all\nuserSkills: true\ntools: [read]",
            true,
            names(&["load_skill", "create_skill", "find_skills", "grep", "read"]),
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
    let expand = |arguments: &str, form| skill("a", &[]).expand(arguments, form);
    assert_eq!(expand("", SkillIndex::List).unwrap(), expected);
    assert_eq!(expand("x y", SkillIndex::List).unwrap(), format!("{expected}\n\nx y"));
    assert_eq!(expand(&"x".repeat(256 * 1024), SkillIndex::List), Err(ExpansionTooLarge));
    let in_workspace = expected.replace("skills/a", "/.turnwheel/skills/a");
    assert_eq!(expand("", SkillIndex::Files).unwrap(), in_workspace);
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
        location: "skills".to_owned(),
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
