//! Fallback for a step that exceeds one commit: the inputs to leave out, with the least loss
//! (invariant 11).

mod commands;

use self::commands::{first_of_commands, without_command};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::message::StopReason;
use turnwheel_conversation::step::{CallResult, FailureKind, Input, Replan, ResponseInput};

/// The same step with fewer inputs or a smaller result. `None`: nothing is left to remove. `excess`
/// is the exceeded bound, in words.
pub(crate) fn reduce_inputs(inputs: &[Input], excess: &str) -> Option<Vec<Input>> {
    let is_poisoned = inputs.iter().any(|input| matches!(input, Input::Poisoned { .. }));
    if is_poisoned {
        return None;
    }
    // The next commit computes the others again.
    let done = Input::retain(inputs, Replan::SmallerCommit);
    if !done.iter().all(Input::is_of_extension) && done.len() < inputs.len() {
        return Some(done);
    }
    let smaller = without_checks(inputs)
        .or_else(|| first_of_results(inputs))
        .or_else(|| first_of_commands(inputs))
        .or_else(|| without_actions(inputs))
        .or_else(|| without_command(inputs, excess));
    Some(smaller.unwrap_or_else(|| without_parts(inputs, excess)))
}

/// The drained inbox without the checks of the model call that follows: it makes them itself.
fn without_checks(inputs: &[Input]) -> Option<Vec<Input>> {
    let mut smaller = inputs.to_vec();
    smaller.retain(|input| {
        !matches!(
            input,
            Input::BudgetChecked(_) | Input::ContextWindowExceeded | Input::FixedPartMeasured(_)
        )
    });
    let is_drained = inputs.iter().any(|input| matches!(input, Input::DrainInbox));
    (is_drained && smaller.len() < inputs.len()).then_some(smaller)
}

/// The first of several results, with its actions. Each can have a commit of its own.
fn first_of_results(inputs: &[Input]) -> Option<Vec<Input>> {
    let is_result = |input: &Input| {
        matches!(input, Input::ToolCallReturned { .. } | Input::ToolOutcomeUnknown { .. })
    };
    let mut results = inputs.iter().enumerate().filter(|(_, input)| is_result(input));
    let (second, _) = results.nth(1)?;
    let first = inputs.iter().take(second).skip_while(|input| !is_result(input));
    Some(first.cloned().collect())
}

/// The step without actions and changes of extensions: they are left out before any part of a
/// result or response.
fn without_actions(inputs: &[Input]) -> Option<Vec<Input>> {
    let mut smaller = inputs.to_vec();
    smaller.retain(|input| !matches!(input, Input::HookActions(_)));
    let mut has_dropped = false;
    for input in &mut smaller {
        if let Input::CommandRan(run) = input {
            has_dropped |= run.drop_actions();
        } else if let Input::StartChanges(changes) = input {
            // The input itself stays: without it the prompt would wait for it.
            has_dropped |= !changes.messages.is_empty() || changes.system_prompt.is_some();
            changes.messages.clear();
            changes.system_prompt = None;
        }
    }
    if smaller.len() == inputs.len() && !has_dropped {
        return None;
    }
    for input in inputs {
        if let Input::HookActions(hook) = input {
            tracing::warn!(
                extension = hook.by,
                event = hook.event,
                "actions left out: they are more than one commit may hold"
            );
        }
    }
    Some(smaller)
}

/// The step with a smaller result or response, or a failed prompt. If no prompt runs, an input that no
/// commit can apply ends.
fn without_parts(inputs: &[Input], excess: &str) -> Vec<Input> {
    // An extension's decision on the turn stays with the input that closes the turn.
    let (decision, inputs) = match inputs {
        [decision @ Input::FinishTurn(_), rest @ ..] => (Some(decision), rest),
        _ => (None, inputs),
    };
    match inputs {
        [Input::ToolCallReturned { index, result }] if !is_text_only(result) => {
            let text_only = Input::ToolCallReturned {
                index: *index,
                result: Box::new(text_only_result(result)),
            };
            decision.cloned().into_iter().chain([text_only]).collect()
        }
        [Input::ResponseReceived(answered)] if !is_note_only(answered) => {
            if let Some(smaller) = without_plugin_parts(answered) {
                let smaller = Input::ResponseReceived(Box::new(smaller));
                return decision.cloned().into_iter().chain([smaller]).collect();
            }
            let smaller = if answered.message.is_failed() {
                without_content(answered, excess)
            } else {
                failed_response(answered, excess)
            };
            vec![Input::ResponseReceived(Box::new(smaller))]
        }
        _ => {
            tracing::error!(
                excess,
                "step larger than one commit: its prompt fails, or without one its input ends"
            );
            let reason = format!("The step is larger than one commit can hold: {excess}.");
            let inbox_reads = inputs.iter().filter(|input| matches!(input, Input::InboxRead(_)));
            // Keep the inbox read: uncounted items would have no pending work that names them.
            inbox_reads.cloned().chain([Input::Poisoned { reason }]).collect()
        }
    }
}

