//! Usage: tokens, and cost by the price table in force at the time of the response.

use std::ops::{AddAssign, Deref};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use turnwheel_json::raw::RawJson;
use turnwheel_json::strict;

/// A tool's report of more dollars for one call is treated as an error.
const TOOL_COST_MAX: f64 = 1e6;
/// Largest token count that every JSON reader represents exactly.
const TOOL_TOKENS_MAX: u64 = 1 << 53;

/// Tokens of one response, or a sum of them. `input` excludes cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    /// Part of `output`.
    pub reasoning: u64,
    pub total_tokens: u64,
    pub cost: Cost,
}

/// US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Cost {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
    pub total: f64,
}

impl Cost {
    /// Rounds to 12 decimals: a sum of floats is `0.0008`, not `0.0008000000000000001`. Values are
    /// rounded where they arise, so that a stored value equals the one in memory.
    #[must_use]
    pub fn rounded(self) -> Self {
        let round = |dollars: f64| (dollars * 1e12).round() / 1e12;
        Self {
            input: round(self.input),
            output: round(self.output),
            cache_read: round(self.cache_read),
            cache_write: round(self.cache_write),
            total: round(self.total),
        }
    }
}

impl Usage {
    /// Checks the usage that a tool reports for its own model calls or fees. A missing total
    /// becomes the sum of the parts. `None` if the report is unusable: negative, or implausibly
    /// high.
    #[must_use]
    pub fn validate_tool_report(mut self) -> Option<Self> {
        let cost = &mut self.cost;
        let parts = [cost.input, cost.output, cost.cache_read, cost.cache_write];
        if cost.total == 0.0 {
            cost.total = parts.iter().sum();
        }
        let is_plausible = |dollars: &f64| (0.0..=TOOL_COST_MAX).contains(dollars);
        if !parts.iter().all(is_plausible) || !is_plausible(&cost.total) {
            return None;
        }
        let sum = [self.input, self.output, self.cache_read, self.cache_write]
            .into_iter()
            .fold(0, u64::saturating_add);
        self.total_tokens = self.total_tokens.max(sum);
        (self.total_tokens.max(self.reasoning) <= TOOL_TOKENS_MAX).then_some(self)
    }
}

/// Usage as a message records it. Imported usage may have other members and forms of numbers than
/// [`Usage`]: it is written back unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedUsage {
    usage: Usage,
    /// The JSON, if it differs from that of `usage`.
    written: Option<RawJson>,
}

impl Deref for RecordedUsage {
    type Target = Usage;

    fn deref(&self) -> &Usage {
        &self.usage
    }
}

impl From<Usage> for RecordedUsage {
    fn from(usage: Usage) -> Self {
        Self { usage, written: None }
    }
}

impl Serialize for RecordedUsage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.written {
            Some(written) => written.serialize(serializer),
            None => self.usage.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RecordedUsage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawJson::deserialize(deserializer)?;
        let usage = strict::from_request(raw.text()).map_err(serde::de::Error::custom)?;
        let written = (RawJson::from_value(&usage) != raw).then_some(raw);
        Ok(Self { usage, written })
    }
}

/// Ignores a stored member `usage` of another form. Older versions stored whatever was imported.
pub(super) fn if_usable<'de, D>(deserializer: D) -> Result<Option<Box<RecordedUsage>>, D::Error>
where
    D: Deserializer<'de>,
{
    let raw = Option::<RawJson>::deserialize(deserializer)?;
    Ok(raw.and_then(|raw| raw.read().ok()))
}

/// Provider counts can have any value: sums saturate.
impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
        self.total_tokens = self.total_tokens.saturating_add(other.total_tokens);
        self.cost.input += other.cost.input;
        self.cost.output += other.cost.output;
        self.cost.cache_read += other.cost.cache_read;
        self.cost.cache_write += other.cost.cache_write;
        self.cost.total += other.cost.total;
        self.cost = self.cost.rounded();
    }
}

