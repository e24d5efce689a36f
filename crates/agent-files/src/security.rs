//! The key `security` of agent files: the security section of the system prompt.

use crate::fields;
use crate::mistakes::Findings;
use crate::yaml::{Member, Yaml};
use turnwheel_conversation::settings::LoopKind;
use turnwheel_model::protocol::system_prompt::SECURITY;

/// Bytes of an own section.
const BYTES_MAX: usize = 16 * 1024;

/// The security section of the system prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SecuritySection {
    /// Only the loop `protocol` has the section of the source.
    #[default]
    Default,
    On,
    Off,
    Text(String),
}

impl SecuritySection {
    /// The text in that loop. `None`: there is no section.
    pub fn text(&self, loop_kind: LoopKind) -> Option<&str> {
        match self {
            Self::Default if loop_kind == LoopKind::Protocol => Some(SECURITY),
            Self::On => Some(SECURITY),
            Self::Default | Self::Off => None,
            Self::Text(text) => Some(text),
        }
    }
}

pub(super) fn read_security(member: &Member, findings: &mut Findings) -> SecuritySection {
    let section = match &member.value.yaml {
        // YAML also reads `on` and `off` as true and false.
        Yaml::Bool(true) => return SecuritySection::On,
        Yaml::Bool(false) => return SecuritySection::Off,
        Yaml::Text(_) | Yaml::Null | Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => {
            fields::read_text(member, findings).unwrap_or("off").trim()
        }
    };
    match section {
        "on" => SecuritySection::On,
        "off" => SecuritySection::Off,
        text if (1..=BYTES_MAX).contains(&text.len()) => SecuritySection::Text(text.to_owned()),
        _ => {
            let reason = "`security` is on, off, or a text of at most 16 KB";
            findings.add(member.value.position, reason);
            SecuritySection::Off
        }
    }
}
