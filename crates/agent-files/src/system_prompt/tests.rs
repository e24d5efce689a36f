//! Tests of the key `systemPrompt`.

use super::*;
use crate::tests::{builtin_tools, file_context};
use crate::{AgentDefinition, LoadedAgents, load_texts};
use turnwheel_conversation::request::Effect;
use turnwheel_tools::code::{CallContext, DynTool, Tool, ToolError};
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;
use turnwheel_tools::{ToolResult, workspace};

fn files() -> [Arc<ContextFile>; 2] {
    [("company.md", "We sell boats."), ("style.md", "Be brief.")].map(|(name, text)| {
        let location = format!("context/{name}");
        Arc::new(ContextFile { location, text: text.to_owned() })
    })
}

fn load(text: &str) -> LoadedAgents {
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let (tools, files) = (builtin_tools(), files());
    let context = AgentFileContext { context_files: &files, ..file_context(&tools, &client) };
    load_texts(&[("a".to_owned(), text.to_owned())].into(), "agents", &context)
}

fn load_agent(text: &str) -> Arc<AgentDefinition> {
    let loaded = load(text);
    assert_eq!(loaded.mistakes, []);
    Arc::clone(&loaded.catalog.agents["a"])
}

fn plugin_names(agent: &AgentDefinition) -> Vec<&str> {
    agent.plugins.iter().map(|plugin| plugin.name()).collect()
}

#[test]
fn agent_without_the_key_keeps_its_bytes() {
    let agent = load_agent("---\ntools: [read, edit]\n---\nBe good.");
    assert_eq!(&*agent.instructions, "Be good.");
    assert!(!agent.has_default_prompt && agent.plugins.is_empty());
}

#[test]
fn parts_follow_the_instructions() {
    let agent = load_agent(
        "---\nsystemPrompt: { append: Never guess., contextFiles: [style.md, company.md] }\n---\nBe good.\n",
    );
    insta::assert_snapshot!(agent.instructions, @r"
    Be good.

    Never guess.

    # Project Context

    Project-specific instructions and guidelines:

    ## context/style.md

    Be brief.

    ## context/company.md

    We sell boats.
    ");
    assert!(!agent.has_default_prompt);
    assert_eq!(plugin_names(&agent), [PLUGIN_NAME]);
    assert_eq!(agent.context_files.len(), 2);
    let without_date = load_agent("---\nsystemPrompt: { date: false }\n---\nBe good.");
    assert_eq!((&*without_date.instructions, plugin_names(&without_date)), ("Be good.", vec![]));
}

#[test]
fn changed_context_file_changes_the_revision() {
    let all = load_agent("---\nsystemPrompt: { contextFiles: all }\n---\nBe good.");
    let mut other = files();
    Arc::make_mut(&mut other[1]).text.push('!');
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let tools = builtin_tools();
    let context = AgentFileContext { context_files: &other, ..file_context(&tools, &client) };
    let text = "---\nsystemPrompt: { contextFiles: all }\n---\nBe good.".to_owned();
    let changed = load_texts(&[("a".to_owned(), text)].into(), "agents", &context);
    assert_ne!(all.revision, changed.catalog.agents["a"].revision);
}

/// A tool of the app with the name of Pi's shell.
struct Bash;

#[derive(schemars::JsonSchema, serde::Deserialize)]
struct BashArgs {}

impl Tool for Bash {
    type Args = BashArgs;

    fn name(&self) -> &'static str {
        "bash"
    }

    fn description(&self) -> &'static str {
        "Runs a command. It has a time limit."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    async fn call(&self, _args: Self::Args, _cx: CallContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(""))
    }
}

fn default_with(names: &[&str]) -> String {
    let find = |&name: &&str| {
        if name == "bash" {
            DynTool::new(Bash).unwrap().0
        } else {
            workspace::find_builtin(name).unwrap()
        }
    };
    let tools: Vec<_> = names.iter().map(find).collect();
    default_prompt(&tools, "")
}

