//! Actions in the responses of HTTP extensions.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::response_parts::ResultContent;
use crate::{HookContext, HookError, MessageSpec, Permissions, Severity, UserMessageQueue};
use turnwheel_conversation::entry::CustomMessageEntry;
use turnwheel_conversation::inbox::DeliverAs;
use turnwheel_conversation::settings::ThinkingLevel;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

/// An item of `actions`.
#[derive(Debug)]
pub(super) struct HookAction {
    kind: ActionKind,
    /// The member `data` or `details` as it is written.
    data: Option<RawJson>,
}

impl<'de> Deserialize<'de> for HookAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawJson::deserialize(deserializer)?;
        let kind = raw.read().map_err(serde::de::Error::custom)?;
        let mut members = raw.members().unwrap_or_default().into_iter();
        let data = members.find(|(name, _)| matches!(name.as_str(), "data" | "details"));
        Ok(Self { kind, data: data.map(|(_, value)| value.with_unique_members()) })
    }
}

/// An action, with the rules and limits of the method of `HookContext`.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum ActionKind {
    AppendEntry {
        custom_type: String,
        /// Read as text.
        #[serde(default, rename = "data")]
        _data: IgnoredAny,
    },
    SendMessage {
        custom_type: String,
        content: ResultContent,
        display: Option<bool>,
        /// Read as text.
        #[serde(default, rename = "details")]
        _details: IgnoredAny,
        deliver_as: Option<DeliverAs>,
        #[serde(default)]
        trigger_turn: bool,
    },
    SendUserMessage {
        content: ResultContent,
        queue: UserMessageQueue,
    },
    SetModel {
        model: String,
    },
    SetThinkingLevel {
        level: ThinkingLevel,
    },
    SetActiveTools {
        tools: Vec<String>,
    },
    SetSessionName {
        name: String,
    },
    SetLabel {
        entry_id: EntryId,
        label: Option<String>,
    },
    Abort {},
    Compact {
        instructions: Option<String>,
    },
    Notify {
        text: String,
        severity: Option<Severity>,
    },
}

/// Adds the actions to those of the hook. The error holds no value of the response.
pub(super) fn add_actions(actions: Vec<HookAction>, cx: &HookContext) -> Result<(), String> {
    let permissions = cx.extension().permissions();
    for (index, action) in actions.into_iter().enumerate() {
        if let Some(missing) = action.kind.find_undeclared(&permissions) {
            return Err(format!(
                "/actions/{index} was refused: the agent file does not declare it; add it to `{missing}` of the extension"
            ));
        }
        let rule = action.kind.rule();
        action.kind.add(action.data, cx).map_err(|_names_values| {
            format!("/actions/{index} was refused: {rule}; one hook has at most 16 actions of 64 KB together")
        })?;
    }
    Ok(())
}

impl ActionKind {
    /// The list of the agent file that lacks the action, its tools or its entry type.
    fn find_undeclared(&self, permissions: &Permissions) -> Option<&'static str> {
        let (name, undeclared) = match self {
            Self::AppendEntry { custom_type, .. } => (
                "appendEntry",
                Some("entries").filter(|_| !permissions.allows_storage(custom_type)),
            ),
            Self::SetActiveTools { tools } => (
                "setActiveTools",
                Some("tools").filter(|_| !tools.iter().all(|tool| permissions.allows_tool(tool))),
            ),
            Self::SendMessage { .. } => ("sendMessage", None),
            Self::SendUserMessage { .. } => ("sendUserMessage", None),
            Self::SetModel { .. } => ("setModel", None),
            Self::SetThinkingLevel { .. } => ("setThinkingLevel", None),
            Self::SetSessionName { .. } => ("setSessionName", None),
            Self::SetLabel { .. } => ("setLabel", None),
            Self::Abort {} => ("abort", None),
            Self::Compact { .. } => ("compact", None),
            Self::Notify { .. } => ("notify", None),
        };
        if permissions.allows_action(name) { undeclared } else { Some("actions") }
    }

    /// The rule of this action that a response may break.
    fn rule(&self) -> &'static str {
        match self {
            Self::AppendEntry { .. } => "a customType does not begin with turnwheel/",
            Self::SendMessage { .. } => {
                "a customType has 1 to 128 bytes, and a nextTurn message starts no prompt"
            }
            Self::SetModel { .. } => "the model is a configured one, or normal or high",
            Self::SetSessionName { .. } => "a name has at most 512 bytes and no control characters",
            Self::SendUserMessage { .. }
            | Self::SetThinkingLevel { .. }
            | Self::SetActiveTools { .. }
            | Self::SetLabel { .. }
            | Self::Abort {}
            | Self::Compact { .. }
            | Self::Notify { .. } => "it is too large",
        }
    }

    fn add(self, data: Option<RawJson>, cx: &HookContext) -> Result<(), HookError> {
        match self {
            Self::AppendEntry { custom_type, .. } => cx.append_entry(custom_type, &data),
            Self::SendMessage {
                custom_type, content, display, deliver_as, trigger_turn, ..
            } => {
                let message = CustomMessageEntry {
                    display: display.unwrap_or(true),
                    details: data.filter(|it| it.text() != "null"),
                    ..CustomMessageEntry::new(custom_type, content.into_content())
                };
                cx.send_message(MessageSpec { message, deliver_as, trigger_turn })
            }
            Self::SendUserMessage { content, queue } => {
                cx.send_user_message(content.into_content(), queue)
            }
            Self::SetModel { model } => cx.set_model(&model),
            Self::SetThinkingLevel { level } => cx.set_thinking_level(level),
            Self::SetActiveTools { tools } => cx.set_active_tools(tools),
            Self::SetSessionName { name } => cx.set_session_name(&name),
            Self::SetLabel { entry_id, label } => cx.set_label(entry_id, label),
            Self::Abort {} => cx.abort(),
            Self::Compact { instructions } => cx.compact(instructions),
            Self::Notify { text, severity } => cx.notify(text, severity.unwrap_or(Severity::Info)),
        }
    }
}
