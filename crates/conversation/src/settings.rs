//! Settings of a conversation, merged from the request, the agent file and the defaults, in that
//! order.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::budget::Budget;
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::{self, JsonError};

/// The settings as given. An absent member has the value of the agent file, or else the default.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    #[serde(rename = "loop")]
    pub loop_kind: Option<LoopKind>,
    /// A model id, or `normal`, `high`.
    pub model: Option<String>,
    pub thinking_level: Option<ThinkingLevel>,
    pub temperature: Option<f64>,
    pub max_output_tokens: Option<u64>,
    /// Names of the tools offered to the model. Absent: all tools of the agent.
    pub active_tools: Option<Vec<String>>,
    pub max_rounds: Option<u32>,
    pub hard_rounds_max: Option<u32>,
    pub tool_execution: Option<ToolExecution>,
    /// Maximum number of parallel tool calls if `toolExecution` is `parallel`: 1 to 16. Default: 8.
    #[schema(minimum = 1, maximum = 16)]
    pub parallel_tools_max: Option<u32>,
    pub steering_skips_tools: Option<bool>,
    pub steering_mode: Option<QueueMode>,
    pub follow_up_mode: Option<QueueMode>,
    pub retry: Option<RetrySettings>,
    pub compaction: Option<CompactionSettings>,
    pub continuation: Option<Continuation>,
    /// Number of messages that the model receives in the loop `protocol`, the newest ones. Absent:
    /// all.
    #[schema(minimum = 1)]
    pub history_window: Option<u32>,
    /// How the loop `protocol` sends the rounds of a prompt. `resume` needs the continuation `inline`.
    pub protocol_mode: Option<ProtocolMode>,
    /// As given. A value that only an earlier version accepted as a budget limits nothing.
    #[serde(deserialize_with = "read_budget")]
    #[schema(value_type = Option<Budget>)]
    pub budget: Option<RawJson>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
/// `protocol`: the model receives and writes tool calls as text.
pub enum LoopKind {
    #[default]
    Prompt,
    Agent,
    Protocol,
}

/// Reasoning effort of the model. `off` requests no reasoning.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingLevel {
    #[default]
    Off,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolExecution {
    #[default]
    Sequential,
    Parallel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QueueMode {
    #[default]
    OneAtATime,
    All,
}

/// Where the next turn runs: in a new delivery (`queue`) or in the current one (`inline`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Continuation {
    #[default]
    Queue,
    Inline,
}

/// How the loop `protocol` sends the rounds of a prompt. `replay`: each request has the whole input.
/// `resume`: the rounds of a delivery use one WebSocket, and a request has only what is new. `auto`:
/// as `resume`, without further attempts for ten minutes after a failed connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolMode {
    Auto,
    Resume,
    #[default]
    Replay,
}

// `nullable`, here and below: null counts as absent in requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetrySettings {
    #[schema(nullable)]
    pub enabled: bool,
    #[schema(nullable)]
    pub max_retries: u32,
    #[schema(nullable)]
    pub base_delay_ms: u64,
    #[schema(nullable)]
    pub max_delay_ms: u64,
    /// Maximum random addition, as a share of the delay, 0 to 1.
    #[schema(nullable)]
    pub jitter: f64,
}

/// Maximum retries of one model call. Each adds a message to the conversation.
pub const RETRIES_MAX: u32 = 100;
/// One day. For a longer wait, a schedule is the better tool.
pub const RETRY_DELAY_MAX_MS: u64 = 86_400_000;

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_retries: 3,
            base_delay_ms: 2_000,
            max_delay_ms: 60_000,
            jitter: 0.0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CompactionSettings {
    #[schema(nullable)]
    pub enabled: bool,
    #[schema(nullable)]
    pub reserve_tokens: u64,
    #[schema(nullable)]
    pub keep_recent_tokens: u64,
}

impl Default for CompactionSettings {
    fn default() -> Self {
        Self { enabled: true, reserve_tokens: 16_384, keep_recent_tokens: 20_000 }
    }
}

/// Model tier if no model is named.
pub const DEFAULT_MODEL: &str = "normal";

/// Maximum bytes of a model id.
pub const MODEL_BYTES_MAX: usize = 128;
/// Upper bound of `maxOutputTokens`, above every model's own limit.
pub const OUTPUT_TOKENS_MAX: u64 = 1_000_000;

/// Error text of an invalid model id. It does not check whether the model exists.
pub fn model_id_error(model: &str) -> Option<String> {
    let is_fit = (1..=MODEL_BYTES_MAX).contains(&model.len())
        && model.trim() == model
        && !model.chars().any(char::is_control);
    (!is_fit).then(|| {
        format!("`model` is the id of a model, or `normal` or `high`: 1 to {MODEL_BYTES_MAX} bytes without spaces around it")
    })
}

/// Rounds after which the service ends a prompt, whatever its settings are.
pub const HARD_ROUNDS_MAX: u32 = 200;

/// Default number of parallel tool calls.
const CONCURRENCY_DEFAULT: u32 = 8;

