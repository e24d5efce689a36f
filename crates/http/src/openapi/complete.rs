//! Completes the generated OpenAPI document with facts that attributes cannot state: unions,
//! credentials, problems.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::openapi::document::{
    APPROVAL_PATHS, CONVERSATION_PATH, LINK_PATH, binary_schema, object_mut,
};
use crate::openapi::generators::adapt_schemas;
use crate::openapi::headers::{add_response_headers, add_security_headers};
use crate::openapi::operations;

/// `schemas` add or replace generated schemas. `properties` replace single members of generated
/// schemas, `bounds` add to them. `parameters` add to the schemas of parameters.
const SCHEMAS: &str = include_str!("shapes.json");

/// Paths of operations without authentication.
const PUBLIC_PATHS: [&str; 4] =
    ["/api/health", LINK_PATH, "/api/openapi.json", "/api/openapi-3.0.json"];
const ARTIFACT_PATH: &str = "/api/conversations/{id}/artifacts/{artifactId}";
const EVENTS_PATH: &str = "/api/conversations/{id}/events";

/// Status, description, and the header of the response.
const PROBLEMS: [(&str, &str, Option<&str>); 17] = [
    ("400", "Bad Request", None),
    ("401", "Unauthorized. The Functions host sends it without a body.", None),
    ("403", "Forbidden", None),
    ("404", "Not Found", None),
    ("408", "Request Timeout", None),
    ("409", "Conflict", Some("Retry-After")),
    ("410", "Gone", None),
    ("412", "Precondition Failed", Some("ETag")),
    ("413", "Content Too Large", None),
    ("415", "Unsupported Media Type", None),
    ("416", "Range Not Satisfiable", Some("Content-Range")),
    ("421", "Misdirected Request", None),
    ("422", "Unprocessable Content", None),
    ("429", "Too Many Requests", Some("Retry-After")),
    ("500", "Internal Server Error", None),
    ("503", "Service Unavailable", Some("Retry-After")),
    ("405", "Method Not Allowed", Some("Allow")),
];

pub(super) fn complete_document(mut document: Value) -> Value {
    let shapes: Value = serde_json::from_str(SCHEMAS).unwrap_or_default();
    if let Some(schemas) = object_mut(&mut document, "/components/schemas") {
        add_schemas(schemas, &shapes);
        add_prompt_members(schemas);
        flatten_input_view(schemas);
        if let Some(patch) = schemas.get_mut("ConversationPatch").and_then(Value::as_object_mut) {
            patch.insert("additionalProperties".to_owned(), json!(false));
        }
        add_bounds(schemas, &shapes);
        schemas.values_mut().for_each(complete_schema);
    }
    if let Some(components) = object_mut(&mut document, "/components") {
        components.insert("securitySchemes".to_owned(), security_schemes());
        components.insert("responses".to_owned(), problem_responses());
    }
    if let Some(root) = document.as_object_mut() {
        root.insert("security".to_owned(), security_requirements());
    }
    for (path, methods) in object_mut(&mut document, "/paths").into_iter().flatten() {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            complete_operation(path, method, operation);
            complete_schema(operation);
        }
    }
    operations::complete_operations(&mut document, &shapes);
    adapt_schemas(&mut document);
    document
}

fn add_schemas(schemas: &mut Map<String, Value>, shapes: &Value) {
    for (name, schema) in shapes.get("schemas").and_then(Value::as_object).into_iter().flatten() {
        schemas.insert(name.clone(), schema.clone());
    }
    for (name, members) in shapes.get("properties").and_then(Value::as_object).into_iter().flatten()
    {
        let Some(properties) = schemas.get_mut(name).and_then(own_properties) else { continue };
        for (member, schema) in members.as_object().into_iter().flatten() {
            properties.insert(member.clone(), schema.clone());
        }
    }
}

/// Adds the bounds of values that the service checks.
fn add_bounds(schemas: &mut Map<String, Value>, shapes: &Value) {
    let bounds = shapes.get("bounds").and_then(Value::as_object).into_iter().flatten();
    for (name, members) in bounds {
        let Some(properties) = schemas.get_mut(name).and_then(own_properties) else { continue };
        for (member, bound) in members.as_object().into_iter().flatten() {
            let schema = properties.get_mut(member).and_then(Value::as_object_mut);
            let (Some(schema), Some(bound)) = (schema, bound.as_object()) else { continue };
            schema.extend(bound.clone());
        }
    }
}

