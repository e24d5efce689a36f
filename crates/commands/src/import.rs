//! Writing of a conversation whose entries exceed one batch, or arrive one by one. They are written
//! under a hidden head. Each batch is fenced by that head, so that two writers of one id never mix.

use std::fmt;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::person_messages::PersonMessages;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::settings::Settings;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_record::certain_write::{write_and_confirm_head, write_head, write_size};
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::load::any_head;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::ArtifactScope;
use turnwheel_storage::artifacts::frame_documents::delete_all_artifacts;
use turnwheel_storage::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, Document, DocumentKind, ETag, Freshness, Partition,
    Selection, Write,
};

/// Member of a hidden head with the id of the importing request.
const IMPORTING: &str = "importing";
/// Time without progress after which an import is stalled and can be taken over.
const STALLED_AFTER: Duration = Duration::from_mins(1);
/// Time after which the documents of an abandoned import are purged.
const ABANDONED_AFTER: Duration = Duration::from_hours(1);

/// True if the head belongs to an import that has not ended.
pub(crate) fn is_importing(head: &Head) -> bool {
    head.phase == Phase::Deleted && head.extra.contains_key(IMPORTING)
}

/// A conversation that is being written and that readers do not see yet.
pub struct Import<'a> {
    services: &'a Services,
    key: ConversationKey,
    incarnation: String,
    last_write: LastWrite<'a>,
    batch: Vec<Write>,
    batch_bytes: usize,
    messages: PersonMessages,
}

impl fmt::Debug for Import<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The last write of an import.
enum LastWrite<'a> {
    Done(HiddenHead),
    /// The store may work on it while the caller does something else.
    Running(BoxFuture<'a, Result<HiddenHead, CommandError>>),
    /// The import cannot go on.
    Failed,
}

/// The hidden head as it is stored.
struct HiddenHead {
    head: Box<Head>,
    etag: ETag,
}

impl<'a> Import<'a> {
    /// Writes the hidden head. `head` is that of the new conversation, `input_id` that of the
    /// request.
    ///
    /// # Errors
    /// Returns [`CommandError::Conflict`] if the id is taken, or used by another request.
    pub async fn begin(
        services: &'a Services,
        head: &Head,
        input_id: &InputId,
    ) -> Result<Self, CommandError> {
        let key = head.key();
        let mut hidden = Box::new(build_hidden_head(services, head, input_id));
        let etag = begin_import(services, &key, &mut hidden, input_id).await?;
        Ok(Self {
            services,
            key,
            incarnation: hidden.incarnation.clone(),
            last_write: LastWrite::Done(HiddenHead { head: hidden, etag }),
            batch: Vec::new(),
            batch_bytes: 0,
            messages: PersonMessages::default(),
        })
    }

    /// Namespace of the conversation's artifacts. A repeated request finds those of its first
    /// attempt in it.
    pub fn artifact_scope(&self) -> ArtifactScope {
        ArtifactScope { key: self.key.clone(), incarnation: self.incarnation.clone() }
    }

    /// Writes one more entry: at once, or with later ones. The write of a full batch may run on while
    /// the caller prepares the next entries. Call [`Import::settle`] before you wait for something
    /// else.
    ///
    /// # Errors
    /// The store is unavailable, or another writer changed the import.
    pub async fn add(&mut self, entry: &Entry) -> Result<(), CommandError> {
        let write = Write::Create(documents::entry_document(entry, &mut self.messages));
        let size = write_size(&write);
        // Two operations are left for the head and, in the last batch, the receipt. Both are small.
        let is_full = self.batch.len() + 2 >= BATCH_OPERATIONS_MAX
            || self.batch_bytes + size + 128 * 1024 > BATCH_BYTES_MAX;
        if is_full && !self.batch.is_empty() {
            self.start_write().await?;
        }
        self.batch_bytes += size;
        self.batch.push(write);
        Ok(())
    }

    /// Writes the batch. Without a write for a minute another request may take the id over, so
    /// long work between two entries calls this, too.
    pub(crate) async fn write_batch(&mut self) -> Result<(), CommandError> {
        self.start_write().await?;
        self.settle().await
    }

    /// Waits for the write that runs.
    ///
    /// # Errors
    /// The store is unavailable, or another writer changed the import.
    pub async fn settle(&mut self) -> Result<(), CommandError> {
        if let LastWrite::Running(_) = self.last_write {
            self.last_write = LastWrite::Done(self.finish_write().await?);
        }
        Ok(())
    }

    async fn finish_write(&mut self) -> Result<HiddenHead, CommandError> {
        match std::mem::replace(&mut self.last_write, LastWrite::Failed) {
            LastWrite::Done(hidden) => Ok(hidden),
            LastWrite::Running(write) => write.await,
            LastWrite::Failed => Err(CommandError::contended()),
        }
    }

    /// Starts to write the batch, after the write before.
    async fn start_write(&mut self) -> Result<(), CommandError> {
        let hidden = self.finish_write().await?;
        let writes = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let (services, key) = (self.services, self.key.clone());
        let mut write = async move { write_batch(services, &key, hidden, writes).await }.boxed();
        self.last_write = match futures_util::poll!(write.as_mut()) {
            Poll::Ready(hidden) => LastWrite::Done(hidden?),
            Poll::Pending => LastWrite::Running(write),
        };
        Ok(())
    }

