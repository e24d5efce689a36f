//! Shared Key signatures, which the storage crates do not support. Source: Microsoft's "Authorize
//! with Shared Key".

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::headers::{HeaderName, HeaderValue};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::send_next;
use turnwheel_platform::clock::{Clock, Timestamp};
use turnwheel_platform::settings::secret::Secret;

pub(super) struct SharedKeyPolicy {
    account: String,
    key: Secret<Vec<u8>>,
    clock: Arc<dyn Clock>,
}

impl SharedKeyPolicy {
    pub(super) fn new(account: &str, key: &Secret<Vec<u8>>, clock: Arc<dyn Clock>) -> Self {
        Self { account: account.to_owned(), key: key.clone(), clock }
    }

    pub(super) fn sign(&self, request: &mut Request) {
        let date = http_date(self.clock.now());
        request.insert_header(HeaderName::from_static("x-ms-date"), HeaderValue::from(date));
        let text = string_to_sign(&self.account, request);
        // HMAC accepts a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.key.reveal()) else { return };
        mac.update(text.as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let value = format!("SharedKey {}:{signature}", self.account);
        request.insert_header(HeaderName::from_static("authorization"), HeaderValue::from(value));
    }
}

impl fmt::Debug for SharedKeyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedKeyPolicy({})", self.account)
    }
}

#[expect(elided_lifetimes_in_paths, reason = "the signature is the trait's")]
#[async_trait]
impl Policy for SharedKeyPolicy {
    async fn send(
        &self,
        ctx: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        self.sign(request);
        send_next(ctx, request, next).await
    }
}

/// Formats a time as in `Fri, 26 Jun 2015 23:39:12 GMT`.
fn http_date(now: Timestamp) -> String {
    let seconds = i64::try_from(now.0 / 1000).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn string_to_sign(account: &str, request: &Request) -> String {
    let header = |name: &'static str| {
        request.headers().get_optional_str(&HeaderName::from_static(name)).unwrap_or("").to_owned()
    };
    // The transport adds the length header. An empty body signs as an empty string, not as 0.
    let length = match request.body().len() {
        Some(0) => String::new(),
        Some(length) => length.to_string(),
        None => header("content-length"),
    };
    let mut lines = vec![
        request.method().as_str().to_owned(),
        header("content-encoding"),
        header("content-language"),
        length,
        header("content-md5"),
        header("content-type"),
        // `Date` is empty: `x-ms-date` replaces it.
        String::new(),
        header("if-modified-since"),
        header("if-match"),
        header("if-none-match"),
        header("if-unmodified-since"),
        header("range"),
    ];
    let mut storage_headers = BTreeMap::new();
    for (name, value) in request.headers().iter() {
        let name = name.as_str().to_ascii_lowercase();
        if name.starts_with("x-ms-") {
            storage_headers.insert(name, value.as_str().trim().to_owned());
        }
    }
    lines.extend(storage_headers.into_iter().map(|(name, value)| format!("{name}:{value}")));
    lines.push(format!("/{account}{}", request.url().path()));
    let mut query: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in request.url().query_pairs() {
        query.entry(name.to_lowercase()).or_default().push(value.into_owned());
    }
    for (name, mut values) in query {
        values.sort();
        lines.push(format!("{name}:{}", values.join(",")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use azure_core::http::{Body, Method};

    use super::*;
    use turnwheel_platform::clock::ManualClock;

    fn request(method: Method, url: &str, headers: &[(&'static str, &'static str)]) -> Request {
        let mut request = Request::new(url.parse().unwrap(), method);
        for (name, value) in headers {
            request.insert_header(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        request
    }

    /// The example of Microsoft's documentation.
    #[test]
    fn string_to_sign_matches_microsoft_example() {
        let url = "https://myaccount.blob.core.windows.net/mycontainer?restype=container&comp=metadata&timeout=20";
        let headers =
            [("x-ms-version", "2015-02-21"), ("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT")];
        assert_eq!(
            string_to_sign("myaccount", &request(Method::Get, url, &headers)),
            "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n\
             /myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
        );
    }

    #[test]
    fn string_to_sign_covers_body_conditions_and_query() {
        let url = "http://127.0.0.1:1/acc/c/dir%2Fx?Include=b&include=a%2Cc&sv=1";
        let mut request = request(
            Method::Put,
            url,
            &[
                ("content-type", "text/plain"),
                ("if-none-match", "*"),
                ("range", "bytes=0-9"),
                ("x-ms-meta-b", " two "),
                ("x-ms-blob-type", "BlockBlob"),
                ("accept", "application/xml"),
            ],
        );
        request.set_body(Body::from("hello".to_owned()));
        assert_eq!(
            string_to_sign("acc", &request),
            "PUT\n\n\n5\n\ntext/plain\n\n\n\n*\n\nbytes=0-9\nx-ms-blob-type:BlockBlob\nx-ms-meta-b:two\n\
             /acc/acc/c/dir%2Fx\ninclude:a,c,b\nsv:1"
        );
    }

    #[test]
    fn signature_matches_openssl() {
        let clock = Arc::new(ManualClock::new(Timestamp(1_435_361_952_000)));
        let key = Secret::new(b"0123456789abcdef".to_vec());
        let policy = SharedKeyPolicy::new("myaccount", &key, clock);
        let url = "https://myaccount.blob.core.windows.net/mycontainer?restype=container&comp=metadata&timeout=20";
        let mut request = request(Method::Get, url, &[("x-ms-version", "2015-02-21")]);
        policy.sign(&mut request);
        let header = |name| request.headers().get_optional_str(&HeaderName::from_static(name));
        assert_eq!(header("x-ms-date"), Some("Fri, 26 Jun 2015 23:39:12 GMT"));
        assert_eq!(
            header("authorization"),
            Some("SharedKey myaccount:qN+w4DH2Z0eIswxyglB15ZUPn9tSJtHnql0GJQ63rtM=")
        );
        assert_eq!(format!("{policy:?}"), "SharedKeyPolicy(myaccount)");
    }
}
