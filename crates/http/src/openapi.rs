//! Route table, and the OpenAPI documents generated from the routes.

mod complete;
mod document;
mod generators;
mod headers;
mod operations;
mod three_zero;

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use serde_json::Value;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::{
    SharedApi, abort, agents, approval_links, approvals, artifacts, branches, commands, compact,
    conversations, doctor, events, frames, health, inbox, memory, models, plugins, profile,
    prompts, schedules, session_files, skills, tree, usage, users, why,
};
use turnwheel_commands::prompt_queue::PromptMessage;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Turnwheel",
        description = "Durable conversations with agents. Errors are application/problem+json. Unknown members and variants may appear in responses.",
        license(name = "MIT"),
    ),
    components(schemas(PromptMessage))
)]
struct Description;

/// The table of all routes with their descriptions. All paths are under `/api`.
pub(crate) fn route_table() -> OpenApiRouter<SharedApi> {
    let api = OpenApiRouter::new()
        .routes(routes!(conversations::create, conversations::list))
        .routes(routes!(conversations::read, conversations::change, conversations::delete))
        .routes(routes!(conversations::fork))
        .routes(routes!(session_files::import))
        .routes(routes!(session_files::export))
        .routes(routes!(frames::read))
        .routes(routes!(why::read))
        .routes(routes!(why::list))
        .routes(routes!(conversations::list_messages, inbox::add_message))
        .routes(routes!(conversations::list_history))
        .routes(routes!(conversations::list_entries))
        .routes(routes!(branches::move_to))
        .routes(routes!(branches::label))
        .routes(routes!(plugins::list))
        .routes(routes!(tree::tree))
        .routes(routes!(tree::fork_points))
        .routes(routes!(tree::stats))
        .routes(routes!(tree::last_answer))
        .routes(routes!(compact::compact))
        .routes(routes!(commands::run))
        .routes(routes!(commands::bash))
        .routes(routes!(prompts::start_conversation))
        .routes(routes!(prompts::create, prompts::list))
        .routes(routes!(prompts::import))
        .routes(routes!(prompts::read))
        .routes(routes!(abort::abort))
        .routes(routes!(abort::continue_prompt))
        .routes(routes!(prompts::receipt))
        .routes(routes!(inbox::list, inbox::clear_all))
        .routes(routes!(inbox::read, inbox::change, inbox::clear))
        .routes(routes!(events::stream))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::decide_approval))
        .routes(routes!(approval_links::get_approval, approval_links::post_decision))
        .routes(routes!(artifacts::list, artifacts::add))
        .routes(routes!(artifacts::read))
        .routes(routes!(schedules::create, schedules::list))
        .routes(routes!(schedules::read, schedules::cancel))
        .routes(routes!(memory::read, memory::replace, memory::clear))
        .routes(routes!(memory::forget))
        .routes(routes!(skills::list))
        .routes(routes!(skills::read, skills::replace, skills::remove))
        .routes(routes!(users::read_identity, users::delete_own_data))
        .routes(routes!(profile::read, profile::clear))
        .routes(routes!(usage::read))
        .routes(routes!(usage::list_limits))
        .routes(routes!(agents::list))
        .routes(routes!(agents::agent))
        .routes(routes!(models::list))
        .routes(routes!(commands::list))
        .routes(routes!(health::health))
        .routes(routes!(doctor::check))
        .routes(routes!(get_document))
        .routes(routes!(get_document_3_0));
    OpenApiRouter::with_openapi(Description::openapi()).nest("/api", api)
}

