//! Tests of connecting: created containers, checks, and error texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_data_cosmos::fault_injection::{
    FaultInjectionConditionBuilder, FaultInjectionErrorType as Fault, FaultInjectionResultBuilder,
    FaultInjectionRuleBuilder, FaultOperationType as Operation,
};
use azure_data_cosmos::models::ContainerProperties;
use azure_data_cosmos::{CosmosClient, CosmosClientBuilder, CosmosRuntimeBuilder};

use super::super::{CONNECT_WAITS, repeat_while_overloaded};
use super::{CosmosStore, account, start_in_process, start_on_socket};
use crate::store::cosmos::testing::{CosmosEmulator, DATABASE};
use turnwheel_azure::cosmos::{
    CONTAINERS, CONVERSATIONS, ConnectError, Containers, check_container,
};
use turnwheel_platform::settings::azure::{AzureIdentity, CosmosAccess, CosmosAccount};
use turnwheel_platform::settings::secret::Secret;

#[derive(Debug)]
struct FakeCredential;

#[async_trait::async_trait]
impl TokenCredential for FakeCredential {
    async fn get_token(
        &self,
        _scopes: &[&str],
        _options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let until = azure_core::time::OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1 << 32);
        Ok(AccessToken::new("token", until))
    }
}

async fn builder(emulator: &CosmosEmulator) -> CosmosClientBuilder {
    let runtime = CosmosRuntimeBuilder::from(emulator.core.runtime_builder());
    CosmosClient::builder().with_runtime(runtime.build().await.unwrap())
}

fn with_identity(account: CosmosAccount) -> CosmosAccount {
    CosmosAccount {
        access: CosmosAccess::Identity(AzureIdentity::Managed { client_id: None }),
        ..account
    }
}

#[tokio::test]
async fn missing_containers_are_created_when_key_is_used() {
    let emulator = start_in_process(1);
    let account = CosmosAccount { database: "fresh".to_owned(), ..account(&emulator) };
    for _ in 0..2 {
        let containers =
            Containers::connect(builder(&emulator).await, &account, None).await.unwrap();
        for (container, shape) in
            [containers.conversations, containers.scopes].iter().zip(CONTAINERS)
        {
            let made: ContainerProperties =
                container.read(None).await.unwrap().into_model().unwrap();
            let made = serde_json::to_value(&made).unwrap();
            let paths: Vec<_> =
                shape.indexed_paths.iter().map(|path| serde_json::json!({"path": path})).collect();
            assert_eq!(made["id"], shape.name);
            assert_eq!(made["partitionKey"]["paths"], serde_json::json!(shape.key_paths));
            assert_eq!(made["indexingPolicy"]["automatic"], true);
            assert_eq!(made["indexingPolicy"]["indexingMode"], "consistent");
            assert_eq!(made["indexingPolicy"]["includedPaths"], serde_json::json!(paths));
            assert_eq!(made["indexingPolicy"]["excludedPaths"][0]["path"], "/*");
            assert_eq!(made["defaultTtl"], shape.default_ttl_seconds);
        }
    }
}

/// An account refuses to show its properties if many instances start at once.
#[tokio::test(start_paused = true)]
async fn unreadable_container_properties_end_no_start() {
    let emulator = start_in_process(1);
    let account = account(&emulator);
    let condition = FaultInjectionConditionBuilder::new()
        .with_operation_type(Operation::MetadataReadContainer)
        .build();
    let result = FaultInjectionResultBuilder::new().with_error(Fault::TooManyRequests).build();
    let rule = FaultInjectionRuleBuilder::new("refused", result).with_condition(condition);
    let rule = Arc::new(rule.build());
    rule.disable();
    let builder = builder(&emulator).await;
    let builder = builder.with_fault_injection_rules(vec![Arc::clone(&rule)]).unwrap();
    let containers = Containers::connect(builder, &account, None).await.unwrap();
    rule.enable();
    assert!(containers.conversations.read(None).await.is_err(), "the fault is injected");
    check_container(&containers.conversations, &CONVERSATIONS, &account).await.unwrap();
}

#[tokio::test]
async fn containers_are_not_created_when_identity_is_used() {
    let emulator = start_in_process(1);
    let credential = || Some(Arc::new(FakeCredential) as Arc<dyn TokenCredential>);
    let there = with_identity(account(&emulator));
    Containers::connect(builder(&emulator).await, &there, credential()).await.unwrap();
    let missing = CosmosAccount { database: "fresh".to_owned(), ..there.clone() };
    let error = Containers::connect(builder(&emulator).await, &missing, credential()).await;
    let text = error.unwrap_err().to_string();
    assert_eq!(
        text,
        "the Cosmos database `fresh` has no container `conversations`, and an identity may not create one: deploy `infra/`"
    );
    let error = Containers::connect(builder(&emulator).await, &there, None).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoCredential { .. }), "{error}");
}

#[tokio::test]
async fn container_with_other_partition_key_is_rejected() {
    let containers = [("conversations", &["/id"][..]), ("scopes", &["/tenant"][..])];
    let emulator = CosmosEmulator::in_process(DATABASE, &containers, 1);
    let error = Containers::connect(builder(&emulator).await, &account(&emulator), None).await;
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("has the partition key /id, but needs /owner, /conversationId"),
        "{text}"
    );
}

#[tokio::test]
async fn wrong_account_key_error_gives_advice() {
    let host = start_on_socket(1);
    let wrong = CosmosAccess::Key(Secret::new("d3Jvbmc=".to_owned()));
    let account = CosmosAccount { access: wrong, ..account(&host.emulator) };
    let error = CosmosStore::connect(&account, None).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("a key must be one of the account's keys"), "{error}");
    assert!(!error.is_outage());
}

/// An emulator whose first two responses to a connecting store are 429, as of an account that is
/// overloaded while many instances start.
#[tokio::test(start_paused = true)]
async fn overloaded_account_gets_further_attempts() {
    for (waits, may_connect) in [(&[][..], false), (&CONNECT_WAITS[..], true)] {
        let emulator = start_in_process(1);
        let account = account(&emulator);
        let condition = FaultInjectionConditionBuilder::new()
            .with_operation_type(Operation::MetadataReadContainer)
            .build();
        let result = FaultInjectionResultBuilder::new().with_error(Fault::TooManyRequests).build();
        let rule = FaultInjectionRuleBuilder::new("overloaded", result).with_condition(condition);
        let rule = Arc::new(rule.build());
        let attempts = AtomicUsize::new(0);
        let connected = repeat_while_overloaded(waits, async || {
            if attempts.fetch_add(1, Ordering::SeqCst) == 2 {
                rule.disable();
            }
            let builder = builder(&emulator).await;
            let builder = builder.with_fault_injection_rules(vec![Arc::clone(&rule)]).unwrap();
            CosmosStore::connect_by(builder, &account, None).await
        })
        .await;
        assert_eq!(connected.is_ok(), may_connect, "{connected:?}");
        assert_eq!(attempts.into_inner(), if may_connect { 3 } else { 1 });
    }
}
