//! Tests of HTTP tools of agent files: display names, and arguments that do not fit the request.

use serde_json::json;

use super::load_files;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, EffectId, TenantId, UserId};
use turnwheel_tools::{Arguments, CheckContext};

const AGENT: &str = "---
tools:
  - http:
      name: pay
      label: Send money
      method: POST
      url: https://payments.example/{to}
      headers: { x-note: '{note}' }
      parameters: { type: object, properties: { to: { type: string }, note: { type: string } } }
      approval: always
  - http: { name: look, url: 'https://payments.example/' }
---
x";

#[test]
fn label_is_the_display_name() {
    let loaded = load_files(&[("clerk.agent.md", AGENT)]);
    assert_eq!(loaded.mistakes, []);
    let tools = &loaded.catalog.agents["clerk"].tools;
    let names: Vec<_> = tools.iter().map(|tool| tool.definition().display_name()).collect();
    assert_eq!(names, [Some("Send money".to_owned()), None]);
}

#[tokio::test]
async fn arguments_must_fit_the_request() {
    let loaded = load_files(&[("clerk.agent.md", AGENT)]);
    let tool = &loaded.catalog.agents["clerk"].tools[0];
    let conversation = ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("u"),
        conversation_id: ConversationId::new("c"),
    };
    let effect_id = EffectId::from_call(&conversation.conversation_id, "0a1b2c3d", 3, 0);
    for (value, expected) in [
        (json!({"to": "ada", "note": "a b"}), None),
        (json!({"to": "ada", "note": "a\nb"}), Some("it must be one line of ASCII characters")),
        (json!({"to": "..", "note": "a"}), Some("must not be `.` or `..`")),
    ] {
        let context = CheckContext {
            effect_id: &effect_id,
            attempts: 0,
            now: Timestamp(0),
            conversation: &conversation,
            memory: None,
            user_skills: None,
        };
        let arguments = Arguments { text: RawJson::from_value(&value), value };
        let checked = tool.check_arguments(&arguments, &context).await;
        match expected {
            None => assert_eq!(checked, Ok(())),
            Some(expected) => {
                let reason = checked.unwrap_err();
                assert!(reason.contains(expected), "{reason}");
            }
        }
    }
}
