//! Payloads that hooks read, change or leave alone.

use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Serialize, Serializer};
use serde_json::json;

use super::*;

/// A body that counts how often it is serialised.
#[derive(Default)]
struct CountingBody(AtomicU32);

impl Serialize for CountingBody {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        json!({"model": "m"}).serialize(to)
    }
}

#[test]
fn untouched_payload_is_not_serialised_twice() {
    let body = CountingBody::default();
    assert_eq!(ModelPayload::new(&body).into_json(), None);
    assert_eq!(body.0.load(Ordering::SeqCst), 0, "the client serialises it to bytes, once");
    let mut payload = ModelPayload::new(&body);
    payload.json_mut().unwrap()["user"] = json!("u");
    payload.json_mut().unwrap()["store"] = json!(false);
    let changed = json!({"model": "m", "user": "u", "store": false});
    assert_eq!(payload.into_json(), Some(changed));
    assert_eq!(body.0.load(Ordering::SeqCst), 1);
}
