//! Storing of the frame document of a model call, while the model responds. The commit of the
//! response names only a stored document.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use turnwheel_record::frame_documents::FrameDocument;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::ArtifactScope;

const ATTEMPTS_MAX: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Time that the response waits for its document. It is not lost for it, and the lease lasts longer.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Stores the document of a frame that differs from the previous one. False: no entry may name it, and
/// the next call tries again. `None`: the entry in force names it.
pub(crate) async fn store_frame_document(
    services: &Services,
    conversation: ArtifactScope,
    document: Option<Arc<FrameDocument>>,
) -> bool {
    let Some(document) = document.filter(|document| document.is_storable()) else { return true };
    services.fail_points.hit("frame-document.before").await;
    let mut attempt = 1;
    loop {
        let stored = services.frame_documents.store(services, &conversation, &document).await;
        services.fail_points.hit("frame-document.after").await;
        let Err(error) = stored else { return true };
        if attempt == ATTEMPTS_MAX {
            let id = conversation.key.conversation_id.as_str();
            tracing::warn!(conversation.id = id, %error, "frame document not stored");
            return false;
        }
        tokio::time::sleep(RETRY_DELAY * attempt).await;
        attempt += 1;
    }
}

/// Runs a model call and the storing of its document together. Returns the response, and false if the
/// document is not stored in time.
pub(crate) async fn send_while_storing<T>(
    sending: impl Future<Output = T> + Unpin,
    storing: impl Future<Output = bool>,
) -> (T, bool) {
    let storing = std::pin::pin!(storing);
    match select(sending, storing).await {
        Either::Left((response, storing)) => {
            (response, tokio::time::timeout(WAIT_MAX, storing).await.unwrap_or(false))
        }
        Either::Right((is_stored, sending)) => (sending.await, is_stored),
    }
}
