//! Extra request headers of the app and of one model. Error texts name headers and contain no
//! values.

use std::str::FromStr as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Headers that every request already has.
const OWN_HEADERS: [&str; 9] = [
    "accept",
    "api-key",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "traceparent",
    "transfer-encoding",
];

/// Reason why a configured header is unusable.
pub(super) enum HeaderFault {
    /// Every request already has this header.
    Own(HeaderName),
    Malformed,
}

/// Parses a header. The value is marked as sensitive: `Debug` does not print it.
pub(super) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), HeaderFault> {
    let name = HeaderName::from_str(name.trim()).map_err(|_| HeaderFault::Malformed)?;
    if OWN_HEADERS.contains(&name.as_str()) {
        return Err(HeaderFault::Own(name));
    }
    let value = HeaderValue::from_str(value.trim()).ok().filter(|value| !value.is_empty());
    let mut value = value.ok_or(HeaderFault::Malformed)?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Extra headers of the requests to one model (TY-15), configured as an object of strings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelHeaders(pub HeaderMap);

impl<'de> Deserialize<'de> for ModelHeaders {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Parsed as generic JSON first: serde's own errors quote the invalid value.
        let Value::Object(written) = Value::deserialize(from)? else {
            return Err(D::Error::custom("headers must be an object of texts"));
        };
        let mut headers = HeaderMap::new();
        for (name, value) in written {
            match header(&name, value.as_str().unwrap_or_default()) {
                Ok((name, value)) => {
                    headers.insert(name, value);
                }
                Err(HeaderFault::Own(name)) => {
                    let text = "which each request has already: remove it";
                    return Err(D::Error::custom(format!("headers has `{name}`, {text}")));
                }
                Err(HeaderFault::Malformed) => {
                    let text = "is not a legal header with a text as its value";
                    return Err(D::Error::custom(format!(
                        "headers: `{}` {text}",
                        name.escape_debug()
                    )));
                }
            }
        }
        Ok(Self(headers))
    }
}
