//! URL templates of HTTP tools. Arguments occur in path and query, and none can change another
//! part.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::http::template::{CallArguments, Piece, SettingSecret, Template};
use turnwheel_json::raw::RawJson;

/// All characters except the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A URL whose scheme, host and port are fixed.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    origin: String,
    path: Vec<UrlPart>,
    /// One list per pair. A pair whose argument is missing is left out.
    query: Vec<Vec<UrlPart>>,
    secrets: Vec<SettingSecret>,
    /// See [`Template::describe`].
    description: String,
}

impl fmt::Debug for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlTemplate").finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq)]
enum UrlPart {
    /// Fixed text, including values of app settings.
    Fixed(String),
    Argument(String),
}

impl UrlTemplate {
    /// # Errors
    /// The template is not a valid URL of a tool. Report the text, which contains no value of an
    /// app setting.
    pub fn new(template: &Template) -> Result<Self, String> {
        let secrets = template.secrets().cloned().collect();
        let mut parts = split_template(template);
        for part in &parts {
            let UrlPart::Fixed(text) = part else { continue };
            if text.contains(['#', '\\'])
                || text.contains(|letter: char| letter <= ' ' || letter == '\u{7f}')
            {
                return Err("the url may hold no `#`, `\\`, space or control character".to_owned());
            }
        }
        let first = match parts.first_mut() {
            Some(UrlPart::Fixed(first)) => first,
            Some(UrlPart::Argument(_)) | None => return Err(NO_SCHEME.to_owned()),
        };
        let (scheme, rest) = first.split_once("://").ok_or(NO_SCHEME)?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(NO_SCHEME.to_owned());
        }
        let host_end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at_checked(host_end).unwrap_or((rest, ""));
        let origin = format!("{scheme}://{authority}");
        let after = after.to_owned();
        let is_host_open = after.is_empty();
        *first = after;
        if is_host_open && parts.len() > 1 {
            return Err(
                "an argument may stand only in the url's path and query: end the host with `/`"
                    .to_owned(),
            );
        }
        let (path, query) = split_query(parts);
        let description = template.describe(false);
        let this = Self { origin, path, query, secrets, description };
        this.check_origin()?;
        // A trial with a plain word for every argument finds errors of the fixed text at start-up.
        this.build(&mut |_| Ok(Some("x".to_owned())))
            .map_err(|_| "the url's path may hold no `.` or `..` segment".to_owned())?;
        Ok(this)
    }

    fn check_origin(&self) -> Result<(), String> {
        let url = Url::parse(&self.origin)
            .map_err(|_| "the url's host or port is not valid".to_owned())?;
        if !url.username().is_empty() || url.password().is_some() || self.origin.contains('@') {
            return Err("the url may hold no user name or password: use `headers`".to_owned());
        }
        Ok(())
    }

    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.path.iter().chain(self.query.iter().flatten()).filter_map(|part| match part {
            UrlPart::Argument(name) => Some(name.as_str()),
            UrlPart::Fixed(_) => None,
        })
    }

    pub fn secrets(&self) -> impl Iterator<Item = &SettingSecret> {
        self.secrets.iter()
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The whole template without values of secrets, except that the origin has them.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The URL with a plain word for every argument, for checks before any call.
    pub fn trial_url(&self) -> Option<Url> {
        self.build(&mut |_| Ok(Some("x".to_owned()))).ok()
    }

    /// # Errors
    /// An argument does not fit into its place. Return the text to the model.
    pub(super) fn render(&self, given: &CallArguments) -> Result<Url, String> {
        self.build(&mut |name| given.argument_text(name))
    }

    fn build(
        &self,
        word: &mut dyn FnMut(&str) -> Result<Option<String>, String>,
    ) -> Result<Url, String> {
        let mut text = self.origin.clone();
        for part in &self.path {
            match part {
                UrlPart::Fixed(fixed) => text.push_str(fixed),
                UrlPart::Argument(name) => {
                    // An empty segment would be another URL: `DELETE /items/`, not `DELETE
                    // /items/7`.
                    let value = word(name)?.filter(|value| !value.is_empty()).ok_or_else(|| {
                        format!(
                            "The argument `{name}` is part of the address and must not be empty."
                        )
                    })?;
                    text.extend(utf8_percent_encode(&value, ENCODED));
                }
            }
        }
        if !self
            .path
            .iter()
            .any(|part| matches!(part, UrlPart::Fixed(fixed) if fixed.starts_with('/')))
        {
            text.push('/');
        }
        // Percent-encoded dots still count as dots, and `..` would leave the path.
        if text.split('/').skip(3).any(is_dot_segment) {
            return Err(
                "An argument that is part of the address must not be `.` or `..`.".to_owned()
            );
        }
        let mut pairs = Vec::new();
        for pair in &self.query {
            pairs.extend(query_pair(pair, word)?);
        }
        let mut url =
            Url::parse(&text).map_err(|_| "The arguments give an invalid address.".to_owned())?;
        if !pairs.is_empty() {
            url.set_query(Some(&pairs.join("&")));
        }
        Ok(url)
    }
}

