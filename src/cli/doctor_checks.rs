//! Checks of `doctor` that read agent files and send requests to the configured services.

mod mcp;
mod shell;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::doctor::{self, Area, Check};
use crate::start::shared_user::shared_user_note;
use crate::start::{model, ports, prices};
use turnwheel_agent_files as agents;
use turnwheel_agent_files::{AgentDefinition, Catalog, LoadedAgents};
use turnwheel_azure::credential::Credentials;
use turnwheel_conversation::message::AssistantMessage;
use turnwheel_model::{Model, ModelRecord, TIERS, USAGE_ESTIMATED, chat};
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::{Ids as _, SystemIds};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::is_loopback;
use turnwheel_platform::settings::model::Provider;
use turnwheel_storage::queue::{self, Queue as _};

pub(crate) use self::mcp::{StoreLocation, mcp_checks};
pub(crate) use self::shell::shell_check;

/// Time limit of a check. An available service responds much sooner.
const CHECK_TIMEOUT: Duration = Duration::from_secs(45);

pub(crate) fn agent_checks(
    settings: &ServiceSettings,
    folder: &Path,
    agents: &Result<LoadedAgents, Vec<String>>,
) -> Vec<Check> {
    let mut checks = agent_file_checks(settings, agents);
    let unread = agents::find_unread_files(folder);
    checks.extend(unread.iter().map(|file| Check::from_agent_mistake(&file.to_string())));
    checks
}

fn agent_file_checks(
    settings: &ServiceSettings,
    agents: &Result<LoadedAgents, Vec<String>>,
) -> Vec<Check> {
    let mistakes = agents.as_ref().err().map_or(&[][..], Vec::as_slice);
    if let Ok(LoadedAgents { note: Some(note), .. }) = agents {
        return vec![Check::fix(Area::Agents, "agent files", note)];
    }
    if mistakes.is_empty() {
        let mut checks = vec![Check::ok(Area::Agents, "agent files", "every agent can be used")];
        if !settings.pauses.is_empty() {
            let paused = settings.pauses.to_vec().join(", ");
            let detail = format!("{paused}: pending work is kept and not started");
            checks.push(Check::ok(Area::Agents, "TURNWHEEL_PAUSED", detail));
        }
        return checks;
    }
    mistakes.iter().map(|mistake| Check::from_agent_mistake(mistake)).collect()
}

/// Sends a request to the model of `normal`, and to that of `high` if it uses another API.
pub(crate) fn model_checks(
    settings: &ServiceSettings,
    credentials: &Credentials,
    is_offline: bool,
) -> Vec<Check> {
    let model = match model::create_model(settings, credentials) {
        Ok(model) => model,
        Err(mistakes) => return vec![Check::fix(Area::Model, "model", mistakes.join(" "))],
    };
    let normal = match model.record("normal") {
        Ok(record) => record,
        Err(mistake) => return vec![Check::fix(Area::Model, "normal", mistake)],
    };
    let high = model.record("high").ok().filter(|high| high.api != normal.api);
    let mut checks = vec![tier_check(&*model, "normal", &normal, is_offline)];
    checks.extend(high.map(|high| tier_check(&*model, "high", &high, is_offline)));
    checks
}

fn tier_check(model: &dyn Model, tier: &str, record: &ModelRecord, is_offline: bool) -> Check {
    if is_offline || record.api == "scripted" {
        return Check::ok(Area::Model, tier, format!("{} ({})", record.id, record.api));
    }
    let response = block_on_value(send_test_request(model, record)).map(|it| it.message);
    let is_estimated = |message: &AssistantMessage| message.extra.contains_key(USAGE_ESTIMATED);
    let note = match &response {
        Some(message) if is_estimated(message) => {
            ", without usage: its costs are estimates (docs/models.md)"
        }
        Some(_) | None => "",
    };
    let api = if record.api == chat::API { " over Chat Completions" } else { "" };
    match response.and_then(|message| message.error_message) {
        None => Check::ok(Area::Model, tier, format!("{} responds{api}{note}", record.id)),
        Some(error) => Check::fix(
            Area::Model,
            tier,
            format!("the request to {}{api} failed: {error}", record.id),
        ),
    }
}

/// Checks that every model with a limit in US dollars has a price. Returns `None` without such a
/// limit or without a usable model.
pub(crate) fn price_check(
    settings: &ServiceSettings,
    credentials: &Credentials,
    catalog: &Catalog,
) -> Option<Check> {
    let model = model::create_model(settings, credentials).ok()?;
    let unpriced = prices::find_unpriced_models(&settings.budgets, &*model, catalog)?;
    if !matches!(settings.model.provider, Provider::Azure(_)) {
        const FREE: &str = "the fake model costs nothing: `doctor` checks the prices of a model service with its settings";
        return Some(Check::skipped(Area::Model, "prices", FREE));
    }
    Some(if unpriced.is_empty() {
        Check::ok(Area::Model, "prices", "every model that is limited in US dollars has a price")
    } else {
        Check::fix(Area::Model, "prices", prices::describe_unpriced(&unpriced))
    })
}

