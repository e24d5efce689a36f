//! Catalogue of models: context windows, abilities and prices, with overrides from
//! `TURNWHEEL_PRICES`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::compat::Compat;
use crate::responses::config::SecretText;
use crate::responses::headers::ModelHeaders;
use crate::{ModelRecord, Prices};
use turnwheel_conversation::usage::{Cost, Usage};

/// Number of input tokens above which the long-context prices apply to the whole call.
const LONG_CONTEXT_MIN: u64 = 272_000;
const DEFAULT_CONTEXT_WINDOW: u64 = 128_000;
const DEFAULT_OUTPUT_MAX: u64 = 16_384;

/// `id, reasoning, images, window, max output, [in, out, cached in, cache write], long [in, out]`.
/// Prices are US dollars per million tokens. Zeros in the last pair mean that the model has no
/// long-context prices.
type ModelRow = (&'static str, bool, bool, u64, u64, [f64; 4], [f64; 2]);

/// Models and prices from a public model list of November 2026. Azure's own price page was not
/// compared; regional prices differ.
#[rustfmt::skip]
const MODELS: &[ModelRow] = &[
    ("gpt-4.1",       false, true,  1_047_576,  32_768, [2.0, 8.0, 0.5, 0.0],        [0.0, 0.0]),
    ("gpt-4.1-mini",  false, true,  1_047_576,  32_768, [0.4, 1.6, 0.1, 0.0],        [0.0, 0.0]),
    ("gpt-4.1-nano",  false, true,  1_047_576,  32_768, [0.1, 0.4, 0.025, 0.0],      [0.0, 0.0]),
    ("gpt-4o",        false, true,    128_000,  16_384, [2.5, 10.0, 1.25, 0.0],      [0.0, 0.0]),
    ("gpt-4o-mini",   false, true,    128_000,  16_384, [0.15, 0.6, 0.075, 0.0],     [0.0, 0.0]),
    ("gpt-5",         true,  true,    400_000, 128_000, [1.25, 10.0, 0.125, 0.0],    [0.0, 0.0]),
    ("gpt-5-mini",    true,  true,    400_000, 128_000, [0.25, 2.0, 0.025, 0.0],     [0.0, 0.0]),
    ("gpt-5-nano",    true,  true,    400_000, 128_000, [0.05, 0.4, 0.005, 0.0],     [0.0, 0.0]),
    ("gpt-5-pro",     true,  true,    400_000, 128_000, [15.0, 120.0, 0.0, 0.0],     [0.0, 0.0]),
    ("gpt-5.1",       true,  true,    400_000, 128_000, [1.25, 10.0, 0.125, 0.0],    [0.0, 0.0]),
    ("gpt-5.2",       true,  true,    400_000, 128_000, [1.75, 14.0, 0.175, 0.0],    [0.0, 0.0]),
    ("gpt-5.3-codex", true,  true,    400_000, 128_000, [1.75, 14.0, 0.175, 0.0],    [0.0, 0.0]),
    ("gpt-5.4",       true,  true,  1_050_000, 128_000, [2.5, 15.0, 0.25, 0.0],      [5.0, 22.5]),
    ("gpt-5.4-mini",  true,  true,    400_000, 128_000, [0.75, 4.5, 0.075, 0.0],     [0.0, 0.0]),
    ("gpt-5.4-nano",  true,  true,    400_000, 128_000, [0.2, 1.25, 0.02, 0.0],      [0.0, 0.0]),
    ("gpt-5.4-pro",   true,  true,  1_050_000, 128_000, [30.0, 180.0, 0.0, 0.0],     [60.0, 270.0]),
    ("gpt-5.5",       true,  true,  1_050_000, 128_000, [5.0, 30.0, 0.5, 0.0],       [10.0, 45.0]),
    ("gpt-5.5-pro",   true,  true,  1_050_000, 128_000, [30.0, 180.0, 0.0, 0.0],     [60.0, 270.0]),
    ("gpt-5.6-luna",  true,  true,  1_050_000, 128_000, [0.2, 1.2, 0.02, 0.25],      [0.4, 1.8]),
    ("gpt-5.6-sol",   true,  true,  1_050_000, 128_000, [4.0, 20.0, 0.4, 5.0],       [8.0, 30.0]),
    ("gpt-5.6-terra", true,  true,  1_050_000, 128_000, [2.0, 12.0, 0.2, 2.5],       [4.0, 18.0]),
    ("gpt-6-astra",   true,  true,  1_050_000, 128_000, [10.0, 50.0, 1.0, 12.5],     [20.0, 75.0]),
    ("gpt-6-luna",    true,  true,  1_050_000, 128_000, [0.1, 0.5, 0.01, 0.125],     [0.2, 0.75]),
    ("gpt-6-sol",     true,  true,  1_050_000, 128_000, [2.0, 10.0, 0.2, 2.5],       [4.0, 15.0]),
    ("gpt-6.1-sol",   true,  true,  1_050_000, 128_000, [2.0, 10.0, 0.1, 2.5],       [4.0, 15.0]),
    ("gpt-6.1-terra", true,  true,  1_050_000, 128_000, [1.0, 5.0, 0.05, 1.25],      [2.0, 7.5]),
    ("o3",            true,  true,    200_000, 100_000, [2.0, 8.0, 0.5, 0.0],        [0.0, 0.0]),
    ("o4-mini",       true,  true,    200_000, 100_000, [1.1, 4.4, 0.275, 0.0],      [0.0, 0.0]),
    ("o3-mini",       true,  false,   200_000, 100_000, [1.1, 4.4, 0.55, 0.0],       [0.0, 0.0]),
    ("deepseek-v4-pro", true, false, 1_000_000, 384_000, [1.925, 3.828, 0.165, 0.0], [0.0, 0.0]),
];

/// The table with the overrides of the app.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    overrides: BTreeMap<String, ModelOverride>,
}

