//! Fuzz test of responses: any text is a result or an error, and no error holds a value of it.

use super::actions::add_actions;
use super::response_parts::read_response;
use super::responses::{
    BashResponse, BeforeAgentStartResponse, BeforeCompactResponse, CommandEventResponse,
    EmptyResponse, EventResponse, PrepareResponse, ToolCallResponse, ToolResultResponse,
    TurnEndResponse,
};
use super::tests::context;
use crate::{Hook, ToolCallDecision};
use turnwheel_test_support::fuzz::{SECRET, check};
use turnwheel_tools::{EXPIRY_MAX, is_approver};

fn hook_response(input: &[u8]) {
    let Ok(body) = std::str::from_utf8(input) else { return };
    let decision = ToolCallResponse::read(body).and_then(|it| it.into_decision(4));
    if let Ok(ToolCallDecision::RequireApproval(request)) = &decision {
        assert!(request.approvers.iter().all(|approver| is_approver(approver)));
        assert!(request.reason.len() <= 2_048 && request.expires_after <= EXPIRY_MAX);
    }
    let asked = ToolCallResponse::read(body).and_then(|mut response| {
        let question = response.take_question()?;
        let errors = question.map(|question| question.ask(&context(Hook::ToolCall)).to_string());
        let added = add_actions(response.take_actions(), &context(Hook::ToolCall));
        errors.map_or(added, Err)
    });
    let errors = [
        asked.err(),
        read_response::<CommandEventResponse>(body).err(),
        read_response::<BashResponse>(body).map(BashResponse::into_result).err(),
        decision.err(),
        read_response::<ToolResultResponse>(body).map(ToolResultResponse::into_changes).err(),
        read_response::<BeforeAgentStartResponse>(body)
            .map(BeforeAgentStartResponse::into_changes)
            .err(),
        read_response::<TurnEndResponse>(body).map(TurnEndResponse::into_decision).err(),
        read_response::<BeforeCompactResponse>(body)
            .and_then(BeforeCompactResponse::into_override)
            .err(),
        read_response::<PrepareResponse>(body).err(),
        read_response::<EmptyResponse>(body).err(),
    ];
    for error in errors.into_iter().flatten() {
        assert!(!error.contains(SECRET) && error.len() < 300, "{error}");
    }
}

#[test]
fn fuzz_hook_response() {
    check("hook_response", hook_response);
}
