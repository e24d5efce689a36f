//! HTTP extensions and plugins with a server in this process: events, failures and attempts.

mod changes;
mod events;
mod failures;
mod plugin;
mod server;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::context::{Anchor, HookSite};
use crate::runner::tests::new_site;
use crate::{CommandSpec, Events, Extension, Hook, PendingToolCall, Permissions};
use turnwheel_conversation::question::Answers;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::SystemClock;
use turnwheel_platform::ids::UserId;
use turnwheel_platform::settings::secret::Secret;
use turnwheel_tools::Arguments;
use turnwheel_tools::http::address_rules::AddressRules;
use turnwheel_tools::http::client::HttpClient;

pub(super) const SECRET: [u8; 24] = [7; 24];

pub(super) fn endpoint(url: &str, timeout: Duration) -> HttpEndpoint {
    HttpEndpoint {
        url: url.parse().unwrap(),
        secrets: vec![Secret::new(SECRET.to_vec())],
        timeout,
        client: HttpClient::new(AddressRules::default().with_loopback()).unwrap(),
        clock: Arc::new(SystemClock::default()),
    }
}

pub(super) fn extension(url: &str, timeout: Duration) -> HttpExtension {
    HttpExtension {
        name: "guard".to_owned(),
        events: Events::ALL,
        endpoint: endpoint(url, timeout),
        commands: vec![CommandSpec::new("rules", "Shows the rules.")],
        is_optional: false,
        permissions: Permissions::new(),
    }
}

/// Names the hook in a context.
#[derive(Debug)]
struct Named;

impl Extension for Named {
    fn name(&self) -> &'static str {
        "guard"
    }
}

pub(super) fn context(hook: Hook) -> HookContext {
    let prompt_id = Some(PromptId::new("pr_1"));
    let site = HookSite { prompt_id, ..new_site("c", "i", hook, Anchor::Response(1)) };
    HookContext::new(Arc::new(site), Arc::new(Named)).with_questions(&Answers::default())
}

pub(super) fn arguments(value: Value) -> Arguments {
    Arguments { text: RawJson::from_value(&value), value }
}

pub(super) fn pay() -> Arguments {
    arguments(json!({"amount": 5}))
}

pub(super) fn pending_call(arguments: &Arguments) -> PendingToolCall<'_> {
    PendingToolCall { tool_call_id: "call_1", tool_name: "pay", arguments, calls_count: 1 }
}

/// Checks a document with a schema of `docs/extensions-http.schema.json`.
pub(super) fn fits_schema(name: &str, document: &Value) -> bool {
    let mut schema: Value =
        serde_json::from_str(include_str!("../../../../docs/extensions-http.schema.json")).unwrap();
    schema["$ref"] = json!(format!("#/$defs/{name}"));
    jsonschema::validator_for(&schema).unwrap().is_valid(document)
}
