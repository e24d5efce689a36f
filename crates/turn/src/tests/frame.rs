//! The frame of model calls: requests, estimates and checks agree on it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::parallel_calls::result_texts;
use super::recorded_requests::RecordingModel;
use super::test_env::{TestEnv, call, text};
use crate::context::TurnContext;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;

fn looks_and_pays(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "look", 0), call("c2", "pay", 0)],
        _ => vec![text("done")],
    }
}

/// Runs a prompt of two rounds. Returns the bodies of its requests.
async fn run_prompt(active: Option<&[&str]>) -> (TestEnv, Services, Vec<Value>) {
    let mut env = TestEnv::with_script(1, looks_and_pays);
    env.settings.active_tools =
        active.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let model = RecordingModel::install_scripted(&mut env);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let bodies = model.bodies();
    assert_eq!(bodies.len(), 2);
    (env, services, bodies)
}

pub(super) fn tool_names(body: &Value) -> Vec<String> {
    let tools = body["tools"].as_array().unwrap().iter();
    tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn own_frame_equals_the_agent() {
    let (_, services, bodies) = run_prompt(None).await;
    let agent = services.agents.find(None).unwrap();
    let offered = agent.tools.iter().map(|tool| tool.definition().name.clone());
    assert_eq!(tool_names(&bodies[0]).len(), offered.clone().count());
    assert_eq!(tool_names(&bodies[0])[..3], offered.collect::<Vec<_>>()[..3]);
    assert!(bodies[0].to_string().contains(&*agent.instructions));
}

#[tokio::test(start_paused = true)]
async fn six_uses_agree_on_one_frame() {
    let (env, services, bodies) = run_prompt(Some(&["read", "look"])).await;
    // The request, in the order of the agent.
    assert_eq!(tool_names(&bodies[0]), ["look", "read"]);
    // The preflight.
    assert_eq!(result_texts(&env).await[0], "look done");
    assert!(result_texts(&env).await[1].contains("\"pay\" not found"));
    // The estimates of tokens and bytes.
    let context = TurnContext::resolve(&services, &env.head().await.unwrap(), None);
    let frame = context.own_frame();
    let names: Vec<&str> = frame.offers().map(|offer| offer.name).collect();
    assert_eq!(names, ["look", "read"]);
    let sent = frame.offers().map(|offer| {
        [offer.name.to_owned(), offer.description.to_owned(), offer.parameters.to_string()].concat()
    });
    let sent: usize =
        sent.map(|text| text.len()).sum::<usize>() + frame.system().unwrap_or_default().len();
    assert_eq!(frame.bytes(), sent);
    assert_eq!(frame.tokens(&|text| text.len() as u64), sent as u64);
}

#[tokio::test(start_paused = true)]
async fn prefix_is_stable_over_two_rounds() {
    let (_, _, bodies) = run_prompt(None).await;
    let prefix = |body: &Value| {
        let mut body = body.clone();
        let input = body["input"].take();
        (body, input.as_array().unwrap().clone())
    };
    let ((first, first_input), (second, second_input)) = (prefix(&bodies[0]), prefix(&bodies[1]));
    assert_eq!(first.to_string(), second.to_string(), "everything but the input is equal");
    let common = json!(second_input[..first_input.len()]);
    assert_eq!(json!(first_input).to_string(), common.to_string());
}
