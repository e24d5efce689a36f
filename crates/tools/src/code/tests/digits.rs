//! Numbers of arguments: tools get each digit, and no float rounds one.

use serde_json::value::RawValue;

use super::*;

fn arguments_with(tool: &dyn CallableTool, text: &str) -> Arguments {
    validate(tool.definition(), &RawJson::from_text(text).unwrap()).unwrap()
}

#[tokio::test]
async fn number_that_a_float_would_round_reaches_no_tool() {
    let env = TestEnv::new();
    let tool = build_code_tool(PaymentTool).unwrap();
    let (key, effect_id) = (env.context().artifact_scope.key, env.context().effect_id);
    let context = CheckContext {
        effect_id: &effect_id,
        attempts: 0,
        now: env.context().clock.now(),
        conversation: &key,
        memory: None,
        user_skills: None,
    };
    for amount in ["100.00000000000000000001", "9007199254740993", "1e-400"] {
        let text = format!(r#"{{"to": "a", "amount": {amount}}}"#);
        let arguments = arguments_with(&*tool, &text);
        let problem = format!(
            "Validation failed for tool \"payment.send\": a float would round {amount}: send at most 15 digits if that is the value meant; otherwise the type must be a string or an integer (at /amount)"
        );
        let checked = tool.check_arguments(&arguments, &context).await;
        assert_eq!(checked, Err(problem.clone()));
        assert_eq!(tool.required_approval(&arguments), None, "the call has ended before");
        let outcome = tool.call(arguments, env.context()).await;
        assert_eq!(outcome, ToolOutcome::Returned(ToolResult::error(problem)));
    }
    assert!(env.progress_reports.lock().unwrap().is_empty(), "nothing is sent");
    let exact = arguments_with(&*tool, r#"{"to": "a", "amount": 100.10}"#);
    assert_eq!(tool.check_arguments(&exact, &context).await, Ok(()));
    assert_eq!(tool.required_approval(&exact).unwrap().reason, "Sending 100.1 to a");
}

/// A tool whose approval and result have the digits of its arguments.
struct DigitsTool;

#[derive(Deserialize, JsonSchema)]
struct Digits {
    id: u64,
    #[schemars(with = "f64")]
    amount: Box<RawValue>,
}

impl Tool for DigitsTool {
    type Args = Digits;

    fn name(&self) -> &'static str {
        "digits"
    }

    fn description(&self) -> &'static str {
        "Returns digits."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval(&self, args: &Digits) -> Option<Approval> {
        Some(Approval::because(format!("{} {}", args.id, args.amount)))
    }

    async fn call(&self, args: Digits, _cx: CallContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(format!("{} {}", args.id, args.amount)))
    }
}

#[tokio::test]
async fn exact_types_of_a_tool_get_each_digit() {
    let tool = build_code_tool(DigitsTool).unwrap();
    for (id, amount) in [
        ("18446744073709551615", "100.00000000000000000001"),
        ("9007199254740993", "12345678901234567890123"),
        ("1", "1.10"),
    ] {
        let arguments = arguments_with(&*tool, &format!(r#"{{"id": {id}, "amount": {amount}}}"#));
        let expected = format!("{id} {amount}");
        assert_eq!(tool.required_approval(&arguments).unwrap().reason, expected);
        let outcome = tool.call(arguments, TestEnv::new().context()).await;
        assert_eq!(outcome, ToolOutcome::Returned(ToolResult::text(expected)));
    }
}
