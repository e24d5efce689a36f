//! Questions of extensions about a tool call: request, answer, expiry, abort and room in the head.

use super::*;
use crate::phase::{CallStatus, Phase};
use crate::question::{Answer, Answers, Asker, QuestionSpec};
use crate::request::{Request, RequestKind};
use crate::step::{AskedQuestion, has_room_for_question};
use turnwheel_json::raw::RawJson;

fn asker(key: &str) -> Asker {
    Asker { extension: "guard".to_owned(), key: key.to_owned() }
}

fn question(key: &str, schema: &serde_json::Value) -> QuestionSpec {
    QuestionSpec {
        asker: asker(key),
        text: "Sure?".to_owned(),
        schema: RawJson::from_value(schema),
        approvers: vec!["role:Boss".to_owned()],
        expires_after: Duration::from_mins(1),
    }
}

fn asked(index: usize, key: &str) -> Input {
    checked(index, question(key, &json!({"type": "boolean"})))
}

fn checked(index: usize, question: QuestionSpec) -> Input {
    let binding = "bound".to_owned();
    let waiting = AskedQuestion { question, binding, destination: None, label: None };
    Input::ToolCallChecked { index, preflight: Preflight::Asked(Box::new(waiting)) }
}

/// A transition whose first call waits for an answer.
fn asked_transition() -> Transition {
    let mut transition = transition();
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"]), asked(0, "sure")]);
    transition
}

fn answer(transition: &Transition, value: &serde_json::Value) -> Input {
    let request_id = transition.head.requests[0].id.clone();
    let body = json!({"decision": {
        "requestId": request_id, "decision": "answer", "value": value, "decidedBy": "bob",
        "decidedAt": "2026-11-23T12:00:00.000Z",
    }});
    inbox_read_one(item(&format!("decision-{request_id}"), body))
}

fn recorded(transition: &Transition, key: &str) -> Option<Answer> {
    transition.calls()[0].answers.of_extension("guard").get(key).cloned()
}

fn only_request(transition: &Transition) -> Request {
    let [request] = transition.head.requests.as_slice() else {
        panic!("{:?}", transition.head.requests)
    };
    request.clone()
}

#[test]
fn stored_question_hides_no_characters() {
    let mut transition = transition();
    let mut question = question("sure", &json!({"type": "boolean"}));
    question.asker.extension = "gu\u{202e}ard".to_owned();
    question.text = "Pay \u{202e}052\u{202c}\nto A\u{200b}da\u{0}?".to_owned();
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"]), checked(0, question)]);
    let request = only_request(&transition);
    assert!(request.title.contains("\"guard\""), "{}", request.title);
    assert_eq!(request.reason, "Pay 052\nto Ada ?");
}

#[test]
fn question_opens_a_request_and_the_call_waits() {
    let mut transition = asked_transition();
    let request = only_request(&transition);
    assert_eq!(request.kind, RequestKind::Question);
    assert_eq!(request.title, "The extension \"guard\" asks about pay.");
    assert_eq!((request.reason.as_str(), request.asker), ("Sure?", Some(asker("sure"))));
    assert_eq!(request.approvers, ["role:Boss"]);
    assert_eq!(request.expires_at, Some(Timestamp(NOW.0 + 60_000)));
    assert_eq!(transition.head.next_due(NOW), request.expires_at, "no work is due before");
    assert_eq!(view(&transition)["state"], "waiting_for_approval");
    assert_eq!(
        view(&transition)["output"][0]["result"],
        json!({"type": "pending", "reason": "Sure?"})
    );
    let before = transition.entries.len();
    apply_inputs(&mut transition, &[asked(0, "sure")]);
    assert_eq!(transition.entries.len(), before, "a call that waits asks nothing");
}

#[test]
fn answers_are_recorded_until_the_call_is_done() {
    let mut transition = asked_transition();
    let yes = answer(&transition, &json!(true));
    let events = apply_inputs(&mut transition, &[yes, asked(0, "name")]);
    assert!(events.contains(&"prompt.approval-settled".to_owned()), "{events:?}");
    assert_eq!(recorded(&transition, "sure"), Some(Answer::Confirmation(true)));
    let name = answer(&transition, &json!("Ada"));
    apply_inputs(&mut transition, &[name, admitted_call(0, Effect::Write, Some("Gated"))]);
    assert_eq!(only_request(&transition).kind, RequestKind::Tool, "the approval is another one");
    let approve = decision(&transition, Verdict::Approve, None);
    apply_inputs(&mut transition, &[approve]);
    assert_eq!(transition.calls()[0].status, CallStatus::Ready);
    assert_eq!(recorded(&transition, "name"), Some(Answer::Text("Ada".to_owned())));
    assert_eq!(transition.head.required_reader(), 5, "an older version would lose the answers");
    apply_inputs(
        &mut transition,
        &[admitted_call(0, Effect::Write, Some("Gated")), returned_call(0, "paid")],
    );
    assert_eq!(result_texts(&transition.entries), ["paid"]);
    assert_eq!(transition.head.required_reader(), 1);
}

