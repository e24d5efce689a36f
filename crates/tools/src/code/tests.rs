//! Tests of tools in Rust: declaration, approvals, outcomes, outputs and injected services.

mod digits;

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::test_env::TestEnv;
use crate::validate::validate;
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::entry::Output;
use turnwheel_json::raw::RawJson;

/// A payment tool that requires an approval above 100.
struct PaymentTool;

#[derive(Deserialize, JsonSchema)]
struct Payment {
    /// The payee
    to: String,
    amount: f64,
}

impl Tool for PaymentTool {
    type Args = Payment;

    fn name(&self) -> &'static str {
        "payment.send"
    }

    fn description(&self) -> &'static str {
        "Sends money."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, args: &Payment) -> Option<Approval> {
        assert!(args.amount.is_sign_positive(), "this rule panics for negative amounts");
        (args.amount > 100.0).then(|| {
            Approval::because(format!("Sending {} to {}", args.amount, args.to))
                .by(["role:finance"])
                .not_by_requester()
                .within(Duration::from_hours(1))
        })
    }

    async fn call(&self, args: Payment, cx: CallContext) -> Result<ToolResult, ToolError> {
        match args.to.as_str() {
            "closed" => Err(ToolError::failed("the account is closed")),
            "timeout" => Err(ToolError::unknown("the bank did not respond")),
            "number" => {
                let _: u32 = "x".parse()?;
                Ok(ToolResult::default())
            }
            to => {
                cx.progress(&ToolResult::text("sending"));
                let receipt = format!("{} {} to {to}", cx.effect_id(), args.amount);
                cx.workspace().write("receipts/last.txt", receipt).await?;
                let written = cx.workspace().read("receipts/last.txt").await?;
                cx.add_file("receipt.txt", "text/plain", written).await?;
                cx.display_widget("receipt", &json!({"amount": args.amount}), "Paid.");
                cx.display_output(&json!({"type": "citation", "url": "https://bank"}))?;
                Ok(ToolResult::json(&json!({"paid": args.amount})))
            }
        }
    }
}

fn required_approval(args: &Value) -> Option<ApprovalRequirement> {
    let tool = build_code_tool(PaymentTool).unwrap();
    tool.required_approval(&validate(tool.definition(), &RawJson::from_value(args)).unwrap())
}

#[test]
fn tool_parameters_come_from_its_types() {
    let tool = build_code_tool(PaymentTool).unwrap();
    let definition = tool.definition();
    assert_eq!(
        definition.parameters,
        json!({
            "type": "object",
            "properties": {
                "to": {"type": "string", "description": "The payee"},
                "amount": {"type": "number", "format": "double"},
            },
            "required": ["to", "amount"],
        })
    );
    assert_eq!((definition.label.as_str(), definition.effect), ("payment.send", Effect::Write));
    assert_eq!(build_code_tool(PaymentTool).unwrap().definition().revision, definition.revision);
}

#[test]
fn approval_depends_on_the_arguments() {
    assert_eq!(required_approval(&json!({"to": "a", "amount": 100})), None);
    let requirement = required_approval(&json!({"to": "a", "amount": "101"})).unwrap();
    assert_eq!(requirement.reason, "Sending 101 to a");
    assert_eq!(requirement.approvers, ["role:finance"]);
    assert!(
        requirement.is_requester_excluded && requirement.expires_after == Duration::from_hours(1)
    );
    let none: [&str; 0] = [];
    assert_eq!(Approval::because("x").by(none).0.approvers, ["owner"]);
}

#[test]
fn panicking_approval_rule_requires_an_approval() {
    let requirement = required_approval(&json!({"to": "a", "amount": -1})).unwrap();
    assert_eq!(requirement.approvers, ["owner"]);
}

#[tokio::test]
async fn call_outputs_are_added_to_its_result() {
    let mut env = TestEnv::new();
    let tool = build_code_tool(PaymentTool).unwrap();
    let ToolOutcome::Returned(result) =
        env.call_tool(&*tool, &json!({"to": "a", "amount": 5})).await
    else {
        panic!("the call returns a result")
    };
    let text = joined_text(&result.content);
    let note = text.strip_prefix(r#"{"paid":5.0}"#).unwrap();
    assert!(note.contains("use read with path=\".turnwheel/outputs/"), "{note}");
    assert_eq!(result.structured.unwrap().to_value(), json!({"paid": 5.0}));
    assert!(
        matches!(&result.outputs[..], [Output::File(_), Output::Widget(_), Output::Other(_)]),
        "{:?}",
        result.outputs
    );
    assert_eq!(env.read_file("receipts/last.txt").await, "tw_c_0a1b2c3d_0_0 5 to a");
    assert_eq!(*env.progress_reports.lock().unwrap(), [ToolResult::text("sending")]);
}

#[tokio::test]
async fn failed_and_unknown_outcomes_are_distinct() {
    let mut env = TestEnv::new();
    let tool = build_code_tool(PaymentTool).unwrap();
    let mut outcome = async |to: &str| env.call_tool(&*tool, &json!({"to": to, "amount": 5})).await;
    assert_eq!(outcome("closed").await, ToolOutcome::Failed("the account is closed".to_owned()));
    assert_eq!(
        outcome("number").await,
        ToolOutcome::Failed("invalid digit found in string".to_owned())
    );
    assert_eq!(
        outcome("timeout").await,
        ToolOutcome::Unknown { reason: "the bank did not respond".to_owned() }
    );
    assert!(env.files.is_empty());
}

#[tokio::test]
async fn artifact_store_failure_includes_its_cause() {
    let mut env = TestEnv::new();
    env.artifacts.is_down.store(true, std::sync::atomic::Ordering::SeqCst);
    let outcome = env
        .call_tool(&*build_code_tool(PaymentTool).unwrap(), &json!({"to": "a", "amount": 5}))
        .await;
    let text = "the artifact store is unavailable: down";
    assert_eq!(outcome, ToolOutcome::Failed(text.to_owned()));
}

/// A tool that moves its context to another task, like a long computation.
struct LeakyTool(Arc<OnceLock<CallContext>>);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for LeakyTool {
    type Args = Nothing;

    fn name(&self) -> &'static str {
        "leaky"
    }

    fn description(&self) -> &'static str {
        "Never answers."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, _args: Nothing, cx: CallContext) -> Result<ToolResult, ToolError> {
        assert!(!cx.is_cancelled());
        let _ = self.0.set(cx);
        std::future::pending().await
    }
}

