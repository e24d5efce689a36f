//! `local.settings.json`: app settings of a developer's machine, as the Functions tools store them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::mistake::SettingMistake;
use crate::text_encoding::{decode_utf8, skip_byte_order_mark};

pub(crate) const FILE_NAME: &str = "local.settings.json";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LocalSettings {
    #[serde(default)]
    is_encrypted: bool,
    values: Option<BTreeMap<String, Value>>,
}

const EXPECTED_SHAPE: &str = r#"{"IsEncrypted": false, "Values": {"TURNWHEEL_MODEL": "scripted"}}"#;

/// Reads the `Values` of the file in the folder; empty if there is no such file.
///
/// # Errors
/// The file is invalid; the text explains the correction. Show it and do not start.
pub(crate) fn read(folder: &Path) -> Result<BTreeMap<String, String>, SettingMistake> {
    let bytes = match std::fs::read(folder.join(FILE_NAME)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => {
            return Err(SettingMistake::new(FILE_NAME, format!("cannot be read: {error}")));
        }
    };
    parse(decode_utf8(&bytes).map_err(|error| SettingMistake::new(FILE_NAME, error.to_string()))?)
}

/// Like [`read`], but parses the file's text.
///
/// # Errors
/// As [`read`]. The error never quotes a value, because the file contains secrets.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, String>, SettingMistake> {
    let text = skip_byte_order_mark(text);
    let to_mistake = |error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        let problem =
            format!("cannot be read (line {line}, column {column}): expected {EXPECTED_SHAPE}");
        SettingMistake::new(FILE_NAME, problem)
    };
    // serde would accept a list and assign the members in their order.
    if !text.trim_start().starts_with('{') {
        return Err(SettingMistake::new(
            FILE_NAME,
            format!("is not a JSON object: expected {EXPECTED_SHAPE}"),
        ));
    }
    let file: LocalSettings = serde_json::from_str(text).map_err(to_mistake)?;
    if file.is_encrypted {
        return Err(SettingMistake::new(FILE_NAME, "is encrypted: run `func settings decrypt`"));
    }
    let Some(values) = file.values else {
        return Err(SettingMistake::new(
            FILE_NAME,
            format!("has no `Values`: expected {EXPECTED_SHAPE}"),
        ));
    };
    values
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(value) => Ok((name, value)),
            Value::Bool(value) => Ok((name, value.to_string())),
            Value::Number(value) => Ok((name, value.to_string())),
            Value::Null => Ok((name, String::new())),
            Value::Array(_) | Value::Object(_) => Err(SettingMistake::new(
                FILE_NAME,
                format!("has no text for `{name}`: write JSON values as a string"),
            )),
        })
        .collect()
}

/// A lookup in which the environment overrides the file, as in the Functions tools.
pub(crate) fn lookup_environment_first(
    values: BTreeMap<String, String>,
) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    move |name| super::environment(name).or_else(|| values.get(name).cloned())
}
