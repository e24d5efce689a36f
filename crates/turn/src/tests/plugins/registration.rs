//! Declarations of plugins: the schema of the state, and names.

use serde::Serialize;

use super::*;

#[derive(Debug)]
struct BoundedPlugin;

#[derive(Serialize, Deserialize, JsonSchema)]
struct BoundedState {
    #[schemars(range(max = 5))]
    level: u32,
}

impl Plugin for BoundedPlugin {
    type State = BoundedState;

    fn name(&self) -> &'static str {
        "bounded"
    }

    async fn prepare(&self, cx: &mut Prepare<'_, BoundedState>) -> Result<(), PluginError> {
        let level = cx.state().map_or(4, |state| state.level + 1);
        cx.set_state(BoundedState { level })
    }
}

#[tokio::test(start_paused = true)]
async fn state_is_validated_at_write_and_at_read() {
    let mut env = TestEnv::with_script(1, calls_look_twice);
    let plugin = RegisteredPlugin::new(BoundedPlugin, ServiceRegistry::default()).unwrap();
    env.set_plugins(&[Arc::new(plugin)]);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let (kind, text) = prompt_error(&env).await.unwrap();
    assert_eq!(kind, "plugin");
    assert!(text.contains("its state is not valid at \"/level\""), "{text}");
    assert_eq!(stored_state(&env, "bounded").await, Some((1, json!({"level": 5}))));
    // Another program stored a state of the same name.
    let wrong = ScriptedPlugin::new("bounded", |cx| cx.set_state(json!({"level": "high"})));
    env.set_plugins(&[wrong.register()]);
    env.queue_prompt(&services, &TestEnv::key(), "again").await.unwrap();
    handle_until_idle(&env, &services).await;
    let plugin = RegisteredPlugin::new(BoundedPlugin, ServiceRegistry::default()).unwrap();
    env.set_plugins(&[Arc::new(plugin)]);
    env.queue_prompt(&services, &TestEnv::key(), "and again").await.unwrap();
    handle_until_idle(&env, &services).await;
    let (_, text) = prompt_error(&env).await.unwrap();
    assert!(text.contains("its state is not valid at \"/level\""), "{text}");
    assert!(!text.contains("high"), "the value stays in the record: {text}");
}

#[derive(Debug)]
struct NotANumberPlugin;

#[derive(Serialize, Deserialize, JsonSchema)]
struct AnyLevelState {
    #[schemars(with = "Value")]
    level: f64,
}

impl Plugin for NotANumberPlugin {
    type State = AnyLevelState;

    fn name(&self) -> &'static str {
        "not-a-number"
    }

    async fn prepare(&self, cx: &mut Prepare<'_, AnyLevelState>) -> Result<(), PluginError> {
        // JSON has no such number: it is written as `null`.
        cx.set_state(AnyLevelState { level: f64::NAN })
    }
}

#[tokio::test(start_paused = true)]
async fn state_that_its_type_cannot_read_is_not_stored() {
    let mut env = TestEnv::with_script(1, calls_look_twice);
    let plugin = RegisteredPlugin::new(NotANumberPlugin, ServiceRegistry::default()).unwrap();
    env.set_plugins(&[Arc::new(plugin)]);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let (_, text) = prompt_error(&env).await.unwrap();
    assert!(text.contains("its state cannot be read"), "{text}");
    assert_eq!(stored_state(&env, "not-a-number").await, None);
}

#[test]
fn two_plugins_of_one_name_refuse_the_start() {
    let mut plugins = Vec::new();
    let services = ServiceRegistry::default();
    let plugin = || ScriptedPlugin::new("crm", counts);
    RegisteredPlugin::register(plugin(), &mut plugins, &services).unwrap();
    let mistakes = RegisteredPlugin::register(plugin(), &mut plugins, &services).unwrap_err();
    assert_eq!(mistakes, ["two plugins are called `crm`. Rename one of them"]);
    let bad = ScriptedPlugin::new("My CRM", counts);
    let mistakes = RegisteredPlugin::register(bad, &mut plugins, &services).unwrap_err();
    assert!(mistakes[0].contains("`send_My CRM`"), "{mistakes:?}");
    assert_eq!(mistakes[1], "the plugin name `My CRM` is not usable: use 1 to 64 of a-z 0-9 _ -");
    assert_eq!(plugins.len(), 1);
}
