//! Access check of the local host. It has no keys, so requests from foreign pages in the
//! developer's browser are rejected.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri, Version};

use super::HostState;
use super::request_path::RequestPath;
use super::routes::segments_below_prefix;
use turnwheel_platform::settings::origins::AllowedOrigins;

/// Rejects requests for an unknown host name (DNS rebinding) and requests that a foreign page
/// sends.
pub(super) async fn check_origin(
    State(host): State<Arc<HostState>>,
    request: Request,
    next: Next,
) -> Response {
    // The API itself checks the origins that settings allow; operators' routes allow none.
    let is_api = RequestPath::parse(request.uri()).is_some_and(|path| {
        segments_below_prefix(path.decoded(), &host.config.route_prefix).is_some()
    });
    let allowed = is_api.then_some(&host.allowed_origins);
    if let Some(status) = find_malformed_host(&request) {
        tracing::warn!(%status, "request rejected: its Host header is missing, repeated, malformed or not the host of its target");
        return status.into_response();
    }
    match rejection_reason(request.headers(), &host.host_names, allowed) {
        None => next.run(request).await,
        Some(reason) => (StatusCode::FORBIDDEN, reason).into_response(),
    }
}

/// Returns the status with which the Functions host rejects the `Host` of a request.
fn find_malformed_host(request: &Request) -> Option<StatusCode> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if first.is_none() && request.version() == Version::HTTP_10 {
        return Some(StatusCode::INTERNAL_SERVER_ERROR);
    }
    let called: Option<Authority> =
        first.and_then(|host| host.to_str().ok()).and_then(|host| host.parse().ok());
    let is_valid = second.is_none()
        && called.is_some_and(|called| {
            let target = request.uri().host();
            target.is_none_or(|target| target.eq_ignore_ascii_case(called.host()))
        });
    (!is_valid).then_some(StatusCode::BAD_REQUEST)
}

fn rejection_reason(
    headers: &HeaderMap,
    host_names: &[String],
    allowed: Option<&AllowedOrigins>,
) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_known_name = |name: &str| {
        is_loopback(name) || host_names.iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    let host_name = text(HOST).unwrap_or_default();
    let called = host_name.parse::<Authority>();
    let is_known_host = called.is_ok_and(|called| is_known_name(called.host()));
    if !is_known_host || host_name.contains('@') {
        return Some(format!(
            "The local host accepts requests for 127.0.0.1 and localhost, not for `{host_name}`. Behind a tunnel, set \
             TURNWHEEL_PUBLIC_URL to its address.\n"
        ));
    }
    let origin = text(ORIGIN)?;
    let is_allowed_origin = if allowed.is_some_and(|allowed| allowed.find(origin).is_some()) {
        true
    } else if origin == "null" {
        // A form on a page with `Referrer-Policy: no-referrer`, such as the approval page, hides
        // its origin.
        headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin" || site == "none")
    } else {
        origin.parse::<Uri>().is_ok_and(|origin| origin.host().is_some_and(is_known_name))
    };
    (!is_allowed_origin)
        .then(|| format!("The local host rejects requests from pages of `{origin}`.\n"))
}

fn is_loopback(name: &str) -> bool {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_rejected(headers: &[(&'static str, &str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
        let allowed = AllowedOrigins::default();
        rejection_reason(&headers.collect(), &["me.example".into()], Some(&allowed)).is_some()
    }

    #[test]
    fn loopback_and_tunnel_names_are_accepted() {
        for host in
            ["127.0.0.1:7071", "localhost:7071", "[::1]:7071", "app.localhost", "ME.example"]
        {
            assert!(!is_rejected(&[("host", host)]), "{host}");
        }
        assert!(!is_rejected(&[("host", "127.0.0.1:7071"), ("origin", "http://localhost:3000")]));
        assert!(!is_rejected(&[("host", "me.example"), ("origin", "https://me.example")]));
    }

    #[test]
    fn unknown_hosts_and_foreign_origins_are_rejected() {
        for host in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.1"]
        {
            assert!(is_rejected(&[("host", host)]), "{host}");
        }
        assert!(is_rejected(&[]), "without Host header");
        for origin in ["https://evil.example", "null", "http://localhost.evil.example", "nonsense"]
        {
            assert!(is_rejected(&[("host", "127.0.0.1:7071"), ("origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn approval_form_with_null_origin_is_accepted() {
        let form = |site| {
            is_rejected(&[("host", "127.0.0.1:7071"), ("origin", "null"), ("sec-fetch-site", site)])
        };
        assert!(!form("same-origin"));
        assert!(form("cross-site"));
    }
}
