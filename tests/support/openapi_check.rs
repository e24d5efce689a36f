//! Validates responses, events and webhooks against the OpenAPI document of the service.
//!
//! With `TURNWHEEL_VALIDATIONS` each validated value adds a line to the file of that name, such as `event
//! agent_start`. `.ci/run test` prints the number of lines and of different lines of each kind.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{Arc, LazyLock, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method};
use jsonschema::Validator;
use serde_json::{Value, json};
use turnwheel::testing::http::openapi::DOCUMENT;

use super::api_response::ApiResponse;

/// Headers that a response may have only if its description has them.
const DECLARED_HEADERS: [&str; 11] = [
    "accept-ranges",
    "allow",
    "content-disposition",
    "content-range",
    "content-security-policy",
    "etag",
    "idempotency-replayed",
    "link",
    "location",
    "referrer-policy",
    "retry-after",
];

/// Parameters of the Functions host, which the service ignores.
const HOST_PARAMETERS: [&str; 2] = ["code", "clientId"];

/// Responses that only the descriptions of their operations state: generators return no body
/// of an operation that declares them beside its stream.
const STATED_IN_TEXT: [(&str, u16); 2] = [("streamEvents", 204), ("getArtifact", 302)];

/// Validators by the name of the described value; each is compiled once.
static VALIDATORS: LazyLock<Mutex<BTreeMap<String, Arc<Validator>>>> =
    LazyLock::new(Mutex::default);

/// The schemas as this version of the service follows them: it sends only declared members and
/// known values.
static STRICT_COMPONENTS: LazyLock<Value> = LazyLock::new(|| {
    let mut components = json!({"schemas": DOCUMENT["components"]["schemas"]});
    close_schema(&mut components);
    components
});

/// A response with the request that caused it.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) method: &'a Method,
    /// Without the query.
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) status: u16,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) text: &'a str,
}

/// The operation of a request; `None` if the document has none.
fn find_operation(method: &Method, path: &str) -> Option<&'static Value> {
    let fits = |template: &str| {
        let (template, path) = (template.split('/'), path.split('/'));
        template.clone().count() == path.clone().count()
            && template.zip(path).all(|(one, other)| one.starts_with('{') || one == other)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    // axum routes to the template with the fewest parameters.
    let found = paths.iter().filter(|(template, _)| fits(template));
    let (_, item) = found.min_by_key(|(template, _)| template.matches('{').count())?;
    item.get(method.as_str().to_lowercase())
}

