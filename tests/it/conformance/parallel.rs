//! Cases of parallel calls: a gate controls the order in which they end.

use serde_json::{Value, json};

use super::case::Case;
use super::loops;
use super::stage::{CONVERSATION, Needs, Stage};
use crate::support::fake_model::Play;
use crate::support::stream::Stream;

/// The case states the order in which its calls end. All calls start before the first one ends.
pub(super) async fn play(case: &Case) {
    let mut needs = Needs::of_loop("agent");
    needs.settings["toolExecution"] = json!("parallel");
    let stage = Stage::set(case, Play::script(case.given("model_script")), needs).await;
    let mut stream = Stream::open(&stage.service, CONVERSATION, "", None).await;
    let ends: Vec<&str> =
        case.given("ends").as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    for call in &ends {
        stage.gate.hold(call);
    }
    let [action] = case.actions() else { panic!("{}: expected one action, a prompt", case.id()) };
    stage.prompt(&action["text"]).await;
    for call in &ends {
        stage.gate.begun(call).await;
    }
    let mut live = Vec::new();
    for call in &ends {
        stage.gate.release(call);
        let is_end = |data: &Value| {
            data["toolCallId"].as_str().is_some_and(|id| id.split('|').next() == Some(call))
        };
        loop {
            live.extend(stream.until("tool_execution_end").await);
            if live.last().is_some_and(|frame| is_end(&frame.data)) {
                break;
            }
        }
    }
    live.extend(stream.until("agent_settled").await);
    let outputs = live.iter().filter(|frame| frame.name == "prompt.output");
    assert!(outputs.clone().all(|frame| frame.data["output"].is_object()), "{live:#?}");
    assert!(outputs.count() >= ends.len());
    loops::check(case, &stage, &live, &[]).await;
    stage.service.stop().await;
}
