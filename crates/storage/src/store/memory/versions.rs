//! Version history of all documents, by commit.

use std::collections::BTreeMap;

use crate::store::cursor::{DueCursor, HeadCursor};
use crate::store::{
    Document, DocumentKind, DueItem, ETag, HEAD_ID, HeadQuery, Partition, SearchHit, SearchQuery,
    StoreError, StoredDocument, Write, head_lease, inbox_count, validate,
};
use turnwheel_platform::clock::Timestamp;

#[derive(Debug, Default)]
pub(super) struct Versions {
    /// Number of the newest applied batch; 0 if there is none.
    commit: u64,
    etag: u64,
    partitions: BTreeMap<Partition, BTreeMap<String, Vec<Version>>>,
}

#[derive(Debug)]
struct Version {
    commit: u64,
    /// `None` if the document was deleted.
    stored: Option<StoredDocument>,
}

impl Versions {
    pub(super) fn newest_commit(&self) -> u64 {
        self.commit
    }

    /// Applies all writes or none.
    pub(super) fn apply(
        &mut self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        let commit = self.commit + 1;
        let mut next_etag = self.etag;
        let mut pending: BTreeMap<String, Option<StoredDocument>> = BTreeMap::new();
        let mut etags = Vec::with_capacity(writes.len());
        for write in writes {
            let current = |id: &str| match pending.get(id) {
                Some(stored) => stored.as_ref(),
                None => self.version_at(partition, id, self.commit),
            };
            let (id, document) = match write {
                Write::Create(document) if current(&document.id).is_none() => {
                    (document.id.clone(), Some(document))
                }
                Write::Replace(document, etag) if matches(current(&document.id), etag.as_ref()) => {
                    (document.id.clone(), Some(document))
                }
                Write::Delete(id, etag) if matches(current(&id), etag.as_ref()) => (id, None),
                Write::CountInboxChange { due, room } => {
                    let head = current(HEAD_ID).ok_or(StoreError::Conflict)?;
                    let mut head = head.document.clone();
                    inbox_count::count_change(&mut head, due, room.as_ref())?;
                    (HEAD_ID.to_owned(), Some(head))
                }
                Write::Create(_) | Write::Replace(..) | Write::Delete(..) => {
                    return Err(StoreError::Conflict);
                }
            };
            let stored = document.map(|document| {
                next_etag += 1;
                StoredDocument { document, etag: ETag(next_etag.to_string()) }
            });
            etags.push(stored.as_ref().map_or(ETag(String::new()), |stored| stored.etag.clone()));
            pending.insert(id, stored);
        }
        self.commit = commit;
        self.etag = next_etag;
        let documents = self.partitions.entry(partition.clone()).or_default();
        for (id, stored) in pending {
            documents.entry(id).or_default().push(Version { commit, stored });
        }
        Ok(etags)
    }

    pub(super) fn version_at(
        &self,
        partition: &Partition,
        id: &str,
        commit: u64,
    ) -> Option<&StoredDocument> {
        as_of(self.partitions.get(partition)?.get(id)?, commit)
    }

    /// Returns the documents of a partition, in the order of ids.
    pub(super) fn documents_at(
        &self,
        partition: &Partition,
        commit: u64,
    ) -> impl Iterator<Item = &StoredDocument> {
        let documents = self.partitions.get(partition).into_iter().flat_map(BTreeMap::values);
        documents.filter_map(move |versions| as_of(versions, commit))
    }

    pub(super) fn history(&self, partition: &Partition, id: &str) -> Vec<Option<StoredDocument>> {
        let versions = self.partitions.get(partition).and_then(|documents| documents.get(id));
        versions.into_iter().flatten().map(|version| version.stored.clone()).collect()
    }

    /// Returns the due items after a cursor, in order.
    pub(super) fn list_due(&self, at: Timestamp, after: &DueCursor) -> Vec<(DueCursor, DueItem)> {
        let mut found: Vec<_> = self
            .partitions
            .keys()
            .flat_map(|partition| {
                self.documents_at(partition, self.commit).filter_map(|stored| {
                    let due = stored.document.due.filter(|due| *due <= at)?;
                    Some(due_item(partition, &stored.document, due))
                })
            })
            .filter(|(cursor, _)| cursor > after)
            .collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        found
    }

    /// Returns the listed heads after a cursor, newest first.
    pub(super) fn list_heads(
        &self,
        query: &HeadQuery,
        after: &HeadCursor,
        commit: u64,
    ) -> Vec<(HeadCursor, &StoredDocument)> {
        let mut found: Vec<_> = self
            .partitions
            .keys()
            .filter_map(|partition| {
                let Partition::Conversation(key) = partition else { return None };
                let is_asked = key.tenant == query.tenant
                    && query.user.as_ref().is_none_or(|user| key.user == *user);
                let head =
                    is_asked.then(|| self.version_at(partition, HEAD_ID, commit)).flatten()?;
                let state = head.document.state.as_deref();
                let is_listed = state != Some(validate::DELETED)
                    && query.state.as_deref().is_none_or(|wanted| state == Some(wanted));
                let cursor = HeadCursor {
                    created_at: head.document.created_at?.0,
                    conversation: key.conversation_id.as_str().to_owned(),
                    user: key.user.as_str().to_owned(),
                };
                (is_listed && cursor < *after).then_some((cursor, head))
            })
            .collect();
        found.sort_by(|(one, _), (other, _)| other.cmp(one));
        found
    }

    /// Returns the entries that contain the text, newest first.
    pub(super) fn search(&self, query: &SearchQuery, commit: u64) -> Vec<SearchHit> {
        let mut found = Vec::new();
        for partition in self.partitions.keys() {
            let Partition::Conversation(key) = partition else { continue };
            if key.tenant != query.tenant
                || key.user != query.user
                || key.conversation_id == query.except
            {
                continue;
            }
            found.extend(self.documents_at(partition, commit).filter_map(|stored| {
                let document = &stored.document;
                let text = document.search.as_ref().filter(|it| it.lower.contains(&query.lower))?;
                let hit = SearchHit {
                    conversation_id: key.conversation_id.clone(),
                    created_at: document.created_at?,
                    excerpt: text.excerpt.clone(),
                };
                Some(((hit.created_at, hit.conversation_id.clone(), &document.id), hit))
            }));
        }
        found.sort_by(|(one, _), (other, _)| other.cmp(one));
        found.into_iter().take(query.limit).map(|(_, hit)| hit).collect()
    }
}

fn matches(current: Option<&StoredDocument>, wanted: Option<&ETag>) -> bool {
    current.is_some_and(|stored| wanted.is_none_or(|etag| stored.etag == *etag))
}

fn as_of(versions: &[Version], commit: u64) -> Option<&StoredDocument> {
    versions.iter().rev().find(|version| version.commit <= commit)?.stored.as_ref()
}

fn due_item(partition: &Partition, document: &Document, due: Timestamp) -> (DueCursor, DueItem) {
    let [tenant, user, conversation] = partition.parts().map(ToOwned::to_owned);
    let id = document.id.clone();
    let cursor = DueCursor { due: due.0, tenant, user, conversation, id: id.clone() };
    let kind = document.kind;
    let is_leased =
        kind == DocumentKind::Head && matches!(head_lease::read_lease(document), Ok(Some(_)));
    (cursor, DueItem { partition: partition.clone(), id, kind, due, is_leased })
}
