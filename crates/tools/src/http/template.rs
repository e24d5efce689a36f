//! Text templates: `{name}` is an argument and `${NAME}` an app setting. `{{` and `}}` are literal
//! braces.

mod cut_secret;
mod escaped_secret;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use self::cut_secret::strip_cut;
use self::escaped_secret::EscapedSecret;
use crate::Arguments;
use turnwheel_json::raw::RawJson;

/// The value of an app setting. It is never printed and never sent to the model.
#[derive(Clone, PartialEq, Eq)]
pub struct SettingSecret {
    pub name: String,
    pub value: String,
}

impl SettingSecret {
    /// True if its name shows that the value is a secret. Approvals are bound to other values.
    pub fn is_secret(&self) -> bool {
        is_secret_name(&self.name)
    }
}

/// Words in the names of settings, headers and variables that hold secrets.
const SECRET_WORDS: [&str; 22] = [
    "APIKEY",
    "AUTHORIZATION",
    "BEARER",
    "COOKIE",
    "CREDENTIAL",
    "CREDENTIALS",
    "KEY",
    "KEYS",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PASSWORDS",
    "PAT",
    "PWD",
    "SAS",
    "SECRET",
    "SECRETS",
    "SIG",
    "SIGNATURE",
    "TOKEN",
    "TOKENS",
];

/// True if a word of the name is a usual one for secrets, as in `PAYMENTS_API_KEY` and `paymentsKey`.
pub fn is_secret_name(name: &str) -> bool {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        if !letter.is_ascii_alphanumeric() || (was_lower && letter.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_ascii_alphanumeric()) {
            word.push(letter.to_ascii_uppercase());
        }
        was_lower = letter.is_ascii_lowercase();
    }
    words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
}

impl fmt::Debug for SettingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${{{}}}", self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Setting(SettingSecret),
    Argument(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(pub Vec<Piece>);

/// Function that looks up an app setting by name.
pub type SettingLookup<'a> = &'a dyn Fn(&str) -> Result<String, TemplateError>;

/// Error of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    Invalid(String),
    /// The template is valid, but this app setting is not set.
    MissingSetting(String),
}

impl Template {
    /// # Errors
    /// All errors of the template. Report each as a mistake of the agent file.
    pub fn parse(text: &str, settings: SettingLookup<'_>) -> Result<Self, Vec<TemplateError>> {
        let mut reader =
            TemplateParser { pieces: Vec::new(), text: String::new(), errors: Vec::new() };
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}', '$']) {
            let (before, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
            reader.text.push_str(before);
            rest = reader.parse_piece(from, settings);
        }
        reader.text.push_str(rest);
        reader.finish_text();
        if reader.errors.is_empty() { Ok(Self(reader.pieces)) } else { Err(reader.errors) }
    }

    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Argument(name) => Some(name.as_str()),
            Piece::Text(_) | Piece::Setting(_) => None,
        })
    }

    /// The template with the values of its settings, but for secrets, which are given by their names.
    /// `is_secret`: all its settings are. For hashes: another template has another text.
    pub fn describe(&self, is_secret: bool) -> String {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => ("text", text),
            Piece::Setting(setting) if is_secret || setting.is_secret() => {
                ("secret", &setting.name)
            }
            Piece::Setting(setting) => ("setting", &setting.value),
            Piece::Argument(name) => ("argument", name),
        });
        serde_json::json!(pieces.collect::<Vec<_>>()).to_string()
    }

    pub fn secrets(&self) -> impl Iterator<Item = &SettingSecret> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Setting(secret) => Some(secret),
            Piece::Text(_) | Piece::Argument(_) => None,
        })
    }

    /// Renders the text. `fill` returns the text of each argument.
    ///
    /// # Errors
    /// The first error of `fill`. Handle it as that error requires.
    pub fn render<E>(&self, mut fill: impl FnMut(&str) -> Result<String, E>) -> Result<String, E> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Setting(secret) => text.push_str(&secret.value),
                Piece::Argument(name) => text.push_str(&fill(name)?),
            }
        }
        Ok(text)
    }
}