const NO_SCHEME: &str = "the url must begin with https:// or http://";

/// True if the URL parser would remove the segment.
fn is_dot_segment(segment: &str) -> bool {
    matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")
}

/// Converts a template to parts. App settings become fixed text, and adjacent fixed texts one part.
fn split_template(template: &Template) -> Vec<UrlPart> {
    let mut parts: Vec<UrlPart> = Vec::new();
    for piece in &template.0 {
        let text = match piece {
            Piece::Argument(name) => {
                parts.push(UrlPart::Argument(name.clone()));
                continue;
            }
            Piece::Text(text) => text,
            Piece::Setting(secret) => &secret.value,
        };
        match parts.last_mut() {
            Some(UrlPart::Fixed(last)) => last.push_str(text),
            Some(UrlPart::Argument(_)) | None => parts.push(UrlPart::Fixed(text.clone())),
        }
    }
    parts
}

fn split_query(parts: Vec<UrlPart>) -> (Vec<UrlPart>, Vec<Vec<UrlPart>>) {
    let (mut path, mut query) = (Vec::new(), Vec::new());
    let mut is_query = false;
    for part in parts {
        let mut text = match part {
            UrlPart::Fixed(text) => text,
            UrlPart::Argument(_) => {
                match query.last_mut() {
                    Some(pair) => Vec::push(pair, part),
                    None => path.push(part),
                }
                continue;
            }
        };
        if !is_query {
            let Some((before, after)) = text.split_once('?') else {
                path.push(UrlPart::Fixed(text));
                continue;
            };
            path.push(UrlPart::Fixed(before.to_owned()));
            text = String::from(after);
            is_query = true;
            query.push(Vec::new());
        }
        for (number, piece) in text.split('&').enumerate() {
            if number > 0 {
                query.push(Vec::new());
            }
            if let (Some(pair), false) = (query.last_mut(), piece.is_empty()) {
                pair.push(UrlPart::Fixed(piece.to_owned()));
            }
        }
    }
    (path, query)
}

fn query_pair(
    pair: &[UrlPart],
    word: &mut dyn FnMut(&str) -> Result<Option<String>, String>,
) -> Result<Option<String>, String> {
    let mut text = String::new();
    for part in pair {
        match part {
            UrlPart::Fixed(fixed) => text.push_str(fixed),
            UrlPart::Argument(name) => match word(name)? {
                Some(value) => text.extend(utf8_percent_encode(&value, ENCODED)),
                None => return Ok(None),
            },
        }
    }
    Ok((!text.is_empty()).then_some(text))
}

