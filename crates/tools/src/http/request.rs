//! The HTTP request of one call. It is the same for every attempt.

use std::fmt;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value;
use url::Url;

use crate::ToolContext;
use crate::destination::BoundDestination;
use crate::http::template::{CallArguments, Piece, SettingSecret, Template, is_secret_name};
use crate::http::url_template::{UrlTemplate, append_to_query};

/// Characters that a header value must not contain.
const HEADER_ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Template of a tool's request, from an agent file.
pub struct RequestTemplate {
    pub method: Method,
    pub url: UrlTemplate,
    pub headers: Vec<(HeaderName, Template)>,
    /// `None`: the body is a JSON object of the arguments that are not in the URL. A GET or HEAD
    /// sends them in the query.
    pub body: Option<BodyTemplate>,
    /// Scope of the app's Entra token that every attempt sends. The URL is then https or on
    /// loopback.
    pub entra: Option<String>,
}

impl fmt::Debug for RequestTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestTemplate").finish_non_exhaustive()
    }
}

/// Template of a JSON body.
#[derive(Clone, Debug)]
pub enum BodyTemplate {
    Fixed(Value),
    Text(Template),
    List(Vec<BodyTemplate>),
    Map(Vec<(String, BodyTemplate)>),
}

#[derive(Clone)]
pub(crate) struct ToolRequest {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
}

/// Headers that Turnwheel or the connection sets.
const RESERVED: [HeaderName; 13] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::EXPECT,
    header::ACCEPT_ENCODING,
    header::PROXY_AUTHORIZATION,
    IDEMPOTENCY_KEY,
    TRACEPARENT,
    HeaderName::from_static("keep-alive"),
];

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const CONVERSATION: HeaderName = HeaderName::from_static("turnwheel-conversation");
const TOOL_CALL: HeaderName = HeaderName::from_static("turnwheel-tool-call");

/// True if an agent file must not set the header.
pub fn is_reserved(name: &HeaderName) -> bool {
    RESERVED.contains(name) || name.as_str().starts_with("turnwheel-")
}

impl RequestTemplate {
    pub fn secrets(&self) -> impl Iterator<Item = &SettingSecret> {
        let mut in_body = Vec::new();
        if let Some(body) = &self.body {
            body.visit_templates(&mut |template| in_body.extend(template.secrets()));
        }
        let in_headers = self.headers.iter().flat_map(|(_, value)| value.secrets());
        self.url.secrets().chain(in_headers).chain(in_body)
    }

    /// The destination with the values of settings that are no secrets. The origin always counts.
    pub(super) fn destination(&self) -> BoundDestination {
        let mut details = vec![self.url.origin().to_owned(), self.url.description().to_owned()];
        for (name, value) in &self.headers {
            details.push(format!("{name}: {}", value.describe(is_secret_name(name.as_str()))));
        }
        if let Some(body) = &self.body {
            body.visit_templates(&mut |template| details.push(template.describe(false)));
        }
        let url = Url::parse(self.url.origin()).ok();
        BoundDestination::http(self.method.as_str(), url.as_ref(), &details.join("\n"))
    }

    /// Checks that the arguments of a call fit the request.
    ///
    /// # Errors
    /// An argument does not fit. Return the text to the model.
    pub(super) fn check(&self, given: &CallArguments) -> Result<(), String> {
        self.url.render(given)?;
        self.body.as_ref().map(|body| body.render(given)).transpose()?;
        self.render_headers(given).map(drop)
    }

    /// Builds the request of a call.
    ///
    /// # Errors
    /// An argument does not fit, and nothing is sent. Return the text to the model.
    pub(super) fn build_request(
        &self,
        given: &CallArguments,
        context: &ToolContext,
    ) -> Result<ToolRequest, String> {
        let mut url = self.url.render(given)?;
        let in_url: Vec<&str> = self.url.arguments().collect();
        let body_arguments: Vec<(&str, &str)> = given
            .iter()
            .filter(|(name, _)| !in_url.contains(&name.as_str()))
            .map(|(name, raw)| (name.as_str(), raw.text()))
            .collect();
        let body = if let Some(template) = &self.body {
            Some(template.render(given)?.unwrap_or_else(|| "null".to_owned()))
        } else if matches!(self.method, Method::GET | Method::HEAD) {
            for (name, raw) in given.iter().filter(|(name, _)| !in_url.contains(&name.as_str())) {
                append_to_query(&mut url, name, raw);
            }
            None
        } else if body_arguments.is_empty() && self.method == Method::DELETE {
            None
        } else {
            Some(json_object(body_arguments.into_iter()))
        };
        let headers = self.build_headers(given, context, body.is_some())?;
        Ok(ToolRequest { method: self.method.clone(), url, headers, body: body.map(Bytes::from) })
    }

