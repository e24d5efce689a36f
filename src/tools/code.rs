//! Tools written in Rust: the trait, and what makes one callable.

mod context;
mod services;

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

use crate::agent::phase::OnUnknown;
use crate::agent::request::Effect;
use crate::ids::is_plain;
use crate::tools::strict;
use crate::tools::validate::Checker;
use crate::tools::{
    Arguments, Ask, RunTool, TIMEOUT_DEFAULT, TIMEOUT_MAX, ToolContext, ToolDefinition,
    ToolOutcome, ToolResult, sha256_hex,
};

pub use context::{CallContext, Workspace};
pub(crate) use services::Services;

/// How long a person has to decide when the tool does not say.
const EXPIRES_AFTER_DEFAULT: Duration = Duration::from_hours(7 * 24);

/// A tool in Rust. It holds no state of a call: a call may run again on another instance.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use turnwheel::agent::request::Effect;
/// use turnwheel::tools::ToolResult;
/// use turnwheel::tools::code::{CallContext, Tool, ToolError};
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
///     async fn call(&self, args: Summands, _cx: CallContext) -> Result<ToolResult, ToolError> {
///         Ok(ToolResult::text((args.a + args.b).to_string()))
///     }
/// }
/// ```
pub trait Tool: Send + Sync + 'static {
    /// A struct; its doc comments become the descriptions of the parameters.
    type Args: JsonSchema + DeserializeOwned + Send;

    /// `A-Z a-z 0-9 _ . -`; unique in the app.
    fn name(&self) -> &str;

    /// What the model reads to decide whether to call it.
    fn description(&self) -> &str;

    /// Decides what happens after a crash: `Write` is never silently run again.
    fn effect(&self) -> Effect;

    /// For people.
    fn label(&self) -> &str {
        self.name()
    }

    /// What happens when the answer of a `Write` is lost.
    fn on_unknown(&self) -> OnUnknown {
        OnUnknown::Ask
    }

    /// At most [`TIMEOUT_MAX`].
    fn timeout(&self) -> Duration {
        TIMEOUT_DEFAULT
    }

    /// Whether the service holds the model to the schema of [`Tool::Args`]: then that denies unknown fields, and has no
    /// optional ones.
    fn strict(&self) -> bool {
        false
    }

    /// Change it when the tool does something else under the same name and parameters: open approvals are asked again.
    fn revision(&self) -> &'static str {
        ""
    }

    /// Whether it changes files of the workspace. Where calls run at once, those of such tools still run one after the other,
    /// each on what the one before left; of others that write the same file in one answer, the later call's stands.
    fn changes_workspace(&self) -> bool {
        false
    }

    /// Whether a person must agree to this call; the same arguments give the same answer.
    fn approval(&self, _args: &Self::Args) -> Option<Approval> {
        None
    }

    /// Dropped at the deadline and when the prompt is stopped; a write is told before, see [`CallContext::cancelled`]. Fence
    /// what must happen once with [`CallContext::effect_id`].
    fn call(
        &self,
        args: Self::Args,
        cx: CallContext,
    ) -> impl Future<Output = Result<ToolResult, ToolError>> + Send;
}

/// Why a call gave no result. Any error becomes [`ToolError::Failed`] by `?`.
#[derive(Debug, PartialEq, Eq)]
pub enum ToolError {
    /// It certainly did not happen: the model reads why.
    Failed(String),
    /// It was sent and nobody knows whether it happened. For a tool that only reads it is a failure like any other.
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

/// With its causes, separated by colons. It is itself no [`std::error::Error`], or this conversion could not exist.
impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::Failed(text_with_causes(&error))
    }
}

/// The error and its causes, separated by colons.
pub(crate) fn text_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// What a person is asked before a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Approval(Ask);

impl Approval {
    /// The owner of the conversation decides, within seven days.
    pub fn because(reason: impl Into<String>) -> Self {
        Self(Ask {
            reason: reason.into(),
            approvers: vec!["owner".to_owned()],
            not_requester: false,
            expires_after: EXPIRES_AFTER_DEFAULT,
        })
    }

    /// `owner`, `link`, `role:NAME`; an empty list leaves it to the owner.
    #[must_use]
    pub fn by(mut self, approvers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let approvers: Vec<String> = approvers.into_iter().map(Into::into).collect();
        if !approvers.is_empty() {
            self.0.approvers = approvers;
        }
        self
    }

