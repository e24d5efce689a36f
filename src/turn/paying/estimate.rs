//! Upper bound of the next model call's cost, as far as it can be computed before the call.

use crate::agent::compaction::{Room, wording};
use crate::agent::draft::Draft;
use crate::agent::message::Message;
use crate::agent::phase::Phase;
use crate::agent::raw::RawJson;
use crate::agent::settings::{MODEL, Settings};
use crate::agent::usage::{Tally, Usage};
use crate::model::ModelRecord;
use crate::model::catalogue::tariff;
use crate::turn::answering::offers;
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::summing::output_max;

/// Bytes of JSON counted as one token. Non-text has more bytes a token, and few texts have fewer.
const TOKEN_BYTES: usize = 3;

impl Hold<'_> {
    /// Upper bound of the next call: the last response's context, the entries after it, and the
    /// longest response. A summary may take two calls, whose inputs together are the same context.
    pub(super) async fn estimate(&self, draft: &Draft) -> Result<Tally, TurnError> {
        let settings = self.settings();
        let run = draft.head.prompt.as_ref();
        let model = run.and_then(|run| run.model.clone()).or(settings.model.clone());
        let Ok(record) = self.world.model.record(model.as_deref().unwrap_or(MODEL)) else {
            // The call cannot be made, and costs nothing.
            return Ok(Tally { calls: 1, ..Tally::default() });
        };
        let entries = self.entries().await?;
        let (mut known, mut bytes) = (0, 0);
        for entry in draft.entries.iter().rev().chain(entries.iter().rev()) {
            let Some(message) = entry.body.message() else { continue };
            if let Message::Assistant(answer) = message
                && answer.usage.total_tokens > 0
            {
                known = answer.usage.total_tokens;
                break;
            }
            bytes += RawJson::of(message).text().len();
            if bytes as u64 > record.context_window.saturating_mul(TOKEN_BYTES as u64) {
                break;
            }
        }
        if known == 0 {
            bytes += self.frame_bytes(&settings);
        }
        let context = known + bytes.div_ceil(TOKEN_BYTES) as u64;
        Ok(match &draft.head.phase {
            Phase::Summary { instructions, .. } => {
                let focus = instructions.as_deref();
                let asked = [wording::asked(None, focus), wording::asked_of_prefix()];
                let told = asked.iter().map(|asked| wording::SYSTEM.len() + asked.len());
                let input = context + told.sum::<usize>().div_ceil(TOKEN_BYTES) as u64;
                let room =
                    Room::new(record.context_window, &settings.compaction.unwrap_or_default());
                let window = record.context_window.saturating_mul(2);
                most(&record, input.min(window), output_max(&record, &room))
            }
            Phase::Idle | Phase::Model { .. } | Phase::Calls { .. } | Phase::Deleted => {
                let output = record.output_max(settings.max_output_tokens);
                most(&record, context.min(record.context_window), output)
            }
        })
    }

    /// Bytes of a first call's input beside the messages. Later calls know them from the last
    /// response's usage.
    fn frame_bytes(&self, settings: &Settings) -> usize {
        let Ok(agent) = self.world.agents.find(Some(&self.head.agent)) else { return 0 };
        let offers = offers(&agent, settings);
        let tools = offers.iter().map(|offer| {
            offer.name.len() + offer.description.len() + offer.parameters.to_string().len()
        });
        let schema = agent.response_schema.as_ref().map_or(0, |schema| schema.to_string().len());
        agent.instructions.len() + tools.sum::<usize>() + schema
    }
}

/// Uses the highest input price, because the service may write the input to its cache.
fn most(record: &ModelRecord, input: u64, output: u64) -> Tally {
    let cost = tariff(record).most(input, output);
    Tally::of(&Usage { input, output, total_tokens: input + output, cost, ..Usage::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::usage::nanos;
    use crate::model::catalogue::Catalogue;

    #[test]
    fn no_call_costs_more_than_its_estimate() {
        for model in ["gpt-4o", "gpt-5.1", "gpt-5.4", "gpt-6-sol", "nobody-knows"] {
            let record = Catalogue::default().record(model, model);
            for input in [10, 272_000, 272_001, 900_000] {
                let estimate = most(&record, input, 500);
                let parts = [
                    Usage { input, ..Usage::default() },
                    Usage { cache_write: input, ..Usage::default() },
                    Usage { cache_read: input, ..Usage::default() },
                    Usage { input: input / 2, cache_write: input / 2, ..Usage::default() },
                ];
                for usage in parts.map(|usage| Usage { output: 500, ..usage }) {
                    let cost = tariff(&record).cost(&usage).total;
                    assert!(nanos(cost) <= estimate.nanos, "{model} {usage:?}: {cost}");
                }
            }
        }
        let record = Catalogue::default().record("gpt-6-sol", "d");
        assert_eq!(most(&record, 1_000_000, 0).nanos, nanos(5.0), "written to the cache, long");
        assert_eq!(most(&record, 100_000, 0).nanos, nanos(0.25), "written to the cache");
    }
}
