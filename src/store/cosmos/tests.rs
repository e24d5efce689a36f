//! Stories of the store on the emulator.

use std::sync::Arc;

use super::CosmosStore;
use super::testing::{account, hosted, in_process, store};
use crate::store::ConversationStore;
use crate::store::contract::contract;

#[tokio::test]
async fn it_keeps_the_contract() {
    let emulator = in_process(4);
    let store = Arc::new(store(&emulator, Vec::new()).await);
    contract(async || Arc::clone(&store) as Arc<dyn ConversationStore>).await;
}

#[tokio::test]
async fn it_keeps_the_contract_over_a_socket() {
    let host = hosted(4);
    let store = Arc::new(CosmosStore::connect(&account(&host.emulator), None).await.unwrap());
    contract(async || Arc::clone(&store) as Arc<dyn ConversationStore>).await;
}
