//! Tests of prompt templates and skills in inputs: their order after input hooks, modes and bounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use turnwheel::extensions::{Extension, HookContext, HookError, InputDecision, PromptText};
use turnwheel::testing::agents::{Catalog, PromptTemplate};

use super::commands::WAITING_PROMPT;
use super::test_app::TestApp;

/// Changes `!name` to `/greet name`.
#[derive(Debug)]
struct Shortcut;

#[async_trait]
impl Extension for Shortcut {
    fn name(&self) -> &'static str {
        "shortcut"
    }

    async fn transform_input(
        &self,
        _cx: &HookContext,
        input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        let name = input.text.strip_prefix('!');
        Ok(name.map_or(InputDecision::Continue, |name| InputDecision::Transform {
            text: format!("/greet {name}"),
            images: None,
        }))
    }
}

/// The app with the template `greet`.
fn greeting_app() -> TestApp {
    let greet = PromptTemplate {
        name: "greet".to_owned(),
        description: String::new(),
        argument_hint: None,
        location: "prompts/greet.md".to_owned(),
        body: "say Hello $@".to_owned(),
    };
    TestApp::new().with_services(|services| {
        services.extensions.push(Arc::new(Shortcut));
        let templates = BTreeMap::from([("greet".to_owned(), Arc::new(greet))]);
        let agents = services.agents.current().agents.clone();
        services.agents = Catalog { agents, templates, ..Catalog::default() }.into();
    })
}

#[tokio::test]
async fn template_expands_after_input_hooks_in_every_mode() {
    let app = greeting_app();
    app.run(WAITING_PROMPT).await;
    for (mode, input) in [("steer", "!Ada"), ("followUp", "/greet Bob")] {
        app.send_input(json!({"input": input, "mode": mode})).await.expect_status(202);
    }
    let queued = app.get_json("/api/conversations/c/inbox").await;
    let inputs: Vec<_> =
        queued["items"].as_array().unwrap().iter().map(|it| &it["input"]).collect();
    assert_eq!(inputs, ["say Hello Ada", "say Hello Bob"], "{queued}");
    app.work().await;
    app.approve().await;
    let prompts = app.get_json("/api/conversations/c/prompts?limit=100").await;
    let prompts = prompts["items"].as_array().unwrap();
    let original = |input: &str| {
        let mut all = prompts.iter();
        all.find(|prompt| prompt["input"] == input).map(|prompt| prompt["original"].clone())
    };
    assert_eq!(original("say Hello Bob"), Some(json!("/greet Bob")), "{prompts:#?}");
}

#[tokio::test]
async fn large_expansion_is_refused_and_expansion_can_be_declined() {
    let app = greeting_app();
    app.run("say hi").await;
    let large = json!({"input": format!("/greet {}", "x".repeat(256 * 1024))});
    let problem = app.send_input(large).await.expect_problem(400, "bad-request");
    assert_eq!(problem["errors"][0]["pointer"], "/input");
    assert_eq!(
        problem["errors"][0]["detail"],
        "the expanded input is larger than 262144 bytes: shorten the arguments, or send `expand: false`"
    );
    let plain = json!({"input": "/greet Ada", "expand": false});
    app.send_input(plain).await.expect_status(202);
    app.work().await;
    assert_eq!(app.user_texts().await.last(), Some(&json!("/greet Ada")));
}
