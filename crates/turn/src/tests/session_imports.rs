//! Conversations from session files: their models and settings, and files with damage.

#![expect(clippy::needless_pass_by_value, reason = "the helpers take `json!` values")]

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};

use super::test_env::{TestEnv, idempotency, owner, text};
use turnwheel_commands::fork::{ForkRequest, fork_conversation};
use turnwheel_commands::leaf::{LeafRequest, move_leaf};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_commands::session_import::{SessionImport, import_session};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_model::{Listener, Model, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;

/// Has one configured model and takes any name, as a service with deployments does.
#[derive(Debug)]
struct OneModel(Arc<dyn Model>);

#[async_trait]
impl Model for OneModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        self.0.respond(request, listener).await
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.0.record(if model == DEFAULT_MODEL { "m" } else { model })
    }

    fn is_configured(&self, model: &str) -> bool {
        ["m", "second"].contains(&model)
    }
}

fn new_env() -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(1, |_, _| vec![text("fine")]);
    env.model_override = Some(Arc::new(OneModel(env.model.clone())));
    let services = env.new_worker(Arc::new(NoFailPoints));
    (env, services)
}

async fn import(services: &Services, lines: &[Value]) -> Result<Value, CommandError> {
    let header = json!({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"});
    let lines: Vec<String> = [&header].into_iter().chain(lines).map(Value::to_string).collect();
    let file = lines.join("\n") + "\n";
    import_file(services, file).await
}

async fn import_file(services: &Services, file: String) -> Result<Value, CommandError> {
    let request =
        SessionImport { conversation_id: Some("c".to_owned()), ..SessionImport::default() };
    let parts = futures_util::stream::iter([Ok::<_, CommandError>(Bytes::from(file))]);
    let key = idempotency("import");
    let response = import_session(services, &owner(), request, &key, parts).await?;
    Ok(response.body.unwrap().to_value())
}

fn line(id: &str, parent: Option<&str>, message: Value) -> Value {
    json!({"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z", "message": message})
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content, "timestamp": 1_767_225_601_000_u64})
}

fn response(model: &str) -> Value {
    json!({"role": "assistant", "content": [{"type": "text", "text": "MAIN"}], "api": "a", "provider": "p", "model": model, "stopReason": "stop", "timestamp": 1_767_225_601_000_u64})
}

async fn model_of(env: &TestEnv) -> Option<String> {
    env.head().await.unwrap().settings.model
}

#[tokio::test(start_paused = true)]
async fn import_takes_over_only_configured_models() {
    let long = "x".repeat(200);
    for (model, expected, reported) in [
        ("claude-opus-4-5", None, Some("claude-opus-4-5")),
        ("", None, None),
        ("  ", None, None),
        (long.as_str(), None, long.get(..128)),
        ("m", None, None),
        ("second", Some("second"), None),
    ] {
        let (env, services) = new_env();
        let lines = [line("a", None, user("q")), line("b", Some("a"), response(model))];
        let report = import(&services, &lines).await.unwrap();
        assert_eq!(report.get("unavailableModel").and_then(Value::as_str), reported, "{model}");
        assert_eq!(model_of(&env).await.as_deref(), expected, "{model}");
    }
}

#[tokio::test(start_paused = true)]
async fn stored_empty_model_is_that_of_the_agent() {
    let (mut env, services) = new_env();
    env.settings.model = Some(String::new());
    let settings =
        env.settings.with_fallback(&turnwheel_conversation::settings::Settings::default());
    assert_eq!(settings.model, None);
    env.settings.model = None;
    import(&services, &[line("a", None, user("q")), line("b", Some("a"), response(""))])
        .await
        .unwrap();
    env.queue_prompt(&services, &TestEnv::key(), "go on").await.unwrap();
    env.run_until_idle().await;
    let state = env.head().await.unwrap().prompts.last().unwrap().state;
    assert_eq!(state, turnwheel_conversation::entry::PromptState::Completed);
}

async fn patch(services: &Services, settings: &Value) {
    let patch = json!({ "settings": settings });
    let key = idempotency(&services.ids.new_id());
    let patch = patch.as_object().unwrap();
    patch_conversation(services, &TestEnv::key(), patch, &key, |_| true).await.unwrap();
}

async fn move_to(services: &Services, entry_id: &str) -> Value {
    let request = LeafRequest { entry_id: Some(entry_id.to_owned()), ..LeafRequest::default() };
    let key = idempotency(&services.ids.new_id());
    let moved = move_leaf(services, &TestEnv::key(), &request, &key).await.unwrap();
    moved.body.unwrap().to_value()
}

