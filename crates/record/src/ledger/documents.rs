//! Documents of the ledger: as read, with their changes, and the cache of those that this process
//! has written.

use std::fmt;
use std::time::Duration;

use quick_cache::sync::Cache;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::documents;
use turnwheel_platform::ids::TenantId;
use turnwheel_storage::store::{
    ConversationStore, Document, DocumentKind, ETag, Freshness, Partition, StoreError,
    StoredDocument, Write,
};

/// Bytes of the cached documents of all tenants, as stored; each has about 1 KB.
const CACHE_BYTES_MAX: u64 = 4 * 1024 * 1024;
const DOCUMENTS_ESTIMATE: usize = 1_000;
/// Memory of a cached document beside its text.
const OVERHEAD_BYTES: u64 = 512;
/// Time for which a document that another process has written is not cached.
const SHARED_FOR: Duration = Duration::from_mins(1);

/// A document of the ledger as read, with pending changes.
pub(super) struct VersionedDocument<T> {
    pub(super) id: String,
    etag: Option<ETag>,
    pub(super) value: T,
    is_changed: bool,
    /// Another process may have written it since.
    is_cached: bool,
}

impl<T: Serialize> VersionedDocument<T> {
    pub(super) fn change(&mut self) -> &mut T {
        self.is_changed = true;
        &mut self.value
    }

    pub(super) fn is_cached(&self) -> bool {
        self.is_cached
    }

    /// True if nothing will show whether the document is current: a batch shows it for those that it
    /// writes.
    pub(super) fn relies_on_cache(&self) -> bool {
        self.is_cached && !self.is_changed
    }

    pub(super) fn write(&self) -> Option<Write> {
        let document = || Document::new(&self.id, DocumentKind::Scope, &self.value, None);
        self.is_changed.then(|| match &self.etag {
            Some(etag) => Write::Replace(document(), Some(etag.clone())),
            None => Write::Create(document()),
        })
    }
}

/// Reads the ledger of a tenant.
#[derive(Clone, Copy)]
pub(super) struct LedgerReader<'a> {
    pub(super) store: &'a dyn ConversationStore,
    pub(super) tenant: &'a TenantId,
    /// Documents that it has are not read in the store.
    pub(super) cache: Option<&'a LedgerDocuments>,
}

impl LedgerReader<'_> {
    /// A document of the ledger, or `blank` if it does not exist.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        id: String,
        blank: T,
    ) -> Result<VersionedDocument<T>, StoreError> {
        let cached = self.cache.and_then(|cache| cache.get(self.tenant, &id));
        let is_cached = cached.is_some();
        let stored = if is_cached {
            cached
        } else {
            let partition = Partition::Scope(self.tenant.clone());
            self.store.read(&partition, &id, Freshness::Latest).await?
        };
        let (etag, value) = match stored {
            Some(stored) => (Some(stored.etag), documents::read(&stored.document)?),
            None => (None, blank),
        };
        Ok(VersionedDocument { id, etag, value, is_changed: false, is_cached })
    }
}

/// A document in the cache.
#[derive(Clone)]
enum CachedLedgerDocument {
    /// As this process wrote it last.
    Written(StoredDocument),
    /// Other processes write it as well, so that it would be old: read it until that time.
    Shared { until: Duration },
}

#[derive(Clone)]
struct LedgerDocumentWeighter;

impl quick_cache::Weighter<LedgerDocumentKey, CachedLedgerDocument> for LedgerDocumentWeighter {
    fn weight(&self, _key: &LedgerDocumentKey, cached: &CachedLedgerDocument) -> u64 {
        match cached {
            CachedLedgerDocument::Written(stored) => {
                OVERHEAD_BYTES + stored.document.body.text().len() as u64
            }
            CachedLedgerDocument::Shared { .. } => OVERHEAD_BYTES,
        }
    }
}

type LedgerDocumentKey = (TenantId, String);

/// Cache of the documents that this process wrote last, so that a model call with budgets needs no
/// reads. Other processes write them too: a batch with an old version is a conflict.
pub struct LedgerDocuments(Cache<LedgerDocumentKey, CachedLedgerDocument, LedgerDocumentWeighter>);

impl Default for LedgerDocuments {
    fn default() -> Self {
        Self(Cache::with_weighter(DOCUMENTS_ESTIMATE, CACHE_BYTES_MAX, LedgerDocumentWeighter))
    }
}

impl fmt::Debug for LedgerDocuments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LedgerDocuments({})", self.0.len())
    }
}

impl LedgerDocuments {
    fn get(&self, tenant: &TenantId, id: &str) -> Option<StoredDocument> {
        match self.0.get(&(tenant.clone(), id.to_owned()))? {
            CachedLedgerDocument::Written(stored) => Some(stored),
            CachedLedgerDocument::Shared { .. } => None,
        }
    }

    /// Reads these documents, whose batch was lost, in the store for a while. One that this process has
    /// written meanwhile stays: the batch was lost to another conversation of its own.
    pub(super) fn mark_shared(&self, tenant: &TenantId, ids: Vec<String>, now: Duration) {
        for id in ids {
            let key = (tenant.clone(), id);
            if !matches!(self.0.get(&key), Some(CachedLedgerDocument::Written(_))) {
                let shared = CachedLedgerDocument::Shared { until: now + SHARED_FOR };
                self.0.insert(key, shared);
            }
        }
    }

    pub(super) fn remove(&self, tenant: &TenantId, id: &str) {
        self.0.remove(&(tenant.clone(), id.to_owned()));
    }

    /// True unless other processes write the document as well. Drops the one in the cache: whether its
    /// batch wins is not known yet.
    fn is_cacheable(&self, tenant: &TenantId, id: &str, now: Duration) -> bool {
        let key = (tenant.clone(), id.to_owned());
        match self.0.get(&key) {
            Some(CachedLedgerDocument::Shared { until }) => until <= now,
            Some(CachedLedgerDocument::Written(_)) => {
                self.0.remove(&key);
                true
            }
            None => true,
        }
    }

    /// Writes documents of a tenant, and caches them.
    ///
    /// # Errors
    /// As [`ConversationStore::write`]. None of the documents is cached then.
    pub(super) async fn write(
        &self,
        store: &dyn ConversationStore,
        tenant: &TenantId,
        writes: Vec<Write>,
        now: Duration,
    ) -> Result<(), StoreError> {
        let mut cacheable = Vec::with_capacity(writes.len());
        for write in &writes {
            let document = written_document(write);
            cacheable.push(document.filter(|it| self.is_cacheable(tenant, &it.id, now)).cloned());
        }
        let etags = store.write(&Partition::Scope(tenant.clone()), writes).await?;
        for (document, etag) in cacheable.into_iter().zip(etags) {
            let Some(document) = document else { continue };
            let key = (tenant.clone(), document.id.clone());
            self.0.insert(key, CachedLedgerDocument::Written(StoredDocument { document, etag }));
        }
        Ok(())
    }
}

fn written_document(write: &Write) -> Option<&Document> {
    match write {
        Write::Create(document) | Write::Replace(document, _) => Some(document),
        Write::Delete(..) | Write::CountInboxChange { .. } => None,
    }
}
