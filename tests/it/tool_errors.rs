//! Model requests after failed and unexecuted calls, by loop, through the whole service.

use serde_json::{Value, json};
use turnwheel::App;

use crate::support::fake_model::{Call, FakeModel, ResponseScript, ScriptedResponse};
use crate::support::service::Service;
use crate::support::tools::{Boom, Echo, Runs};

const HTTP_TOOL: &str = r"
  - http:
      name: look_up
      parameters: { type: object, required: [q], additionalProperties: false, properties: { q: { type: string } } }
      strict: true
      url: https://search.example/{q}";

/// Runs the script in a new conversation. Returns the model requests, the tool results, and the
/// number of tool runs.
async fn run_script(script: ResponseScript, loop_kind: &str) -> (Vec<Value>, Vec<Value>, usize) {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    let file =
        format!("---\nloop: {loop_kind}\ntools:\n  - echo\n  - boom{HTTP_TOOL}\n---\nHelp.\n");
    std::fs::write(agents.join("helper.agent.md"), file).unwrap();
    let model = FakeModel::start([
        ScriptedResponse::Response(script),
        ScriptedResponse::Response(ResponseScript::text("done")),
    ])
    .await;
    let settings = [
        ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
        ("AZURE_OPENAI_API_KEY", "a-key"),
        ("TURNWHEEL_MODEL", "gpt-5-mini"),
    ];
    let runs = Runs::default();
    let app = App::new().tool(Echo(Runs::clone(&runs))).tool(Boom(Runs::clone(&runs)));
    let service = Service::start(app, folder.path(), &settings).await;
    let (status, accepted) = service.post("/api/prompts", &json!({"input": "go"})).await;
    assert_eq!(status, 202, "{accepted}");
    let conversation = accepted["conversationId"].as_str().unwrap();
    let prompt =
        service.wait_for_prompt(conversation, accepted["promptId"].as_str().unwrap()).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    let messages = service.get(&format!("/api/conversations/{conversation}/messages")).await;
    let results =
        messages["items"].as_array().unwrap().iter().filter(|it| it["role"] == "toolResult");
    let results = results.cloned().collect();
    service.stop().await;
    let ran = runs.lock().unwrap().len();
    (model.request_bodies(), results, ran)
}

fn call_outputs(request: &Value) -> Vec<String> {
    let items = request["input"].as_array().unwrap().iter();
    let outputs = items.filter(|item| item["type"] == "function_call_output");
    outputs.map(|item| item["output"].as_str().unwrap().to_owned()).collect()
}

fn script_with_calls(calls: &[(&str, Value)], stop: Option<&str>) -> ResponseScript {
    let calls = calls.iter().enumerate().map(|(number, (name, arguments))| Call {
        id: format!("c{number}"),
        name: (*name).to_owned(),
        arguments: arguments.clone(),
    });
    ResponseScript {
        calls: calls.collect(),
        stop: stop.map(ToOwned::to_owned),
        ..ResponseScript::default()
    }
}

#[tokio::test]
async fn error_text_of_failed_calls_depends_on_loop() {
    let failing = || {
        script_with_calls(&[("boom", json!({})), ("echo", json!({})), ("nosuch", json!({}))], None)
    };
    let (requests, results, _) = run_script(failing(), "prompt").await;
    let sent = call_outputs(&requests[1]);
    assert_eq!(sent[0], r#""Error in tool \"boom\": kaboom""#);
    let invalid: String = serde_json::from_str(&sent[1]).unwrap();
    assert!(invalid.starts_with("Error in tool \"echo\": Validation failed for tool"), "{invalid}");
    assert_eq!(sent[2], r#""Tool \"nosuch\" not found. Available tools: echo, boom, look_up""#);
    assert!(results.iter().all(|result| result["details"] == json!({})), "{results:?}");
    assert_eq!(results[0]["content"][0]["text"], "Error in tool \"boom\": kaboom");

    let (requests, _, _) = run_script(failing(), "agent").await;
    let sent = call_outputs(&requests[1]);
    assert_eq!((sent[0].as_str(), sent[2].as_str()), ("kaboom", "Tool nosuch not found"));
    assert!(sent[1].starts_with("Validation failed for tool \"echo\":"), "{}", sent[1]);
}

#[tokio::test]
async fn calls_of_truncated_response_are_not_executed() {
    let cut =
        script_with_calls(&[("echo", json!({"value": "x"})), ("boom", json!({}))], Some("length"));
    let (requests, results, ran) = run_script(cut, "agent").await;
    let text = |name: &str| {
        format!(
            "Tool call \"{name}\" was not executed: the response hit the output token limit, so its arguments may be truncated. Re-issue the tool call with complete arguments."
        )
    };
    assert_eq!(call_outputs(&requests[1]), [text("echo"), text("boom")]);
    assert!(
        results.iter().all(|result| result["isError"] == true && result["details"] == json!({}))
    );
    assert_eq!(ran, 0);
}

#[tokio::test]
async fn strict_flag_is_sent_per_tool() {
    let (requests, _, _) =
        run_script(script_with_calls(&[("echo", json!({"value": "x"}))], None), "agent").await;
    let tools = requests[0]["tools"].as_array().unwrap().iter();
    let strict: Vec<_> =
        tools.map(|tool| (tool["name"].as_str().unwrap(), &tool["strict"])).collect();
    assert_eq!(
        strict,
        [("echo", &json!(false)), ("boom", &json!(false)), ("look_up", &json!(true))]
    );
}

#[tokio::test]
async fn deeply_nested_arguments_are_refused() {
    let deep = (0..200).fold(json!("x"), |inner, _| json!([inner]));
    let call = script_with_calls(&[("echo", json!({"value": deep}))], None);
    let (requests, results, ran) = run_script(call, "agent").await;
    assert_eq!(
        call_outputs(&requests[1]),
        [
            "Invalid JSON in arguments for tool \"echo\": the JSON nests over 96 levels. Send one complete JSON object."
        ]
    );
    assert_eq!((&results[0]["isError"], ran), (&json!(true), 0));
}
