//! Hooks on agent runs: before a run starts, before the commit that ends it, and observers of what
//! was committed.

use std::sync::Arc;

use crate::commit::CommitKind;
use crate::context::TurnContext;
use crate::leased_conversation::LeasedConversation;
use crate::plan::CommitPlan;
use turnwheel_conversation::action::{StartChanges, is_message_type};
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::event::{AgentEnd, EventBody, SessionTreeChange};
use turnwheel_conversation::inbox::{InboxBody, InboxItem};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::step::{Input, started_prompt_id};
use turnwheel_conversation::transition::Transition;
use turnwheel_extensions::context::Anchor;
use turnwheel_extensions::runner::FailureCause;
use turnwheel_extensions::{FinishedRun, Hook, HookError, Observation, RunChanges, StartingRun};
use turnwheel_json::raw::{BODY_DEPTH_MAX, RawJson};
use turnwheel_record::error::TurnError;

/// Agent runs that one commit may start, each of which ends at once.
const STARTS_MAX: usize = 8;
/// Maximum bytes of a system prompt, and of the messages that extensions add to a run.
const BYTES_MAX: usize = 64 * 1024;
/// Maximum number of messages that extensions add to a run.
const MESSAGES_MAX: usize = 16;

const OBSERVED: [Hook; 4] =
    [Hook::AgentStart, Hook::TurnStart, Hook::ModelSelect, Hook::SessionTree];

/// A committed fact, and its place in the conversation.
pub(crate) struct ObservedFact {
    anchor: Anchor,
    fact: Observation,
}

