//! How far a list has been read: the SDK's token, bound to what was asked.

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

/// Physical partitions that one query may reach; the SDK stops at 100 of itself.
const FAN_OUT_MAX: u32 = 10_000;

/// Part of a list. It may be empty only at the end.
pub(super) struct Part<T> {
    pub(super) items: Vec<T>,
    /// Absent: that was all.
    pub(super) token: Option<String>,
}

/// A query under way.
pub(super) struct Pages<T: Send> {
    operation: &'static str,
    pages: QueryPageIterator<T>,
}

impl<T: DeserializeOwned + Send + 'static> Pages<T> {
    /// `token`: from an earlier part of the same query.
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

    /// The next page; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<T>>, StoreError> {
        let Some(page) = self.pages.next().await else { return Ok(None) };
        let page = noted(self.operation, page, QueryFeedPage::diagnostics);
        Ok(Some(page.map_err(of_request)?.into_items()))
    }

    /// The next page that holds something.
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

/// A token that the SDK does not take back is one that was made up or belongs elsewhere.
fn of_resumed(error: CosmosError, is_resumed: bool) -> StoreError {
    if is_resumed && !error.is_from_wire() && !error.status().is_transient() {
        return not_of_this_query();
    }
    of_request(error)
}

/// Whether the SDK has noted in its token that nothing is left. One it writes differently costs an empty page.
fn is_end(token: &str) -> bool {
    token
        .strip_prefix("c1.")
        .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok())
        .and_then(|json| serde_json::from_slice::<Value>(&json).ok())
        .and_then(|state| state.get("root")?.get("kind").cloned())
        .is_some_and(|kind| kind == "drained")
}
