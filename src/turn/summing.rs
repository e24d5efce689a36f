//! Compaction: checks the context window, requests the summary, and commits the outcome.

use std::sync::Arc;

use crate::agent::compaction::{Count, Plan, Reason, Room, plan, tokens};
use crate::agent::entry::{Compaction, Entry};
use crate::agent::event::AnswerEvent;
use crate::agent::path::{back, path};
use crate::agent::phase::Phase;
use crate::agent::settings::{MODEL, Settings};
use crate::agent::step::{Input, Setback, Summarised, SummaryOutcome, wants_measuring};
use crate::agent::usage::Usage;
use crate::extensions::{CompactionAhead, Hook, Instead};
use crate::model::tokens::{at_most, count};
use crate::model::{Listener, ModelRecord};
use crate::turn::answering::offers;
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::tried::Tried;

mod asking;

pub(super) use asking::output_max;

/// Summaries are not streamed.
struct Unheard;

impl Listener for Unheard {
    fn hear(&self, _event: AnswerEvent) {}
}

/// Input of one compaction.
struct Site<'a> {
    plan: Plan<'a>,
    path: &'a [Arc<Entry>],
    record: ModelRecord,
    room: Room,
    tokens_before: u64,
}

impl Hold<'_> {
    /// The model of the next call.
    pub(super) fn model(&self, settings: &Settings) -> Result<ModelRecord, String> {
        let of_prompt = self.head.prompt.as_ref().and_then(|run| run.model.as_deref());
        let model = of_prompt.or(settings.model.as_deref()).unwrap_or(MODEL);
        self.world.model.record(model)
    }

    pub(super) fn room(&self, settings: &Settings) -> Room {
        // Without a model the call fails with the reason.
        let window = self.model(settings).map_or(0, |record| record.context_window);
        Room::new(window, &settings.compaction.clone().unwrap_or_default())
    }

    /// Adds the input that reports a full context window, if the inputs lead to one. Counts tokens
    /// only if the number of bytes allows a full window.
    pub(super) async fn measure(&self, tried: &mut Tried) -> Result<(), TurnError> {
        let draft = tried.draft();
        if !wants_measuring(draft) {
            return Ok(());
        }
        let entries = self.entries().await?;
        let room = draft.rules.room;
        let leaf = draft.head.leaf_id.as_ref();
        let measured = |count: Count<'_>| {
            let back = back(entries.iter().chain(&draft.entries), leaf);
            tokens::in_context(back, &|| self.frame_tokens(count), count)
        };
        if !room.is_full(measured(&at_most)) || !room.is_full(measured(&count)) {
            return Ok(());
        }
        let all: Vec<Arc<Entry>> = entries.iter().chain(&draft.entries).cloned().collect();
        if plan(&path(&all, leaf), room.keep_recent, &count).is_ok() {
            tried.add(Input::Crowded);
        }
        Ok(())
    }

    /// Tokens of the request beside the messages.
    pub(super) fn frame_tokens(&self, count: Count<'_>) -> u64 {
        let Ok(agent) = self.world.agents.find(Some(&self.head.agent)) else { return 0 };
        let offers = offers(&agent, &self.settings());
        let tools = offers.iter().map(|offer| {
            count(offer.name) + count(offer.description) + count(&offer.parameters.to_string())
        });
        count(&agent.instructions) + tools.sum::<u64>()
    }

    /// Performs the pending compaction and commits its outcome.
    pub(super) async fn sum_up(&mut self) -> Result<(), TurnError> {
        self.world.probe.reached("summing.before").await;
        let summarised = self.summarised().await?;
        self.is_admitted = false;
        self.world.probe.reached("summing.after").await;
        self.has_run_tools = true;
        self.unbooked = Some((summarised.usage, summarised.calls)).filter(|(_, calls)| *calls > 0);
        let is_done = matches!(summarised.outcome, SummaryOutcome::Done(_));
        let before = self.head.seq;
        let done = vec![Input::Summarised(Box::new(summarised))];
        self.commit_done("summary", done).await?;
        self.unbooked = None;
        if is_done && !self.world.extensions.is_empty() {
            Box::pin(self.compacted(before)).await?;
        }
        Ok(())
    }

    /// Runs `after_compaction` for the entries after `before`.
    async fn compacted(&mut self, before: u64) -> Result<(), TurnError> {
        let (world, conversation) = (self.world, self.key.clone());
        let entries = self.entries().await?;
        let new = entries.iter().filter(|entry| entry.base.seq > before);
        for entry in new.filter(|entry| entry.body.compaction().is_some()) {
            for extension in &world.extensions {
                let work = async { extension.after_compaction(&conversation, entry).await };
                // The failure is already reported, and the compaction stays in the record.
                let _reported = self.run_hook(&**extension, Hook::AfterCompaction, work).await?;
            }
        }
        Ok(())
    }

    async fn summarised(&mut self) -> Result<Summarised, TurnError> {
        let settings = self.settings();
        let record = match self.model(&settings) {
            Ok(record) => record,
            Err(reason) => return Ok(failed(reason)),
        };
        let room = Room::new(record.context_window, &settings.compaction.unwrap_or_default());
        let entries = self.entries().await?;
        let path = path(&entries, self.head.leaf_id.as_ref());
        let plan = match plan(&path, room.keep_recent, &count) {
            Ok(plan) => plan,
            Err(uncut) => return Ok(failed(uncut.text().to_owned())),
        };
        let frame = || self.frame_tokens(&count);
        let back = back(entries.iter(), self.head.leaf_id.as_ref());
        let tokens_before = tokens::in_context(back, &frame, &count);
        let site = Site { plan, path: &path, record, room, tokens_before };
        match Box::pin(self.asked_extensions(&site)).await? {
            Some(Instead::Cancel) => Ok(uncalled(SummaryOutcome::Cancelled)),
            Some(Instead::Summary { summary, details }) => {
                let entry = Compaction {
                    summary,
                    first_kept_entry_id: site.plan.first_kept.clone(),
                    tokens_before,
                    details,
                    from_hook: Some(true),
                    usage: None,
                    calls: None,
                };
                Ok(self.proven(&site, entry))
            }
            None => self.ask_for_summary(&site).await,
        }
    }

    /// The first replacement that an extension returns. Failed hooks are skipped.
    async fn asked_extensions(&mut self, site: &Site<'_>) -> Result<Option<Instead>, TurnError> {
        if self.world.extensions.is_empty() {
            return Ok(None);
        }
        let Phase::Summary { reason, instructions, .. } = self.head.phase.clone() else {
            return Ok(None);
        };
        let (world, conversation) = (self.world, self.key.clone());
        let messages = asking::spoken(site.plan.history.iter().chain(site.plan.prefix));
        let ahead = CompactionAhead {
            conversation: &conversation,
            reason,
            instructions: instructions.as_deref(),
            tokens_before: site.tokens_before,
            messages: &messages,
            previous_summary: site.plan.previous.map(|previous| previous.summary.as_str()),
            first_kept_entry_id: site.plan.first_kept,
        };
        for extension in &world.extensions {
            let work = async { extension.before_compaction(&ahead).await };
            let outcome = self.run_hook(&**extension, Hook::BeforeCompaction, work).await?;
            if let Ok(Some(instead)) = outcome {
                return Ok(Some(instead));
            }
        }
        Ok(None)
    }

    /// Accepts a summary only if the model input gets shorter with it.
    fn proven(&self, site: &Site<'_>, entry: Compaction) -> Summarised {
        let (usage, calls) = (entry.usage.unwrap_or_default(), entry.calls.unwrap_or_default());
        let after = self.tokens_after(site, &entry.summary);
        let is_overflow =
            matches!(self.head.phase, Phase::Summary { reason: Reason::Overflow, .. });
        // The model refused the input: it exceeded the window, whatever the estimate is.
        let before = site.tokens_before.max(if is_overflow { site.room.window } else { 0 });
        let outcome = if after < before {
            SummaryOutcome::Done(Box::new(entry))
        } else {
            let text = format!(
                "the summary would not shorten the conversation: {after} tokens after it, {before} before"
            );
            SummaryOutcome::Failed { text, setback: Setback::Final }
        };
        Summarised { usage, calls, outcome }
    }

    fn tokens_after(&self, site: &Site<'_>, summary: &str) -> u64 {
        let kept = site.path.iter().skip_while(|e| e.base.entry_id != *site.plan.first_kept);
        let kept: u64 = kept.map(|entry| tokens::of_entry(entry, &count)).sum();
        self.frame_tokens(&count) + count(summary) + kept
    }
}

fn failed(text: String) -> Summarised {
    uncalled(SummaryOutcome::Failed { text, setback: Setback::Final })
}

/// The outcome of a compaction without a model call.
fn uncalled(outcome: SummaryOutcome) -> Summarised {
    Summarised { usage: Usage::default(), calls: 0, outcome }
}
