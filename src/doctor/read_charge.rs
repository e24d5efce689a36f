//! Checks if `Latest` reads come from a quorum, by the charge that Cosmos DB returns for them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Area, Check};
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};
use turnwheel_platform::telemetry::cost_meter::{CostMeter, with_meter};
use turnwheel_record::documents;
use turnwheel_storage::store::{
    ConversationStore, Document, DocumentKind, Freshness, Partition, StoreError, Write,
};

/// A document that only these reads use.
const ENTRY_ID: &str = "entry-00000000000000000001";
/// Least ratio of a quorum read's charge to a plain one's: 2 by the documentation, less rounding.
const QUORUM_RATIO_MIN: f64 = 1.5;
pub(crate) const QUORUM_ADVICE: &str = "two instances may see different states of a conversation: set the account's default consistency to Strong or BoundedStaleness, and report it";

/// Request units of two reads of one small document.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReadCharges {
    /// A read that may lag.
    pub plain: f64,
    /// A `LatestCommitted` read.
    pub latest: f64,
}

impl ReadCharges {
    /// True if the charges show that `Latest` reads come from a quorum.
    pub(crate) fn is_quorum(self) -> bool {
        self.plain > 0.0 && self.latest / self.plain >= QUORUM_RATIO_MIN
    }
}

fn doctor_partition(id: &str) -> Partition {
    Partition::Conversation(ConversationKey {
        tenant: TenantId::new("turnwheel-doctor"),
        user: UserId::new("doctor"),
        conversation_id: ConversationId::new(id),
    })
}

/// Returns the charges that a process of this version measured, or measures and stores them. `fresh` is a new id.
///
/// # Errors
/// The store is unavailable: try again later.
pub(crate) async fn compare_reads_of_version(
    store: &dyn ConversationStore,
    fresh: &str,
    version: &str,
) -> Result<ReadCharges, StoreError> {
    let partition = doctor_partition(&format!("reads-{version}"));
    if let Some(stored) = store.read(&partition, ENTRY_ID, Freshness::Any).await? {
        return documents::read(&stored.document);
    }
    let charges = measure_read_charges(store, fresh).await?;
    let document = Document::new(ENTRY_ID, DocumentKind::Entry, &charges, None);
    match store.write(&partition, vec![Write::Create(document)]).await {
        // Another process has stored its own.
        Ok(_) | Err(StoreError::Conflict) => Ok(charges),
        Err(error) => Err(error),
    }
}

/// Writes one document into a conversation of the doctor's own, reads it both ways and deletes it.
///
/// # Errors
/// The store rejects the write, or does not return the document.
pub(crate) async fn measure_read_charges(
    store: &dyn ConversationStore,
    fresh: &str,
) -> Result<ReadCharges, StoreError> {
    let partition = doctor_partition(fresh);
    let body = json!({"madeBy": "turnwheel doctor"});
    let document = Document::new(ENTRY_ID, DocumentKind::Entry, &body, None);
    store.write(&partition, vec![Write::Create(document)]).await?;
    let charge = async |freshness| {
        let meter = Arc::new(CostMeter::default());
        let read =
            with_meter(Arc::clone(&meter), store.read(&partition, ENTRY_ID, freshness)).await?;
        let found = read.map(|_| meter.total("cosmos.read").request_units);
        found.ok_or_else(|| StoreError::Corrupt("a document just written was not found".to_owned()))
    };
    let plain = charge(Freshness::Any).await;
    let latest = charge(Freshness::Latest).await;
    store.write(&partition, vec![Write::Delete(ENTRY_ID.to_owned(), None)]).await?;
    Ok(ReadCharges { plain: plain?, latest: latest? })
}

/// Interprets the charges. An emulator charges both reads alike.
pub(crate) fn quorum_check(charges: ReadCharges, is_emulator: bool) -> Check {
    let (area, name) = (Area::Store, "reads that decide");
    let ReadCharges { plain, latest } = charges;
    let found =
        format!("LatestCommitted is charged {latest:.1} request units, a plain read {plain:.1}");
    if is_emulator {
        return Check::skipped(area, name, format!("{found}: an emulator does not show a quorum"));
    }
    if charges.is_quorum() {
        return Check::ok(area, name, format!("{found}: a quorum is read"));
    }
    Check::fix(area, name, format!("{found}, which should be twice as much: {QUORUM_ADVICE}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckResult;
    use turnwheel_storage::store::Selection;

    #[tokio::test]
    async fn read_charges_are_measured_and_document_deleted() {
        let emulator = turnwheel_storage::store::cosmos::testing::start_in_process(1);
        let store =
            turnwheel_storage::store::cosmos::testing::connect_store(&emulator, Vec::new()).await;
        let charges = measure_read_charges(&store, "c1").await.unwrap();
        assert!(charges.plain > 0.0 && charges.latest > 0.0, "{charges:?}");
        let partition = doctor_partition("c1");
        let remaining =
            store.select(&partition, &Selection::all(DocumentKind::Entry), Freshness::Latest).await;
        assert_eq!(remaining.unwrap(), []);
    }

    #[tokio::test]
    async fn reads_are_compared_once_per_version() {
        let emulator = turnwheel_storage::store::cosmos::testing::start_in_process(1);
        let store =
            turnwheel_storage::store::cosmos::testing::connect_store(&emulator, Vec::new()).await;
        let compare = async |fresh: &str, version: &str| {
            let meter = Arc::new(CostMeter::default());
            let compared = compare_reads_of_version(&store, fresh, version);
            let charges = with_meter(Arc::clone(&meter), compared).await.unwrap();
            (charges, meter.total("cosmos.").requests)
        };
        let (first, requests) = compare("c1", "1.0.0").await;
        assert!(!first.is_quorum(), "an emulator charges both reads alike: {first:?}");
        assert!(requests > 1, "{requests}");
        assert_eq!(compare("c2", "1.0.0").await, (first, 1));
        assert!(compare("c3", "1.0.1").await.1 > 1);
    }

    #[test]
    fn charge_of_single_replica_needs_fix() {
        let check = |plain, latest| quorum_check(ReadCharges { plain, latest }, false).outcome;
        assert!(matches!(check(1.0, 2.0), CheckResult::Ok(_)));
        for (plain, latest) in [(1.0, 1.0), (1.0, 1.4), (0.0, 0.0)] {
            let CheckResult::Fix(text) = check(plain, latest) else { panic!("{plain} {latest}") };
            assert!(text.contains("set the account's default consistency"), "{text}");
        }
        let emulated = quorum_check(ReadCharges { plain: 1.0, latest: 1.0 }, true);
        assert!(matches!(emulated.outcome, CheckResult::Skipped(_)));
    }
}
