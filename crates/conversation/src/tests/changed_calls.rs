//! Calls that differ from what an approver decided, although their tools require no approval now.

use super::*;
use crate::approval_binding::CallHashes;
use crate::destination::Destination;
use crate::phase::CallStatus;
use crate::request::RequestKind;

fn destination(host: &str) -> Destination {
    Destination {
        kind: "http".to_owned(),
        method: Some("POST".to_owned()),
        host: Some(host.to_owned()),
        ..Destination::default()
    }
}

fn binding(definition: &str, arguments: &str, host: &str) -> String {
    let hashes = CallHashes {
        call: format!("{definition}{arguments}"),
        definition: definition.to_owned(),
        arguments: arguments.to_owned(),
        destination: host.to_owned(),
    };
    hashes.bind(std::iter::empty())
}

/// The check of the first call, which goes to the host. `gate`: the reason of the tool's approval.
fn checked(gate: Option<&str>, (definition, arguments, host): (&str, &str, &str)) -> Input {
    let Input::ToolCallChecked { index, preflight: Preflight::Admitted(mut plan) } =
        admitted_call(0, Effect::Write, gate)
    else {
        panic!()
    };
    plan.binding = binding(definition, arguments, host);
    plan.destination = Some(destination(host));
    if let Some(approval) = &mut plan.approval {
        approval.approvers = vec!["role:boss".to_owned(), "link".to_owned()];
        approval.not_requester = true;
    }
    Input::ToolCallChecked { index, preflight: Preflight::Admitted(plan) }
}

const FIRST: (&str, &str, &str) = ("d", "a", "pay.example");

/// A transition whose gated call was approved.
fn approved() -> Transition {
    let mut transition = transition();
    apply_inputs(
        &mut transition,
        &[prompt("go"), response(&["pay {}"]), checked(Some("Gated"), FIRST)],
    );
    let approve = decision(&transition, Verdict::Approve, None);
    apply_inputs(&mut transition, &[approve]);
    transition
}

#[test]
fn changed_call_without_a_gate_needs_a_new_approval() {
    for (changed, says) in [
        (
            ("d", "a", "evil.example"),
            "It would go to POST evil.example, and it was approved for POST pay.example.",
        ),
        (("d2", "a", "pay.example"), "Its definition changed."),
        (("d", "a2", "pay.example"), "Its arguments changed."),
    ] {
        let mut transition = approved();
        let events = apply_inputs(&mut transition, &[checked(None, changed)]);
        assert_eq!(events.last().unwrap(), "prompt.approval-requested", "{changed:?}");
        let request = transition.head.requests[0].clone();
        assert_eq!(
            request.reason,
            format!(
                "The tool changed after this call was approved, so it needs a new decision. {says} The tool no longer requires an approval of this call."
            )
        );
        assert_eq!(request.approvers, ["role:boss", "link"], "those of the first request");
        assert!(request.is_requester_excluded);
        assert_eq!(request.destination, Some(destination(changed.2)));
        let approve = decision(&transition, Verdict::Approve, None);
        apply_inputs(&mut transition, &[approve, checked(None, changed)]);
        assert!(transition.calls()[0].is_started(), "{changed:?}");
    }
}

#[test]
fn unchanged_call_without_a_gate_starts_after_its_approval() {
    let mut transition = approved();
    apply_inputs(&mut transition, &[checked(None, FIRST)]);
    assert!(transition.calls()[0].is_started());
    assert!(transition.head.requests.is_empty());
}

#[test]
fn repeated_write_that_changed_needs_a_new_approval() {
    let mut transition = transition();
    let go = [prompt("go"), response(&["pay {}"]), checked(None, FIRST), lost_result(0)];
    apply_inputs(&mut transition, &go);
    let request = &transition.head.requests[0];
    assert_eq!(request.kind, RequestKind::Outcome);
    assert_eq!(request.destination, Some(destination("pay.example")), "where it was sent");
    let again = decision(&transition, Verdict::Again, None);
    apply_inputs(&mut transition, &[again, checked(None, ("d", "a", "evil.example"))]);
    let request = &transition.head.requests[0];
    assert_eq!(request.kind, RequestKind::Tool);
    assert_eq!(request.approvers, ["owner", "link"]);
    assert!(matches!(transition.calls()[0].status, CallStatus::Waiting { .. }));
}

#[test]
fn repeated_write_keeps_the_approvers_of_its_call() {
    let mut transition = approved();
    apply_inputs(&mut transition, &[checked(None, FIRST), lost_result(0)]);
    let again = decision(&transition, Verdict::Again, None);
    apply_inputs(&mut transition, &[again, checked(None, ("d", "a", "evil.example"))]);
    assert_eq!(transition.head.requests[0].approvers, ["role:boss", "link"]);
}

#[test]
fn call_that_nobody_decided_starts_again_after_a_change() {
    let mut transition = transition();
    let Input::ToolCallChecked { preflight: Preflight::Admitted(mut plan), .. } =
        checked(None, FIRST)
    else {
        panic!()
    };
    plan.effect = Effect::Read;
    let read = Input::ToolCallChecked { index: 0, preflight: Preflight::Admitted(plan) };
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"]), read]);
    apply_inputs(
        &mut transition,
        &[Input::LeaseTakenOver, checked(None, ("d2", "a", "other.example"))],
    );
    assert!(transition.calls()[0].is_started());
    assert!(transition.head.requests.is_empty());
}

/// The approved call as an earlier version stores it.
fn approved_by_an_earlier_version() -> Transition {
    let mut transition = approved();
    let mut stored = serde_json::to_value(&transition.head).unwrap();
    let call = stored["phase"]["calls"][0].as_object_mut().unwrap();
    assert!(call.remove("approval").is_some(), "{call:?}");
    call.insert("approved".to_owned(), json!("da"));
    transition.head = serde_json::from_value(stored).unwrap();
    transition
}

#[test]
fn approval_of_an_earlier_version_starts_the_same_revision_only() {
    let mut transition = approved_by_an_earlier_version();
    apply_inputs(&mut transition, &[checked(None, FIRST)]);
    assert!(transition.calls()[0].is_started());

    let mut transition = approved_by_an_earlier_version();
    apply_inputs(&mut transition, &[checked(None, ("d2", "a", "pay.example"))]);
    let request = &transition.head.requests[0];
    assert_eq!(request.approvers, ["owner"]);
    assert!(request.reason.contains("Its definition or its arguments changed."));
}
