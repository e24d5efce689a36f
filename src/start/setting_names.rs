//! Check of the agent and tool names in settings. An unknown name is a mistake, because its limit
//! or pause would have no effect.

use turnwheel_agent_files::Catalog;
use turnwheel_platform::settings::ServiceSettings;

/// Returns a sentence for each unknown agent or tool name in `TURNWHEEL_DEFAULT_AGENT`,
/// `TURNWHEEL_BUDGETS` and `TURNWHEEL_PAUSED`.
pub(crate) fn find_unknown_names(settings: &ServiceSettings, catalog: &Catalog) -> Vec<String> {
    let is_agent =
        |name: &str| catalog.agents.contains_key(name) || catalog.broken.contains_key(name);
    // The tools of an agent with an invalid file are not known, so any name may be valid.
    let is_tool = |name: &str| {
        !catalog.broken.is_empty()
            || catalog.agents.values().any(|agent| agent.find_tool(name).is_some())
    };
    let mut names: Vec<&str> =
        catalog.agents.keys().chain(catalog.broken.keys()).map(String::as_str).collect();
    names.sort_unstable();
    let known_agents = if names.is_empty() {
        "there are none".to_owned()
    } else {
        format!("there are: {}", names.join(", "))
    };
    let mut mistakes = Vec::new();
    if let Some(name) = settings.default_agent.as_deref().filter(|name| !is_agent(name)) {
        mistakes.push(format!(
            "TURNWHEEL_DEFAULT_AGENT is `{name}`: there is no agent `{name}`; {known_agents}"
        ));
    }
    let budgeted = settings.budgets.agents.iter().map(|(name, _)| name.as_str());
    mistakes.extend(budgeted.filter(|name| !is_agent(name)).map(|name| {
        format!(
            "TURNWHEEL_BUDGETS names `agent:{name}`: there is no agent `{name}`; {known_agents}"
        )
    }));
    let paused = settings.pauses.find_unknown(is_agent, is_tool).into_iter();
    mistakes.extend(paused.map(|target| match target.split_once(':').unwrap_or_default() {
        ("agent", name) => {
            format!("TURNWHEEL_PAUSED names `{target}`: there is no agent `{name}`; {known_agents}")
        }
        (_, name) => format!("TURNWHEEL_PAUSED names `{target}`: no agent has a tool `{name}`"),
    }));
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_agent_files::BrokenAgent;

    fn settings(pairs: &'static [(&'static str, &'static str)]) -> ServiceSettings {
        ServiceSettings::read(|requested| {
            pairs.iter().find(|(name, _)| *name == requested).map(|(_, value)| (*value).to_owned())
        })
        .unwrap()
    }

    #[test]
    fn unknown_names_in_settings_are_reported() {
        let settings = settings(&[
            ("TURNWHEEL_DEFAULT_AGENT", "nope"),
            (
                "TURNWHEEL_BUDGETS",
                r#"{"agent:clerk": {"day": {"usd": 5}}, "agent:clark": {"day": {"usd": 5}}}"#,
            ),
            ("TURNWHEEL_PAUSED", "agent:clerk,agent:gone,tool:pay"),
        ]);
        let mut catalog = Catalog::default();
        let name = "clerk".to_owned();
        catalog.broken.insert(name.clone(), BrokenAgent { name, problem: String::new() });
        assert_eq!(
            find_unknown_names(&settings, &catalog),
            [
                "TURNWHEEL_DEFAULT_AGENT is `nope`: there is no agent `nope`; there are: clerk",
                "TURNWHEEL_BUDGETS names `agent:clark`: there is no agent `clark`; there are: clerk",
                "TURNWHEEL_PAUSED names `agent:gone`: there is no agent `gone`; there are: clerk",
            ]
        );
        let none = find_unknown_names(&settings, &Catalog::default());
        let tool = "TURNWHEEL_PAUSED names `tool:pay`: no agent has a tool `pay`";
        assert_eq!(none.last().map(String::as_str), Some(tool));
        assert!(none[0].ends_with("there is no agent `nope`; there are none"), "{none:?}");
    }
}
