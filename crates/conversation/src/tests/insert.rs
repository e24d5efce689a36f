//! Inserted prompts: they ran outside the service.

use super::*;
use crate::entry::PromptState;
use crate::finished_prompt::FinishedPrompt;
use crate::inbox::InputOutcome;
use crate::phase::Phase;
use crate::projection::{project_messages, to_model_messages};
use crate::prompt_receipt::build_receipt;
use crate::step::{OUTPUTS_MAX, is_supported};
use turnwheel_platform::ids::PromptId;

/// Maximum operations of one commit.
const OPERATIONS_MAX: usize = 80;

pub(super) fn inserted(id: &str, output: &serde_json::Value) -> InboxItem {
    let prompt = json!({
        "promptId": format!("pr_{id}"), "user": "default", "input": format!("ask {id}"),
        "output": output, "source": "schedule", "startedAt": NOW.0 - 5_000,
    });
    item(&format!("in_{id}"), json!({"command": {"name": "insertPrompt", "args": prompt}}))
}

fn outputs() -> serde_json::Value {
    json!([
        {"type": "text", "content": "I look."},
        {"type": "tool", "toolCallId": "c1", "function": "look", "input": {"at": 2.50}, "result": {"type": "success", "output": {"n": 1}}},
        {"type": "widget", "widget": "map", "data": {}, "fallback": "a map"},
        {"type": "tool", "function": "pay", "input": {}, "result": {"type": "error", "error": "no money"}},
        {"type": "text", "content": "Done."},
        {"type": "text", "content": "Bye."},
    ])
}

/// The kinds and roles of the entries.
fn kinds(transition: &Transition) -> Vec<String> {
    let entries = transition.entries.iter();
    entries
        .map(|entry| {
            let value = serde_json::to_value(&**entry).unwrap();
            let role = value["message"]["role"].as_str().or(value["type"].as_str());
            role.unwrap().to_owned()
        })
        .collect()
}

#[test]
fn inserted_prompt_has_its_outputs_and_costs_nothing() {
    let mut transition = transition();
    transition.policy.has_notification_receiver = true;
    let item = inserted("1", &outputs());
    assert!(is_supported(&item.body));
    let events = apply_inputs(&mut transition, &[inbox_read(&[item])]);
    assert_eq!(
        kinds(&transition),
        [
            "prompt",
            "user",
            "assistant",
            "toolResult",
            "output",
            "assistant",
            "toolResult",
            "assistant",
            "prompt_end"
        ]
    );
    assert_eq!(events.first().unwrap(), "prompt.created");
    assert_eq!(events.last().unwrap(), "prompt.completed");
    assert_eq!(events.iter().filter(|event| *event == "prompt.output").count(), 6);
    let runs = ["agent_start", "turn_start", "turn_end", "agent_end", "tool_execution_start"];
    assert!(!events.iter().any(|event| runs.contains(&event.as_str())), "nothing ran: {events:?}");
    let shown = view(&transition);
    let result = |index: usize| &shown["output"][index]["result"];
    assert_eq!((&shown["source"], &shown["state"]), (&json!("schedule"), &json!("completed")));
    assert_eq!(shown["output"].as_array().unwrap().len(), 6);
    assert_eq!(result(1), &json!({"type": "success", "output": {"n": 1}}));
    assert_eq!(shown["output"][2]["widget"], "map", "after the result of its tool");
    assert_eq!(result(3), &json!({"type": "error", "error": "no money"}));
    assert_eq!(shown["output"][0]["startedAt"], "2026-11-21T20:19:04.669Z");
    assert_eq!(shown["usage"]["totalTokens"], 0);
    assert!(transition.notifications.is_empty(), "an insertion notifies nobody");
    let head = &transition.head;
    assert_eq!((&head.prompt, &head.phase), (&None, &Phase::Idle));
    assert_eq!((head.usage.total_tokens, head.response_count, head.waiting_items), (0, 0, 0));
    let span = &head.prompts[0];
    assert_eq!(
        (span.state, span.is_inserted, span.to_seq),
        (PromptState::Completed, true, Some(9))
    );
    let receipt = build_receipt(&PromptId::new("pr_1"), &transition.entries).unwrap();
    assert_eq!((receipt.model_calls, receipt.tool_calls, receipt.turns), (0, 0, 0));
    assert_eq!(receipt.started_at.0, NOW.0 - 5_000);
}

