//! Completes the generated OpenAPI document with facts that attributes cannot state: unions,
//! credentials, problems.

use serde_json::{Map, Value, json};

/// `schemas` add or replace generated schemas. `properties` replace single members of generated
/// schemas.
const SCHEMAS: &str = include_str!("shapes.json");

/// Paths of operations without authentication.
const PUBLIC_PATHS: [&str; 3] = ["/api/health", "/api/approvals/{token}", "/api/openapi.json"];
const APPROVAL_PATHS: [&str; 2] =
    ["/api/approvals/{token}", "/api/conversations/{id}/approvals/{approvalId}"];
const ARTIFACT_PATH: &str = "/api/conversations/{id}/artifacts/{artifactId}";
const CONVERSATION_PATH: &str = "/api/conversations/{id}";
const EVENTS_PATH: &str = "/api/conversations/{id}/events";

/// Status, HTTP's phrase, and the header of the response.
const PROBLEMS: [(&str, &str, Option<&str>); 17] = [
    ("400", "Bad Request", None),
    ("401", "Unauthorized", None),
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
        }
    }
    document
}

fn object_mut<'a>(value: &'a mut Value, pointer: &str) -> Option<&'a mut Map<String, Value>> {
    value.pointer_mut(pointer)?.as_object_mut()
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
    if path == EVENTS_PATH {
        let schema = json!({"$ref": "#/components/schemas/Event"});
        if let Some(content) = members
            .get_mut("responses")
            .and_then(|responses| object_mut(responses, "/200/content/text~1event-stream"))
        {
            content.insert("schema".to_owned(), schema);
        }
    }
    let Some(responses) = members.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    if method == "get" && path == ARTIFACT_PATH {
        // The bytes have the artifact's own type and no schema.
        for status in ["200", "206"] {
            if let Some(response) = responses.get_mut(status).and_then(Value::as_object_mut) {
                response.insert("content".to_owned(), json!({"*/*": {"schema": {}}}));
            }
        }
    }
    for status in statuses {
        let problem = json!({"$ref": format!("#/components/responses/Problem{status}")});
        responses.insert(status.to_owned(), problem);
    }
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
    if path == "/api/health" || path == "/api/openapi.json" {
        return Vec::new();
    }
    let has_header = |name: &str| {
        let parameters = operation.get("parameters").and_then(Value::as_array);
        parameters.is_some_and(|list| {
            list.iter().any(|parameter| parameter.get("name") == Some(&json!(name)))
        })
    };
    let is_link = path == "/api/approvals/{token}";
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
