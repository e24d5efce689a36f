//! Routes of session files: import one as a conversation, and export a conversation.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::HeaderValue;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    X_CONTENT_TYPE_OPTIONS,
};

use crate::auth::Caller;
use crate::body;
use crate::idempotency::resolve_idempotency;
use crate::lists::QueryParams;
use crate::problem::{self, Problem};
use crate::{HandlerResult, RequestParts, SharedApi, access, into_response};
use turnwheel_commands::session_import::{SessionImport, SessionImported, import_session};
use turnwheel_queries::html_page::PageZone;
use turnwheel_queries::session_export::{ExportFormat, SessionExport};
use turnwheel_record::contract::CommandError;
use turnwheel_tools::sha256_hex;

/// Import a conversation from a session file, as JSON Lines.
/// Lines that cannot be used are skipped and reported. The file may have 64 MB.
#[utoipa::path(
    post, path = "/conversations/import", operation_id = "importConversation", tag = "conversations",
    params(
        ("agent" = Option<String>, Query, description = "Name of an agent; by default the one in the file, or the default agent."),
        ("conversationId" = Option<String>, Query, description = "Id of the new conversation."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    request_body(content = String, content_type = "application/x-ndjson"),
    responses((status = 201, body = SessionImported, headers(("Location" = String))))
)]
pub(crate) async fn import(
    State(api): State<SharedApi>,
    caller: Caller,
    RequestParts { uri, headers }: RequestParts,
    content: Body,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    check_content_type(&headers)?;
    body::check_content_encoding(&headers)?;
    let params = QueryParams::from_uri(&uri);
    let request = SessionImport {
        agent: params.get("agent").map(ToOwned::to_owned),
        conversation_id: params.get("conversationId").map(ToOwned::to_owned),
    };
    let hash = request_hash(&request);
    let idempotency = resolve_idempotency(&api, &headers, "POST /conversations/import", hash)?;
    // Released when the import has ended.
    let _reservation = body::reserve_import(&api.body_kib)?;
    let mut content = Box::pin(content.into_data_stream().peekable());
    if let Some(Ok(first)) = content.as_mut().peek().await {
        body::check_uncompressed(first).map_err(|_compressed| compressed_file())?;
    }
    let parts = Box::pin(body_parts(content));
    let result = import_session(&api.services, &caller.owner, request, &idempotency, parts).await?;
    Ok(into_response(result))
}

/// Stored requests have this hash: never change its text.
fn request_hash(SessionImport { agent, conversation_id }: &SessionImport) -> String {
    let text =
        format!("SessionImport {{ agent: {agent:?}, conversation_id: {conversation_id:?} }}");
    sha256_hex(text.as_bytes())
}

fn compressed_file() -> Problem {
    Problem::bad_request(
        "The file is compressed (gzip). Decompress it: the first line of a session file is a header with the `type` \"session\" or \"turnwheel\".",
    )
}

fn check_content_type(headers: &http::HeaderMap) -> Result<(), Problem> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if matches!(essence.as_str(), "application/x-ndjson" | "application/jsonl" | "") {
        return Ok(());
    }
    Err(Problem::new(
        problem::UNSUPPORTED_MEDIA_TYPE,
        "Send the session file as application/x-ndjson.",
    ))
}

fn body_parts(
    content: impl Stream<Item = Result<Bytes, axum::Error>> + Send,
) -> impl Stream<Item = Result<Bytes, CommandError>> + Send {
    content.map(|part| {
        part.map_err(|_| {
            CommandError::invalid("", "The file ended before it was complete. Send it again.")
        })
    })
}

/// Export a conversation as a session file or as a page.
#[utoipa::path(
    get, path = "/conversations/{id}/export", operation_id = "exportConversation", tag = "conversations",
    params(
        ("id" = String, Path),
        ("format" = Option<String>, Query, description = "`turnwheel` (the default), `pi` or `html`."),
        ("timeZone" = Option<String>, Query, description = "IANA name of the time zone of a page, such as `Europe/Berlin`. Default: UTC."),
    ),
    responses((status = 200, content((String = "application/x-ndjson"), (String = "text/html"))))
)]
pub(crate) async fn export(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
    RequestParts { uri, .. }: RequestParts,
) -> HandlerResult {
    let params = QueryParams::from_uri(&uri);
    let name = params.get("format").unwrap_or("turnwheel");
    let format = ExportFormat::from_name(name).ok_or_else(|| {
        CommandError::invalid("?format", "`format` is `turnwheel`, `pi` or `html`")
    })?;
    let zone = params.get("timeZone").map_or_else(|| Ok(PageZone::utc()), PageZone::from_name);
    let zone = zone.map_err(|problem| CommandError::invalid("?timeZone", problem))?;
    let (_, head) = access::authorize_read(&api, &caller, &id, &uri).await?;
    let mut export = SessionExport::new(head, format, zone);
    if access::may_read_instructions(&api, &caller) {
        export = export.with_frame_documents();
    }
    // An error of the first part has a status of its own.
    let first = export.next_part(&api.services).await?.unwrap_or_default();
    let rest =
        futures_util::stream::unfold((Arc::clone(&api), export), |(api, mut export)| async {
            let part = export.next_part(&api.services).await.transpose()?;
            Some((part.map_err(std::io::Error::other), (api, export)))
        });
    let parts = futures_util::stream::iter([Ok(first)]).chain(rest);
    Ok(file_response(Body::from_stream(parts), &id, format))
}

fn file_response(content: Body, id: &str, format: ExportFormat) -> Response {
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    let disposition = format!("attachment; filename=\"{id}.{}\"", format.extension());
    if let Ok(value) = HeaderValue::from_str(&disposition) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_keeps_the_hash_that_stored_requests_have() {
        let request = SessionImport { agent: Some("clerk".to_owned()), conversation_id: None };
        let hash = "d4cf676feb257f3e31d859da181b754ebf6eba9b8d571155199853dca8dad727";
        assert_eq!(request_hash(&request), hash);
    }
}
