//! Extra request headers of the app and of one model. Error texts name headers and contain no
//! values.

use std::str::FromStr as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Headers that every request already has.
const RESERVED_HEADERS: [&str; 9] = [
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
pub(super) enum HeaderError {
    /// Every request already has this header.
    Reserved(HeaderName),
    Malformed,
}

/// Parses a header. The value is marked as sensitive: `Debug` does not print it.
pub(super) fn parse_header(
    name: &str,
    value: &str,
) -> Result<(HeaderName, HeaderValue), HeaderError> {
    let name = HeaderName::from_str(name.trim()).map_err(|_| HeaderError::Malformed)?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        return Err(HeaderError::Reserved(name));
    }
    let value = HeaderValue::from_str(value.trim()).ok().filter(|value| !value.is_empty());
    let mut value = value.ok_or(HeaderError::Malformed)?;
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
            match parse_header(&name, value.as_str().unwrap_or_default()) {
                Ok((name, value)) => {
                    headers.insert(name, value);
                }
                Err(HeaderError::Reserved(name)) => {
                    let text = "which each request has already: remove it";
                    return Err(D::Error::custom(format!("headers has `{name}`, {text}")));
                }
                Err(HeaderError::Malformed) => {
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