struct TemplateParser {
    pieces: Vec<Piece>,
    text: String,
    errors: Vec<TemplateError>,
}

impl TemplateParser {
    fn add_error(&mut self, reason: &str) {
        self.errors.push(TemplateError::Invalid(reason.to_owned()));
    }

    fn finish_text(&mut self) {
        if !self.text.is_empty() {
            self.pieces.push(Piece::Text(std::mem::take(&mut self.text)));
        }
    }

    /// Parses the piece at the start of `from`, which begins with `{`, `}` or `$`. Returns the
    /// rest.
    fn parse_piece<'t>(&mut self, from: &'t str, settings: SettingLookup<'_>) -> &'t str {
        if let Some(rest) = from.strip_prefix("{{") {
            self.text.push('{');
            return rest;
        }
        if let Some(rest) = from.strip_prefix("}}") {
            self.text.push('}');
            return rest;
        }
        if let Some(inside) = from.strip_prefix("${") {
            let Some((name, rest)) =
                inside.split_once('}').filter(|(name, _)| is_setting_name(name))
            else {
                self.add_error(
                    "`${` begins an app setting: write ${NAME}, of letters, digits and _",
                );
                return skip_placeholder(inside);
            };
            self.finish_text();
            match settings(name) {
                Ok(value) => {
                    self.pieces
                        .push(Piece::Setting(SettingSecret { name: name.to_owned(), value }));
                }
                Err(flaw) => self.errors.push(flaw),
            }
            return rest;
        }
        if let Some(inside) = from.strip_prefix('{') {
            let Some((name, rest)) =
                inside.split_once('}').filter(|(name, _)| is_argument_name(name))
            else {
                self.add_error("`{` begins an argument: write {name}, or {{ for the character");
                return skip_placeholder(inside);
            };
            self.finish_text();
            self.pieces.push(Piece::Argument(name.to_owned()));
            return rest;
        }
        if let Some(rest) = from.strip_prefix('}') {
            self.add_error("`}` has no opening `{`: write }} for the character");
            return rest;
        }
        self.text.push('$');
        from.strip_prefix('$').unwrap_or_default()
    }
}

/// Returns the text after an invalid placeholder, where parsing continues.
fn skip_placeholder(inside: &str) -> &str {
    inside.split_once('}').map_or(inside, |(_, rest)| rest)
}

fn is_setting_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_argument_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(|letter: char| letter.is_whitespace() || "{}$".contains(letter))
}

/// The arguments of a call by name, each as the JSON text that the model wrote.
pub(crate) struct CallArguments(BTreeMap<String, RawJson>);

impl CallArguments {
    /// # Errors
    /// The arguments are not a JSON object. Return the text to the model.
    pub(crate) fn from_arguments(arguments: &Arguments) -> Result<Self, String> {
        if arguments.value.is_null() {
            return Ok(Self(BTreeMap::new()));
        }
        arguments
            .text
            .read()
            .map(Self)
            .map_err(|_| "The arguments must be a JSON object.".to_owned())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&RawJson> {
        self.0.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &RawJson)> {
        self.0.iter()
    }

    /// Returns an argument as text: the content of a string, or a number or boolean as written.
    /// Returns `None` for null and for a missing argument.
    ///
    /// # Errors
    /// The argument is a list or an object. Return the text to the model.
    pub(crate) fn argument_text(&self, name: &str) -> Result<Option<String>, String> {
        let Some(raw) = self.0.get(name) else { return Ok(None) };
        match raw.text().as_bytes().first() {
            Some(b'"') => Ok(raw.read().ok()),
            Some(b'[' | b'{') => {
                Err(format!("The argument `{name}` must be text, a number, true or false."))
            }
            _ if raw.text() == "null" => Ok(None),
            _ => Ok(Some(raw.text().to_owned())),
        }
    }
}

/// Replaces values of app settings in responses, because some servers echo the request.
#[derive(Clone, Default)]
pub struct Redactor {
    /// All secrets, longest first. A URL is included twice: whole, and without its host, which is
    /// the part that a server may echo.
    secrets: Vec<EchoedSecret>,
    /// Secrets that are not URLs, longest first.
    non_url_secrets: Vec<EchoedSecret>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

impl Redactor {
    /// Creates a redactor. It ignores values with fewer than eight bytes, which would match by
    /// accident.
    pub fn new<'s>(secrets: impl Iterator<Item = &'s SettingSecret>) -> Self {
        let mut redactor = Self::default();
        for SettingSecret { name, value } in secrets {
            let secret = EchoedSecret::new(name, value);
            match value.split_once("://") {
                None => redactor.non_url_secrets.push(secret.clone()),
                Some((_, rest)) => {
                    let path = rest.split_at_checked(rest.find(['/', '?']).unwrap_or(rest.len()));
                    let value = path.map_or("", |(_, path)| path.trim_end_matches('/'));
                    redactor.secrets.push(EchoedSecret::new(name, value));
                }
            }
            redactor.secrets.push(secret);
        }
        for secrets in [&mut redactor.secrets, &mut redactor.non_url_secrets] {
            secrets.retain(|secret| secret.value.len() >= 8);
            secrets.sort_by_key(|secret| std::cmp::Reverse(secret.value.len()));
        }
        redactor
    }

