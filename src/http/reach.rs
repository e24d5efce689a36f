//! Reach: which conversation a path means for a caller. What a caller may not know of does not exist.

use http::Uri;

use crate::agent::head::Head;
use crate::http::Api;
use crate::http::lists::Params;
use crate::http::owner::Caller;
use crate::http::problem::{self, Problem};
use crate::ids::{ConversationKey, UserId, is_plain};
use crate::store::HeadQuery;
use crate::turn::admission::Owner;
use crate::turn::admission::conversation::ID_MAX;
use crate::turn::{record, views::load};

/// Heads that a search for another's conversation reads at most; `?userId=` needs no search.
const HEADS_READ_MAX: usize = 5_000;
const PAGE: usize = 100;

/// The caller's own conversation of that id.
pub(crate) fn own(caller: &Caller, id: &str) -> Result<ConversationKey, Problem> {
    if id.len() > ID_MAX || !is_plain(id) {
        return Err(Problem::not_found("conversation"));
    }
    Ok(caller.owner.key(id))
}

/// A conversation that the caller may change: its own, and not as an operator.
pub(crate) fn to_change(caller: &Caller, id: &str) -> Result<ConversationKey, Problem> {
    let key = own(caller, id)?;
    refuse_operator(caller)?;
    Ok(key)
}

pub(crate) fn refuse_operator(caller: &Caller) -> Result<(), Problem> {
    if caller.is_operator() {
        return Err(Problem::new(problem::FORBIDDEN, "an operator reads and changes nothing"));
    }
    Ok(())
}

/// A conversation that the caller may read: its own; for operators also the tenant's others.
pub(crate) async fn to_read(
    api: &Api,
    caller: &Caller,
    (id, uri): (&str, &Uri),
) -> Result<(ConversationKey, Head), Problem> {
    let key = own(caller, id)?;
    let key = if caller.is_operator() { others(api, caller, key, uri).await? } else { key };
    let (head, _) = load::head(&api.world, &key).await?;
    Ok((key, head))
}

/// A conversation in which the caller may decide: its own, and for who has roles the tenant's others; whether a request
/// names the caller is seen there.
pub(crate) async fn to_decide(
    api: &Api,
    caller: &Caller,
    (id, uri): (&str, &Uri),
) -> Result<ConversationKey, Problem> {
    let key = own(caller, id)?;
    if caller.roles.is_empty() {
        return Ok(key);
    }
    others(api, caller, key, uri).await
}

async fn others(
    api: &Api,
    caller: &Caller,
    own: ConversationKey,
    uri: &Uri,
) -> Result<ConversationKey, Problem> {
    let params = Params::of(uri);
    if let Some(user) = params.get("userId") {
        if !is_plain(user) {
            return Err(Problem::not_found("conversation"));
        }
        let owner = Owner { tenant: caller.owner.tenant.clone(), user: UserId::new(user) };
        return Ok(owner.key(own.conversation_id.as_str()));
    }
    if load::find_head(&api.world, &own).await?.is_some() {
        return Ok(own);
    }
    let mut found = search(api, caller, &own).await?.into_iter();
    match (found.next(), found.next()) {
        (None, _) => Ok(own),
        (Some(key), None) => Ok(key),
        (Some(_), Some(_)) => Err(Problem::new(
            problem::CONFLICT,
            "several people have a conversation of that id: say whose with ?userId=",
        )),
    }
}

async fn search(
    api: &Api,
    caller: &Caller,
    own: &ConversationKey,
) -> Result<Vec<ConversationKey>, Problem> {
    let mut query = HeadQuery {
        tenant: caller.owner.tenant.clone(),
        user: None,
        state: None,
        limit: PAGE,
        continuation: None,
    };
    let mut found = Vec::new();
    let mut heads_read = 0;
    loop {
        let page = api.world.store.heads(&query).await.map_err(store_problem)?;
        heads_read += page.items.len();
        for stored in &page.items {
            let head = record::read_head(stored).map_err(store_problem)?;
            if head.conversation_id == own.conversation_id {
                found.push(head.key());
            }
        }
        query.continuation = page.continuation;
        if query.continuation.is_none() || heads_read >= HEADS_READ_MAX {
            return Ok(found);
        }
    }
}

pub(crate) fn store_problem(error: crate::store::StoreError) -> Problem {
    crate::turn::admission::Refusal::from(error).into()
}
