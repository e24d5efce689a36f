//! Summary requests: the prompt sent to the model, and the check of its response.

use std::borrow::Cow;
use std::sync::Arc;

use crate::agent::compaction::told::{Shortened, conversation};
use crate::agent::compaction::{Room, Summed, files, tokens, wording};
use crate::agent::content::{Content, joined_text};
use crate::agent::entry::Entry;
use crate::agent::message::{Message, StopReason, UserMessage};
use crate::agent::phase::Phase;
use crate::agent::projection;
use crate::agent::raw::Extra;
use crate::agent::settings::ThinkingLevel;
use crate::agent::step::{Setback, Summarised, SummaryOutcome};
use crate::agent::usage::Usage;
use crate::clock::Timestamp;
use crate::model::tokens::count;
use crate::model::{Answer, Failure, ModelRecord, ModelRequest};
use crate::turn::answering::cut;
use crate::turn::delivery::TurnError;
use crate::turn::event_log::shortened;
use crate::turn::hold::Hold;
use crate::turn::spans::Asking;
use crate::turn::summing::{Site, Unheard};

/// Output tokens with thinking, which counts among them. A truncated summary is discarded, so the
/// limit is generous.
const THINKING_OUTPUT: u64 = 32_000;

/// One model call.
struct Question {
    text: String,
    output_tokens: u64,
    /// Prefix of the error text.
    what: &'static str,
}

/// Usage of the calls of one attempt.
#[derive(Clone, Copy, Default)]
struct Spent {
    usage: Usage,
    calls: u32,
}

/// Why the call gave no text.
struct Lost {
    text: String,
    setback: Setback,
    is_stopped: bool,
}

/// The messages as the provider would receive them.
pub(super) fn spoken<'a>(
    entries: impl IntoIterator<Item = &'a Arc<Entry>>,
) -> Vec<Cow<'a, Message>> {
    projection::convert(projection::spoken(entries))
}