/// Prices of a call: those of the record, and the long-context prices if the model has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tariff {
    pub base: Prices,
    pub long_context: Option<Prices>,
}

impl Tariff {
    pub fn cost(&self, usage: &Usage) -> Cost {
        let input = usage.input + usage.cache_read + usage.cache_write;
        let prices = self.long_context.filter(|_| input > LONG_CONTEXT_MIN).unwrap_or(self.base);
        prices.cost(usage)
    }

    /// Highest possible cost of this many tokens. The provider may read the input from its cache or
    /// write it to the cache, each at its price.
    pub fn max_cost(&self, input: u64, output: u64) -> Cost {
        let sent = Usage { output, ..Usage::default() };
        let ways = [
            Usage { input, ..sent },
            Usage { cache_write: input, ..sent },
            Usage { cache_read: input, ..sent },
        ];
        let costs = ways.iter().map(|usage| self.cost(usage));
        costs.max_by(|one, other| one.total.total_cmp(&other.total)).unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ModelOverride {
    input: Option<f64>,
    output: Option<f64>,
    cache_read: Option<f64>,
    cache_write: Option<f64>,
    context_window: Option<u64>,
    max_tokens: Option<u64>,
    reasoning: Option<bool>,
    images: Option<bool>,
    headers: ModelHeaders,
    compat: Option<Compat>,
    base_url: Option<String>,
    api_key: Option<SecretText>,
    identity: bool,
}

/// The address of a model that another service than the app's offers.
pub(super) struct ModelAddress<'a> {
    pub(super) base_url: &'a str,
    /// The key for this address.
    pub(super) api_key: Option<&'a SecretText>,
    /// True if requests carry a token of the app's identity.
    pub(super) has_identity: bool,
}

impl ModelOverride {
    /// A mistake in the members of the address.
    fn address_mistake(&self) -> Option<&'static str> {
        match (&self.base_url, &self.api_key, self.identity) {
            (None, Some(_), _) => Some("has an `apiKey` without a `baseUrl`"),
            (None, None, true) => Some("has `identity` without a `baseUrl`"),
            (Some(_), Some(_), true) => Some("has `apiKey` and `identity`: keep one of them"),
            (_, Some(key), false) if !key.is_header_text() => Some(
                "has an `apiKey` with a space, a line break or another character that is invalid in a key",
            ),
            (Some(_), _, _) | (None, None, false) => None,
        }
    }

