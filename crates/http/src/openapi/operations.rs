//! Completes the document with facts of its operations: servers, tags, bounds of parameters,
//! webhooks, and one example an operation.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::openapi::document::{CONVERSATION_PATH, object_mut};
use crate::openapi::generators::{list_mut, operations_mut};
use turnwheel_commands::conversation::ID_LENGTH_MAX;

/// The webhooks of docs/webhooks.md, with the schemas of their bodies.
const WEBHOOKS: &str = include_str!("webhooks.json");
/// Bodies by operation: of the `request`, and of the `response` with the first status of success.
const EXAMPLES: &str = include_str!("examples.json");
/// Ids in a path. Clients and proxies remove a part of only dots from a path.
const ID_PATTERN: &str = r"^\.*[A-Za-z0-9_-][A-Za-z0-9_.-]*$";

pub(super) fn complete_operations(document: &mut Value, shapes: &Value) {
    let examples: Value = serde_json::from_str(EXAMPLES).unwrap_or_default();
    let mut tags = BTreeSet::new();
    for (path, _, operation) in operations_mut(document) {
        let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
        let id = id.to_owned();
        for parameter in operation.get_mut("parameters").into_iter().flat_map(list_mut) {
            add_parameter_bounds(path, &id, parameter, shapes);
        }
        if let Some(example) = examples.get(&id) {
            add_examples(operation, example);
        }
        let named = operation.get("tags").and_then(Value::as_array).into_iter().flatten();
        tags.extend(named.filter_map(Value::as_str).map(ToOwned::to_owned));
    }
    tags.insert("webhooks".to_owned());
    let tags: Vec<Value> = tags.into_iter().map(|name| json!({"name": name})).collect();
    let mut webhooks: Value = serde_json::from_str(WEBHOOKS).unwrap_or_default();
    if let (Some(schemas), Some(added)) =
        (object_mut(document, "/components/schemas"), object_mut(&mut webhooks, "/schemas"))
    {
        schemas.append(added);
    }
    if let Some(root) = document.as_object_mut() {
        root.insert("servers".to_owned(), servers());
        root.insert("tags".to_owned(), json!(tags));
        root.insert("webhooks".to_owned(), webhooks.get("webhooks").cloned().unwrap_or_default());
    }
}

fn servers() -> Value {
    json!([
        {"url": "http://127.0.0.1:7071", "description": "`turnwheel dev`"},
        {
            "url": "https://{app}.azurewebsites.net", "description": "A function app.",
            "variables": {"app": {"default": "my-app"}},
        },
    ])
}

/// Adds the bounds of one parameter, named by itself or by its operation too.
fn add_parameter_bounds(path: &str, operation: &str, parameter: &mut Value, shapes: &Value) {
    let name = parameter.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_conversation = name == "id" && path.starts_with(CONVERSATION_PATH);
    // Names of agents and commands have no pattern.
    let has_id = parameter.get("in").is_some_and(|kind| kind == "path") && name != "name";
    let Some(schema) = object_mut(parameter, "/schema") else { return };
    if is_conversation {
        schema.insert("maxLength".to_owned(), json!(ID_LENGTH_MAX));
    }
    let bounds = shapes.get("parameters");
    for key in [name.clone(), format!("{operation}.{name}")] {
        let found = bounds.and_then(|bounds| bounds.get(&key)?.as_object());
        schema.extend(found.cloned().unwrap_or_default());
    }
    if has_id {
        schema.entry("pattern").or_insert_with(|| json!(ID_PATTERN));
    }
}

fn add_examples(operation: &mut Map<String, Value>, example: &Value) {
    if let Some(request) = example.get("request")
        && let Some(body) = operation.get_mut("requestBody")
    {
        add_example(body, request);
    }
    if let Some(response) = example.get("response") {
        let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
        let mut successes =
            responses.into_iter().flatten().filter(|(status, _)| status.starts_with('2'));
        if let Some((_, success)) = successes.next() {
            add_example(success, response);
        }
    }
}

