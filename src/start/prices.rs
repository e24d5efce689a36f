//! Detection of limits in US dollars that have no effect, because their model has no price.

use std::collections::BTreeSet;

use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_model::{Model, Prices};
use turnwheel_platform::settings::budgets::{Budgets, ConfiguredLimits};

/// Models without a price among the models of agents with a limit in US dollars: the two tiers and
/// the models that these agents name. `None` if no agent has such a limit.
pub(crate) fn find_unpriced_models(
    budgets: &Budgets,
    model: &dyn Model,
    catalog: &Catalog,
) -> Option<BTreeSet<String>> {
    let limited: Vec<&AgentDefinition> = catalog
        .agents
        .values()
        .map(|agent| &**agent)
        .filter(|agent| is_limited(agent, budgets))
        .collect();
    if limited.is_empty() {
        return None;
    }
    let named = limited.iter().filter_map(|agent| agent.settings.model.as_deref());
    // Another check reports a tier without a model.
    let records =
        [DEFAULT_MODEL, "high"].into_iter().chain(named).flat_map(|name| model.record(name));
    Some(records.filter(|it| it.cost == Prices::default()).map(|it| it.id).collect())
}

/// Logs a warning at start-up if there are such models.
pub(crate) fn log_unpriced_models(budgets: &Budgets, model: &dyn Model, catalog: &Catalog) {
    let models = find_unpriced_models(budgets, model, catalog).unwrap_or_default();
    if !models.is_empty() {
        tracing::warn!("limit without effect: {}", describe_unpriced(&models));
    }
}

/// Renders the warning with its fix.
pub(crate) fn describe_unpriced(models: &BTreeSet<String>) -> String {
    let models: Vec<String> = models.iter().map(|model| format!("`{model}`")).collect();
    format!(
        "no price is known for {}: calls count as $0, so limits in US dollars (TURNWHEEL_BUDGETS, `budget` of agents) have no effect; set TURNWHEEL_PRICES, or limit tokens",
        models.join(", ")
    )
}

fn is_limited(agent: &AgentDefinition, budgets: &Budgets) -> bool {
    let own = agent.settings.parse_budget().into_iter().flat_map(|it| [it.prompt, it.conversation]);
    let named = budgets.agents.iter().filter(|(name, _)| *name == agent.name);
    let mut accounts = [&budgets.tenant, &budgets.user].into_iter().chain(named.map(|(_, it)| it));
    own.flatten().any(|limit| limit.usd.is_some()) || accounts.any(has_dollar_limit)
}

fn has_dollar_limit(bounds: &ConfiguredLimits) -> bool {
    let given = [bounds.day, bounds.month, bounds.total];
    given.into_iter().flatten().any(|bound| bound.usd.is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use turnwheel_model::responses::client::ModelApiClient;
    use turnwheel_model::responses::config::{ResponsesConfig, SecretText};
    use turnwheel_model::scripted::ScriptedModel;

    fn catalog(settings: &serde_json::Value) -> Catalog {
        let clerk = AgentDefinition {
            name: "clerk".to_owned(),
            settings: serde_json::from_str(&settings.to_string()).unwrap(),
            ..AgentDefinition::default()
        };
        let agents = [("clerk".to_owned(), Arc::new(clerk))].into();
        Catalog { agents, ..Catalog::default() }
    }

    fn azure(model: &str, prices: Option<&str>) -> ModelApiClient {
        let config = ResponsesConfig {
            base_url: Some("https://models.example/openai/v1".to_owned()),
            api_key: Some(SecretText::new("key".to_owned())),
            normal_model: Some(model.to_owned()),
            prices: prices.map(SecretText::new),
            ..ResponsesConfig::default()
        };
        ModelApiClient::new(&config, None).unwrap()
    }

    fn unpriced_for(
        budgets: &str,
        settings: &serde_json::Value,
        model: &dyn Model,
    ) -> Option<Vec<String>> {
        let budgets = serde_json::from_str(budgets).unwrap();
        find_unpriced_models(&budgets, model, &catalog(settings))
            .map(|found| found.into_iter().collect())
    }

    #[test]
    fn dollar_limit_without_model_price_is_reported() {
        let (mine, plain) = (azure("mine", None), json!({}));
        let unknown = Some(vec!["mine".to_owned()]);
        for budgets in [
            r#"{"tenant": {"month": {"usd": 5}}}"#,
            r#"{"user": {"day": {"usd": 5, "tokens": 9}}}"#,
            r#"{"agent:clerk": {"total": {"usd": 5}}}"#,
        ] {
            assert_eq!(unpriced_for(budgets, &plain, &mine), unknown, "{budgets}");
        }
        for own in ["prompt", "conversation"] {
            assert_eq!(unpriced_for("{}", &json!({"budget": {own: {"usd": 5}}}), &mine), unknown);
        }
        for budgets in [
            "{}",
            r#"{"user": {"day": {"tokens": 9}}}"#,
            r#"{"agent:other": {"total": {"usd": 5}}}"#,
        ] {
            assert_eq!(unpriced_for(budgets, &plain, &mine), None, "{budgets}");
        }
        let dollars = r#"{"user": {"day": {"usd": 5}}}"#;
        let priced = azure("mine", Some(r#"{"mine": {"input": 1, "output": 2}}"#));
        assert_eq!(
            unpriced_for(dollars, &plain, &priced),
            Some(Vec::new()),
            "TURNWHEEL_PRICES has an effect"
        );
        assert_eq!(unpriced_for(dollars, &plain, &azure("gpt-5.1", None)), Some(Vec::new()));
        let named = json!({"model": "another"});
        let another = Some(vec!["another".to_owned()]);
        assert_eq!(unpriced_for(dollars, &named, &azure("gpt-5.1", None)), another);
        assert!(
            unpriced_for(dollars, &plain, &ScriptedModel).is_some_and(|found| !found.is_empty())
        );
        let message = describe_unpriced(&["another".to_owned(), "mine".to_owned()].into());
        assert!(message.starts_with("no price is known for `another`, `mine`: "), "{message}");
    }
}