#[test]
fn default_prompt_lists_tools_and_guidelines_of_the_active_ones() {
    insta::assert_snapshot!(default_with(&["read", "bash", "edit"]), @r"
    You are a helpful assistant. You answer questions and do tasks with your tools.

    Available tools:
    - read: Read the contents of a file
    - bash: Runs a command
    - edit: Edit a file by replacing exact text

    In addition to the tools above, you may have access to other tools.

    Guidelines:
    - Use bash for file operations
    - Use read to examine files before editing
    ");
    insta::assert_snapshot!(default_with(&[]), @r"
    You are a helpful assistant. You answer questions and do tasks with your tools.

    Available tools:
    (none)

    In addition to the tools above, you may have access to other tools.
    ");
    for (tools, expected) in [
        (&["bash"] as &[_], &["Use bash for file operations"] as &[_]),
        (&["bash", "grep"], &["Prefer grep/find/ls tools over bash"]),
        (&["bash", "find"], &["Prefer grep/find/ls tools over bash"]),
        (&["bash", "ls"], &["Prefer grep/find/ls tools over bash"]),
        (&["read", "edit"], &["Use read to examine files before editing"]),
        (&["read"], &[]),
        (&["edit", "grep"], &[]),
    ] {
        let prompt = default_with(tools);
        let guidelines = prompt.split_once("Guidelines:\n").map_or("", |(_, lines)| lines);
        let lines: Vec<_> = guidelines.lines().filter_map(|line| line.strip_prefix("- ")).collect();
        assert_eq!(lines, expected, "{tools:?}");
    }
}

#[test]
fn agent_without_instructions_has_the_default_prompt() {
    let agent = load_agent("---\ntools: [read]\nsystemPrompt: { append: Be kind. }\n---\n");
    assert!(agent.has_default_prompt);
    assert_eq!(&*agent.instructions, "Be kind.");
    assert!(default_prompt(&agent.tools, &agent.instructions).ends_with("\n\nBe kind."));
}

#[test]
fn wrong_parts_are_reported_with_their_line() {
    for (front_matter, expected) in [
        (
            "systemPrompt: on",
            "agents/a.agent.md:2: `systemPrompt` is `assembled`, or a map of its parts",
        ),
        (
            "systemPrompt:\n  contextFiles: [companny.md]",
            "agents/a.agent.md:3: the folder `context` has no file `companny.md`: did you mean `company.md`?",
        ),
        (
            "systemPrompt:\n  contextFiles: [style.md, style.md]",
            "agents/a.agent.md:3: the file `style.md` is listed twice",
        ),
        (
            "systemPrompt:\n  timeZone: Mars/North",
            "agents/a.agent.md:3: there is no time zone `Mars/North`: write an IANA name such as Europe/Berlin",
        ),
        (
            "systemPrompt:\n  timeZone: Europe/Berlin\n  date: false",
            "agents/a.agent.md:3: `timeZone` is for the date: remove it, or `date: false`",
        ),
        (
            "systemPrompt:\n  append: 3",
            "agents/a.agent.md:3: `append` must be text and is a number: write it in quotes",
        ),
    ] {
        let loaded = load(&format!("---\n{front_matter}\n---\nBe good."));
        assert_eq!(loaded.mistakes[0].to_string(), expected);
    }
    let long =
        format!("---\nsystemPrompt: {{ append: {} }}\n---\nBe good.", "x".repeat(BYTES_MAX + 1));
    let mistake = load(&long).mistakes[0].to_string();
    assert!(mistake.contains("`systemPrompt` has 262145 bytes: at most 262144"), "{mistake}");
}

#[test]
fn file_of_the_workspace_is_opt_in() {
    for (value, files, has_workspace) in [
        ("all", 2, false),
        ("[style.md]", 1, false),
        ("workspace", 0, true),
        ("[workspace, style.md]", 1, true),
    ] {
        let agent = load_agent(&format!(
            "---\nsystemPrompt: {{ contextFiles: {value} }}\nplugins: []\n---\nBe good."
        ));
        assert_eq!(agent.context_files.len(), files, "{value}");
        assert_eq!(agent.reads_workspace_context(), has_workspace, "{value}");
        let expected: &[&str] =
            if has_workspace { &[WORKSPACE_PLUGIN, PLUGIN_NAME] } else { &[PLUGIN_NAME] };
        assert_eq!(plugin_names(&agent), expected, "{value}");
    }
    let assembled = load_agent("---\nsystemPrompt: assembled\n---\nBe good.");
    assert!(!assembled.reads_workspace_context());
    let mistakes = load("---\nsystemPrompt: { contextFiles: workspce }\n---\nBe good.").mistakes;
    assert!(mistakes[0].to_string().contains("`all`, `workspace`, or a list"), "{mistakes:?}");
}
