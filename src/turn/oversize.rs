//! Fallback for a step that exceeds one commit: the inputs to leave out, with the least loss
//! (invariant 11).

use crate::agent::content::Block;
use crate::agent::message::StopReason;
use crate::agent::step::{CallResult, FailureKind, Input, ResponseInput};

/// The same step with fewer inputs or a smaller result. `None`: nothing is left to remove. `excess`
/// is the exceeded bound, in words.
pub(crate) fn reduce_inputs(inputs: &[Input], what: &str) -> Option<Vec<Input>> {
    let is_poisoned = inputs.iter().any(|input| matches!(input, Input::Poisoned { .. }));
    if is_poisoned {
        return None;
    }
    // The next commit computes these inputs again.
    let is_recomputable = |input: &Input| {
        matches!(
            input,
            Input::InboxRead(_)
                | Input::DrainInbox
                | Input::ToolCallChecked { .. }
                | Input::ContextWindowExceeded
                | Input::BudgetChecked(_)
                | Input::Paused(_)
        )
    };
    let done: Vec<Input> = inputs.iter().filter(|input| !is_recomputable(input)).cloned().collect();
    let is_decision = |input: &Input| matches!(input, Input::FinishTurn(_));
    if !done.iter().all(is_decision) && done.len() < inputs.len() {
        return Some(done);
    }
    // An extension's decision on the turn stays with the input that closes the turn.
    let (decision, inputs) = match inputs {
        [decision @ Input::FinishTurn(_), rest @ ..] => (Some(decision), rest),
        _ => (None, inputs),
    };
    match inputs {
        // Each of several results can have a commit of its own.
        [
            first @ (Input::ToolCallReturned { .. } | Input::ToolOutcomeUnknown { .. }),
            Input::ToolCallReturned { .. } | Input::ToolOutcomeUnknown { .. },
            ..,
        ] => Some(vec![first.clone()]),
        [Input::ToolCallReturned { index, result }] if !is_text_only(result) => {
            let text_only = Input::ToolCallReturned {
                index: *index,
                result: Box::new(text_only_result(result)),
            };
            Some(decision.cloned().into_iter().chain([text_only]).collect())
        }
        [Input::ResponseReceived(answered)] if !answered.message.is_failed() => {
            Some(vec![Input::ResponseReceived(Box::new(failed_response(answered, what)))])
        }
        _ => {
            let reason = format!("The step is larger than one commit can hold: {what}.");
            let inbox_reads = inputs.iter().filter(|input| matches!(input, Input::InboxRead(_)));
            // Keep the inbox read: uncounted items would have no pending work that names them.
            Some(inbox_reads.cloned().chain([Input::Poisoned { reason }]).collect())
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
    }
}

/// Drops the response but keeps its cost.
fn failed_response(answered: &ResponseInput, what: &str) -> ResponseInput {
    let mut failed = answered.clone();
    failed.message.content = Vec::new();
    failed.message.stop_reason = StopReason::Error;
    failed.message.error_message =
        Some(format!("The model response is larger than one commit can hold: {what}."));
    failed.failure_kind = FailureKind::Permanent;
    failed.schema_error = None;
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::step::FinishTurn;

    fn returned_input(outputs: usize) -> Input {
        let data = crate::agent::raw::RawJson::from_value(&serde_json::json!({}));
        let output = crate::agent::entry::Output::Other(data);
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
            message: serde_json::from_value(message).unwrap(),
            revision: String::new(),
            started_at: crate::clock::Timestamp(0),
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

    #[test]
    fn inbox_read_is_kept_when_prompt_is_poisoned() {
        let inputs =
            reduce_inputs(&[Input::InboxRead(Vec::new()), Input::DrainInbox], "x").unwrap();
        assert!(matches!(inputs.as_slice(), [Input::InboxRead(_), Input::Poisoned { .. }]));
    }
}