#[test]
fn model_reads_an_inserted_prompt() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[inbox_read(&[inserted("1", &outputs())])]);
    let sent = to_model_messages(project_messages(&transition.entries));
    let sent: Vec<_> = sent.iter().map(|it| serde_json::to_value(it.as_ref()).unwrap()).collect();
    let roles: Vec<_> = sent.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(
        roles,
        ["user", "assistant", "toolResult", "assistant", "toolResult", "assistant"],
        "the outputs in their own order"
    );
    assert_eq!(sent[2]["content"][0]["text"], r#"{"n":1}"#);
    assert_eq!(sent[1]["content"][1]["arguments"], json!({"at": 2.5}));
    assert_eq!(sent[3]["content"][0]["id"], sent[4]["toolCallId"], "a call without an id gets one");
}

#[test]
fn inserted_prompt_waits_for_the_end_of_a_run() {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go")]);
    let waiting = inserted("2", &json!([{"type": "text", "content": "x"}]));
    apply_inputs(&mut transition, &[inbox_read(std::slice::from_ref(&waiting))]);
    let events = apply_inputs(&mut transition, &[response(&["done"]), Input::DrainInbox]);
    assert!(events.contains(&"prompt.completed".to_owned()));
    assert_eq!(transition.head.prompts.len(), 1, "the end of the run has a commit of its own");
    assert!(!events.contains(&"agent_settled".to_owned()));
    assert!(transition.head.next_due(NOW).is_some(), "the next commit is due");
    let mut next = Transition::new(transition.head.clone(), None, policy(), NOW);
    let events = apply_inputs(&mut next, &[inbox_read(&[waiting])]);
    assert_eq!(kinds(&next), ["prompt", "user", "assistant", "prompt_end"]);
    assert_eq!(events.last().unwrap(), "agent_settled");
}

#[test]
fn items_around_an_inserted_prompt_keep_their_order() {
    let bash = item(
        "in_b",
        json!({"command": {"name": "bash", "args": {"command": "ls", "output": "x"}}}),
    );
    let next = json!({"prompt": {"promptId": "pr_3", "user": "default", "input": "three", "visible": true, "source": "user"}});
    let one = inserted("2", &json!([{"type": "text", "content": "x"}]));
    let items = [bash, one, item("in_3", next)];
    let mut first = transition();
    apply_inputs(&mut first, &[inbox_read(&items)]);
    assert_eq!(kinds(&first), ["bashExecution"]);
    let mut second = Transition::new(first.head.clone(), None, policy(), NOW);
    apply_inputs(&mut second, &[inbox_read(&items[1..])]);
    assert_eq!(kinds(&second), ["prompt", "user", "assistant", "prompt_end", "prompt", "user"]);
    assert_eq!(second.head.prompt.as_ref().unwrap().id, PromptId::new("pr_3"));
}

/// The most entries that the outputs of a request can become, with the rest of the commit.
#[test]
fn longest_inserted_prompt_fits_one_commit() {
    let tool = json!({"type": "tool", "function": "look", "input": {}, "result": {"type": "success", "output": "x"}});
    let text = json!({"type": "text", "content": "x"});
    let widget = json!({"type": "widget", "widget": "w", "data": 1, "fallback": "f"});
    for pattern in [vec![&tool], vec![&tool, &text], vec![&tool, &widget], vec![&text, &widget]] {
        let outputs: Vec<_> = pattern.into_iter().cycle().take(OUTPUTS_MAX).collect();
        let mut transition = transition();
        apply_inputs(&mut transition, &[inbox_read(&[inserted("1", &json!(outputs))])]);
        assert_eq!(transition.receipts[0].outcome, InputOutcome::Applied);
        assert!(transition.operation_count() <= OPERATIONS_MAX);
        assert_eq!(view(&transition)["output"].as_array().unwrap().len(), OUTPUTS_MAX);
    }
}

#[test]
fn output_of_a_newer_version_waits_for_it() {
    let item = inserted("1", &json!([{"type": "hologram", "n": 1}]));
    assert!(!is_supported(&item.body) && FinishedPrompt::from_item(&item).is_none());
    let mut transition = transition();
    apply_inputs(&mut transition, &[inbox_read(&[item])]);
    assert!(transition.entries.is_empty() && transition.receipts.is_empty());
}
