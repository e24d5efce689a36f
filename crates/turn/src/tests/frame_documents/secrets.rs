//! A secret in any place of the settings is in no frame document.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::context::TurnContext;
use crate::frame_document::find_document;
use crate::tests::test_env::TestEnv;
use turnwheel_agent_files::{AgentDefinition, AgentFileContext, McpFile, McpServers, load_texts};
use turnwheel_model::ModelRecord;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::frame_documents::FrameParts;
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;

const CANARY: &str = "canary5ecret";
/// The same in Base64.
const CANARY_BASE64: &str = "Y2FuYXJ5NWVjcmV0";

const SERVERS: &str = r#"{"servers": {
  "desk": {"url": "https://desk.example/${KEY}/mcp?sig=${KEY}", "headers": {"x-key": "${KEY}"}},
  "files": {"command": "node", "args": ["${KEY}"], "env": {"KEY": "${KEY}"}}
}}"#;

const AGENT: &str = "---
model: gpt-5-mini
security: on
responseSchema: { type: object }
tools:
  - http:
      name: pay
      description: Pays.
      method: POST
      url: https://pay.example/${KEY}/{to}?sig=${KEY}
      headers: { authorization: 'Bearer ${KEY}' }
      body: { key: '${KEY}', to: '{to}' }
      parameters: { type: object, properties: { to: { type: string } } }
      approval: { when: { properties: { to: { const: ada } } }, reason: 'Pay {to}?', approvers: ['role:Boss'] }
  - mcp: { server: desk, approval: always }
  - mcp: files
extensions:
  - http: { name: guard, url: 'https://guard.example/${KEY}', secret: '${SECRET}', events: [tool_call] }
plugins:
  - http:
      name: counter
      url: https://plugins.example/${KEY}
      secret: ${SECRET}
      tools:
        - http: { name: count, url: 'https://count.example/${KEY}', headers: { x-key: '${KEY}' } }
---
Be brief.
";

fn load_agent() -> Arc<AgentDefinition> {
    let client = HttpClient::new(AddressRules::default()).unwrap();
    let tools = BTreeMap::new();
    // A value for each setting.
    let app_settings = |name: &str| {
        Some(match name {
            "SECRET" => {
                "whsec_Y2FuYXJ5NWVjcmV0LTAxMjM0NTY3ODktMDEyMzQ1Njc4OS0wMTIzNDU2Nzg=".to_owned()
            }
            _ => format!("{CANARY}-{name}"),
        })
    };
    let mut context = AgentFileContext {
        tools: &tools,
        plugins: &[],
        skills: &[],
        context_files: &[],
        mcp: McpServers::none(),
        extensions: &[],
        app_settings: &app_settings,
        client: &client,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mcp.json");
    std::fs::write(&path, SERVERS).unwrap();
    let file = McpFile { path, stdio: vec!["files".to_owned()], may_start_programs: true };
    let (servers, mistakes) = file.load(&context, McpServers::none());
    assert!(mistakes.is_empty(), "{mistakes:?}");
    for server in servers.iter() {
        let tool = json!({
            "name": "send", "title": null, "description": "Sends a text.", "isReadOnly": false,
            "isIdempotent": false, "parameters": { "type": "object", "properties": {} },
        });
        let definitions = json!({ "fetchedAt": 1, "tools": [tool] });
        server.adopt(Some(serde_json::from_value(definitions).unwrap()));
    }
    context.mcp = &servers;
    let texts = BTreeMap::from([("clerk".to_owned(), AGENT.to_owned())]);
    let loaded = load_texts(&texts, "agents", &context);
    let mistakes: Vec<String> = loaded.mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(mistakes, Vec::<String>::new());
    Arc::clone(loaded.catalog.find(None).unwrap())
}

#[tokio::test(start_paused = true)]
async fn document_has_no_secret() {
    let mut env = TestEnv::new(1);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let mut context = TurnContext::resolve(&services, &env.head().await.unwrap(), None);
    let agent = load_agent();
    context.settings = agent.settings.clone();
    let record = services.model.record("normal").unwrap();
    let model = ModelRecord {
        base_url: format!(
            "https://{CANARY}:{CANARY}@models.example/{CANARY}/v1?api-key={CANARY}#{CANARY}"
        ),
        headers: serde_json::from_value(json!({ "x-key": CANARY })).unwrap(),
        ..record
    };
    let tools = agent.active_tools(&context.settings).into();
    let parts =
        FrameParts { agent: &agent, tools: &tools, settings: &context.settings, model: &model };
    let document = find_document(&services, parts);
    let text = document.text();
    for shape in [CANARY, CANARY_BASE64] {
        assert!(!text.contains(shape), "{text}");
    }
    // It has the parts around them.
    let json: Value = serde_json::from_str(text).unwrap();
    assert_eq!(json["model"]["baseUrl"], "https://models.example");
    let hosts = json["tools"].as_array().unwrap().iter().map(|tool| &tool["destination"]["host"]);
    let hosts: Vec<_> = hosts.map(Value::as_str).collect();
    assert_eq!(hosts, [Some("pay.example"), Some("desk.example"), None, Some("count.example")]);
    let rule = &json["tools"][0]["approval"];
    assert_eq!((&rule["reason"], &rule["approvers"]), (&json!("Pay {to}?"), &json!(["role:Boss"])));
    assert_eq!(rule["when"]["properties"]["to"]["const"], "ada");
    assert_eq!(json["tools"][1]["approval"]["approvers"], json!(["owner"]));
    assert_eq!(json["tools"][3]["plugin"], "counter");
    assert_eq!(json["extensions"][0]["name"], "guard");
    assert_eq!(json["systemPrompt"], "Be brief.");
    assert!(json["security"].as_str().is_some_and(|text| !text.is_empty()), "{text}");
    // The same parts are not serialised again.
    assert!(Arc::ptr_eq(&document, &find_document(&services, parts)));
    let changed = ModelRecord { max_tokens: model.max_tokens + 1, ..model.clone() };
    let other = find_document(&services, FrameParts { model: &changed, ..parts });
    assert_ne!(document.sha256, other.sha256);
}
