//! Store decorator that records each request by name and order.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, StoreRequest};
use turnwheel_storage::store::{ConversationStore, Freshness, StoreError, Write};

pub(crate) type RequestLogStore = InterceptedStore<RequestLog>;

#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    requests: Mutex<Vec<String>>,
    /// Reads of abort checks. They depend on time, not on steps, so they are counted apart.
    abort_checks: AtomicU32,
    /// Their request units: a read of the latest version costs twice one of any version.
    abort_check_units: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortChecks {
    pub(crate) reads: u32,
    pub(crate) units: u32,
}

pub(crate) trait LoggedRequests {
    fn wrap(inner: Arc<dyn ConversationStore>) -> Arc<Self>;

    /// Returns the requests since the last call, one a line.
    fn take_requests(&self) -> String;

    /// Number of reads of abort checks since the beginning, and their request units.
    fn abort_checks(&self) -> AbortChecks;
}

impl LoggedRequests for RequestLogStore {
    fn wrap(inner: Arc<dyn ConversationStore>) -> Arc<Self> {
        Arc::new(Self::new(inner, RequestLog::default()))
    }

    fn take_requests(&self) -> String {
        std::mem::take(&mut *self.interceptor.requests.lock().unwrap()).join("\n")
    }

    fn abort_checks(&self) -> AbortChecks {
        AbortChecks {
            reads: self.interceptor.abort_checks.load(Ordering::SeqCst),
            units: self.interceptor.abort_check_units.load(Ordering::SeqCst),
        }
    }
}

/// Kinds in the order of the batch; `2 entry` for two in a row. A `commit` is an events document that
/// also contains entries.
fn describe_batch(writes: &[Write]) -> String {
    let mut runs: Vec<(usize, String)> = Vec::new();
    for write in writes {
        let name = match write {
            Write::Replace(document, _) if document.kind.into_str() == "scope" => {
                "scope (changed)".to_owned()
            }
            Write::Create(document) if document.last_entry.is_some() => "commit".to_owned(),
            Write::Create(document) | Write::Replace(document, _) => {
                document.kind.into_str().to_owned()
            }
            Write::Delete(..) => "delete".to_owned(),
            Write::CountInboxChange { .. } => "head (count)".to_owned(),
        };
        match runs.last_mut() {
            Some((count, last)) if *last == name => *count += 1,
            _ => runs.push((1, name)),
        }
    }
    let runs = runs.iter().map(|(count, name)| match count {
        1 => name.clone(),
        _ => format!("{count} {name}"),
    });
    runs.collect::<Vec<_>>().join(", ")
}

impl StoreInterceptor for RequestLog {
    fn before_request(&self, asked: &StoreRequest<'_>) -> Result<(), StoreError> {
        let request = match asked {
            StoreRequest::Read(_, id, freshness)
                if id.starts_with("stop-") || (*id == "head" && *freshness == Freshness::Any) =>
            {
                self.abort_checks.fetch_add(1, Ordering::SeqCst);
                let units = if *freshness == Freshness::Latest { 2 } else { 1 };
                self.abort_check_units.fetch_add(units, Ordering::SeqCst);
                return Ok(());
            }
            StoreRequest::Read(_, id, _) if id.starts_with("ev-") || *id == "head" => {
                format!("read {id}")
            }
            StoreRequest::Read(..) => "read item".to_owned(),
            StoreRequest::Write(_, writes) => format!("write {}", describe_batch(writes)),
            StoreRequest::Select(selection) => format!("select {}", selection.kind.into_str()),
            StoreRequest::AcquireLease => "lease (head)".to_owned(),
            StoreRequest::ListDue => "due".to_owned(),
            StoreRequest::ListHeads => "heads".to_owned(),
            StoreRequest::Search => "search".to_owned(),
        };
        self.requests.lock().unwrap().push(request);
        Ok(())
    }
}
