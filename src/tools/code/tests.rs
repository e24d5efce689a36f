//! Tests of tools in Rust: declaration, approvals, outcomes, outputs and injected services.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::agent::content::joined_text;
use crate::agent::entry::Output;
use crate::agent::raw::RawJson;
use crate::tools::testing::Desk;
use crate::tools::validate::validate;

/// A payment tool that requires an approval above 100.
struct Pay;

#[derive(Deserialize, JsonSchema)]
struct Payment {
    /// Who gets it
    to: String,
    amount: f64,
}

impl Tool for Pay {
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
                let seen = cx.workspace().read("receipts/last.txt").await?;
                cx.add_file("receipt.txt", "text/plain", seen).await?;
                cx.display_widget("receipt", &json!({"amount": args.amount}), "Paid.");
                Ok(ToolResult::json(&json!({"paid": args.amount})))
            }
        }
    }
}

fn ask(args: &Value) -> Option<Ask> {
    let tool = code_tool(Pay).unwrap();
    tool.ask(&validate(tool.definition(), &RawJson::of(args)).unwrap())
}

#[test]
fn a_tool_is_described_by_its_types() {
    let tool = code_tool(Pay).unwrap();
    let definition = tool.definition();
    assert_eq!(
        definition.parameters,
        json!({
            "type": "object",
            "properties": {
                "to": {"type": "string", "description": "Who gets it"},
                "amount": {"type": "number", "format": "double"},
            },
            "required": ["to", "amount"],
        })
    );
    assert_eq!((definition.label.as_str(), definition.effect), ("payment.send", Effect::Write));
    assert_eq!(code_tool(Pay).unwrap().definition().revision, definition.revision);
}

#[test]
fn a_person_is_asked_when_the_arguments_say_so() {
    assert_eq!(ask(&json!({"to": "a", "amount": 100})), None);
    let asked = ask(&json!({"to": "a", "amount": "101"})).unwrap();
    assert_eq!(asked.reason, "Sending 101 to a");
    assert_eq!(asked.approvers, ["role:finance"]);
    assert!(asked.not_requester && asked.expires_after == Duration::from_hours(1));
    let none: [&str; 0] = [];
    assert_eq!(Approval::because("x").by(none).0.approvers, ["owner"]);
}

#[test]
fn a_rule_that_panics_does_not_wave_the_call_through() {
    let asked = ask(&json!({"to": "a", "amount": -1})).unwrap();
    assert_eq!(asked.approvers, ["owner"]);
}