/// Adds the example to the first media type of a body.
fn add_example(body: &mut Value, example: &Value) {
    let content = object_mut(body, "/content");
    let first = content.and_then(|content| content.values_mut().next());
    if let Some(first) = first.and_then(Value::as_object_mut) {
        first.insert("example".to_owned(), example.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::DOCUMENT;

    /// Operations whose responses or requests are no JSON.
    const WITHOUT_EXAMPLE: [&str; 4] =
        ["getOpenApi", "getOpenApi30", "exportConversation", "getArtifact"];

    fn assert_valid(name: &str, body: &Value) {
        let mut schema = body["schema"].clone();
        schema["components"] = DOCUMENT["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&body["example"])
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, [""; 0], "{name}: {}", body["example"]);
    }

    #[test]
    fn every_operation_with_json_has_a_valid_example() {
        let mut count = 0;
        for (_, methods) in DOCUMENT["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                let id = operation["operationId"].as_str().unwrap();
                let responses = operation["responses"].as_object().unwrap();
                let success = responses.iter().find(|(status, _)| status.starts_with('2'));
                let parts = [&operation["requestBody"], success.unwrap().1];
                for part in parts.map(|part| part["content"].as_object()).into_iter().flatten() {
                    let (kind, body) = part.iter().next().unwrap();
                    if WITHOUT_EXAMPLE.contains(&id)
                        || kind.contains("octet")
                        || kind.contains("ndjson")
                    {
                        continue;
                    }
                    assert!(!body["example"].is_null(), "{id} has no example of {kind}");
                    assert_valid(id, body);
                    count += 1;
                }
            }
        }
        assert!(count > 70, "{count}");
    }

    #[test]
    fn parameters_have_their_bounds() {
        let parameters = |path: &str, method: &str| {
            let list = DOCUMENT["paths"][path][method]["parameters"].as_array().unwrap().clone();
            move |name: &str| {
                let found = list.iter().find(|parameter| parameter["name"] == name);
                found.unwrap_or_else(|| panic!("{name}: {list:#?}"))["schema"].clone()
            }
        };
        let prompt = parameters("/api/conversations/{id}/prompts", "post");
        assert_eq!(
            (&prompt("wait")["maximum"], &prompt("id")["pattern"]),
            (&json!(60), &json!(ID_PATTERN))
        );
        assert_eq!(prompt("Idempotency-Key")["type"], "string", "a header is not null");
        let events = parameters("/api/conversations/{id}/events", "get");
        assert_eq!(events("until")["enum"], json!(["settled", "agent_settled"]));
        assert_eq!(events("events")["enum"], json!(["message"]));
        // Typed clients send only declared values.
        let page = include_str!("../../../../docs/clients.md");
        for name in ["until", "events"] {
            for rest in page.split(&format!("{name}=")).skip(1) {
                let is_end = |letter: char| !letter.is_ascii_lowercase() && letter != '_';
                let value = rest.split(is_end).next().unwrap();
                let values = events(name)["enum"].clone();
                assert!(values.as_array().unwrap().contains(&json!(value)), "{name}={value}");
            }
        }
        assert_eq!(events("stream")["enum"], json!(["token", "event", "none"]));
    }

    #[test]
    fn ids_have_patterns() {
        let accepts_dots = |schema: &Value| {
            [".", "..", "..."].iter().any(|id| jsonschema::is_valid(schema, &json!(id)))
        };
        let mut missing = Vec::new();
        for (path, methods) in DOCUMENT["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                let parameters = operation["parameters"].as_array().into_iter().flatten();
                let of_path = parameters.filter(|parameter| parameter["in"] == "path");
                let without = of_path.filter(|parameter| {
                    let schema = &parameter["schema"];
                    schema["pattern"].is_null() || accepts_dots(schema)
                });
                missing.extend(without.map(|parameter| format!("{path} {}", parameter["name"])));
            }
        }
        // These are names of agents and commands.
        let names =
            ["/api/agents/{name} \"name\"", "/api/conversations/{id}/commands/{name} \"name\""];
        assert_eq!(missing, names);
        let schemas = &DOCUMENT["components"]["schemas"];
        for (schema, member) in [
            ("NewConversation", "id"),
            ("NewConversation", "conversationId"),
            ("FirstPromptRequest", "id"),
            ("FirstPromptRequest", "conversationId"),
            ("ForkRequest", "conversationId"),
            ("ForkRequest", "entryId"),
            ("NewSchedule", "id"),
            ("NewSchedule", "conversationId"),
        ] {
            let id = &schemas[schema]["properties"][member];
            assert!(id["pattern"].is_string() && !accepts_dots(id), "{schema}.{member}");
        }
    }

    /// A model service chooses the ids of tool calls.
    #[test]
    fn approval_id_takes_any_tool_call_id() {
        let path = "/api/conversations/{id}/approvals/{approvalId}";
        let parameters = DOCUMENT["paths"][path]["post"]["parameters"].as_array().unwrap();
        let approval = parameters.iter().find(|parameter| parameter["name"] == "approvalId");
        let schema = &approval.unwrap()["schema"];
        for id in
            ["call_1_1", "call_1|fc_1", "a/b", "a%2Fb", "100%", "call 1", "\u{fc}", "a\r\nb", ".a"]
        {
            assert!(jsonschema::is_valid(schema, &json!(id)), "{id:?}");
        }
        for id in ["", ".", "..", "..."] {
            assert!(!jsonschema::is_valid(schema, &json!(id)), "{id:?}");
        }
    }

    /// The webhooks of the page are those of the document.
    #[test]
    fn document_has_servers_tags_and_webhooks() {
        let page = include_str!("../../../../docs/webhooks.md");
        let (table, _) = page.split_once("## Request").unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let names: BTreeSet<&str> = rows
            .filter_map(|row| Some(row.split_once('`')?.0))
            .filter(|name| *name != "type")
            .collect();
        let webhooks = DOCUMENT["webhooks"].as_object().unwrap();
        assert_eq!(webhooks.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
        assert_eq!(DOCUMENT["servers"][0]["url"], "http://127.0.0.1:7071");
        let detail = &DOCUMENT["components"]["schemas"]["Problem"]["properties"]["detail"];
        assert_eq!(detail["x-ms-primary-error-message"], true);
    }
}
