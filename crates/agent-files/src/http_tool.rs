//! Reader of an `http` tool in an agent file. It checks every member and builds the tool.

use std::str::FromStr as _;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use url::Url;

use crate::app_settings::parse_text;
use crate::fields::DurationMax;
use crate::file_context::{AgentFileContext, hash_prefix, parse_schema, reject_app_settings};
use crate::mistakes::{Findings, suggest_name};
use crate::yaml::{Member, Node, Position, Yaml};
use crate::{approval, fields};
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_json::text::sanitize_line;
use turnwheel_platform::settings::links::is_loopback;
use turnwheel_tools as tools;
use turnwheel_tools::http::HttpTool;
use turnwheel_tools::http::request::{BodyTemplate, RequestTemplate, is_reserved};
use turnwheel_tools::http::template::Template;
use turnwheel_tools::http::url_template::UrlTemplate;
use turnwheel_tools::{
    LABEL_CHARS_MAX, TIMEOUT_DEFAULT, TIMEOUT_MAX, ToolDefinition, strict_schema,
};

const KEYS: [&str; 14] = [
    "name",
    "label",
    "description",
    "parameters",
    "strict",
    "method",
    "url",
    "headers",
    "body",
    "auth",
    "effect",
    "onUnknown",
    "timeout",
    "approval",
];

/// Keys of function calling, MCP and OpenAPI.
const REMEDIES: fields::Remedies<'static> = &[
    ("inputSchema", "write `parameters`"),
    ("input_schema", "write `parameters`"),
    ("query", "write it into `url`, such as `https://api.example/search?q={q}`"),
];

const READ_ONLY_ALIASES: fields::Remedies<'static> = &[
    ("readonly", "write `read`"),
    ("readOnly", "write `read`"),
    ("read-only", "write `read`"),
    ("read_only", "write `read`"),
];

const METHODS: [(&str, Method); 6] = [
    ("GET", Method::GET),
    ("HEAD", Method::HEAD),
    ("POST", Method::POST),
    ("PUT", Method::PUT),
    ("PATCH", Method::PATCH),
    ("DELETE", Method::DELETE),
];

/// Reads an `http` tool. It reports all mistakes, not only the first one.
pub(super) fn read_http_tool(
    node: &Node,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<HttpTool> {
    let before = findings.file_mistakes();
    let members =
        fields::read_members_with_remedies(node, "an http tool", &KEYS, REMEDIES, findings);
    let get = |key: &str| members.iter().find(|member| member.key == key);
    for key in ["name", "url"] {
        if get(key).is_none() && !members.is_empty() {
            findings.add(node.position, format!("an http tool needs `{key}`"));
        }
    }
    let name = get("name").and_then(|member| read_tool_name(member, findings));
    let description = get("description").and_then(|member| {
        reject_app_settings(&member.value, findings);
        fields::read_text(member, findings)
    });
    let label = get("label").and_then(|member| read_label(member, findings));
    let (parameters, declared) = read_parameters(get("parameters"), findings);
    let strict = get("strict").is_some_and(|member| read_strict(member, &parameters, findings));
    let method =
        get("method").and_then(|member| read_method(member, findings)).unwrap_or(Method::GET);
    let texts = TemplateContext { context, declared: &declared };
    let url = get("url").and_then(|member| read_url(member, &texts, findings));
    let headers =
        get("headers").map(|member| read_headers(member, &texts, findings)).unwrap_or_default();
    let body = get("body").and_then(|member| read_body(member, &method, &texts, findings));
    let entra = get("auth").and_then(|member| {
        let url = url.as_ref().and_then(UrlTemplate::trial_url);
        check_entra_scope(member, url.as_ref(), findings)
    });
    if let Some(member) = get("auth")
        && headers.iter().any(|(name, _)| *name == AUTHORIZATION)
    {
        let reason = "`auth` sends the header `authorization`: remove it from `headers`";
        findings.add(member.position, reason);
    }
    let effect = get("effect")
        .and_then(|member| read_effect(member, findings))
        .unwrap_or_else(|| effect_for_method(&method));
    let on_unknown = get("onUnknown")
        .and_then(|member| {
            fields::read_choice(
                member,
                &[("ask", OnUnknown::Ask), ("tell", OnUnknown::Tell)],
                findings,
            )
        })
        .unwrap_or_default();
    let timeout = get("timeout")
        .and_then(|member| {
            fields::read_duration(member, DurationMax { time: TIMEOUT_MAX, text: "4m" }, findings)
        })
        .unwrap_or(TIMEOUT_DEFAULT);
    let tool_name = name.unwrap_or_default();
    let approval = get("approval")
        .map(|member| approval::read_approval(member, tool_name, &declared, findings));
    if findings.file_mistakes() > before {
        return None;
    }
    let definition = ToolDefinition {
        name: tool_name.to_owned(),
        label: label.unwrap_or(tool_name).to_owned(),
        description: description.unwrap_or(tool_name).trim().to_owned(),
        parameters,
        effect,
        on_unknown,
        timeout,
        is_strict: strict,
        // The hash covers names of app settings and not their values: a new key changes no tool.
        revision: hash_prefix(&node.to_json().to_string()),
    };
    let request = RequestTemplate { method, url: url?, headers, body, entra };
    Some(HttpTool::new(definition, request, approval, context.client.clone()))
}

/// Reads `strict`. If it is true, the model service must accept the schema as a strict one.
fn read_strict(member: &Member, parameters: &Value, findings: &mut Findings) -> bool {
    let strict = fields::read_bool(member, findings).unwrap_or_default();
    if let Some(objection) = strict_schema::find_violation(parameters).filter(|_| strict) {
        findings.add(member.value.position, objection);
    }
    strict
}

pub(super) fn read_effect(member: &Member, findings: &mut Findings) -> Option<Effect> {
    if let Yaml::Text(text) = &member.value.yaml
        && let Some(remedy) = fields::find_remedy(text, READ_ONLY_ALIASES)
    {
        findings
            .add(member.value.position, format!("`{text}` is not a value of `effect`: {remedy}"));
        return None;
    }
    let effects =
        [("read", Effect::Read), ("idempotent", Effect::Idempotent), ("write", Effect::Write)];
    fields::read_choice(member, &effects, findings)
}

fn effect_for_method(method: &Method) -> Effect {
    match *method {
        Method::GET | Method::HEAD => Effect::Read,
        Method::PUT | Method::DELETE => Effect::Idempotent,
        _ => Effect::Write,
    }
}

fn read_tool_name<'n>(member: &'n Member, findings: &mut Findings) -> Option<&'n str> {
    let name = fields::read_text(member, findings)?;
    let is_good = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if !is_good {
        findings.add(
            member.value.position,
            "a tool's name is 1 to 64 of A-Z, a-z, 0-9, `_`, `-` and `.`",
        );
    }
    Some(name)
}

