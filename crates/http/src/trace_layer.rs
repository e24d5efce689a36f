//! Trace layer: a span for each request. It is named by the route template, because paths contain
//! ids and approval tokens.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;

use crate::SharedApi;
use turnwheel_platform::telemetry::error_class::{ErrorClass, ErrorDomain};
use turnwheel_platform::telemetry::trace::{self, SpanRole};

/// The health route, which platforms call every few seconds, gets no span.
const HEALTH_ROUTE: &str = "/api/health";

/// Runs the request in a span under the caller's trace. The span ends with the response headers; an
/// event stream continues after it.
pub(crate) async fn trace_request(
    State(api): State<SharedApi>,
    request: Request,
    next: Next,
) -> Response {
    let services = &api.services;
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let caller = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let caller = caller.map(ToOwned::to_owned);
    if route.as_deref() == Some(HEALTH_ROUTE) {
        return trace::run_with_caller(caller.as_deref(), next.run(request)).await;
    }
    let method = method_name(request.method());
    let name =
        route.as_ref().map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let started_at = services.clock.monotonic();
    let span = services
        .telemetry
        .span(name)
        .with_role(SpanRole::Server)
        .with_parent(caller.as_deref())
        .with_attribute("http.request.method", method)
        .start();
    if let Some(route) = &route {
        span.set_attribute("http.route", route.clone());
    }
    let response = span.run(next.run(request)).await;
    let status = response.status();
    span.set_attribute("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        let error_class = response.extensions().get::<ErrorClass>().cloned();
        span.record_error(
            &error_class.unwrap_or_else(|| {
                ErrorClass::new(ErrorDomain::Runtime, status.as_u16().to_string())
            }),
        );
    }
    if let Some(metrics) = services.telemetry.metrics() {
        let duration = services.clock.monotonic().saturating_sub(started_at);
        metrics.record_http_request(
            method,
            route.as_deref().unwrap_or_default(),
            status.as_u16(),
            duration,
        );
    }
    response
}

/// Maps unknown methods to `_OTHER`, so that clients cannot add names to spans and metrics.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}