/// Adds an argument that is not in the template to the query: a list as repeated pairs, an object
/// as JSON.
pub(super) fn append_to_query(url: &mut Url, name: &str, raw: &RawJson) {
    let values: Vec<RawJson> = raw.read().unwrap_or_else(|_| vec![raw.clone()]);
    for value in values {
        let word = match value.text().as_bytes().first() {
            Some(b'"') => value.read().unwrap_or_default(),
            _ if value.text() == "null" => continue,
            _ => value.text().to_owned(),
        };
        let pair = format!(
            "{}={}",
            utf8_percent_encode(name, ENCODED),
            utf8_percent_encode(&word, ENCODED)
        );
        let query = match url.query() {
            Some(query) if !query.is_empty() => format!("{query}&{pair}"),
            _ => pair,
        };
        url.set_query(Some(&query));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arguments;
    use serde_json::{Value, json};

    fn template(text: &str) -> Result<UrlTemplate, String> {
        UrlTemplate::new(
            &Template::parse(text, &|_| Ok("https://base.example/v1".to_owned()))
                .map_err(|wrong| format!("{wrong:?}"))?,
        )
    }

    fn render(text: &str, value: Value) -> Result<String, String> {
        let given =
            CallArguments::from_arguments(&Arguments { text: RawJson::from_value(&value), value })
                .unwrap();
        template(text)?.render(&given).map(String::from)
    }

    #[test]
    fn argument_cannot_escape_its_path_segment() {
        let url = "https://x.example/pay/{to}/now?note={note}";
        for (to, expected) in [
            ("a/b", "a%2Fb"),
            ("a?x=1", "a%3Fx%3D1"),
            ("a#f", "a%23f"),
            ("a\r\nHost: y", "a%0D%0AHost%3A%20y"),
            ("../admin", "..%2Fadmin"),
            ("a%2e", "a%252e"),
            ("a\\b", "a%5Cb"),
            ("@evil.example", "%40evil.example"),
            ("…", "%E2%80%A6"),
            ("a\u{0}", "a%00"),
        ] {
            assert_eq!(
                render(url, json!({"to": to, "note": "1&admin=true"})).unwrap(),
                format!("https://x.example/pay/{expected}/now?note=1%26admin%3Dtrue")
            );
        }
        for to in [".", "..", ""] {
            assert!(render(url, json!({"to": to, "note": "n"})).is_err(), "{to}");
        }
        assert!(render(url, json!({"to": ["a"], "note": "n"})).is_err());
        assert!(render(url, json!({"note": "n"})).is_err());
    }

    #[test]
    fn adjacent_arguments_cannot_form_a_dot_segment() {
        assert!(render("https://x.example/a/{x}{y}/b", json!({"x": ".", "y": "."})).is_err());
        assert!(render("https://x.example/a/.{x}", json!({"x": "."})).is_err());
        assert!(render("https://x.example/a/%2e{x}", json!({"x": "."})).is_err());
    }

    #[test]
    fn query_pair_without_its_argument_is_omitted() {
        let url = "https://x.example/list?limit={limit}&fixed=1&q={q}";
        assert_eq!(render(url, json!({})).unwrap(), "https://x.example/list?fixed=1");
        assert_eq!(
            render(url, json!({"q": "", "limit": 5})).unwrap(),
            "https://x.example/list?limit=5&fixed=1&q="
        );
    }

    #[test]
    fn app_setting_may_hold_the_url_origin() {
        assert_eq!(
            render("${BASE}/pay/{to}", json!({"to": "Ada"})).unwrap(),
            "https://base.example/v1/pay/Ada"
        );
    }

    #[test]
    fn invalid_url_templates_are_rejected_with_reason() {
        for (url, reason) in [
            ("ftp://x.example/", "https://"),
            ("x.example/a", "https://"),
            ("{host}/a", "https://"),
            ("https://{host}/a", "only in the url's path"),
            ("https://x.example:{port}/", "only in the url's path"),
            ("https://x.example{rest}", "only in the url's path"),
            ("https://user:pw@x.example/", "user name"),
            ("https://x.example/#f", "`#`"),
            ("https://x.example/a/../b", "segment"),
            ("https:///a", "valid"),
        ] {
            let error = template(url).err().unwrap();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn arguments_are_appended_to_query_in_order() {
        let mut url = Url::parse("https://x.example/?a=1").unwrap();
        append_to_query(&mut url, "tag", &RawJson::from_value(&json!(["x y", null, 2])));
        append_to_query(&mut url, "f", &RawJson::from_value(&json!({"a": 1})));
        assert_eq!(url.as_str(), "https://x.example/?a=1&tag=x%20y&tag=2&f=%7B%22a%22%3A1%7D");
    }
}