/// Reads the display name: one line that approvers read as it is.
fn read_label<'n>(member: &'n Member, findings: &mut Findings) -> Option<&'n str> {
    reject_app_settings(&member.value, findings);
    let label = fields::read_text(member, findings)?.trim();
    if label.is_empty() || sanitize_line(label, LABEL_CHARS_MAX) != label {
        let reason = format!(
            "`label` is one line of 1 to {LABEL_CHARS_MAX} characters, with single spaces and without invisible characters"
        );
        findings.add(member.value.position, reason);
    }
    Some(label)
}

fn read_method(member: &Member, findings: &mut Findings) -> Option<Method> {
    let given = fields::read_text(member, findings)?;
    let found = METHODS.iter().find(|(name, _)| *name == given);
    if found.is_none() {
        let hint = suggest_name(given, METHODS.iter().map(|(name, _)| *name));
        findings.add(member.value.position, format!("`{given}` is not a method of a tool: {hint}"));
    }
    found.map(|(_, method)| method.clone())
}

/// Returns the schema, always of an object, and the names of its properties.
fn read_parameters(member: Option<&Member>, findings: &mut Findings) -> (Value, Vec<String>) {
    let Some(member) = member else {
        return (json!({"type": "object", "properties": {}}), Vec::new());
    };
    parse_schema(member, findings);
    // The names are returned even if the schema has mistakes, so that their uses are no mistakes.
    let mut schema = member.value.to_json();
    let mut names = Vec::new();
    if let Some(members) = schema.as_object_mut() {
        let kind = members.entry("type").or_insert_with(|| json!("object"));
        if *kind != "object" {
            let reason = "`parameters` must be of `type: object`: arguments have names";
            findings.add(member.value.position, reason);
        }
        let properties = members.entry("properties").or_insert_with(|| json!({}));
        names.extend(properties.as_object().into_iter().flat_map(|all| all.keys().cloned()));
    }
    (schema, names)
}

/// App settings and arguments that a template may contain.
struct TemplateContext<'t> {
    context: &'t AgentFileContext<'t>,
    declared: &'t [String],
}

impl TemplateContext<'_> {
    fn parse_template(
        &self,
        text: &str,
        at: Position,
        findings: &mut Findings,
    ) -> Option<Template> {
        parse_template(text, at, Some(self.context), self.declared, findings)
    }
}

/// Parses a template as [`parse_text`] does, and checks that its arguments are declared.
pub(super) fn parse_template(
    text: &str,
    at: Position,
    context: Option<&AgentFileContext<'_>>,
    declared: &[String],
    findings: &mut Findings,
) -> Option<Template> {
    let template = parse_text(text, at, context, findings)?;
    for argument in template.arguments() {
        if !declared.iter().any(|name| name == argument) {
            let hint = suggest_name(argument, declared.iter().map(String::as_str));
            findings.add(at, format!("`{{{argument}}}` is not among the `parameters`: {hint}"));
        }
    }
    Some(template)
}

fn read_url(
    member: &Member,
    texts: &TemplateContext<'_>,
    findings: &mut Findings,
) -> Option<UrlTemplate> {
    let text = fields::read_text(member, findings)?;
    let at = member.value.position;
    let url = texts.parse_template(text.trim(), at, findings).and_then(|template| {
        UrlTemplate::new(&template).map_err(|reason| findings.add(at, reason)).ok()
    })?;
    if let Some(sample) = url.trial_url()
        && let Err(refused) = texts.context.client.check_url(&sample)
    {
        findings.add(at, format!("tools may not call this url: {refused}"));
    }
    Some(url)
}