    fn build_headers(
        &self,
        given: &CallArguments,
        context: &ToolContext,
        has_body: bool,
    ) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        if has_body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.insert(
            header::ACCEPT,
            HeaderValue::from_static("application/json, text/*;q=0.9, */*;q=0.5"),
        );
        headers.extend(self.render_headers(given)?);
        let conversation = context.artifact_scope.key.conversation_id.as_str();
        let own_headers = [
            (IDEMPOTENCY_KEY, Some(context.effect_id.as_str())),
            (CONVERSATION, Some(conversation)),
            (TOOL_CALL, Some(context.tool_call_id.as_str())),
            (TRACEPARENT, context.traceparent.as_deref()),
        ];
        for (name, text) in own_headers {
            let Some(text) = text else { continue };
            // The provider chooses the call's id, so it is encoded to stay on one line.
            let plain = utf8_percent_encode(text, HEADER_ENCODED).to_string();
            if let Ok(value) = HeaderValue::try_from(plain) {
                headers.insert(name, value);
            }
        }
        Ok(headers)
    }

    /// The headers of the agent file.
    fn render_headers(&self, given: &CallArguments) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, template) in &self.headers {
            let text = template.render(|argument| {
                let word = given.argument_text(argument)?.unwrap_or_default();
                // Only printable ASCII, so that no value can start another header.
                if word.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                    Ok(word)
                } else {
                    Err(format!("The argument `{argument}` is part of a header: it must be one line of ASCII characters."))
                }
            })?;
            let mut value = HeaderValue::try_from(text)
                .map_err(|_| format!("The header `{name}` cannot hold these arguments."))?;
            value.set_sensitive(template.secrets().next().is_some());
            headers.insert(name.clone(), value);
        }
        Ok(headers)
    }
}

impl BodyTemplate {
    /// Calls `see` with every template in the body.
    pub(crate) fn visit_templates<'t>(&'t self, visitor: &mut dyn FnMut(&'t Template)) {
        match self {
            Self::Fixed(_) => {}
            Self::Text(template) => visitor(template),
            Self::List(items) => items.iter().for_each(|item| item.visit_templates(visitor)),
            Self::Map(members) => {
                for (_, value) in members {
                    value.visit_templates(visitor);
                }
            }
        }
    }

    /// Returns the JSON text, or `None` if the template is one argument and that is missing.
    fn render(&self, given: &CallArguments) -> Result<Option<String>, String> {
        Ok(Some(match self {
            Self::Fixed(value) => value.to_string(),
            Self::Text(Template(pieces)) => {
                // A single argument keeps its type, and a number keeps the model's digits.
                if let [Piece::Argument(name)] = pieces.as_slice() {
                    return Ok(given.get(name).map(|raw| raw.text().to_owned()));
                }
                let text = Template(pieces.clone())
                    .render(|name| given.argument_text(name).map(Option::unwrap_or_default))?;
                Value::String(text).to_string()
            }
            Self::List(items) => {
                let mut parts = Vec::new();
                for item in items {
                    parts.extend(item.render(given)?);
                }
                format!("[{}]", parts.join(","))
            }
            Self::Map(members) => {
                let mut parts = Vec::new();
                for (name, value) in members {
                    parts.extend(value.render(given)?.map(|text| (name.as_str(), text)));
                }
                json_object(parts.iter().map(|(name, text)| (*name, text.as_str())))
            }
        }))
    }
}

/// Joins members whose values are JSON text to one object.
fn json_object<'m>(members: impl Iterator<Item = (&'m str, &'m str)>) -> String {
    let parts: Vec<String> =
        members.map(|(name, text)| format!("{}:{text}", Value::String(name.to_owned()))).collect();
    format!("{{{}}}", parts.join(","))
}
