//! A used-up limit: what a person is asked to increase.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agent::budget::{Level, Period, Unit};
use crate::agent::raw::RawJson;

/// A limit that is reached: in tokens, or in billionths of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedUp {
    pub unit: Unit,
    /// As it is set.
    pub set: u64,
    /// As it is raised.
    pub limit: u64,
    pub used: u64,
}

/// What is used up, and of what: what a person is asked to extend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    pub level: Level,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Period>,
    /// The day or month it is about: a raise is good for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<String>,
    pub unit: Unit,
    /// The limit as it is set, in tokens or billionths of a dollar.
    pub set: u64,
    /// As it was raised before.
    pub limit: u64,
    pub used: u64,
}

impl Shortage {
    /// One sentence with the figures.
    pub fn reason(&self) -> String {
        let when = match self.period {
            Some(Period::Day) => " for today",
            Some(Period::Month) => " for this month",
            Some(Period::Total) | None => "",
        };
        let whose = match self.level {
            Level::Prompt => "this prompt",
            Level::Conversation => "this conversation",
            Level::User => "the user",
            Level::Agent => "the agent",
            Level::Tenant => "the tenant",
        };
        format!(
            "The budget of {whose}{when} is used up: {}.",
            self.unit.figures(self.used, self.limit)
        )
    }

    /// As clients see it.
    pub fn view(&self) -> RawJson {
        let mut view = json!({
            "level": self.level, "unit": self.unit,
            "limit": self.unit.json(self.limit), "used": self.unit.json(self.used),
        });
        if let (Some(period), Some(view)) = (self.period, view.as_object_mut()) {
            view.insert("period".to_owned(), json!(period));
        }
        RawJson::of(&view)
    }
}