/// The response to an input has the members of a prompt too, so that clients have one type for it.
fn add_prompt_members(schemas: &mut Map<String, Value>) {
    let prompt = schemas.get("Prompt").and_then(|prompt| prompt.get("properties")).cloned();
    let response = schemas.get_mut("PromptResponse").and_then(own_properties);
    let (Some(Value::Object(prompt)), Some(response)) = (prompt, response) else { return };
    for (name, schema) in prompt {
        response.entry(name).or_insert(schema);
    }
}

/// Moves the members of a queued input, which other inputs do not have, to the view itself.
fn flatten_input_view(schemas: &mut Map<String, Value>) {
    let queued = schemas.remove("QueuedInputView");
    let queued = queued.as_ref().and_then(|queued| queued.get("properties")?.as_object());
    let Some(view) = schemas.get_mut("InputView") else { return };
    let parts = view.get_mut("allOf").and_then(Value::as_array_mut).map(std::mem::take);
    let own = parts.into_iter().flatten().find(|part| part.get("properties").is_some());
    let Some(mut own) = own else { return };
    if let Some(members) = object_mut(&mut own, "/properties") {
        for (name, member) in queued.into_iter().flatten() {
            members.entry(name.clone()).or_insert_with(|| member.clone());
        }
    }
    *view = own;
}

/// Completes a schema and those within it. An object without declared members has any members:
/// generators would make a type without members of it. No member has the default null: form
/// libraries send defaults, and in a merge patch null removes a setting. No number is an `int64`: all
/// are below 2^53, and clients in JavaScript would get a `BigInt`, which JSON cannot have.
fn complete_schema(schema: &mut Value) {
    let is_any_object = is_object_schema(schema)
        && ["properties", "additionalProperties"].iter().all(|name| schema.get(name).is_none());
    match schema {
        Value::Object(members) => {
            if members.get("default").is_some_and(Value::is_null) {
                members.remove("default");
            }
            if members.get("format").is_some_and(|format| format == "int64") {
                members.remove("format");
            }
            if is_any_object {
                members.insert("additionalProperties".to_owned(), json!(true));
            }
            members.values_mut().for_each(complete_schema);
        }
        Value::Array(items) => items.iter_mut().for_each(complete_schema),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// True if the `type` is `object`, or a list with it.
fn is_object_schema(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::Array(types)) => types.contains(&json!("object")),
        kind => kind == Some(&json!("object")),
    }
}

/// The members of an object, also of one with flattened parts.
fn own_properties(schema: &mut Value) -> Option<&mut Map<String, Value>> {
    let is_flattened = schema.get("allOf").is_some();
    if !is_flattened {
        return object_mut(schema, "/properties");
    }
    let parts = schema.get_mut("allOf")?.as_array_mut()?;
    parts.iter_mut().find_map(|part| object_mut(part, "/properties"))
}

fn security_schemes() -> Value {
    let header = |name: &str, description: &str| json!({"type": "apiKey", "in": "header", "name": name, "description": description});
    json!({
        "functionKey": header("x-functions-key", "Modes `keys` and `header`."),
        "functionKeyInQuery": {"type": "apiKey", "in": "query", "name": "code"},
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "Mode `easyauth`: a Microsoft Entra token."},
        "gatewayUser": header("Turnwheel-User", "Mode `header`: set by a trusted gateway."),
        "gatewayTenant": header("Turnwheel-Tenant", "Mode `header`: absent means `default`."),
        "gatewayRoles": header("Turnwheel-Roles", "Mode `header`: separated by commas without blanks."),
    })
}

fn security_requirements() -> Value {
    json!([
        {"functionKey": []},
        {"functionKeyInQuery": []},
        {"bearer": []},
        {"functionKey": [], "gatewayUser": [], "gatewayTenant": [], "gatewayRoles": []},
    ])
}

fn problem_responses() -> Value {
    let problem = |(status, phrase, header): &(&str, &str, Option<&str>)| {
        let mut response = json!({
            "description": phrase,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        });
        if let (Some(header), Some(members)) = (header, response.as_object_mut()) {
            let headers = json!({*header: {"schema": {"type": "string"}}});
            members.insert("headers".to_owned(), headers);
        }
        (format!("Problem{status}"), response)
    };
    Value::Object(PROBLEMS.iter().map(problem).collect())
}

