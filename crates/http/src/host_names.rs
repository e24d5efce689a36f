//! Host names of requests: which name a client called, and whether it is one of the app's.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderName};
use url::Url;

use crate::SharedApi;
use crate::auth::Access;
use crate::problem::{self, Problem};
use turnwheel_platform::settings::links::{HostNames, is_loopback};

/// The Functions host sends the client's `Host` here and replaces a client's own value. The handler
/// sees its own address as `Host`.
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Middleware of all routes: 421 for a name that is not the app's.
pub async fn check_host_name(
    State(api): State<SharedApi>,
    request: Request,
    next: Next,
) -> Response {
    match find_foreign_name(&api.access, request.headers()) {
        None => next.run(request).await,
        Some(name) => Problem::new(
            problem::MISDIRECTED,
            format!("This app does not answer to the host name `{name}`. Call 127.0.0.1 or localhost, or set TURNWHEEL_PUBLIC_URL to the app's address."),
        )
        .into_response(),
    }
}

fn find_foreign_name<'a>(access: &Access, headers: &'a HeaderMap) -> Option<&'a str> {
    if access.host_names == HostNames::Any {
        return None;
    }
    let forwarded = headers.get_all(FORWARDED_HOST).iter().filter(|_| access.is_hosted);
    let names = headers.get_all(HOST).iter().chain(forwarded);
    names.map(|name| name.to_str().unwrap_or_default()).find(|name| !is_own_name(access, name))
}

fn public_url(access: &Access) -> Option<Url> {
    access.public_url.as_deref().and_then(|url| Url::parse(url).ok())
}

fn is_own_name(access: &Access, name: &str) -> bool {
    let is_public =
        public_url(access).is_some_and(|url| url.authority().eq_ignore_ascii_case(name));
    is_public || (!name.contains('@') && name.parse::<Authority>().is_ok() && is_loopback(name))
}

/// True for the origin of this app: the host that the client called, or the public address.
pub(crate) fn is_own_origin(access: &Access, headers: &HeaderMap, origin: &str) -> bool {
    let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
    let forwarded = headers.get(FORWARDED_HOST).filter(|_| access.is_hosted);
    let called = forwarded.or_else(|| headers.get(HOST)).and_then(|name| name.to_str().ok());
    let is_called = called.is_some_and(|called| {
        !called.is_empty()
            && (called.eq_ignore_ascii_case(authority)
                || (access.host_names == HostNames::Loopback && is_same_port(called, authority)))
    });
    is_called || public_url(access).is_some_and(|url| url.origin().ascii_serialization() == origin)
}

/// True if both names are this machine, with one port.
fn is_same_port(one: &str, two: &str) -> bool {
    let port = |name: &str| name.parse::<Authority>().ok().map(|name| name.port_u16());
    is_loopback(one) && is_loopback(two) && port(one).is_some() && port(one) == port(two)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn access(host_names: HostNames, is_hosted: bool) -> Access {
        Access { is_hosted, host_names, ..Access::dev() }
    }

    #[test]
    fn local_app_answers_only_to_names_of_this_machine() {
        let local = access(HostNames::Loopback, true);
        let foreign = |list: &[(&'static str, &str)]| {
            find_foreign_name(&local, &headers(list)).map(str::to_owned)
        };
        for own in ["127.0.0.1:7071", "localhost:7071", "LOCALHOST", "[::1]:7071", "x.localhost"] {
            assert_eq!(foreign(&[("host", own)]), None, "{own}");
            assert_eq!(foreign(&[("host", "127.0.0.1:1"), ("x-forwarded-host", own)]), None);
        }
        for other in
            ["evil.example:7099", "10.0.0.4", "localhost.evil.example", "", "evil@localhost"]
        {
            let forwarded = [("host", "127.0.0.1:1"), ("x-forwarded-host", other)];
            assert_eq!(foreign(&[("host", other)]).as_deref(), Some(other));
            assert_eq!(foreign(&forwarded).as_deref(), Some(other));
        }
        assert_eq!(foreign(&[]), None, "HTTP/1.0");
        let public = Access { public_url: Some("https://a.example".to_owned()), ..local.clone() };
        assert_eq!(
            find_foreign_name(&public, &headers(&[("x-forwarded-host", "A.example")])),
            None
        );
        let azure = access(HostNames::Any, true);
        assert_eq!(find_foreign_name(&azure, &headers(&[("x-forwarded-host", "a.example")])), None);
    }

    /// Without the Functions host, any client could send the header.
    #[test]
    fn forwarded_host_has_no_effect_outside_hosted_mode() {
        let dev = access(HostNames::Loopback, false);
        let find = |host: &str, forwarded: &str| {
            let headers = headers(&[("host", host), ("x-forwarded-host", forwarded)]);
            find_foreign_name(&dev, &headers).map(str::to_owned)
        };
        assert_eq!(find("127.0.0.1:7071", "evil.example"), None);
        assert_eq!(find("evil.example", "127.0.0.1:7071").as_deref(), Some("evil.example"));
    }

    #[test]
    fn own_origin_is_the_host_that_the_client_called() {
        let called = headers(&[("host", "127.0.0.1:41000"), ("x-forwarded-host", "a.example")]);
        let azure = access(HostNames::Any, true);
        assert!(is_own_origin(&azure, &called, "https://a.example"));
        assert!(!is_own_origin(&azure, &called, "https://evil.example"));
        assert!(!is_own_origin(&azure, &called, "http://127.0.0.1:41000"));
        // Without the Functions host, any client could send the header.
        assert!(!is_own_origin(&access(HostNames::Any, false), &called, "https://a.example"));
        let local = access(HostNames::Loopback, true);
        let called = headers(&[("host", "127.0.0.1:1"), ("x-forwarded-host", "127.0.0.1:7071")]);
        assert!(is_own_origin(&local, &called, "http://localhost:7071"));
        assert!(!is_own_origin(&local, &called, "http://localhost:3000"));
        assert!(!is_own_origin(&local, &called, "null"));
    }
}