fn read_headers(
    member: &Member,
    texts: &TemplateContext<'_>,
    findings: &mut Findings,
) -> Vec<(HeaderName, Template)> {
    let Yaml::Map(members) = &member.value.yaml else {
        findings.add(member.value.position, "`headers` is a map of names and values");
        return Vec::new();
    };
    members.iter().filter_map(|header| read_header(header, texts, findings)).collect()
}

fn read_header(
    member: &Member,
    texts: &TemplateContext<'_>,
    findings: &mut Findings,
) -> Option<(HeaderName, Template)> {
    let name = HeaderName::from_str(&member.key)
        .map_err(|_| {
            findings.add(member.position, format!("`{}` is not a header name", member.key));
        })
        .ok();
    if name.as_ref().is_some_and(is_reserved) {
        findings.add(
            member.position,
            format!("Turnwheel or the connection sets the header `{}`: remove it", member.key),
        );
    }
    let text = match &member.value.yaml {
        Yaml::Number(number) => number.to_string(),
        Yaml::Null | Yaml::Bool(_) | Yaml::Text(_) | Yaml::List(_) | Yaml::Map(_) => {
            fields::read_text(member, findings)?.to_owned()
        }
    };
    let at = member.value.position;
    let template = texts.parse_template(&text, at, findings)?;
    let sample = template.render(|_| Ok::<_, ()>("x".to_owned())).unwrap_or_default();
    if HeaderValue::try_from(sample).is_err() {
        findings.add(
            at,
            format!("the header `{}` would hold a line break or control character", member.key),
        );
    }
    Some((name?, template))
}

/// Returns the scope of `auth: { entra: SCOPE }`.
pub(super) fn check_entra_scope(
    member: &Member,
    url: Option<&Url>,
    findings: &mut Findings,
) -> Option<String> {
    const EXPECTED: &str = "`auth` is { entra: SCOPE }, with the scope of the service that is called, such as api://payments/.default";
    if !matches!(member.value.yaml, Yaml::Map(_)) {
        findings.add(member.value.position, EXPECTED);
        return None;
    }
    let members = fields::read_members(&member.value, "`auth`", &["entra"], findings);
    reject_app_settings(&member.value, findings);
    let Some(scope) = members.iter().find(|member| member.key == "entra") else {
        if members.is_empty() {
            findings.add(member.value.position, EXPECTED);
        }
        return None;
    };
    if let Some(url) = url {
        check_encryption(member, url, findings);
    }
    let text = fields::read_text(scope, findings)?.trim();
    // Entra issues app tokens only for all granted permissions, which is the scope `/.default`.
    let is_scope = text.strip_suffix("/.default").is_some_and(|service| {
        !service.is_empty() && service.bytes().all(|byte| byte.is_ascii_graphic())
    });
    if !is_scope {
        findings.add(
            scope.value.position,
            "`entra` is the service's scope and ends in /.default, such as api://payments/.default",
        );
    }
    is_scope.then(|| text.to_owned())
}

/// Reports a url to which `auth` would send a token without encryption.
pub(super) fn check_encryption(auth: &Member, url: &Url, findings: &mut Findings) {
    if url.scheme() == "http" && !is_loopback(url.as_str()) {
        findings.add(
            auth.position,
            "`auth` sends a token, which needs encryption: begin the url with https://",
        );
    }
}

fn read_body(
    member: &Member,
    method: &Method,
    texts: &TemplateContext<'_>,
    findings: &mut Findings,
) -> Option<BodyTemplate> {
    if matches!(*method, Method::GET | Method::HEAD) {
        findings
            .add(member.position, format!("a {method} has no body: remove `body`, or use POST"));
    }
    if !matches!(member.value.yaml, Yaml::Map(_) | Yaml::List(_)) {
        // In text with its own syntax, an argument could change the meaning of the rest.
        findings.add(member.value.position, "`body` is a map or a list, and is sent as JSON");
        return None;
    }
    read_body_value(&member.value, texts, findings)
}

fn read_body_value(
    node: &Node,
    texts: &TemplateContext<'_>,
    findings: &mut Findings,
) -> Option<BodyTemplate> {
    Some(match &node.yaml {
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) => BodyTemplate::Fixed(node.to_json()),
        Yaml::Text(text) => {
            BodyTemplate::Text(texts.parse_template(text, node.position, findings)?)
        }
        Yaml::List(items) => BodyTemplate::List(
            items.iter().filter_map(|item| read_body_value(item, texts, findings)).collect(),
        ),
        Yaml::Map(members) => BodyTemplate::Map(
            members
                .iter()
                .filter_map(|member| {
                    Some((member.key.clone(), read_body_value(&member.value, texts, findings)?))
                })
                .collect(),
        ),
    })
}

/// Longest expiry of an approval request, and its text.
pub(super) const EXPIRY_MAX: DurationMax = DurationMax { time: tools::EXPIRY_MAX, text: "90d" };
