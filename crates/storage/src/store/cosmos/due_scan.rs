//! Scan for due items by physical partition, several at a time.
//!
//! Each scan starts at a random partition, so that interrupted scans do not all miss the same
//! conversations.

use std::collections::VecDeque;

use azure_data_cosmos::FeedScope;
use azure_data_cosmos::feed::FeedRange;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::pages::{PageOptions, PagedQuery, QueryPage};
use super::queries;
use super::response::{request_error, unavailable};
use crate::store::{DocumentKind, DueItem, Freshness, Partition, StoreError};
use turnwheel_azure::cosmos::Containers;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{Ids as _, SystemIds};

/// Number of physical partitions queried at the same time. They respond independently.
const CONCURRENCY: usize = 8;

/// The remaining part of a scan.
#[derive(Serialize, Deserialize)]
pub(super) struct DueScan {
    #[serde(rename = "left")]
    pending: VecDeque<PartitionScan>,
    /// Partitions whose query failed. They are queried once more after all others, so that an
    /// unavailable partition does not delay them.
    #[serde(rename = "refused")]
    failed: VecDeque<PartitionScan>,
    #[serde(rename = "has_answer")]
    has_response: bool,
    /// The error of a partition whose second query failed too.
    failure: Option<String>,
}

/// A physical partition of one of the containers, and its continuation token.
#[derive(Serialize, Deserialize)]
struct PartitionScan {
    is_in_scopes: bool,
    range: FeedRange,
    token: Option<String>,
}

impl DueScan {
    pub(super) async fn start(containers: &Containers) -> Result<Self, StoreError> {
        let mut sections = VecDeque::new();
        for (is_in_scopes, container) in
            [(false, &containers.conversations), (true, &containers.scopes)]
        {
            let ranges = container.read_feed_ranges(None).await.map_err(request_error)?;
            let section = |range| PartitionScan { is_in_scopes, range, token: None };
            sections.extend(ranges.into_iter().map(section));
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a few thousand partitions"
        )]
        let first = (SystemIds.random_fraction() * sections.len() as f64) as usize;
        sections.rotate_left(first.min(sections.len()));
        Ok(Self { pending: sections, failed: VecDeque::new(), has_response: false, failure: None })
    }

    /// Queries the next partitions. Returns at most `limit` due items and the remaining scan.
    ///
    /// # Errors
    /// Every query has failed so far, or the second query of a partition failed after all others
    /// are done: scan again later.
    pub(super) async fn next_page(
        mut self,
        containers: &Containers,
        at: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueItem>, Option<Self>), StoreError> {
        let is_second_query = self.pending.is_empty();
        let sections = if is_second_query { &mut self.failed } else { &mut self.pending };
        let count = CONCURRENCY.min(limit.max(1)).min(sections.len());
        let each = limit / count.max(1);
        let scanned: Vec<PartitionScan> = sections.drain(..count).collect();
        let answers =
            join_all(scanned.iter().map(|section| section.list_due(containers, at, each))).await;
        let mut items = Vec::new();
        let mut last_error = None;
        for (section, answer) in scanned.into_iter().zip(answers) {
            match answer {
                Ok((found, token)) => {
                    self.has_response = true;
                    items.extend(found);
                    self.pending
                        .extend(token.map(|token| PartitionScan { token: Some(token), ..section }));
                }
                Err(error) if is_second_query => self.failure = Some(error.to_string()),
                Err(error) => {
                    last_error = Some(error);
                    self.failed.push_back(section);
                }
            }
        }
        if let Some(error) = last_error
            && !self.has_response
        {
            return Err(error);
        }
        if !self.pending.is_empty() || !self.failed.is_empty() {
            return Ok((items, Some(self)));
        }
        match self.failure.take() {
            None => Ok((items, None)),
            Some(why) if items.is_empty() => Err(unavailable(
                format!("some physical partitions of Cosmos are unavailable: {why}"),
                None,
            )),
            // Return the items first; the next call reports the failure.
            Some(why) => Ok((items, Some(Self { failure: Some(why), ..self }))),
        }
    }
}

impl PartitionScan {
    /// Returns the due items of the partition, and the token of the next page.
    async fn list_due(
        &self,
        containers: &Containers,
        at: Timestamp,
        limit: usize,
    ) -> Result<(Vec<DueItem>, Option<String>), StoreError> {
        let container =
            if self.is_in_scopes { &containers.scopes } else { &containers.conversations };
        let query = queries::due(at, FeedScope::range(self.range.clone()));
        let page_options = PageOptions { limit, freshness: Freshness::Latest };
        let pages: PagedQuery<DueRow> = Box::pin(PagedQuery::start(
            "cosmos.due",
            container,
            &query,
            page_options,
            self.token.clone(),
        ))
        .await?;
        let QueryPage { items, token } = Box::pin(pages.next_nonempty_page()).await?;
        let items = items.into_iter().map(DueRow::into_due_item).collect::<Result<_, _>>()?;
        Ok((items, token))
    }
}

/// A due item of either container, as the query returns it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DueRow {
    id: String,
    kind: String,
    due: Timestamp,
    tenant: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    conversation_id: String,
    #[serde(default)]
    is_leased: bool,
}

impl DueRow {
    fn into_due_item(self) -> Result<DueItem, StoreError> {
        let Self { id, kind, due, tenant, user, conversation_id, is_leased } = self;
        let partition = Partition::from_parts(tenant, user, conversation_id);
        let kind = DocumentKind::from_name(&kind)?;
        Ok(DueItem { partition, id, kind, due, is_leased: is_leased && kind == DocumentKind::Head })
    }
}
