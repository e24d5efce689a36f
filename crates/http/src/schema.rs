//! Schemas of the OpenAPI document that no other module defines.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use turnwheel_commands::prompt::Disposition;
use turnwheel_conversation::branch::WriteLeft;
use turnwheel_conversation::destination::Destination;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::Settings;
use turnwheel_extensions::Permissions;
use turnwheel_queries::ArtifactView;
use turnwheel_queries::approvals::ApprovalView;
use turnwheel_queries::conversation::ConversationView;
use turnwheel_queries::inbox::InputView;
use turnwheel_queries::plugins::PluginView;
use turnwheel_queries::schedules::ScheduleView;
use turnwheel_queries::tree::ForkPoint;
use turnwheel_tools::approval_summary::ApprovalSummary;

macro_rules! schema_only {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, ToSchema)]
        #[schema(rename_all = "camelCase")]
        #[expect(dead_code, reason = "only the schema is used: other code builds the value")]
        pub(crate) struct $name { $($(#[$attribute])* $field: $kind,)* }
    )*};
}

schema_only! {
    /// The health of the service.
    Health {
        /// `ok` or `unavailable`.
        status: String,
    }
    /// A problem of RFC 9457.
    Problem {
        /// `urn:turnwheel:problem:<name>`.
        #[schema(rename = "type")]
        kind: String,
        title: String,
        status: u16,
        detail: String,
        instance: String,
        trace_id: String,
        errors: Option<Vec<ProblemFault>>,
    }
    ProblemFault {
        /// JSON pointer into the body, or `?name` for a query parameter.
        pointer: String,
        detail: String,
    }
    Conversations { items: Vec<ConversationView>, continuation: Option<String>, }
    Prompts { items: Vec<Prompt>, continuation: Option<String>, }
    Inputs { items: Vec<InputView>, continuation: Option<String>, }
    Approvals { items: Vec<ApprovalView>, continuation: Option<String>, }
    Artifacts { items: Vec<ArtifactView>, continuation: Option<String>, }
    Schedules { items: Vec<ScheduleView>, continuation: Option<String>, }
    Agents { items: Vec<AgentView>, }
    Plugins { items: Vec<PluginView>, }
    ForkPoints { items: Vec<ForkPoint>, continuation: Option<String>, }
    Messages { items: Vec<Value>, continuation: Option<String>, }
    /// Events `user`, `think`, `call`, `respond`, `result` and `cancelled` of the streaming text protocol.
    History { items: Vec<Value>, continuation: Option<String>, }
    Entries { items: Vec<Value>, continuation: Option<String>, }
    /// One execution of a prompt: its input and its outputs.
    Prompt {
        id: String,
        user_id: String,
        model: String,
        visible: bool,
        /// `running`, `waiting_for_approval`, `completed`, `failed` or `aborted`.
        state: String,
        /// `end`, `max_rounds`, `budget`, `aborted` or `error`.
        stop_reason: Option<String>,
        /// Text, or blocks.
        input: Option<Value>,
        /// Text and files of the input as sent, if an extension changed it.
        original: Option<Value>,
        /// In order: `text`, `tool`, `file`, `widget`, and types that later versions add.
        output: Vec<Value>,
        usage: Value,
        /// The last text as JSON, for agents with a response schema.
        result: Option<Value>,
        error: Option<Value>,
        /// Set if the last response is incomplete: `reason` and `message`.
        incomplete: Option<Value>,
        /// Set while a failed model call waits for its next attempt: `attempt`, and its time `at`.
        retry: Option<Value>,
    }
    /// The response to an input: the prompt if it has left `running`, else what became of the input.
    PromptResponse {
        conversation_id: String,
        /// Prompt that the input starts or joins. Absent: none.
        #[schema(required = false)]
        prompt_id: String,
        /// Id of the input; `GET …/inbox/{inputId}` returns its state. Absent in a prompt that has left
        /// `running`.
        #[schema(required = false)]
        input_id: String,
        /// Absent in a prompt that has left `running`.
        #[schema(required = false)]
        disposition: Disposition,
        /// Newest event of the conversation: of an accepted input, the newest one before its own.
        #[schema(required = false)]
        last_event_id: u64,
        /// With `at`: writes on the branch that the conversation leaves, at most the newest 100. They are
        /// not undone.
        #[schema(required = false)]
        writes_left: Vec<WriteLeft>,
        /// Name of the command that ran in place of a prompt.
        #[schema(required = false)]
        command: String,
        /// Text of the command for the user.
        #[schema(required = false)]
        command_output: String,
        /// Why the command failed; it has changed nothing.
        #[schema(required = false)]
        command_error: String,
    }
    /// A merge patch of RFC 7396: absent members stay unchanged, null removes a member. Null for the
    /// whole of `settings` or `metadata` is refused.
    ConversationPatch {
        #[schema(required = false)]
        settings: Settings,
        #[schema(required = false)]
        metadata: std::collections::HashMap<String, Option<String>>,
        name: Option<String>,
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentView {
    pub(super) name: String,
    pub(super) description: String,
    /// Inputs to try.
    pub(super) examples: Vec<String>,
    /// The model id or tier of its prompts. Absent if the agent file is invalid.
    pub(super) model: Option<String>,
    pub(super) tools: Vec<String>,
    /// Display names of the tools that have one, by tool name.
    pub(super) tool_labels: BTreeMap<String, String>,
    /// In the order in which they run.
    pub(super) extensions: Vec<ExtensionView>,
    /// In the order in which they prepare model calls.
    pub(super) plugins: Vec<ExtensionView>,
    /// Hash of the agent file. Each model response records it.
    pub(super) revision: Option<String>,
    pub(super) available: bool,
    /// Reason why the agent is unavailable. For an available agent: reason why its changed file is
    /// not in force.
    pub(super) problem: Option<String>,
}

/// An agent with the instructions and tools of its model.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentDetail {
    #[serde(flatten)]
    pub(super) agent: AgentView,
    /// Text of the agent file. Only operators and callers of `dev` receive it.
    pub(super) instructions: Option<String>,
    /// Paths of its context files.
    pub(super) context_files: Vec<String>,
    pub(super) tool_definitions: Vec<ToolView>,
    /// JSON Schema of the last response.
    #[schema(value_type = Option<Object>)]
    pub(super) response_schema: Option<Value>,
}

/// A tool of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolView {
    pub(super) name: String,
    pub(super) description: String,
    /// JSON Schema of the arguments.
    #[schema(value_type = Object)]
    pub(super) parameters: Value,
    #[schema(value_type = String)]
    pub(super) effect: Effect,
    pub(super) timeout_ms: u64,
    /// The place to which calls are sent. Absent: the app itself runs them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) destination: Option<Destination>,
    /// The calls that need an approval.
    pub(super) approval: ApprovalSummary,
}

/// An extension or a plugin of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExtensionView {
    pub(super) name: String,
    /// True if its hooks call other systems.
    pub(super) remote: bool,
    /// Its declared permissions.
    pub(super) permissions: Permissions,
    /// Names of its own tools.
    pub(super) tools: Vec<String>,
}
