//! The tool's own check of a call's arguments, which runs before an approver is asked.

use crate::leased_conversation::LeasedConversation;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::transition::Transition;
use turnwheel_platform::ids::EffectId;
use turnwheel_tools::{Arguments, CallableTool, CheckContext};

impl LeasedConversation<'_> {
    /// Checks what the schema cannot express.
    ///
    /// # Errors
    /// The tool refuses the arguments: the call ends without an approval. The text is for the model.
    pub async fn check_arguments(
        &self,
        transition: &Transition,
        index: usize,
        tool: &dyn CallableTool,
        arguments: &Arguments,
    ) -> Result<(), String> {
        let head = &transition.head;
        let Phase::Calls { response_seq, calls, .. } = &head.phase else { return Ok(()) };
        let (conversation, incarnation) = (&head.conversation_id, &head.incarnation);
        let effect_id = EffectId::from_call(conversation, incarnation, *response_seq, index);
        let knowledge = self.knowledge();
        let context = CheckContext {
            effect_id: &effect_id,
            attempts: calls.get(index).map_or(0, |call| call.attempts),
            now: transition.now,
            conversation: &self.state.key,
            memory: knowledge.memory.as_deref(),
            user_skills: knowledge.user_skills.as_deref(),
        };
        tool.check_arguments(arguments, &context).await
    }
}
