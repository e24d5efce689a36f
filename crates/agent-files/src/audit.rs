//! Reader of an agent file's `audit`.

use crate::fields;
use crate::mistakes::Findings;
use crate::yaml::{Member, Yaml};

/// The records of tool results beside the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// True if every result is logged.
    pub is_logged: bool,
    /// True if a notification reports every result.
    pub is_notified: bool,
}

/// A map switches the log on, too.
pub(super) fn read_audit(member: &Member, findings: &mut Findings) -> Audit {
    let mut audit = Audit::default();
    match &member.value.yaml {
        Yaml::Bool(is_on) => audit.is_logged = *is_on,
        Yaml::Map(_) => {
            audit.is_logged = true;
            for field in fields::read_members(&member.value, "`audit`", &["notify"], findings) {
                audit.is_notified = fields::read_bool(field, findings).unwrap_or_default();
            }
        }
        Yaml::Null | Yaml::Number(_) | Yaml::Text(_) | Yaml::List(_) => {
            findings.add(member.value.position, "`audit` is true, false, or a map with `notify`");
        }
    }
    audit
}
