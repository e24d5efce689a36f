//! Tokens of approval links. A signed token names one request of one conversation and its expiry,
//! and is the whole credential.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, RequestId, TenantId, UserId};

/// Minimum bytes of a signing key.
pub const KEY_BYTES_MIN: usize = 32;
const TOKEN_BYTES_MAX: usize = 2_048;
/// Separates these signatures from others made with the same key.
const SIGNATURE_CONTEXT: &[u8] = b"turnwheel approval link 1\n";

/// Keys of `TURNWHEEL_SIGNING_KEYS`. The first signs and all verify, so a key can be replaced
/// without breaking links.
#[derive(Clone, Default)]
pub struct SigningKeys(Vec<Vec<u8>>);

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKeys({})", self.0.len())
    }
}

/// A signing key is too short.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signing key has {0} bytes, fewer than {KEY_BYTES_MIN}")]
pub struct ShortKeyError(usize);

/// Content of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkClaims {
    pub key: ConversationKey,
    pub request_id: RequestId,
    /// Expiry of the request: a link never outlives its request.
    pub expires_at: Timestamp,
}

impl SigningKeys {
    /// Keys for approval links. The first one signs; all verify.
    ///
    /// # Errors
    /// A key is shorter than [`KEY_BYTES_MIN`]. Replace it with a longer key.
    pub fn new(keys: Vec<Vec<u8>>) -> Result<Self, ShortKeyError> {
        match keys.iter().find(|key| key.len() < KEY_BYTES_MIN) {
            Some(short) => Err(ShortKeyError(short.len())),
            None => Ok(Self(keys)),
        }
    }

    /// Returns the token `payload.signature`, both parts in base64url; `None` without a signing
    /// key.
    pub fn sign(&self, claims: &LinkClaims) -> Option<String> {
        let payload = serde_json::json!([
            claims.key.tenant,
            claims.key.user,
            claims.key.conversation_id,
            claims.request_id,
            claims.expires_at,
        ]);
        let payload = URL_SAFE_NO_PAD.encode(payload.to_string());
        let signature = new_mac(self.0.first()?, &payload)?.finalize().into_bytes();
        Some(format!("{payload}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Returns the content of a token that one of the keys signed. The caller checks the expiry.
    pub fn verify(&self, token: &str) -> Option<LinkClaims> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (payload, signature) = token.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        // `verify_slice` compares in constant time.
        let is_signed = self.0.iter().any(|key| {
            new_mac(key, payload).is_some_and(|mac| mac.verify_slice(&signature).is_ok())
        });
        if !is_signed {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let (tenant, user, conversation_id, request_id, expires_at): (
            TenantId,
            UserId,
            ConversationId,
            RequestId,
            Timestamp,
        ) = serde_json::from_slice(&payload).ok()?;
        let key = ConversationKey { tenant, user, conversation_id };
        Some(LinkClaims { key, request_id, expires_at })
    }

    /// Returns the address of the approval page: `{public url}/api/approvals/{token}`.
    pub fn approval_url(&self, public_url: &str, claims: &LinkClaims) -> Option<String> {
        let token = self.sign(claims)?;
        Some(format!("{}/api/approvals/{token}", public_url.trim_end_matches('/')))
    }
}

fn new_mac(key: &[u8], payload: &str) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(SIGNATURE_CONTEXT);
    mac.update(payload.as_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(letters: &[u8]) -> SigningKeys {
        SigningKeys::new(letters.iter().map(|letter| vec![*letter; 32]).collect()).unwrap()
    }

    fn claims() -> LinkClaims {
        LinkClaims {
            key: ConversationKey {
                tenant: TenantId::new("t"),
                user: UserId::new("u"),
                conversation_id: ConversationId::new("c"),
            },
            request_id: RequestId::new("rq_1"),
            expires_at: Timestamp(1_000),
        }
    }

    #[test]
    fn approval_token_survives_key_rotation() {
        let token = keys(b"a").sign(&claims()).unwrap();
        assert_eq!(keys(b"a").verify(&token), Some(claims()));
        assert_eq!(keys(b"ba").verify(&token), Some(claims()), "the old key still verifies");
        assert_eq!(keys(b"b").verify(&token), None, "a removed key does not");
        assert_eq!(SigningKeys::default().verify(&token), None);
    }

    #[test]
    fn changed_approval_token_is_rejected() {
        let token = keys(b"a").sign(&claims()).unwrap();
        for position in 0..token.len() {
            let mut forged = token.clone().into_bytes();
            forged[position] = if forged[position] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(keys(b"a").verify(&forged), None, "letter {position}");
        }
        for bad in ["", ".", "a.b", &"x".repeat(10_000)] {
            assert_eq!(keys(b"a").verify(bad), None);
        }
    }

    #[test]
    fn short_keys_are_rejected_and_keys_hidden() {
        assert_eq!(SigningKeys::new(vec![vec![1; 31]]).unwrap_err(), ShortKeyError(31));
        assert_eq!(format!("{:?}", keys(b"ab")), "SigningKeys(2)");
    }
}
