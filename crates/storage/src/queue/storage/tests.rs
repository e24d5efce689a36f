//! Tests of Storage queues on Azurite.

use std::sync::Arc;

use futures_util::FutureExt as _;

use super::super::{MESSAGE_BYTES_MAX, PROMPTS, TURNS, contract};
use super::*;
use turnwheel_azurite::shared::shared_azurite;
use turnwheel_platform::settings::azure::StorageAccess;
use turnwheel_platform::settings::secret::Secret;
use turnwheel_platform::telemetry::cost_meter::{CostMeter, with_meter};

const HOUR: Duration = Duration::from_hours(1);
const NOW: Duration = Duration::ZERO;

async fn queue(prefix: &str) -> StorageQueue {
    let account = shared_azurite().await.account();
    StorageQueue::connect(&account, None, prefix, &TransportSettings::default()).unwrap()
}

fn source_text(error: &QueueError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

#[tokio::test]
async fn storage_queue_passes_contract() {
    let azurite = shared_azurite().await;
    let pass = |span| {
        azurite.advance(span);
        std::future::ready(()).boxed()
    };
    contract::assert_queue_contract(&queue("contract-").await, TURNS, &pass).await;
}

#[tokio::test]
async fn receive_requests_at_most_32_messages() {
    let queue = queue("hundred-").await;
    let meter = Arc::new(CostMeter::default());
    let all = with_meter(Arc::clone(&meter), async {
        for number in 0..100 {
            queue.send(TURNS, number.to_string(), NOW).await.unwrap();
        }
        queue.receive(TURNS, 1000, HOUR).await.unwrap()
    })
    .await;
    assert_eq!(all.len(), 100);
    assert!(all.iter().all(|message| message.expires_at == NEVER));
    let requests: Vec<(&str, u32)> =
        meter.costs().into_iter().map(|(name, cost)| (name, cost.requests)).collect();
    // The first send finds no queue, creates it and is repeated.
    assert_eq!(requests, [("queue.create", 1), ("queue.receive", 4), ("queue.send", 101)]);
}

#[tokio::test]
async fn queue_prefixes_are_isolated_and_validated() {
    let (one, other) = (queue("one-").await, queue("two-").await);
    one.create_queues(&[TURNS, PROMPTS]).await.unwrap();
    one.create_queues(&[TURNS, PROMPTS]).await.unwrap();
    one.send(TURNS, "nudge".to_owned(), NOW).await.unwrap();
    assert_eq!(other.receive(TURNS, 1, HOUR).await.unwrap(), []);
    assert_eq!(one.length(TURNS).await.unwrap(), 1);
    let account = shared_azurite().await.account();
    for bad in ["Upper-", "-first", "dou--ble", "under_score", &"x".repeat(44)] {
        let refused = StorageQueue::connect(&account, None, bad, &TransportSettings::default());
        assert!(refused.unwrap_err().to_string().contains(bad));
    }
    assert!(source_text(&one.length("No Queue").await.unwrap_err()).contains("`one-No Queue`"));
}

#[tokio::test]
async fn wrong_key_error_omits_key() {
    let mut account = shared_azurite().await.account();
    let key = Secret::new(b"another".to_vec());
    account.access =
        StorageAccess::SharedKey { account: turnwheel_azurite::ACCOUNT.to_owned(), key };
    let queue = StorageQueue::connect(&account, None, "", &TransportSettings::default()).unwrap();
    let refused = source_text(&queue.send(TURNS, "nudge".to_owned(), NOW).await.unwrap_err());
    assert!(refused.contains("403 AuthenticationFailed: check the key"), "{refused}");
    assert_eq!(format!("{queue:?}"), "StorageQueue(127.0.0.1, *)");
}

#[tokio::test]
async fn shared_access_signature_is_sufficient() {
    let mut account = shared_azurite().await.account();
    account.access = StorageAccess::Sas(Secret::new(account_sas()));
    let queue =
        StorageQueue::connect(&account, None, "sas-", &TransportSettings::default()).unwrap();
    queue.send(TURNS, "nudge".to_owned(), NOW).await.unwrap();
    let message = queue.receive(TURNS, 1, HOUR).await.unwrap().pop().unwrap();
    let receipt = queue.renew(TURNS, &message.id, &message.pop_receipt, HOUR).await.unwrap();
    queue.delete(TURNS, &message.id, &receipt).await.unwrap();
    assert_eq!(queue.length(TURNS).await.unwrap(), 0);
    assert!(!format!("{queue:?}").contains("sig="));
}

/// A shared access signature like those of the portal: all rights on queues and blobs, until 2099.
fn account_sas() -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use hmac::{KeyInit as _, Mac as _};

    let (expiry, version) = ("2099-01-01T00:00:00Z", "2021-12-02");
    let account = turnwheel_azurite::ACCOUNT;
    let text = format!("{account}\nrwdlacup\nbq\nsco\n\n{expiry}\n\nhttps,http\n{version}\n\n");
    let key = STANDARD.decode(turnwheel_azurite::KEY).unwrap();
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    mac.update(text.as_bytes());
    let signature = STANDARD.encode(mac.finalize().into_bytes());
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("sv", version), ("ss", "bq"), ("srt", "sco"), ("sp", "rwdlacup")])
        .extend_pairs([("se", expiry), ("spr", "https,http"), ("sig", &signature)])
        .finish()
}

#[tokio::test]
async fn delay_is_whole_seconds_up_to_seven_days() {
    assert_eq!(whole_seconds(Duration::from_millis(1), 0), 1);
    assert_eq!(whole_seconds(NOW, 0), 0);
    assert_eq!(whole_seconds(NOW, 1), 1);
    assert_eq!(whole_seconds(Duration::MAX, 0), 604_800);
    let queue = queue("delay-").await;
    queue.send(TURNS, "x".repeat(MESSAGE_BYTES_MAX), Duration::MAX).await.unwrap();
    assert_eq!(queue.receive(TURNS, 1, HOUR).await.unwrap(), []);
    assert_eq!(queue.length(TURNS).await.unwrap(), 1);
}
