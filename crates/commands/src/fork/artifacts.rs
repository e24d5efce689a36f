//! The artifacts that a fork copies: those that the copied entries name.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};
use serde_json::Value;

use crate::import::Import;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::head::Head;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::ArtifactId;
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::frame_documents::{
    FRAME_DOCUMENTS_MAX, get_frame_document, put_frame_document,
};
use turnwheel_storage::artifacts::{ArtifactError, ArtifactMetadata, ArtifactScope};

const ARTIFACTS_MAX: usize = 1_000;
const BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Requests for metadata at the same time.
const REQUESTS_MAX: usize = 8;
/// Copied bytes and artifacts after which the hidden head is renewed.
const RENEWAL_BYTES: u64 = 32 * 1024 * 1024;
const RENEWAL_COUNT: usize = 25;

/// Artifacts of a conversation that entries name.
#[derive(Debug)]
pub(super) struct NamedArtifacts {
    source: ArtifactScope,
    artifacts: Vec<ArtifactMetadata>,
    /// Hashes of frame documents.
    frame_documents: BTreeSet<String>,
}

impl NamedArtifacts {
    /// Finds the artifacts. A name without an artifact is ignored: the source has none, either.
    ///
    /// # Errors
    /// Returns [`CommandError::TooLarge`] if there are too many, or too many bytes.
    pub(super) async fn find(
        services: &Services,
        head: &Head,
        path: &[Arc<Entry>],
    ) -> Result<Self, CommandError> {
        let source = ArtifactScope { key: head.key(), incarnation: head.incarnation.clone() };
        let (mut ids, mut frame_documents) = (BTreeSet::new(), BTreeSet::new());
        for entry in path {
            collect_ids(&RawJson::from_value(&**entry).to_value(), &mut ids);
            if let EntryBody::Frame(frame) = &entry.body {
                frame_documents.extend(frame.document.clone());
            }
            if ids.len() > ARTIFACTS_MAX {
                return Err(too_large(&format!("more than {ARTIFACTS_MAX} artifacts")));
            }
        }
        let read = |id: ArtifactId| {
            let source = &source;
            async move {
                match services.artifacts.metadata(source, &id).await {
                    Ok(metadata) => Ok(Some(metadata)),
                    Err(ArtifactError::NotFound) => Ok(None),
                    Err(error) => Err(CommandError::from(error)),
                }
            }
        };
        let found = futures_util::stream::iter(ids).map(read).buffered(REQUESTS_MAX);
        let artifacts: Vec<ArtifactMetadata> =
            found.try_filter_map(|found| async { Ok(found) }).try_collect().await?;
        check_size(artifacts.iter().map(|artifact| artifact.size))?;
        Ok(Self { source, artifacts, frame_documents })
    }

    /// Copies the artifacts that an earlier attempt has not copied.
    pub(super) async fn copy(
        self,
        services: &Services,
        import: &mut Import<'_>,
    ) -> Result<(), CommandError> {
        let target = import.artifact_scope();
        let (mut bytes, mut count) = (0, 0);
        for artifact in &self.artifacts {
            services.fail_points.hit("fork.artifact").await;
            if services.artifacts.metadata(&target, &artifact.id).await.is_ok() {
                continue;
            }
            let content = match services.artifacts.get(&self.source, &artifact.id, None).await {
                // The source is being deleted, as the caller finds out.
                Err(ArtifactError::NotFound) => continue,
                content => content?,
            };
            services.artifacts.put(&target, artifact, content).await?;
            (bytes, count) = (bytes + artifact.size, count + 1);
            if bytes >= RENEWAL_BYTES || count >= RENEWAL_COUNT {
                import.write_batch().await?;
                (bytes, count) = (0, 0);
            }
        }
        self.copy_frame_documents(services, import).await
    }

    /// A document that is lost, or that the artifact store does not copy, is missing in the fork.
    async fn copy_frame_documents(
        &self,
        services: &Services,
        import: &mut Import<'_>,
    ) -> Result<(), CommandError> {
        let target = import.artifact_scope();
        for (index, sha256) in self.frame_documents.iter().take(FRAME_DOCUMENTS_MAX).enumerate() {
            if let Err(error) = self.copy_frame_document(services, &target, sha256).await {
                tracing::warn!(conversation.id = %target.key.conversation_id, %error, "frame documents not copied");
                return Ok(());
            }
            if index % RENEWAL_COUNT == RENEWAL_COUNT - 1 {
                import.write_batch().await?;
            }
        }
        Ok(())
    }

    async fn copy_frame_document(
        &self,
        services: &Services,
        target: &ArtifactScope,
        sha256: &str,
    ) -> Result<(), ArtifactError> {
        let store = &*services.artifacts;
        let Some(bytes) = get_frame_document(store, &self.source, sha256).await? else {
            return Ok(());
        };
        put_frame_document(store, target, sha256, bytes, services.clock.now()).await
    }
}

fn check_size(sizes: impl Iterator<Item = u64>) -> Result<(), CommandError> {
    if sizes.sum::<u64>() > BYTES_MAX {
        return Err(too_large("artifacts of more than 1 GB"));
    }
    Ok(())
}

fn too_large(found: &str) -> CommandError {
    CommandError::TooLarge(format!(
        "The entries to copy name {found}. Fork at an earlier entry, or start a new conversation and add the files that it needs."
    ))
}

/// Collects all texts that are artifact ids.
fn collect_ids(value: &Value, ids: &mut BTreeSet<ArtifactId>) {
    match value {
        Value::String(text) => {
            let id = ArtifactId::new(text);
            if id.parts().is_some() {
                ids.insert(id);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_ids(item, ids)),
        Value::Object(members) => members.values().for_each(|item| collect_ids(item, ids)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_artifacts_may_have_1_gb() {
        assert!(check_size([BYTES_MAX - 1, 1].into_iter()).is_ok());
        let error = check_size([BYTES_MAX, 1].into_iter()).unwrap_err();
        assert!(matches!(error, CommandError::TooLarge(_)), "{error}");
        assert!(error.to_string().contains("artifacts of more than 1 GB"), "{error}");
    }
}
