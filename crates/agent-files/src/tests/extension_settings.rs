//! Tests of `extensionSettings` in agent files.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::{app_settings, builtin_tools};
use crate::{AgentDefinition, AgentFileContext, McpServers, load_texts};
use turnwheel_extensions::{Extension, Permissions};
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;

#[derive(Debug)]
struct OfficeHours;

impl Extension for OfficeHours {
    fn name(&self) -> &'static str {
        "office-hours"
    }

    fn permissions(&self) -> Permissions {
        Permissions::new().with_settings(["opens", "zones"])
    }
}

fn load(front_matter: &str) -> Result<Arc<AgentDefinition>, Vec<String>> {
    let text = format!("---\n{front_matter}\n---\nx");
    let extensions: [Arc<dyn Extension>; 1] = [Arc::new(OfficeHours)];
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let context = AgentFileContext {
        tools: &builtin_tools(),
        plugins: &[],
        extensions: &extensions,
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        app_settings: &app_settings,
        client: &client,
    };
    let loaded = load_texts(&BTreeMap::from([("a".to_owned(), text)]), "agents", &context);
    let mistakes: Vec<String> = loaded.mistakes.iter().map(ToString::to_string).collect();
    let agent = loaded.catalog.find(None).map(Arc::clone);
    agent.map_err(|_| mistakes)
}

#[test]
fn declared_settings_have_their_values() {
    let front_matter = "extensionSettings:\n  office-hours: { opens: 9, zones: [Europe/Berlin] }";
    let agent = load(front_matter).unwrap();
    assert_eq!(
        json!(*agent.extension_settings),
        json!({"office-hours": {"opens": 9, "zones": ["Europe/Berlin"]}})
    );
    assert!(load("extensionSettings: {}").unwrap().extension_settings.is_empty());
    assert!(load("description: x").unwrap().extension_settings.is_empty());
}

#[test]
fn wrong_settings_are_mistakes_with_their_line() {
    for (front_matter, mistake) in [
        (
            "extensionSettings:\n  office-hour: { opens: 9 }",
            "agents/a.agent.md:3: `extensionSettings` names `office-hour`, which is no extension or plugin in Rust of this agent: did you mean `office-hours`?",
        ),
        (
            "extensionSettings:\n  office-hours:\n    opens: 9\n    zone: x",
            "agents/a.agent.md:5: `office-hours` declares no setting `zone`: did you mean `zones`?",
        ),
        (
            "extensionSettings: [opens]",
            "agents/a.agent.md:2: `extensionSettings` maps names of extensions and plugins to their settings, and is a list",
        ),
        (
            "extensionSettings:\n  office-hours: 9",
            "agents/a.agent.md:3: the settings of `office-hours` are a map of names and values, not a number",
        ),
        (
            "extensionSettings:\n  office-hours: { opens: \"${KEY}\" }",
            "agents/a.agent.md:3: app settings (`${NAME}`) may stand only in the url, headers and body of an http tool, and in the url and secret of an http extension or plugin",
        ),
    ] {
        assert_eq!(load(front_matter).unwrap_err(), [mistake], "{front_matter}");
    }
    let long = format!("extensionSettings:\n  office-hours: {{ opens: {} }}", "x".repeat(17_000));
    let mistakes = load(&long).unwrap_err();
    assert!(mistakes[0].contains("at most 16384 are allowed"), "{mistakes:?}");
}