fn is_text_only(result: &CallResult) -> bool {
    result.outputs.is_empty()
        && result.details.is_none()
        && result.structured.is_none()
        && result.content.iter().all(|block| matches!(block, Block::Text(_)))
}

/// Keeps the text, because the call was made.
fn text_only_result(result: &CallResult) -> CallResult {
    let note = "[Files, widgets, pictures and data of this result were left out: together they are more than one result may hold.]";
    let texts = result.content.iter().filter(|block| matches!(block, Block::Text(_)));
    CallResult {
        content: texts.cloned().chain([Block::text(note)]).collect(),
        details: None,
        structured: None,
        usage: result.usage.clone(),
        is_error: result.is_error,
        terminate: result.terminate,
        rejected: result.rejected.clone(),
        outputs: Vec::new(),
        workspace: result.workspace.clone(),
        state: result.state.clone(),
    }
}

/// Drops the texts of plugins in the frame, else the frame, or else the changes of the state of plugins.
fn without_plugin_parts(answered: &ResponseInput) -> Option<ResponseInput> {
    let mut smaller = answered.clone();
    let mut frames = smaller.frame.iter_mut();
    if let Some(frame) = frames.find(|frame| !frame.entry.contributions.is_empty()) {
        frame.entry.contributions.clear();
        return Some(smaller);
    }
    if smaller.frame.take().is_some() {
        return Some(smaller);
    }
    for change in smaller.plugin_state.drain(..) {
        tracing::warn!(
            plugin = change.plugin,
            "plugin state not stored: it is more than one commit may hold"
        );
    }
    (!answered.plugin_state.is_empty()).then_some(smaller)
}

/// True for a response whose content was left out already.
fn is_note_only(answered: &ResponseInput) -> bool {
    let is_note =
        |block: &Block| matches!(block, Block::Text(text) if text.text.starts_with(LEFT_OUT));
    answered.message.is_failed() && answered.message.content.iter().all(is_note)
}

/// Start of the text in place of the content of a failed response.
const LEFT_OUT: &str =
    "[The content of this response was left out: it is larger than one commit can hold:";

/// Drops the content of a failed or aborted response, which is retried or ends as a smaller one.
fn without_content(answered: &ResponseInput, excess: &str) -> ResponseInput {
    let mut smaller = answered.clone();
    smaller.message.content = vec![Block::text(format!("{LEFT_OUT} {excess}.]"))];
    smaller
}

/// Drops the response but keeps its cost.
fn failed_response(answered: &ResponseInput, excess: &str) -> ResponseInput {
    let mut failed = answered.clone();
    failed.message.content = Vec::new();
    failed.message.stop_reason = StopReason::Error;
    failed.message.error_message =
        Some(format!("The model response is larger than one commit can hold: {excess}."));
    failed.failure_kind = FailureKind::Permanent;
    failed.schema_error = None;
    failed.refused = None;
    failed
}

