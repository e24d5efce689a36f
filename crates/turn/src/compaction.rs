//! Compaction: checks the context window, requests the summary, and commits the outcome.

use std::sync::Arc;

use crate::commit::CommitKind;
use crate::context::TurnContext;
use crate::leased_conversation::LeasedConversation;
use crate::plan::CommitPlan;
use turnwheel_conversation::compaction::prospects::{FixedPart, Prospects, oversized_message_text};
use turnwheel_conversation::compaction::{
    CompactionPlan, ContextBudget, TokenCounter, plan_compaction, tokens,
};
use turnwheel_conversation::context_ranges::{SeqRange, ranges_of};
use turnwheel_conversation::entry::{CarriedWorkspace, Compaction, Entry};
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::input_repair::{Refusal, RefusedInput, find_oversized_input};
use turnwheel_conversation::path::{path_from_leaf, path_to_leaf};
use turnwheel_conversation::phase::{CompactionReason, Phase};
use turnwheel_conversation::question::QuestionSpec;
use turnwheel_conversation::step::{
    FailureKind, FinishedSummary, Input, SummaryAttempt, SummaryOutcome,
    should_measure_before_start, should_measure_context,
};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::usage::Usage;
use turnwheel_extensions::context::Anchor;
use turnwheel_extensions::{Hook, PendingCompaction, SummaryOverride};
use turnwheel_model::tokens::{count_tokens, upper_bound};
use turnwheel_model::{Listener, ModelRecord};
use turnwheel_record::error::TurnError;

mod branch_summary;
mod summary_request;

pub(crate) use summary_request::{branch_output_max, summary_output_max};

/// Summaries are not streamed.
#[derive(Debug)]
pub struct NullListener;

impl Listener for NullListener {
    fn on_event(&self, _event: AssistantMessageEvent) {}
}

/// Outcome of the hooks before a compaction.
enum HookOutcome {
    Decided(SummaryOverride),
    Asked(Box<QuestionSpec>),
}

/// Input of one compaction.
struct CompactionInput<'a> {
    context: TurnContext,
    plan: CompactionPlan<'a>,
    path: &'a [Arc<Entry>],
    record: ModelRecord,
    budget: ContextBudget,
    tokens_before: u64,
    /// Tokens of the frame of the next model call.
    frame_tokens: u64,
}