    fn prices(&self) -> [Option<f64>; 4] {
        [self.input, self.output, self.cache_read, self.cache_write]
    }
}

impl Catalogue {
    /// Parses `overrides`, the text of `TURNWHEEL_PRICES`: `{"gpt-5.1": {"input": 1.25, "output":
    /// 10}}`.
    ///
    /// # Errors
    /// Show the texts, one for each invalid override, and do not start.
    pub fn new(overrides: Option<&str>) -> Result<Self, Vec<String>> {
        let Some(text) = overrides.filter(|text| !text.trim().is_empty()) else {
            return Ok(Self::default());
        };
        let overrides: BTreeMap<String, ModelOverride> = serde_json::from_str(text).map_err(|error| {
            vec![format!(
                "TURNWHEEL_PRICES is not of the form {{\"model\": {{\"input\": 1.25, \"output\": 10, \"cacheRead\": 0.1, \
                 \"cacheWrite\": 0}}}}: {error}"
            )]
        })?;
        let mistakes: Vec<String> = overrides
            .iter()
            .filter_map(|(model, change)| {
                if let Some(mistake) = change.address_mistake() {
                    Some(format!("TURNWHEEL_PRICES: `{model}` {mistake}"))
                } else if change.prices().into_iter().flatten().any(|price| price < 0.0) {
                    Some(format!("TURNWHEEL_PRICES: a price of `{model}` is negative"))
                } else if change.context_window == Some(0) || change.max_tokens == Some(0) {
                    Some(format!(
                        "TURNWHEEL_PRICES: contextWindow and maxTokens of `{model}` must be above zero"
                    ))
                } else {
                    None
                }
            })
            .collect();
        if mistakes.is_empty() { Ok(Self { overrides }) } else { Err(mistakes) }
    }

    /// True if `TURNWHEEL_PRICES` names the model.
    pub(crate) fn has_override(&self, model: &str) -> bool {
        self.overrides.contains_key(model)
    }

    /// The models with an address of their own.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (&str, ModelAddress<'_>)> {
        self.overrides.iter().filter_map(|(model, change)| {
            let base_url = change.base_url.as_deref()?;
            let (api_key, has_identity) = (change.api_key.as_ref(), change.identity);
            Some((model.as_str(), ModelAddress { base_url, api_key, has_identity }))
        })
    }

    /// Returns the record of a model. A model that is not in the table has no prices, a window of
    /// 128,000 tokens, and abilities derived from its name.
    pub fn record(&self, model: &str, deployment: &str) -> ModelRecord {
        let row = find_row(model);
        let mut record = ModelRecord {
            id: model.to_owned(),
            name: model.to_owned(),
            api: super::responses::API.to_owned(),
            provider: super::responses::PROVIDER.to_owned(),
            base_url: String::new(),
            reasoning: row.map_or_else(|| is_reasoning_model_name(model), |row| row.1),
            images: row.map_or_else(|| is_image_model_name(model), |row| row.2),
            cost: row.map(base_prices_of).unwrap_or_default(),
            context_window: row.map_or(DEFAULT_CONTEXT_WINDOW, |row| row.3),
            max_tokens: row.map_or(DEFAULT_OUTPUT_MAX, |row| row.4),
            deployment_name: deployment.to_owned(),
            headers: ModelHeaders::default(),
            compat: Compat::of_model(model),
        };
        if let Some(change) = self.overrides.get(model) {
            record.cost = Prices {
                input: change.input.unwrap_or(record.cost.input),
                output: change.output.unwrap_or(record.cost.output),
                cache_read: change.cache_read.unwrap_or(record.cost.cache_read),
                cache_write: change.cache_write.unwrap_or(record.cost.cache_write),
            };
            record.context_window = change.context_window.unwrap_or(record.context_window);
            record.max_tokens = change.max_tokens.unwrap_or(record.max_tokens);
            record.reasoning = change.reasoning.unwrap_or(record.reasoning);
            record.images = change.images.unwrap_or(record.images);
            record.headers = change.headers.clone();
            record.compat = change.compat.unwrap_or(record.compat);
        }
        record
    }
}

