//! Cases of parallel calls: a gate controls the order in which they end.

use serde_json::{Value, json};

use super::case::Case;
use super::loops;
use super::test_app::{CONVERSATION, CaseConfig, TestApp};
use crate::support::event_stream::EventStream;
use crate::support::fake_model::ScriptedResponse;

/// The case states the order in which its calls end. All calls start before the first one ends.
pub(super) async fn run_case(case: &Case) {
    let mut config = CaseConfig::for_loop("agent");
    config.settings["toolExecution"] = json!("parallel");
    let app =
        TestApp::start(case, ScriptedResponse::parse_script(case.given("model_script")), config)
            .await;
    let mut stream = EventStream::open(&app.service, CONVERSATION, "", None).await;
    let ends: Vec<&str> =
        case.given("ends").as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    for call in &ends {
        app.gate.block(call);
    }
    let [action] = case.actions() else { panic!("{}: expected one action, a prompt", case.id()) };
    app.prompt(&action["text"]).await;
    for call in &ends {
        app.gate.started(call).await;
    }
    let mut live = Vec::new();
    for call in &ends {
        app.gate.release(call);
        let is_end = |data: &Value| {
            data["toolCallId"].as_str().is_some_and(|id| id.split('|').next() == Some(call))
        };
        loop {
            live.extend(stream.read_until("tool_execution_end").await);
            if live.last().is_some_and(|frame| is_end(&frame.data)) {
                break;
            }
        }
    }
    live.extend(stream.read_until("agent_settled").await);
    let outputs = live.iter().filter(|frame| frame.name == "prompt.output");
    assert!(outputs.clone().all(|frame| frame.data["output"].is_object()), "{live:#?}");
    assert!(outputs.count() >= ends.len());
    loops::check_results(case, &app, &live, &[]).await;
    app.service.stop().await;
}
