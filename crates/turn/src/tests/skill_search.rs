//! The tool `find_skills`, which is offered if the system prompt does not list all skills.

use std::sync::Arc;

use serde_json::{Value, json};

use super::frame::tool_names;
use super::parallel_calls::result_texts;
use super::recorded_requests::RecordingModel;
use super::store_requests::handle_next_nudge;
use super::test_env::{LoggedRequests as _, RequestLogStore, TestEnv, owner, text};
use super::user_skills::{handle_nudges, put};
use turnwheel_commands::user_skills::{SkillChange, SkillTarget, put_skill};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;

fn find(query: &str) -> Value {
    let arguments = json!({"query": query});
    json!({"type": "toolCall", "id": "f1", "name": "find_skills", "arguments": arguments})
}

fn finds(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![find("MINE-79 about")],
        1 => vec![find("mine")],
        2 => vec![find("restart")],
        3 => vec![find("no such")],
        4 => vec![find(" ")],
        _ => vec![text("done")],
    }
}

/// Stores 80 skills whose list does not fit into a system prompt.
async fn put_long_skills(services: &Services) {
    for number in 0..80 {
        let change = SkillChange {
            description: format!("About mine {number}. {}", "d".repeat(600)),
            instructions: "i".to_owned(),
            tools: Vec::new(),
        };
        let (owner, name) = (owner(), format!("mine-{number}"));
        let target = SkillTarget { owner: &owner, name: &name, is_wanted: &|_| true };
        put_skill(services, &target, change).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn search_finds_skills_that_the_prompt_does_not_list() {
    let mut env = TestEnv::with_script(1, finds);
    env.set_user_skills();
    let model = RecordingModel::install_scripted(&mut env);
    let services = env.new_worker(Arc::new(NoFailPoints));
    put_long_skills(&services).await;
    env.send_prompt(&services).await;
    handle_nudges(&env, &services).await;
    let body = model.bodies()[0].clone();
    assert_eq!(tool_names(&body), ["look", "load_skill", "create_skill", "find_skills"]);
    let system = body["input"][0]["content"].as_str().unwrap();
    assert!(!system.contains("mine-79"), "it does not fit");
    assert!(system.contains(" more skills are not listed. Use find_skills(query) to find them.\n"));
    let results = result_texts(&env).await;
    let begin = "Skills of the user:\n- mine-79: About mine 79. ddd";
    assert!(results[0].starts_with(begin), "{}", results[0]);
    assert!(results[0].ends_with("Use load_skill(name) to access full instructions."));
    assert_eq!(results[1].matches("- mine-").count(), 20);
    assert!(results[1].ends_with("60 more skills match. Use more words."), "{}", results[1]);
    assert!(results[2].starts_with("Available skills:\n- restart: How to restart."));
    assert_eq!(results[3], "No skill matches.");
    assert!(results[4].contains("The query must have 1 to 256 bytes."), "{}", results[4]);
}

#[tokio::test(start_paused = true)]
async fn search_is_not_offered_if_all_skills_are_listed() {
    let mut env = TestEnv::with_script(1, |_, _| vec![text("done")]);
    env.set_user_skills();
    let model = RecordingModel::install_scripted(&mut env);
    let services = env.new_worker(Arc::new(NoFailPoints));
    put(&services, "mine", &[]).await;
    env.send_prompt(&services).await;
    handle_nudges(&env, &services).await;
    let body = model.bodies()[0].clone();
    assert_eq!(tool_names(&body), ["look", "load_skill", "create_skill"]);
}

#[tokio::test(start_paused = true)]
async fn search_of_user_skills_costs_one_query() {
    let mut env = TestEnv::with_script(1, |results, _| match results {
        0 => vec![find("mine")],
        _ => vec![text("done")],
    });
    env.set_user_skills();
    let log = RequestLogStore::wrap(env.store.clone());
    env.worker_store = log.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    put_long_skills(&services).await;
    env.send_prompt(&services).await;
    let requests = handle_next_nudge(&env, &services, &log).await;
    insta::assert_snapshot!(requests, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    select scope
    write head, entry, commit
    select scope
    write head, commit
    ");
}
