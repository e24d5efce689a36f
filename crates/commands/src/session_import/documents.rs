//! Frame documents of an imported file. Each is stored before the entries that name it.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::import::Import;
use turnwheel_conversation::head::Head;
use turnwheel_json::raw::RawJson;
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::ArtifactScope;
use turnwheel_storage::artifacts::frame_documents::{
    FRAME_DOCUMENTS_MAX, delete_all_artifacts, get_frame_document, put_frame_document,
};

/// Documents after which the hidden head is renewed.
const DOCUMENTS_PER_RENEWAL: usize = 25;

/// The documents that are stored.
#[derive(Debug, Default)]
pub(super) struct ImportedDocuments {
    hashes: BTreeSet<String>,
    is_store_away: bool,
}

impl ImportedDocuments {
    /// Stores a document of the file. Returns the reason if it is skipped: its entries are imported.
    ///
    /// # Errors
    /// The store of conversations is unavailable, or another request has taken the id over.
    pub(super) async fn add(
        &mut self,
        services: &Services,
        import: &mut Import<'_>,
        sha256: String,
        document: &RawJson,
    ) -> Result<Option<String>, CommandError> {
        if self.hashes.contains(&sha256) {
            return Ok(None);
        }
        if self.hashes.len() >= FRAME_DOCUMENTS_MAX {
            return Ok(Some(format!("a file may have {FRAME_DOCUMENTS_MAX} frame documents")));
        }
        import.settle().await?;
        if !self.is_store_away {
            let (scope, now) = (import.artifact_scope(), services.clock.now());
            let bytes = Bytes::copy_from_slice(document.text().as_bytes());
            let stored =
                put_frame_document(&*services.artifacts, &scope, &sha256, bytes, now).await;
            self.is_store_away = stored.is_err();
        }
        if self.is_store_away {
            let reason = "the artifact store does not respond, so the frame document is missing";
            return Ok(Some(reason.to_owned()));
        }
        self.hashes.insert(sha256);
        renew(import, self.hashes.len()).await?;
        Ok(None)
    }

    /// Moves the documents to the incarnation that the conversation has in the end.
    ///
    /// # Errors
    /// A store is unavailable, or another request has taken the id over.
    pub(super) async fn move_to(
        self,
        services: &Services,
        import: &mut Import<'_>,
        head: &Head,
    ) -> Result<(), CommandError> {
        import.settle().await?;
        let (store, now) = (&*services.artifacts, services.clock.now());
        let from = import.artifact_scope();
        let to = ArtifactScope { key: head.key(), incarnation: head.incarnation.clone() };
        for (index, sha256) in self.hashes.iter().enumerate() {
            if let Some(bytes) = get_frame_document(store, &from, sha256).await? {
                put_frame_document(store, &to, sha256, bytes, now).await?;
            }
            renew(import, index + 1).await?;
        }
        Ok(delete_all_artifacts(store, &from).await?)
    }
}

/// Without writes for a minute another request may take the id over.
async fn renew(import: &mut Import<'_>, count: usize) -> Result<(), CommandError> {
    if count.is_multiple_of(DOCUMENTS_PER_RENEWAL) {
        import.write_batch().await?;
    }
    Ok(())
}