    /// Replaces all secrets. For error responses, where URLs are not needed.
    pub(crate) fn redact(&self, text: &str) -> String {
        replace_secrets(&self.secrets, text).unwrap_or_else(|| text.to_owned())
    }

    /// As [`Self::redact`], for a text that may end within a secret.
    pub(crate) fn redact_cut(&self, text: &str) -> String {
        let text = self.redact(text);
        let cut = self.secrets.iter().filter_map(|it| Some((strip_cut(&text, &it.value)?, it)));
        let first = cut.min_by_key(|(start, _)| start.len());
        let Some((start, secret)) = first else { return text };
        format!("{start}{}", secret.replacement)
    }

    /// Replaces secrets that are not URLs. For successful responses, whose links may begin with the
    /// tool's URL. Returns `None` if the text contains none of them.
    pub(crate) fn redact_non_urls(&self, text: &str) -> Option<String> {
        replace_secrets(&self.non_url_secrets, text)
    }
}

/// A value that a server may echo, as it is or in JSON.
#[derive(Clone)]
struct EchoedSecret {
    value: String,
    escaped: Option<EscapedSecret>,
    replacement: String,
}

impl EchoedSecret {
    fn new(name: &str, value: &str) -> Self {
        let replacement = format!("[{name}]");
        Self { value: value.to_owned(), escaped: EscapedSecret::new(value), replacement }
    }

