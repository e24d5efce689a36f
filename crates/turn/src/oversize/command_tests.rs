//! Steps that are too large although no result, response or action is.

use std::time::Duration;

use super::commands::SMALL_RESULT_BYTES_MAX;
use super::*;
use turnwheel_conversation::question::{Asker, QuestionSpec};
use turnwheel_conversation::step::BudgetInput;
use turnwheel_conversation::waiting_command::{CommandRun, FinishedCommand, RunOutcome};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::InputId;

fn drained(rest: impl IntoIterator<Item = Input>) -> Vec<Input> {
    [Input::InboxRead(Vec::new()), Input::DrainInbox].into_iter().chain(rest).collect()
}

fn command(id: &str, outcome: RunOutcome) -> Input {
    Input::CommandRan(Box::new(CommandRun { input_id: InputId::new(id), outcome }))
}

fn question_command(id: &str) -> Input {
    let question = QuestionSpec {
        asker: Asker { extension: "desk".to_owned(), key: "sure".to_owned() },
        text: "Sure?".to_owned(),
        schema: RawJson::from_value(&serde_json::json!({"type": "boolean"})),
        approvers: vec!["owner".to_owned()],
        expires_after: Duration::from_hours(1),
    };
    let subject = "the command /note".to_owned();
    command(id, RunOutcome::Asked { question: Box::new(question), subject })
}

#[test]
fn checks_are_dropped_before_an_input_ends() {
    let budget = BudgetInput::RecheckAt(Timestamp(0));
    let checks = [Input::ContextWindowExceeded, Input::BudgetChecked(Box::new(budget))];
    let first = reduce_inputs(&drained(checks), "x").unwrap();
    assert!(matches!(first[..], [Input::InboxRead(_), Input::DrainInbox]), "{first:?}");
    let second = reduce_inputs(&first, "x").unwrap();
    assert!(matches!(second[..], [Input::InboxRead(_), Input::Poisoned { .. }]), "{second:?}");
}

#[test]
fn check_without_the_inbox_fails_the_prompt() {
    let budget = BudgetInput::RecheckAt(Timestamp(0));
    let whole = [Input::BudgetChecked(Box::new(budget))];
    let first = reduce_inputs(&whole, "x").unwrap();
    assert!(matches!(first[..], [Input::Poisoned { .. }]), "{first:?}");
}

#[test]
fn command_ends_with_an_error_before_an_input_ends() {
    let whole = drained([question_command("in_1"), question_command("in_2")]);
    let first = reduce_inputs(&whole, "x").unwrap();
    let [.., Input::DrainInbox, Input::CommandRan(run)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(run.input_id, InputId::new("in_1"), "the other runs again");
    let second = reduce_inputs(&first, "70 KB").unwrap();
    let [.., Input::CommandRan(run)] = &second[..] else { panic!("{second:?}") };
    let RunOutcome::Done(finished) = &run.outcome else { panic!("{run:?}") };
    assert!(finished.result.text().contains("too large for one commit: 70 KB"));
    let third = reduce_inputs(&second, "70 KB").unwrap();
    assert!(matches!(third[..], [Input::InboxRead(_), Input::DrainInbox]), "{third:?}");
}

#[test]
fn long_result_of_a_command_becomes_an_error() {
    let long = "x".repeat(2 * SMALL_RESULT_BYTES_MAX);
    let finished = FinishedCommand {
        result: RawJson::from_value(&serde_json::json!({ "output": long })),
        actions: Vec::new(),
        leaf_change: None,
    };
    let whole = drained([command("in_1", RunOutcome::Done(Box::new(finished)))]);
    let first = reduce_inputs(&whole, "3 MB").unwrap();
    let [.., Input::CommandRan(run)] = &first[..] else { panic!("{first:?}") };
    let RunOutcome::Done(finished) = &run.outcome else { panic!("{run:?}") };
    assert!(finished.result.text().starts_with(r#"{"error""#), "{}", finished.result.text());
}