impl Hold<'_> {
    pub(super) async fn ask_for_summary(
        &mut self,
        site: &Site<'_>,
    ) -> Result<Summarised, TurnError> {
        let (plan, room) = (&site.plan, &site.room);
        let Phase::Summary { instructions, .. } = self.head.phase.clone() else {
            return Ok(super::failed("no compaction is pending".to_owned()));
        };
        let mut spent = Spent::default();
        let mut shortened = Shortened::default();
        let previous = plan.previous.map(|previous| files::without_lists(&previous.summary));
        let history = spoken(plan.history);
        let history = if history.is_empty() {
            previous.unwrap_or(wording::NO_HISTORY).to_owned()
        } else {
            let asked = wording::asked(previous, instructions.as_deref());
            let output = output_tokens(&site.record, room.summary_tokens());
            let (text, cut) = self.told(site, &history, (&asked, output));
            shortened += cut;
            let question = Question { text, output_tokens: output, what: "Summarization failed" };
            match self.ask(&site.record, question, &mut spent).await? {
                Ok(text) => text,
                Err(lost) => return Ok(lost.with(spent)),
            }
        };
        let prefix = spoken(plan.prefix);
        let prefix = if prefix.is_empty() {
            None
        } else {
            let asked = wording::asked_of_prefix();
            let output = output_tokens(&site.record, room.prefix_tokens());
            let (text, cut) = self.told(site, &prefix, (&asked, output));
            shortened += cut;
            let what = "Turn prefix summarization failed";
            let question = Question { text, output_tokens: output, what };
            match self.ask(&site.record, question, &mut spent).await? {
                Ok(text) => Some(text),
                Err(lost) => return Ok(lost.with(spent)),
            }
        };
        let summed = Summed { history, prefix, files: plan.files(), shortened };
        let after = self.tokens_after(site, &summed.text());
        let spent = (spent.usage, spent.calls);
        let entry = summed.entry(plan.first_kept, (site.tokens_before, after), spent);
        Ok(self.proven(site, entry))
    }

    /// The prompt: as much of the conversation as fits the window beside the response, and the
    /// instructions. Each further attempt includes half as much: the model may count tokens
    /// differently or have a smaller window than known.
    fn told(
        &self,
        site: &Site<'_>,
        messages: &[Cow<'_, Message>],
        (asked, output): (&str, u64),
    ) -> (String, Shortened) {
        let window = match site.room.window {
            0 => u64::MAX,
            window => window,
        };
        let frame = count(wording::SYSTEM) + count(asked) + window / 50;
        let mut room = window.saturating_sub(output).saturating_sub(frame);
        let halvings = self.attempt().saturating_sub(1);
        if halvings > 0 {
            let whole: u64 = messages.iter().map(|it| tokens::of_message(it, &count)).sum();
            room = room.min(whole.checked_shr(halvings).unwrap_or(0));
        }
        let (told, shortened) = conversation(messages, room, &count);
        (wording::request(&told, asked), shortened)
    }

    /// Returns the text of the model response.
    async fn ask(
        &mut self,
        record: &ModelRecord,
        question: Question,
        spent: &mut Spent,
    ) -> Result<Result<String, Lost>, TurnError> {
        let asking = Asking::begin(self, record, self.attempt());
        let of_prompt = self.head.prompt.as_ref().and_then(|run| run.traceparent.clone());
        let traceparent = asking.span.traceparent().or(of_prompt);
        let session = self.session();
        let message = Message::User(UserMessage {
            content: Content::Text(question.text),
            timestamp: Timestamp(0),
            extra: Extra::new(),
        });
        let messages = [&message];
        let payloads = self.payloads();
        let request = ModelRequest {
            payload: payloads.as_ref().map(|hooks| hooks as _),
            model: record,
            system: Some(wording::SYSTEM),
            messages: &messages,
            tools: &[],
            thinking: if record.reasoning { ThinkingLevel::High } else { ThinkingLevel::Off },
            temperature: None,
            max_output_tokens: Some(question.output_tokens),
            response_schema: None,
            session_id: &session,
            traceparent: traceparent.as_deref(),
        };
        asking.ask(&request);
        let heard = asking.span.run(Box::pin(self.listen(record, request, &Unheard))).await;
        let answer = heard.map(|answer| {
            answer.unwrap_or_else(|| {
                let input = count(wording::SYSTEM) + tokens::of_message(&message, &count);
                cut(record, Vec::new(), input)
            })
        });
        asking.end(answer.as_ref());
        let answer = answer?;
        spent.usage += answer.message.usage;
        spent.calls += 1;
        log(&answer, self);
        Ok(self
            .text_of(answer)
            .map_err(|lost| Lost { text: format!("{}: {}", question.what, lost.text), ..lost }))
    }

    fn text_of(&self, answer: Answer) -> Result<String, Lost> {
        let again = || Setback::Passing { after: None, chance: self.world.ids.chance() };
        let message = answer.message;
        if message.is_failed() {
            let setback = match answer.failure {
                // The next attempt includes less of the conversation.
                Some(Failure::Overflow) => again(),
                failure => self.setback(failure.as_ref()),
            };
            let text = message.error_message.unwrap_or_else(|| "Unknown error".to_owned());
            let is_stopped = message.stop_reason == StopReason::Aborted;
            return Err(Lost { text, setback, is_stopped });
        }
        let text = joined_text(&message.content);
        if message.stop_reason == StopReason::Length {
            let text = "the summary was truncated at the output limit".to_owned();
            return Err(Lost { text, setback: again(), is_stopped: false });
        }
        if text.trim().is_empty() {
            let text = "the model response has no text".to_owned();
            return Err(Lost { text, setback: again(), is_stopped: false });
        }
        Ok(text)
    }
}

impl Lost {
    fn with(self, spent: Spent) -> Summarised {
        let outcome = if self.is_stopped {
            SummaryOutcome::Stopped
        } else {
            SummaryOutcome::Failed { text: self.text, setback: self.setback }
        };
        Summarised { usage: spent.usage, calls: spent.calls, outcome }
    }
}

/// Upper bound of the output tokens of both calls of a summary.
pub(in crate::turn) fn output_max(record: &ModelRecord, room: &Room) -> u64 {
    output_tokens(record, room.summary_tokens()) + output_tokens(record, room.prefix_tokens())
}

/// Output tokens of the response: the share of the reserve, or the amount that thinking needs.
fn output_tokens(record: &ModelRecord, share: u64) -> u64 {
    let wanted = if record.reasoning { THINKING_OUTPUT } else { share };
    let most = match record.context_window {
        0 => wanted,
        window => wanted.min(window / 2),
    };
    most.min(record.max_tokens).max(1)
}

fn log(answer: &Answer, hold: &Hold<'_>) {
    let (id, message) = (&hold.key.conversation_id, &answer.message);
    if message.stop_reason == StopReason::Error {
        let error = message.error_message.as_deref().unwrap_or("no reason was given");
        tracing::warn!(
            conversation.id = %id,
            agent = %hold.head.agent,
            gen_ai.request.model = %message.model,
            status = answer.reply.status,
            error.type = answer.reply.error.as_deref(),
            attempt = hold.attempt(),
            error = shortened(error),
            "compaction call failed"
        );
        return;
    }
    tracing::info!(
        conversation.id = %id,
        agent = %hold.head.agent,
        gen_ai.request.model = %message.model,
        gen_ai.usage.input_tokens = message.usage.input,
        gen_ai.usage.output_tokens = message.usage.output,
        "compaction call completed"
    );
}
