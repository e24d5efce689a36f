//! The comparison of reads at recovery sweeps.

use crate::doctor;
use crate::start::function_handlers::tests::{NOW, handlers_of};
use crate::start::function_handlers::*;
use crate::start::test_services::TestServices;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_test_support::captured_log::CapturedLog;

/// Handlers of an app with a database in Azure.
fn handlers_in_azure(services: Services) -> FunctionHandlers {
    let lookup = |name: &str| match name {
        "COSMOS__accountEndpoint" => Some("https://mine.documents.azure.com:443/".to_owned()),
        "COSMOS__accountKey" => Some("c2VjcmV0".to_owned()),
        _ => None,
    };
    let read_check = ReadCheck::new(&ServiceSettings::read(lookup).unwrap());
    FunctionHandlers { read_check, ..handlers_of(services) }
}

/// The store of the test charges nothing for a read, which shows no quorum.
#[tokio::test]
async fn sweep_warns_once_of_reads_without_a_quorum() {
    let TestServices { services, store, .. } = TestServices::new(NOW);
    let handlers = handlers_in_azure(services);
    let log = CapturedLog::start();
    store.set_faults(StoreFaults { unavailable_before: 1.0, ..StoreFaults::default() });
    for _ in 0..3 {
        handlers.sweep(TimerInfo::default(), InvocationMeta::default()).await.unwrap();
        store.set_faults(StoreFaults::default());
    }
    let text = log.text();
    let reported: Vec<&str> =
        text.lines().filter(|line| line.contains("reads") && line.contains("WARN")).collect();
    let [failed, compared] = reported.as_slice() else { panic!("{text}") };
    assert!(failed.contains("charges of reads not compared; the next sweep tries again"), "{text}");
    assert!(compared.contains("reads that decide may not come from a quorum"), "{text}");
    assert!(compared.contains(doctor::QUORUM_ADVICE), "{text}");
}
