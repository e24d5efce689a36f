//! The stored form of a document in Cosmos: the indexed members are beside the body, never in it.
//!
//! The body is stored as JSON, readable in the portal, if Cosmos returns it unchanged, and
//! otherwise as text. Cosmos stores numbers as doubles: `1.0` comes back as `1`, and integers
//! beyond 53 bits change.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::store::cursor::HeadCursor;
use crate::store::{
    Document, DocumentKind, ETag, Partition, SearchText, StoreError, StoredDocument,
};
use turnwheel_conversation::entry::string_bytes;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;

/// Maximum nesting of a body stored as JSON. Cosmos allows 128 levels, the envelope included.
const DEPTH_MAX: usize = 100;
/// Largest range in which doubles represent every integer.
const SAFE_INTEGER_MAX: u64 = 1 << 53;
/// Number of decimal digits that every double formatter preserves.
const DIGITS_MAX: usize = 15;

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DocumentEnvelope<'a> {
    pub(super) id: &'a str,
    kind: &'static str,
    tenant: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    owner: Option<String>,
    /// Empty, but present, in the partition of a user: it is a part of the key.
    conversation_id: Option<&'a str>,
    due: Option<Timestamp>,
    created_at: Option<Timestamp>,
    state: Option<&'a str>,
    /// Cosmos enforces the member with this name.
    ttl: Option<u32>,
    search_text: Option<&'a str>,
    excerpt: Option<&'a str>,
    inbox_count: Option<u32>,
    last_entry: Option<&'a str>,
    body: Option<Value>,
    body_text: Option<&'a str>,
    #[serde(skip)]
    body_bytes: usize,
}

/// First level of the partition key of conversations: tenant and user in one member, because a
/// company is often a single tenant. Plain ids contain no `/`. Absent in the partition of a tenant.
pub(super) fn owner(partition: &Partition) -> Option<String> {
    let [tenant, user, _] = partition.parts();
    (!user.is_empty()).then(|| owner_of(tenant, user))
}

pub(super) fn owner_of(tenant: &str, user: &str) -> String {
    format!("{tenant}/{user}")
}

impl<'a> DocumentEnvelope<'a> {
    pub(super) fn new(partition: &'a Partition, document: &'a Document) -> Self {
        let [tenant, user, conversation_id] = partition.parts();
        let Document {
            id,
            kind,
            body,
            due,
            created_at,
            state,
            ttl,
            search,
            inbox_count,
            last_entry: _,
        } = document;
        let members = lossless_members(body);
        let sent_bytes = match members {
            Some(_) => body.text().len(),
            None => string_bytes(body.text()),
        };
        Self {
            id,
            kind: kind.into_str(),
            tenant,
            user,
            owner: owner(partition),
            conversation_id: Some(conversation_id).filter(|_| !user.is_empty()),
            due: *due,
            created_at: *created_at,
            state: state.as_deref(),
            ttl: *ttl,
            search_text: search.as_ref().map(|it| &*it.lower),
            excerpt: search.as_ref().map(|it| &*it.excerpt),
            inbox_count: *inbox_count,
            last_entry: document.entry_key(),
            body_text: members.is_none().then_some(body.text()),
            body: members,
            // Each byte of the search text may be escaped.
            body_bytes: sent_bytes + search.as_ref().map_or(0, |search| 2 * search.bytes()),
        }
    }

    /// Upper bound of the bytes of the body and of the search text as they are sent.
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes
    }
}

/// A document as Cosmos returns it. Of the members that Cosmos adds, only `_etag` is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReturnedDocument {
    id: String,
    kind: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    conversation_id: String,
    due: Option<Timestamp>,
    created_at: Option<Timestamp>,
    state: Option<String>,
    ttl: Option<u32>,
    search_text: Option<String>,
    excerpt: Option<String>,
    inbox_count: Option<u32>,
    last_entry: Option<String>,
    body: Option<Box<RawValue>>,
    body_text: Option<String>,
    #[serde(rename = "_etag")]
    etag: String,
}

impl ReturnedDocument {
    /// The position of a head in lists.
    pub(super) fn to_head_cursor(&self) -> HeadCursor {
        HeadCursor {
            created_at: self.created_at.map_or(0, |created_at| created_at.0),
            conversation: self.conversation_id.clone(),
            user: self.user.clone(),
        }
    }

    pub(super) fn into_stored(self) -> Result<StoredDocument, StoreError> {
        let search = match (self.search_text, self.excerpt) {
            (Some(lower), Some(excerpt)) => Some(Box::new(SearchText { lower, excerpt })),
            (None, _) | (_, None) => None,
        };
        let text = match (self.body, self.body_text) {
            (Some(body), None) => Some(body.get().to_owned()),
            (None, Some(text)) => Some(text),
            (None, None) | (Some(_), Some(_)) => None,
        };
        let Some(body) = text.and_then(|text| RawJson::from_text(text).ok()) else {
            let id = self.id;
            return Err(StoreError::Corrupt(format!(
                "the document `{id}` has no body, or its body is no JSON"
            )));
        };
        let kind = DocumentKind::from_name(&self.kind)?;
        let document = Document {
            id: self.id,
            kind,
            body,
            due: self.due,
            created_at: self.created_at,
            state: self.state,
            ttl: self.ttl,
            search,
            inbox_count: self.inbox_count,
            last_entry: self.last_entry.filter(|_| kind == DocumentKind::Events),
        };
        Ok(StoredDocument { document, etag: ETag(self.etag) })
    }
}