impl Settings {
    /// The settings in `self`, with `fallback` for absent ones.
    #[must_use]
    pub fn with_fallback(&self, fallback: &Self) -> Self {
        Self {
            loop_kind: self.loop_kind.or(fallback.loop_kind),
            // Imports of earlier versions stored empty names.
            model: self
                .model
                .clone()
                .filter(|model| model_id_error(model).is_none())
                .or_else(|| fallback.model.clone()),
            thinking_level: self.thinking_level.or(fallback.thinking_level),
            temperature: self.temperature.or(fallback.temperature),
            max_output_tokens: self.max_output_tokens.or(fallback.max_output_tokens),
            active_tools: self.active_tools.clone().or_else(|| fallback.active_tools.clone()),
            max_rounds: self.max_rounds.or(fallback.max_rounds),
            hard_rounds_max: self.hard_rounds_max.or(fallback.hard_rounds_max),
            tool_execution: self.tool_execution.or(fallback.tool_execution),
            parallel_tools_max: self.parallel_tools_max.or(fallback.parallel_tools_max),
            steering_skips_tools: self.steering_skips_tools.or(fallback.steering_skips_tools),
            steering_mode: self.steering_mode.or(fallback.steering_mode),
            follow_up_mode: self.follow_up_mode.or(fallback.follow_up_mode),
            retry: self.retry.clone().or_else(|| fallback.retry.clone()),
            compaction: self.compaction.clone().or_else(|| fallback.compaction.clone()),
            continuation: self.continuation.or(fallback.continuation),
            history_window: self.history_window.or(fallback.history_window),
            protocol_mode: self.protocol_mode.or(fallback.protocol_mode),
            budget: merge_budgets(self.budget.as_ref(), fallback.budget.as_ref()),
        }
    }

    /// Maximum rounds of model calls in one prompt. `None`: only the hard limit applies.
    pub fn rounds_max(&self) -> Option<u32> {
        self.max_rounds.or(match self.loop_kind.unwrap_or_default() {
            LoopKind::Prompt => Some(25),
            LoopKind::Agent => None,
            LoopKind::Protocol => Some(10),
        })
    }

    /// How the next rounds are sent. A connection lasts one delivery, so it needs the continuation
    /// `inline`.
    pub fn effective_protocol_mode(&self) -> ProtocolMode {
        let may_connect = self.loop_kind == Some(LoopKind::Protocol)
            && self.continuation == Some(Continuation::Inline);
        self.protocol_mode.filter(|_| may_connect).unwrap_or_default()
    }

    /// Why the mode does not fit the other settings.
    pub fn protocol_mode_error(&self) -> Option<&'static str> {
        let mode = self.protocol_mode?;
        if self.loop_kind != Some(LoopKind::Protocol) {
            return Some("`protocolMode` needs `loop: protocol`: set the loop or remove the mode");
        }
        let is_inline = self.continuation == Some(Continuation::Inline);
        (mode == ProtocolMode::Resume && !is_inline).then_some(
            "`protocolMode: resume` needs `continuation: inline`, because its connection lasts one delivery: \
             set the continuation, or the mode `auto` or `replay`",
        )
    }

    /// The budget. `None`: unlimited.
    pub fn parse_budget(&self) -> Option<Budget> {
        self.budget.as_ref()?.read().ok()
    }

    /// Error of an invalid budget.
    pub fn budget_error(&self) -> Option<JsonError> {
        match strict::from_str::<Budget>(self.budget.as_ref()?.text()) {
            Ok(budget) => budget
                .validation_error()
                .map(|detail| JsonError { pointer: String::new(), detail: detail.to_owned() }),
            Err(mistake) => Some(mistake),
        }
    }

    /// Calls of one response that may run in parallel. 1: one after the other.
    pub fn concurrency(&self) -> u32 {
        match self.tool_execution.unwrap_or_default() {
            ToolExecution::Sequential => 1,
            ToolExecution::Parallel => {
                self.parallel_tools_max.unwrap_or(CONCURRENCY_DEFAULT).clamp(1, CONCURRENCY_MAX)
            }
        }
    }

    pub fn hard_rounds_limit(&self) -> u32 {
        self.hard_rounds_max.unwrap_or(HARD_ROUNDS_MAX).min(HARD_ROUNDS_MAX)
    }
}

/// Reads a budget as given, without the members that are null: they count as absent.
fn read_budget<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RawJson>, D::Error> {
    let budget = Option::<RawJson>::deserialize(deserializer)?;
    Ok(budget.map(|budget| budget.without_null_members(2)))
}

/// The budget in force. The agent file's budget is a ceiling: of two limits of one kind the smaller
/// applies.
fn merge_budgets(own: Option<&RawJson>, ceiling: Option<&RawJson>) -> Option<RawJson> {
    let (Some(own), Some(ceiling)) = (own, ceiling) else { return own.or(ceiling).cloned() };
    match (own.read::<Budget>(), ceiling.read::<Budget>()) {
        (Ok(budget), Ok(most)) => Some(RawJson::from_value(&budget.capped_by(&most))),
        (Err(_), Ok(_)) => Some(ceiling.clone()),
        (Ok(_) | Err(_), Err(_)) => Some(own.clone()),
    }
}

/// Upper bound for parallel calls, whatever the settings are: one worker can run so many, and a
/// take-over can request decisions on so many.
pub const CONCURRENCY_MAX: u32 = 16;
