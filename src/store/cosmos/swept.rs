//! Scan for due items by physical partition, several at a time.
//!
//! Each scan starts at a random partition, so that interrupted scans do not all miss the same
//! conversations.

use std::collections::VecDeque;

use azure_data_cosmos::FeedScope;
use azure_data_cosmos::feed::FeedRange;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::answer::{of_request, unavailable};
use super::pages::{Pages, Part};
use super::queries;
use crate::azure::cosmos::Containers;
use crate::clock::Timestamp;
use crate::ids::{Ids as _, SystemIds};
use crate::store::{Freshness, Kind, Owed, Partition, StoreError};

/// Number of physical partitions queried at the same time. They respond independently.
const AT_ONCE: usize = 8;

/// The remaining part of a scan.
#[derive(Serialize, Deserialize)]
pub(super) struct Swept {
    left: VecDeque<Section>,
    /// Partitions whose query failed. They are queried once more after all others, so that an
    /// unavailable partition does not delay them.
    refused: VecDeque<Section>,
    has_answer: bool,
    /// The error of a partition whose second query failed too.
    failure: Option<String>,
}

/// A physical partition of one of the containers, and its continuation token.
#[derive(Serialize, Deserialize)]
struct Section {
    is_in_scopes: bool,
    range: FeedRange,
    token: Option<String>,
}

impl Swept {
    pub(super) async fn begin(containers: &Containers) -> Result<Self, StoreError> {
        let mut sections = VecDeque::new();
        for (is_in_scopes, container) in
            [(false, &containers.conversations), (true, &containers.scopes)]
        {
            let ranges = container.read_feed_ranges(None).await.map_err(of_request)?;
            let section = |range| Section { is_in_scopes, range, token: None };
            sections.extend(ranges.into_iter().map(section));
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a few thousand partitions"
        )]
        let first = (SystemIds.chance() * sections.len() as f64) as usize;
        sections.rotate_left(first.min(sections.len()));
        Ok(Self { left: sections, refused: VecDeque::new(), has_answer: false, failure: None })
    }

    /// Queries the next partitions. Returns at most `limit` due items and the remaining scan.
    ///
    /// # Errors
    /// Every query has failed so far, or the second query of a partition failed after all others
    /// are done: scan again later.
    pub(super) async fn next(
        mut self,
        containers: &Containers,
        at: Timestamp,
        limit: usize,
    ) -> Result<(Vec<Owed>, Option<Self>), StoreError> {
        let is_again = self.left.is_empty();
        let sections = if is_again { &mut self.refused } else { &mut self.left };
        let count = AT_ONCE.min(limit.max(1)).min(sections.len());
        let each = limit / count.max(1);
        let asked: Vec<Section> = sections.drain(..count).collect();
        let answers = join_all(asked.iter().map(|section| section.ask(containers, at, each))).await;
        let mut items = Vec::new();
        let mut failed = None;
        for (section, answer) in asked.into_iter().zip(answers) {
            match answer {
                Ok((found, token)) => {
                    self.has_answer = true;
                    items.extend(found);
                    self.left.extend(token.map(|token| Section { token: Some(token), ..section }));
                }
                Err(error) if is_again => self.failure = Some(error.to_string()),
                Err(error) => {
                    failed = Some(error);
                    self.refused.push_back(section);
                }
            }
        }
        if let Some(error) = failed
            && !self.has_answer
        {
            return Err(error);
        }
        if !self.left.is_empty() || !self.refused.is_empty() {
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

impl Section {
    /// Returns the due items of the partition, and the token of the next page.
    async fn ask(
        &self,
        containers: &Containers,
        at: Timestamp,
        limit: usize,
    ) -> Result<(Vec<Owed>, Option<String>), StoreError> {
        let container =
            if self.is_in_scopes { &containers.scopes } else { &containers.conversations };
        let asked = queries::due(at, FeedScope::range(self.range.clone()));
        let how = (limit, Freshness::Latest);
        let pages: Pages<Due> =
            Box::pin(Pages::begin("cosmos.due", container, &asked, how, self.token.clone()))
                .await?;
        let Part { items, token } = Box::pin(pages.next_part()).await?;
        let items = items.into_iter().map(Due::owed).collect::<Result<_, _>>()?;
        Ok((items, token))
    }
}

/// A due item of either container, as the query returns it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Due {
    id: String,
    kind: String,
    due: Timestamp,
    tenant: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    conversation_id: String,
}

impl Due {
    fn owed(self) -> Result<Owed, StoreError> {
        let Self { id, kind, due, tenant, user, conversation_id } = self;
        let partition = Partition::from_parts(tenant, user, conversation_id);
        Ok(Owed { partition, id, kind: Kind::named(&kind)?, due })
    }
}