    /// Returns `None` if the text does not have the value.
    fn replace(&self, text: &str) -> Option<String> {
        let replaced =
            text.contains(&self.value).then(|| text.replace(&self.value, &self.replacement));
        let rest = replaced.as_deref().unwrap_or(text);
        let escaped = self.escaped.as_ref().and_then(|it| it.replace(rest, &self.replacement));
        escaped.or(replaced)
    }
}

fn replace_secrets(secrets: &[EchoedSecret], text: &str) -> Option<String> {
    secrets.iter().fold(None::<String>, |replaced, secret| {
        secret.replace(replaced.as_deref().unwrap_or(text)).or(replaced)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Template, Vec<TemplateError>> {
        Template::parse(text, &|name| match name {
            "KEY" => Ok("s3cret-value".to_owned()),
            _ => Err(TemplateError::MissingSetting(name.to_owned())),
        })
    }

    #[test]
    fn template_has_arguments_settings_and_literal_braces() {
        let template = parse("a {x} $5 {{y}} ${KEY}!").unwrap();
        assert_eq!(template.arguments().collect::<Vec<_>>(), ["x"]);
        let text = template.render(|name| Ok::<_, ()>(name.to_uppercase())).unwrap();
        assert_eq!(text, "a X $5 {y} s3cret-value!");
    }

    #[test]
    fn all_template_errors_are_reported() {
        let wrong = parse("{ x} } ${1} ${GONE}").unwrap_err();
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert_eq!(wrong.last(), Some(&TemplateError::MissingSetting("GONE".to_owned())));
    }

    #[test]
    fn echoed_secrets_are_redacted() {
        let secret = |name: &str, value: &str| SettingSecret {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let secrets = [
            secret("HOOK", "https://x.example/services/T0/Zx81"),
            secret("KEY", "s3cret-value"),
            secret("SHORT", "a"),
        ];
        let redactor = Redactor::new(secrets.iter());
        let echoed =
            "POST /services/T0/Zx81/a with s3cret-value; see https://x.example/services/T0/Zx81";
        assert_eq!(redactor.redact(echoed), "POST [HOOK]/a with [KEY]; see [HOOK]");
        let links = redactor.redact_non_urls(echoed).unwrap();
        assert!(links.contains("with [KEY]; see https://x.example/services"), "{links}");
        assert_eq!(redactor.redact_non_urls("https://x.example/services/T0/Zx81/7"), None);
        let escaped = r#"{\"u\":\"https:\/\/x.example\/services\/T0\/Zx81\"}"#;
        assert_eq!(redactor.redact(escaped), r#"{\"u\":\"[HOOK]\"}"#);
    }

    /// A value is often the beginning of another.
    #[test]
    fn longest_secret_is_redacted_first_in_json_too() {
        let secret = |name: &str, value: &str| SettingSecret {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let secrets = [secret("SHORT", "first\"line"), secret("LONG", "first\"line\nsecond")];
        let redactor = Redactor::new(secrets.iter());
        for (text, expected) in [
            (r#"first\"line\nsecond first\"line"#, "[LONG] [SHORT]"),
            ("first\"line\nsecond first\"line", "[LONG] [SHORT]"),
            (r#"first\"line\nother"#, r"[SHORT]\nother"),
        ] {
            assert_eq!(redactor.redact(text), expected);
            assert_eq!(redactor.redact_non_urls(text).as_deref(), Some(expected));
        }
    }

    #[test]
    fn names_with_words_for_secrets_are_secret() {
        for name in [
            "PAYMENTS_API_KEY",
            "paymentsKey",
            "BILLING_TOKEN",
            "token",
            "Authorization",
            "x-functions-key",
            "SAS",
            "DB_PASSWORD",
            "CRM_SECRET_2",
            "APIKEY",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in
            ["BASE", "PAYMENTS_URL", "TURKEY_ACCOUNT", "KEYCLOAK_URL", "TENANT", "x-account"]
        {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn description_has_values_but_no_secrets() {
        let template = |text: &str, value: &str| {
            Template::parse(text, &|_| Ok(value.to_owned())).unwrap().describe(false)
        };
        assert_ne!(template("a/${BASE}/{x}", "one"), template("a/${BASE}/{x}", "two"));
        assert_eq!(template("a/${API_KEY}/{x}", "one"), template("a/${API_KEY}/{x}", "two"));
        assert_ne!(template("a/{{x}}", ""), template("a/{x}", ""));
    }

    #[test]
    fn debug_output_hides_settings() {
        let template = parse("${KEY}").unwrap();
        assert!(!format!("{template:?}").contains("s3cret"));
    }

    #[test]
    fn arguments_keep_their_written_form() {
        let text =
            RawJson::from_text(r#"{"n":12345678901234567890123.50,"s":"a\nb","z":null}"#).unwrap();
        let given =
            CallArguments::from_arguments(&Arguments { value: text.to_value(), text }).unwrap();
        assert_eq!(
            given.argument_text("n").unwrap().as_deref(),
            Some("12345678901234567890123.50")
        );
        assert_eq!(given.argument_text("s").unwrap().as_deref(), Some("a\nb"));
        assert_eq!(given.argument_text("z").unwrap(), None);
        assert_eq!(given.argument_text("gone").unwrap(), None);
    }
}