    /// Whoever began the prompt may not decide.
    #[must_use]
    pub fn not_by_requester(mut self) -> Self {
        self.0.not_requester = true;
        self
    }

    #[must_use]
    pub fn within(mut self, span: Duration) -> Self {
        self.0.expires_after = span;
        self
    }
}

/// Makes a tool callable.
///
/// # Errors
/// The tool is written wrongly (its name, its time-out, arguments that are no struct): tell the developer at start.
pub fn code_tool<T: Tool>(tool: T) -> Result<Arc<dyn RunTool>, String> {
    code_tool_with(tool, Services::default())
}

/// The same with what [`CallContext::service`] finds.
pub(crate) fn code_tool_with<T: Tool>(
    tool: T,
    services: Services,
) -> Result<Arc<dyn RunTool>, String> {
    let name = tool.name().to_owned();
    if !is_plain(&name) || name.len() > 128 {
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
    let parameters = parameters_of::<T::Args>();
    if parameters.get("type").and_then(Value::as_str) != Some("object") {
        return Err(format!(
            "the arguments of the tool `{name}` must be a struct with named fields"
        ));
    }
    Checker::new(&parameters).map_err(|problem| format!("the tool `{name}`: {problem}"))?;
    let strict = tool.strict();
    if let Some(objection) = strict::objection(&parameters).filter(|_| strict) {
        return Err(format!("the tool `{name}`: {objection}"));
    }
    let definition = ToolDefinition {
        label: tool.label().to_owned(),
        description: tool.description().to_owned(),
        effect: tool.effect(),
        strict,
        on_unknown: tool.on_unknown(),
        revision: revision_of(&tool, &parameters),
        name,
        parameters,
        timeout,
    };
    Ok(Arc::new(CodeTool { tool, definition, services, args: PhantomData }))
}

fn parameters_of<A: JsonSchema>() -> Value {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<A>();
    let mut parameters = schema.to_value();
    if let Some(members) = parameters.as_object_mut() {
        // They tell a model nothing, and are paid for in each request.
        members.remove("$schema");
        members.remove("title");
        members.remove("description");
    }
    parameters
}

fn revision_of<T: Tool>(tool: &T, parameters: &Value) -> String {
    let text = format!(
        "{:?}",
        (tool.name(), tool.description(), tool.effect(), tool.revision(), parameters.to_string())
    );
    sha256_hex(text.as_bytes())
}

struct CodeTool<T: Tool> {
    tool: T,
    definition: ToolDefinition,
    services: Services,
    args: PhantomData<fn() -> T::Args>,
}

impl<T: Tool> fmt::Debug for CodeTool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeTool").field("name", &self.definition.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl<T: Tool> RunTool for CodeTool<T> {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }

    /// Arguments that the tool cannot read need no agreement: the call answers an error before it does anything. A rule that
    /// panics agrees to nothing.
    fn ask(&self, arguments: &Arguments) -> Option<Ask> {
        let args: T::Args = serde_json::from_value(arguments.value.clone()).ok()?;
        catch_unwind(AssertUnwindSafe(|| self.tool.approval(&args)))
            .unwrap_or_else(|_| {
                Some(Approval::because(
                    "The rule for approvals of this tool failed: please decide.",
                ))
            })
            .map(|approval| approval.0)
    }

    fn changes_workspace(&self) -> bool {
        self.tool.changes_workspace()
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let args: T::Args = match serde_json::from_value(arguments.value) {
            Ok(args) => args,
            Err(error) => {
                let name = &self.definition.name;
                return ToolOutcome::Returned(ToolResult::error(format!(
                    "Validation failed for tool \"{name}\": {error}"
                )));
            }
        };
        let cx = CallContext::new(context, self.services.clone());
        // Whatever the tool moved to another task or thread learns from it that the call is over.
        let _over = cx.over().drop_guard();
        match self.tool.call(args, cx.clone()).await {
            Ok(result) => ToolOutcome::Returned(cx.finish(result)),
            Err(ToolError::Failed(message)) => ToolOutcome::Failed(message),
            Err(ToolError::Unknown(reason)) => match self.definition.effect {
                Effect::Write => ToolOutcome::Unknown { reason },
                Effect::Read | Effect::Idempotent => ToolOutcome::Failed(reason),
            },
        }
    }
}
