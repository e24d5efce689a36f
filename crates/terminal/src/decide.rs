//! `turnwheel approve`, `reject` and `decide`.

use turnwheel_json::exact::ExactJson;

use crate::DONE;
use crate::approval::{TerminalDecision, describe_decision, parse_value};
use crate::arguments::{ApproveArguments, DecideArguments, RejectArguments};
use crate::client::{ApiRequest, Client, check_id, conversation_path};
use crate::error::TerminalError;
use crate::members::{items, text};
use crate::screen::{print_json, print_line};

pub(crate) async fn run_approve(
    client: &Client,
    arguments: &ApproveArguments,
) -> Result<u8, TerminalError> {
    let value = arguments.value.as_deref().map(parse_value);
    let decision = TerminalDecision { value, ..TerminalDecision::new("approve") };
    run_decision(client, &arguments.id, &decision, arguments.json).await
}

pub(crate) async fn run_reject(
    client: &Client,
    arguments: &RejectArguments,
) -> Result<u8, TerminalError> {
    let decision =
        TerminalDecision { reason: arguments.reason.clone(), ..TerminalDecision::new("reject") };
    run_decision(client, &arguments.id, &decision, arguments.json).await
}

pub(crate) async fn run_decide(
    client: &Client,
    arguments: &DecideArguments,
) -> Result<u8, TerminalError> {
    let decision = TerminalDecision {
        name: arguments.decision.clone(),
        value: arguments.value.as_deref().map(parse_value),
        reason: arguments.reason.clone(),
    };
    run_decision(client, &arguments.id, &decision, arguments.json).await
}

async fn run_decision(
    client: &Client,
    id: &str,
    decision: &TerminalDecision,
    is_json: bool,
) -> Result<u8, TerminalError> {
    check_id(id)?;
    let approval = find_request(client, id).await?;
    decision.check(&approval)?;
    let decided = client.send_once(&decision_request(&approval, decision)?).await?;
    if is_json {
        print_json(&decided);
    } else {
        print_line(&describe_decision(text(&decided, "title"), &decided, "decisionReason"));
    }
    Ok(DONE)
}

/// The request that sends a decision. The same one may be sent again.
pub(crate) fn decision_request(
    approval: &ExactJson,
    decision: &TerminalDecision,
) -> Result<ApiRequest, TerminalError> {
    let path = conversation_path(text(approval, "conversationId"))?;
    let path = format!("{path}/approvals/{}", text(approval, "id"));
    Ok(ApiRequest::post(path, decision.body()))
}

/// Finds the open request with the id, or the only one of the conversation with the id.
async fn find_request(client: &Client, id: &str) -> Result<ExactJson, TerminalError> {
    let mut of_conversation = Vec::new();
    let mut continuation = String::new();
    loop {
        let path = format!("/api/approvals?limit=100{continuation}");
        let page = client.send_once(&ApiRequest::get(path)).await?;
        for approval in items(&page, "items") {
            if text(approval, "id") == id {
                return Ok(approval.clone());
            }
            if text(approval, "conversationId") == id {
                of_conversation.push(approval.clone());
            }
        }
        match text(&page, "continuation") {
            "" => break,
            next => continuation = format!("&continuation={next}"),
        }
    }
    match of_conversation.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(TerminalError::Failed(format!(
            "there is no open request {id} that you may decide: `turnwheel ls --waiting` lists the conversations that wait"
        ))),
        several => {
            let ids: Vec<&str> = several.iter().map(|it| text(it, "id")).collect();
            Err(TerminalError::Failed(format!(
                "the conversation {id} has several open requests, name one: {}",
                ids.join(", ")
            )))
        }
    }
}
