//! Check of query parameters. Unknown ones are rejected by name: a misspelt parameter would
//! otherwise be ignored silently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Method;
use serde_json::Value;

use crate::openapi::DOCUMENT;
use crate::origin::APPROVAL_LINKS_PATH;
use crate::problem::Problem;
use turnwheel_record::contract::FieldError;

/// Parameters of the Functions host, allowed on every route.
const HOST_PARAMETERS: [&str; 2] = ["code", "clientId"];
const CONVERSATION_PATH: &str = "/api/conversations/{id}";
/// Maximum characters of a parameter name that an error repeats.
const NAME_CHARACTERS_MAX: usize = 50;

/// Parameters by path and method, from the OpenAPI document.
static KNOWN_PARAMETERS: LazyLock<BTreeMap<(String, String), BTreeSet<String>>> =
    LazyLock::new(|| {
        let mut known = BTreeMap::new();
        let paths = DOCUMENT.get("paths").and_then(Value::as_object);
        for (path, methods) in paths.into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                let names =
                    query_parameters(operation).filter_map(Value::as_str).map(ToOwned::to_owned);
                known.insert((path.clone(), method.clone()), names.collect());
            }
        }
        known
    });

fn query_parameters(operation: &Value) -> impl Iterator<Item = &Value> {
    let all = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
    all.filter(|parameter| parameter.get("in").is_some_and(|location| location == "query"))
        .filter_map(|parameter| parameter.get("name"))
}

pub(crate) async fn check_parameters(request: Request, next: Next) -> Response {
    match find_unknown_parameter(&request).or_else(|| find_repeated_parameter(&request)) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    }
}

/// Returns a problem for the first parameter that is given twice: one value would be ignored silently.
fn find_repeated_parameter(request: &Request) -> Option<Problem> {
    let query = request.uri().query()?;
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    if path.starts_with(APPROVAL_LINKS_PATH) {
        return None;
    }
    let mut seen = BTreeSet::new();
    let mut given = url::form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
    let repeated = given.find(|name| !seen.insert(name.clone()))?;
    let repeated: String = repeated.chars().take(NAME_CHARACTERS_MAX).collect();
    let detail = format!("The query parameter `{repeated}` is given twice. Send it once.");
    Some(
        Problem::bad_request(detail.clone())
            .with_errors(vec![FieldError::new(format!("?{repeated}"), detail)]),
    )
}

/// Returns a problem for the first unknown parameter. Approval links take any, because mail
/// programs add their own.
fn find_unknown_parameter(request: &Request) -> Option<Problem> {
    let query = request.uri().query()?;
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    if path.starts_with(APPROVAL_LINKS_PATH) {
        return None;
    }
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    let names = KNOWN_PARAMETERS.get(&(path.to_owned(), method.as_str().to_ascii_lowercase()))?;
    let mut given = url::form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
    // Operators may select a user on every route of a conversation. Where they may only read, a
    // later check reports that.
    let is_user = |name: &str| name == "userId" && path.starts_with(CONVERSATION_PATH);
    let is_known =
        |name: &str| names.contains(name) || HOST_PARAMETERS.contains(&name) || is_user(name);
    let unknown = given.find(|name| !is_known(name))?;
    let unknown: String = unknown.chars().take(NAME_CHARACTERS_MAX).collect();
    let allowed = if names.is_empty() {
        "It has none.".to_owned()
    } else {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("Its parameters are: {}.", names.join(", "))
    };
    let detail = format!("This route has no query parameter `{unknown}`. {allowed}");
    Some(
        Problem::bad_request(detail.clone())
            .with_errors(vec![FieldError::new(format!("?{unknown}"), detail)]),
    )
}
