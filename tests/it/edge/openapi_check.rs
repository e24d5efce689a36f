//! Validates each response of these tests against the OpenAPI document that the service serves.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use http::Method;
use jsonschema::Validator;
use serde_json::{Value, json};

use super::test_app::{TestApp, TestResponse};

/// Headers that a response may have only if its description has them.
const DECLARED_HEADERS: [&str; 9] = [
    "accept-ranges",
    "allow",
    "content-disposition",
    "content-range",
    "etag",
    "idempotency-replayed",
    "link",
    "location",
    "retry-after",
];

/// The OpenAPI document.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            TestApp::new().get("/api/openapi.json").send_unvalidated().await.text
        })
    });
    serde_json::from_str(&text.join().unwrap()).unwrap()
});

/// Validators by operation, status and media type; each is compiled once.
static VALIDATORS: LazyLock<Mutex<BTreeMap<String, Arc<Validator>>>> =
    LazyLock::new(Mutex::default);

/// The operation of a request; `None` if the document has none.
fn find_operation(method: &Method, path: &str) -> Option<(&'static str, &'static Value)> {
    let fits = |template: &str| {
        let (template, path) = (template.split('/'), path.split('/'));
        template.clone().count() == path.clone().count()
            && template.zip(path).all(|(one, other)| one.starts_with('{') || one == other)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    // axum routes to the template with the fewest parameters.
    let found = paths.iter().filter(|(template, _)| fits(template));
    let (template, item) = found.min_by_key(|(template, _)| template.matches('{').count())?;
    Some((template, item.get(method.as_str().to_lowercase())?))
}

fn resolve_reference(value: &'static Value) -> &'static Value {
    let Some(reference) = value["$ref"].as_str() else { return value };
    DOCUMENT.pointer(reference.trim_start_matches('#')).expect(reference)
}

/// The service of these tests sends no variant of a later version.
fn require_known_variants(schemas: &mut Value) {
    let schemas = schemas.as_object_mut().unwrap();
    for (name, schema) in schemas.iter_mut() {
        let is_open = schema["anyOf"].as_array().is_some_and(|variants| {
            variants.contains(&json!({"$ref": format!("#/components/schemas/Unknown{name}")}))
        });
        if is_open {
            *schema = json!({"$ref": format!("#/components/schemas/Known{name}")});
        }
    }
}

fn validate(response_name: &str, schema: &Value, value: &Value) {
    let found = VALIDATORS.lock().unwrap().get(response_name).cloned();
    let validator = found.unwrap_or_else(|| {
        let mut whole = schema.clone();
        whole["components"] = DOCUMENT["components"].clone();
        require_known_variants(&mut whole["components"]["schemas"]);
        let validator = Arc::new(jsonschema::validator_for(&whole).expect(response_name));
        VALIDATORS.lock().unwrap().insert(response_name.to_owned(), Arc::clone(&validator));
        validator
    });
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        errors.is_empty(),
        "{response_name} differs from its description: {errors:#?}\n{value:#}"
    );
}

/// # Panics
/// Panics if the response differs from its description, or has none.
pub(super) fn check_response(method: &Method, path: &str, actual: &TestResponse) {
    let status = actual.status.as_u16();
    let kind = actual.header("content-type").split(';').next().unwrap_or_default();
    let Some((template, operation)) = find_operation(method, path) else {
        assert!(matches!(status, 204 | 404 | 405), "{method} {path} is not described: {status}");
        return;
    };
    if status == 304 {
        return;
    }
    let response_name = format!("{method} {template} {status} {kind}");
    let responses = &operation["responses"];
    let response = responses.get(status.to_string()).or_else(|| responses.get("default"));
    let response =
        resolve_reference(response.unwrap_or_else(|| panic!("{response_name} is not described")));
    let declared = response["headers"].as_object();
    for name in DECLARED_HEADERS.iter().filter(|name| actual.headers.contains_key(**name)) {
        let is_declared = |declared: &String| declared.eq_ignore_ascii_case(name);
        assert!(
            declared.is_some_and(|declared| declared.keys().any(is_declared)),
            "{response_name} has a header that is not described: {name}"
        );
    }
    if actual.text.is_empty() {
        return;
    }
    let content = &response["content"];
    let described = content.get(kind).or_else(|| content.get("*/*"));
    let described =
        described.unwrap_or_else(|| panic!("{response_name} is not described: {content}"));
    // Text that is nested too deeply for a parser with a limit has its own tests.
    let validate = |text: &str| {
        if let Ok(value) = serde_json::from_str(text) {
            validate(&response_name, &described["schema"], &value);
        }
    };
    match kind {
        "application/json" | "application/problem+json" => validate(&actual.text),
        "text/event-stream" => {
            let data = actual.text.lines().filter_map(|line| line.strip_prefix("data:"));
            // The events of the streaming text protocol have no schema.
            let is_of_protocol = |data: &&str| {
                serde_json::from_str::<Value>(data).is_ok_and(|event| event["timestamp"].is_f64())
            };
            data.filter(|data| !is_of_protocol(data)).for_each(validate);
        }
        _ => {}
    }
}

#[test]
fn response_differing_from_openapi_is_detected() {
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    let wrong = std::panic::catch_unwind(|| validate("a problem", &schema, &json!({"type": 5})));
    assert!(wrong.is_err());
}
