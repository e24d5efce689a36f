//! Paged queries with the continuation tokens of the SDK.

use std::num::NonZeroU32;

use azure_data_cosmos::feed::{ContinuationToken, QueryFeedPage, QueryPageIterator};
use azure_data_cosmos::options::{FeedOptions, MaxItemCountHint, QueryOptions};
use azure_data_cosmos::{ContainerClient, CosmosError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::queries::CosmosQuery;
use super::response::{request_error, with_recorded_cost};
use crate::store::cursor::{PAGE_ITEMS_MAX, foreign_continuation};
use crate::store::{Freshness, StoreError};
use turnwheel_azure::cosmos::{default_options, latest_committed_options};

/// Maximum number of physical partitions of one query; the SDK's default is 100.
const FAN_OUT_MAX: u32 = 10_000;

/// One page of a list. Only the last page may be empty.
pub(super) struct QueryPage<T> {
    pub(super) items: Vec<T>,
    /// Absent on the last page.
    pub(super) token: Option<String>,
}

/// A running query.
pub(super) struct PagedQuery<T: Send> {
    operation: &'static str,
    pages: QueryPageIterator<T>,
    /// Request units of the pages so far.
    pub(super) request_units: f64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PageOptions {
    pub(super) limit: usize,
    pub(super) freshness: Freshness,
}

impl<T: DeserializeOwned + Send + 'static> PagedQuery<T> {
    /// Starts a query, or resumes it with the `token` of an earlier page.
    pub(super) async fn start(
        operation: &'static str,
        container: &ContainerClient,
        cosmos_query: &CosmosQuery,
        PageOptions { limit, freshness }: PageOptions,
        token: Option<String>,
    ) -> Result<Self, StoreError> {
        let query = cosmos_query.to_sdk_query().map_err(request_error)?;
        let size = u32::try_from(limit.clamp(1, PAGE_ITEMS_MAX)).ok().and_then(NonZeroU32::new);
        let mut options = QueryOptions::default()
            .with_operation_options(match freshness {
                Freshness::Latest => latest_committed_options(),
                Freshness::Any => default_options(),
            })
            .with_feed_options(FeedOptions::default().with_max_fan_out(FAN_OUT_MAX))
            .with_max_item_count(
                size.map_or(MaxItemCountHint::ServerDecides, MaxItemCountHint::Limit),
            );
        let is_resumed = token.is_some();
        if let Some(token) = token {
            options = options.with_continuation_token(ContinuationToken::from_string(token));
        }
        let items =
            container.query_items::<T>(query, cosmos_query.scope.clone(), Some(options)).await;
        let pages = items.map_err(|error| start_error(error, is_resumed))?.into_pages();
        Ok(Self { operation, pages, request_units: 0.0 })
    }

    /// Returns the next page; `None` at the end.
    pub(super) async fn next_page(&mut self) -> Result<Option<Vec<T>>, StoreError> {
        let Some(page) = self.pages.next().await else { return Ok(None) };
        let page = with_recorded_cost(self.operation, page, QueryFeedPage::diagnostics);
        let page = page.map_err(request_error)?;
        self.request_units += page.diagnostics().total_request_charge().value();
        Ok(Some(page.into_items()))
    }

    /// True after the last page.
    pub(super) fn is_at_end(&self) -> Result<bool, StoreError> {
        let token = self.pages.to_continuation_token().map_err(request_error)?;
        Ok(is_drained(token.as_str()))
    }

    /// Returns the next non-empty page, or an empty last page.
    pub(super) async fn next_nonempty_page(mut self) -> Result<QueryPage<T>, StoreError> {
        while let Some(items) = self.next_page().await? {
            let token = self.pages.to_continuation_token().map_err(request_error)?;
            let token =
                Some(token.as_str()).filter(|token| !is_drained(token)).map(ToOwned::to_owned);
            if !items.is_empty() || token.is_none() {
                return Ok(QueryPage { items, token });
            }
        }
        Ok(QueryPage { items: Vec::new(), token: None })
    }
}

/// Maps an error of starting a query. If the SDK rejects a token, the token is forged or belongs
/// to another query.
fn start_error(error: CosmosError, is_resumed: bool) -> StoreError {
    if is_resumed && !error.is_from_wire() && !error.status().is_transient() {
        return foreign_continuation();
    }
    request_error(error)
}

/// True if the SDK's token marks the end of the list. If the SDK changes the format, a list costs
/// one more, empty page.
fn is_drained(token: &str) -> bool {
    token
        .strip_prefix("c1.")
        .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok())
        .and_then(|json| serde_json::from_slice::<Value>(&json).ok())
        .and_then(|state| state.get("root")?.get("kind").cloned())
        .is_some_and(|kind| kind == "drained")
}
