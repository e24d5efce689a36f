//! Text templates: `{name}` is an argument and `${NAME}` an app setting. `{{` and `}}` are literal
//! braces.

use std::collections::BTreeMap;
use std::fmt;

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