/// Reports agents that name a model while the fake model replies for every one. Returns `None` if
/// there are none.
pub(crate) fn fake_model_check(settings: &ServiceSettings, catalog: &Catalog) -> Option<Check> {
    if matches!(settings.model.provider, Provider::Azure(_)) {
        return None;
    }
    let is_named = |agent: &&Arc<AgentDefinition>| {
        agent.settings.model.as_deref().is_some_and(|model| !TIERS.contains(&model))
    };
    let names: Vec<String> = catalog
        .agents
        .values()
        .filter(is_named)
        .map(|agent| {
            format!("{} ({})", agent.name, agent.settings.model.as_deref().unwrap_or_default())
        })
        .collect();
    let detail = format!(
        "{}: the fake model replies in place of the named one; for a real model set AZURE_OPENAI_ENDPOINT and TURNWHEEL_MODEL",
        names.join(", ")
    );
    (!names.is_empty()).then(|| Check::skipped(Area::Model, "model of agents", detail))
}

/// Reports agents whose memory, profile, recall or user skills are off because all callers are one user.
/// Returns `None` if there are none.
pub(crate) fn memory_check(settings: &ServiceSettings, catalog: &Catalog) -> Option<Check> {
    let detail = shared_user_note(settings, catalog)?;
    Some(Check::skipped(Area::Agents, "memory", detail))
}

/// Sends the model a minimal request.
async fn send_test_request(
    model: &dyn Model,
    record: &ModelRecord,
) -> turnwheel_model::ModelResponse {
    use turnwheel_conversation::content::Content;
    use turnwheel_conversation::message::{Message, UserMessage};
    struct NullListener;
    impl turnwheel_model::Listener for NullListener {
        fn on_event(&self, _event: turnwheel_conversation::event::AssistantMessageEvent) {}
    }
    let prompt = Message::User(UserMessage {
        content: Content::Text("Say: ok".to_owned()),
        timestamp: turnwheel_platform::clock::Timestamp(0),
        extra: turnwheel_conversation::unknown_members::Extra::new(),
    });
    let messages = [&prompt];
    let request = turnwheel_model::ModelRequest {
        max_output_tokens: Some(16),
        session_id: "doctor",
        ..turnwheel_model::ModelRequest::new(record, &messages)
    };
    model.respond(request, &NullListener).await
}

pub(crate) fn block_on_value<T>(work: impl Future<Output = T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    Some(runtime.block_on(Box::pin(work)))
}

/// Checks the conversation store: the Cosmos DB account of the settings, else the data folder of
/// `dev`.
pub(crate) async fn store_check(
    settings: &ServiceSettings,
    credentials: &Credentials,
    data: &Path,
    is_offline: bool,
) -> Vec<Check> {
    let Some(account) = &settings.cosmos else { return vec![folder_check(data)] };
    let name = "Cosmos DB";
    if is_offline {
        return vec![Check::skipped(Area::Store, name, "not checked (--offline)")];
    }
    let checking = async {
        let store = ports::open_cosmos_store(account, credentials)
            .await
            .map_err(|error| error_line(&error))?;
        let now = SystemClock::default().now();
        let cost = doctor::measure_round_cost(&store, &SystemIds.new_id(), now).await;
        let cost = cost.map_err(|error| error_line(&error))?;
        let charges = doctor::measure_read_charges(&store, &SystemIds.new_id()).await;
        Ok::<_, String>((cost, charges.map_err(|error| error_line(&error))?))
    };
    let is_emulator = is_loopback(account.endpoint.as_str());
    match tokio::time::timeout(CHECK_TIMEOUT, checking).await {
        Ok(Ok((cost, charges))) => vec![
            Check::ok(
                Area::Store,
                name,
                format!(
                    "the database `{}` accepts documents; a tool round of short messages costs {:.0} request units in {} requests",
                    account.database, cost.request_units, cost.requests
                ),
            ),
            doctor::quorum_check(charges, is_emulator),
        ],
        Ok(Err(reason)) => vec![Check::fix(Area::Store, name, reason)],
        Err(_) => vec![Check::fix(
            Area::Store,
            name,
            "no response within 45 s: check the account name, its firewall and the network",
        )],
    }
}

