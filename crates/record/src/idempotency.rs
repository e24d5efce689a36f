//! Idempotency of requests: key, scope and body hash, and the response to an earlier request with
//! the same key.

use serde_json::{Map, Value};

use crate::contract::{CommandError, CommandResponse, Owner};
use crate::load::parse_body;
use crate::services::Services;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxItem, Receipt};
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_storage::store::{DocumentKind, Freshness, Partition, StoredDocument};
use turnwheel_tools::sha256_hex;

/// Stands for a route in requests of an embedded agent.
pub const AGENT_ROUTE: &str = "agent";
/// Stands for a route in messages of the queue `agent-prompts`.
pub const QUEUE_ROUTE: &str = "queue agent-prompts";
/// Precedes the value of the header `Idempotency-Key`.
pub const CLIENT_KEY_PREFIX: &str = "key:";
/// Maximum bytes of an idempotency key.
pub const KEY_BYTES_MAX: usize = 255;

/// True for a key that a client may choose: 1 to 255 visible ASCII characters.
pub fn is_client_key(key: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Identity of a request, equal for its repetitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Key from the client, invocation id of the host, or a fresh id.
    pub key: String,
    /// True if a client could send the same key again.
    pub is_repeatable: bool,
    /// Method and route template. Keys of different routes are independent.
    pub route: String,
    /// SHA-256 of the body in canonical form.
    pub body_hash: String,
}

impl Idempotency {
    /// Id of the input in that conversation; equal for every repetition of the request.
    pub fn input_id(&self, key: &ConversationKey) -> InputId {
        InputId::new(format!(
            "in_{}",
            self.digest(&Owner::from_key(key), key.conversation_id.as_str())
        ))
    }

    /// The key as its client sent it, or the id of the queue message. `None`: the service made it.
    pub fn client_key(&self) -> Option<&str> {
        if self.route == QUEUE_ROUTE {
            // The service's own keys contain a space.
            return Some(self.key.as_str()).filter(|key| is_client_key(key));
        }
        self.key.strip_prefix(CLIENT_KEY_PREFIX)
    }

    /// Id of a conversation that is created without an id in its request.
    pub fn conversation_id(&self, owner: &Owner) -> String {
        format!("c_{}", self.digest(owner, ""))
    }

    fn digest(&self, owner: &Owner, conversation: &str) -> String {
        let scope = [
            owner.tenant.as_str(),
            owner.user.as_str(),
            self.route.as_str(),
            conversation,
            self.key.as_str(),
        ];
        let mut digest = sha256_hex(scope.join("\n").as_bytes());
        digest.truncate(24);
        digest
    }

    /// Returns the response of an earlier request with the same key.
    ///
    /// # Errors
    /// Returns [`CommandError::KeyReused`] if the body differs: send a new key.
    pub fn replay(&self, earlier: &IdempotencyRecord) -> Result<CommandResponse, CommandError> {
        if earlier.body_hash != self.body_hash {
            return Err(CommandError::KeyReused);
        }
        Ok(CommandResponse {
            status: earlier.status,
            body: earlier.response.clone(),
            location: earlier.location.clone(),
            etag: None,
            is_replayed: true,
        })
    }

    /// Record of the response, for replays.
    pub fn to_record(&self, response: &CommandResponse) -> IdempotencyRecord {
        IdempotencyRecord {
            body_hash: self.body_hash.clone(),
            status: response.status,
            response: response.body.clone(),
            location: response.location.clone(),
        }
    }
}

/// SHA-256 of JSON with sorted members and without white space.
pub fn canonical_hash(body: &RawJson) -> String {
    sha256_hex(body.canonical_text().as_bytes())
}

/// The hash of a request's body, of which `text` has each digit. Members that `members` lacks do not
/// count.
pub fn hash_body(text: &str, members: Map<String, Value>) -> String {
    let canonical = if let Ok(Some(written)) = ExactJson::parse_if_long(text) {
        written.with_members_of(&members).normal_text()
    } else {
        let mut sorted = Value::Object(members);
        sorted.sort_all_objects();
        sorted.to_string()
    };
    sha256_hex(canonical.as_bytes())
}

/// Stored state of an earlier request with the same input id.
#[derive(Debug)]
pub enum PreviousRequest {
    /// Accepted, and not yet applied by a worker.
    Queued(Box<InboxItem>),
    Finished(Box<Receipt>),
}

impl PreviousRequest {
    pub fn record(&self) -> &IdempotencyRecord {
        match self {
            Self::Queued(item) => &item.idempotency,
            Self::Finished(receipt) => &receipt.idempotency,
        }
    }

    pub fn is_queued(&self) -> bool {
        matches!(self, Self::Queued(_))
    }

    /// Returns the first response again.
    ///
    /// # Errors
    /// Returns [`CommandError::KeyReused`] if the body differs: send a new key.
    pub fn replay(&self, idempotency: &Idempotency) -> Result<CommandResponse, CommandError> {
        idempotency.replay(self.record())
    }
}

