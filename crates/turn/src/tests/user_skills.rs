//! Skills of a user: they are written after an approval, reach no other user, and offer no tool that
//! the agent does not have.

use std::sync::Arc;

use serde_json::{Value, json};

use super::frame::tool_names;
use super::parallel_calls::result_texts;
use super::recorded_requests::{RecordedEnv, system_text};
use super::store_requests::{handle_next_nudge, queued_nudges};
use super::test_env::{LoggedRequests as _, RequestLogStore, Script, TestEnv, call, owner, text};
use crate::delivery::handle;
use turnwheel_agent_files::{SharedCatalog, Skill, user_skill_plugin};
use turnwheel_commands::delete_user::delete_user_data;
use turnwheel_commands::knowledge::Knowledge;
use turnwheel_commands::user_skills::{SkillChange, SkillTarget, put_skill};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::UserId;
use turnwheel_queries::approvals::pending_approvals;
use turnwheel_queries::commands::list_commands;
use turnwheel_queries::user_skills::{read_list, read_skill};
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::cosmos::testing::{connect_store, start_in_process};
use turnwheel_tools::CallableTool;
use turnwheel_tools::user_skills::UserSkillStore;

const INSTRUCTIONS: &str = "# Closing\n\n1. Count the till.\n2. Write \"closed\" — <b>exactly</b>.";

pub(super) fn create(name: &str, tools: &[&str]) -> Value {
    let arguments = json!({
        "name": name, "description": "How to close\nthe shop.", "instructions": INSTRUCTIONS,
        "tools": tools,
    });
    json!({"type": "toolCall", "id": "c1", "name": "create_skill", "arguments": arguments})
}

fn load(name: &str) -> Value {
    json!({"type": "toolCall", "id": "l1", "name": "load_skill", "arguments": {"name": name}})
}

pub(super) fn creates_and_loads(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![create("closing", &["put"])],
        1 => vec![load("closing")],
        2 => vec![call("c3", "put", 0)],
        _ => vec![text("done")],
    }
}

/// Skills of the app: `restart` offers `pay`, which the agent does not have.
fn skills_of_app() -> [Arc<Skill>; 1] {
    [Arc::new(Skill {
        name: "restart".to_owned(),
        description: "How to restart.".to_owned(),
        location: "skills/restart/SKILL.md".to_owned(),
        folder: None,
        files: Vec::new(),
        tools: vec!["pay".to_owned()],
        is_hidden: false,
        body: "Restart.".to_owned(),
    })]
}

impl TestEnv {
    /// The agent of all workers has skills of its users. It offers `look`; it also has `put` and
    /// `gated`, but not `pay`.
    pub(super) fn set_user_skills(&mut self) {
        self.settings.active_tools = Some(vec!["look".to_owned()]);
        self.change_agent(|agent| {
            let is = |tool: &&Arc<dyn CallableTool>, names: &[&str]| {
                names.contains(&tool.definition().name.as_str())
            };
            let select = |names: &[&str]| -> Vec<Arc<dyn CallableTool>> {
                agent.tools.iter().filter(|tool| is(tool, names)).cloned().collect()
            };
            let (of_app, own) = (select(&["pay"]), select(&["look", "put", "gated"]));
            agent.plugins = vec![user_skill_plugin(&skills_of_app(), &of_app, &own)];
            agent.tools = own;
            agent.skills = skills_of_app().to_vec();
            agent.has_user_skills = true;
        });
    }
}

pub(super) fn loads_mine(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![load("mine")],
        1 => vec![call("c2", "look", 0)],
        _ => vec![text("done")],
    }
}

/// An environment that records store requests, whose user has the skill `mine`.
pub(super) async fn new_user_skill_env(
    script: Script,
) -> (TestEnv, Services, Arc<RequestLogStore>) {
    let mut env = TestEnv::with_script(1, script);
    env.set_user_skills();
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    put(&services, "mine", &[]).await;
    env.send_prompt(&services).await;
    (env, services, counting)
}

fn recorded_env(script: Script) -> RecordedEnv {
    let mut env = TestEnv::with_script(1, script);
    env.set_user_skills();
    RecordedEnv::new(env)
}

/// Handles nudges until the prompt waits or ends.
pub(super) async fn handle_nudges(env: &TestEnv, services: &Services) {
    while queued_nudges(env).await > 0 {
        env.queue.drop_queue(queue::TURNS);
        handle(services, &TestEnv::nudge()).await.unwrap();
    }
}

pub(super) async fn names(services: &Services, owner: &Owner) -> Vec<String> {
    let list = read_list(services, owner).await.unwrap();
    list.items.into_iter().map(|skill| skill.name).collect()
}

