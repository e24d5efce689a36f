//! Parts that the responses to several events share.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use turnwheel_conversation::content::{Block, Content, Image};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::raw::redacted_error;
use turnwheel_platform::clock::parse_duration;
use turnwheel_tools::{EXPIRY_MAX, is_approver};

/// Items of `approvers`.
const APPROVERS_MAX: usize = 16;

/// The error names a member of the response, not a value of the response.
pub(super) type Checked<T> = Result<T, String>;

/// Reads the body of a response. The error holds no value of it.
pub(super) fn read_response<T: DeserializeOwned>(body: &str) -> Checked<T> {
    // serde's derive accepts a list for a struct.
    if body.trim_start_matches('\u{feff}').trim_start().starts_with('[') {
        return Err("it is a list, not an object".to_owned());
    }
    // What is repaired has one meaning, unlike a decision that occurs twice.
    match read_foreign_json(body).filter(|foreign| !foreign.has_duplicates()) {
        Some(foreign) => foreign.json.read(),
        None => serde_json::from_str(body),
    }
    .map_err(|error| redacted_error(&error))
}

/// As [`read_response`], without repairs that change a value, such as a number that no float holds.
pub(super) fn read_exact_response<T: DeserializeOwned>(body: &str) -> Checked<T> {
    match read_foreign_json(body).and_then(|foreign| foreign.value_note()) {
        Some(note) => Err(format!("{note}: they would not be sent as written")),
        None => read_response(body),
    }
}

pub(super) fn read_approvers(given: Option<Vec<String>>) -> Checked<Vec<String>> {
    let approvers = given.unwrap_or_default();
    if approvers.len() > APPROVERS_MAX || !approvers.iter().all(|it| is_approver(it)) {
        return Err(format!(
            "approvers is a list of at most {APPROVERS_MAX} of owner, link and role:NAME"
        ));
    }
    Ok(approvers)
}

pub(super) fn read_expiry(given: Option<&str>) -> Checked<Option<Duration>> {
    let expiry = given.map(|text| {
        parse_duration(text)
            .filter(|span| !span.is_zero() && *span <= EXPIRY_MAX)
            .ok_or("expiresAfter is a duration of at most 90d, such as 24h")
    });
    Ok(expiry.transpose()?)
}

#[derive(Debug, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub(super) enum ResultBlock {
    Text { text: String },
    Image { data: String, mime_type: String },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ResultContent {
    Text(String),
    Blocks(Vec<ResultBlock>),
}

impl ResultContent {
    pub(super) fn into_content(self) -> Content {
        match self {
            Self::Text(text) => Content::Text(text),
            Self::Blocks(blocks) => Content::Blocks(into_blocks(blocks)),
        }
    }
}

pub(super) fn into_blocks(blocks: Vec<ResultBlock>) -> Vec<Block> {
    let blocks = blocks.into_iter().map(|block| match block {
        ResultBlock::Text { text } => Block::text(text),
        ResultBlock::Image { data, mime_type } => {
            Block::Image(Image { data, mime_type, extra: Extra::new() })
        }
    });
    blocks.collect()
}
