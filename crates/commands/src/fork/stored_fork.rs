//! A fork whose hooks ask a question: it is stored in its source, and a worker makes it.

use crate::fork::{ForkRequest, ForkResult, try_fork};
use crate::pipeline::CommandContext;
use crate::request_hooks::{HookInputs, HookResult};
use crate::target::Target;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::step::has_room_for_question;
use turnwheel_conversation::waiting_command::{
    AskingRequest, FinishedCommand, RequestKey, RunOutcome,
};
use turnwheel_json::raw::RawJson;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;

const NO_ROOM: &str = "other questions leave no room for the question of an extension: answer them, then send the request again";

/// Stores the request in the conversation of `head`, the source of the fork.
pub(super) async fn store(
    context: CommandContext<'_>,
    head: Head,
    request: RawJson,
) -> Result<CommandResponse, CommandError> {
    let Idempotency { key, is_repeatable, route, body_hash } = context.idempotency.clone();
    let key = RequestKey { key, is_repeatable, route, body_hash };
    let input_id = Some(context.input_id());
    let last_event_id = Some(head.event_seq);
    let response = ForkResult { input_id, last_event_id, ..ForkResult::default() };
    let stored = AskingRequest::Fork { request, key };
    context.store_asking(&Target::Existing(head), &stored, &response).await
}

/// Makes the fork as far as the answers allow. `None`: a later turn does. A repetition after a crash
/// continues the fork, or finds it.
pub(crate) async fn run_again(
    services: &Services,
    head: &Head,
    request: &RawJson,
    key: RequestKey,
    hook_inputs: HookInputs,
) -> Option<RunOutcome> {
    let failed = |error: &str| {
        let error = Some(error.to_owned());
        Some(finished(RawJson::from_value(&ForkResult { error, ..ForkResult::default() })))
    };
    let RequestKey { key, is_repeatable, route, body_hash } = key;
    let Ok(request) = request.read::<ForkRequest>() else {
        return failed("this version cannot read the request: send it again");
    };
    let idempotency = Idempotency { key, is_repeatable, route, body_hash };
    match try_fork(services, &head.key(), request, &idempotency, hook_inputs).await {
        Ok(HookResult::Done(response)) => response.body.map(finished),
        Ok(HookResult::Asked(question)) if !has_room_for_question(head, &question) => {
            failed(NO_ROOM)
        }
        Ok(HookResult::Asked(question)) => {
            Some(RunOutcome::Asked { question, subject: "a fork".to_owned() })
        }
        Ok(HookResult::Deferred)
        | Err(
            CommandError::Unavailable { .. } | CommandError::Conflict { retry_after: Some(_), .. },
        ) => None,
        Err(error) => failed(&error.to_string()),
    }
}

fn finished(result: RawJson) -> RunOutcome {
    let (actions, leaf_change) = (Vec::new(), None);
    RunOutcome::Done(Box::new(FinishedCommand { result, actions, leaf_change }))
}
