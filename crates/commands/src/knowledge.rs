//! Documents of a user that built-in tools read and write: notes, skills, schedules and earlier messages.

use std::sync::Arc;

use async_trait::async_trait;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_queries::recall::find_messages;
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;
use turnwheel_tools::knowledge::KnowledgePorts;
use turnwheel_tools::recall::{FoundMessages, PastMessages};

/// Implements the stores of the built-in tools.
#[derive(Debug)]
pub struct Knowledge(Services);

impl Knowledge {
    pub fn new(services: &Services) -> Self {
        Self(services.clone())
    }

    /// The ports of the built-in tools, which share one copy of the services.
    pub fn ports(services: &Services) -> KnowledgePorts {
        let knowledge = Arc::new(Self::new(services));
        KnowledgePorts {
            schedules: Some(Arc::<Self>::clone(&knowledge)),
            memory: Some(Arc::<Self>::clone(&knowledge)),
            past_messages: Some(Arc::<Self>::clone(&knowledge)),
            user_skills: (!services.limits.has_shared_user).then_some(knowledge as _),
        }
    }

    pub(crate) fn services(&self) -> &Services {
        &self.0
    }
}

#[async_trait]
impl PastMessages for Knowledge {
    async fn find(
        &self,
        conversation: &ConversationKey,
        text: &str,
        limit: usize,
    ) -> Result<FoundMessages, String> {
        let found = find_messages(self.services(), conversation, text, limit).await;
        found.map_err(|error| CommandError::from(error).to_string())
    }
}
