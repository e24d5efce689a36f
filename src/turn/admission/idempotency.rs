//! Idempotency of requests: key, scope and body hash, and the response to an earlier request with
//! the same key.

use serde_json::Value;

use crate::agent::inbox::{Admission, InboxItem, Receipt};
use crate::agent::raw::RawJson;
use crate::ids::{ConversationKey, InputId};
use crate::store::{Freshness, Kind, Partition, Stored};
use crate::tools::sha256_hex;
use crate::turn::World;
use crate::turn::admission::{Answer, Owner, Refusal};
use crate::turn::views::load::read_body;

/// Identity of a request, equal for its repetitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Key from the client, invocation id of the host, or a fresh id.
    pub key: String,
    /// True if a client could send the same key again.
    pub is_repeatable: bool,
    /// Method and route template. Keys of different routes are independent.
    pub route: &'static str,
    /// SHA-256 of the body in canonical form.
    pub body_hash: String,
}

impl Idempotency {
    /// Id of the input in that conversation; equal for every repetition of the request.
    pub fn input_id(&self, key: &ConversationKey) -> InputId {
        InputId::new(format!("in_{}", self.digest(&Owner::of(key), key.conversation_id.as_str())))
    }

    /// Id of a conversation that is created without an id in its request.
    pub fn conversation_id(&self, owner: &Owner) -> String {
        format!("c_{}", self.digest(owner, ""))
    }

    fn digest(&self, owner: &Owner, conversation: &str) -> String {
        let scope = [
            owner.tenant.as_str(),
            owner.user.as_str(),
            self.route,
            conversation,
            self.key.as_str(),
        ];
        let mut digest = sha256_hex(scope.join("\n").as_bytes());
        digest.truncate(24);
        digest
    }

    /// Record of the response, for replays.
    pub fn admission(&self, answer: &Answer) -> Admission {
        Admission {
            body_hash: self.body_hash.clone(),
            status: answer.status,
            answer: answer.body.clone(),
            location: answer.location.clone(),
        }
    }
}

/// SHA-256 of JSON with sorted members and without white space.
pub fn canonical_hash(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    sha256_hex(text.as_bytes())
}

fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (position, (name, value)) in sorted.into_iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                text.push_str(&Value::String(name.clone()).to_string());
                text.push(':');
                canonical(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                canonical(item, text);
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
        }
    }
}

/// Stored state of an earlier request with the same input id.
#[derive(Debug)]
pub enum Earlier {
    /// Accepted, and not yet applied by a worker.
    Waiting(Box<InboxItem>),
    Settled(Box<Receipt>),
}

impl Earlier {
    pub fn admission(&self) -> &Admission {
        match self {
            Self::Waiting(item) => &item.admission,
            Self::Settled(receipt) => &receipt.admission,
        }
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }

    /// Returns the first response again.
    ///
    /// # Errors
    /// Returns [`CommandError::KeyReused`] if the body differs: send a new key.
    pub fn replay(&self, idempotency: &Idempotency) -> Result<Answer, Refusal> {
        let admission = self.admission();
        if admission.body_hash != idempotency.body_hash {
            return Err(Refusal::KeyReused);
        }
        Ok(Answer {
            status: admission.status,
            body: admission.answer.clone(),
            location: admission.location.clone(),
            etag: None,
            is_replayed: true,
        })
    }
}

/// Reads the inbox item or receipt with that id.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn earlier(
    world: &World,
    key: &ConversationKey,
    id: &str,
) -> Result<Option<Earlier>, Refusal> {
    let partition = Partition::Conversation(key.clone());
    let Some(stored) = world.store.read(&partition, id, Freshness::Latest).await? else {
        return Ok(None);
    };
    read_earlier(&stored).map(Some)
}

fn read_earlier(stored: &Stored) -> Result<Earlier, Refusal> {
    if stored.document.kind == Kind::Receipt {
        return Ok(Earlier::Settled(Box::new(read_body(stored)?)));
    }
    Ok(Earlier::Waiting(Box::new(read_body(stored)?)))
}

/// Maximum bytes of a response body that is stored for replays.
pub(crate) const ANSWER_BYTES_KEPT_MAX: usize = 64 * 1024;

/// Response as stored: without its body if the body is too large.
pub(crate) fn kept(answer: &Answer) -> Answer {
    let body =
        answer.body.clone().filter(|body: &RawJson| body.text().len() <= ANSWER_BYTES_KEPT_MAX);
    Answer { body, ..answer.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn idempotency(key: &str, route: &'static str) -> Idempotency {
        Idempotency { key: key.to_owned(), is_repeatable: true, route, body_hash: String::new() }
    }

    #[test]
    fn the_order_of_members_does_not_matter_and_everything_else_does() {
        let one: Value = serde_json::from_str(r#"{"b":[1,{"y":null,"x":"é"}],"a":1.5}"#).unwrap();
        let same: Value =
            serde_json::from_str(r#"{ "a":1.5, "b":[1,{"x":"é","y":null}]}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b":[1,{"y":null,"x":"e"}],"a":1.5}"#).unwrap();
        assert_eq!(canonical_hash(&one), canonical_hash(&same));
        assert_ne!(canonical_hash(&one), canonical_hash(&other));
        assert_ne!(canonical_hash(&json!([1, 2])), canonical_hash(&json!([2, 1])));
    }

    #[test]
    fn a_key_means_one_thing_per_owner_route_and_conversation() {
        let owner = |user: &str| Owner {
            tenant: crate::ids::TenantId::new("t"),
            user: crate::ids::UserId::new(user),
        };
        let id = idempotency("k", "POST /a").input_id(&owner("u").key("c"));
        assert_eq!(id, idempotency("k", "POST /a").input_id(&owner("u").key("c")));
        assert_eq!(id.as_str().len(), 27);
        for other in [
            idempotency("K", "POST /a").input_id(&owner("u").key("c")),
            idempotency("k", "POST /b").input_id(&owner("u").key("c")),
            idempotency("k", "POST /a").input_id(&owner("v").key("c")),
            idempotency("k", "POST /a").input_id(&owner("u").key("d")),
        ] {
            assert_ne!(id, other);
        }
    }

    #[test]
    fn a_kept_answer_reads_back_with_its_body() {
        let answer = Answer {
            status: 202,
            body: Some(RawJson::of(&json!({"a": 1.50}))),
            location: Some("x".to_owned()),
            etag: None,
            is_replayed: false,
        };
        let item = InboxItem {
            input_id: InputId::new("in_1"),
            accepted_at: crate::clock::Timestamp(5),
            admission: idempotency("k", "POST /a").admission(&answer),
            traceparent: None,
            body: crate::agent::inbox::InboxBody::Abort(crate::agent::inbox::AbortInput {
                prompt_id: None,
            }),
        };
        let back: InboxItem = RawJson::of(&item).read().unwrap();
        assert_eq!(back, item);
    }
}
