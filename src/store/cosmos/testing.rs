//! Test stores on Microsoft's Cosmos emulator: in process, over a socket, and with injected faults.

#[path = "../../../tests/support/cosmos_emulator.rs"]
mod emulator;

use std::sync::Arc;

use azure_data_cosmos::fault_injection::FaultInjectionRule;
use azure_data_cosmos::{CosmosClient, CosmosRuntimeBuilder};
use azure_data_cosmos_driver::in_memory_emulator::RequestObserver;

pub(crate) use self::emulator::{CosmosEmulator, CosmosHost, KEY};
use super::CosmosStore;
use crate::azure::cosmos::CONTAINERS;
use crate::settings::azure::{CosmosAccess, CosmosAccount};
use crate::settings::secret::Secret;

pub(crate) const DATABASE: &str = "turnwheel";

fn containers() -> Vec<emulator::Container<'static>> {
    CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect()
}

/// Starts an in-process emulator account with both containers.
pub(crate) fn start_in_process(partitions: u32) -> CosmosEmulator {
    CosmosEmulator::in_process(&containers(), partitions)
}

/// Starts an emulator account with both containers on a socket.
pub(crate) fn start_on_socket(partitions: u32) -> CosmosHost {
    CosmosHost::start(0, DATABASE, &containers(), partitions).unwrap()
}

pub(crate) fn account(emulator: &CosmosEmulator) -> CosmosAccount {
    CosmosAccount {
        endpoint: emulator.endpoint.clone(),
        database: DATABASE.to_owned(),
        access: CosmosAccess::Key(Secret::new(KEY.to_owned())),
    }
}

/// Connects a store without a socket; the rules inject faults between its SDK and the emulator.
pub(crate) async fn connect_store(
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

impl CosmosEmulator {
    /// Starts an emulator for clients in this process, without a socket.
    pub(crate) fn in_process(containers: &[emulator::Container<'_>], partitions: u32) -> Self {
        let endpoint = "https://eastus.emulator.local".parse().unwrap();
        Self::new(endpoint, DATABASE, containers, partitions).unwrap()
    }

    /// Adds an observer of all requests. Call it before any client connects.
    pub(crate) fn observed_by(self, observer: Arc<dyn RequestObserver>) -> Self {
        let core = Arc::into_inner(self.core).unwrap().with_request_observer(observer);
        Self { core: Arc::new(core), ..self }
    }
}
