//! Replacement of values of app settings in texts of servers.

mod escaped_secret;
mod truncated_secret;

use std::fmt;

use self::escaped_secret::EscapedSecret;
pub(crate) use self::truncated_secret::replace_truncated_secret;
use self::truncated_secret::strip_truncated_secret;
use crate::http::template::SettingSecret;

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
    pub(crate) fn redact_truncated(&self, text: &str) -> String {
        let text = self.redact(text);
        let starts = self
            .secrets
            .iter()
            .filter_map(|it| Some((strip_truncated_secret(&text, &it.value)?, it)));
        let first = starts.min_by_key(|(start, _)| start.len());
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
}
