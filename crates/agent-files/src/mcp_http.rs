//! Reader of the servers of `mcp.json` that have a `url`.

use std::str::FromStr as _;
use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderName, HeaderValue};
use url::Url;

use crate::app_settings::parse_text;
use crate::fields;
use crate::file_context::AgentFileContext;
use crate::http_tool::{check_encryption, check_entra_scope};
use crate::mcp_file::members;
use crate::mistakes::Findings;
use crate::yaml::{Member, Node, Position};
use turnwheel_platform::settings::secret::Secret;
use turnwheel_tools::http::redactor::Redactor;
use turnwheel_tools::http::request::is_reserved;
use turnwheel_tools::http::template::{SettingSecret, Template, is_secret_name};
use turnwheel_tools::http::url_template::UrlTemplate;
use turnwheel_tools::mcp::HttpConnector;
use turnwheel_tools::mcp::authorization::{Authorization, OAuthClient};

/// Values of `session`: true if each conversation has a session of its own.
const SESSIONS: [(&str, bool); 2] = [("process", false), ("conversation", true)];

const OAUTH_KEYS: [&str; 5] = ["tokenUrl", "clientId", "clientSecret", "scope", "resource"];

/// Texts with app settings. It collects their values, which servers may echo.
pub(super) struct Texts<'t> {
    pub(super) context: &'t AgentFileContext<'t>,
    secrets: Vec<SettingSecret>,
    /// See [`Template::describe`].
    descriptions: Vec<String>,
}

impl<'t> Texts<'t> {
    pub(super) fn new(context: &'t AgentFileContext<'t>) -> Self {
        Self { context, secrets: Vec::new(), descriptions: Vec::new() }
    }

    /// All texts with the values of settings that are no secrets.
    pub(super) fn address(&self) -> String {
        self.descriptions.join("\n")
    }

    /// Removes the values of all settings so far.
    pub(super) fn redactor(&self) -> Redactor {
        Redactor::new(self.secrets.iter())
    }

    /// `key`: the key of the text, which shows whether its settings are secrets.
    fn parse(
        &mut self,
        key: &str,
        text: &str,
        at: Position,
        findings: &mut Findings,
    ) -> Option<Template> {
        let template = parse_text(text, at, Some(self.context), findings)?;
        if let Some(argument) = template.arguments().next() {
            findings
                .add(at, format!("there is no `{{{argument}}}` here: a server has no arguments"));
            return None;
        }
        self.secrets.extend(template.secrets().cloned());
        self.descriptions.push(format!("{key}: {}", template.describe(is_secret_name(key))));
        Some(template)
    }

    pub(super) fn resolve(
        &mut self,
        key: &str,
        text: &str,
        node: &Node,
        findings: &mut Findings,
    ) -> Option<String> {
        let template = self.parse(key, text, node.position, findings)?;
        template.render(|_| Err(())).ok()
    }
}

/// Reads the entry of a server with a `url`: all members, also after a mistake in one of them.
pub(super) fn read_http(
    node: &Node,
    texts: &mut Texts<'_>,
    findings: &mut Findings,
) -> Option<HttpConnector> {
    let url = node.find_member("url");
    if url.is_none() {
        findings.add(node.position, "an http server needs `url`");
    }
    let url = url.and_then(|member| read_url(member, texts, findings));
    let mut headers = Vec::new();
    for header in members(node.find_member("headers"), findings) {
        headers.extend(read_header(header, texts, findings));
    }
    let auth = node.find_member("auth");
    let auth = auth.map(|member| (member, read_auth(member, url.as_ref(), texts, findings)));
    if let Some((member, _)) = &auth
        && headers.iter().any(|(name, _)| *name == AUTHORIZATION)
    {
        let reason = "`auth` sends the header `authorization`: remove it from `headers`";
        findings.add(member.position, reason);
    }
    let session = node.find_member("session");
    let session = session.and_then(|it| fields::read_choice(it, &SESSIONS, findings));
    let auth = match auth {
        Some((_, auth)) => Some(auth?),
        None => None,
    };
    Some(HttpConnector {
        url: url?,
        headers,
        auth,
        client: texts.context.client.clone(),
        redactor: texts.redactor(),
        has_conversation_sessions: session.unwrap_or_default(),
    })
}

fn read_url(member: &Member, texts: &mut Texts<'_>, findings: &mut Findings) -> Option<Url> {
    let at = member.value.position;
    let text = fields::read_text(member, findings)?;
    let template = texts.parse(&member.key, text.trim(), at, findings)?;
    let url = UrlTemplate::new(&template).map_err(|reason| findings.add(at, reason)).ok()?;
    let url = url.trial_url()?;
    if let Err(refused) = texts.context.client.check_url(&url) {
        findings.add(at, format!("tools may not call this url: {refused}"));
    }
    Some(url)
}

/// Reads `auth`: `{ entra: SCOPE }`, or `{ oauth: … }` with the client credentials of an
/// authorization server.
fn read_auth(
    member: &Member,
    url: Option<&Url>,
    texts: &mut Texts<'_>,
    findings: &mut Findings,
) -> Option<Authorization> {
    let Some(oauth) = member.value.find_member("oauth") else {
        return check_entra_scope(member, url, findings).map(Authorization::Entra);
    };
    fields::read_members(&member.value, "`auth`", &["oauth"], findings);
    if let Some(url) = url {
        check_encryption(member, url, findings);
    }
    fields::read_members(&oauth.value, "`oauth`", &OAUTH_KEYS, findings);
    let token_url = oauth.value.find_member("tokenUrl");
    let token_url = token_url.and_then(|it| {
        let token_url = read_url(it, texts, findings)?;
        check_encryption(it, &token_url, findings);
        Some(token_url)
    });
    let mut read = |key: &str| {
        let text = oauth.value.find_member(key)?;
        texts.resolve(key, fields::read_text(text, findings)?, &text.value, findings)
    };
    let (id, secret) = (read("clientId"), read("clientSecret"));
    let (scope, resource) = (read("scope"), read("resource"));
    let missing = ["tokenUrl", "clientId", "clientSecret"]
        .into_iter()
        .find(|key| oauth.value.find_member(key).is_none());
    if let Some(key) = missing {
        findings.add(oauth.position, format!("`oauth` needs `{key}`"));
    }
    let client = OAuthClient::new(token_url?, id?, Secret::new(secret?), scope, resource);
    Some(Authorization::OAuth(Arc::new(client)))
}

fn read_header(
    member: &Member,
    texts: &mut Texts<'_>,
    findings: &mut Findings,
) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_str(&member.key).ok();
    let is_own = |name: &HeaderName| {
        is_reserved(name)
            || name.as_str().starts_with("mcp-")
            || matches!(name.as_str(), "accept" | "content-type")
    };
    let name = name.filter(|name| !is_own(name));
    if name.is_none() {
        let reason = format!("`{}` is no header that a server may be sent", member.key);
        findings.add(member.position, reason);
    }
    let text = fields::read_text(member, findings)?;
    let text = texts.resolve(&member.key, text, &member.value, findings)?;
    let Ok(mut value) = HeaderValue::try_from(text) else {
        let reason =
            format!("the header `{}` would hold a line break or control character", member.key);
        findings.add(member.value.position, reason);
        return None;
    };
    value.set_sensitive(true);
    Some((name?, value))
}
