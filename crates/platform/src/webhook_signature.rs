//! Signatures of Standard Webhooks 1.0: HMAC-SHA-256 over `id.timestamp.body`.
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Largest difference between a signed time and the receiver's clock.
const TOLERANCE: Duration = Duration::from_mins(5);

const VERSION: &str = "v1,";

/// The signed headers of a message.
#[derive(Clone, Copy, Debug)]
pub struct SignedHeaders<'a> {
    pub id: &'a str,
    /// Unix seconds.
    pub timestamp: &'a str,
    /// `v1,<base64>`, several separated by spaces.
    pub signatures: &'a str,
}

/// `v1,<base64>` for each secret, separated by spaces.
pub fn sign<'s>(
    secrets: impl IntoIterator<Item = &'s Vec<u8>>,
    id: &str,
    timestamp: u64,
    body: &[u8],
) -> String {
    let timestamp = timestamp.to_string();
    let each = secrets.into_iter().filter_map(|secret| {
        let mac = start(secret, id, &timestamp, body)?;
        Some(format!("{VERSION}{}", STANDARD.encode(mac.finalize().into_bytes())))
    });
    each.collect::<Vec<_>>().join(" ")
}

/// Checks the headers of a message that must have the id `id`. `now` is in Unix seconds.
///
/// # Errors
/// The message is not signed with one of the secrets, for this reason: discard it.
pub fn verify<'s>(
    secrets: impl IntoIterator<Item = &'s Vec<u8>>,
    headers: SignedHeaders<'_>,
    id: &str,
    now: u64,
    body: &[u8],
) -> Result<(), &'static str> {
    if headers.signatures.is_empty() {
        return Err("it has no webhook-signature");
    }
    if headers.id != id {
        return Err("its webhook-id is not the one of the request");
    }
    let seconds: u64 = headers.timestamp.parse().map_err(|_| "its webhook-timestamp is no time")?;
    if seconds.abs_diff(now) > TOLERANCE.as_secs() {
        return Err("its webhook-timestamp is more than 5 minutes off");
    }
    let given: Vec<Vec<u8>> = headers
        .signatures
        .split(' ')
        .filter_map(|signature| STANDARD.decode(signature.strip_prefix(VERSION)?).ok())
        .collect();
    let is_valid = secrets.into_iter().any(|secret| {
        given.iter().any(|signature| {
            start(secret, id, headers.timestamp, body)
                .is_some_and(|mac| mac.verify_slice(signature).is_ok())
        })
    });
    if is_valid { Ok(()) } else { Err("its webhook-signature is not valid for the secret") }
}

fn start(secret: &[u8], id: &str, timestamp: &str, body: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_437_243;

    fn check(secret: u8, id: &str, timestamp: u64, body: &[u8]) -> Result<(), &'static str> {
        let secrets = [vec![1; 24], vec![2; 24]];
        let signatures = sign([&vec![secret; 24]], "id", timestamp, b"{}");
        let timestamp = timestamp.to_string();
        let headers = SignedHeaders { id, timestamp: &timestamp, signatures: &signatures };
        verify(&secrets, headers, "id", NOW, body)
    }

    #[test]
    fn signature_matches_standard_webhooks_example() {
        // The example of the specification's reference libraries.
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = sign([&secret], id, 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let both = sign(&[vec![1; 24], vec![2; 24]], "id", 1, b"{}");
        assert_eq!(both.split(' ').count(), 2, "every secret signs: {both}");
    }

    #[test]
    fn signature_is_checked_with_id_time_and_body() {
        assert_eq!(check(1, "id", NOW, b"{}"), Ok(()));
        assert_eq!(check(2, "id", NOW - 300, b"{}"), Ok(()));
        for (secret, id, timestamp, body) in [
            (3, "id", NOW, "{}"),
            (1, "other", NOW, "{}"),
            (1, "id", NOW - 301, "{}"),
            (1, "id", NOW + 301, "{}"),
            (1, "id", NOW, "{ }"),
        ] {
            assert!(check(secret, id, timestamp, body.as_bytes()).is_err(), "{secret} {id} {body}");
        }
        let unsigned = SignedHeaders { id: "id", timestamp: "1795437243", signatures: "" };
        assert!(verify(&[vec![1; 24]], unsigned, "id", NOW, b"{}").is_err());
    }
}