fn resolve_reference(value: &'static Value) -> &'static Value {
    let Some(reference) = value["$ref"].as_str() else { return value };
    DOCUMENT.pointer(reference.trim_start_matches('#')).expect(reference)
}

/// Excludes undeclared members of objects, and unknown values.
fn close_schema(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(values) = members.get("x-extensible-enum").cloned() {
                members.insert("enum".to_owned(), values);
            }
            if members.contains_key("properties") && !members.contains_key("additionalProperties") {
                members.insert("additionalProperties".to_owned(), json!(false));
            }
            members.values_mut().for_each(close_schema);
        }
        Value::Array(values) => values.iter_mut().for_each(close_schema),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn validate(name: &str, schema: &Value, value: &Value) -> Result<(), String> {
    let found = VALIDATORS.lock().unwrap().get(name).cloned();
    let validator = found.unwrap_or_else(|| {
        let mut whole = schema.clone();
        close_schema(&mut whole);
        whole["components"] = STRICT_COMPONENTS.clone();
        let validator = Arc::new(jsonschema::validator_for(&whole).expect(name));
        VALIDATORS.lock().unwrap().insert(name.to_owned(), Arc::clone(&validator));
        validator
    });
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    if errors.is_empty() {
        return Ok(());
    }
    Err(format!("{name} differs from its description: {errors:#?}\n{value:#}"))
}

/// Adds a validated value to the file of `TURNWHEEL_VALIDATIONS`.
fn record(name: &str) {
    let Some(path) = std::env::var_os("TURNWHEEL_VALIDATIONS") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    // One write, which the system appends as a whole: the tests run at the same time.
    file.write_all(format!("{name}\n").as_bytes()).unwrap();
}

/// Validates an event by its type alone, so that the errors are those of one schema.
fn validate_event(event: &Value) -> Result<(), String> {
    let kind = event["type"].as_str().ok_or_else(|| format!("an event without type: {event}"))?;
    let mapping = &DOCUMENT["components"]["schemas"]["Event"]["discriminator"]["mapping"];
    let schema = mapping.get(kind).ok_or_else(|| format!("there is no event `{kind}`: {event}"))?;
    let name = format!("event {kind}");
    record(&name);
    validate(&name, &json!({"$ref": schema}), event)
}

/// # Panics
/// Panics if the body differs from the schema of its type.
#[track_caller]
pub(crate) fn check_webhook(body: &Value) {
    let kind = body["type"].as_str().unwrap_or_else(|| panic!("a webhook without a type: {body}"));
    let request = &DOCUMENT["webhooks"][kind]["post"]["requestBody"];
    let schema = &request["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "the document has no webhook `{kind}`: {body}");
    let name = format!("webhook {kind}");
    record(&name);
    validate(&name, schema, body).unwrap_or_else(|difference| panic!("{difference}"));
}

/// # Panics
/// Panics if the response differs from its description, or has none.
#[track_caller]
pub(crate) fn check_response(exchange: &Exchange<'_>) {
    validate_response(exchange).unwrap_or_else(|difference| panic!("{difference}"));
}

/// The Functions host replaces a response that has a header outside of ASCII by an empty 500.
fn validate_headers(headers: &HeaderMap) -> Result<(), String> {
    let found = headers.iter().find(|(_, value)| value.to_str().is_err());
    found.map_or(Ok(()), |(name, value)| Err(format!("the header {name} is not ASCII: {value:?}")))
}

/// # Panics
/// Panics if a header is not ASCII.
#[track_caller]
pub(crate) fn check_headers(headers: &HeaderMap) {
    validate_headers(headers).unwrap_or_else(|difference| panic!("{difference}"));
}

/// The parameters of a request that the service accepts are those of its operation.
fn validate_query(operation: &Value, query: &str) -> Result<(), String> {
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let given = url::form_urlencoded::parse(query.as_bytes());
    for (name, value) in given.filter(|(name, _)| !HOST_PARAMETERS.contains(&&**name)) {
        let is_declared = |it: &&Value| it["in"] == "query" && it["name"] == *name;
        let declared = parameters.iter().find(is_declared);
        let values = declared.map(|it| &it["schema"]["enum"]);
        let is_described = values
            .is_some_and(|values| values.as_array().is_none_or(|it| it.contains(&json!(value))));
        if !is_described {
            return Err(format!("{} does not describe {name}={value}", operation["operationId"]));
        }
    }
    Ok(())
}

fn validate_response(exchange: &Exchange<'_>) -> Result<(), String> {
    let Exchange { method, path, query, status, headers, text } = *exchange;
    validate_headers(headers)?;
    let kind = headers.get("content-type").map_or("", |kind| kind.to_str().unwrap());
    let kind = kind.split(';').next().unwrap_or_default();
    let Some(operation) = find_operation(method, path) else {
        let is_expected = matches!(status, 204 | 404 | 405);
        let difference = || format!("{method} {path} is not described: {status}");
        return if is_expected { Ok(()) } else { Err(difference()) };
    };
    let operation_id = operation["operationId"].as_str().unwrap();
    if status < 300 {
        validate_query(operation, query)?;
    }
    if status == 304 || STATED_IN_TEXT.contains(&(operation_id, status)) {
        return Ok(());
    }
    let name = format!("{operation_id} {status} {kind}");
    let response = operation["responses"].get(status.to_string());
    let response = response.ok_or_else(|| format!("{name} is not described: {text}"))?;
    let response = resolve_reference(response);
    record(&format!("response {name}"));
    let declared = response["headers"].as_object();
    for header in DECLARED_HEADERS.iter().filter(|name| headers.contains_key(**name)) {
        let is_declared = |declared: &String| declared.eq_ignore_ascii_case(header);
        if !declared.is_some_and(|declared| declared.keys().any(is_declared)) {
            return Err(format!("{name} has a header that is not described: {header}"));
        }
    }
    if text.is_empty() {
        return Ok(());
    }
    let content = &response["content"];
    let described = content.get(kind).or_else(|| content.get("*/*"));
    let described = described.ok_or_else(|| format!("{name} is not described: {content}"))?;
    match (kind, serde_json::from_str(text)) {
        ("text/event-stream", _) => validate_events(text),
        // Text that is nested too deeply for a parser with a limit has its own tests.
        ("application/json" | "application/problem+json", Ok(value)) => {
            validate(&name, &described["schema"], &value)?;
            let has_position = status != 202 || value["lastEventId"].is_u64();
            has_position.then_some(()).ok_or_else(|| format!("{name} has no position: {value}"))
        }
        _ => Ok(()),
    }
}

/// Sends a request and validates the response.
///
/// # Errors
/// The connection failed.
///
/// # Panics
/// Panics if the response of the API differs from its description, or has none.
pub(crate) async fn send(request: reqwest::RequestBuilder) -> Result<ApiResponse, reqwest::Error> {
    let (response, bytes) = exchange(request).await?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(ApiResponse { status: response.status(), headers: response.headers().clone(), text })
}

/// Sends a request and validates the response, in place of `send`.
pub(crate) trait SendValidated {
    /// See [`send`].
    fn send_validated(
        self,
    ) -> impl Future<Output = Result<reqwest::Response, reqwest::Error>> + Send;
}

impl SendValidated for reqwest::RequestBuilder {
    async fn send_validated(self) -> Result<reqwest::Response, reqwest::Error> {
        let (response, bytes) = exchange(self).await?;
        Ok(response.map(|()| bytes).into())
    }
}

async fn exchange(
    request: reqwest::RequestBuilder,
) -> Result<(http::Response<()>, Bytes), reqwest::Error> {
    let (client, request) = request.build_split();
    let request = request?;
    let (method, url) = (request.method().clone(), request.url().clone());
    let received = client.execute(request).await?;
    let mut response = http::Response::new(());
    *response.status_mut() = received.status();
    *response.headers_mut() = received.headers().clone();
    let bytes = received.bytes().await?;
    let (path, query) = (url.path(), url.query().unwrap_or_default());
    if path.starts_with("/api/") {
        let (status, headers) = (response.status().as_u16(), response.headers());
        let text = &String::from_utf8_lossy(&bytes);
        check_response(&Exchange { method: &method, path, query, status, headers, text });
    }
    Ok((response, bytes))
}

/// Validates the events of a stream.
///
/// # Panics
/// Panics if an event differs from the schema of its type.
#[track_caller]
pub(crate) fn check_events(text: &str) {
    validate_events(text).unwrap_or_else(|difference| panic!("{difference}"));
}

/// A last frame without its end is ignored.
fn validate_events(text: &str) -> Result<(), String> {
    let complete = text.rsplit_once("\n\n").map_or("", |(complete, _)| complete);
    let data = complete.lines().filter_map(|line| line.strip_prefix("data:"));
    // The events of the streaming text protocol have no schema.
    let is_own = |event: &Value| !event["timestamp"].is_f64();
    data.filter_map(|data| serde_json::from_str(data).ok())
        .filter(is_own)
        .try_for_each(|event| validate_event(&event))
}

#[test]
fn header_outside_of_ascii_is_detected() {
    let mut headers = HeaderMap::new();
    headers.insert("etag", http::HeaderValue::from_static("\"1\""));
    assert_eq!(validate_headers(&headers), Ok(()));
    headers.insert("location", http::HeaderValue::from_bytes("é".as_bytes()).unwrap());
    assert!(validate_headers(&headers).unwrap_err().contains("location"));
}

#[test]
fn response_differing_from_openapi_is_detected() {
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    let wrong = validate("a problem", &schema, &json!({"type": 5}));
    assert!(wrong.unwrap_err().contains("/type: 5 is not of type"));
}

/// An undeclared member, an unknown value and a missing member fail the test that receives them.
#[test]
fn event_differing_from_openapi_is_detected() {
    let event = json!({"type": "message_reset", "promptId": "p", "turn": 1,
        "at": "2026-11-27T00:00:00.000Z", "messageId": "m"});
    assert_eq!(validate_event(&event), Ok(()));
    for (name, value) in [("other", json!(1)), ("messageId", Value::Null), ("type", json!("new"))] {
        let mut wrong = event.clone();
        wrong[name] = value;
        assert!(validate_event(&wrong).is_err(), "{wrong}");
    }
}