#[test]
fn answers_survive_a_take_over_and_an_unknown_outcome() {
    let mut transition = asked_transition();
    let yes = answer(&transition, &json!(true));
    apply_inputs(
        &mut transition,
        &[yes, admitted_call(0, Effect::Read, None), Input::LeaseTakenOver],
    );
    assert_eq!(transition.calls()[0].status, CallStatus::Ready);
    assert_eq!(recorded(&transition, "sure"), Some(Answer::Confirmation(true)));
    apply_inputs(&mut transition, &[admitted_call(0, Effect::Write, None), lost_result(0)]);
    let again = decision(&transition, Verdict::Again, None);
    apply_inputs(&mut transition, &[again]);
    assert_eq!(recorded(&transition, "sure"), Some(Answer::Confirmation(true)));
}

#[test]
fn expired_question_leaves_the_decision_to_the_hook() {
    let mut transition = asked_transition();
    let expired = decision(&transition, Verdict::Expired, None);
    apply_inputs(&mut transition, &[expired]);
    assert_eq!(transition.calls()[0].status, CallStatus::Ready);
    assert_eq!(recorded(&transition, "sure"), Some(Answer::Missing(())));
}

#[test]
fn abort_ends_a_call_that_waits_for_an_answer() {
    let mut transition = asked_transition();
    let abort = item("in_2", json!({"abort": {"promptId": "pr_1"}}));
    apply_inputs(&mut transition, &[inbox_read_one(abort)]);
    assert_eq!(result_texts(&transition.entries), ["Operation aborted"]);
    assert!(transition.head.requests.is_empty());
    assert_eq!(view(&transition)["state"], "aborted");
}

#[test]
fn stored_answers_read_back() {
    let mut transition = asked_transition();
    let text = answer(&transition, &json!("Ada"));
    apply_inputs(&mut transition, &[text, asked(0, "two")]);
    let expired = decision(&transition, Verdict::Expired, None);
    apply_inputs(&mut transition, &[expired, asked(0, "three")]);
    let stored = serde_json::to_string(&transition.head).unwrap();
    let read: Head = serde_json::from_str(&stored).unwrap();
    assert_eq!(read, transition.head);
    assert!(stored.contains(r#""answers":{"guard":{"sure":"Ada","two":null}}"#), "{stored}");
    assert!(stored.contains(r#""asker":{"extension":"guard","key":"three"}"#), "{stored}");
}

#[test]
fn head_has_room_for_eight_kilobytes_of_answers() {
    let input = question("name", &json!({"type": "string", "maxLength": 1_000}));
    let mut transition = asked_transition();
    assert!(has_room_for_question(&transition.head, &input));
    let open = transition.head.requests[0].clone();
    let asking_for_text = Request { schema: Some(input.schema.clone()), ..open };
    transition.head.requests = vec![asking_for_text.clone(); 3];
    assert!(!has_room_for_question(&transition.head, &input), "each may take 2 KB");
    assert!(has_room_for_question(
        &transition.head,
        &question("sure", &json!({"type": "boolean"}))
    ));
    transition.head.requests = vec![asking_for_text; 2];
    assert!(has_room_for_question(&transition.head, &input));
    let mut answers = Answers::default();
    answers.add(&asker("name"), Answer::Text("x".repeat(3_000)));
    let Phase::Calls { calls, .. } = &mut transition.head.phase else { panic!() };
    calls[0].answers = answers;
    assert!(!has_room_for_question(&transition.head, &input));

    let mut long = question("sure", &json!({"type": "boolean"}));
    long.text = "x".repeat(2_048);
    transition.head.requests = Vec::new();
    while has_room_for_question(&transition.head, &long) {
        let request = Request { reason: long.text.clone(), ..only_request(&asked_transition()) };
        transition.head.requests.push(request);
    }
    assert_eq!(transition.head.requests.len(), 7, "16 KB of texts");
}
