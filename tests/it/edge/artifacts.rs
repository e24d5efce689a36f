//! Tests of artifact upload and download, complete and by range.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use serde_json::json;
use turnwheel::artifacts::{
    ArtifactError, ArtifactFacts, Artifacts, MemoryArtifacts, Shelf, Shown,
};
use turnwheel::http::api::{Access, Api};
use turnwheel::ids::ArtifactId;
use turnwheel::turn::World;
use url::Url;

use super::rig::Rig;

#[tokio::test]
async fn bytes_come_back_whole_and_in_part() {
    let rig = Rig::new();
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let add = |key: &'static str, text: &'static str| {
        rig.ask(Method::POST, "/api/conversations/c/artifacts?name=a%2Fb%20c.txt")
            .header("content-type", "text/plain")
            .key(key)
            .body(text)
            .send()
    };
    let added = add("k", "0123456789").await.is(201);
    assert_eq!(add("k", "0123456789").await.is(201).header("idempotency-replayed"), "true");
    add("k", "other").await.fails(422, "idempotency-key-reused");
    let path = added.header("location").to_owned();
    let whole = rig.get(&path).send().await.is(200);
    assert_eq!(whole.text, "0123456789");
    assert_eq!(whole.header("content-type"), "text/plain");
    assert_eq!(whole.header("content-length"), "10");
    assert_eq!(whole.header("x-content-type-options"), "nosniff");
    assert!(whole.header("content-disposition").starts_with("attachment"));
    let etag = whole.header("etag").to_owned();
    let part =
        rig.get(&path).header("range", "bytes=2-4").header("if-range", &etag).send().await.is(206);
    assert_eq!((part.text.as_str(), part.header("content-range")), ("234", "bytes 2-4/10"));
    let none = rig.get(&path).header("range", "bytes=10-").send().await;
    assert_eq!(none.header("content-range"), "bytes */10");
    none.fails(416, "range-not-satisfiable");
    let list = rig.seen("/api/conversations/c/artifacts").await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&list["items"][0]["name"], &list["items"][0]["size"]),
        (&json!("a/b c.txt"), &json!(10))
    );
    rig.get("/api/conversations/c/artifacts/..%2F..").send().await.fails(404, "not-found");
    rig.get(&path).user("eve", "").send().await.fails(404, "not-found");
}

/// A store that returns download links.
#[derive(Debug)]
struct Linked(MemoryArtifacts);

#[async_trait]
impl Artifacts for Linked {
    async fn put(
        &self,
        shelf: &Shelf,
        facts: &ArtifactFacts,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        self.0.put(shelf, facts, bytes).await
    }

    async fn facts(&self, shelf: &Shelf, id: &ArtifactId) -> Result<ArtifactFacts, ArtifactError> {
        self.0.facts(shelf, id).await
    }

    async fn get(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        self.0.get(shelf, id, range).await
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<ArtifactFacts>, ArtifactError> {
        self.0.list(shelf).await
    }

    async fn delete_all(&self, shelf: &Shelf) -> Result<(), ArtifactError> {
        self.0.delete_all(shelf).await
    }

    async fn link(
        &self,
        _: &Shelf,
        _: &ArtifactId,
        shown: &Shown,
    ) -> Result<Option<Url>, ArtifactError> {
        let pairs = [("type", &shown.content_type), ("as", &shown.content_disposition)];
        Ok(Url::parse_with_params("https://blobs.example/x", pairs).ok())
    }
}

#[tokio::test]
async fn a_link_is_given_to_the_owner_alone_and_kept_by_nobody() {
    let mut rig = Rig::new();
    let artifacts = Arc::new(Linked(MemoryArtifacts::new(7, 0)));
    let world = World { artifacts, ..World::clone(&rig.world) };
    let api = Api::new(world, Access::dev(), rig.keys.clone());
    rig.router = turnwheel::http::router(Arc::new(api));
    rig.post("/api/conversations", &json!({"id": "c"})).send().await.is(201);
    let added = rig
        .ask(Method::POST, "/api/conversations/c/artifacts?name=c.txt")
        .header("content-type", "text/plain")
        .body("0123456789")
        .send()
        .await
        .is(201);
    let path = added.header("location").to_owned();
    let found = rig.get(&path).send().await.is(302);
    assert_eq!(
        found.header("location"),
        "https://blobs.example/x?type=text%2Fplain&as=attachment%3B+filename*%3DUTF-8%27%27c%252Etxt"
    );
    assert_eq!(found.header("cache-control"), "no-store");
    assert_eq!(found.header("referrer-policy"), "no-referrer");
    assert_eq!(found.text, "");
    rig.get(&path).user("eve", "").send().await.fails(404, "not-found");
    rig.get(&format!("{path}0")).send().await.fails(404, "not-found");
}
