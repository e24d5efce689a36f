//! Reader of the members that HTTP extensions and HTTP plugins share: name, url, secret and timeout.

use std::sync::Arc;

use url::Url;

use crate::app_settings::parse_text;
use crate::fields;
use crate::fields::DurationMax;
use crate::file_context::{AgentFileContext, reject_app_settings};
use crate::mistakes::Findings;
use crate::yaml::{Member, Node};
use turnwheel_extensions::http::{HttpEndpoint, TIMEOUT_DEFAULT};
use turnwheel_extensions::plugin::is_plugin_name;
use turnwheel_extensions::runner::HOOK_TIMEOUT_MAX;
use turnwheel_platform::clock::SystemClock;
use turnwheel_platform::settings::links::parse_webhook_secrets;
use turnwheel_platform::settings::secret::Secret;
use turnwheel_tools::http::template::Piece;
use turnwheel_tools::http::url_template::UrlTemplate;

const SECRET_EXPECTED: &str = "`secret` names the app setting with the secret: write it as ${NAME}";

/// Name and endpoint of an `http` map.
pub(super) struct HttpHook<'n> {
    pub(super) name: &'n str,
    pub(super) endpoint: HttpEndpoint,
}

/// Reads the map. `keys` are all its keys, and `map_name` is its name in findings. Returns `None`
/// after adding at least one finding.
pub(super) fn read_http_hook<'n>(
    node: &'n Node,
    map_name: &str,
    keys: &[&str],
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<HttpHook<'n>> {
    let before = findings.file_mistakes();
    let members = fields::read_members(node, map_name, keys, findings);
    for member in members {
        if !matches!(member.key.as_str(), "url" | "secret" | "tools") {
            reject_app_settings(&member.value, findings);
        }
    }
    let get = |key: &str| members.iter().find(|member| member.key == key);
    for key in ["name", "url", "secret"] {
        if get(key).is_none() && !members.is_empty() {
            findings.add(node.position, format!("{map_name} needs `{key}`"));
        }
    }
    let name = get("name").and_then(|member| read_name(member, findings));
    let url = get("url").and_then(|member| read_url(member, context, findings));
    let secrets = get("secret").and_then(|member| read_secrets(member, context, findings));
    let timeout = match get("timeout") {
        Some(member) => fields::read_duration(
            member,
            DurationMax { time: HOOK_TIMEOUT_MAX, text: "30s" },
            findings,
        ),
        None => Some(TIMEOUT_DEFAULT),
    };
    if findings.file_mistakes() > before {
        return None;
    }
    let endpoint = HttpEndpoint {
        url: url?,
        secrets: secrets?,
        timeout: timeout?,
        client: context.client.clone(),
        clock: Arc::new(SystemClock::default()),
    };
    Some(HttpHook { name: name?, endpoint })
}

fn read_name<'n>(member: &'n Member, findings: &mut Findings) -> Option<&'n str> {
    let name = fields::read_text(member, findings)?;
    if !is_plugin_name(name) {
        findings.add(member.value.position, "a `name` is 1 to 64 of a-z, 0-9, `_` and `-`");
    }
    Some(name)
}

fn read_url(
    member: &Member,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<Url> {
    let text = fields::read_text(member, findings)?;
    let at = member.value.position;
    let template = parse_text(text.trim(), at, Some(context), findings)?;
    if let Some(argument) = template.arguments().next() {
        findings.add(at, format!("there is no `{{{argument}}}` here: this url has no arguments"));
        return None;
    }
    let url = UrlTemplate::new(&template).map_err(|reason| findings.add(at, reason)).ok()?;
    let url = url.trial_url()?;
    if let Err(refused) = context.client.check_url(&url) {
        findings.add(at, format!("extensions and plugins may not have this url: {refused}"));
    }
    Some(url)
}

/// No finding repeats the text, which may be a secret that was written here by mistake.
fn read_secrets(
    member: &Member,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<Vec<Secret<Vec<u8>>>> {
    let text = fields::read_text(member, findings)?;
    let at = member.value.position;
    let is_placeholder = text.starts_with("${") && text.ends_with('}');
    if !is_placeholder {
        findings.add(at, SECRET_EXPECTED);
        return None;
    }
    let template = parse_text(text, at, Some(context), findings)?;
    let setting = match template.0.as_slice() {
        [Piece::Setting(setting)] => setting,
        // The setting is not set.
        [Piece::Text(_)] => return Some(Vec::new()),
        _ => {
            findings.add(at, SECRET_EXPECTED);
            return None;
        }
    };
    let secrets = parse_webhook_secrets(&setting.value);
    if secrets.is_none() {
        let name = &setting.name;
        findings.add(at, format!("the app setting {name} must be `whsec_` and base64 of at least 24 bytes; several separated by spaces"));
    }
    secrets
}
