//! Extractors of requests for one conversation: reads, and commands with a JSON body. Each resolves
//! the conversation for its caller.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Path, Request};
use http::request::Parts;
use http::{HeaderMap, Uri};

use crate::auth::Caller;
use crate::body::JsonBody;
use crate::idempotency::resolve_idempotency;
use crate::lists::QueryParams;
use crate::problem::{MALFORMED, Problem};
use crate::{RequestParts, SharedApi, access};
use turnwheel_conversation::head::Head;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::idempotency::Idempotency;

/// A read of a conversation that the caller may see.
pub(crate) struct ConversationRead {
    pub api: SharedApi,
    pub key: ConversationKey,
    pub head: Head,
    /// The path's second id or name. Empty: the path has one.
    pub target: String,
    /// Address of the request, for links to the next page.
    pub uri: Uri,
    pub params: QueryParams,
}

impl FromRequestParts<SharedApi> for ConversationRead {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &SharedApi) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let (id, target) = path_ids(parts).await?;
        let Ok(RequestParts { uri, .. }) = RequestParts::from_request_parts(parts, api).await;
        let (key, head) = access::authorize_read(api, &caller, &id, &uri).await?;
        let params = QueryParams::from_uri(&uri);
        Ok(Self { api: Arc::clone(api), key, head, target, uri, params })
    }
}

/// A command for a conversation that the caller may change.
pub(crate) struct ConversationCommand<T> {
    pub api: SharedApi,
    pub key: ConversationKey,
    /// The path's second id or name. Empty: the path has one.
    pub target: String,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub idempotency: Idempotency,
    pub value: T,
}

impl<T> FromRequest<SharedApi> for ConversationCommand<T>
where
    JsonBody<T>: FromRequest<SharedApi, Rejection = Problem>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, api: &SharedApi) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, api).await?;
        let (id, target) = path_ids(&mut parts).await?;
        let Ok(RequestParts { uri, headers }) =
            RequestParts::from_request_parts(&mut parts, api).await;
        let route = route_name(&parts);
        let request = Request::from_parts(parts, body);
        let JsonBody { value, hash } = JsonBody::from_request(request, api).await?;
        let key = access::authorize_change(&caller, &id)?;
        // A key identifies one request, and the path is part of it.
        let hash = if target.is_empty() { hash } else { format!("{target} {hash}") };
        let idempotency = resolve_idempotency(api, &headers, route, hash)?;
        Ok(Self { api: Arc::clone(api), key, target, uri, headers, idempotency, value })
    }
}

/// Returns the conversation's id and the path's second id or name, if it has one.
async fn path_ids(parts: &mut Parts) -> Result<(String, String), Problem> {
    let path = Path::<Vec<(String, String)>>::from_request_parts(parts, &()).await;
    let Path(path) = path.map_err(|_| Problem::bad_request(MALFORMED))?;
    let mut ids = path.into_iter().map(|(_, id)| id);
    Ok((ids.next().unwrap_or_default(), ids.next().unwrap_or_default()))
}

/// Returns method and route template. Keys of earlier versions have the same text.
fn route_name(parts: &Parts) -> String {
    let path = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    format!("{} {}", parts.method, path.strip_prefix("/api").unwrap_or(path))
}
