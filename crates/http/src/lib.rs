//! HTTP API: the public routes, the Functions host's envelopes, and the mapping from errors to
//! problems.

mod abort;
mod access;
mod agents;
pub mod api;
mod approval_links;
mod approval_page;
pub mod approval_token;
mod approvals;
mod artifacts;
pub mod auth;
mod body;
mod branches;
mod client_connection;
mod commands;
mod compact;
mod console;
mod conversation_request;
mod conversations;
pub mod doctor;
pub mod events;
mod frames;
pub mod functions;
#[cfg(test)]
mod fuzz;
mod health;
pub mod host_names;
mod idempotency;
mod inbox;
mod lists;
mod long_poll;
mod memory;
mod models;
pub mod openapi;
mod origin;
mod plugins;
mod precondition;
pub mod problem;
mod profile;
mod prompts;
mod query;
mod request_bounds;
mod schedules;
mod schema;
mod session_files;
mod skills;
mod time_limit;
mod trace_layer;
mod tree;
pub mod unread_body;
mod usage;
mod users;
pub mod waiting;
mod why;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, OriginalUri};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Serialize;
use tower_http::catch_panic::CatchPanicLayer;

use turnwheel_json::raw::RawJson;
use turnwheel_record::contract::CommandResponse;

pub use api::Api;
pub(crate) use api::SharedApi;

/// Result of a route's handler.
pub(crate) type HandlerResult = Result<Response, problem::Problem>;

/// Address and headers of a request.
#[derive(Debug)]
pub struct RequestParts {
    pub uri: Uri,
    pub headers: HeaderMap,
}

impl<S: Send + Sync> FromRequestParts<S> for RequestParts {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // Nested routers see a shorter path. Links to the next page need the whole path.
        let whole = parts.extensions.get::<OriginalUri>().map(|whole| whole.0.clone());
        let uri = whole.unwrap_or_else(|| parts.uri.clone());
        Ok(Self { uri, headers: parts.headers.clone() })
    }
}

/// The router of all routes under `/api`. Every error becomes a problem response.
pub fn router(api: Arc<Api>) -> Router {
    let (router, _) = openapi::route_table().split_for_parts();
    let router = if api.access.has_console { router.merge(console::routes()) } else { router };
    let bounds = Arc::new(request_bounds::RequestBounds::new(&api.services));
    router
        .fallback(|| async { problem::Problem::new(problem::NOT_FOUND, problem::NO_ROUTE) })
        .method_not_allowed_fallback(|| async {
            problem::Problem::new(
                problem::METHOD_NOT_ALLOWED,
                "The route does not support this method. Use one of the methods in `Allow`.",
            )
        })
        .layer(CatchPanicLayer::custom(problem::panic_response))
        .layer(axum::middleware::from_fn(time_limit::limit_time))
        .layer(axum::middleware::from_fn(query::check_parameters))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&api), origin::check_origin))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&api), auth::refuse_all))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&api), host_names::check_host_name))
        .layer(axum::middleware::from_fn(unread_body::drain_unread_body))
        .layer(axum::middleware::from_fn_with_state(bounds, request_bounds::bound_request))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&api), problem::finish_response))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&api), trace_layer::trace_request))
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&api),
            client_connection::finish_after_disconnect,
        ))
        .with_state(api)
}

/// Responds with `body` as JSON.
fn json(status: StatusCode, body: &impl Serialize) -> Response {
    raw_json(status, &RawJson::from_value(body))
}

fn raw_json(status: StatusCode, body: &RawJson) -> Response {
    let mut response = Response::new(Body::from(body.text().to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Converts the result of a command to an HTTP response.
fn into_response(result: CommandResponse) -> Response {
    let status = StatusCode::from_u16(result.status).unwrap_or(StatusCode::OK);
    let mut response =
        result.body.map_or_else(|| status.into_response(), |body| raw_json(status, &body));
    let headers = response.headers_mut();
    let location = result.location.map(|location| format!("/api/{location}"));
    if let Some(value) = location.and_then(|location| HeaderValue::from_str(&location).ok()) {
        headers.insert(LOCATION, value);
    }
    if let Some(value) = result.etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
        headers.insert(ETAG, value);
    }
    if result.is_replayed {
        headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}
