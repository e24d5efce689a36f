//! Tests of permissions of extensions: their list, and settings of the agent in a hook.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use turnwheel::extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError, Permissions,
};
use turnwheel::testing::agents::{AgentDefinition, Catalog};

use super::test_app::TestApp;

#[derive(Debug)]
struct Office;

#[async_trait]
impl Extension for Office {
    fn name(&self) -> &'static str {
        "office"
    }

    fn permissions(&self) -> Permissions {
        Permissions::new().with_hosts(["api.example"]).with_settings(["opens"])
    }

    fn commands(&self) -> Vec<CommandSpec> {
        ["opens", "closes"].map(|name| CommandSpec::new(name, "")).into()
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        let at: Option<u8> = cx.setting(call.name)?;
        Ok(CommandOutcome::text(format!("{at:?}")))
    }
}

fn office_app() -> TestApp {
    TestApp::new().with_services(|services| {
        services.extensions.push(Arc::new(Office));
        let clerk = services.agents.find(None).unwrap();
        let settings = json!({"office": {"opens": 9, "closes": 17}});
        let clerk = AgentDefinition {
            name: clerk.name.clone(),
            description: clerk.description.clone(),
            settings: clerk.settings.clone(),
            instructions: Arc::clone(&clerk.instructions),
            mcp: Vec::new(),
            tools: clerk.tools.clone(),
            extension_settings: Arc::new(serde_json::from_value(settings).unwrap()),
            revision: clerk.revision.clone(),
            ..AgentDefinition::default()
        };
        let agents = [("clerk".to_owned(), Arc::new(clerk))].into();
        services.agents.replace(Catalog { agents, ..Catalog::default() });
    })
}

#[tokio::test]
async fn agents_list_the_permissions_of_their_extensions() {
    let app = office_app();
    let agent = app.get_json("/api/agents").await["items"][0].clone();
    assert_eq!(
        agent["extensions"],
        json!([{"name": "office", "remote": true, "tools": [],
            "permissions": {"hosts": ["api.example"], "settings": ["opens"]}}])
    );
    assert_eq!(agent["plugins"], json!([]));
}

#[tokio::test]
async fn hook_reads_declared_settings_of_the_agent_only() {
    let app = office_app();
    app.run("say hi").await;
    let run = app.run_command("opens", &json!({}), "o").await.expect_status(200).json();
    assert_eq!(run["output"], "Some(9)");
    let run = app.run_command("closes", &json!({}), "c").await.expect_status(200).json();
    assert_eq!(
        run["error"],
        "the extension \"office\" has no permission for the setting `closes`: declare it in `permissions` with `Permissions::with_settings`"
    );
}
