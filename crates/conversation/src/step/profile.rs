//! Messages for the profile of the user: a commit records them in the head.

use crate::entry::EntryBody;
use crate::profile::messages::ProfileMessage;
use crate::transition::Transition;

/// Adds the messages that a person wrote in this commit, and counts those of the prompts that it
/// completes. Messages of failed, aborted and inserted prompts do not count.
pub(crate) fn record_messages(transition: &mut Transition) {
    let learns = transition.policy.learns_profile;
    if !learns && transition.head.profile_messages.is_none() {
        return;
    }
    let mut messages = transition.head.profile_messages.take().unwrap_or_default();
    let mut of_persons = transition.person_messages();
    let mut is_inserted = false;
    for entry in &transition.entries {
        if let EntryBody::Prompt(prompt) = &entry.body {
            is_inserted = prompt.started_at.is_some();
        }
        let text = of_persons.text(entry).filter(|_| learns && !is_inserted);
        let (seq, at) = (entry.base.seq, entry.base.timestamp);
        messages.running.extend(text.and_then(|text| ProfileMessage::new(seq, at, &text)));
        if let EntryBody::PromptEnd(end) = &entry.body {
            is_inserted = false;
            messages.end_prompt(end.state, transition.now);
        }
    }
    messages.enforce_bounds();
    transition.head.profile_messages = messages.into_non_empty();
}
