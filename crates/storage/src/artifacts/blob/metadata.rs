//! Artifact metadata as properties and metadata of a blob. They are sent as headers: ASCII, with
//! lower-case names.

use std::collections::HashMap;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::super::ArtifactMetadata;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ArtifactId;

const NAME: &str = "name";
const MIME_TYPE: &str = "mimetype";
const CREATED_AT: &str = "createdat";
/// Content type that the service gives a blob without one.
const DEFAULT_CONTENT_TYPE: &str = "application/octet-stream";

/// Content type for the portal and for links; `None` if it is not valid in a header.
pub(super) fn header_content_type(mime_type: &str) -> Option<String> {
    let is_header =
        !mime_type.is_empty() && mime_type.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    is_header.then(|| mime_type.to_owned())
}

/// Returns the metadata of the blob. The blob itself has the size and the id.
pub(super) fn to_blob_metadata(facts: &ArtifactMetadata) -> HashMap<String, String> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut metadata = HashMap::from([
        (MIME_TYPE.to_owned(), encoded(&facts.mime_type)),
        (CREATED_AT.to_owned(), facts.created_at.0.to_string()),
    ]);
    if let Some(name) = facts.name.as_deref().filter(|name| !name.is_empty()) {
        metadata.insert(NAME.to_owned(), encoded(name));
    }
    metadata
}

pub(super) fn from_blob(
    id: ArtifactId,
    size: u64,
    content_type: Option<String>,
    metadata: &HashMap<String, String>,
) -> ArtifactMetadata {
    let decoded = |name: &str| {
        let text = metadata.get(name).filter(|text| !text.is_empty())?;
        Some(percent_decode_str(text).decode_utf8_lossy().into_owned())
    };
    let created_at = metadata.get(CREATED_AT).and_then(|millis| millis.parse().ok());
    ArtifactMetadata {
        id,
        name: decoded(NAME),
        mime_type: decoded(MIME_TYPE)
            .or(content_type)
            .unwrap_or_else(|| DEFAULT_CONTENT_TYPE.to_owned()),
        size,
        created_at: Timestamp(created_at.unwrap_or(0)),
    }
}