#[tokio::test]
async fn moved_work_observes_the_end_of_its_call() {
    let leaked = Arc::new(OnceLock::new());
    let tool = build_code_tool(LeakyTool(Arc::clone(&leaked))).unwrap();
    let arguments = validate(tool.definition(), &RawJson::from_value(&json!({}))).unwrap();
    let mut call = tool.call(arguments, TestEnv::new().context());
    assert!(futures_util::poll!(&mut call).is_pending());
    assert!(!leaked.get().unwrap().is_cancelled());
    drop(call);
    assert!(leaked.get().unwrap().is_cancelled());
    leaked.get().unwrap().cancelled().await;
    assert_eq!(leaked.get().unwrap().remaining(), Duration::from_mins(1));
    assert_eq!(leaked.get().unwrap().conversation().as_str(), "c");
}

/// A tool with a configurable declaration.
struct ConfigurableTool<A> {
    name: &'static str,
    timeout: Duration,
    revision: &'static str,
    args: PhantomData<fn() -> A>,
}

impl<A: JsonSchema + DeserializeOwned + Send + 'static> Tool for ConfigurableTool<A> {
    type Args = A;

    fn name(&self) -> &str {
        self.name
    }

    fn description(&self) -> &'static str {
        ""
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn revision(&self) -> &'static str {
        self.revision
    }

    async fn call(&self, _args: A, _cx: CallContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::default())
    }
}

fn build_tool<A: JsonSchema + DeserializeOwned + Send + 'static>(
    name: &'static str,
    seconds: u64,
    revision: &'static str,
) -> Result<Arc<dyn CallableTool>, String> {
    build_code_tool(ConfigurableTool {
        name,
        timeout: Duration::from_secs(seconds),
        revision,
        args: PhantomData::<fn() -> A>,
    })
}

#[test]
fn invalid_tool_declarations_are_rejected() {
    for (made, problem) in [
        (build_tool::<Nothing>("a b", 1, ""), "the tool name `a b` is not usable"),
        (build_tool::<Nothing>("", 1, ""), "the tool name `` is not usable"),
        (build_tool::<Nothing>("slow", 241, ""), "the tool `slow` has a time-out of 241s"),
        (build_tool::<Nothing>("quick", 0, ""), "the tool `quick` has a time-out of 0ns"),
        (build_tool::<String>("text", 1, ""), "the arguments of the tool `text` must be a struct"),
    ] {
        assert!(made.unwrap_err().starts_with(problem), "{problem}");
    }
}

#[test]
fn changed_tool_has_another_revision() {
    let revision =
        |made: Result<Arc<dyn CallableTool>, String>| made.unwrap().definition().revision.clone();
    let first = revision(build_tool::<Nothing>("a", 1, ""));
    assert_eq!(first, revision(build_tool::<Nothing>("a", 1, "")));
    assert_ne!(first, revision(build_tool::<Nothing>("a", 1, "2")));
    assert_ne!(first, revision(build_tool::<Payment>("a", 1, "")));
}

#[test]
fn tool_keeps_the_revision_that_open_approvals_have() {
    let revision = revision_of(&PaymentTool, &json!({"type": "object"}));
    assert_eq!(revision, "10c5b6533b153f15c4da947fbb14ecfb31232bf1a5db15c8f3f23f2d3af992d7");
}

/// A tool that returns a service of the app.
struct GreetingTool;

struct Greeting(String);

impl Tool for GreetingTool {
    type Args = Nothing;

    fn name(&self) -> &'static str {
        "greet"
    }

    fn description(&self) -> &'static str {
        "Greets."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, _args: Nothing, cx: CallContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(&cx.service::<Greeting>()?.0))
    }
}

#[tokio::test]
async fn app_service_is_found_by_type() {
    let services = ServiceRegistry::default();
    let tool = build_code_tool_with_services(GreetingTool, services.clone(), None).unwrap();
    let mut env = TestEnv::new();
    let ToolOutcome::Failed(missing) = env.call_tool(&*tool, &json!({})).await else {
        panic!("the call fails without the service")
    };
    assert!(missing.contains("register it with `App::service`"), "{missing}");
    services.add("another type").unwrap();
    services.add(Greeting("hello".to_owned())).unwrap();
    assert_eq!(
        env.call_tool(&*tool, &json!({})).await,
        ToolOutcome::Returned(ToolResult::text("hello"))
    );
    let twice = services.add(Greeting("again".to_owned())).unwrap_err();
    assert!(twice.contains("Greeting"), "{twice}");
}
