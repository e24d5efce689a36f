//! Questions of extensions: their requests, the answers, and the room for both in the head.

use crate::head::Head;
use crate::phase::Phase;
use crate::question::{Answer, QuestionSpec, answer_bytes_max};
use crate::request::{Decision, Request, RequestKind, Verdict};
use crate::transition::Transition;

/// Maximum bytes of all answers in the head, with those of open questions.
const ANSWERS_BYTES_MAX: usize = 8 * 1024;
/// Maximum bytes of all open questions in the head.
const QUESTIONS_BYTES_MAX: usize = 16 * 1024;

/// True if the head has room for the question and its answer, beside the other open questions and
/// the recorded answers.
pub fn has_room_for_question(head: &Head, question: &QuestionSpec) -> bool {
    let mut questions = question.text.len() + question.schema.text().len();
    let mut answers = question.answer_bytes_max();
    for Request { asker, schema, reason, .. } in &head.requests {
        if let (Some(asker), Some(schema)) = (asker, schema) {
            questions += reason.len() + schema.text().len();
            answers += answer_bytes_max(asker, schema);
        }
    }
    if let Phase::Calls { calls, .. } = &head.phase {
        answers += calls.iter().map(|call| call.answers.byte_count()).sum::<usize>();
    }
    answers += head.waiting_commands.iter().map(|it| it.answers.byte_count()).sum::<usize>();
    questions <= QUESTIONS_BYTES_MAX && answers <= ANSWERS_BYTES_MAX
}

/// The request of a question about a subject. `base`: its conversation, and its call or command.
pub(super) fn new_request(
    transition: &Transition,
    question: &QuestionSpec,
    base: Request,
    subject: &str,
) -> Request {
    let extension = &question.asker.extension;
    Request {
        kind: RequestKind::Question,
        title: format!("The extension \"{extension}\" asks about {subject}."),
        reason: question.text.clone(),
        schema: Some(question.schema.clone()),
        asker: Some(question.asker.clone()),
        expires_at: Some(transition.now.plus(question.expires_after)),
        approvers: question.approvers.clone(),
        ..base
    }
}

/// The answer that a decision gives.
pub(super) fn answer_of(decision: &Decision) -> Answer {
    let value = decision.value.as_ref().filter(|_| decision.verdict == Verdict::Answer);
    value.map_or(Answer::Missing(()), |value| Answer::from_value(&value.to_value()))
}
