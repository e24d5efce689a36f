//! Tools written in Rust: the `Tool` trait and its adapter to the tool port.

mod context;
mod service_registry;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::approval_summary::ApprovalSummary;
use crate::plugin_state::{StateAccess, ToolPlugin};
use crate::strict_schema;
use crate::validate::Checker;
use crate::{
    ApprovalRequirement, Arguments, CallableTool, CheckContext, TIMEOUT_DEFAULT, TIMEOUT_MAX,
    ToolContext, ToolDefinition, ToolOutcome, ToolResult,
};
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::is_plain_text;

pub use context::{CallContext, Workspace};
pub use service_registry::ServiceRegistry;

/// Default expiry of an approval request.
pub const EXPIRY_DEFAULT: Duration = Duration::from_hours(7 * 24);

/// A tool in Rust. It holds no state of a call, because a call may run again on another instance.
///
/// ```
/// # mod turnwheel {
/// #     pub use turnwheel_conversation::request::Effect;
/// #     pub use turnwheel_tools::ToolResult;
/// #     pub use turnwheel_tools::code::{CallContext as ToolContext, Tool, ToolError};
/// # }
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use turnwheel::{Effect, Tool, ToolContext, ToolError, ToolResult};
///
/// struct Add;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Summands {
///     a: f64,
///     b: f64,
/// }
///
/// impl Tool for Add {
///     type Args = Summands;
///
///     fn name(&self) -> &str {
///         "add"
///     }
///
///     fn description(&self) -> &str {
///         "Adds two numbers."
///     }
///
///     fn effect(&self) -> Effect {
///         Effect::Read
///     }
///
///     async fn call(&self, args: Summands, _cx: ToolContext) -> Result<ToolResult, ToolError> {
///         Ok(ToolResult::text((args.a + args.b).to_string()))
///     }
/// }
/// ```
pub trait Tool: Send + Sync + 'static {
    /// A struct. Its doc comments become the descriptions of the parameters. Its fields get each digit
    /// that the model wrote: a call with a number that a float would round is refused.
    type Args: JsonSchema + DeserializeOwned + Send;

    /// `A-Z a-z 0-9 _ . -`; unique in the app.
    fn name(&self) -> &str;

    /// Description by which the model decides to call the tool.
    fn description(&self) -> &str;

    /// The effect determines recovery after a crash: a `Write` is never silently run again.
    fn effect(&self) -> Effect;

    /// Display name.
    fn label(&self) -> &str {
        self.name()
    }

    /// Handling of a `Write` whose response is lost.
    fn on_unknown(&self) -> OnUnknown {
        OnUnknown::Ask
    }

    /// At most [`TIMEOUT_MAX`].
    fn timeout(&self) -> Duration {
        TIMEOUT_DEFAULT
    }

    /// True if the model service enforces the schema of [`Tool::Args`]. The struct must then deny
    /// unknown fields and have no optional ones.
    fn strict(&self) -> bool {
        false
    }

    /// Change it if the tool's behaviour changes under the same name and parameters. Open approval
    /// requests are then requested again.
    fn revision(&self) -> &'static str {
        ""
    }

    /// True if the tool changes workspace files. Calls of such tools run sequentially even in
    /// parallel mode, each on the files that the previous call left. If other tools write the same
    /// file in one model response, the file of the later call wins.
    fn changes_workspace(&self) -> bool {
        false
    }

    /// True if the tool sets the state of its plugin with [`CallContext::set_state`]. Calls of such
    /// tools run sequentially even in parallel mode, each on the state that the previous call left.
    fn writes_state(&self) -> bool {
        false
    }

    /// Checks what the schema of [`Tool::Args`] cannot express, before an approval is requested. It
    /// must have no effect. The model reads the error, and the call ends.
    fn check(
        &self,
        _args: &Self::Args,
        _cx: &CheckContext<'_>,
    ) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns the approval that this call needs, or `None`. Equal arguments must give equal
    /// results.
    fn approval(&self, _args: &Self::Args) -> Option<Approval> {
        None
    }

    /// The calls that need an approval, for readers of the agent. [`Tool::approval`] decides about each call.
    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Code
    }

    /// Performs the call. Its future is dropped at the deadline and after an abort of the prompt. A
    /// `Write` can observe the abort first, see [`CallContext::cancelled`]. Send
    /// [`CallContext::effect_id`] as the idempotency key of an effect that must happen once.
    fn call(
        &self,
        args: Self::Args,
        cx: CallContext,
    ) -> impl Future<Output = Result<ToolResult, ToolError>> + Send;
}