#[cfg(test)]
mod command_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_conversation::action::{ActionOrigin, HookActions, StartChanges};
    use turnwheel_conversation::frame_entry::{Contribution, FrameEntry, FrameInput};
    use turnwheel_conversation::plugin_state::PluginStateChange;
    use turnwheel_conversation::step::FinishTurn;
    use turnwheel_platform::ids::PromptId;

    fn returned_input(outputs: usize) -> Input {
        let data = turnwheel_json::raw::RawJson::from_value(&serde_json::json!({}));
        let output = turnwheel_conversation::entry::Output::Other(data);
        let content = vec![Block::text("paid")];
        let result =
            CallResult { content, outputs: vec![output; outputs], ..CallResult::default() };
        Input::ToolCallReturned { index: 0, result: Box::new(result) }
    }

    fn answered_input() -> Input {
        let message = serde_json::json!({
            "content": [{"type": "text", "text": "long"}], "api": "a", "provider": "p", "model": "m",
            "usage": {"totalTokens": 7}, "stopReason": "stop", "timestamp": 0,
        });
        Input::ResponseReceived(Box::new(ResponseInput {
            refused: None,
            message: serde_json::from_value(message).unwrap(),
            revision: String::new(),
            started_at: turnwheel_platform::clock::Timestamp(0),
            failure_kind: FailureKind::Permanent,
            error_type: "model",
            schema_error: None,
            frame: None,
            plugin_state: Vec::new(),
        }))
    }

    #[test]
    fn oversized_result_keeps_text_and_drops_outputs() {
        let whole = [Input::InboxRead(Vec::new()), returned_input(100), Input::DrainInbox];
        let first = reduce_inputs(&whole, "100 operations").unwrap();
        assert_eq!(first.len(), 1);
        let second = reduce_inputs(&first, "100 operations").unwrap();
        let [Input::ToolCallReturned { result, .. }] = second.as_slice() else {
            panic!("{second:?}")
        };
        assert_eq!(result.content.first(), Some(&Block::text("paid")));
        assert!(result.outputs.is_empty());
        assert!(matches!(
            reduce_inputs(&second, "x").unwrap().as_slice(),
            [Input::Poisoned { .. }]
        ));
    }

    #[test]
    fn full_context_window_drops_neither_result_nor_response() {
        let whole = [
            Input::InboxRead(Vec::new()),
            returned_input(100),
            Input::DrainInbox,
            Input::ContextWindowExceeded,
        ];
        let first = reduce_inputs(&whole, "100 operations").unwrap();
        assert!(matches!(first.as_slice(), [Input::ToolCallReturned { .. }]), "{first:?}");
        let first =
            reduce_inputs(&[answered_input(), Input::ContextWindowExceeded], "3 MB").unwrap();
        assert!(matches!(first.as_slice(), [Input::ResponseReceived(_)]), "{first:?}");
        let second = reduce_inputs(&first, "3 MB").unwrap();
        let [Input::ResponseReceived(answered)] = second.as_slice() else { panic!("{second:?}") };
        assert_eq!(answered.message.stop_reason, StopReason::Error);
        assert_eq!(answered.message.usage.total_tokens, 7, "the cost is kept");
    }

    #[test]
    fn failed_response_keeps_class_and_cost_without_content() {
        for stop_reason in [StopReason::Error, StopReason::Aborted] {
            let mut whole = answered_input();
            let Input::ResponseReceived(answered) = &mut whole else { unreachable!() };
            answered.message.stop_reason = stop_reason;
            answered.message.error_message = Some("cut".to_owned());
            answered.failure_kind = FailureKind::ContextOverflow;
            let smaller = reduce_inputs(&[whole], "3 MB").unwrap();
            let [Input::ResponseReceived(answered)] = smaller.as_slice() else {
                panic!("{smaller:?}")
            };
            let message = &answered.message;
            assert_eq!((message.stop_reason, message.usage.total_tokens), (stop_reason, 7));
            assert_eq!(message.error_message.as_deref(), Some("cut"));
            assert_eq!(answered.failure_kind, FailureKind::ContextOverflow);
            assert_eq!(message.content, [Block::text(format!("{LEFT_OUT} 3 MB.]"))]);
            let rest = reduce_inputs(&smaller, "3 MB").unwrap();
            assert!(matches!(rest[..], [Input::Poisoned { .. }]), "{rest:?}");
        }
    }

    #[test]
    fn finish_turn_decision_stays_with_last_result() {
        let decision = || Input::FinishTurn(FinishTurn::End);
        let whole =
            [decision(), Input::InboxRead(Vec::new()), returned_input(100), Input::DrainInbox];
        let first = reduce_inputs(&whole, "100 operations").unwrap();
        assert!(
            matches!(first[..], [Input::FinishTurn(_), Input::ToolCallReturned { .. }]),
            "{first:?}"
        );
        let second = reduce_inputs(&first, "100 operations").unwrap();
        assert!(
            matches!(second[..], [Input::FinishTurn(_), Input::ToolCallReturned { .. }]),
            "{second:?}"
        );
        let whole = [decision(), answered_input()];
        let first = reduce_inputs(&whole, "3 MB").unwrap();
        assert!(
            matches!(first[..], [Input::ResponseReceived(_)]),
            "a failed response leaves no decision"
        );
        let whole = [decision(), Input::InboxRead(Vec::new()), Input::DrainInbox];
        let first = reduce_inputs(&whole, "x").unwrap();
        assert!(matches!(first[..], [Input::InboxRead(_), Input::Poisoned { .. }]), "{first:?}");
    }

    fn actions(origin: ActionOrigin) -> Input {
        Input::HookActions(Box::new(HookActions::new("guard", "tool_result", origin)))
    }

    #[test]
    fn too_large_commit_drops_actions_before_results() {
        let whole = [
            Input::InboxRead(Vec::new()),
            returned_input(100),
            actions(ActionOrigin::Kept),
            Input::DrainInbox,
            actions(ActionOrigin::Recomputed),
        ];
        let first = reduce_inputs(&whole, "x").unwrap();
        assert!(
            matches!(first[..], [Input::ToolCallReturned { .. }, Input::HookActions(_)]),
            "{first:?}"
        );
        let second = reduce_inputs(&first, "x").unwrap();
        let [Input::ToolCallReturned { result, .. }] = &second[..] else { panic!("{second:?}") };
        assert_eq!(result.outputs.len(), 100, "the result is whole");
    }

    #[test]
    fn each_result_keeps_its_actions() {
        let kept = || actions(ActionOrigin::Kept);
        let whole = [
            Input::FinishTurn(FinishTurn::End),
            actions(ActionOrigin::WithTurnDecision),
            returned_input(1),
            kept(),
            returned_input(2),
            kept(),
        ];
        let first = reduce_inputs(&whole, "x").unwrap();
        assert!(
            matches!(first[..], [Input::ToolCallReturned { .. }, Input::HookActions(_)]),
            "{first:?}"
        );
    }

    #[test]
    fn changes_of_a_start_are_dropped_before_the_prompt_fails() {
        let changes = StartChanges {
            prompt_id: PromptId::new("pr_1"),
            messages: Vec::new(),
            system_prompt: Some("long".to_owned()),
        };
        let changes = Input::StartChanges(Box::new(changes));
        let whole = [Input::InboxRead(Vec::new()), changes, Input::DrainInbox];
        let first = reduce_inputs(&whole, "x").unwrap();
        let [Input::InboxRead(_), Input::StartChanges(changes), Input::DrainInbox] = &first[..]
        else {
            panic!("the prompt would wait for its changes: {first:?}")
        };
        assert_eq!(changes.system_prompt, None);
        let second = reduce_inputs(&first, "x").unwrap();
        assert!(matches!(second[..], [Input::InboxRead(_), Input::Poisoned { .. }]), "{second:?}");
    }

    #[test]
    fn plugin_parts_are_dropped_before_the_response() {
        let mut input = answered_input();
        let Input::ResponseReceived(answered) = &mut input else { unreachable!() };
        let contribution =
            Contribution { by: "skills".to_owned(), text: "x".to_owned(), is_volatile: false };
        let entry = FrameEntry {
            hash: "h".to_owned(),
            document: None,
            revision: "r".to_owned(),
            system_prompt_seq: None,
            tools: Vec::new(),
            contributions: vec![contribution],
            leaves_out_response_schema: false,
            extra: turnwheel_conversation::unknown_members::Extra::new(),
        };
        answered.frame =
            Some(FrameInput { entry, tokens: 1, is_own: false, changed_tools: Vec::new() });
        answered.plugin_state =
            vec![PluginStateChange { plugin: "skills".to_owned(), state: None }];
        let mut inputs = vec![Input::FinishTurn(FinishTurn::End), input];
        let mut steps = Vec::new();
        for _ in 0..4 {
            inputs = reduce_inputs(&inputs, "3 MB").unwrap();
            let Some(Input::ResponseReceived(answered)) = inputs.last() else { panic!() };
            let frame = answered.frame.as_ref();
            let contributions = frame.map(|frame| frame.entry.contributions.len());
            let is_failed = answered.message.is_failed();
            steps.push((contributions, answered.plugin_state.len(), is_failed, inputs.len()));
        }
        let expected =
            [(Some(0), 1, false, 2), (None, 1, false, 2), (None, 0, false, 2), (None, 0, true, 1)];
        assert_eq!(steps, expected);
    }

    #[test]
    fn inbox_read_is_kept_when_prompt_is_poisoned() {
        let inputs =
            reduce_inputs(&[Input::InboxRead(Vec::new()), Input::DrainInbox], "x").unwrap();
        assert!(matches!(inputs.as_slice(), [Input::InboxRead(_), Input::Poisoned { .. }]));
    }
}