/// Usage of several calls in whole numbers. Sums and differences are exact, so that ledgers agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UsageTotals {
    /// Model calls.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub input: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub output: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_read: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write: u64,
    /// Part of `output`.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub total_tokens: u64,
    /// Billionths of a US dollar.
    #[serde(skip_serializing_if = "is_zero")]
    pub nanos: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl UsageTotals {
    /// The totals of one call.
    pub fn from_usage(usage: &Usage) -> Self {
        Self {
            calls: 1,
            input: usage.input,
            output: usage.output,
            cache_read: usage.cache_read,
            cache_write: usage.cache_write,
            reasoning: usage.reasoning,
            total_tokens: usage.total_tokens,
            nanos: dollars_to_nanos(usage.cost.total),
        }
    }

    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// The excess of `self` over `other`, per number; 0 where it has less.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_sub)
    }

    /// The greater of both, per number.
    #[must_use]
    pub fn max_each(self, other: Self) -> Self {
        self.combine(other, u64::max)
    }

    fn combine(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            calls: of(self.calls, other.calls),
            input: of(self.input, other.input),
            output: of(self.output, other.output),
            cache_read: of(self.cache_read, other.cache_read),
            cache_write: of(self.cache_write, other.cache_write),
            reasoning: of(self.reasoning, other.reasoning),
            total_tokens: of(self.total_tokens, other.total_tokens),
            nanos: of(self.nanos, other.nanos),
        }
    }

    /// Converts to the form of a response's usage. Only the total of the cost is known.
    pub fn to_usage(self) -> Usage {
        Usage {
            input: self.input,
            output: self.output,
            cache_read: self.cache_read,
            cache_write: self.cache_write,
            reasoning: self.reasoning,
            total_tokens: self.total_tokens,
            cost: Cost { total: nanos_to_dollars(self.nanos), ..Cost::default() },
        }
    }
}

/// US dollars in billionths; 0 for a negative amount or NaN.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float stops at the bounds of the number"
)]
pub fn dollars_to_nanos(dollars: f64) -> u64 {
    (dollars * 1e9).round() as u64
}

#[expect(
    clippy::cast_precision_loss,
    reason = "display only: 2^53 billionths are 9 million dollars"
)]
pub(crate) fn nanos_to_dollars(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_sums_have_no_float_noise() {
        let noisy: f64 = (0..8).map(|_| 0.0001).sum();
        assert!(noisy.to_string().len() > 8, "a plain sum has noise");
        let mut usage = Usage::default();
        for _ in 0..8 {
            usage += Usage { cost: Cost { total: 0.0001, ..Cost::default() }, ..Usage::default() };
        }
        let written = serde_json::to_string(&usage).unwrap();
        assert!(written.contains("\"total\":0.0008}"), "{written}");
        assert_eq!(serde_json::from_str::<Usage>(&written).unwrap(), usage);
    }

    #[test]
    fn recorded_usage_is_written_as_it_was_read() {
        for text in [
            r#"{"input":3,"cost":{"input":0,"total":1}}"#,
            r#"{"input":3,"output":4,"server":{"calls":2}}"#,
            "{}",
        ] {
            let read: RecordedUsage = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        let own = RecordedUsage::from(Usage { input: 3, ..Usage::default() });
        let text = serde_json::to_string(&own).unwrap();
        assert_eq!(serde_json::from_str::<RecordedUsage>(&text).unwrap(), own);
        assert!(serde_json::from_str::<RecordedUsage>(r#"{"input":-1}"#).is_err());
    }

    #[test]
    fn tool_usage_gets_totals_and_rejects_implausible_values() {
        let parts = Cost { input: 0.25, output: 0.5, ..Cost::default() };
        let usage = Usage { input: 10, output: 5, cost: parts, ..Usage::default() };
        let reported = usage.validate_tool_report().unwrap();
        assert_eq!(reported.total_tokens, 15);
        assert!((reported.cost.total - 0.75).abs() < 1e-12);
        for total in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            let cost = Cost { total, ..Cost::default() };
            assert_eq!(Usage { cost, ..Usage::default() }.validate_tool_report(), None, "{total}");
        }
        assert_eq!(Usage { input: u64::MAX, ..Usage::default() }.validate_tool_report(), None);
    }

    #[test]
    fn usage_totals_subtract_exactly() {
        let cost = Cost { total: 0.1 + 0.2, ..Cost::default() };
        let one =
            UsageTotals::from_usage(&Usage { input: 7, total_tokens: 7, cost, ..Usage::default() });
        let sum = (0..10).fold(UsageTotals::default(), |sum, _| sum.plus(one));
        let rest = (0..10).fold(sum, |rest, _| rest.minus(one));
        assert_eq!((sum.calls, sum.nanos, rest), (10, 3_000_000_000, UsageTotals::default()));
        assert_eq!(one.minus(sum), UsageTotals::default(), "a smaller total leaves no difference");
        assert!((one.to_usage().cost.total - 0.3).abs() < 1e-12);
        assert_eq!((dollars_to_nanos(-1.0), dollars_to_nanos(f64::NAN)), (0, 0));
    }
}
