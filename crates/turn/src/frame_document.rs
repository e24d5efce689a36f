//! The frame document of a model call: its content, without secrets, and its storing while the model
//! responds. The commit of the response names only a stored document.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use turnwheel_agent_files::ContextFile;
use turnwheel_extensions::Extension;
use turnwheel_model::TIERS;
use turnwheel_platform::clock::millis;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_record::frame_documents::{FrameDocument, FrameParts};
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::ArtifactScope;
use turnwheel_tools::CallableTool;

/// Version of the members of a frame document.
const VERSION: u32 = 1;

const ATTEMPTS_MAX: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Time that a response waits for its document.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The document of the calls of an agent.
pub(crate) fn find_document(services: &Services, parts: FrameParts<'_>) -> Arc<FrameDocument> {
    services.frame_documents.find_or_build(parts, || to_json(services, parts).to_string())
}

/// Stores the document of a frame. `document`: `None` if the head names it already. Returns false if it is
/// not stored: no entry may name it, and the next call tries again.
pub(crate) async fn store_frame_document(
    services: &Services,
    conversation: ArtifactScope,
    document: Option<Arc<FrameDocument>>,
) -> bool {
    let Some(document) = document.filter(|document| document.is_storable()) else { return true };
    services.fail_points.hit("frame-document.before").await;
    let mut attempt = 1;
    loop {
        let now = services.clock.now();
        let stored = services
            .frame_documents
            .store(&*services.artifacts, &conversation, &document, now)
            .await;
        services.fail_points.hit("frame-document.after").await;
        let Err(error) = stored else { return true };
        if attempt == ATTEMPTS_MAX {
            let id = conversation.key.conversation_id.as_str();
            tracing::warn!(conversation.id = id, %error, "frame document not stored");
            return false;
        }
        tokio::time::sleep(RETRY_DELAY * attempt).await;
        attempt += 1;
    }
}

/// Waits for the document of a response that has arrived, for at most `time`. The response is paid for:
/// it is committed without its document before the process ends. Returns false if it is not stored.
pub(crate) async fn wait_for_document(
    services: &Services,
    storing: impl Future<Output = bool>,
    time: Duration,
) -> bool {
    tokio::select! {
        biased;
        stored = tokio::time::timeout(time.min(WAIT_MAX), storing) => stored.unwrap_or(false),
        () = services.shutdown.clone().wait_until_begun() => false,
    }
}

fn to_json(services: &Services, parts: FrameParts<'_>) -> Value {
    let FrameParts { agent, tools, settings, model } = parts;
    let own = tools.iter().map(|tool| tool_json(&**tool, None));
    let of_plugins = agent.plugins.iter().flat_map(|plugin| {
        plugin.tools().iter().map(|tool| tool_json(&**tool, Some(plugin.name())))
    });
    let tiers = TIERS.map(|tier| (tier, services.model.record(tier).ok().map(|record| record.id)));
    let extensions = services.extensions_of(Some(agent)).map(|it| extension_json(&**it));
    let plugins = agent.plugins.iter().map(|plugin| extension_json(&*plugin.hook()));
    json!({
        "version": VERSION,
        "build": services.build,
        "agent": { "name": agent.name, "revision": agent.revision },
        "systemPrompt": &*agent.system_prompt(tools),
        "contextFiles": agent.context_files.iter().map(|it| file_json(it)).collect::<Vec<_>>(),
        "security": agent.security.text(settings.loop_kind.unwrap_or_default()),
        "tools": own.chain(of_plugins).collect::<Vec<_>>(),
        "responseSchema": agent.response_schema,
        "model": model.without_credentials(),
        "models": tiers.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "settings": settings,
        "limits": {
            "maxRounds": settings.rounds_max(),
            "hardRoundsMax": settings.hard_rounds_limit(),
            "maxOutputTokens": model.output_token_limit(settings.max_output_tokens),
            "hookTimeoutMs": millis(services.limits.hook_timeout),
        },
        "extensions": extensions.collect::<Vec<_>>(),
        "plugins": plugins.collect::<Vec<_>>(),
    })
}

/// `plugin`: the plugin that may activate the tool. `None`: it is an active tool of the agent.
fn tool_json(tool: &dyn CallableTool, plugin: Option<&str>) -> Value {
    let (definition, destination) = (tool.definition(), tool.destination());
    json!({
        "name": definition.name,
        "label": definition.label,
        "description": definition.description,
        "parameters": definition.parameters,
        "strict": definition.is_strict,
        "effect": definition.effect,
        "onUnknown": definition.on_unknown,
        "timeoutMs": millis(definition.timeout),
        "revision": definition.revision,
        "approval": tool.approval_rule(),
        "destination": destination.shown,
        "destinationHash": destination.hash,
        "plugin": plugin,
    })
}

/// The text is part of the system prompt.
fn file_json(file: &ContextFile) -> Value {
    json!({ "location": file.location, "sha256": sha256_hex(file.text.as_bytes()) })
}

fn extension_json(extension: &dyn Extension) -> Value {
    json!({
        "name": extension.name(),
        "version": extension.version(),
        "remote": extension.is_remote(),
        "permissions": extension.permissions(),
    })
}
