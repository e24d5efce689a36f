//! Conversation settings in an agent file. Each is checked separately, so that each mistake has its
//! line.

use serde_json::{Map, Value, json};

use crate::fields;
use crate::mistakes::Findings;
use crate::yaml::{Member, Node, Yaml};
use turnwheel_conversation::budget::{TOKENS_MAX, USD_MAX};
use turnwheel_conversation::settings::{
    CONCURRENCY_MAX, RETRIES_MAX, RETRY_DELAY_MAX_MS, Settings, model_id_error,
};
use turnwheel_json::strict;
use turnwheel_json::text::sanitize_line;

/// Smallest limit in dollars: amounts are counted in billionths.
const USD_MIN: f64 = 1e-9;
/// Characters of a wrong value in a message.
const SHOWN_CHARS_MAX: usize = 40;

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
    let before = findings.file_mistakes();
    check_nested(&member.value, name, findings);
    if findings.file_mistakes() > before {
        return None;
    }
    let value = member.value.to_json();
    let read = strict::from_deserializer::<Settings, _>(json!({ name: value }));
    if let Some(mistake) = read.map_or_else(Some, |settings| settings.budget_error()) {
        findings.add(at, describe_mistake(member, name, &mistake.detail));
        return None;
    }
    if let Some(bound) = find_violated_range(name, &value) {
        findings.add(at, format!("`{}` must be {bound}", member.key));
        return None;
    }
    Some(value)
}

/// The keys of a setting that is a map. Empty for other settings.
fn nested_keys(path: &str) -> &'static [&'static str] {
    match path {
        "retry" => &["enabled", "maxRetries", "baseDelayMs", "maxDelayMs", "jitter"],
        "compaction" => &["enabled", "reserveTokens", "keepRecentTokens"],
        "budget" => &["prompt", "conversation"],
        "budget.prompt" | "budget.conversation" => &["tokens", "usd"],
        _ => &[],
    }
}

/// Reports each wrong member of a setting that is a map, with its path, such as `budget.prompt.usd`.
fn check_nested(node: &Node, path: &str, findings: &mut Findings) {
    let keys = nested_keys(path);
    if keys.is_empty() {
        if let Some(legal) = find_violated_values(path, &node.to_json()) {
            let reason = format!("`{path}` must be {legal}, not {}", describe_value(node));
            findings.add(node.position, reason);
        }
        return;
    }
    let is_budget = path.starts_with("budget");
    // A null member of a budget counts as absent.
    let is_absent = |member: &Member| is_budget && matches!(member.value.yaml, Yaml::Null);
    if is_budget && node.members().iter().all(is_absent) {
        findings.add(node.position, describe_missing_limits(node, path));
        return;
    }
    for member in fields::read_members(node, &format!("`{path}`"), keys, findings) {
        if !is_absent(member) {
            check_nested(&member.value, &format!("{path}.{}", member.key), findings);
        }
    }
}

/// Returns the legal values of a member of such a map, if the value is none of them.
fn find_violated_values(path: &str, value: &Value) -> Option<String> {
    let whole = |min: u64, max: u64| {
        let is_legal = value.as_u64().is_some_and(|number| (min..=max).contains(&number));
        let end = if max == u64::MAX { String::new() } else { format!(" to {max}") };
        (!is_legal).then(|| format!("a whole number from {min}{end}"))
    };
    let number = |min: f64, max: f64| {
        let is_legal = value.as_f64().is_some_and(|number| (min..=max).contains(&number));
        (!is_legal).then(|| format!("a number from {min} to {max}"))
    };
    match path {
        "retry.enabled" | "compaction.enabled" => {
            (!value.is_boolean()).then(|| "true or false".to_owned())
        }
        "retry.maxRetries" => whole(0, RETRIES_MAX.into()),
        "retry.maxDelayMs" => whole(0, RETRY_DELAY_MAX_MS),
        "retry.baseDelayMs" | "compaction.reserveTokens" | "compaction.keepRecentTokens" => {
            whole(0, u64::MAX)
        }
        "retry.jitter" => number(0.0, 1.0),
        "budget.prompt.tokens" | "budget.conversation.tokens" => whole(1, TOKENS_MAX),
        "budget.prompt.usd" | "budget.conversation.usd" => number(USD_MIN, USD_MAX),
        _ => None,
    }
}

/// The mistake in a budget, or a part of it, without a limit.
fn describe_missing_limits(node: &Node, path: &str) -> String {
    let (amount, found) = match &node.yaml {
        Yaml::Number(number) => (number.to_string(), number.to_string()),
        Yaml::Map(_) => ("0.5".to_owned(), "a map without a limit".to_owned()),
        Yaml::Null | Yaml::Bool(_) | Yaml::Text(_) | Yaml::List(_) => {
            ("0.5".to_owned(), describe_value(node))
        }
    };
    let limit = format!("{{ usd: {amount} }}");
    let example = if path == "budget" { format!("{{ prompt: {limit} }}") } else { limit };
    format!(
        "`{path}` is a map of limits, such as `{example}`, not {found}; `usd` is from {USD_MIN} to {USD_MAX}, and `tokens` from 1 to {TOKENS_MAX}"
    )
}

/// A wrong value for a message.
fn describe_value(node: &Node) -> String {
    match &node.yaml {
        Yaml::Bool(flag) => flag.to_string(),
        Yaml::Number(number) => number.to_string(),
        Yaml::Text(text) => format!("`{}`", sanitize_line(text, SHOWN_CHARS_MAX)),
        Yaml::Null | Yaml::List(_) | Yaml::Map(_) => node.kind().to_owned(),
    }
}

/// The allowed numbers of a setting, and their description. `None`: it is no number.
fn number_range(name: &str) -> Option<(f64, f64, &'static str)> {
    match name {
        "maxRounds" | "historyWindow" => Some((1.0, f64::INFINITY, "at least 1")),
        "hardRoundsMax" => Some((1.0, 200.0, "from 1 to 200")),
        "parallelToolsMax" => Some((1.0, f64::from(CONCURRENCY_MAX), "from 1 to 16")),
        "maxOutputTokens" => Some((1.0, 1e6, "from 1 to 1000000")),
        "temperature" => Some((0.0, 2.0, "from 0 to 2")),
        _ => None,
    }
}

/// The mistake in a value of another kind.
fn describe_mistake(member: &Member, name: &str, detail: &str) -> String {
    let key = &member.key;
    let Some((.., range)) = number_range(name) else { return format!("`{key}`: {detail}") };
    let kind = if name == "temperature" { "a number" } else { "a whole number" };
    format!("`{key}` must be {kind}, {range}")
}

/// Returns the allowed range of a value of the right kind, if the value is outside of it.
fn find_violated_range(name: &str, value: &Value) -> Option<&'static str> {
    match name {
        "model" if value.as_str().is_some_and(|text| text.trim().is_empty()) => {
            Some("a model's id, or normal or high")
        }
        "model" if value.as_str().is_some_and(|text| model_id_error(text).is_some()) => {
            Some("a model's id of 1 to 128 bytes, or normal or high")
        }
        _ => {
            let number = value.as_f64().unwrap_or_default();
            let (min, max, range) = number_range(name)?;
            (!(min..=max).contains(&number)).then_some(range)
        }
    }
}
