//! A store that counts its requests.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::store::interceptor::{InterceptedStore, StoreInterceptor, StoreRequest};
use crate::store::{StoreError, Write};

pub(super) type CountingStore = InterceptedStore<Mutex<Counts>>;

/// Number of requests by kind: `read head`, `select live`, `write watch`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts(BTreeMap<String, usize>);

impl Counts {
    pub(super) fn total(&self) -> usize {
        self.0.values().sum()
    }

    pub(super) fn of(&self, what: &str) -> usize {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl CountingStore {
    pub(super) fn counts(&self) -> Counts {
        self.interceptor.lock().unwrap().clone()
    }

    /// Requests since these counts.
    pub(super) fn since(&self, before: &Counts) -> Counts {
        let mut now = self.counts();
        for (what, count) in &mut now.0 {
            *count -= before.of(what);
        }
        now.0.retain(|_, count| *count > 0);
        now
    }
}

impl StoreInterceptor for Mutex<Counts> {
    fn before_request(&self, asked: &StoreRequest<'_>) -> Result<(), StoreError> {
        let what = match asked {
            StoreRequest::Write(_, writes) => format!("write {}", first_kind(writes)),
            StoreRequest::Read(_, id, _) => format!("read {id}"),
            StoreRequest::Select(selection) => format!("select {}", selection.kind.into_str()),
            StoreRequest::AcquireLease
            | StoreRequest::ListDue
            | StoreRequest::ListHeads
            | StoreRequest::Search => return Ok(()),
        };
        *self.lock().unwrap().0.entry(what).or_default() += 1;
        Ok(())
    }
}

fn first_kind(writes: &[Write]) -> &str {
    match writes.first() {
        Some(Write::Create(document) | Write::Replace(document, _)) => document.kind.into_str(),
        Some(Write::Delete(..) | Write::CountInboxChange { .. }) | None => "nothing",
    }
}