#[tokio::test]
async fn what_a_call_puts_out_comes_with_its_result() {
    let mut desk = Desk::new();
    let tool = code_tool(Pay).unwrap();
    let ToolOutcome::Returned(result) = desk.run(&*tool, &json!({"to": "a", "amount": 5})).await
    else {
        panic!("the call returns a result")
    };
    let text = joined_text(&result.content);
    let note = text.strip_prefix(r#"{"paid":5.0}"#).unwrap();
    assert!(note.contains("use read with path=\".turnwheel/outputs/"), "{note}");
    assert_eq!(result.structured.unwrap().value(), json!({"paid": 5.0}));
    assert!(
        matches!(&result.outputs[..], [Output::File(_), Output::Widget(_)]),
        "{:?}",
        result.outputs
    );
    assert_eq!(desk.bytes("receipts/last.txt").await, "tw_c_0a1b2c3d_0_0 5 to a");
    assert_eq!(*desk.told.lock().unwrap(), [ToolResult::text("sending")]);
}

#[tokio::test]
async fn failing_and_not_knowing_are_told_apart() {
    let mut desk = Desk::new();
    let tool = code_tool(Pay).unwrap();
    let mut outcome = async |to: &str| desk.run(&*tool, &json!({"to": to, "amount": 5})).await;
    assert_eq!(outcome("closed").await, ToolOutcome::Failed("the account is closed".to_owned()));
    assert_eq!(
        outcome("number").await,
        ToolOutcome::Failed("invalid digit found in string".to_owned())
    );
    assert_eq!(
        outcome("timeout").await,
        ToolOutcome::Unknown { reason: "the bank did not respond".to_owned() }
    );
    assert!(desk.files.is_empty());
}

#[tokio::test]
async fn a_store_that_fails_is_named_with_its_cause() {
    let mut desk = Desk::new();
    desk.shelves.is_down.store(true, std::sync::atomic::Ordering::SeqCst);
    let outcome = desk.run(&*code_tool(Pay).unwrap(), &json!({"to": "a", "amount": 5})).await;
    let text = "the artifact store is unavailable: down";
    assert_eq!(outcome, ToolOutcome::Failed(text.to_owned()));
}

/// A tool that moves its context to another task, like a long computation.
struct Leaky(Arc<OnceLock<CallContext>>);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Leaky {
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
async fn work_that_was_moved_away_learns_that_the_call_is_over() {
    let leaked = Arc::new(OnceLock::new());
    let tool = code_tool(Leaky(Arc::clone(&leaked))).unwrap();
    let arguments = validate(tool.definition(), &RawJson::of(&json!({}))).unwrap();
    let mut call = tool.call(arguments, Desk::new().context());
    assert!(futures_util::poll!(&mut call).is_pending());
    assert!(!leaked.get().unwrap().is_cancelled());
    drop(call);
    assert!(leaked.get().unwrap().is_cancelled());
    leaked.get().unwrap().cancelled().await;
    assert_eq!(leaked.get().unwrap().remaining(), Duration::from_mins(1));
    assert_eq!(leaked.get().unwrap().conversation().as_str(), "c");
}

/// A tool with a configurable declaration.
struct Odd<A> {
    name: &'static str,
    timeout: Duration,
    revision: &'static str,
    args: PhantomData<fn() -> A>,
}

impl<A: JsonSchema + DeserializeOwned + Send + 'static> Tool for Odd<A> {
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

fn odd<A: JsonSchema + DeserializeOwned + Send + 'static>(
    name: &'static str,
    seconds: u64,
    revision: &'static str,
) -> Result<Arc<dyn RunTool>, String> {
    code_tool(Odd {
        name,
        timeout: Duration::from_secs(seconds),
        revision,
        args: PhantomData::<fn() -> A>,
    })
}

#[test]
fn mistakes_of_a_tool_are_found_at_start() {
    for (made, problem) in [
        (odd::<Nothing>("a b", 1, ""), "the tool name `a b` is not usable"),
        (odd::<Nothing>("", 1, ""), "the tool name `` is not usable"),
        (odd::<Nothing>("slow", 241, ""), "the tool `slow` has a time-out of 241s"),
        (odd::<Nothing>("quick", 0, ""), "the tool `quick` has a time-out of 0ns"),
        (odd::<String>("text", 1, ""), "the arguments of the tool `text` must be a struct"),
    ] {
        assert!(made.unwrap_err().starts_with(problem), "{problem}");
    }
}

#[test]
fn a_tool_that_changes_has_another_revision() {
    let revision =
        |made: Result<Arc<dyn RunTool>, String>| made.unwrap().definition().revision.clone();
    let first = revision(odd::<Nothing>("a", 1, ""));
    assert_eq!(first, revision(odd::<Nothing>("a", 1, "")));
    assert_ne!(first, revision(odd::<Nothing>("a", 1, "2")));
    assert_ne!(first, revision(odd::<Payment>("a", 1, "")));
}

/// A tool that returns a service of the app.
struct Greet;

struct Greeting(String);

impl Tool for Greet {
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
async fn service_of_the_app_is_found_by_its_type() {
    let services = Services::default();
    let tool = code_tool_with(Greet, services.clone()).unwrap();
    let mut desk = Desk::new();
    let ToolOutcome::Failed(missing) = desk.run(&*tool, &json!({})).await else {
        panic!("the call fails without the service")
    };
    assert!(missing.contains("register it with `App::service`"), "{missing}");
    services.add("another type").unwrap();
    services.add(Greeting("hello".to_owned())).unwrap();
    assert_eq!(
        desk.run(&*tool, &json!({})).await,
        ToolOutcome::Returned(ToolResult::text("hello"))
    );
    let twice = services.add(Greeting("again".to_owned())).unwrap_err();
    assert!(twice.contains("Greeting"), "{twice}");
}
