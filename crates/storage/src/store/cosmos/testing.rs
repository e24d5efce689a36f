//! Test stores on Microsoft's Cosmos emulator: in process, over a socket, and with injected faults.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;

use azure_data_cosmos::fault_injection::FaultInjectionRule;
use azure_data_cosmos::{CosmosClient, CosmosRuntimeBuilder};

use super::CosmosStore;
use turnwheel_azure::cosmos::CONTAINERS;
pub use turnwheel_cosmos_emulator::{Container, CosmosEmulator, CosmosHost, KEY};
use turnwheel_platform::settings::azure::{CosmosAccess, CosmosAccount};
use turnwheel_platform::settings::secret::Secret;

pub const DATABASE: &str = "turnwheel";

fn containers() -> Vec<Container<'static>> {
    CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect()
}

/// Starts an in-process emulator account with both containers.
pub fn start_in_process(partitions: u32) -> CosmosEmulator {
    CosmosEmulator::in_process(DATABASE, &containers(), partitions)
}

/// Starts an emulator account with both containers on a socket.
#[cfg(test)]
pub(crate) fn start_on_socket(partitions: u32) -> CosmosHost {
    CosmosHost::start(0, DATABASE, &containers(), partitions).unwrap()
}

pub fn account(emulator: &CosmosEmulator) -> CosmosAccount {
    CosmosAccount {
        endpoint: emulator.endpoint.clone(),
        database: DATABASE.to_owned(),
        access: CosmosAccess::Key(Secret::new(KEY.to_owned())),
    }
}

/// Connects a store without a socket; the rules inject faults between its SDK and the emulator.
pub async fn connect_store(
    emulator: &CosmosEmulator,
    rules: Vec<Arc<FaultInjectionRule>>,
) -> CosmosStore {
    let runtime = CosmosRuntimeBuilder::from(emulator.core.runtime_builder());
    let mut builder = CosmosClient::builder().with_runtime(runtime.build().await.unwrap());
    if !rules.is_empty() {
        builder = builder.with_fault_injection_rules(rules).unwrap();
    }
    CosmosStore::connect_by(builder, &account(emulator), None).await.unwrap()
}
