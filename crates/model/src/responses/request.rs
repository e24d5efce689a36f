//! Serialised request bodies: built, validated, and changed by the payload hook.

use bytes::Bytes;
use serde::Serialize;

use crate::ModelRequest;
use crate::chat;
use crate::chat::body::{ChatBody, build_chat_body};
use crate::payload::{ModelPayload, PayloadHook};
use crate::responses::body::{RequestBody, build_request_body};
use crate::responses::config::CacheRetention;
use crate::responses::names::ToolNames;
use crate::responses::provider_error::ProviderError;

/// Serialises the body: validates it and applies the payload hook.
pub(super) async fn serialise_body(
    request: &ModelRequest<'_>,
    names: &ToolNames,
    retention: CacheRetention,
) -> Result<Bytes, Box<ProviderError>> {
    if request.model.api == chat::API {
        let body = build_chat_body(request, names, retention);
        check_body(body.find_violation())?;
        return apply_hook(&body, ChatBody::to_bytes, request.payload).await;
    }
    let body =
        build_request_body(request, names).with_cache_retention(retention, request.model.compat);
    check_body(body.find_violation())?;
    apply_hook(&body, RequestBody::to_bytes, request.payload).await
}

fn check_body(violation: Option<String>) -> Result<(), Box<ProviderError>> {
    let Some(violation) = violation else { return Ok(()) };
    let text =
        format!("The request was not sent, because the service would reject it: {violation}");
    Err(ProviderError::permanent(text).into())
}

async fn apply_hook<T: Serialize + Send + Sync>(
    body: &T,
    to_bytes: fn(&T) -> serde_json::Result<Vec<u8>>,
    hook: Option<&dyn PayloadHook>,
) -> Result<Bytes, Box<ProviderError>> {
    let unwritten =
        |error| ProviderError::permanent(format!("the request could not be serialised: {error}"));
    let Some(hook) = hook else {
        return Ok(to_bytes(body).map_err(unwritten)?.into());
    };
    let mut payload = ModelPayload::new(body);
    hook.on_payload(&mut payload).await.map_err(|text| ProviderError {
        kind: Some("hook_failed".to_owned()),
        ..ProviderError::connection_lost(format!("The request was not sent: {text}"))
    })?;
    let bytes = match payload.into_json() {
        Some(changed) => serde_json::to_vec(&changed),
        None => to_bytes(body),
    };
    Ok(bytes.map_err(unwritten)?.into())
}
