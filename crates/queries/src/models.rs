//! Model queries: the configured models with their abilities and prices, and whether a model can be called.

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::settings::{ThinkingLevel, model_id_error};
use turnwheel_model::catalogue::find_tariff;
use turnwheel_model::{ModelRecord, Prices, TIERS, distinct_records};
use turnwheel_record::services::Services;

#[derive(Debug, Serialize, ToSchema)]
pub struct Models {
    pub items: Vec<ModelView>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelView {
    /// Value of `settings.model`.
    pub id: String,
    /// Tiers that select the model: `normal`, `high`.
    pub tiers: Vec<&'static str>,
    pub provider: String,
    /// Thinking levels of the model, lowest first. Another level has the effect of the nearest one.
    pub thinking_levels: Vec<ThinkingLevel>,
    /// True if the model accepts images.
    pub images: bool,
    /// Maximum tokens of a request with its response.
    pub context_window: u64,
    pub max_output_tokens: u64,
    /// Absent if no price is known: calls count as $0.
    pub prices: Option<Prices>,
    /// Prices of a call with more than 272,000 input tokens, if they differ.
    pub long_context_prices: Option<Prices>,
}

/// Returns the reason why the model cannot be called, or `None` if it can.
pub fn find_model_error(services: &Services, model: &str) -> Option<String> {
    let is_unknown = || services.model.record(model).err();
    model_id_error(model).or_else(|| is_unknown().map(|why| format!("No model selected. {why}")))
}

/// As [`find_model_error`], for the model of an idle conversation's next prompt that names none.
pub fn find_next_model_error(
    services: &Services,
    head: &Head,
    agent: &AgentDefinition,
) -> Option<String> {
    let settings = head.settings.with_fallback(&agent.settings);
    find_model_error(services, head.model_name(&settings))
}

/// Lists the models of the settings, and those that agents name.
pub fn list_models(services: &Services) -> Models {
    let model = &*services.model;
    let (configured, catalog) = (model.models(), services.agents.current());
    let of_agents = catalog.agents.values().filter_map(|agent| agent.settings.model.as_deref());
    let names = configured.iter().map(|record| record.id.as_str()).chain(of_agents);
    let tiers_of = |id: &str| {
        let selects = |tier: &&str| model.record(tier).is_ok_and(|record| record.id == id);
        TIERS.into_iter().filter(selects).collect()
    };
    let records = distinct_records(model, names);
    let items = records.into_iter().map(|record| model_view(tiers_of(&record.id), record));
    Models { items: items.collect() }
}

fn model_view(tiers: Vec<&'static str>, record: ModelRecord) -> ModelView {
    ModelView {
        tiers,
        thinking_levels: record.thinking_levels(),
        images: record.images,
        context_window: record.context_window,
        max_output_tokens: record.max_tokens,
        prices: (record.cost != Prices::default()).then_some(record.cost),
        long_context_prices: find_tariff(&record).long_context,
        provider: record.provider,
        id: record.id,
    }
}