impl LeasedConversation<'_> {
    /// Adds the input that reports a full context window, if the inputs lead to one. Counts tokens
    /// only if the number of bytes allows a full window.
    pub(crate) async fn check_context_window(
        &self,
        commit_plan: &mut CommitPlan,
    ) -> Result<(), TurnError> {
        if !should_measure_context(commit_plan.transition()) {
            return Ok(());
        }
        self.measure_context(commit_plan).await
    }

    /// Starts the compaction that precedes a waiting prompt, before the hooks of its start. True if
    /// there is one.
    pub(crate) async fn compact_before_start(
        &self,
        commit_plan: &mut CommitPlan,
    ) -> Result<bool, TurnError> {
        if !should_measure_before_start(commit_plan.transition()) {
            return Ok(false);
        }
        self.measure_context(commit_plan).await?;
        let phase = &commit_plan.transition().head.phase;
        Ok(matches!(phase, Phase::Summary { .. }))
    }

    async fn measure_context(&self, commit_plan: &mut CommitPlan) -> Result<(), TurnError> {
        let (transition, context) = (commit_plan.transition(), commit_plan.context());
        let (next, new) = (&transition.head, &transition.entries);
        let entries = self.state.load_context_after(self.services, next, new).await?;
        let budget = transition.policy.context_budget;
        let leaf = transition.head.leaf_id.as_ref();
        let input_tokens = |count: TokenCounter<'_>| {
            let back = path_from_leaf(entries.iter().chain(&transition.entries), leaf);
            let frame = || context.frame_tokens(&transition.head, count);
            tokens::count_context(back, &frame, count)
        };
        let exceeded = |count: TokenCounter<'_>| {
            Some(input_tokens(count)).filter(|it| budget.is_exceeded(*it))
        };
        let Some(tokens_before) = exceeded(&upper_bound).and_then(|_| exceeded(&count_tokens))
        else {
            if next.compaction_note.as_ref().is_some_and(|note| note.is_fixed_part) {
                commit_plan.add(Input::FixedPartMeasured(None));
            }
            return Ok(());
        };
        let all: Vec<Arc<Entry>> = entries.iter().chain(&transition.entries).cloned().collect();
        let path = path_to_leaf(&all, leaf);
        let fixed = context.fixed_part(next, &count_tokens);
        let note = next.compaction_note.as_deref();
        let is_worthwhile = match plan_compaction(&path, budget.keep_recent, &count_tokens) {
            Ok(plan) => Prospects {
                plan: &plan,
                path: &path,
                budget: &budget,
                fixed: &fixed,
                tokens_before,
                note,
                count: &count_tokens,
            }
            .is_worthwhile(),
            Err(_too_small) => false,
        };
        let is_exceeded = fixed.exceeds_threshold(&budget);
        let is_noted = note.is_some_and(|note| note.is_fixed_part);
        if is_exceeded && !is_noted {
            let text = fixed.to_note_text(&budget);
            tracing::warn!(conversation.id = %next.conversation_id, agent = %next.agent, reason = text, "fixed part of the model input exceeds the compaction threshold");
            commit_plan.add(Input::FixedPartMeasured(Some(text)));
        } else if is_noted && !is_exceeded {
            commit_plan.add(Input::FixedPartMeasured(None));
        }
        if is_worthwhile {
            commit_plan.add(Input::ContextWindowExceeded);
        }
        Ok(())
    }

    /// Performs the pending compaction and commits its outcome.
    pub async fn compact(&mut self) -> Result<(), TurnError> {
        let is_branch = self.state.head.phase.is_branch_summary();
        let (before, after) = if is_branch {
            ("navigate.before", "navigate.after")
        } else {
            ("compaction.before", "compaction.after")
        };
        self.services.fail_points.hit(before).await;
        let mut actions = Vec::new();
        let mut summarised = self.summarise(&mut actions).await?;
        if summarised.has_failed() {
            summarised.oversized = self.find_oversized_part().await?;
        }
        self.costs.record_calls(summarised.usage, summarised.calls);
        self.services.fail_points.hit(after).await;
        self.progress.record_tools();
        let is_done = matches!(summarised.outcome, SummaryOutcome::Done(_));
        let before = self.state.head.seq;
        let mut done = vec![Input::SummaryFinished(Box::new(summarised))];
        done.append(&mut actions);
        self.commit_with_inbox(CommitKind::Summary, done).await?;
        self.costs.mark_committed();
        if is_done {
            Box::pin(self.run_after_compaction(before)).await?;
        }
        Ok(())
    }

    /// Runs `after_compaction` for the entries after `before`.
    async fn run_after_compaction(&mut self, before: u64) -> Result<(), TurnError> {
        let context = self.state.context(self.services);
        if !self.has_hook(Hook::SessionCompact, &context) {
            return Ok(());
        }
        let entries = self.state.load_context(self.services).await?;
        let new = entries.iter().filter(|entry| entry.base.seq > before);
        for entry in new.filter(|entry| entry.body.compaction().is_some()) {
            let anchor = Anchor::Entry(entry.base.seq);
            for cx in self.hook_contexts(Hook::SessionCompact, &context, anchor) {
                let work = async { cx.extension().after_compaction(&cx, entry).await };
                // The failure is already reported, and the compaction stays in the record.
                let _reported = self.run_hook(&cx, work).await?;
            }
        }
        Ok(())
    }

    /// This attempt at the compaction, after some of its model calls.
    pub(crate) fn summary_anchor(&self, earlier_calls: u32) -> Anchor {
        Anchor::Summary { after: self.state.head.seq, attempt: self.state.attempt(), earlier_calls }
    }

    /// `actions` receives those of the hooks before the attempt.
    async fn summarise(&mut self, actions: &mut Vec<Input>) -> Result<SummaryAttempt, TurnError> {
        if let Phase::Summary { branch: Some(target), .. } = &self.state.head.phase {
            let target = target.clone();
            return Box::pin(branch_summary::summarise_branch(self, &target)).await;
        }
        let context = self.state.context(self.services);
        let record = match context.model_record(&*self.services.model, &self.state.head) {
            Ok(record) => record,
            Err(reason) => return Ok(failed_summary(reason)),
        };
        let budget = context.context_budget(record.context_window);
        let entries = self.state.load_context(self.services).await?;
        let path = path_to_leaf(&entries, self.state.head.leaf_id.as_ref());
        let fixed = context.fixed_part(&self.state.head, &count_tokens);
        let frame_tokens = fixed.total;
        let back = path_from_leaf(entries.iter(), self.state.head.leaf_id.as_ref());
        let tokens_before = tokens::count_context(back, &|| frame_tokens, &count_tokens);
        let plan = match self.plan_summary(&path, &budget, tokens_before, &fixed) {
            Ok(plan) => plan,
            Err(text) => return Ok(failed_summary(text)),
        };
        let input = CompactionInput {
            context,
            plan,
            path: &path,
            record,
            budget,
            tokens_before,
            frame_tokens,
        };
        match Box::pin(self.run_before_compaction(&input, actions)).await? {
            Some(HookOutcome::Asked(question)) => {
                Ok(summary_without_call(SummaryOutcome::Asked(question)))
            }
            Some(HookOutcome::Decided(SummaryOverride::Cancel)) => {
                Ok(summary_without_call(SummaryOutcome::Cancelled))
            }
            Some(HookOutcome::Decided(SummaryOverride::Summary { summary, details })) => {
                let entry = Compaction {
                    summary,
                    first_kept_entry_id: input.plan.first_kept.clone(),
                    tokens_before,
                    details,
                    from_hook: Some(true),
                    usage: None,
                    calls: None,
                    workspace: None,
                    extra: Extra::new(),
                };
                Ok(input.accept_if_shorter(&self.state.head.phase, entry))
            }
            None => summary_request::request_summary(self, &input).await,
        }
    }

    /// The part of the input that the model refused as too large, for a compaction that could not help.
    async fn find_oversized_part(&mut self) -> Result<Option<RefusedInput>, TurnError> {
        let Phase::Summary { reason: CompactionReason::Overflow, .. } = self.state.head.phase
        else {
            return Ok(None);
        };
        let context = self.state.context(self.services);
        let window = context
            .model_record(&*self.services.model, &self.state.head)
            .map_or(0, |record| record.context_window);
        let fixed = context.fixed_part(&self.state.head, &count_tokens);
        if fixed.fills_window(&context.context_budget(window)) {
            return Ok(None);
        }
        let entries = self.state.load_context(self.services).await?;
        let path = path_to_leaf(&entries, self.state.head.leaf_id.as_ref());
        Ok(find_oversized_input(&path, Refusal::default()))
    }

    /// The plan of the pending compaction, or why it cannot help.
    fn plan_summary<'p>(
        &self,
        path: &'p [Arc<Entry>],
        budget: &ContextBudget,
        tokens_before: u64,
        fixed: &FixedPart,
    ) -> Result<CompactionPlan<'p>, String> {
        let plan = plan_compaction(path, budget.keep_recent, &count_tokens);
        let head = &self.state.head;
        if !matches!(head.phase, Phase::Summary { reason: CompactionReason::Overflow, .. }) {
            return plan.map_err(|error| error.message().to_owned());
        }
        if fixed.fills_window(budget) {
            return Err(fixed.to_note_text(budget));
        }
        let oversized_text = || oversized_message_text(path, budget.window, &count_tokens);
        // The input would be refused again.
        let fills_window = |plan: &CompactionPlan<'_>| {
            let kept = plan.kept_tokens(path, &count_tokens);
            budget.window > 0 && fixed.total.saturating_add(kept) >= budget.window
        };
        let plan = match plan {
            Ok(plan) if !fills_window(&plan) => plan,
            // The newest message alone may fit.
            Ok(_) | Err(_) => plan_compaction(path, 1, &count_tokens)
                .map_err(|error| oversized_text().unwrap_or_else(|| error.message().to_owned()))?,
        };
        if fills_window(&plan) {
            return Err(oversized_text().unwrap_or_else(|| fixed.to_note_text(budget)));
        }
        let Some(note) = head.compaction_note.as_deref() else { return Ok(plan) };
        let prospects = Prospects {
            plan: &plan,
            path,
            budget,
            fixed,
            tokens_before,
            note: Some(note),
            count: &count_tokens,
        };
        if prospects.can_recover() {
            return Ok(plan);
        }
        Err(note.unchanged_text())
    }

    /// The first question that an extension asks, or the last replacement, unless one cancels.
    /// Failed hooks are skipped.
    async fn run_before_compaction(
        &mut self,
        input: &CompactionInput<'_>,
        actions: &mut Vec<Input>,
    ) -> Result<Option<HookOutcome>, TurnError> {
        let contexts =
            self.hook_contexts(Hook::SessionBeforeCompact, &input.context, self.summary_anchor(0));
        if contexts.is_empty() {
            return Ok(None);
        }
        let Phase::Summary { reason, instructions, answers, .. } = self.state.head.phase.clone()
        else {
            return Ok(None);
        };
        let messages = summary_request::model_messages(
            input.plan.history.iter().chain(input.plan.prefix),
            input.path,
        );
        let compaction_ahead = PendingCompaction {
            reason,
            instructions: instructions.as_deref(),
            tokens_before: input.tokens_before,
            messages: &messages,
            previous_summary: input.plan.previous.map(|previous| previous.summary.as_str()),
            first_kept_entry_id: input.plan.first_kept,
        };
        let mut replacement = None;
        for cx in contexts {
            let cx = cx.with_questions(&answers);
            let work = async { cx.extension().before_compaction(&cx, &compaction_ahead).await };
            let outcome = self.run_hook(&cx, work).await?;
            if let Some(question) = cx.take_question() {
                // All hooks run again after the answer.
                actions.clear();
                return Ok(Some(HookOutcome::Asked(Box::new(question))));
            }
            let Ok(decision) = outcome else { continue };
            actions.extend(cx.take_actions());
            replacement = decision.or(replacement);
            if replacement == Some(SummaryOverride::Cancel) {
                break;
            }
        }
        Ok(replacement.map(HookOutcome::Decided))
    }
}

