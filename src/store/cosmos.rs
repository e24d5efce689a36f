//! The Cosmos DB store: one logical partition per conversation, one transactional batch per commit.
//!
//! Leases are in the head. A batch whose response was lost may have won: the turn driver finds
//! out, not this store.

mod answer;
mod pages;
mod queries;
mod swept;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wrapped;

use std::sync::Arc;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_data_cosmos::models::{BatchResponse, ItemResponse};
use azure_data_cosmos::options::{
    BatchDeleteOptions, BatchOptions, BatchReplaceOptions, ItemReadOptions, Precondition,
};
use azure_data_cosmos::{ContainerClient, CosmosClientBuilder, TransactionalBatch};

use self::answer::{noted, of_batch, of_request};
use self::pages::{Pages, Part};
use self::queries::partition_key;
use self::swept::Swept;
use self::wrapped::{Found, Wrapped};
use crate::azure::cosmos::{self, ConnectError, Containers, bounded, latest};
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::settings::azure::CosmosAccount;
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Kind, Owed, Page,
    Partition, Selection, StoreError, Stored, Write, check, held, place,
};

/// Maximum bytes of a batch as it is sent. Cosmos allows 2 MB, headers included.
const SENT_BYTES_MAX: usize = 1_950_000;
/// Bytes that each operation adds to its document: the members of the operation, and the key.
const OPERATION_BYTES: usize = 1_500;

#[derive(Debug)]
pub struct CosmosStore {
    containers: Containers,
}

impl CosmosStore {
    /// Connects to an account. Accounts used with an identity need the `credential`. With an
    /// account key, a missing database and missing containers are created.
    ///
    /// # Errors
    /// Show the error to the operator and do not start.
    pub async fn connect(
        account: &CosmosAccount,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, ConnectError> {
        Self::connect_by(cosmos::builder(account).await?, account, credential).await
    }

    async fn connect_by(
        builder: CosmosClientBuilder,
        account: &CosmosAccount,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, ConnectError> {
        let containers = Containers::connect(builder, account, credential).await?;
        Ok(Self { containers })
    }

    fn container(&self, partition: &Partition) -> &ContainerClient {
        match partition {
            Partition::Conversation(_) => &self.containers.conversations,
            Partition::Scope(_) => &self.containers.scopes,
        }
    }
}

fn batch(partition: &Partition, writes: &[Write]) -> Result<TransactionalBatch, StoreError> {
    let mut sent = 0_usize;
    let batch = TransactionalBatch::new(partition_key(partition));
    let built = writes.iter().try_fold(batch, |batch, write| {
        sent += OPERATION_BYTES;
        match write {
            Write::Create(document) => {
                let wrapped = Wrapped::of(partition, document);
                sent += wrapped.body_bytes();
                batch.create_item(wrapped)
            }
            Write::Replace(document, wanted) => {
                let wrapped = Wrapped::of(partition, document);
                sent += wrapped.body_bytes();
                let options = wanted
                    .as_ref()
                    .map(|etag| BatchReplaceOptions::default().with_precondition(if_match(etag)));
                batch.replace_item(document.id.clone(), wrapped, options)
            }
            Write::Delete(id, wanted) => {
                let options = wanted
                    .as_ref()
                    .map(|etag| BatchDeleteOptions::default().with_precondition(if_match(etag)));
                Ok(batch.delete_item(id.clone(), options))
            }
        }
    });
    if sent > SENT_BYTES_MAX {
        return Err(StoreError::TooLarge(format!(
            "up to {sent} bytes as sent; the limit is {SENT_BYTES_MAX}"
        )));
    }
    built.map_err(of_request)
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
        check::batch(partition, &writes)?;
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let batch = batch(partition, &writes)?;
        let options = BatchOptions::default().with_operation_options(bounded());
        let container = self.container(partition);
        let answer = container.execute_transactional_batch(batch, Some(options)).await;
        let answer = noted("cosmos.write", answer, BatchResponse::diagnostics);
        of_batch(answer.map_err(of_request)?, &writes)
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        check::partition(partition)?;
        check::document_id(id)?;
        let options = ItemReadOptions::default().with_operation_options(match freshness {
            Freshness::Latest => latest(),
            Freshness::Any => bounded(),
        });
        let key = partition_key(partition);
        let answer = self.container(partition).read_item(key, id, Some(options)).await;
        match noted("cosmos.read", answer, ItemResponse::diagnostics) {
            Ok(answer) => {
                let found: Found = answer.into_model().map_err(|error| {
                    StoreError::Corrupt(format!("the document `{id}` has another format: {error}"))
                })?;
                found.stored().map(Some)
            }
            Err(error) if error.status().is_not_found() => Ok(None),
            Err(error) => Err(of_request(error)),
        }
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        check::partition(partition)?;
        let limit = selection.limit;
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let container = self.container(partition);
        let asked = queries::select(partition, selection);
        let mut pages: Pages<Found> =
            Pages::begin("cosmos.select", container, &asked, (limit, freshness), None).await?;
        while found.len() < limit
            && let Some(page) = pages.next().await?
        {
            for item in page.into_iter().take(limit - found.len()) {
                found.push(item.stored()?);
            }
        }
        Ok(found)
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        check::conversation(request.key)?;
        let partition = Partition::Conversation(request.key.clone());
        let asked = queries::claim(&partition);
        let container = &self.containers.conversations;
        let how = (place::PAGE_MAX, Freshness::Latest);
        let mut pages: Pages<Found> =
            Pages::begin("cosmos.claim", container, &asked, how, None).await?;
        let (mut head, mut inbox) = (None, Vec::new());
        while let Some(page) = pages.next().await? {
            for found in page {
                let stored = found.stored()?;
                if stored.document.kind == Kind::Head {
                    head = Some(stored);
                } else {
                    inbox.push(stored);
                }
            }
        }
        inbox.sort_by(|one, other| one.document.id.cmp(&other.document.id));
        match head {
            Some(head) => held::look(head, inbox, &request),
            None => Ok(Claimed::Missing),
        }
    }

    async fn renew(&self, _request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn release(&self, _key: &ConversationKey, _worker: &WorkerId) {}

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        let list = ("due".to_owned(), at);
        let swept = match continuation {
            Some(text) => place::decode(&list, text)?,
            None => Swept::begin(&self.containers).await?,
        };
        let (items, left) = swept.next(&self.containers, at, limit).await?;
        Ok(Page { items, continuation: left.map(|left| place::encode(&list, &left)) })
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        check::heads(query)?;
        let list = (query.tenant.clone(), query.user.clone(), query.state.clone());
        let token = match &query.continuation {
            Some(text) => Some(place::decode(&list, text)?),
            None => None,
        };
        if query.state.as_deref() == Some(check::DELETED) {
            return Ok(Page { items: Vec::new(), continuation: None });
        }
        let asked = queries::heads(query);
        let how = (query.limit, Freshness::Any);
        let container = &self.containers.conversations;
        let pages: Pages<Found> =
            Pages::begin("cosmos.heads", container, &asked, how, token).await?;
        let Part { items, token } = pages.next_part().await?;
        let items = items.into_iter().map(Found::stored).collect::<Result<_, _>>()?;
        Ok(Page { items, continuation: token.map(|token| place::encode(&list, &token)) })
    }
}
