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

use super::answer::{noted, of_request};
use super::queries::Asked;
use crate::azure::cosmos::{bounded, latest};
use crate::store::place::{PAGE_MAX, not_of_this_query};
use crate::store::{Freshness, StoreError};

/// Maximum number of physical partitions of one query; the SDK's default is 100.
const FAN_OUT_MAX: u32 = 10_000;

/// One page of a list. Only the last page may be empty.
pub(super) struct Part<T> {
    pub(super) items: Vec<T>,
    /// Absent on the last page.
    pub(super) token: Option<String>,
}

/// A running query.
pub(super) struct Pages<T: Send> {
    operation: &'static str,
    pages: QueryPageIterator<T>,
}

impl<T: DeserializeOwned + Send + 'static> Pages<T> {
    /// Starts a query, or resumes it with the `token` of an earlier page.
    pub(super) async fn begin(
        operation: &'static str,
        container: &ContainerClient,
        asked: &Asked,
        (limit, freshness): (usize, Freshness),
        token: Option<String>,
    ) -> Result<Self, StoreError> {
        let query = asked.query().map_err(of_request)?;
        let size = u32::try_from(limit.clamp(1, PAGE_MAX)).ok().and_then(NonZeroU32::new);
        let mut options = QueryOptions::default()
            .with_operation_options(match freshness {
                Freshness::Latest => latest(),
                Freshness::Any => bounded(),
            })
            .with_feed_options(FeedOptions::default().with_max_fan_out(FAN_OUT_MAX))
            .with_max_item_count(
                size.map_or(MaxItemCountHint::ServerDecides, MaxItemCountHint::Limit),
            );
        let is_resumed = token.is_some();
        if let Some(token) = token {
            options = options.with_continuation_token(ContinuationToken::from_string(token));
        }
        let items = container.query_items::<T>(query, asked.scope.clone(), Some(options)).await;
        let pages = items.map_err(|error| of_resumed(error, is_resumed))?.into_pages();
        Ok(Self { operation, pages })
    }

    /// Returns the next page; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<T>>, StoreError> {
        let Some(page) = self.pages.next().await else { return Ok(None) };
        let page = noted(self.operation, page, QueryFeedPage::diagnostics);
        Ok(Some(page.map_err(of_request)?.into_items()))
    }

    /// Returns the next non-empty page, or an empty last page.
    pub(super) async fn next_part(mut self) -> Result<Part<T>, StoreError> {
        while let Some(items) = self.next().await? {
            let token = self.pages.to_continuation_token().map_err(of_request)?;
            let token = Some(token.as_str()).filter(|token| !is_end(token)).map(ToOwned::to_owned);
            if !items.is_empty() || token.is_none() {
                return Ok(Part { items, token });
            }
        }
        Ok(Part { items: Vec::new(), token: None })
    }
}

/// Maps an error of starting a query. If the SDK rejects a token, the token is forged or belongs
/// to another query.
fn of_resumed(error: CosmosError, is_resumed: bool) -> StoreError {
    if is_resumed && !error.is_from_wire() && !error.status().is_transient() {
        return not_of_this_query();
    }
    of_request(error)
}

/// True if the SDK's token marks the end of the list. If the SDK changes the format, a list costs
/// one more, empty page.
fn is_end(token: &str) -> bool {
    token
        .strip_prefix("c1.")
        .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok())
        .and_then(|json| serde_json::from_slice::<Value>(&json).ok())
        .and_then(|state| state.get("root")?.get("kind").cloned())
        .is_some_and(|kind| kind == "drained")
}