impl LeasedConversation<'_> {
    /// Runs the hooks on the agent runs that the plan starts or ends. Without extensions nothing is
    /// allocated.
    ///
    /// # Errors
    /// The lease was lost: discard the work.
    pub(crate) async fn run_agent_hooks(&mut self, plan: &mut CommitPlan) -> Result<(), TurnError> {
        if plan.transition().held_start.is_some() && !self.compact_before_start(plan).await? {
            Box::pin(self.start_held_runs(plan)).await?;
        }
        if self.has_hook(Hook::AgentEnd, plan.context()) {
            Box::pin(self.finish_runs(plan)).await?;
        }
        Ok(())
    }

    /// Adds the changes of extensions to each run that waits for them. A run whose hooks have no
    /// time left keeps waiting: a later turn starts it.
    async fn start_held_runs(&mut self, plan: &mut CommitPlan) -> Result<(), TurnError> {
        for _ in 0..STARTS_MAX {
            let Some(item) = plan.transition().held_start.clone() else { return Ok(()) };
            let Some(changes) = self.collect_start_changes(plan, &item).await? else {
                return Ok(());
            };
            let mut inputs = plan.take_inputs();
            let drain = inputs.iter().rposition(|input| matches!(input, Input::DrainInbox));
            let at = drain.unwrap_or(inputs.len());
            inputs.splice(at..at, changes);
            *plan = self.state.plan(self.services, inputs);
        }
        Ok(())
    }

    /// The changes to the run that the item starts, and the actions of the hooks. `None`: no time is
    /// left.
    async fn collect_start_changes(
        &mut self,
        plan: &CommitPlan,
        item: &InboxItem,
    ) -> Result<Option<Vec<Input>>, TurnError> {
        let Some(prompt_id) = started_prompt_id(item) else { return Ok(None) };
        let input = if let InboxBody::Custom(custom) = &item.body {
            Some(&custom.message.content)
        } else {
            item.prompt().and_then(|prompt| prompt.input.as_ref())
        };
        let context = plan.context();
        let mut changes = StartChanges {
            prompt_id: prompt_id.clone(),
            messages: Vec::new(),
            system_prompt: None,
        };
        let mut actions = Vec::new();
        let own_prompt = context.own_system_prompt();
        let anchor = Anchor::Prompt(prompt_id.clone());
        for cx in self.hook_contexts(Hook::BeforeAgentStart, context, anchor) {
            let system_prompt = changes.system_prompt.as_deref().unwrap_or(&own_prompt);
            let run = StartingRun { prompt_id: &prompt_id, input, system_prompt };
            let work = async {
                let own = cx.extension().before_agent_start(&cx, &run).await?;
                check_run_changes(&own, &changes)?;
                Ok(own)
            };
            match self.run_hook(&cx, work).await? {
                Ok(own) => {
                    changes.messages.extend(own.messages);
                    changes.system_prompt = own.system_prompt.or(changes.system_prompt);
                    actions.extend(cx.take_actions());
                }
                Err(failure) if failure.cause == FailureCause::CommitTimeout => return Ok(None),
                Err(_reported) => {}
            }
        }
        let changes = Input::StartChanges(Box::new(changes));
        Ok(Some([changes].into_iter().chain(actions).collect()))
    }

    /// Runs `finish_run` for each run that the plan ends, and adds the actions.
    async fn finish_runs(&mut self, plan: &mut CommitPlan) -> Result<(), TurnError> {
        let ended = plan.transition().events.iter().filter_map(|event| {
            if let EventBody::AgentEnd(end) = &event.body { Some(end.clone()) } else { None }
        });
        for end in ended.collect::<Vec<AgentEnd>>() {
            let entries = self.run_entries(plan.transition(), &end).await;
            let messages: Vec<&Message> =
                entries.iter().filter_map(|entry| entry.body.message()).collect();
            let run = FinishedRun { messages: &messages, will_retry: end.will_retry };
            let anchor = Anchor::Entry(end.to_seq);
            for cx in self.hook_contexts(Hook::AgentEnd, plan.context(), anchor) {
                let work = async { cx.extension().finish_run(&cx, &run).await };
                if self.run_hook(&cx, work).await?.is_ok()
                    && let Some(actions) = cx.take_actions()
                {
                    plan.add(actions);
                }
            }
        }
        Ok(())
    }

    /// The entries of a run. If the stored ones cannot be read, those of this commit: the commit of
    /// a paid response must not fail here.
    async fn run_entries(&self, transition: &Transition, end: &AgentEnd) -> Vec<Arc<Entry>> {
        let stored = match transition.entries.first() {
            Some(first) if first.base.seq <= end.from_seq => Arc::default(),
            _ => {
                let run = self.state.load_range(self.services, end.from_seq, end.to_seq);
                run.await.unwrap_or_default()
            }
        };
        let is_of_run = |entry: &&Arc<Entry>| (end.from_seq..=end.to_seq).contains(&entry.base.seq);
        stored.iter().chain(&transition.entries).filter(is_of_run).cloned().collect()
    }

    /// Runs the observers of the turn that the next model call opens. Its events are committed with
    /// the response.
    pub(crate) async fn observe_turn_of_call(&mut self, context: &TurnContext) {
        let run = self.state.head.prompt.as_ref().filter(|run| !run.is_turn_open);
        let Some((starts_run, turns)) = run.map(|run| (run.is_between_attempts, run.run_turns))
        else {
            return;
        };
        let observes = |hook: Hook| self.has_hook(hook, context);
        if !observes(Hook::AgentStart) && !observes(Hook::TurnStart) {
            return;
        }
        let anchor = self.response_anchor();
        let fact = Observation::TurnStart { turn_index: if starts_run { 0 } else { turns } };
        let turn = ObservedFact { anchor: anchor.clone(), fact };
        let start = ObservedFact { anchor, fact: Observation::AgentStart };
        let facts = Some(start).filter(|_| starts_run).into_iter().chain([turn]).collect();
        Box::pin(self.run_observers(context, facts)).await;
    }

    /// The facts of a commit that extensions observe. Those of the turn that its response opens were
    /// observed before the call.
    pub(crate) fn observed_facts(
        &self,
        kind: CommitKind,
        transition: &Transition,
    ) -> Vec<ObservedFact> {
        let agent = self.services.agents.find(Some(&transition.head.agent)).ok();
        let is_observed = self
            .services
            .extensions_of(agent.as_deref())
            .any(|extension| OBSERVED.iter().any(|hook| extension.events().contains(*hook)));
        if !is_observed {
            return Vec::new();
        }
        let run = self.state.head.prompt.as_ref();
        let mut is_of_call =
            kind == CommitKind::Response && run.is_some_and(|run| !run.is_turn_open);
        let mut facts = Vec::new();
        for entry in &transition.entries {
            if let EntryBody::ModelChange(change) = &entry.body {
                let (anchor, fact) =
                    (Anchor::Entry(entry.base.seq), Observation::ModelSelect(change.clone()));
                facts.push(ObservedFact { anchor, fact });
            }
        }
        let mut turns = self.state.head.prompt.as_ref().map_or(0, |run| run.run_turns);
        for event in &transition.events {
            let anchor = Anchor::Event(event.n);
            if let EventBody::SessionTree(moved) = &event.body {
                let fact = moved_leaf(moved, &transition.entries);
                facts.push(ObservedFact { anchor, fact });
            } else if let EventBody::AgentStart(_) = &event.body {
                turns = 0;
                if !is_of_call {
                    facts.push(ObservedFact { anchor, fact: Observation::AgentStart });
                }
            } else if let EventBody::TurnStart(_) = &event.body {
                let fact = Observation::TurnStart { turn_index: turns };
                turns += 1;
                if !std::mem::take(&mut is_of_call) {
                    facts.push(ObservedFact { anchor, fact });
                }
            }
        }
        facts
    }

    /// Runs the observers. If the lease is lost meanwhile, the rest does not run; the next renewal
    /// reports the loss.
    pub(crate) async fn run_observers(&mut self, context: &TurnContext, facts: Vec<ObservedFact>) {
        for ObservedFact { anchor, fact } in facts {
            for cx in self.hook_contexts(fact.hook(), context, anchor) {
                let work = async { cx.extension().observe(&cx, &fact).await };
                if self.run_hook(&cx, work).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn moved_leaf(moved: &SessionTreeChange, entries: &[Arc<Entry>]) -> Observation {
    let summary = entries.iter().find(|entry| Some(entry.base.seq) == moved.summary);
    let summary = summary.and_then(|entry| {
        if let EntryBody::BranchSummary(branch) = &entry.body { Some(branch) } else { None }
    });
    Observation::SessionTree {
        old_leaf_id: moved.old_leaf_id.clone(),
        new_leaf_id: moved.new_leaf_id.clone(),
        summary: summary.map(|branch| branch.summary.clone()),
    }
}

/// # Errors
/// The changes exceed a limit, together with those of earlier extensions: report the text.
fn check_run_changes(own: &RunChanges, earlier: &StartChanges) -> Result<(), HookError> {
    let prompt_bytes = own.system_prompt.as_ref().map_or(0, String::len);
    if prompt_bytes > BYTES_MAX {
        return Err(HookError::new(format!(
            "the system prompt has {prompt_bytes} bytes: at most {BYTES_MAX} are allowed"
        )));
    }
    if !own.messages.iter().all(|message| is_message_type(&message.custom_type)) {
        return Err(HookError::new("the type of a message is a text of 1 to 128 bytes"));
    }
    if own.messages.iter().any(|it| RawJson::from_value(it).depth() > BODY_DEPTH_MAX) {
        return Err(HookError::new(format!("a message may nest at most {BODY_DEPTH_MAX} levels")));
    }
    let all = || earlier.messages.iter().chain(&own.messages);
    let bytes: usize = all().map(|message| RawJson::from_value(message).text().len()).sum();
    if all().count() > MESSAGES_MAX || bytes > BYTES_MAX {
        return Err(HookError::new(format!(
            "extensions add {} messages of {bytes} bytes to the run: at most {MESSAGES_MAX} of {BYTES_MAX} bytes together are allowed",
            all().count()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_conversation::entry::CustomMessageEntry;
    use turnwheel_platform::ids::PromptId;

    #[test]
    fn message_of_run_that_nests_too_deeply_is_refused() {
        let earlier = StartChanges {
            prompt_id: PromptId::new("pr_1"),
            messages: Vec::new(),
            system_prompt: None,
        };
        let check = |levels: usize| {
            let details = "[".repeat(levels) + &"]".repeat(levels);
            let message = CustomMessageEntry {
                details: Some(RawJson::from_text(details).unwrap()),
                ..CustomMessageEntry::new("note", "hi")
            };
            let own = RunChanges { messages: vec![message], system_prompt: None };
            check_run_changes(&own, &earlier)
        };
        check(BODY_DEPTH_MAX - 1).unwrap();
        let error = check(BODY_DEPTH_MAX).unwrap_err().to_string();
        assert_eq!(error, "a message may nest at most 110 levels");
    }
}
