//! Requests of web pages: CORS for allowed origins, 403 for cross-site requests that can change
//! data.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, COOKIE,
    ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::Value;

use crate::SharedApi;
use crate::auth::Access;
use crate::host_names::is_own_origin;
use crate::openapi;
use crate::problem::{self, Problem};
use turnwheel_platform::settings::origins::Allowance;

/// Headers that a page may send, besides those that its preflight asks for.
const REQUEST_HEADERS: &str = "accept, authorization, content-type, idempotency-key, if-match, if-none-match, \
     if-range, last-event-id, range, traceparent, tracestate, turnwheel-roles, turnwheel-tenant, turnwheel-user, \
     x-functions-key";
/// Starts of the names of headers in which proxies and the platform state facts about a request. A
/// page must not send them.
const PROXY_HEADERS: [&str; 4] =
    ["forwarded", "x-forwarded-", "x-ms-client-principal", "x-ms-token-"];
/// Maximum number of headers that a preflight may ask for.
const REQUESTED_HEADERS_MAX: usize = 64;
const RESPONSE_HEADERS: HeaderValue = HeaderValue::from_static(
    "accept-ranges, allow, content-disposition, content-length, content-range, etag, idempotency-replayed, link, \
     location, retry-after",
);
/// Seconds for which browsers cache a preflight response.
const PREFLIGHT_MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Path of approval links. The path is the whole credential, so pages of other sites must not use
/// it.
pub(crate) const APPROVAL_LINKS_PATH: &str = "/api/approvals/";

/// Middleware of all routes. Responds to preflights without authentication. tower-http's layer is
/// not used: it responds 200 and lists methods and headers to every origin.
pub(crate) async fn check_origin(
    State(api): State<SharedApi>,
    request: Request,
    next: Next,
) -> Response {
    let access = &api.access;
    let is_link = request.uri().path().starts_with(APPROVAL_LINKS_PATH);
    let allowed = (!is_link).then(|| allowed_origin(access, request.headers())).flatten();
    let is_preflight = request.method() == Method::OPTIONS;
    let allowed_headers = allowed_headers(request.headers());
    let mut response = if is_preflight {
        StatusCode::NO_CONTENT.into_response()
    } else if is_forbidden(access, request.method(), request.headers(), is_link) {
        forbidden_origin(request.headers()).into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    if !is_link && !access.allowed_origins.is_empty() {
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    let Some(origin) = allowed else { return response };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if is_preflight {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS.clone());
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers);
        headers.append(VARY, HeaderValue::from_static("access-control-request-headers"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE);
    } else {
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, RESPONSE_HEADERS);
    }
    response
}

/// The methods of all routes.
static METHODS: LazyLock<HeaderValue> = LazyLock::new(|| {
    let paths = openapi::DOCUMENT.get("paths").and_then(Value::as_object);
    let methods = paths.into_iter().flat_map(|paths| paths.values().filter_map(Value::as_object));
    let names = methods.flat_map(|methods| methods.keys().map(|name| name.to_ascii_uppercase()));
    // axum responds to HEAD wherever a route has GET.
    let names: BTreeSet<String> = names.chain(["HEAD".to_owned()]).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    HeaderValue::from_str(&names).unwrap_or(HeaderValue::from_static("GET, HEAD"))
});

/// Returns the value of `Access-Control-Allow-Headers`: with the headers that the preflight asks
/// for, because libraries for tracing and proxies add theirs, and one that is not allowed fails the
/// whole request. Headers carry no rights of the browser's user; cookies are not among them.
fn allowed_headers(headers: &HeaderMap) -> HeaderValue {
    let requested = header_text(headers, ACCESS_CONTROL_REQUEST_HEADERS.as_str());
    let requested = requested.unwrap_or_default().split(',').take(REQUESTED_HEADERS_MAX);
    let requested = requested.filter_map(|name| HeaderName::try_from(name.trim()).ok());
    let mut names = REQUEST_HEADERS.to_owned();
    for name in requested {
        let is_proxy_header = PROXY_HEADERS.iter().any(|start| name.as_str().starts_with(start));
        if !is_proxy_header && !REQUEST_HEADERS.split(", ").any(|known| known == name.as_str()) {
            names.push_str(", ");
            names.push_str(name.as_str());
        }
    }
    HeaderValue::from_str(&names).unwrap_or(HeaderValue::from_static(REQUEST_HEADERS))
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Returns the value of `Access-Control-Allow-Origin`.
fn allowed_origin(access: &Access, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    Some(match access.allowed_origins.find(origin.to_str().ok()?)? {
        Allowance::Listed => origin.clone(),
        Allowance::Any => HeaderValue::from_static("*"),
    })
}

/// True if a page of another site sent a request that can change data. Programs that are not
/// browsers send neither `Sec-Fetch-Site` nor `Origin`.
fn is_forbidden(access: &Access, method: &Method, headers: &HeaderMap, is_link: bool) -> bool {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return false;
    }
    let site = header_text(headers, "sec-fetch-site");
    let is_own_site = site.is_none_or(|site| matches!(site, "same-origin" | "none"));
    let is_own_origin = match header_text(headers, ORIGIN.as_str()) {
        None => true,
        // A form on a page with `Referrer-Policy: no-referrer`, such as the approval page.
        Some("null") => site.is_some() || is_link,
        Some(origin) => is_own_origin(access, headers, origin),
    };
    if is_own_site && is_own_origin {
        return false;
    }
    let origin = header_text(headers, ORIGIN.as_str()).unwrap_or_default();
    match access.allowed_origins.find(origin).filter(|_| !is_link) {
        Some(Allowance::Listed) => false,
        // An origin that `*` allows must not use the browser's cookies.
        Some(Allowance::Any) => headers.contains_key(COOKIE),
        None => true,
    }
}

fn forbidden_origin(headers: &HeaderMap) -> Problem {
    let origin = header_text(headers, ORIGIN.as_str()).filter(|origin| *origin != "null");
    let page = origin.map_or_else(|| "another site".to_owned(), |origin| format!("`{origin}`"));
    Problem::new(
        problem::FORBIDDEN,
        format!(
            "A page of {page} sent this request, and this app does not allow that origin. Add the origin to TURNWHEEL_CORS_ORIGINS, or call from the app's own origin."
        ),
    )
}
