//! Blob artifacts on Azurite.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::contract::{self, facts_of, shelf};
use super::*;
use crate::azurite::shared::{Unsigned, azurite, secure};
use crate::settings::azure::Identity;
use crate::telemetry::meter::{Meter, metered};

async fn blobs(prefix: &str) -> BlobArtifacts {
    let account = azurite().await.account();
    BlobArtifacts::connect(&account, None, prefix, &Sending::default()).unwrap()
}

async fn requests<T>(work: impl Future<Output = T>) -> (T, Vec<(&'static str, u32)>) {
    let meter = Arc::new(Meter::default());
    let answer = metered(Arc::clone(&meter), work).await;
    (answer, meter.costs().into_iter().map(|(name, cost)| (name, cost.requests)).collect())
}

#[tokio::test]
async fn it_keeps_the_contract() {
    let artifacts = blobs("contract-").await;
    artifacts.create().await.unwrap();
    artifacts.create().await.unwrap();
    contract::contract(&artifacts, "contract").await;
}

#[tokio::test]
async fn large_artifacts_go_in_blocks_and_only_once() {
    let artifacts = blobs("large-").await;
    let shelf = shelf("large");
    let bytes = Bytes::from((0..5_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    let facts = facts_of("tw_c_1_2_3", &bytes, 1);
    artifacts.create().await.unwrap();
    let (first, sent) = requests(artifacts.put(&shelf, &facts, bytes.clone())).await;
    first.unwrap();
    // One existence check, five blocks of 4 MiB and the block list.
    assert_eq!(sent, [("blob.facts", 1), ("blob.put", 6)]);
    let (again, sent) = requests(artifacts.put(&shelf, &facts, bytes.clone())).await;
    again.unwrap();
    assert_eq!(sent, [("blob.facts", 1)]);
    let (whole, asked) = requests(artifacts.get(&shelf, &facts.id, None)).await;
    assert!(whole.unwrap() == bytes);
    assert_eq!(asked, [("blob.get", 1)]);
    let part = artifacts.get(&shelf, &facts.id, Some(4_194_300..4_194_308)).await.unwrap();
    assert_eq!(part, bytes.slice(4_194_300..4_194_308));
}

#[tokio::test]
async fn long_lists_come_and_go_page_by_page() {
    let mut artifacts = blobs("pages-").await;
    artifacts.page = Some(2);
    let shelf = shelf("pages");
    for number in 0..5 {
        let bytes = Bytes::from(number.to_string());
        let facts = facts_of("tw_c_1_2_3", &bytes, 10 - number);
        artifacts.put(&shelf, &facts, bytes).await.unwrap();
    }
    let (all, asked) = requests(artifacts.list(&shelf)).await;
    let times: Vec<u64> = all.unwrap().iter().map(|facts| facts.created_at.0).collect();
    assert_eq!(times, [6, 7, 8, 9, 10]);
    assert_eq!(asked, [("blob.list", 3)]);
    let (deleted, asked) = requests(artifacts.delete_all(&shelf)).await;
    deleted.unwrap();
    assert_eq!(asked, [("blob.delete", 5), ("blob.list", 3)]);
    assert_eq!(artifacts.list(&shelf).await.unwrap(), []);
}

#[tokio::test]
async fn facts_may_hold_any_text() {
    let artifacts = blobs("facts-").await;
    let shelf = shelf("facts");
    let bytes = Bytes::from_static(b"x");
    let texts = ["\u{1f600}\r\nx-ms-meta-evil: 1", "%41 +&=\"", " spaces ", &"ü/".repeat(300)];
    for (number, text) in texts.into_iter().enumerate() {
        let facts = ArtifactFacts {
            name: Some(text.to_owned()),
            mime_type: text.chars().take(100).collect(),
            ..facts_of(&format!("tw_c_1_2_{number}"), &bytes, 1)
        };
        artifacts.put(&shelf, &facts, bytes.clone()).await.unwrap();
        assert_eq!(artifacts.facts(&shelf, &facts.id).await.unwrap(), facts);
        assert!(artifacts.list(&shelf).await.unwrap().contains(&facts));
    }
}

#[tokio::test]
async fn nobody_reads_without_a_right() {
    let artifacts = blobs("private-").await;
    let shelf = shelf("private");
    let bytes = Bytes::from_static(b"mine");
    let facts = facts_of("tw_c_1_2_3", &bytes, 1);
    artifacts.put(&shelf, &facts, bytes).await.unwrap();
    let url = artifacts.blob(&shelf, &facts.id).unwrap().url().clone();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let status = client.get(url).send().await.unwrap().status();
    assert!(status == 404 || status == 403, "{status}");
    let shown = Shown { content_type: String::new(), content_disposition: String::new() };
    assert_eq!(artifacts.link(&shelf, &facts.id, &shown).await.unwrap(), None);
    let refused = artifacts.with_links(&azurite().await.account()).unwrap_err().to_string();
    assert!(refused.contains("AzureWebJobsStorage__accountName"), "{refused}");
}

#[tokio::test]
async fn an_identity_signs_links_to_one_blob_for_five_minutes() {
    let (azurite, certificate) = secure().await;
    let mut account = azurite.account();
    account.access = StorageAccess::Identity(Identity::DeveloperTools);
    let sending = Sending { trusted: certificate.clone(), ..Sending::default() };
    let connected = BlobArtifacts::connect(&account, Some(Arc::new(Unsigned)), "link-", &sending);
    let artifacts = connected.unwrap().with_links(&account).unwrap();
    let shelf = shelf("link");
    let bytes = Bytes::from_static(b"0123456789");
    let facts = facts_of("tw_c_1_2_3", &bytes, 1);
    let other = facts_of("tw_c_1_2_4", &bytes, 1);
    for facts in [&facts, &other] {
        artifacts.put(&shelf, facts, bytes.clone()).await.unwrap();
    }
    let shown = Shown {
        content_type: "text/markdown; charset=utf-8".to_owned(),
        content_disposition: "attachment; filename*=UTF-8''%C3%BC%2Emd".to_owned(),
    };
    let (links, asked) = requests(async {
        let first = artifacts.link(&shelf, &facts.id, &shown).await.unwrap().unwrap();
        (first, artifacts.link(&shelf, &other.id, &shown).await.unwrap().unwrap())
    })
    .await;
    assert_eq!(asked, [("blob.key", 1)], "one key signs both");

    let mut link = links.0;
    let query: BTreeMap<String, String> = link.query_pairs().into_owned().collect();
    assert_eq!(
        (query["sp"].as_str(), query["sr"].as_str(), query["spr"].as_str()),
        ("r", "b", "https")
    );
    let expires_at = crate::clock::parse_iso(&query["se"]).unwrap();
    let now = crate::clock::Clock::now(&crate::clock::SystemClock::default());
    assert!(now.until(expires_at) <= Duration::from_mins(5), "{}", query["se"]);

    let trusted = reqwest::Certificate::from_pem(&certificate).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_merge([trusted]).build().unwrap();
    let answer = client.get(link.clone()).header("range", "bytes=2-4").send().await.unwrap();
    assert_eq!(answer.status(), 206);
    assert_eq!(answer.headers()["content-type"], "text/markdown; charset=utf-8");
    assert_eq!(answer.headers()["content-disposition"], shown.content_disposition.as_str());
    assert_eq!(answer.bytes().await.unwrap(), "234");
    let written = client.put(link.clone()).header("x-ms-blob-type", "BlockBlob").body("no").send();
    assert_eq!(written.await.unwrap().status(), 403, "the link is read-only");
    link.set_path(links.1.path());
    assert_eq!(client.get(link).send().await.unwrap().status(), 403, "the link is valid for one blob");
}