impl CompactionInput<'_> {
    /// Accepts a summary only if the model input gets shorter with it.
    fn accept_if_shorter(&self, phase: &Phase, mut entry: Compaction) -> SummaryAttempt {
        let (usage, calls) =
            (entry.usage.as_deref().copied().unwrap_or_default(), entry.calls.unwrap_or_default());
        let after = self.tokens_after(&entry.summary);
        let is_overflow =
            matches!(phase, Phase::Summary { reason: CompactionReason::Overflow, .. });
        // The model refused the input: it exceeded the window, whatever the estimate is.
        let before = self.tokens_before.max(if is_overflow { self.budget.window } else { 0 });
        let outcome = if after < before {
            entry.workspace = CarriedWorkspace::from_path(self.path);
            let context = self.context_after(&entry);
            SummaryOutcome::Done(Box::new(FinishedSummary { compaction: entry, context }))
        } else {
            let text = format!(
                "the summary would not shorten the conversation: {after} tokens after it, {before} before"
            );
            SummaryOutcome::Failed { text, failure_kind: FailureKind::Permanent }
        };
        SummaryAttempt { usage, calls, outcome, oversized: None }
    }

    /// Numbers of the entries that later steps need, up to the newest one.
    fn context_after(&self, entry: &Compaction) -> Vec<SeqRange> {
        let all = || vec![SeqRange::from(1)];
        if entry.workspace.is_none() {
            return all();
        }
        let kept = self.path.iter().skip_while(|e| e.base.entry_id != entry.first_kept_entry_id);
        let mut ranges = ranges_of(kept.map(|entry| entry.base.seq));
        match ranges.last_mut() {
            Some(last) => last.to = None,
            None => return all(),
        }
        ranges
    }

    /// Tokens of the model input with this summary.
    fn tokens_after(&self, summary: &str) -> u64 {
        let kept = self.path.iter().skip_while(|e| e.base.entry_id != *self.plan.first_kept);
        let kept: u64 = kept.map(|entry| tokens::count_entry(entry, &count_tokens)).sum();
        self.frame_tokens + count_tokens(summary) + kept
    }
}

fn failed_summary(text: String) -> SummaryAttempt {
    summary_without_call(SummaryOutcome::Failed { text, failure_kind: FailureKind::Permanent })
}

/// The outcome of a compaction without a model call.
fn summary_without_call(outcome: SummaryOutcome) -> SummaryAttempt {
    SummaryAttempt { usage: Usage::default(), calls: 0, outcome, oversized: None }
}
