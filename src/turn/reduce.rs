//! Fallback for a step that exceeds one commit: the inputs to leave out, with the least loss
//! (invariant 11).

use crate::agent::content::Block;
use crate::agent::message::StopReason;
use crate::agent::step::{Answered, CallResult, Input, Setback};

/// The same step with fewer inputs or a smaller result. `None`: nothing is left to remove. `excess`
/// is the exceeded bound, in words.
pub(super) fn reduced(inputs: &[Input], what: &str) -> Option<Vec<Input>> {
    let is_poisoned = inputs.iter().any(|input| matches!(input, Input::Poisoned { .. }));
    if is_poisoned {
        return None;
    }
    // The next commit computes these inputs again.
    let is_ahead = |input: &Input| {
        matches!(
            input,
            Input::Looked(_)
                | Input::TakeIn
                | Input::Prepared { .. }
                | Input::Crowded
                | Input::Paying(_)
                | Input::Braked(_)
        )
    };
    let done: Vec<Input> = inputs.iter().filter(|input| !is_ahead(input)).cloned().collect();
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
            first @ (Input::Returned { .. } | Input::OutcomeUnknown { .. }),
            Input::Returned { .. } | Input::OutcomeUnknown { .. },
            ..,
        ] => Some(vec![first.clone()]),
        [Input::Returned { index, result }] if !is_plain(result) => {
            let plain = Input::Returned { index: *index, result: Box::new(plain(result)) };
            Some(decision.cloned().into_iter().chain([plain]).collect())
        }
        [Input::Answered(answered)] if !answered.message.is_failed() => {
            Some(vec![Input::Answered(Box::new(failed(answered, what)))])
        }
        _ => {
            let reason = format!("The step is larger than one commit can hold: {what}.");
            let looked = inputs.iter().filter(|input| matches!(input, Input::Looked(_)));
            // Keep the inbox read: uncounted items would have no pending work that names them.
            Some(looked.cloned().chain([Input::Poisoned { reason }]).collect())
        }
    }
}

fn is_plain(result: &CallResult) -> bool {
    result.outputs.is_empty()
        && result.details.is_none()
        && result.structured.is_none()
        && result.content.iter().all(|block| matches!(block, Block::Text(_)))
}

/// Keeps the text, because the call was made.
fn plain(result: &CallResult) -> CallResult {
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
fn failed(answered: &Answered, what: &str) -> Answered {
    let mut failed = answered.clone();
    failed.message.content = Vec::new();
    failed.message.stop_reason = StopReason::Error;
    failed.message.error_message =
        Some(format!("The model response is larger than one commit can hold: {what}."));
    failed.setback = Setback::Final;
    failed.misfit = None;
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::step::FinishTurn;

    fn returned(outputs: usize) -> Input {
        let data = crate::agent::raw::RawJson::of(&serde_json::json!({}));
        let output = crate::agent::entry::Output::Other(data);
        let content = vec![Block::text("paid")];
        let result =
            CallResult { content, outputs: vec![output; outputs], ..CallResult::default() };
        Input::Returned { index: 0, result: Box::new(result) }
    }

    fn answered() -> Input {
        let message = serde_json::json!({
            "content": [{"type": "text", "text": "long"}], "api": "a", "provider": "p", "model": "m",
            "usage": {"totalTokens": 7}, "stopReason": "stop", "timestamp": 0,
        });
        Input::Answered(Box::new(Answered {
            message: serde_json::from_value(message).unwrap(),
            revision: String::new(),
            started_at: crate::clock::Timestamp(0),
            setback: Setback::Final,
            misfit: None,
        }))
    }

    #[test]
    fn what_a_tool_did_is_told_even_when_what_it_made_is_too_much() {
        let whole = [Input::Looked(Vec::new()), returned(100), Input::TakeIn];
        let first = reduced(&whole, "100 operations").unwrap();
        assert_eq!(first.len(), 1);
        let second = reduced(&first, "100 operations").unwrap();
        let [Input::Returned { result, .. }] = second.as_slice() else { panic!("{second:?}") };
        assert_eq!(result.content.first(), Some(&Block::text("paid")));
        assert!(result.outputs.is_empty());
        assert!(matches!(reduced(&second, "x").unwrap().as_slice(), [Input::Poisoned { .. }]));
    }

    #[test]
    fn a_window_that_is_full_as_well_costs_neither_result_nor_answer() {
        let whole = [Input::Looked(Vec::new()), returned(100), Input::TakeIn, Input::Crowded];
        let first = reduced(&whole, "100 operations").unwrap();
        assert!(matches!(first.as_slice(), [Input::Returned { .. }]), "{first:?}");
        let first = reduced(&[answered(), Input::Crowded], "3 MB").unwrap();
        assert!(matches!(first.as_slice(), [Input::Answered(_)]), "{first:?}");
        let second = reduced(&first, "3 MB").unwrap();
        let [Input::Answered(answered)] = second.as_slice() else { panic!("{second:?}") };
        assert_eq!(answered.message.stop_reason, StopReason::Error);
        assert_eq!(answered.message.usage.total_tokens, 7, "the cost is kept");
    }

    #[test]
    fn decision_on_the_turn_stays_with_its_last_result() {
        let decision = || Input::FinishTurn(FinishTurn::End);
        let whole = [decision(), Input::Looked(Vec::new()), returned(100), Input::TakeIn];
        let first = reduced(&whole, "100 operations").unwrap();
        assert!(matches!(first[..], [Input::FinishTurn(_), Input::Returned { .. }]), "{first:?}");
        let second = reduced(&first, "100 operations").unwrap();
        assert!(matches!(second[..], [Input::FinishTurn(_), Input::Returned { .. }]), "{second:?}");
        let whole = [decision(), answered()];
        let first = reduced(&whole, "3 MB").unwrap();
        assert!(matches!(first[..], [Input::Answered(_)]), "a failed response leaves no decision");
        let whole = [decision(), Input::Looked(Vec::new()), Input::TakeIn];
        let first = reduced(&whole, "x").unwrap();
        assert!(matches!(first[..], [Input::Looked(_), Input::Poisoned { .. }]), "{first:?}");
    }

    #[test]
    fn who_waits_is_counted_when_the_prompt_is_given_up() {
        let reduced = reduced(&[Input::Looked(Vec::new()), Input::TakeIn], "x").unwrap();
        assert!(matches!(reduced.as_slice(), [Input::Looked(_), Input::Poisoned { .. }]));
    }
}
