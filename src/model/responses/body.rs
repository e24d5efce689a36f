//! The request's body: one stateless call, nothing kept by the service.

use serde_json::{Map, Value, json};

use crate::model::responses::effort::{effort, takes_parallel_calls};
use crate::model::responses::ids::{WIRE_ID_MAX, plain};
use crate::model::responses::input::plan_input;
use crate::model::responses::names::Names;
use crate::model::{ModelRequest, ToolOffer};

pub fn request_body(request: &ModelRequest<'_>, names: &Names) -> Value {
    let model = request.model;
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("model", Value::from(model.deployment_name.as_str()));
    set("input", Value::Array(plan_input(request, names)));
    set("stream", Value::Bool(true));
    // With `true`, ids of earlier items are looked up in a store that forgets.
    set("store", Value::Bool(false));
    set("max_output_tokens", Value::from(model.output_max(request.max_output_tokens)));
    if !request.session_id.is_empty() {
        set("prompt_cache_key", Value::from(cache_key(request.session_id)));
    }
    let mut effort_sent = None;
    if model.reasoning {
        set("include", json!(["reasoning.encrypted_content"]));
        effort_sent = effort(&model.id, request.thinking);
        match effort_sent {
            None => {}
            Some("none") => {
                set("reasoning", json!({ "effort": "none" }));
            }
            Some(effort) => {
                set("reasoning", json!({ "effort": effort, "summary": "auto" }));
            }
        }
    } else if let Some(temperature) = request.temperature {
        // Reasoning models refuse it.
        set("temperature", Value::from(temperature));
    }
    if !request.tools.is_empty() {
        set(
            "tools",
            Value::Array(request.tools.iter().map(|tool| wire_tool(tool, names)).collect()),
        );
        set("tool_choice", Value::from("auto"));
        set("parallel_tool_calls", Value::Bool(takes_parallel_calls(effort_sent)));
    }
    if let Some(schema) = request.response_schema {
        // Not strict: that takes a part of JSON Schema only. The core holds the answer against the whole schema.
        set(
            "text",
            json!({ "format": { "type": "json_schema", "name": "answer", "schema": schema, "strict": false } }),
        );
    }
    Value::Object(body)
}

/// `strict` is always said: left out, the service makes every schema strict.
fn wire_tool(tool: &ToolOffer, names: &Names) -> Value {
    let mut parameters = match &tool.parameters {
        Value::Object(schema) => schema.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    };
    // An object schema without them is refused.
    parameters.entry("type").or_insert_with(|| Value::from("object"));
    if parameters.get("type").and_then(Value::as_str) == Some("object") {
        parameters.entry("properties").or_insert_with(|| json!({}));
    }
    json!({
        "type": "function",
        "name": names.wire(&tool.name),
        "description": tool.description,
        "parameters": parameters,
        "strict": tool.strict,
    })
}

fn cache_key(session_id: &str) -> String {
    if session_id.len() <= WIRE_ID_MAX { session_id.to_owned() } else { plain(session_id) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::settings::ThinkingLevel;
    use crate::model::catalogue::Catalogue;

    fn body<'a>(model: &str, change: impl FnOnce(&mut ModelRequest<'a>)) -> Value {
        let mut request = ModelRequest {
            model: Box::leak(Box::new(Catalogue::default().record(model, "my-deployment"))),
            system: None,
            messages: &[],
            tools: &[],
            thinking: ThinkingLevel::Off,
            temperature: Some(0.5),
            max_output_tokens: None,
            response_schema: None,
            session_id: "conv-1",
            traceparent: None,
        };
        change(&mut request);
        request_body(&request, &Names::new(request.tools))
    }

    #[test]
    fn a_reasoning_model_gets_effort_and_no_temperature() {
        let body = body("gpt-5.1", |request| request.thinking = ThinkingLevel::High);
        assert_eq!(
            body,
            json!({
                "model": "my-deployment", "input": [], "stream": true, "store": false, "max_output_tokens": 32_000,
                "prompt_cache_key": "conv-1", "include": ["reasoning.encrypted_content"],
                "reasoning": { "effort": "high", "summary": "auto" },
            })
        );
    }

    #[test]
    fn a_model_without_reasoning_gets_temperature_and_no_effort() {
        let body = body("gpt-4o", |request| request.thinking = ThinkingLevel::High);
        assert_eq!(
            body,
            json!({
                "model": "my-deployment", "input": [], "stream": true, "store": false, "max_output_tokens": 16_384,
                "prompt_cache_key": "conv-1", "temperature": 0.5,
            })
        );
    }

    #[test]
    fn off_is_no_reasoning() {
        assert_eq!(body("gpt-5.1", |_| {})["reasoning"], json!({ "effort": "none" }));
        assert_eq!(body("gpt-5", |_| {}).get("reasoning"), None);
        assert_eq!(body("gpt-5", |_| {})["include"], json!(["reasoning.encrypted_content"]));
    }

    #[test]
    fn the_output_limit_stays_within_what_the_service_and_the_model_take() {
        for (asked, sent) in
            [(Some(1), 16), (Some(500), 500), (Some(1_000_000), 128_000), (None, 32_000)]
        {
            assert_eq!(
                body("gpt-5", |request| request.max_output_tokens = asked)["max_output_tokens"],
                json!(sent)
            );
        }
    }

    #[test]
    fn a_long_session_id_is_still_one_cache_key() {
        let long = "c".repeat(128);
        let body = body("gpt-5", |request| request.session_id = &long);
        assert_eq!(body["prompt_cache_key"].as_str().unwrap().len(), 64);
    }

    #[test]
    fn tools_have_wire_names_and_say_whether_they_are_strict() {
        let tools = [ToolOffer {
            name: "payment.send".to_owned(),
            description: "Sends.".to_owned(),
            parameters: json!({ "type": "object" }),
            strict: false,
        }];
        let asked = |thinking| {
            body("gpt-5", |request| {
                request.tools = &tools;
                request.thinking = thinking;
            })
        };
        let sent = asked(ThinkingLevel::Low);
        assert_eq!(
            sent["tools"],
            json!([{
                "type": "function", "name": "payment_send", "description": "Sends.",
                "parameters": { "type": "object", "properties": {} }, "strict": false,
            }])
        );
        assert_eq!(
            (&sent["tool_choice"], &sent["parallel_tool_calls"]),
            (&json!("auto"), &json!(true))
        );
        assert_eq!(asked(ThinkingLevel::Minimal)["parallel_tool_calls"], json!(false));
    }

    #[test]
    fn an_answers_schema_is_its_format() {
        let schema = json!({ "type": "object" });
        let body = body("gpt-4o", |request| request.response_schema = Some(&schema));
        assert_eq!(body["text"]["format"]["schema"], schema);
        assert_eq!(body["text"]["format"]["strict"], json!(false));
    }
}
