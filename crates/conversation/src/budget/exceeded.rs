//! An exceeded limit, which an approver is requested to increase.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::budget::{BudgetLevel, BudgetPeriod, BudgetUnit};
use turnwheel_json::raw::RawJson;

/// An exceeded limit, in tokens or in billionths of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    pub unit: BudgetUnit,
    /// The limit as configured.
    pub configured_limit: u64,
    /// The limit with the increase in force.
    pub limit: u64,
    pub used: u64,
}

/// An exceeded limit and the budget it belongs to, as an approval request contains it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetExceeded {
    pub level: BudgetLevel,
    pub period: Option<BudgetPeriod>,
    /// UTC day or month. An increase is valid only for this one.
    #[serde(rename = "span")]
    pub date: Option<String>,
    pub unit: BudgetUnit,
    /// The limit as configured, in tokens or billionths of a dollar.
    #[serde(rename = "set")]
    pub configured_limit: u64,
    /// The limit with the increase in force.
    pub limit: u64,
    pub used: u64,
}

impl BudgetExceeded {
    /// One sentence with the figures.
    pub fn reason(&self) -> String {
        let when = match self.period {
            Some(BudgetPeriod::Day) => " for today",
            Some(BudgetPeriod::Month) => " for this month",
            Some(BudgetPeriod::Total) | None => "",
        };
        let whose = match self.level {
            BudgetLevel::Prompt => "this prompt",
            BudgetLevel::Conversation => "this conversation",
            BudgetLevel::User => "the user",
            BudgetLevel::Agent => "the agent",
            BudgetLevel::Tenant => "the tenant",
        };
        format!(
            "The budget of {whose}{when} is used up: {}.",
            self.unit.format_amounts(self.used, self.limit)
        )
    }

    /// The form in API responses.
    pub fn to_json(&self) -> RawJson {
        let mut view = json!({
            "level": self.level, "unit": self.unit,
            "limit": self.unit.to_json(self.limit), "used": self.unit.to_json(self.used),
        });
        if let (Some(period), Some(view)) = (self.period, view.as_object_mut()) {
            view.insert("period".to_owned(), json!(period));
        }
        RawJson::from_value(&view)
    }
}