/// Checks the queues and counts their messages. Returns `None` without a storage account.
pub(crate) async fn storage_check(
    settings: &ServiceSettings,
    credentials: &Credentials,
    is_offline: bool,
) -> Option<Check> {
    let account = settings.storage.as_ref()?;
    let name = "queues";
    if is_offline {
        return Some(Check::skipped(Area::Storage, name, "not checked (--offline)"));
    }
    if account.is_local() && !ports::is_reachable(account).await {
        let reason =
            "the storage emulator is not running: `turnwheel dev --storage azurite` starts it";
        return Some(Check::skipped(Area::Storage, name, reason));
    }
    let counting = async {
        let queues =
            ports::connect_queue(account, "", credentials).map_err(|error| error_line(&error))?;
        let turns = queues.length(queue::TURNS).await.map_err(|error| error_line(&error))?;
        let poison = queue::poison_queue(queue::PROMPTS);
        let rejected = queues.length(&poison).await.map_err(|error| error_line(&error))?;
        Ok::<_, String>(format!("reachable; {turns} nudges queued, {rejected} prompts rejected"))
    };
    Some(match tokio::time::timeout(CHECK_TIMEOUT, counting).await {
        Ok(Ok(found)) => Check::ok(Area::Storage, name, found),
        Ok(Err(reason)) => Check::fix(Area::Storage, name, reason),
        Err(_) => Check::fix(
            Area::Storage,
            name,
            "no response within 45 s: check the account name, its firewall and the network",
        ),
    })
}

/// The error and its causes on one line.
fn error_line(error: &dyn std::error::Error) -> String {
    error_chain(error).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that the data folder of `dev` opens or is in use by a running `dev`.
fn folder_check(folder: &Path) -> Check {
    if !folder.exists() {
        return Check::skipped(
            Area::Store,
            "embedded",
            "the data folder does not exist yet: `turnwheel dev` creates it",
        );
    }
    match turnwheel_storage::store::embedded::EmbeddedStore::open(folder) {
        Ok(_) => Check::ok(Area::Store, "embedded", format!("{} opens", folder.display())),
        Err(turnwheel_storage::store::embedded::OpenError::InUse { .. }) => Check::ok(
            Area::Store,
            "embedded",
            format!("{} is in use by a running `turnwheel dev`", folder.display()),
        ),
        Err(error) => Check::fix(Area::Store, "embedded", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_agent_files::AgentProfile;
    use turnwheel_json::raw::RawJson;

    #[test]
    fn agents_whose_profile_is_off_are_named() {
        let settings = ServiceSettings::read(|_| None).unwrap();
        let mut catalog = Catalog::default();
        for (name, shared) in [("off", Some(false)), ("shared", Some(true)), ("plain", None)] {
            let profile = shared.map(|allows_shared_user| AgentProfile { allows_shared_user });
            let agent =
                AgentDefinition { name: name.to_owned(), profile, ..AgentDefinition::default() };
            catalog.agents.insert(name.to_owned(), Arc::new(agent));
        }
        let check = format!("{:?}", memory_check(&settings, &catalog).unwrap());
        assert!(check.contains("off: memory, profile") && !check.contains("plain"), "{check}");
        catalog.agents.remove("off");
        assert!(memory_check(&settings, &catalog).is_none());
    }

    #[test]
    fn fake_model_needs_no_price_of_a_limited_agent() {
        let settings = ServiceSettings::read(|_| None).unwrap();
        let mut agent = AgentDefinition { name: "paid".to_owned(), ..AgentDefinition::default() };
        agent.settings.budget = Some(RawJson::from_text(r#"{"prompt": {"usd": 1}}"#).unwrap());
        let mut catalog = Catalog::default();
        catalog.agents.insert("paid".to_owned(), Arc::new(agent));
        let check = price_check(&settings, &Credentials::default(), &catalog);
        let check = format!("{:?}", check.unwrap());
        assert!(check.contains("Skipped") && check.contains("costs nothing"), "{check}");
    }

    #[test]
    fn agents_whose_model_is_replaced_by_the_fake_one_are_named() {
        let settings = ServiceSettings::read(|_| None).unwrap();
        let mut catalog = Catalog::default();
        for (name, model) in [("named", Some("gpt-4o")), ("tier", Some("high")), ("plain", None)] {
            let mut agent = AgentDefinition { name: name.to_owned(), ..AgentDefinition::default() };
            agent.settings.model = model.map(ToOwned::to_owned);
            catalog.agents.insert(name.to_owned(), Arc::new(agent));
        }
        let check = format!("{:?}", fake_model_check(&settings, &catalog).unwrap());
        assert!(check.contains("named (gpt-4o): the fake model replies"), "{check}");
        assert!(!check.contains("tier") && !check.contains("plain"), "{check}");
        let pairs =
            [("AZURE_OPENAI_ENDPOINT", "https://a.openai.azure.com"), ("TURNWHEEL_MODEL", "m")];
        let real = move |name: &str| {
            pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned())
        };
        assert!(fake_model_check(&ServiceSettings::read(real).unwrap(), &catalog).is_none());
    }
}