    /// Writes the rest, the receipt and the visible head.
    ///
    /// # Errors
    /// The store is unavailable, or another writer changed the import.
    pub async fn finish(mut self, mut head: Head, receipt: Document) -> Result<(), CommandError> {
        if self.batch_bytes + 192 * 1024 > BATCH_BYTES_MAX {
            self.write_batch().await?;
        }
        self.batch.push(Write::Create(receipt));
        let HiddenHead { etag, .. } = self.finish_write().await?;
        commit_head(self.services, &self.key, &mut head, etag, self.batch).await.map(drop)
    }
}

fn build_hidden_head(services: &Services, head: &Head, input_id: &InputId) -> Head {
    let now = services.clock.now();
    let mut hidden = head.clone();
    hidden.phase = Phase::Deleted;
    hidden.seq = 0;
    hidden.leaf_id = None;
    // With a small head each entry of an export fits into a batch.
    hidden.metadata.clear();
    hidden.settings = Settings::default();
    hidden.base_settings = None;
    hidden.deleted_at = Some(now);
    hidden.due = Some(now.plus(ABANDONED_AFTER));
    hidden.extra.insert(IMPORTING.to_owned(), input_id.as_str().into());
    hidden
}

/// Checks that the id is free, or used by an import that can be taken over.
pub(crate) async fn check_id_available(
    services: &Services,
    key: &ConversationKey,
    input_id: &InputId,
) -> Result<(), CommandError> {
    let Some((head, _)) = any_head(services, key).await? else { return Ok(()) };
    reject_taken_id(&head, input_id, services.clock.now())
}

/// True if the hidden head belongs to the request with this id.
fn is_import_of(head: &Head, input_id: &InputId) -> bool {
    head.extra.get(IMPORTING).and_then(|id| id.as_str()) == Some(input_id.as_str())
}

fn reject_taken_id(head: &Head, input_id: &InputId, now: Timestamp) -> Result<(), CommandError> {
    let id = &head.conversation_id;
    if is_importing(head) {
        if is_import_of(head, input_id) || head.updated_at.plus(STALLED_AFTER) <= now {
            return Ok(());
        }
        return Err(CommandError::Conflict {
            detail: format!("conversation `{id}` is being created by another request"),
            retry_after: Some(STALLED_AFTER),
        });
    }
    let detail = if head.phase == Phase::Deleted {
        format!("conversation `{id}` was deleted: its id is free again after 7 days")
    } else {
        format!("conversation `{id}` exists: use another id, or leave it out")
    };
    Err(CommandError::Conflict { detail, retry_after: None })
}

/// Creates the hidden head, or takes over an import and deletes its entries. The artifacts of an
/// earlier attempt of the same request are kept.
async fn begin_import(
    services: &Services,
    key: &ConversationKey,
    hidden: &mut Head,
    input_id: &InputId,
) -> Result<ETag, CommandError> {
    if let Some(etag) = write_head(services, key, HeadCommit::create(hidden)).await? {
        return Ok(etag);
    }
    let Some((found, etag)) = any_head(services, key).await? else {
        return Err(CommandError::contended());
    };
    if found.commit_id == hidden.commit_id {
        return Ok(etag);
    }
    reject_taken_id(&found, input_id, services.clock.now())?;
    let is_other = !is_import_of(&found, input_id);
    if !is_other {
        hidden.incarnation.clone_from(&found.incarnation);
    }
    let mut etag = commit_head(services, key, hidden, etag, Vec::new()).await?;
    if is_other {
        let scope = ArtifactScope { key: key.clone(), incarnation: found.incarnation };
        delete_all_artifacts(&*services.artifacts, &scope).await?;
    }
    let partition = Partition::Conversation(key.clone());
    let selection =
        Selection { limit: BATCH_OPERATIONS_MAX - 2, ..Selection::all(DocumentKind::Entry) };
    loop {
        let remaining = services.store.select(&partition, &selection, Freshness::Latest).await?;
        if remaining.is_empty() {
            return Ok(etag);
        }
        let deletes = remaining
            .into_iter()
            .map(|stored| Write::Delete(stored.document.id, Some(stored.etag)))
            .collect();
        etag = write_under_head(services, key, hidden, etag, deletes).await?;
    }
}

/// Writes one more batch of a running import.
async fn write_batch(
    services: &Services,
    key: &ConversationKey,
    hidden: HiddenHead,
    writes: Vec<Write>,
) -> Result<HiddenHead, CommandError> {
    let HiddenHead { mut head, etag } = hidden;
    let etag = write_under_head(services, key, &mut head, etag, writes).await?;
    Ok(HiddenHead { head, etag })
}

async fn write_under_head(
    services: &Services,
    key: &ConversationKey,
    hidden: &mut Head,
    etag: ETag,
    writes: Vec<Write>,
) -> Result<ETag, CommandError> {
    services.fail_points.hit("admission.import").await;
    hidden.updated_at = services.clock.now();
    commit_head(services, key, hidden, etag, writes).await
}

/// Replaces the head under a fresh commit id, together with the writes.
async fn commit_head(
    services: &Services,
    key: &ConversationKey,
    head: &mut Head,
    etag: ETag,
    writes: Vec<Write>,
) -> Result<ETag, CommandError> {
    stamp_head(services, head, None);
    let commit = HeadCommit::replace(head, etag).with_writes(writes);
    write_and_confirm_head(services, key, commit).await?.ok_or_else(CommandError::contended)
}
