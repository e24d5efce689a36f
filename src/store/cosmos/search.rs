//! Search of a user's messages: one query over the user's partitions, with bounded request units.
//!
//! The index of `searchText` selects the entries. A point read of each conversation record excludes
//! deleted conversations.

use std::collections::HashMap;

use serde::Deserialize;

use super::CosmosStore;
use super::pages::PagedQuery;
use super::queries;
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey};
use crate::store::search::HitCollector;
use crate::store::validate::DELETED;
use crate::store::{
    Freshness, HEAD_ID, Partition, SearchHit, SearchQuery, SearchResult, StoreError,
};

/// Entries of one page. A page charges for the entries that it returns.
const PAGE_ITEMS: usize = 10;

/// Bounds of one search.
#[derive(Clone, Copy)]
pub(super) struct SearchBounds {
    pub(super) pages: usize,
    /// Request units after which a search reads no further page and no further conversation record.
    pub(super) request_units: f64,
}

pub(super) const BOUNDS: SearchBounds = SearchBounds { pages: 3, request_units: 40.0 };

/// An entry as the query returns it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EntryRow {
    id: String,
    conversation_id: ConversationId,
    created_at: Timestamp,
    search_text: String,
}

/// The conversations of the rows so far, and the request units of reading them.
struct ConversationStates<'a> {
    store: &'a CosmosStore,
    query: &'a SearchQuery,
    is_listed: HashMap<ConversationId, bool>,
    charge: f64,
}

pub(super) async fn search(
    store: &CosmosStore,
    query: &SearchQuery,
    bounds: SearchBounds,
) -> Result<SearchResult, StoreError> {
    let container = &store.containers.conversations;
    let cosmos_query = queries::search(query);
    let page_options = (PAGE_ITEMS, Freshness::Any);
    let mut pages: PagedQuery<EntryRow> =
        PagedQuery::start("cosmos.search", container, &cosmos_query, page_options, None).await?;
    let mut states = ConversationStates { store, query, is_listed: HashMap::new(), charge: 0.0 };
    let mut collector = HitCollector::new(query.limit);
    for _ in 0..bounds.pages {
        if pages.charge + states.charge >= bounds.request_units {
            return Ok(collector.into_result(false));
        }
        let Some(rows) = pages.next_page().await? else { break };
        for row in rows {
            if collector.is_full() {
                break;
            }
            if collector.has_copy(row.created_at, &row.search_text) {
                continue;
            }
            if pages.charge + states.charge >= bounds.request_units {
                return Ok(collector.into_result(false));
            }
            if states.is_listed(&row.conversation_id).await? {
                collector.add(row.into_hit());
            }
        }
        if collector.is_full() {
            break;
        }
    }
    let is_at_end = pages.is_at_end()?;
    Ok(collector.into_result(is_at_end))
}

impl ConversationStates<'_> {
    /// True if the conversation exists and is not deleted.
    async fn is_listed(&mut self, id: &ConversationId) -> Result<bool, StoreError> {
        if let Some(is_listed) = self.is_listed.get(id) {
            return Ok(*is_listed);
        }
        let SearchQuery { tenant, user, .. } = self.query;
        let (tenant, user, conversation_id) = (tenant.clone(), user.clone(), id.clone());
        let partition = Partition::Conversation(ConversationKey { tenant, user, conversation_id });
        let (head, charge) =
            self.store.read_with_charge(&partition, HEAD_ID, Freshness::Latest).await?;
        self.charge += charge;
        let is_listed = head.is_some_and(|head| head.document.state.as_deref() != Some(DELETED));
        self.is_listed.insert(id.clone(), is_listed);
        Ok(is_listed)
    }
}

impl EntryRow {
    fn into_hit(self) -> SearchHit {
        let Self { id, conversation_id: conversation, created_at: at, search_text: text } = self;
        SearchHit { conversation, id, at, text }
    }
}
