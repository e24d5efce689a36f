//! Query of a frame document: the parts of model calls beside the messages.

use turnwheel_conversation::head::Head;
use turnwheel_json::raw::RawJson;
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::ArtifactScope;
use turnwheel_storage::artifacts::frame_documents::get_frame_document;

/// The document of the conversation as it was stored. `None`: the store has none with this hash.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the artifact store does not respond: repeat the request.
pub async fn find_frame_document(
    services: &Services,
    head: &Head,
    sha256: &str,
) -> Result<Option<RawJson>, CommandError> {
    let scope = ArtifactScope { key: head.key(), incarnation: head.incarnation.clone() };
    let bytes = get_frame_document(&*services.artifacts, &scope, sha256).await?;
    Ok(bytes.and_then(|bytes| RawJson::from_text(String::from_utf8_lossy(&bytes)).ok()))
}
