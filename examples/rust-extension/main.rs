//! An app with a plugin, an extension and a command. `README.md` beside this file runs it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use turnwheel::extensions::{
    ApprovalRequest, CallBlock, CommandCall, CommandOutcome, CommandSpec, Extension, HookContext,
    HookError, InputDecision, PendingFork, PendingLeafMove, PendingToolCall, Plugin, PluginError,
    PluginTools, Prepare, PromptText, SessionDecision, SummaryOverride, ToolCallDecision,
};
use turnwheel::{Effect, Tool, ToolContext, ToolError, ToolResult};

/// Offers the tool `reserve`, and adds the number of reserved items to the system prompt.
#[derive(Debug)]
struct Stock;

/// Stored with the conversation: the plugin itself holds nothing.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
struct StockState {
    reserved: u64,
}

impl Plugin for Stock {
    type State = StockState;

    fn name(&self) -> &'static str {
        "stock"
    }

    fn tools(&self, tools: &mut PluginTools) {
        tools.tool(Reserve);
    }

    // Runs before every model call.
    async fn prepare(&self, cx: &mut Prepare<'_, StockState>) -> Result<(), PluginError> {
        cx.activate("reserve")?;
        let reserved = cx.state().map_or(0, |state| state.reserved);
        cx.context(format!("{reserved} items are reserved so far."));
        Ok(())
    }
}

struct Reserve;

#[derive(Deserialize, JsonSchema)]
struct Reservation {
    item: String,
    count: u64,
}

impl Tool for Reserve {
    type Args = Reservation;

    fn name(&self) -> &'static str {
        "reserve"
    }

    fn description(&self) -> &'static str {
        "Reserves items."
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn writes_state(&self) -> bool {
        true
    }

    async fn call(&self, wanted: Reservation, cx: ToolContext) -> Result<ToolResult, ToolError> {
        let before: StockState = cx.state()?.unwrap_or_default();
        // Stored with the result: a repeated call adds its count once.
        cx.set_state(&StockState { reserved: before.reserved + wanted.count })?;
        Ok(ToolResult::text(format!("{} of {} are reserved.", wanted.count, wanted.item)))
    }
}

/// Large reservations need an approval, card numbers are removed from inputs, `/note` keeps a note,
/// and a question precedes moves to another branch and forks.
#[derive(Debug)]
struct Rules;

#[async_trait::async_trait]
impl Extension for Rules {
    fn name(&self) -> &'static str {
        "rules"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        if call.tool_name != "reserve" {
            return Ok(ToolCallDecision::Allow);
        }
        // Arguments that the tool could not read are an error, which blocks the call.
        let Reservation { count, .. } = call.arguments.read()?;
        Ok(match count {
            0..=100 => ToolCallDecision::Allow,
            101..=1_000 => ToolCallDecision::RequireApproval(ApprovalRequest::because(format!(
                "Reserve {count} items?"
            ))),
            _ => ToolCallDecision::Block(CallBlock {
                reason: Some("Nobody reserves more than 1000 items.".to_owned()),
                terminate: false,
            }),
        })
    }

    async fn transform_input(
        &self,
        cx: &HookContext,
        input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        let is_card =
            |word: &str| word.len() >= 13 && word.bytes().all(|byte| byte.is_ascii_digit());
        let words = input.text.split(' ');
        let text: Vec<_> = words.map(|word| if is_card(word) { "[card]" } else { word }).collect();
        let text = text.join(" ");
        if text == input.text {
            return Ok(InputDecision::Continue);
        }
        // Stored with the input, or not at all.
        cx.append_entry("rules/masked", &json!({}))?;
        Ok(InputDecision::Transform { text, images: None })
    }

    // Without an answer, `?` ends the hook. It runs again with the answer, on any worker.
    async fn before_leaf_move(
        &self,
        cx: &HookContext,
        _pending: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        let is_left = cx.confirm("leave", "Leave this branch? Its reservations stay.")?;
        Ok((!is_left).then_some(SummaryOverride::Cancel))
    }

    async fn before_session_fork(
        &self,
        cx: &HookContext,
        _fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        let is_copied = cx.confirm("copy", "Copy the conversation? It reserves nothing again.")?;
        Ok(if is_copied { SessionDecision::Continue } else { SessionDecision::Cancel })
    }

    fn commands(&self) -> Vec<CommandSpec> {
        let note = CommandSpec::new("note", "Keeps a note.");
        vec![CommandSpec { argument_hint: Some("<text>".to_owned()), ..note }]
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        tracing::info!("a note is taken");
        cx.append_entry("rules/note", &json!({"text": call.args}))?;
        Ok(CommandOutcome::text("Noted."))
    }
}

fn main() -> std::process::ExitCode {
    turnwheel::App::new().plugin(Stock).extension(Rules).main()
}
