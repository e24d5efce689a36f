//! `TURNWHEEL_BUDGETS`: spending limits of tenants, users and agents per day, month and in total.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use super::mistake::SettingMistake;
use super::reader::Reader;

/// Smallest limit in dollars: amounts are counted in billionths, as for the budgets of agent files.
const USD_MIN: f64 = 1e-9;
/// A higher limit is rejected as a typing error.
const USD_MAX: f64 = 1e9;
const TOKENS_MAX: u64 = 1_000_000_000_000_000;
const NAME: &str = "TURNWHEEL_BUDGETS";
const EXPECTED: &str = r#"JSON such as {"user": {"day": {"usd": 5}}, "tenant": {"month": {"usd": 500}}, "agent:clerk": {"total": {"tokens": 1000000}}}"#;
/// The default approvers of a limit increase.
const APPROVERS: [&str; 2] = ["owner", "link"];

/// Configured spending limits. An absent limit does not apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Budgets {
    /// Limits of each tenant as a whole.
    pub tenant: ConfiguredLimits,
    /// Limits of each user.
    pub user: ConfiguredLimits,
    /// Limits by agent name, in each tenant.
    pub agents: Vec<(String, ConfiguredLimits)>,
    /// Approvers who may raise a limit: `owner`, `link` or `role:NAME`.
    pub approvers: Vec<String>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            tenant: ConfiguredLimits::default(),
            user: ConfiguredLimits::default(),
            agents: Vec::new(),
            approvers: APPROVERS.map(ToOwned::to_owned).to_vec(),
        }
    }
}

/// Limits per UTC day, per UTC month and in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfiguredLimits {
    pub day: Option<ConfiguredLimit>,
    pub month: Option<ConfiguredLimit>,
    pub total: Option<ConfiguredLimit>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfiguredLimit {
    pub tokens: Option<u64>,
    /// US dollars.
    pub usd: Option<f64>,
}

impl ConfiguredLimit {
    fn is_valid(&self) -> bool {
        let has_limit = self.tokens.is_some() || self.usd.is_some();
        let is_positive = self.tokens != Some(0) && self.usd.is_none_or(|usd| usd >= USD_MIN);
        let is_below_maximum = self.tokens.is_none_or(|tokens| tokens <= TOKENS_MAX)
            && self.usd.is_none_or(|usd| usd <= USD_MAX);
        has_limit && is_positive && is_below_maximum
    }
}

impl<'de> Deserialize<'de> for Budgets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Budgets;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of budgets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Budgets, A::Error> {
                let mut budgets = Budgets::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "approvers" {
                        budgets.approvers = map.next_value()?;
                        continue;
                    }
                    let limits: ConfiguredLimits = map.next_value()?;
                    check_limits(&name, &limits).map_err(A::Error::custom)?;
                    match (name.as_str(), name.strip_prefix("agent:")) {
                        ("tenant", _) => budgets.tenant = limits,
                        ("user", _) => budgets.user = limits,
                        (_, Some(agent)) if !agent.is_empty() => {
                            budgets.agents.push((agent.to_owned(), limits));
                        }
                        _ => {
                            return Err(A::Error::custom(format!(
                                "`{name}` is none of `tenant`, `user`, `agent:NAME`, `approvers`"
                            )));
                        }
                    }
                }
                let is_named = |approver: &String| {
                    approver == "owner"
                        || approver == "link"
                        || approver.strip_prefix("role:").is_some_and(|role| !role.is_empty())
                };
                if budgets.approvers.is_empty() || !budgets.approvers.iter().all(is_named) {
                    return Err(A::Error::custom("`approvers` are `owner`, `link` or `role:NAME`"));
                }
                Ok(budgets)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

fn check_limits(name: &str, limits: &ConfiguredLimits) -> Result<(), String> {
    let configured: Vec<&ConfiguredLimit> =
        [&limits.day, &limits.month, &limits.total].into_iter().flatten().collect();
    if configured.is_empty() {
        return Err(format!("`{name}` has none of `day`, `month`, `total`"));
    }
    if configured.iter().all(|bound| bound.is_valid()) {
        Ok(())
    } else {
        Err(format!(
            "each limit of `{name}` has `tokens`, `usd` or both: 0.000000001 to 1000000000 dollars, 1 to 1000000000000000 tokens"
        ))
    }
}

/// Rejects lists, because serde accepts a list in place of an object, member by member.
fn reject_lists(text: &str) -> Result<(), String> {
    let Ok(Value::Object(budgets)) = serde_json::from_str(text) else { return Ok(()) };
    for (name, limits) in budgets.iter().filter(|(name, _)| *name != "approvers") {
        let periods = limits.as_object().into_iter().flatten();
        let has_list = limits.is_array() || periods.into_iter().any(|(_, bound)| bound.is_array());
        if has_list {
            return Err(format!("`{name}` and its members are objects, not lists"));
        }
    }
    Ok(())
}

pub(super) fn read(reader: &mut Reader<'_>) -> Budgets {
    let Some(text) = reader.get(NAME) else { return Budgets::default() };
    let read = reject_lists(&text).and_then(|()| {
        serde_json::from_str::<Budgets>(&text).map_err(|error| {
            let text = error.to_string();
            text.split(" at line ").next().unwrap_or_default().to_owned()
        })
    });
    match read {
        Ok(budgets) => budgets,
        Err(error) => {
            reader.add_mistake(SettingMistake::new(
                NAME,
                format!("cannot be read: {error}; expected {EXPECTED}"),
            ));
            Budgets::default()
        }
    }
}
