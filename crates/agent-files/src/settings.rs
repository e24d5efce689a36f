//! Conversation settings in an agent file. Each is checked separately, so that each mistake has its
//! line.

use serde_json::{Map, Value, json};

use crate::fields;
use crate::mistakes::Findings;
use crate::yaml::{Member, Yaml};
use turnwheel_conversation::settings::{
    CONCURRENCY_MAX, RETRIES_MAX, RETRY_DELAY_MAX_MS, Settings, model_id_error,
};
use turnwheel_json::strict;

/// Keys of settings. `thinking` is an alias of `thinkingLevel`.
pub(super) const KEYS: [&str; 20] = [
    "model",
    "thinking",
    "thinkingLevel",
    "loop",
    "temperature",
    "maxOutputTokens",
    "activeTools",
    "maxRounds",
    "hardRoundsMax",
    "toolExecution",
    "parallelToolsMax",
    "steeringSkipsTools",
    "steeringMode",
    "followUpMode",
    "retry",
    "compaction",
    "continuation",
    "historyWindow",
    "protocolMode",
    "budget",
];

pub(super) fn read_settings(members: &[Member], findings: &mut Findings) -> Settings {
    let mut valid_settings = Map::new();
    for member in members.iter().filter(|member| KEYS.contains(&member.key.as_str())) {
        let name = if member.key == "thinking" { "thinkingLevel" } else { member.key.as_str() };
        if valid_settings.contains_key(name) {
            findings.add(member.position, "`thinking` and `thinkingLevel` are the same: keep one");
            continue;
        }
        if let Some(value) = check_setting(member, name, findings) {
            valid_settings.insert(name.to_owned(), value);
        }
    }
    let settings: Settings =
        serde_json::from_value(Value::Object(valid_settings)).unwrap_or_default();
    if let (Some(mistake), Some(member)) =
        (settings.protocol_mode_error(), members.iter().find(|it| it.key == "protocolMode"))
    {
        findings.add(member.position, mistake);
    }
    settings
}

fn check_setting(member: &Member, name: &str, findings: &mut Findings) -> Option<Value> {
    let at = member.value.position;
    if matches!(member.value.yaml, Yaml::Null) {
        findings.add(at, format!("`{}` has no value: give it one or remove it", member.key));
        return None;
    }
    let nested: &[&str] = match name {
        "retry" => &["enabled", "maxRetries", "baseDelayMs", "maxDelayMs", "jitter"],
        "compaction" => &["enabled", "reserveTokens", "keepRecentTokens"],
        _ => &[],
    };
    if !nested.is_empty() {
        let before = findings.len();
        fields::read_members(&member.value, &format!("`{name}`"), nested, findings);
        if findings.len() > before {
            return None;
        }
    }
    let value = member.value.to_json();
    let settings = match strict::from_deserializer::<Settings, _>(json!({ name: value })) {
        Ok(settings) => settings,
        Err(mistake) => {
            findings.add(at, describe_mistake(member, name, &value, &mistake.detail));
            return None;
        }
    };
    if let Some(mistake) = settings.budget_error() {
        findings.add(at, describe_mistake(member, name, &value, &mistake.detail));
        return None;
    }
    if let Some(bound) = find_violated_range(name, &value) {
        findings.add(at, format!("`{}` must be {bound}", member.key));
        return None;
    }
    Some(value)
}

/// The mistake in a value of another kind.
fn describe_mistake(member: &Member, name: &str, value: &Value, detail: &str) -> String {
    let key = &member.key;
    let range = match name {
        "budget" if !value.is_object() => {
            let amount = if value.is_number() { value.to_string() } else { "0.5".to_owned() };
            return format!(
                "`{key}` is a map of limits, such as `{{ prompt: {{ usd: {amount} }} }}`, not {}",
                member.value.kind()
            );
        }
        "maxRounds" | "historyWindow" => "at least 1",
        "hardRoundsMax" => "from 1 to 200",
        "parallelToolsMax" => "from 1 to 16",
        "maxOutputTokens" => "from 1 to 1000000",
        _ => return format!("`{key}`: {detail}"),
    };
    format!("`{key}` must be a whole number, {range}")
}

/// Returns the allowed range of a value of the right kind, if the value is outside of it.
fn find_violated_range(name: &str, value: &Value) -> Option<&'static str> {
    let number = value.as_f64().unwrap_or_default();
    match name {
        "model" if value.as_str().is_some_and(|text| text.trim().is_empty()) => {
            Some("a model's id, or normal or high")
        }
        "temperature" if !(0.0..=2.0).contains(&number) => Some("from 0 to 2"),
        "hardRoundsMax" if !(1.0..=200.0).contains(&number) => Some("from 1 to 200"),
        "parallelToolsMax" if !(1.0..=f64::from(CONCURRENCY_MAX)).contains(&number) => {
            Some("from 1 to 16")
        }
        "model" if value.as_str().is_some_and(|text| model_id_error(text).is_some()) => {
            Some("a model's id of 1 to 128 bytes, or normal or high")
        }
        "maxOutputTokens" if !(1.0..=1e6).contains(&number) => Some("from 1 to 1000000"),
        "maxRounds" | "historyWindow" if number < 1.0 => Some("at least 1"),
        "retry" => {
            let is_above = |member: &str, max: f64| {
                value.get(member).and_then(Value::as_f64).is_some_and(|given| given > max)
            };
            #[expect(clippy::cast_precision_loss, reason = "a day in milliseconds is exact")]
            let delay_max = RETRY_DELAY_MAX_MS as f64;
            if value.get("jitter").and_then(Value::as_f64).is_some_and(|jitter| jitter < 0.0)
                || is_above("jitter", 1.0)
            {
                Some("a map whose `jitter` is from 0 to 1")
            } else if is_above("maxRetries", f64::from(RETRIES_MAX)) {
                Some("a map whose `maxRetries` is from 0 to 100")
            } else if is_above("maxDelayMs", delay_max) {
                Some("a map whose `maxDelayMs` is from 0 to 86400000, a day")
            } else {
                None
            }
        }
        _ => None,
    }
}