/// Prices of calls to the model of a record. The long-context prices of the table apply only if the
/// record has the table's base prices.
pub fn find_tariff(record: &ModelRecord) -> Tariff {
    let long = find_row(&record.id)
        .filter(|row| base_prices_of(row) == record.cost)
        .and_then(long_context_prices);
    Tariff { base: record.cost, long_context: long }
}

fn base_prices_of(row: &ModelRow) -> Prices {
    let [input, output, cache_read, cache_write] = row.5;
    Prices { input, output, cache_read, cache_write }
}

/// Long-context prices of a row. The source has none for cached tokens; they rise in proportion to
/// the input price.
fn long_context_prices(row: &ModelRow) -> Option<Prices> {
    let [input, output] = row.6;
    let base = base_prices_of(row);
    (input > 0.0).then(|| Prices {
        input,
        output,
        cache_read: base.cache_read * input / base.input,
        cache_write: base.cache_write * input / base.input,
    })
}

/// Finds a row by model id, or by the id without its date: `gpt-4o-2024-08-06` is `gpt-4o`.
fn find_row(model: &str) -> Option<&'static ModelRow> {
    let find = |id: &str| MODELS.iter().find(|row| row.0 == id);
    find(model).or_else(|| find(strip_date(model)?))
}

fn strip_date(model: &str) -> Option<&str> {
    let (name, date) = model.split_at_checked(model.len().checked_sub(11)?)?;
    let is_date = date.char_indices().all(|(at, letter)| match at {
        0 | 5 | 8 => letter == '-',
        _ => letter.is_ascii_digit(),
    });
    is_date.then_some(name)
}

fn is_reasoning_model_name(model: &str) -> bool {
    let is_new_gpt =
        has_version(model, "gpt-") && !model.starts_with("gpt-3") && !model.starts_with("gpt-4");
    (is_new_gpt && !model.starts_with("gpt-5-chat")) || has_version(model, "o")
}

fn is_image_model_name(model: &str) -> bool {
    has_version(model, "gpt-") && !model.starts_with("gpt-3")
}

/// True for a name of a model of OpenAI, such as `gpt-5.1` and `o3`; false for its open models.
pub(crate) fn is_openai_model_name(model: &str) -> bool {
    has_version(model, "gpt-") || has_version(model, "o")
}