fn complete_operation(path: &str, method: &str, operation: &mut Value) {
    let statuses = problem_statuses(path, method, operation);
    let Some(members) = operation.as_object_mut() else { return };
    if method == "get" && path.starts_with(CONVERSATION_PATH) {
        add_user_parameter(members);
    }
    if PUBLIC_PATHS.contains(&path) {
        members.insert("security".to_owned(), json!([]));
    }
    if let Some(body) = members
        .get_mut("requestBody")
        .and_then(|body| object_mut(body, "/content/application~1octet-stream"))
    {
        body.insert("schema".to_owned(), binary_schema());
    }
    add_response_headers(path, method, members);
    let Some(responses) = members.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    let mut refer = |pointer: &str, name: &str| {
        let content = responses.get_mut("200").and_then(|response| object_mut(response, pointer));
        let schema = json!({"$ref": format!("#/components/schemas/{name}")});
        if let Some(content) = content {
            content.insert("schema".to_owned(), schema);
        }
    };
    if method == "get" && path == LINK_PATH {
        refer("/content/application~1json", "Approval");
    }
    if path == EVENTS_PATH {
        refer("/content/text~1event-stream", "Event");
    }
    if method == "get" && path == ARTIFACT_PATH {
        // The bytes have the artifact's own type.
        for status in ["200", "206"] {
            if let Some(response) = responses.get_mut(status).and_then(Value::as_object_mut) {
                response.insert("content".to_owned(), json!({"*/*": {"schema": binary_schema()}}));
            }
        }
    }
    for (status, response) in responses.iter_mut() {
        describe_response(status, response);
    }
    for status in statuses {
        let problem = if path == LINK_PATH {
            link_problem(status)
        } else {
            json!({"$ref": format!("#/components/responses/Problem{status}")})
        };
        responses.insert(status.to_owned(), problem);
    }
}

/// A problem of an approval link, which browsers receive as a page.
fn link_problem(status: &str) -> Value {
    let named = problem_responses();
    let mut problem = named.get(format!("Problem{status}")).cloned().unwrap_or_default();
    if let Some(content) = object_mut(&mut problem, "/content") {
        content.insert("text/html".to_owned(), json!({"schema": {"type": "string"}}));
    }
    if let Some(members) = problem.as_object_mut() {
        add_security_headers(members);
    }
    problem
}

/// Adds HTTP's phrase to a response without a description, which OpenAPI requires.
fn describe_response(status: &str, response: &mut Value) {
    let Some(members) = response.as_object_mut() else { return };
    let is_described = members.get("description").is_some_and(|text| text != "");
    if is_described || members.contains_key("$ref") {
        return;
    }
    let status = status.parse().ok().and_then(|status| StatusCode::from_u16(status).ok());
    let phrase = status.and_then(|status| status.canonical_reason()).unwrap_or("Response");
    members.insert("description".to_owned(), json!(phrase));
}

/// Adds the parameter `userId`, with which operators select a user on every read of a conversation.
fn add_user_parameter(operation: &mut Map<String, Value>) {
    let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
    let Some(parameters) = parameters.as_array_mut() else { return };
    if parameters.iter().all(|parameter| parameter.get("name") != Some(&json!("userId"))) {
        parameters.push(json!({
            "name": "userId", "in": "query", "required": false, "schema": {"type": "string"},
            "description": "For operators: the owner of the conversation.",
        }));
    }
}

/// Returns the problem statuses of an operation.
fn problem_statuses(path: &str, method: &str, operation: &Value) -> Vec<&'static str> {
    if path != LINK_PATH && PUBLIC_PATHS.contains(&path) {
        return vec!["421"];
    }
    let has_header = |name: &str| {
        let parameters = operation.get("parameters").and_then(Value::as_array);
        parameters.is_some_and(|list| {
            list.iter().any(|parameter| parameter.get("name") == Some(&json!(name)))
        })
    };
    let is_link = path == LINK_PATH;
    let is_change = method != "get";
    let has_body = operation.get("requestBody").is_some();
    let rules = [
        (true, &["400", "421", "429", "500", "503"][..]),
        (!is_link, &["401", "403"]),
        (path.contains('{'), &["404"]),
        (is_change, &["403", "409"]),
        (has_body, &["408", "413", "415"]),
        (has_header("Idempotency-Key"), &["422"]),
        (has_header("If-Match"), &["412"]),
        (is_change && APPROVAL_PATHS.contains(&path), &["410"]),
        (method == "get" && path == ARTIFACT_PATH, &["416"]),
    ];
    rules
        .iter()
        .filter(|(applies, _)| *applies)
        .flat_map(|(_, list)| list.iter().copied())
        .collect()
}
