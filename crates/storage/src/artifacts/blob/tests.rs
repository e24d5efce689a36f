//! Blob artifacts on Azurite.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::contract::{self, test_metadata, test_scope};
use super::*;
use turnwheel_azurite::shared::{UnsignedCredential, shared_azurite, shared_https_azurite};
use turnwheel_platform::settings::azure::AzureIdentity;
use turnwheel_platform::telemetry::cost_meter::{CostMeter, with_meter};

async fn azurite_artifacts(prefix: &str) -> BlobArtifacts {
    let account = shared_azurite().await.account();
    BlobArtifacts::connect(&account, None, prefix, &TransportSettings::default()).unwrap()
}

async fn count_requests<T>(work: impl Future<Output = T>) -> (T, Vec<(&'static str, u32)>) {
    let meter = Arc::new(CostMeter::default());
    let answer = with_meter(Arc::clone(&meter), work).await;
    (answer, meter.costs().into_iter().map(|(name, cost)| (name, cost.requests)).collect())
}

#[tokio::test]
async fn blob_artifacts_fulfil_contract() {
    let artifacts = azurite_artifacts("contract-").await;
    artifacts.create().await.unwrap();
    artifacts.create().await.unwrap();
    contract::run_contract(&artifacts, "contract").await;
}

#[tokio::test]
async fn large_artifact_is_uploaded_once_in_blocks() {
    let artifacts = azurite_artifacts("large-").await;
    let scope = test_scope("large");
    let bytes = Bytes::from((0..5_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    let metadata = test_metadata("tw_c_1_2_3", &bytes, 1);
    artifacts.create().await.unwrap();
    let (first, sent) = count_requests(artifacts.put(&scope, &metadata, bytes.clone())).await;
    first.unwrap();
    // One existence check, five blocks of 4 MiB and the block list.
    assert_eq!(sent, [("blob.facts", 1), ("blob.put", 6)]);
    let (again, sent) = count_requests(artifacts.put(&scope, &metadata, bytes.clone())).await;
    again.unwrap();
    assert_eq!(sent, [("blob.facts", 1)]);
    let (whole, asked) = count_requests(artifacts.get(&scope, &metadata.id, None)).await;
    assert!(whole.unwrap() == bytes);
    assert_eq!(asked, [("blob.get", 1)]);
    let part = artifacts.get(&scope, &metadata.id, Some(4_194_300..4_194_308)).await.unwrap();
    assert_eq!(part, bytes.slice(4_194_300..4_194_308));
}

#[tokio::test]
async fn lists_and_deletes_are_paged() {
    let mut artifacts = azurite_artifacts("pages-").await;
    artifacts.page_size = Some(2);
    let scope = test_scope("pages");
    for number in 0..5 {
        let bytes = Bytes::from(number.to_string());
        let metadata = test_metadata("tw_c_1_2_3", &bytes, 10 - number);
        artifacts.put(&scope, &metadata, bytes).await.unwrap();
    }
    let (all, asked) = count_requests(artifacts.list(&scope)).await;
    let times: Vec<u64> = all.unwrap().iter().map(|metadata| metadata.created_at.0).collect();
    assert_eq!(times, [6, 7, 8, 9, 10]);
    assert_eq!(asked, [("blob.list", 3)]);
    let (deleted, asked) = count_requests(artifacts.delete_all(&scope)).await;
    deleted.unwrap();
    assert_eq!(asked, [("blob.delete", 5), ("blob.list", 3)]);
    assert_eq!(artifacts.list(&scope).await.unwrap(), []);
}

#[tokio::test]
async fn metadata_accepts_any_text() {
    let artifacts = azurite_artifacts("facts-").await;
    let scope = test_scope("facts");
    let bytes = Bytes::from_static(b"x");
    let texts = ["\u{1f600}\r\nx-ms-meta-evil: 1", "%41 +&=\"", " spaces ", &"ü/".repeat(300)];
    for (number, text) in texts.into_iter().enumerate() {
        let metadata = ArtifactMetadata {
            name: Some(text.to_owned()),
            mime_type: text.chars().take(100).collect(),
            ..test_metadata(&format!("tw_c_1_2_{number}"), &bytes, 1)
        };
        artifacts.put(&scope, &metadata, bytes.clone()).await.unwrap();
        assert_eq!(artifacts.metadata(&scope, &metadata.id).await.unwrap(), metadata);
        assert!(artifacts.list(&scope).await.unwrap().contains(&metadata));
    }
}

#[tokio::test]
async fn container_is_private() {
    let artifacts = azurite_artifacts("private-").await;
    let scope = test_scope("private");
    let bytes = Bytes::from_static(b"mine");
    let metadata = test_metadata("tw_c_1_2_3", &bytes, 1);
    artifacts.put(&scope, &metadata, bytes).await.unwrap();
    let url = artifacts.blob_client(&scope, &metadata.id).unwrap().url().clone();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let status = client.get(url).send().await.unwrap().status();
    assert!(status == 404 || status == 403, "{status}");
    let headers =
        ContentHeaders { content_type: String::new(), content_disposition: String::new() };
    assert_eq!(artifacts.link(&scope, &metadata.id, &headers).await.unwrap(), None);
    let refused = artifacts.with_links(&shared_azurite().await.account()).unwrap_err().to_string();
    assert!(refused.contains("AzureWebJobsStorage__accountName"), "{refused}");
}

#[tokio::test]
async fn identity_signs_short_lived_blob_link() {
    let (azurite, certificate) = shared_https_azurite().await;
    let mut account = azurite.account();
    account.access = StorageAccess::Identity(AzureIdentity::DeveloperTools);
    let sending = TransportSettings {
        trusted_certificates: certificate.clone(),
        ..TransportSettings::default()
    };
    let connected =
        BlobArtifacts::connect(&account, Some(Arc::new(UnsignedCredential)), "link-", &sending);
    let artifacts = connected.unwrap().with_links(&account).unwrap();
    let scope = test_scope("link");
    let bytes = Bytes::from_static(b"0123456789");
    let metadata = test_metadata("tw_c_1_2_3", &bytes, 1);
    let other = test_metadata("tw_c_1_2_4", &bytes, 1);
    for metadata in [&metadata, &other] {
        artifacts.put(&scope, metadata, bytes.clone()).await.unwrap();
    }
    let headers = ContentHeaders {
        content_type: "text/markdown; charset=utf-8".to_owned(),
        content_disposition: "attachment; filename*=UTF-8''%C3%BC%2Emd".to_owned(),
    };
    let (links, asked) = count_requests(async {
        let first = artifacts.link(&scope, &metadata.id, &headers).await.unwrap().unwrap();
        (first, artifacts.link(&scope, &other.id, &headers).await.unwrap().unwrap())
    })
    .await;
    assert_eq!(asked, [("blob.key", 1)], "one key signs both");

    let mut link = links.0;
    let query: BTreeMap<String, String> = link.query_pairs().into_owned().collect();
    assert_eq!(
        (query["sp"].as_str(), query["sr"].as_str(), query["spr"].as_str()),
        ("r", "b", "https")
    );
    let expires_at = turnwheel_platform::clock::parse_iso(&query["se"]).unwrap();
    let now =
        turnwheel_platform::clock::Clock::now(&turnwheel_platform::clock::SystemClock::default());
    assert!(now.until(expires_at) <= Duration::from_mins(5), "{}", query["se"]);

    let trusted = reqwest::Certificate::from_pem(&certificate).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_merge([trusted]).build().unwrap();
    let answer = client.get(link.clone()).header("range", "bytes=2-4").send().await.unwrap();
    assert_eq!(answer.status(), 206);
    assert_eq!(answer.headers()["content-type"], "text/markdown; charset=utf-8");
    assert_eq!(answer.headers()["content-disposition"], headers.content_disposition.as_str());
    assert_eq!(answer.bytes().await.unwrap(), "234");
    let written = client.put(link.clone()).header("x-ms-blob-type", "BlockBlob").body("no").send();
    assert_eq!(written.await.unwrap().status(), 403, "the link is read-only");
    link.set_path(links.1.path());
    assert_eq!(
        client.get(link).send().await.unwrap().status(),
        403,
        "the link is valid for one blob"
    );
}