/// Returns the body as a JSON tree, if it is an object that Cosmos returns with every member, text
/// and number unchanged.
fn lossless_members(body: &RawJson) -> Option<Value> {
    let value: Value = body.read().ok()?;
    let is_kept = value.is_object()
        && are_numbers_lossless(&value, DEPTH_MAX)
        && serde_json::to_string(&value).ok()? == strip_whitespace(body.text());
    is_kept.then_some(value)
}

fn are_numbers_lossless(value: &Value, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    match value {
        Value::Number(number) => is_number_lossless(number),
        Value::Array(items) => items.iter().all(|item| are_numbers_lossless(item, depth - 1)),
        Value::Object(members) => {
            members.values().all(|item| are_numbers_lossless(item, depth - 1))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

fn is_number_lossless(number: &serde_json::Number) -> bool {
    if let Some(whole) = number.as_i64() {
        return whole.unsigned_abs() <= SAFE_INTEGER_MAX;
    }
    let Some(double) = number.as_f64().filter(|_| !number.is_u64()) else { return false };
    let written = double.to_string();
    let digits = written.bytes().filter(u8::is_ascii_digit).count();
    // Smaller and larger numbers have exponents, which formatters write in different ways.
    double.fract() != 0.0 && double.abs() >= 1e-4 && digits <= DIGITS_MAX
}

/// Removes the whitespace between JSON tokens.
fn strip_whitespace(text: &str) -> String {
    let (mut is_text, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        let is_kept = is_text || !c.is_ascii_whitespace();
        match (is_escaped, *c) {
            (false, '"') => is_text = !is_text,
            (false, '\\') => {
                is_escaped = true;
                return is_kept;
            }
            _ => {}
        }
        is_escaped = false;
        is_kept
    };
    text.chars().filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_VERSION: &str =
        include_str!("../../../../../tests/fixtures/cosmos-documents-v1.jsonl");
    /// Entries have the number by which they are found, and events documents can contain entries.
    const SECOND_VERSION: &str =
        include_str!("../../../../../tests/fixtures/cosmos-documents-v2.jsonl");

    #[test]
    fn first_version_loads() {
        for line in FIRST_VERSION.lines() {
            let mut stored: Value = serde_json::from_str(line).unwrap();
            stored["_etag"] = "1".into();
            let returned: ReturnedDocument = serde_json::from_value(stored).unwrap();
            returned.into_stored().unwrap();
        }
    }

    /// This version writes the form that it reads.
    #[test]
    fn stored_documents_round_trip() {
        let (mut searchable, mut commits) = (0, 0);
        for line in SECOND_VERSION.lines() {
            let mut stored: Value = serde_json::from_str(line).unwrap();
            let member = |name: &str| stored[name].as_str().unwrap_or_default().to_owned();
            let partition =
                Partition::from_parts(member("tenant"), member("user"), member("conversationId"));
            stored["_etag"] = "1".into();
            let returned: ReturnedDocument = serde_json::from_value(stored).unwrap();
            let document = returned.into_stored().unwrap().document;
            searchable += usize::from(document.search.is_some());
            commits += usize::from(document.last_entry.is_some());
            let written = DocumentEnvelope::new(&partition, &document);
            assert_eq!(serde_json::to_string(&written).unwrap(), line);
        }
        assert_eq!((SECOND_VERSION.lines().count(), searchable, commits), (7, 1, 1));
    }

    fn is_stored_as_json(text: &str) -> bool {
        lossless_members(&RawJson::from_text(text).unwrap()).is_some()
    }

    #[test]
    fn only_lossless_bodies_are_stored_as_json() {
        for text in [
            "{}",
            r#"{ "a" : [ 1 , -2, 0.5, 12.25, true, null ], "b": "x  \" \\ y" }"#,
            r#"{"z":1,"a":9007199254740992,"text":"ü✓"}"#,
        ] {
            assert!(is_stored_as_json(text), "{text}");
        }
        let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(110), "]".repeat(110));
        for text in [
            r#"{"a":1.0}"#,
            r#"{"a":-0}"#,
            r#"{"a":1e400}"#,
            r#"{"a":1e3}"#,
            r#"{"a":0.00001}"#,
            r#"{"a":0.10}"#,
            r#"{"a":0.12345678901234567}"#,
            r#"{"a":9007199254740993}"#,
            r#"{"a":123456789012345678901}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":"\u00fc"}"#,
            r#"{"a":"\ud800"}"#,
            "7",
            "null",
            "[1]",
            &deep,
        ] {
            assert!(!is_stored_as_json(text), "{text}");
        }
    }
}
