//! Tests of artifact upload and download, complete and by range.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use serde_json::json;
use turnwheel::testing::artifacts::{
    ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts, ContentHeaders, MemoryArtifacts,
};
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::ids::ArtifactId;
use turnwheel::testing::services::Services;
use url::Url;

use super::test_app::TestApp;

#[tokio::test]
async fn artifact_is_downloaded_whole_and_by_range() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let add = |key: &'static str, text: &'static str| {
        app.request(Method::POST, "/api/conversations/c/artifacts?name=a%2Fb%20c.txt")
            .header("content-type", "text/plain")
            .key(key)
            .body(text)
            .send()
    };
    let added = add("k", "0123456789").await.expect_status(201);
    assert_eq!(
        add("k", "0123456789").await.expect_status(201).header("idempotency-replayed"),
        "true"
    );
    add("k", "other").await.expect_problem(422, "idempotency-key-reused");
    let path = added.header("location").to_owned();
    let whole = app.get(&path).send().await.expect_status(200);
    assert_eq!(whole.text, "0123456789");
    assert_eq!(whole.header("content-type"), "text/plain");
    assert_eq!(whole.header("content-length"), "10");
    assert_eq!(whole.header("x-content-type-options"), "nosniff");
    assert!(whole.header("content-disposition").starts_with("attachment"));
    let etag = whole.header("etag").to_owned();
    let part = app
        .get(&path)
        .header("range", "bytes=2-4")
        .header("if-range", &etag)
        .send()
        .await
        .expect_status(206);
    assert_eq!((part.text.as_str(), part.header("content-range")), ("234", "bytes 2-4/10"));
    let none = app.get(&path).header("range", "bytes=10-").send().await;
    assert_eq!(none.header("content-range"), "bytes */10");
    none.expect_problem(416, "range-not-satisfiable");
    let list = app.get_json("/api/conversations/c/artifacts").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&list["items"][0]["name"], &list["items"][0]["size"]),
        (&json!("a/b c.txt"), &json!(10))
    );
    app.get("/api/conversations/c/artifacts/..%2F..").send().await.expect_problem(404, "not-found");
    app.get(&path).user("eve", "").send().await.expect_problem(404, "not-found");
}

/// A store that returns download links.
#[derive(Debug)]
struct LinkedArtifacts(MemoryArtifacts);

#[async_trait]
impl Artifacts for LinkedArtifacts {
    async fn put(
        &self,
        shelf: &ArtifactScope,
        facts: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        self.0.put(shelf, facts, bytes).await
    }

    async fn metadata(
        &self,
        shelf: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        self.0.metadata(shelf, id).await
    }

    async fn get(
        &self,
        shelf: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        self.0.get(shelf, id, range).await
    }

    async fn list(&self, shelf: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        self.0.list(shelf).await
    }

    async fn delete_all(&self, shelf: &ArtifactScope) -> Result<(), ArtifactError> {
        self.0.delete_all(shelf).await
    }

    async fn link(
        &self,
        _: &ArtifactScope,
        _: &ArtifactId,
        shown: &ContentHeaders,
    ) -> Result<Option<Url>, ArtifactError> {
        let pairs = [("type", &shown.content_type), ("as", &shown.content_disposition)];
        Ok(Url::parse_with_params("https://blobs.example/x", pairs).ok())
    }
}

#[tokio::test]
async fn artifact_link_is_private_and_uncacheable() {
    let mut app = TestApp::new();
    let artifacts = Arc::new(LinkedArtifacts(MemoryArtifacts::new(7, 0)));
    let services = Services { artifacts, ..Services::clone(&app.services) };
    let api = Api::new(services, Access::dev(), app.keys.clone());
    app.router = turnwheel::testing::http::router(Arc::new(api));
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    let added = app
        .request(Method::POST, "/api/conversations/c/artifacts?name=c.txt")
        .header("content-type", "text/plain")
        .body("0123456789")
        .send()
        .await
        .expect_status(201);
    let path = added.header("location").to_owned();
    let found = app.get(&path).send().await.expect_status(302);
    assert_eq!(
        found.header("location"),
        "https://blobs.example/x?type=text%2Fplain&as=attachment%3B+filename*%3DUTF-8%27%27c%252Etxt"
    );
    assert_eq!(found.header("cache-control"), "no-store");
    assert_eq!(found.header("referrer-policy"), "no-referrer");
    assert_eq!(found.text, "");
    // Some clients repeat their headers, and with them a function key, at a redirect.
    let link = app.get(&format!("{path}?redirect=false")).send().await.expect_status(200);
    assert_eq!(link.header("cache-control"), "no-store");
    assert_eq!(link.header("content-type"), "application/vnd.turnwheel.link+json");
    assert_eq!(link.json(), json!({"url": found.header("location")}));
    app.get(&path).user("eve", "").send().await.expect_problem(404, "not-found");
    app.get(&format!("{path}0")).send().await.expect_problem(404, "not-found");
}
