//! Calls that write and whose response was lost: outcome requests, take-overs and late results.

use super::*;
use crate::entry::EntryBody;
use crate::phase::{CallStatus, Phase};

#[test]
fn indeterminate_write_requests_outcome_and_blocks_equal_calls() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["pay {}", "pay {}"]),
            admitted_call(0, Effect::Write, None),
            lost_result(0),
        ],
    );
    assert_eq!(transition.head.requests[0].kind, crate::request::RequestKind::Outcome);
    assert_eq!(transition.head.indeterminate_writes.len(), 1);
    let decision_input = decision(&transition, Verdict::DidNotHappen, None);
    apply_inputs(&mut transition, &[decision_input]);
    assert!(transition.head.indeterminate_writes.is_empty());
    apply_inputs(&mut transition, &[admitted_call(1, Effect::Write, None)]);
    assert!(matches!(transition.calls()[1].status, CallStatus::Started { .. }));
}

#[test]
fn unknown_outcome_without_request_blocks_equal_calls() {
    let mut transition = transition();
    let Input::ToolCallChecked { preflight: Preflight::Admitted(mut plan), .. } =
        admitted_call(0, Effect::Write, None)
    else {
        panic!()
    };
    plan.on_unknown = OnUnknown::Tell;
    let checked = Input::ToolCallChecked { index: 0, preflight: Preflight::Admitted(plan) };
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}", "pay {}"]), checked, lost_result(0)],
    );
    assert!(transition.head.requests.is_empty());
    let events = apply_inputs(&mut transition, &[admitted_call(1, Effect::Write, None)]);
    assert!(events.contains(&"tool_execution_end pay error".to_owned()));
}

#[test]
fn again_verdict_reruns_effect_without_new_approval() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}"]), admitted_call(0, Effect::Write, Some("Gated"))],
    );
    let approve = decision(&transition, Verdict::Approve, None);
    apply_inputs(
        &mut transition,
        &[approve, admitted_call(0, Effect::Write, Some("Gated")), lost_result(0)],
    );
    let again = decision(&transition, Verdict::Again, None);
    apply_inputs(&mut transition, &[again, admitted_call(0, Effect::Write, Some("Gated"))]);
    let effects: Vec<_> = transition
        .entries
        .iter()
        .filter_map(|entry| {
            if let EntryBody::ToolStarted(started) = &entry.body { Some(started) } else { None }
        })
        .map(|started| (started.effect_id.to_string(), started.attempt))
        .collect();
    assert_eq!(effects.len(), 2);
    assert_eq!(effects[0].0, effects[1].0);
    assert_eq!((effects[0].1, effects[1].1), (1, 2));
}

#[test]
fn take_over_reruns_reads_but_not_writes() {
    for (effect, is_ready) in
        [(Effect::Read, true), (Effect::Idempotent, true), (Effect::Write, false)]
    {
        let mut transition = transition();
        apply_inputs(
            &mut transition,
            &[
                prompt("go"),
                response(&["tool {}"]),
                admitted_call(0, effect, None),
                Input::LeaseTakenOver,
            ],
        );
        assert_eq!(transition.calls()[0].status == CallStatus::Ready, is_ready, "{effect:?}");
    }
}

#[test]
fn late_result_settles_open_outcome_request() {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[
            prompt("go"),
            response(&["pay {}"]),
            admitted_call(0, Effect::Write, None),
            lost_result(0),
        ],
    );
    let Phase::Calls { response_seq: answer, .. } = transition.head.phase.clone() else { panic!() };
    let body = json!({"lateResult": {"call": {"answer": answer, "index": 0}, "message":
        {"toolCallId": "c0|fc_0", "toolName": "pay", "content": [{"type": "text", "text": "paid"}], "isError": false, "timestamp": 1}}});
    apply_inputs(&mut transition, &[inbox_read_one(item("late-1", body))]);
    assert!(transition.head.requests.is_empty() && transition.head.indeterminate_writes.is_empty());
    assert_eq!(
        view(&transition)["output"][0]["result"],
        json!({"type": "success", "output": "paid"})
    );
}
