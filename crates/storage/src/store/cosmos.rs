//! The Cosmos DB store: one logical partition per conversation, one transactional batch per commit.
//!
//! Leases are in the head. A batch whose response was lost may have won: the turn driver finds
//! out, not this store.

mod due_scan;
mod envelope;
mod pages;
mod queries;
mod response;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_data_cosmos::models::{BatchResponse, ItemResponse};
use azure_data_cosmos::options::{
    BatchDeleteOptions, BatchOptions, BatchReplaceOptions, ItemReadOptions, Precondition,
};
use azure_data_cosmos::{ContainerClient, CosmosClientBuilder, TransactionalBatch};
use quick_cache::sync::Cache;

use self::due_scan::DueScan;
use self::envelope::{DocumentEnvelope, ReturnedDocument};
use self::pages::{PageOptions, PagedQuery};
use self::queries::partition_key;
use self::response::{BatchError, batch_result, request_error, with_recorded_cost};
use crate::store::cursor::HeadCursor;
use crate::store::inbox_count::CountedChange;
use crate::store::{
    ConversationStore, DueItem, ETag, Freshness, HEAD_ID, HeadQuery, LeaseOutcome, LeaseRequest,
    Partition, ResultPage, SearchHit, SearchHits, SearchQuery, Selection, StoreError,
    StoredDocument, Write, conditional, cursor, head_lease, inbox_count, validate,
};
use turnwheel_azure::cosmos::{
    self, ConnectError, Containers, default_options, latest_committed_options,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::{ConversationKey, Ids as _, SystemIds, WorkerId};
use turnwheel_platform::settings::azure::CosmosAccount;

/// Maximum bytes of a batch as it is sent. Cosmos allows 2 MB, headers included.
const SENT_BYTES_MAX: usize = 1_950_000;
/// Bytes that each operation adds to its document: the members of the operation, and the key.
const OPERATION_BYTES: usize = 1_500;

/// Heads that are kept for the writes of the requests that have read them: 64 KB each at most, 3 KB
/// usually.
const RECENT_HEADS_MAX: usize = 128;
/// Attempts to count an inbox change in a head that others write.
const COUNT_ATTEMPTS_MAX: usize = 8;
/// Wait before the second of them; doubles each time.
const COUNT_RETRY_WAIT: Duration = Duration::from_millis(20);

/// Waits before further attempts to connect.
const CONNECT_WAITS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Request units after which a search reads no further page.
const SEARCH_REQUEST_UNITS_MAX: f64 = 50.0;

pub struct CosmosStore {
    containers: Containers,
    /// Heads as last read with [`Freshness::Latest`], for [`Write::CountInboxChange`]: a request has just
    /// read its conversation.
    recent_heads: Cache<ConversationKey, StoredDocument>,
}

impl fmt::Debug for CosmosStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CosmosStore").field("containers", &self.containers).finish_non_exhaustive()
    }
}