/// True if a digit follows the prefix.
fn has_version(model: &str, prefix: &str) -> bool {
    model.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogue_finds_model_by_plain_and_dated_name() {
        let catalogue = Catalogue::default();
        for id in ["gpt-4o", "gpt-4o-2024-08-06"] {
            let record = catalogue.record(id, "mine");
            assert!((record.cost.input - 2.5).abs() < f64::EPSILON, "{id}");
            assert_eq!(
                (record.reasoning, record.images, record.context_window),
                (false, true, 128_000),
                "{id}"
            );
            assert_eq!(record.deployment_name, "mine");
        }
    }

    #[test]
    fn unknown_model_has_no_price_and_derived_abilities() {
        let cases = [
            ("gpt-5.9-nova", true, true),
            ("gpt-5-chat-latest", false, true),
            ("gpt-3.5-turbo", false, false),
            ("o9", true, false),
            ("oracle", false, false),
            ("llama-4", false, false),
            ("über-2024-01-0", false, false),
        ];
        for (id, reasoning, images) in cases {
            let record = Catalogue::default().record(id, id);
            assert_eq!((record.reasoning, record.images), (reasoning, images), "{id}");
            assert_eq!(record.cost, Prices::default(), "{id}");
        }
    }

    #[test]
    fn catalogue_overrides_model_headers_and_compat() {
        let catalogue = Catalogue::new(Some(
            r#"{"mine":{"headers":{"X-Team":"clerks"},"compat":{"supportsStrictMode":false}}}"#,
        ))
        .unwrap();
        let record = catalogue.record("mine", "d");
        assert_eq!(record.headers.0["x-team"], "clerks");
        assert!(!format!("{catalogue:?} {record:?}").contains("clerks"));
        let expected = Compat { supports_strict_mode: false, ..Compat::default() };
        assert_eq!(record.compat, expected);
        let other = catalogue.record("other", "d");
        assert_eq!((other.headers, other.compat), (ModelHeaders::default(), Compat::default()));
    }

    #[test]
    fn catalogue_rejects_invalid_headers_without_printing_values() {
        let error_text = |members: &str| {
            Catalogue::new(Some(&format!(r#"{{"mine":{{{members}}}}}"#))).unwrap_err().join(" ")
        };
        for (members, expected) in [
            (
                r#""headers":{"Authorization":"hush"}"#,
                "headers has `authorization`, which each request has",
            ),
            (
                r#""headers":{"content-type":"hush"}"#,
                "headers has `content-type`, which each request has",
            ),
            (r#""headers":{"Host":"hush"}"#, "headers has `host`, which each request has"),
            (r#""headers":{"api-key":"hush"}"#, "headers has `api-key`, which each request has"),
            (r#""headers":{"x y":"hush"}"#, "headers: `x y` is not a legal header"),
            (r#""headers":{"x-y":["hush"]}"#, "headers: `x-y` is not a legal header"),
            (r#""headers":{"x-y":"hush\nx"}"#, "headers: `x-y` is not a legal header"),
            (r#""headers":"hush""#, "headers must be an object of texts"),
            (
                r#""compat":{"supportsStore":true}"#,
                "unknown field `supportsStore`, expected one of `supportsDeveloperRole`",
            ),
        ] {
            let text = error_text(members);
            assert!(text.contains(expected) && !text.contains("hush"), "{text}");
        }
    }

    #[test]
    fn catalogue_overrides_prices_and_abilities() {
        let catalogue = Catalogue::new(Some(
            r#"{"gpt-5.4":{"input":3,"maxTokens":9000},"mine":{"output":7,"reasoning":true}}"#,
        ))
        .unwrap();
        let record = catalogue.record("gpt-5.4", "d");
        assert_eq!(
            record.cost,
            Prices { input: 3.0, output: 15.0, cache_read: 0.25, cache_write: 0.0 }
        );
        assert_eq!(record.max_tokens, 9000);
        assert_eq!(
            find_tariff(&record).long_context,
            None,
            "overridden prices disable the table's long-context prices"
        );
        assert!(catalogue.record("mine", "d").reasoning);
    }

    #[test]
    fn catalogue_reports_all_price_mistakes() {
        let mistakes =
            Catalogue::new(Some(r#"{"a":{"input":-1},"b":{"maxTokens":0}}"#)).unwrap_err();
        assert_eq!(mistakes.len(), 2, "{mistakes:?}");
        for text in ["[", r#"{"a":{"inputs":1}}"#, "5"] {
            let mistakes = Catalogue::new(Some(text)).unwrap_err();
            assert!(mistakes[0].starts_with("TURNWHEEL_PRICES is not of the form"), "{mistakes:?}");
        }
    }

    #[test]
    fn tariff_charges_long_context_prices() {
        let tariff = find_tariff(&Catalogue::default().record("gpt-5.4", "d"));
        let short = Usage { input: 272_000, ..Usage::default() };
        let long = Usage { input: 172_001, cache_read: 100_000, ..Usage::default() };
        assert!((tariff.cost(&short).total - 0.68).abs() < 1e-9);
        assert!(
            (tariff.cost(&long).total - (0.860_005 + 0.05)).abs() < 1e-9,
            "{:?}",
            tariff.cost(&long)
        );
    }
}
