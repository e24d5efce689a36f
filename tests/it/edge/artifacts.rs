//! Artifacts come back as they went in, whole or in part.

use http::Method;
use serde_json::json;

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
