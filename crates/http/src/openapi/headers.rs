//! Headers of responses in the OpenAPI document, by rules that hold for all operations.

use serde_json::{Map, Value, json};

use crate::openapi::document::{APPROVAL_PATHS, LINK_PATH};

const CONTENT_SECURITY: (&str, &str) =
    ("Content-Security-Policy", "Forbids browsers to run scripts of the content.");
const REFERRER: (&str, &str) =
    ("Referrer-Policy", "`no-referrer`, if the response has a link that is a credential.");

/// Declares the headers of an operation's successful responses.
pub(super) fn add_response_headers(path: &str, method: &str, operation: &mut Map<String, Value>) {
    let parameters = operation.get("parameters").and_then(Value::as_array);
    let has_parameter = |name: &str| {
        parameters
            .into_iter()
            .flatten()
            .any(|parameter| parameter.get("name") == Some(&json!(name)))
    };
    // The same decision again gets the same response, without a key.
    let is_decision = method == "post" && APPROVAL_PATHS.contains(&path);
    let is_repeatable = is_decision || has_parameter("Idempotency-Key");
    let is_list = method == "get" && has_parameter("continuation");
    let is_file = method == "get" && path.ends_with("/artifacts/{artifactId}");
    let is_export = path.ends_with("/export");
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    let has_location =
        responses.values().any(|response| response.pointer("/headers/Location").is_some());
    let successes = responses.iter_mut().filter(|(status, _)| status.starts_with('2'));
    for (status, response) in
        successes.filter_map(|(status, response)| Some((status, response.as_object_mut()?)))
    {
        let rules = [
            (
                "Idempotency-Replayed",
                is_repeatable,
                "`true`: the response to an earlier request with the key.",
            ),
            ("Location", has_location, "Path of the resource."),
            ("Link", is_list, "`rel=\"next\"`: the next page."),
            ("ETag", is_file, "Version of the content."),
            ("Accept-Ranges", is_file, "`bytes`"),
            ("Content-Range", is_file && status == "206", "The range of bytes."),
            ("Content-Disposition", is_file || is_export, "`attachment` with the file name."),
            (CONTENT_SECURITY.0, is_export, CONTENT_SECURITY.1),
            (REFERRER.0, is_file && status == "200", REFERRER.1),
        ];
        for (name, _, description) in rules.into_iter().filter(|(_, applies, _)| *applies) {
            add_header(response, name, description);
        }
        if path == LINK_PATH {
            add_security_headers(response);
        }
    }
}

/// Declares the headers of all responses to approval links.
pub(super) fn add_security_headers(response: &mut Map<String, Value>) {
    for (name, description) in [CONTENT_SECURITY, REFERRER] {
        add_header(response, name, description);
    }
}

fn add_header(response: &mut Map<String, Value>, name: &str, description: &str) {
    let headers = response.entry("headers").or_insert_with(|| json!({}));
    let Some(headers) = headers.as_object_mut() else { return };
    let header = || json!({"description": description, "schema": {"type": "string"}});
    headers.entry(name).or_insert_with(header);
}
