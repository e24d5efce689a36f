//! Store decorator that changes written documents or the results of writes.

use std::fmt;
use std::sync::Arc;

use crate::store::watched::{Watch, Watched, Written};
use crate::store::{ConversationStore, Document, Write};

pub(in crate::turn::tests) struct Altered {
    alter: fn(Document) -> Document,
    hear: fn(Written, usize) -> Written,
}

impl Altered {
    pub(super) fn writing(
        inner: Arc<dyn ConversationStore>,
        alter: fn(Document) -> Document,
    ) -> Arc<dyn ConversationStore> {
        let watch = Self { alter, hear: |answer, _| answer };
        Arc::new(Watched { inner, watch })
    }

    pub(in crate::turn::tests) fn hearing(
        inner: Arc<dyn ConversationStore>,
        hear: fn(Written, usize) -> Written,
    ) -> Arc<dyn ConversationStore> {
        let watch = Self { alter: |document| document, hear };
        Arc::new(Watched { inner, watch })
    }
}

impl fmt::Debug for Altered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Altered")
    }
}

impl Watch for Altered {
    fn altered(&self, writes: Vec<Write>) -> Vec<Write> {
        let altered = writes.into_iter().map(|write| match write {
            Write::Create(document) => Write::Create((self.alter)(document)),
            Write::Replace(document, etag) => Write::Replace((self.alter)(document), etag),
            delete @ Write::Delete(..) => delete,
        });
        altered.collect()
    }

    fn heard(&self, written: Written, count: usize) -> Written {
        (self.hear)(written, count)
    }
}