/// Failure of a call without a result. `?` converts any error into [`ToolError::Failed`].
#[derive(Debug, PartialEq, Eq)]
pub enum ToolError {
    /// The call had no effect. The model reads the text.
    Failed(String),
    /// The request was sent and its outcome is unknown. Except for a `Write`, this is an ordinary
    /// failure.
    Unknown(String),
}

impl ToolError {
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown(reason.into())
    }
}

/// Includes the causes of the error, separated by colons. `ToolError` does not implement
/// [`std::error::Error`]: that would conflict with this conversion.
impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::Failed(error_chain(&error))
    }
}

/// The approval that a call needs before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Approval(ApprovalRequirement);

impl Approval {
    /// Requires a decision of the conversation's owner within seven days.
    pub fn because(reason: impl Into<String>) -> Self {
        Self(ApprovalRequirement {
            reason: reason.into(),
            approvers: vec!["owner".to_owned()],
            is_requester_excluded: false,
            expires_after: EXPIRY_DEFAULT,
        })
    }

    /// Sets the approvers: `owner`, `link`, `role:NAME`. An empty list leaves the owner as
    /// approver.
    #[must_use]
    pub fn by(mut self, approvers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let approvers: Vec<String> = approvers.into_iter().map(Into::into).collect();
        if !approvers.is_empty() {
            self.0.approvers = approvers;
        }
        self
    }

    /// Excludes the user who started the prompt from the approvers.
    #[must_use]
    pub fn not_by_requester(mut self) -> Self {
        self.0.is_requester_excluded = true;
        self
    }

    #[must_use]
    pub fn within(mut self, span: Duration) -> Self {
        self.0.expires_after = span;
        self
    }
}

/// Adapts a tool to the tool port.
///
/// # Errors
/// The declaration is invalid: the name, the time-out, or arguments that are not a struct. Report
/// the text to the developer at start-up.
pub fn build_code_tool<T: Tool>(tool: T) -> Result<Arc<dyn CallableTool>, String> {
    build_code_tool_with_services(tool, ServiceRegistry::default(), None)
}

/// A tool of any type, for `Agent::set_tools`.
#[derive(Clone, Debug)]
pub struct DynTool(pub Arc<dyn CallableTool>);

impl DynTool {
    /// # Errors
    /// The declaration is invalid: the name, the time-out, or arguments that are not a struct.
    pub fn new(tool: impl Tool) -> Result<Self, String> {
        build_code_tool(tool).map(Self)
    }
}

/// Like [`build_code_tool`], with the services that [`CallContext::service`] returns, and the state
/// of the tool's plugin.
///
/// # Errors
/// The name, description or schema of the tool is invalid.
pub fn build_code_tool_with_services<T: Tool>(
    tool: T,
    services: ServiceRegistry,
    state: Option<Arc<dyn StateAccess>>,
) -> Result<Arc<dyn CallableTool>, String> {
    let name = tool.name().to_owned();
    if !is_plain_text(&name) || name.len() > 128 {
        return Err(format!(
            "the tool name `{name}` is not usable: use 1 to 128 of A-Z a-z 0-9 _ . -"
        ));
    }
    let timeout = tool.timeout();
    if timeout.is_zero() || timeout > TIMEOUT_MAX {
        return Err(format!(
            "the tool `{name}` has a time-out of {timeout:?}: it must be above zero and at most {TIMEOUT_MAX:?}"
        ));
    }
    let parameters = schema_of::<T::Args>();
    if parameters.get("type").and_then(Value::as_str) != Some("object") {
        return Err(format!(
            "the arguments of the tool `{name}` must be a struct with named fields"
        ));
    }
    Checker::new(&parameters).map_err(|problem| format!("the tool `{name}`: {problem}"))?;
    let strict = tool.strict();
    if let Some(objection) = strict_schema::find_violation(&parameters).filter(|_| strict) {
        return Err(format!("the tool `{name}`: {objection}"));
    }
    let definition = ToolDefinition {
        label: tool.label().to_owned(),
        description: tool.description().to_owned(),
        effect: tool.effect(),
        is_strict: strict,
        on_unknown: tool.on_unknown(),
        revision: revision_of(&tool, &parameters),
        name,
        parameters,
        timeout,
    };
    let writes_state = tool.writes_state();
    let plugin = state.map(|access| ToolPlugin { access, writes_state });
    Ok(Arc::new(CodeTool { tool, definition, services, plugin, args: PhantomData }))
}