/// Get the OpenAPI document of this API.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "getOpenApi", tag = "service",
    responses((status = 200, body = Value, description = "The OpenAPI 3.1 document."))
)]
async fn get_document() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(|| DOCUMENT.to_string());
    ([(http::header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

/// Get the OpenAPI 3.0 document of this API, in which unions are base types with variants.
#[utoipa::path(
    get, path = "/openapi-3.0.json", operation_id = "getOpenApi30", tag = "service",
    responses((status = 200, body = Value, description = "The OpenAPI 3.0 document."))
)]
async fn get_document_3_0() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(|| DOCUMENT_3_0.to_string());
    ([(http::header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

/// The complete OpenAPI 3.1 document.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let (_, api) = route_table().split_for_parts();
    complete::complete_document(serde_json::to_value(&api).unwrap_or_default())
});

/// The same in OpenAPI 3.0, without webhooks.
pub static DOCUMENT_3_0: LazyLock<Value> = LazyLock::new(|| three_zero::convert(&DOCUMENT));

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Map;

    use super::*;

    #[test]
    fn openapi_operation_ids_are_unique() {
        let api = &*DOCUMENT;
        assert_eq!(api["openapi"], "3.1.0");
        let paths = api["paths"].as_object().unwrap();
        let operations: Vec<&Value> =
            paths.values().flat_map(|path| path.as_object().unwrap().values()).collect();
        let ids: BTreeSet<&str> =
            operations.iter().map(|operation| operation["operationId"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), operations.len(), "{ids:?}");
        for id in ["listConversations", "decideApproval", "createPrompt", "streamEvents"] {
            assert!(ids.contains(id), "{id} is missing in {ids:?}");
        }
        let shapes = &api["components"]["schemas"];
        assert!(shapes["ApprovalView"]["properties"]["toolCallId"].is_object());
        assert!(shapes["Prompt"]["properties"]["stopReason"].is_object());
        assert!(shapes["Settings"]["properties"]["loop"].is_object());
        assert_eq!(
            shapes["PromptRequest"]["properties"]["input"]["$ref"],
            "#/components/schemas/Content"
        );
    }

    #[test]
    fn openapi_shapes_complete_existing_members() {
        let shapes: Value = serde_json::from_str(include_str!("openapi/shapes.json")).unwrap();
        let mut missing = Vec::new();
        let schemas = ["properties", "bounds"].map(|part| shapes[part].as_object().unwrap());
        for (schema, members) in schemas.into_iter().flatten() {
            let described = &DOCUMENT["components"]["schemas"][schema]["properties"];
            for name in members.as_object().unwrap().keys() {
                if !described[name].is_object() {
                    missing.push(format!("{schema}.{name}"));
                }
            }
        }
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn openapi_references_resolve() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(members) => {
                    found.extend(members.get("$ref").and_then(Value::as_str));
                    members.values().for_each(|value| references(value, found));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, found)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let mut found = Vec::new();
        references(&DOCUMENT, &mut found);
        assert!(found.len() > 100, "{}", found.len());
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(DOCUMENT.pointer(pointer).is_some(), "{reference}");
        }
    }

    /// Calls `visit` with each object of the document and its place.
    fn visit_objects(value: &Value, at: &str, visit: &mut impl FnMut(&Map<String, Value>, &str)) {
        match value {
            Value::Object(members) => {
                visit(members, at);
                for (name, value) in members {
                    visit_objects(value, &format!("{at}/{name}"), visit);
                }
            }
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    visit_objects(value, &format!("{at}/{index}"), visit);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn openapi_schemas_suit_generators() {
        let mut mistakes = Vec::new();
        visit_objects(&DOCUMENT, "", &mut |object, at| {
            if object.get("default") == Some(&Value::Null) {
                mistakes.push(format!("{at} has the default null"));
            }
            if object.get("format") == Some(&Value::from("int64")) {
                mistakes.push(format!("{at} is an int64"));
            }
            let kind = object.get("type").map(Value::to_string).unwrap_or_default();
            let has_members =
                object.contains_key("properties") || object.contains_key("additionalProperties");
            if kind.contains("\"object\"") && !has_members {
                mistakes.push(format!("{at} is an object without members"));
            }
        });
        assert_eq!(mistakes, [""; 0]);
    }

    /// Operations have the members that OpenAPI requires, and those that linters require.
    #[test]
    fn openapi_operations_are_complete() {
        let mut mistakes = Vec::new();
        let has_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        for (path, methods) in DOCUMENT["paths"].as_object().unwrap() {
            let named: BTreeSet<&str> = path.split(['{', '}']).skip(1).step_by(2).collect();
            for (method, operation) in methods.as_object().unwrap() {
                let name = format!("{method} {path}");
                for (status, response) in operation["responses"].as_object().unwrap() {
                    if response["$ref"].is_null() && !has_text(&response["description"]) {
                        mistakes.push(format!("{name} {status} has no description"));
                    }
                }
                if !has_text(&operation["summary"]) {
                    mistakes.push(format!("{name} has no summary"));
                }
                let mut of_path = BTreeSet::new();
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    if parameter["in"] == "path" {
                        of_path.insert(parameter["name"].as_str().unwrap());
                    }
                    let is_valid = parameter["schema"].is_object()
                        && (parameter["in"] != "path" || parameter["required"] == true);
                    if !is_valid {
                        mistakes.push(format!("{name} {parameter} is incomplete"));
                    }
                }
                if of_path != named {
                    mistakes.push(format!("{name} describes the parameters {of_path:?}"));
                }
            }
        }
        for (name, response) in DOCUMENT["components"]["responses"].as_object().unwrap() {
            if !has_text(&response["description"]) {
                mistakes.push(format!("{name} has no description"));
            }
        }
        assert_eq!(mistakes, [""; 0]);
    }

    /// Changes references to definitions of the same schema, and appends their names to `found`.
    fn adapt_references(schema: &mut Value, found: &mut Vec<String>) {
        match schema {
            Value::Object(members) => {
                // A word of OpenAPI; the one value of each `type` distinguishes them.
                members.remove("discriminator");
                if let Some(Value::String(reference)) = members.get_mut("$ref")
                    && let Some(name) = reference.strip_prefix("#/components/schemas/")
                {
                    found.push(name.to_owned());
                    *reference = format!("#/$defs/{name}");
                }
                for value in members.values_mut() {
                    adapt_references(value, found);
                }
            }
            Value::Array(values) => {
                for value in values {
                    adapt_references(value, found);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// The schema of a message of `agent-prompts`, without the other parts of the document.
    fn prompt_message_schema() -> Value {
        let schemas = DOCUMENT["components"]["schemas"].as_object().unwrap();
        let mut definitions = Map::new();
        let mut open = vec!["PromptMessage".to_owned()];
        while let Some(name) = open.pop() {
            if definitions.contains_key(&name) {
                continue;
            }
            let mut schema = schemas[&name].clone();
            adapt_references(&mut schema, &mut open);
            definitions.insert(name, schema);
        }
        let Some(Value::Object(mut root)) = definitions.remove("PromptMessage") else {
            panic!("the document has no PromptMessage");
        };
        root.insert("$schema".to_owned(), "https://json-schema.org/draft/2020-12/schema".into());
        root.insert("title".to_owned(), "Message of the queue agent-prompts".into());
        root.insert("$defs".to_owned(), Value::Object(definitions));
        Value::Object(root)
    }

    #[test]
    fn schema_file_of_queue_messages_matches_type() {
        let file = include_str!("../../../docs/agent-prompts.schema.json");
        let expected = serde_json::to_string_pretty(&prompt_message_schema()).unwrap() + "\n";
        assert!(file == expected, "docs/agent-prompts.schema.json must be:\n{expected}");
    }

    #[test]
    fn openapi_bodies_of_bytes_are_binary() {
        let mut count = 0;
        visit_objects(&DOCUMENT, "", &mut |object, at| {
            let is_binary = |kind: &str| matches!(kind, "application/octet-stream" | "*/*");
            for (kind, body) in object.iter().filter(|(kind, _)| is_binary(kind)) {
                let schema = serde_json::json!({"type": "string", "format": "binary"});
                assert_eq!(body["schema"], schema, "{at} {kind}");
                count += 1;
            }
        });
        assert_eq!(count, 3);
    }

    /// Every response to an input has the same type: its members are those of a prompt and those of
    /// an accepted input.
    #[test]
    fn openapi_responses_to_inputs_have_one_schema() {
        let schema = serde_json::json!({"$ref": "#/components/schemas/PromptResponse"});
        for path in [
            "/api/prompts",
            "/api/conversations/{id}/prompts",
            "/api/conversations/{id}/prompts/import",
            "/api/conversations/{id}/continue",
        ] {
            for status in ["200", "202"] {
                let response = &DOCUMENT["paths"][path]["post"]["responses"][status];
                assert_eq!(response["content"]["application/json"]["schema"], schema, "{path}");
            }
        }
        let response = &DOCUMENT["components"]["schemas"]["PromptResponse"];
        assert_eq!(response["required"], serde_json::json!(["conversationId"]));
        for name in ["promptId", "inputId", "disposition", "state", "output", "commandOutput"] {
            assert!(response["properties"][name].is_object(), "{name}: {response}");
        }
        for (name, values) in
            [("InputHandled", ["handled", "waiting"]), ("MessageAccepted", ["started", "queued"])]
        {
            let disposition = &DOCUMENT["components"]["schemas"][name]["properties"]["disposition"];
            assert_eq!(disposition["x-extensible-enum"], serde_json::json!(values), "{name}");
        }
    }

    /// Clients follow what a request started from there.
    #[test]
    fn openapi_accepted_requests_have_a_position() {
        let mut count = 0;
        for (path, methods) in DOCUMENT["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                let response = &operation["responses"]["202"];
                let Some(schema) = response.pointer("/content/application~1json/schema/$ref")
                else {
                    assert!(response.is_null(), "{path}: {response}");
                    continue;
                };
                let schema = schema.as_str().unwrap().trim_start_matches('#');
                let members = &DOCUMENT.pointer(schema).unwrap()["properties"];
                assert!(members["lastEventId"].is_object(), "{path}: {members}");
                count += 1;
            }
        }
        assert!(count > 10, "{count}");
    }

    /// The names in a cell, if it has nothing else.
    fn names(cell: &str) -> Option<Vec<&str>> {
        let is_one = |name: &&str| !name.contains('`');
        let names = cell.split(", ");
        names.map(|name| name.strip_prefix('`')?.strip_suffix('`').filter(is_one)).collect()
    }

    /// Clients need not check whether an event has a member that docs/events.md lists without `?`.
    #[test]
    fn openapi_events_require_their_documented_members() {
        let kinds = &DOCUMENT["components"]["schemas"]["Event"]["discriminator"]["mapping"];
        let (mut optional, mut count) = (Vec::new(), 0);
        for row in include_str!("../../../docs/events.md").lines() {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let events = cells.get(1).and_then(|cell| names(cell)).unwrap_or_default();
            let members = cells.iter().skip(2).find_map(|cell| names(cell)).unwrap_or_default();
            for event in events {
                let Some(reference) = kinds[event].as_str() else { continue };
                let schema = DOCUMENT.pointer(reference.trim_start_matches('#')).unwrap();
                let required = schema["required"].as_array().unwrap();
                for member in members.iter().filter(|member| !member.ends_with('?')) {
                    count += 1;
                    if !required.iter().any(|name| name == member) {
                        optional.push(format!("{event}.{member}"));
                    }
                }
            }
        }
        assert_eq!(optional, [""; 0]);
        assert!(count > 40, "{count}");
    }

    /// An entry of a newer version may be unreadable: its event has no members of it.
    #[test]
    fn openapi_prompt_created_requires_no_member_of_its_entry() {
        let schema = &DOCUMENT["components"]["schemas"]["PromptCreatedEvent"];
        assert_eq!(schema["required"], serde_json::json!(["type", "promptId", "turn", "at"]));
        assert!(schema["properties"]["source"].is_object());
    }

    #[test]
    fn openapi_operations_list_problems_and_credentials() {
        let operation = |path: &str, method: &str| &DOCUMENT["paths"][path][method];
        let prompts = operation("/api/conversations/{id}/prompts", "post");
        for status in ["400", "401", "403", "404", "409", "413", "415", "422", "429", "503"] {
            assert!(prompts["responses"][status].is_object(), "{status}: {prompts}");
        }
        assert!(operation("/api/conversations/{id}", "patch")["responses"]["412"].is_object());
        let decide = operation("/api/conversations/{id}/approvals/{approvalId}", "post");
        let names = decide["parameters"].as_array().unwrap().iter();
        assert!(names.clone().all(|parameter| parameter["name"] != "Idempotency-Key"));
        for open in ["/api/health", "/api/approvals/{token}", "/api/openapi-3.0.json"] {
            assert_eq!(operation(open, "get")["security"], serde_json::json!([]), "{open}");
        }
        assert!(DOCUMENT["security"].as_array().unwrap().len() >= 3);
    }
}