#[tokio::test(start_paused = true)]
async fn settings_never_set_on_a_path_are_those_of_the_beginning() {
    let (env, services) = new_env();
    import(&services, &[line("a", None, user("q")), line("b", Some("a"), response("m"))])
        .await
        .unwrap();
    let set = json!({"model": "second", "thinkingLevel": "high", "activeTools": ["look"]});
    patch(&services, &set).await;
    let changed = env.head().await.unwrap();
    let leaf = changed.leaf_id.clone().unwrap();
    let key = idempotency("fork");
    let fork = ForkRequest {
        entry_id: "b".to_owned(),
        position: Some(turnwheel_extensions::ForkPosition::At),
        conversation_id: Some("f".to_owned()),
    };
    let forked = fork_conversation(&services, &TestEnv::key(), fork, &key).await.unwrap();
    let settings = forked.body.unwrap().to_value()["conversation"]["settings"].clone();
    for member in ["model", "thinkingLevel", "activeTools"] {
        assert!(settings.get(member).is_none(), "the fork has that of its agent: {settings}");
    }
    move_to(&services, "b").await;
    let moved = env.head().await.unwrap().settings;
    assert_eq!((moved.model, moved.thinking_level, moved.active_tools), (None, None, None));
    move_to(&services, leaf.as_str()).await;
    assert_eq!(env.head().await.unwrap().settings, changed.settings, "the path has them");
}

#[tokio::test(start_paused = true)]
async fn name_is_the_latest_that_is_not_empty() {
    let info = |id: &str, parent: &str, name: Value| json!({"type": "session_info", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:02.000Z", "name": name});
    for (names, expected) in [
        ([json!(" N "), json!("")], Some("N")),
        ([json!("A"), Value::Null], Some("A")),
        ([json!("A"), json!("two\nlines")], Some("two lines")),
        ([json!(""), json!("  ")], None),
    ] {
        let (env, services) = new_env();
        let [first, second] = names.clone();
        let lines = [line("a", None, user("q")), info("s", "a", first), info("t", "s", second)];
        import(&services, &lines).await.unwrap();
        assert_eq!(env.head().await.unwrap().name.as_deref(), expected, "{names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn file_without_a_usable_line_is_refused() {
    let (env, services) = new_env();
    let lines = [json!({"role": "user", "content": "x"}), json!({"role": "assistant"})];
    let refused = import(&services, &lines).await.unwrap_err().to_string();
    assert!(refused.contains("line 2") && refused.contains("no other line"), "{refused}");
    let head = env.head().await;
    assert!(head.is_none_or(|head| head.phase == Phase::Deleted), "no conversation is left");
    let (env, services) = new_env();
    let report = import(&services, &[]).await.unwrap();
    assert_eq!((&report["imported"], env.head().await.is_some()), (&json!(0), true));
}

#[tokio::test(start_paused = true)]
async fn compaction_with_a_foreign_anchor_is_reported() {
    let compaction = |anchor: &str| json!({"type": "compaction", "id": "k", "parentId": "b", "timestamp": "2026-01-01T00:00:02.000Z", "summary": "S", "firstKeptEntryId": anchor, "tokensBefore": 1});
    for (anchor, is_reported) in
        [("a", false), ("b", false), ("k", false), ("x", true), ("no", true)]
    {
        let (_env, services) = new_env();
        let lines = [
            line("a", None, user("q")),
            line("x", Some("a"), user("branch")),
            line("b", Some("a"), response("m")),
            compaction(anchor),
        ];
        let report = import(&services, &lines).await.unwrap();
        assert_eq!(report.get("warnings").is_some(), is_reported, "{anchor}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn largest_entry_survives_export_and_import() {
    let entry = |bytes: usize| {
        let line = |text: &str| {
            json!({"entryId": "00000001", "parentId": null, "seq": 1, "timestamp": "2026-01-01T00:00:00.000Z", "type": "message",
                "message": {"role": "user", "content": text, "timestamp": 1}}).to_string()
        };
        let fill = bytes - line("").len();
        line(&"x".repeat(fill))
    };
    let header = json!({"type": "turnwheel", "version": 1, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "agent": "clerk", "settings": {}});
    for (bytes, warnings) in [(1_490_000, 0), (1_490_001, 1)] {
        let (_env, services) = new_env();
        let file = format!("{header}\n{}\n", entry(bytes));
        let report = import_file(&services, file).await.unwrap();
        assert_eq!(report["imported"], 1, "{report}");
        let reported = report.get("warnings").and_then(Value::as_array).map_or(0, Vec::len);
        assert_eq!(reported, warnings, "{bytes}: {report}");
    }
}