pub fn schema_of<A: JsonSchema>() -> Value {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<A>();
    let mut parameters = schema.to_value();
    if let Some(members) = parameters.as_object_mut() {
        // They do not help the model and cost tokens in each request.
        members.remove("$schema");
        members.remove("title");
        members.remove("description");
    }
    parameters
}

/// Open approvals are bound to revisions: never change this text.
fn revision_of<T: Tool>(tool: &T, parameters: &Value) -> String {
    let (name, description, revision) = (tool.name(), tool.description(), tool.revision());
    let effect = match tool.effect() {
        Effect::Read => "Read",
        Effect::Idempotent => "Idempotent",
        Effect::Write => "Write",
    };
    let parameters = parameters.to_string();
    let text = format!("({name:?}, {description:?}, {effect}, {revision:?}, {parameters:?})");
    sha256_hex(text.as_bytes())
}

struct CodeTool<T: Tool> {
    tool: T,
    definition: ToolDefinition,
    services: ServiceRegistry,
    plugin: Option<ToolPlugin>,
    args: PhantomData<fn() -> T::Args>,
}

impl<T: Tool> fmt::Debug for CodeTool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeTool").field("name", &self.definition.name).finish_non_exhaustive()
    }
}

impl<T: Tool> CodeTool<T> {
    fn read_arguments(&self, arguments: &Arguments) -> Result<T::Args, String> {
        arguments.read().map_err(|error| {
            format!("Validation failed for tool \"{}\": {error}", self.definition.name)
        })
    }
}

#[async_trait]
impl<T: Tool> CallableTool for CodeTool<T> {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }

    async fn check_arguments(
        &self,
        arguments: &Arguments,
        context: &CheckContext<'_>,
    ) -> Result<(), String> {
        let args = self.read_arguments(arguments)?;
        self.tool.check(&args, context).await
    }

    /// Arguments that the tool cannot read need no approval: the call returns an error before any
    /// effect. A rule that panics requires an approval.
    fn required_approval(&self, arguments: &Arguments) -> Option<ApprovalRequirement> {
        let args: T::Args = arguments.read().ok()?;
        catch_unwind(AssertUnwindSafe(|| self.tool.approval(&args)))
            .unwrap_or_else(|_| {
                Some(Approval::because(
                    "The rule for approvals of this tool failed: please decide.",
                ))
            })
            .map(|approval| approval.0)
    }

    fn approval_summary(&self) -> ApprovalSummary {
        self.tool.approval_summary()
    }

    fn changes_workspace(&self) -> bool {
        self.tool.changes_workspace()
    }

    fn plugin(&self) -> Option<&ToolPlugin> {
        self.plugin.as_ref()
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let args = match self.read_arguments(&arguments) {
            Ok(args) => args,
            Err(reason) => return ToolOutcome::Returned(ToolResult::error(reason)),
        };
        let cx = CallContext::new(context, self.services.clone(), self.plugin.clone());
        // Cancelled at the end of the call, for work that the tool moved to another task or thread.
        let _finished_guard = cx.finished_token().drop_guard();
        match self.tool.call(args, cx.clone()).await {
            Ok(result) => ToolOutcome::Returned(cx.complete_result(result)),
            Err(ToolError::Failed(message)) => ToolOutcome::Failed(message),
            Err(ToolError::Unknown(reason)) => match self.definition.effect {
                Effect::Write => ToolOutcome::Unknown { reason },
                Effect::Read | Effect::Idempotent => ToolOutcome::Failed(reason),
            },
        }
    }
}