pub(super) async fn put(services: &Services, name: &str, tools: &[&str]) {
    let tools = tools.iter().map(|&tool| tool.to_owned()).collect();
    let change = SkillChange {
        description: format!("About {name}."),
        instructions: format!("Do {name}."),
        tools,
    };
    let owner = owner();
    let target = SkillTarget { owner: &owner, name, is_wanted: &|_| true };
    put_skill(services, &target, change).await.unwrap();
}

/// Stores a skill before the app has one of its name.
async fn put_earlier(services: &Services, name: &str, tools: &[&str]) {
    let earlier = Services { agents: SharedCatalog::default(), ..services.clone() };
    put(&earlier, name, tools).await;
}

#[tokio::test(start_paused = true)]
async fn create_skill_asks_with_the_whole_body_and_stores_after_approval() {
    for (decision, expected) in [("approve", vec!["closing"]), ("reject", vec![])] {
        let mut app = recorded_env(creates_and_loads);
        let bodies = app.run("go").await;
        assert_eq!(bodies.len(), 1);
        assert_eq!(tool_names(&bodies[0]), ["look", "load_skill", "create_skill"]);
        assert_eq!(names(&app.services, &owner()).await.len(), 0, "nothing is stored before");
        let head = app.env.head().await.unwrap();
        let open = pending_approvals(&app.services, &head).await.unwrap();
        let shown = open[0].arguments.as_ref().unwrap().to_value();
        assert_eq!(shown["instructions"], INSTRUCTIONS, "the request shows the body byte for byte");
        app.env.decide_all(decision).await;
        handle_nudges(&app.env, &app.services).await;
        assert_eq!(names(&app.services, &owner()).await, expected, "{decision}");
        let results = result_texts(&app.env).await;
        if decision == "reject" {
            assert!(results[1].contains("Skill not found"), "{}", results[1]);
            assert!(results[2].contains("\"put\" not found"), "{}", results[2]);
            continue;
        }
        assert_eq!(results, ["Created the skill `closing`.", INSTRUCTIONS, "put done"]);
        let bodies = app.model.bodies();
        let line = "\n- closing: How to close the shop.\n";
        assert!(!system_text(&bodies[0]).contains("closing"));
        assert!(system_text(&bodies[1]).contains(line), "the next response can load it");
        assert!(!tool_names(&bodies[1]).contains(&"put".to_owned()));
        assert!(
            tool_names(&bodies[2]).contains(&"put".to_owned()),
            "the tool is offered once loaded"
        );
        let stored = read_skill(&app.services, &owner(), "closing").await.unwrap();
        assert_eq!(stored.body, INSTRUCTIONS);
        let next = app.run("again").await;
        assert!(system_text(&next[0]).contains(line));
    }
}