impl CosmosStore {
    /// Connects to an account. Accounts used with an identity need the `credential`. With an
    /// account key, a missing database and missing containers are created. The first
    /// requests are repeated if the account is overloaded, as the SDK does with later ones.
    ///
    /// # Errors
    /// Show the error to the operator and do not start.
    pub async fn connect(
        account: &CosmosAccount,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, ConnectError> {
        repeat_while_overloaded(&CONNECT_WAITS, async || {
            let builder = cosmos::client_builder(account).await?;
            Self::connect_by(builder, account, credential.clone()).await
        })
        .await
    }

    async fn connect_by(
        builder: CosmosClientBuilder,
        account: &CosmosAccount,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, ConnectError> {
        let containers = Containers::connect(builder, account, credential).await?;
        Ok(Self { containers, recent_heads: Cache::new(RECENT_HEADS_MAX) })
    }

    fn container(&self, partition: &Partition) -> &ContainerClient {
        match partition {
            Partition::Conversation(_) | Partition::User { .. } => &self.containers.conversations,
            Partition::Scope(_) => &self.containers.scopes,
        }
    }

    async fn read_document(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        let options = ItemReadOptions::default().with_operation_options(match freshness {
            Freshness::Latest => latest_committed_options(),
            Freshness::Any => default_options(),
        });
        let key = partition_key(partition);
        let read = self.container(partition).read_item(key, id, Some(options)).await;
        match with_recorded_cost("cosmos.read", read, ItemResponse::diagnostics) {
            Ok(response) => {
                let found: ReturnedDocument = response.into_model().map_err(|error| {
                    StoreError::Corrupt(format!("the document `{id}` has another format: {error}"))
                })?;
                found.into_stored().map(Some)
            }
            Err(error) if error.status().is_not_found() => Ok(None),
            Err(error) => Err(request_error(error)),
        }
    }

    async fn send_batch(
        &self,
        partition: &Partition,
        writes: &[Write],
    ) -> Result<Vec<ETag>, BatchError> {
        let batch = build_batch(partition, writes)?;
        let options = BatchOptions::default().with_operation_options(default_options());
        let container = self.container(partition);
        let sent = container.execute_transactional_batch(batch, Some(options)).await;
        let sent = with_recorded_cost("cosmos.write", sent, BatchResponse::diagnostics);
        batch_result(sent.map_err(request_error)?, writes)
    }

    /// Counts the inbox change in the head as it is stored. A batch cannot patch, so the head is read
    /// and replaced, again if another writer came first.
    async fn write_with_count(
        &self,
        partition: &Partition,
        mut writes: Vec<Write>,
        change: &CountedChange,
    ) -> Result<Vec<ETag>, StoreError> {
        let mut waits = conditional::back_off(COUNT_ATTEMPTS_MAX, COUNT_RETRY_WAIT);
        loop {
            let recent = match partition {
                Partition::Conversation(key) => self.recent_heads.remove(key).map(|(_, head)| head),
                Partition::Scope(_) | Partition::User { .. } => None,
            };
            let head = match recent {
                Some(head) => Some(head),
                None => self.read_document(partition, HEAD_ID, Freshness::Latest).await?,
            };
            let Some(StoredDocument { document: mut head, etag }) = head else {
                return Err(StoreError::Conflict);
            };
            inbox_count::count_change(&mut head, change.due, change.room.as_ref())?;
            if let Some(count) = writes.get_mut(change.position) {
                *count = Write::Replace(head, Some(etag));
            }
            match self.send_batch(partition, &writes).await {
                Ok(etags) => return Ok(etags),
                Err(BatchError::Conflict(at)) if at == change.position => {}
                Err(error) => return Err(error.into_store_error()),
            }
            // The worker, which keeps the head's other members, goes first: it must not starve.
            let Some(wait) = waits.next() else { return Err(StoreError::Conflict) };
            tokio::time::sleep(wait.mul_f64(0.5 + SystemIds.random_fraction())).await;
        }
    }

    /// Searches until the pages have cost that many request units.
    async fn search_within(
        &self,
        query: &SearchQuery,
        request_units_max: f64,
    ) -> Result<SearchHits, StoreError> {
        let cosmos_query = queries::search(query);
        let page_options = PageOptions { limit: query.limit, freshness: Freshness::Any };
        let container = &self.containers.conversations;
        let mut pages: PagedQuery<SearchHit> =
            PagedQuery::start("cosmos.search", container, &cosmos_query, page_options, None)
                .await?;
        let mut found = SearchHits { hits: Vec::new(), is_complete: true };
        while found.hits.len() < query.limit {
            // A page that is too expensive has been paid for: its hits are used.
            if pages.request_units >= request_units_max {
                found.is_complete = pages.is_at_end()?;
                break;
            }
            let Some(page) = pages.next_page().await? else { break };
            let left = query.limit - found.hits.len();
            found.hits.extend(page.into_iter().take(left));
        }
        Ok(found)
    }
}

/// Connects, and again after each of the waits while the account is overloaded.
async fn repeat_while_overloaded<T>(
    waits: &[Duration],
    connect: impl AsyncFn() -> Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    let mut waits = waits.iter();
    loop {
        let error = match connect().await {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        let Some(wait) = waits.next().filter(|_| error.is_temporary()) else {
            return Err(error);
        };
        tracing::warn!(error = %error_chain(&error), retry_in = ?wait, "Cosmos account overloaded");
        tokio::time::sleep(*wait).await;
    }
}

fn build_batch(partition: &Partition, writes: &[Write]) -> Result<TransactionalBatch, StoreError> {
    let mut sent = 0_usize;
    let batch = TransactionalBatch::new(partition_key(partition));
    let built = writes.iter().try_fold(batch, |batch, write| {
        sent += OPERATION_BYTES;
        match write {
            Write::Create(document) => {
                let wrapped = DocumentEnvelope::new(partition, document);
                sent += wrapped.body_bytes();
                batch.create_item(wrapped)
            }
            Write::Replace(document, expected) => {
                let wrapped = DocumentEnvelope::new(partition, document);
                sent += wrapped.body_bytes();
                let options = expected
                    .as_ref()
                    .map(|etag| BatchReplaceOptions::default().with_precondition(if_match(etag)));
                batch.replace_item(document.id.clone(), wrapped, options)
            }
            Write::Delete(id, expected) => {
                let options = expected
                    .as_ref()
                    .map(|etag| BatchDeleteOptions::default().with_precondition(if_match(etag)));
                Ok(batch.delete_item(id.clone(), options))
            }
            // Replaced by a write of the head before.
            Write::CountInboxChange { .. } => Ok(batch),
        }
    });
    if sent > SENT_BYTES_MAX {
        return Err(StoreError::TooLarge(format!(
            "up to {sent} bytes as sent; the limit is {SENT_BYTES_MAX}"
        )));
    }
    built.map_err(request_error)
}

fn if_match(etag: &ETag) -> Precondition {
    Precondition::if_match(etag.0.clone())
}

#[async_trait]
impl ConversationStore for CosmosStore {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        validate::batch(partition, &writes)?;
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        match inbox_count::find_count(&writes) {
            None => self.send_batch(partition, &writes).await.map_err(BatchError::into_store_error),
            Some(change) => self.write_with_count(partition, writes, &change).await,
        }
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        validate::partition(partition)?;
        validate::document_id(id)?;
        let found = self.read_document(partition, id, freshness).await?;
        // A batch with an older head would lose.
        if freshness == Freshness::Latest
            && let (HEAD_ID, Partition::Conversation(key), Some(head)) = (id, partition, &found)
        {
            self.recent_heads.insert(key.clone(), head.clone());
        }
        Ok(found)
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        validate::partition(partition)?;
        let limit = selection.limit;
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let container = self.container(partition);
        let query = queries::select(partition, selection);
        let mut pages: PagedQuery<ReturnedDocument> = PagedQuery::start(
            "cosmos.select",
            container,
            &query,
            PageOptions { limit, freshness },
            None,
        )
        .await?;
        while found.len() < limit
            && let Some(page) = pages.next_page().await?
        {
            for item in page.into_iter().take(limit - found.len()) {
                found.push(item.into_stored()?);
            }
        }
        Ok(found)
    }

    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        validate::conversation(request.key)?;
        let partition = Partition::Conversation(request.key.clone());
        match self.read_document(&partition, HEAD_ID, Freshness::Latest).await? {
            Some(head) => head_lease::check_lease(head, &request),
            None => Ok(LeaseOutcome::Missing),
        }
    }

    async fn renew_lease(&self, _request: LeaseRequest<'_>) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn has_leases_in_heads(&self) -> bool {
        true
    }

    async fn release_lease(&self, _key: &ConversationKey, _worker: &WorkerId) {}

    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError> {
        let list = ("due".to_owned(), at);
        let scan = match continuation {
            Some(text) => cursor::decode(&list, text)?,
            None => DueScan::start(&self.containers).await?,
        };
        let (items, remaining) = scan.next_page(&self.containers, at, limit).await?;
        Ok(ResultPage {
            items,
            continuation: remaining.map(|remaining| cursor::encode(&list, &remaining)),
        })
    }

    async fn list_heads(
        &self,
        query: &HeadQuery,
    ) -> Result<ResultPage<StoredDocument>, StoreError> {
        validate::heads(query)?;
        let after = cursor::parse_head_cursor(query)?;
        if query.state.as_deref() == Some(validate::DELETED) {
            return Ok(ResultPage { items: Vec::new(), continuation: None });
        }
        let cosmos_query = queries::heads(query, after.created_at);
        let page_options = PageOptions { limit: query.limit + 1, freshness: Freshness::Any };
        let container = &self.containers.conversations;
        let mut pages: PagedQuery<ReturnedDocument> =
            PagedQuery::start("cosmos.heads", container, &cosmos_query, page_options, None).await?;
        let mut found: Vec<(HeadCursor, ReturnedDocument)> = Vec::new();
        while let Some(page) = pages.next_page().await? {
            let positions = page.into_iter().map(|head| (head.to_head_cursor(), head));
            found.extend(positions.filter(|(position, _)| *position < after));
            // Heads of one millisecond arrive in any order, so all of them are read.
            let is_enough =
                query.limit.checked_sub(1).and_then(|last| found.get(last)).is_some_and(
                    |(last, _)| {
                        found.last().is_some_and(|(read, _)| read.created_at < last.created_at)
                    },
                );
            if is_enough {
                break;
            }
        }
        found.sort_by(|(one, _), (other, _)| other.cmp(one));
        let has_more = found.len() > query.limit;
        found.truncate(query.limit);
        let last = found.last().map(|(position, _)| position).filter(|_| has_more);
        let continuation = last.map(|position| cursor::encode_head_cursor(query, position));
        let items =
            found.into_iter().map(|(_, head)| head.into_stored()).collect::<Result<_, _>>()?;
        Ok(ResultPage { items, continuation })
    }

    async fn search(&self, query: &SearchQuery) -> Result<SearchHits, StoreError> {
        validate::search(query)?;
        self.search_within(query, SEARCH_REQUEST_UNITS_MAX).await
    }
}
