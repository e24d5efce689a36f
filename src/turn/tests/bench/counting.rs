//! Store decorator that records each request by name and order.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::store::watched::{Asked, Watch, Watched};
use crate::store::{ConversationStore, StoreError, Write};

pub(in crate::turn::tests) type Counting = Watched<Notes>;

#[derive(Debug, Default)]
pub(in crate::turn::tests) struct Notes {
    requests: Mutex<Vec<String>>,
    /// Number of abort checks. They depend on time, not on steps, so they are counted apart.
    looks: AtomicU32,
}

impl Watched<Notes> {
    pub(in crate::turn::tests) fn before(inner: Arc<dyn ConversationStore>) -> Arc<Self> {
        Arc::new(Self { inner, watch: Notes::default() })
    }

    /// Returns the requests since the last call, one a line.
    pub(in crate::turn::tests) fn told(&self) -> String {
        std::mem::take(&mut *self.watch.requests.lock().unwrap()).join("\n")
    }

    /// Number of abort checks since the beginning.
    pub(in crate::turn::tests) fn looks(&self) -> u32 {
        self.watch.looks.load(Ordering::SeqCst)
    }
}

/// Kinds in the order of the batch; `2 entry` for two in a row.
fn batch(writes: &[Write]) -> String {
    let mut runs: Vec<(usize, String)> = Vec::new();
    for write in writes {
        let name = match write {
            Write::Replace(document, _) if document.kind.as_str() == "inbox" => {
                "inbox (left waiting)".to_owned()
            }
            Write::Replace(document, _) if document.kind.as_str() == "scope" => {
                "scope (changed)".to_owned()
            }
            Write::Create(document) | Write::Replace(document, _) => {
                document.kind.as_str().to_owned()
            }
            Write::Delete(..) => "delete".to_owned(),
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

impl Watch for Notes {
    fn asked(&self, asked: &Asked<'_>) -> Result<(), StoreError> {
        let request = match asked {
            Asked::Read(_, id) if id.starts_with("stop-") => {
                self.looks.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            Asked::Read(_, id) if id.starts_with("ev-") || *id == "head" => format!("read {id}"),
            Asked::Read(..) => "read item".to_owned(),
            Asked::Write(_, writes) => format!("write {}", batch(writes)),
            Asked::Select(selection) => format!("select {}", selection.kind.as_str()),
            Asked::Claim => "lease (head and inbox)".to_owned(),
            Asked::Due => "due".to_owned(),
            Asked::Heads => "heads".to_owned(),
        };
        self.requests.lock().unwrap().push(request);
        Ok(())
    }
}