#[tokio::test(start_paused = true)]
async fn skill_of_user_offers_only_tools_of_the_agent() {
    fn loads_and_calls(results: usize, _input: &str) -> Vec<Value> {
        match results {
            0 => vec![load("mine")],
            1 => vec![call("c2", "gated", 0)],
            2 => vec![call("c3", "pay", 0)],
            _ => vec![text("done")],
        }
    }
    let mut app = recorded_env(loads_and_calls);
    put(&app.services, "mine", &["gated", "pay", "wire", "unknown"]).await;
    app.run("go").await;
    let head = app.env.head().await.unwrap();
    assert_eq!(head.requests.len(), 1, "the tool of the agent still needs its approval");
    app.env.decide_all("approve").await;
    handle_nudges(&app.env, &app.services).await;
    let bodies = app.model.bodies();
    assert_eq!(tool_names(&bodies[1]), ["look", "load_skill", "create_skill", "gated"]);
    let results = result_texts(&app.env).await;
    assert_eq!(results[1], "gated done");
    assert!(results[2].contains("\"pay\" not found"), "{}", results[2]);
    // An agent cannot write a skill that names other tools.
    let mut app = recorded_env(|results, _| match results {
        0 => vec![create("closing", &["put", "pay"])],
        1 => vec![create("restart", &[])],
        _ => vec![text("done")],
    });
    app.run("go").await;
    app.env.decide_all("approve").await;
    handle_nudges(&app.env, &app.services).await;
    app.env.decide_all("approve").await;
    handle_nudges(&app.env, &app.services).await;
    let results = result_texts(&app.env).await;
    assert!(results[0].contains("these are not: pay."), "{}", results[0]);
    assert!(results[1].contains("The app has a skill `restart`."), "{}", results[1]);
    assert_eq!(names(&app.services, &owner()).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn skill_of_the_app_hides_the_users_skill_of_its_name() {
    fn loads(results: usize, _input: &str) -> Vec<Value> {
        if results == 0 { vec![load("restart")] } else { vec![text("done")] }
    }
    let mut app = recorded_env(loads);
    put_earlier(&app.services, "restart", &["put"]).await;
    let bodies = app.run("go").await;
    assert!(!system_text(&bodies[0]).contains("About restart."), "{}", system_text(&bodies[0]));
    assert_eq!(result_texts(&app.env).await, ["Restart."]);
    assert!(tool_names(&bodies[1]).contains(&"pay".to_owned()));
    assert!(!tool_names(&bodies[1]).contains(&"put".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn user_loads_own_skill_by_name() {
    let mut app = recorded_env(|_, _| vec![text("done")]);
    put(&app.services, "mine", &["put"]).await;
    let bodies = app.run("/skill:mine today").await;
    let sent = bodies[0]["input"].to_string();
    let expected = r#"<skill name=\\\"mine\\\" location=\\\"user/mine.skill.md\\\">"#;
    assert!(sent.replace('\\', "").contains(&expected.replace('\\', "")), "{sent}");
    assert!(sent.contains("Do mine.") && sent.contains("today"), "{sent}");
    assert!(tool_names(&bodies[0]).contains(&"put".to_owned()));
    let bodies = app.run("/skill:other today").await;
    assert!(bodies[0]["input"].to_string().contains("/skill:other today"), "it stays as it is");
}

#[tokio::test(start_paused = true)]
async fn skills_cost_one_read_per_prompt_and_one_per_load() {
    let mut env = TestEnv::with_script(1, loads_mine);
    env.set_user_skills();
    let emulator = start_in_process(1);
    let log = RequestLogStore::wrap(Arc::new(connect_store(&emulator, Vec::new()).await));
    env.worker_store = log.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    put(&services, "mine", &[]).await;
    env.send_prompt(&services).await;
    let requests = handle_next_nudge(&env, &services, &log).await;
    insta::assert_snapshot!(requests, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    select scope
    write head, commit
    read item
    write head, commit
    ");
    let requests = handle_next_nudge(&env, &services, &log).await;
    insta::assert_snapshot!(requests, @r"
    write head
    write head, commit
    write head, commit
    ");
    handle_next_nudge(&env, &services, &log).await;
    let deletion = delete_user_data(&services, &owner()).await.unwrap();
    assert_eq!((deletion.documents, deletion.is_complete), (2, true), "the list and the skill");
    assert_eq!(names(&services, &owner()).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn skill_reaches_no_other_user() {
    let mut env = TestEnv::with_script(1, creates_and_loads);
    let services = env.new_worker(Arc::new(NoFailPoints));
    put(&services, "mine", &[]).await;
    let eve = Owner { user: UserId::new("eve"), ..owner() };
    assert_eq!(names(&services, &eve).await.len(), 0);
    let found = read_skill(&services, &eve, "mine").await;
    assert!(matches!(found, Err(CommandError::NotFound("skill"))), "{found:?}");
    let of_eve = eve.conversation_key("c");
    assert_eq!(UserSkillStore::load(&Knowledge::new(&services), &of_eve, "mine").await, Ok(None));
    assert!(
        UserSkillStore::load(&Knowledge::new(&services), &TestEnv::key(), "mine")
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        UserSkillStore::load(&Knowledge::new(&services), &TestEnv::key(), "../mine").await,
        Ok(None)
    );
}

#[tokio::test(start_paused = true)]
async fn commands_list_skills_of_the_app_and_of_the_user() {
    async fn list(services: &Services, owner: &Owner) -> Vec<(String, String, bool)> {
        let listed = list_commands(services, owner, Some("clerk")).await.unwrap().items;
        let views = listed.into_iter().filter(|it| it.kind == "skill");
        views.map(|it| (it.name, it.description, it.location.is_some())).collect()
    }
    let mut env = TestEnv::with_script(1, creates_and_loads);
    env.set_user_skills();
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    put(&services, "mine", &[]).await;
    put_earlier(&services, "restart", &[]).await;
    let eve = Owner { user: UserId::new("eve"), ..owner() };
    let of_app = ("skill:restart".to_owned(), "How to restart.".to_owned(), true);
    let own = ("skill:mine".to_owned(), "About mine.".to_owned(), false);
    assert_eq!(list(&services, &owner()).await, [of_app.clone(), own]);
    assert_eq!(list(&services, &eve).await, std::slice::from_ref(&of_app));
    services.limits.has_shared_user = true;
    assert_eq!(list(&services, &owner()).await, [of_app]);
}

#[tokio::test(start_paused = true)]
async fn user_skills_are_off_when_all_callers_are_one_user() {
    let mut app = recorded_env(|results, _| match results {
        0 => vec![load("mine")],
        _ => vec![text("done")],
    });
    put(&app.services, "mine", &[]).await;
    app.services.limits.has_shared_user = true;
    let bodies = app.run("go").await;
    assert_eq!(tool_names(&bodies[0]), ["look", "load_skill"]);
    assert!(!system_text(&bodies[0]).contains("mine"));
    assert!(result_texts(&app.env).await[0].contains("Skill not found"));
}
