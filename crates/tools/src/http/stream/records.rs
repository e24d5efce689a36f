//! Records of a streamed body: progress reports, and the result among the others.

use serde::{Deserialize, Serialize};

use super::ProgressCallback;
use crate::http::response::{note_texts, read_full_result, trim_blank};
use turnwheel_json::foreign::{ForeignJson, means_error, read_foreign_json};
use turnwheel_json::raw::RawJson;

/// Label of a body that is a [`StreamedResult`].
pub(in crate::http) const STREAMED_RESULT: &str = "application/vnd.turnwheel.streamed-result+json";

/// A full result from a body with other records. It is JSON, in which each string can be redacted.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct StreamedResult {
    pub(in crate::http) result: RawJson,
    /// Texts that the model reads after the content of the result.
    pub(in crate::http) texts: Vec<String>,
}

/// A line or event that is a progress report: an object with the single member `progress`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressRecord {
    progress: RawJson,
}

/// Members of which a full result has one.
const MEMBERS: [&str; 6] = [
    "\"isError\"",
    "\"content\"",
    "\"files\"",
    "\"widgets\"",
    "\"outputs\"",
    "\"structuredContent\"",
];

/// A record that is a full result.
struct FullRecord {
    index: usize,
    is_error: bool,
    foreign: ForeignJson,
}

impl FullRecord {
    fn read(index: usize, record: &str) -> Option<Self> {
        // Most records are none, and are not read.
        if !MEMBERS.iter().any(|member| record.contains(member)) {
            return None;
        }
        let foreign = read_full_result(record)?;
        let value = foreign.json.to_value();
        let is_error = value.get("isError").is_some_and(means_error);
        Some(Self { index, is_error, foreign })
    }
}

/// The records of a streamed body.
#[derive(Default)]
pub(super) struct Records {
    /// All records except progress reports, in order.
    pub(super) results: Vec<String>,
    pub(super) has_progress: bool,
}

impl Records {
    pub(super) fn add(&mut self, record: &str, progress: ProgressCallback<'_>) {
        let record = trim_blank(record);
        if record.is_empty() {
            return;
        }
        let update = Some(record)
            .filter(|record| record.contains("\"progress\""))
            .and_then(read_foreign_json)
            .and_then(|it| it.json.read::<ProgressRecord>().ok());
        match update {
            Some(update) => {
                self.has_progress = true;
                progress(update.progress.text());
            }
            None => self.results.push(record.to_owned()),
        }
    }

    /// The result among several records: the only full result, or the last one that is an error.
    /// `None`: the records are one text.
    pub(super) fn find_result(&self) -> Option<StreamedResult> {
        if self.results.len() < 2 {
            return None;
        }
        let records = || self.results.iter().enumerate();
        let full: Vec<FullRecord> =
            records().filter_map(|(index, record)| FullRecord::read(index, record)).collect();
        let chosen = match full.as_slice() {
            [only] => only,
            several => several.iter().rfind(|record| record.is_error)?,
        };
        let others = records().filter(|(index, _)| *index != chosen.index);
        let others: Vec<&str> = others.map(|(_, record)| record.as_str()).collect();
        let mut texts = note_texts(&chosen.foreign);
        texts.push(format!("[other records of the response]\n{}", others.join("\n")));
        Some(StreamedResult { result: chosen.foreign.json.clone(), texts })
    }
}