/// Reads the inbox item or receipt with that id.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn find_previous_request(
    services: &Services,
    key: &ConversationKey,
    id: &str,
) -> Result<Option<PreviousRequest>, CommandError> {
    let partition = Partition::Conversation(key.clone());
    let Some(stored) = services.store.read(&partition, id, Freshness::Latest).await? else {
        return Ok(None);
    };
    parse_previous_request(&stored).map(Some)
}

fn parse_previous_request(stored: &StoredDocument) -> Result<PreviousRequest, CommandError> {
    if stored.document.kind == DocumentKind::Receipt {
        return Ok(PreviousRequest::Finished(Box::new(parse_body(stored)?)));
    }
    Ok(PreviousRequest::Queued(Box::new(parse_body(stored)?)))
}

/// Maximum bytes of a response body that is stored for replays.
pub(crate) const STORED_RESPONSE_BYTES_MAX: usize = 64 * 1024;

/// Response as stored: without its body if the body is too large.
pub(crate) fn to_stored_response(response: &CommandResponse) -> CommandResponse {
    let body = response
        .body
        .clone()
        .filter(|body: &RawJson| body.text().len() <= STORED_RESPONSE_BYTES_MAX);
    CommandResponse { body, ..response.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::idempotency::*;

    fn idempotency(key: &str, route: &str) -> Idempotency {
        let (key, route) = (key.to_owned(), route.to_owned());
        Idempotency { key, is_repeatable: true, route, body_hash: String::new() }
    }

    #[test]
    fn client_key_is_short_and_visible() {
        let longest = "k".repeat(KEY_BYTES_MAX);
        for key in ["k", "!~", &longest] {
            assert!(is_client_key(key), "{key}");
            assert_eq!(idempotency(key, QUEUE_ROUTE).client_key(), Some(key));
        }
        let too_long = "k".repeat(KEY_BYTES_MAX + 1);
        for key in ["", " ", "a b", "é", "a\n", "\u{7f}", &too_long, "invocation 1", "fresh 1"] {
            assert!(!is_client_key(key), "{key}");
            assert_eq!(idempotency(key, QUEUE_ROUTE).client_key(), None, "{key}");
        }
    }

    #[test]
    fn canonical_hash_ignores_only_member_order() {
        let hash = |text: &str| canonical_hash(&RawJson::from_text(text).unwrap());
        let one = hash(r#"{"b":[1,{"y":null,"x":"é"}],"a":1.5}"#);
        assert_eq!(one, hash(r#"{ "a":1.5, "b":[1,{"x":"é","y":null}]}"#));
        assert_ne!(one, hash(r#"{"b":[1,{"y":null,"x":"e"}],"a":1.5}"#));
        assert_ne!(hash("[1, 2]"), hash("[2, 1]"));
    }

    #[test]
    fn body_hash_counts_each_digit() {
        let hash = |text: &str| {
            let members: Map<String, Value> = serde_json::from_str(text).unwrap();
            hash_body(text, members.into_iter().filter(|(_, value)| !value.is_null()).collect())
        };
        let long = r#"{"b":null,"a":12345678901234567890123}"#;
        assert_eq!(hash(long), hash(r#"{ "a":12345678901234567890123 }"#));
        assert_ne!(hash(long), hash(r#"{"a":12345678901234567890124}"#));
        assert_eq!(hash(r#"{"b":1,"a":2.50}"#), hash(r#"{"a":2.5,"b":1}"#));
    }

    #[test]
    fn input_id_is_unique_per_owner_route_and_conversation() {
        let owner = |user: &str| Owner {
            tenant: turnwheel_platform::ids::TenantId::new("t"),
            user: turnwheel_platform::ids::UserId::new(user),
        };
        let id = idempotency("k", "POST /a").input_id(&owner("u").conversation_key("c"));
        assert_eq!(id, idempotency("k", "POST /a").input_id(&owner("u").conversation_key("c")));
        assert_eq!(id.as_str().len(), 27);
        for other in [
            idempotency("K", "POST /a").input_id(&owner("u").conversation_key("c")),
            idempotency("k", "POST /b").input_id(&owner("u").conversation_key("c")),
            idempotency("k", "POST /a").input_id(&owner("v").conversation_key("c")),
            idempotency("k", "POST /a").input_id(&owner("u").conversation_key("d")),
        ] {
            assert_ne!(id, other);
        }
    }

    #[test]
    fn idempotency_record_round_trips_with_response_body() {
        let response = CommandResponse {
            status: 202,
            body: Some(RawJson::from_value(&json!({"a": 1.50}))),
            location: Some("x".to_owned()),
            etag: None,
            is_replayed: false,
        };
        let item = InboxItem {
            input_id: InputId::new("in_1"),
            accepted_at: turnwheel_platform::clock::Timestamp(5),
            idempotency: idempotency("k", "POST /a").to_record(&response),
            traceparent: None,
            body: turnwheel_conversation::inbox::InboxBody::Abort(
                turnwheel_conversation::inbox::AbortInput { prompt_id: None },
            ),
        };
        let back: InboxItem = RawJson::from_value(&item).read().unwrap();
        assert_eq!(back, item);
    }
}
