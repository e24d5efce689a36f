//! An exceeded limit, which an approver is requested to increase.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agent::budget::{Level, Period, Unit};
use crate::agent::raw::RawJson;

/// An exceeded limit, in tokens or in billionths of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedUp {
    pub unit: Unit,
    /// The limit as configured.
    pub set: u64,
    /// The limit with the increase in force.
    pub limit: u64,
    pub used: u64,
}

/// An exceeded limit and the budget it belongs to, as an approval request contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    pub level: Level,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Period>,
    /// UTC day or month. An increase is valid only for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<String>,
    pub unit: Unit,
    /// The limit as configured, in tokens or billionths of a dollar.
    pub set: u64,
    /// The limit with the increase in force.
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

    /// The form in API responses.
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
