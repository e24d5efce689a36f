//! Names of models in errors. Words in them, such as `vision`, describe no part of the input.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::Refusal;

/// Codes of services for a model that does not exist or may not be used, in lower case.
const MISSING_MODEL_CODES: [&str; 9] = [
    "model_not_found",
    "model_decommissioned",
    "model_deprecated",
    "model_not_available",
    "model_not_supported",
    "modelnotfound",
    "unknown_model",
    "deploymentnotfound",
    "deployment_not_found",
];
/// The same in words, with up to four words after `model`.
static MISSING_MODEL: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let end = "not found|does not exist|doesn't exist|decommissioned|deprecated|retired|not available|unavailable|\
               no longer available|no longer supported";
    let text = format!(
        r"\b(?:model|deployment)\b((?:\W+\S+){{0,4}}?)\W+(?:{end})\b|\b(?:unknown|no such|not a valid) (?:model|deployment)\b"
    );
    Regex::new(&text).ok()
});
/// Subjects between `model` and the end: another thing than the model is missing.
const OTHER_SUBJECTS: [&str; 8] =
    ["image", "picture", "file", "item", "tool", "function", "url", "message"];
/// A name, with its mark and the word `model` before it.
static NAME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"(model\s+)?(['"`]?)([\w.:/@+-]+)"#).ok());
/// Parts of paths and media types, which are no names of models.
const OTHER_NAMES: [&str; 8] =
    ["input", "messages", "contents", "image/", "application/", "video/", "audio/", "text/"];

/// True if the service does not have the model. `text`: in lower case.
pub(super) fn names_missing_model(refusal: Refusal<'_>, text: &str) -> bool {
    if MISSING_MODEL_CODES.contains(&refusal.code.to_lowercase().as_str()) {
        return true;
    }
    let Some(pattern) = MISSING_MODEL.as_ref() else { return false };
    pattern.captures_iter(text).any(|found| {
        let between = without_names(found.get(1).map_or("", |between| between.as_str()));
        !OTHER_SUBJECTS.iter().any(|subject| between.contains(subject))
    })
}

/// The text without names of models. `text`: in lower case.
pub(super) fn without_names(text: &str) -> String {
    let Some(pattern) = NAME.as_ref() else { return text.to_owned() };
    let keep_others = |found: &Captures<'_>| {
        let group = |number: usize| found.get(number).map_or("", |it| it.as_str());
        let is_marked = !group(1).is_empty() || !group(2).is_empty();
        let name = if is_model_name(group(3), is_marked) { "" } else { group(3) };
        format!("{}{}{name}", group(1), group(2))
    };
    pattern.replace_all(text, keep_others).into_owned()
}

/// True for a name with digits or separators. One without a mark has both.
fn is_model_name(name: &str, is_marked: bool) -> bool {
    let name = name.trim_end_matches(['.', ':', '/', '-']);
    let has_digit = name.contains(|letter: char| letter.is_ascii_digit());
    let has_separator = name.contains(['-', ':', '/', '@']);
    let is_other = OTHER_NAMES.iter().any(|part| name.contains(part));
    let is_name = if is_marked { has_digit || has_separator } else { has_digit && has_separator };
    is_name && !is_other
}
