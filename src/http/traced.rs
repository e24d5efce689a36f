//! Trace layer: a span for each request. It is named by the route template, because paths contain
//! ids and approval tokens.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;

use crate::http::Shared;
use crate::telemetry::fault::{Fault, FaultDomain};
use crate::telemetry::trace::{self, Role};

/// The health route, which platforms call every few seconds, gets no span.
const HEALTH: &str = "/api/health";

/// Runs the request in a span under the caller's trace. The span ends with the response headers; an
/// event stream continues after it.
pub(crate) async fn traced(State(api): State<Shared>, request: Request, next: Next) -> Response {
    let world = &api.world;
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let caller = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let caller = caller.map(ToOwned::to_owned);
    if route.as_deref() == Some(HEALTH) {
        return trace::called_by(caller.as_deref(), next.run(request)).await;
    }
    let method = method_name(request.method());
    let name =
        route.as_ref().map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let began = world.clock.monotonic();
    let span = world
        .telemetry
        .span(name)
        .role(Role::Server)
        .under(caller.as_deref())
        .with("http.request.method", method)
        .start();
    if let Some(route) = &route {
        span.set("http.route", route.clone());
    }
    let response = span.run(next.run(request)).await;
    let status = response.status();
    span.set("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        let fault = response.extensions().get::<Fault>().cloned();
        span.fail(
            &fault.unwrap_or_else(|| Fault::new(FaultDomain::Runtime, status.as_u16().to_string())),
        );
    }
    if let Some(metrics) = world.telemetry.metrics() {
        let took = world.clock.monotonic().saturating_sub(began);
        metrics.request(method, route.as_deref().unwrap_or_default(), status.as_u16(), took);
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
