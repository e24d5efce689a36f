//! Store decorator that changes written documents or the results of writes.

use std::fmt;
use std::sync::Arc;

use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, WriteResult};
use turnwheel_storage::store::{ConversationStore, Document, Write};

pub(crate) struct StoreDecorator {
    map_document: fn(Document) -> Document,
    map_result: fn(WriteResult, usize) -> WriteResult,
}

impl StoreDecorator {
    pub(super) fn with_document_map(
        inner: Arc<dyn ConversationStore>,
        map_document: fn(Document) -> Document,
    ) -> Arc<dyn ConversationStore> {
        let watch = Self { map_document, map_result: |answer, _| answer };
        Arc::new(InterceptedStore::new(inner, watch))
    }

    pub(crate) fn with_result_map(
        inner: Arc<dyn ConversationStore>,
        map_result: fn(WriteResult, usize) -> WriteResult,
    ) -> Arc<dyn ConversationStore> {
        let watch = Self { map_document: |document| document, map_result };
        Arc::new(InterceptedStore::new(inner, watch))
    }
}

impl fmt::Debug for StoreDecorator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Altered")
    }
}

impl StoreInterceptor for StoreDecorator {
    fn alter_writes(&self, writes: Vec<Write>) -> Vec<Write> {
        let mapped = writes.into_iter().map(|write| match write {
            Write::Create(document) => Write::Create((self.map_document)(document)),
            Write::Replace(document, etag) => Write::Replace((self.map_document)(document), etag),
            other @ (Write::Delete(..) | Write::CountInboxChange { .. }) => other,
        });
        mapped.collect()
    }

    fn alter_result(&self, written: WriteResult, count: usize) -> WriteResult {
        (self.map_result)(written, count)
    }
}
