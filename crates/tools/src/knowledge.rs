//! Ports of the documents of a user that built-in tools read and write.

use std::sync::Arc;

use crate::memory::UserMemoryStore;
use crate::recall::PastMessages;
use crate::schedule::ScheduleStore;
use crate::user_skills::UserSkillStore;

/// Clones share the stores.
#[derive(Clone, Debug, Default)]
pub struct KnowledgePorts {
    /// `None` if the host has no schedules.
    pub schedules: Option<Arc<dyn ScheduleStore>>,
    /// `None` if the host keeps no memory of users.
    pub memory: Option<Arc<dyn UserMemoryStore>>,
    /// `None` if all callers are one user, and the agent does not share their memory.
    pub past_messages: Option<Arc<dyn PastMessages>>,
    /// `None` if users have no skills of their own.
    pub user_skills: Option<Arc<dyn UserSkillStore>>,
}
