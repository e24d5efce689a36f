//! Access checks: resolve the conversation of a path for a caller. A conversation that the caller
//! may not see gives 404.

use http::Uri;

use crate::Api;
use crate::auth::Caller;
use crate::lists::QueryParams;
use crate::problem::{self, Problem};
use turnwheel_commands::conversation::ID_LENGTH_MAX;
use turnwheel_conversation::head::Head;
use turnwheel_platform::ids::{ConversationKey, UserId, is_plain_text};
use turnwheel_record::contract::Owner;
use turnwheel_record::load;

/// Returns the key of the caller's own conversation with this id.
pub(crate) fn own_conversation(caller: &Caller, id: &str) -> Result<ConversationKey, Problem> {
    if id.len() > ID_LENGTH_MAX || !is_plain_text(id) {
        return Err(Problem::not_found("conversation"));
    }
    Ok(caller.owner.conversation_key(id))
}

/// Returns the key of a conversation that the caller may change: its own, and not as an operator.
pub(crate) fn authorize_change(caller: &Caller, id: &str) -> Result<ConversationKey, Problem> {
    let key = own_conversation(caller, id)?;
    refuse_operator(caller)?;
    Ok(key)
}

pub(crate) fn refuse_operator(caller: &Caller) -> Result<(), Problem> {
    if caller.is_operator() {
        return Err(Problem::new(
            problem::FORBIDDEN,
            "The role Turnwheel.Operator only reads. Send the request without that role.",
        ));
    }
    Ok(())
}

/// True if the caller may read the instructions of agents: an operator, and everyone in `dev`.
pub(crate) fn may_read_instructions(api: &Api, caller: &Caller) -> bool {
    caller.is_operator() || api.access.is_dev
}

/// Returns the user that `?userId=` selects. For `None` the route decides.
pub(crate) fn selected_user(
    caller: &Caller,
    params: &QueryParams,
) -> Result<Option<UserId>, Problem> {
    let Some(user) = params.get("userId") else { return Ok(None) };
    if !is_plain_text(user) {
        return Err(Problem::bad_request("`userId` must be a user's id."));
    }
    if !caller.is_operator() && user != caller.owner.user.as_str() {
        let detail = "Only the role Turnwheel.Operator selects another user with `?userId=`.";
        return Err(Problem::new(problem::FORBIDDEN, detail));
    }
    Ok(Some(UserId::new(user)))
}

/// Returns the owner whose documents the caller reads: itself, or the user that `?userId=` selects.
pub(crate) fn selected_owner(caller: &Caller, params: &QueryParams) -> Result<Owner, Problem> {
    let user = selected_user(caller, params)?.unwrap_or_else(|| caller.owner.user.clone());
    Ok(Owner { tenant: caller.owner.tenant.clone(), user })
}

/// Loads a conversation that the caller may read: its own; for operators any of the tenant.
pub(crate) async fn authorize_read(
    api: &Api,
    caller: &Caller,
    id: &str,
    uri: &Uri,
) -> Result<(ConversationKey, Head), Problem> {
    let key = own_conversation(caller, id)?;
    let user = QueryParams::from_uri(uri).get("userId").map(ToOwned::to_owned);
    if !caller.is_operator() && user.is_some_and(|user| user != caller.owner.user.as_str()) {
        return Err(Problem::not_found("conversation"));
    }
    let key = if caller.is_operator() { find_in_tenant(api, caller, key, uri).await? } else { key };
    let (head, _) = load::head(&api.services, &key).await?;
    Ok((key, head))
}

/// Returns the key of a conversation in which the caller may decide: its own; for callers with
/// roles any of the tenant. The decision checks later that the request names the caller as
/// approver.
pub(crate) async fn authorize_decision(
    api: &Api,
    caller: &Caller,
    id: &str,
    uri: &Uri,
) -> Result<ConversationKey, Problem> {
    let key = own_conversation(caller, id)?;
    if caller.roles.is_empty() {
        return Ok(key);
    }
    find_in_tenant(api, caller, key, uri).await
}

async fn find_in_tenant(
    api: &Api,
    caller: &Caller,
    own_key: ConversationKey,
    uri: &Uri,
) -> Result<ConversationKey, Problem> {
    let params = QueryParams::from_uri(uri);
    if let Some(user) = params.get("userId") {
        if !is_plain_text(user) {
            return Err(Problem::not_found("conversation"));
        }
        let owner = Owner { tenant: caller.owner.tenant.clone(), user: UserId::new(user) };
        return Ok(owner.conversation_key(own_key.conversation_id.as_str()));
    }
    if load::find_head(&api.services, &own_key).await?.is_some() {
        return Ok(own_key);
    }
    let found = load::find_conversations_by_id(
        &*api.services.store,
        &own_key.tenant,
        &own_key.conversation_id,
    )
    .await;
    let mut found = found.map_err(store_problem)?.into_iter();
    match (found.next(), found.next()) {
        (None, _) => Ok(own_key),
        (Some(key), None) => Ok(key),
        (Some(_), Some(_)) => Err(Problem::new(
            problem::CONFLICT,
            "Several users have a conversation with this id. Select one with `?userId=`.",
        )),
    }
}

pub(crate) fn store_problem(error: turnwheel_storage::store::StoreError) -> Problem {
    turnwheel_record::contract::CommandError::from(error).into()
}
