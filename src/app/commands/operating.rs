//! Commands for operators: inspect stored conversations and usage, and re-enqueue work.

use std::path::Path;

use crate::app::arguments::{Place, Redriven};
use crate::app::commands::{DONE, block_on, complain, read_settings, refuse, say};
use crate::app::looking::{self, Named};
use crate::app::service::StartError;
use crate::app::upkeep;
use crate::app::usage::{self, Question};
use crate::settings::Settings;
use crate::turn::views::work::WorkQuery;

/// Runs `work` with the settings of this machine. Prints the mistakes instead if they are invalid.
fn with_settings(work: impl AsyncFnOnce(&Settings) -> u8) -> u8 {
    match read_settings() {
        Ok(settings) => block_on(async { work(&settings).await }),
        Err(mistakes) => complain(&StartError::from(mistakes)),
    }
}

pub(super) fn upkeep(place: &Place, redriven: Option<Redriven>) -> u8 {
    with_settings(async |settings| {
        let storage = match place.storage.of_upkeep(settings) {
            Ok(storage) => storage,
            Err(text) => return refuse(text),
        };
        let done = match redriven {
            None => Box::pin(upkeep::rebuild(settings, &storage, &place.data)).await,
            Some(queue) => {
                Box::pin(upkeep::redrive(settings, (&storage, &place.data), queue.name())).await
            }
        };
        match done {
            Ok(sentence) => {
                say(&sentence);
                DONE
            }
            Err(error) => complain(&error),
        }
    })
}

pub(super) fn why(named: &Named, data: &Path, is_json: bool) -> u8 {
    with_settings(async |settings| {
        let asked = Box::pin(looking::ask_why(settings, data, named)).await;
        shown(asked, is_json, looking::told)
    })
}

pub(super) fn ls(query: WorkQuery, data: &Path, is_json: bool) -> u8 {
    let is_stuck = query.stuck.is_some();
    with_settings(async |settings| {
        let asked = Box::pin(looking::ask_work(settings, data, query)).await;
        shown(asked, is_json, |report| looking::listed(report, is_stuck))
    })
}

/// Prints a result as JSON or as rendered text, or prints its error. Returns the exit code.
fn shown<T: serde::Serialize>(
    asked: Result<T, StartError>,
    is_json: bool,
    told: impl FnOnce(&T) -> String,
) -> u8 {
    match asked {
        Ok(found) if is_json => say(&serde_json::to_string_pretty(&found).unwrap_or_default()),
        Ok(found) => say(&told(&found)),
        Err(StartError::Arguments(text)) => return refuse(&text),
        Err(error) => return complain(&error),
    }
    DONE
}

pub(super) fn usage(question: Question, data: &Path, is_json: bool) -> u8 {
    with_settings(async |settings| {
        let asked = Box::pin(usage::ask(settings, data, question)).await;
        shown(asked, is_json, usage::table)
    })
}
