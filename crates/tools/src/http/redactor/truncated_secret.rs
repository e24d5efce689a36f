//! Secrets at the end of a text that was truncated within them.

/// Bytes of the beginning of a secret, after the scheme of a URL. Fewer would match by accident.
const BYTES_MIN: usize = 4;

/// Returns the text before the beginning of the secret that ends it. The last character of the text may
/// be truncated, too.
pub(super) fn strip_truncated_secret<'t>(text: &'t str, secret: &str) -> Option<&'t str> {
    let text = text.trim_end_matches('\u{fffd}');
    let bytes_min = secret.find("://").unwrap_or_default() + BYTES_MIN;
    let mut beginnings = (bytes_min..secret.len()).rev().filter_map(|length| secret.get(..length));
    beginnings.find_map(|beginning| text.strip_suffix(beginning))
}

/// Replaces a secret, also one that the text ends within. Returns `None` if the text has none of it.
pub(crate) fn replace_truncated_secret(
    text: &str,
    secret: &str,
    replacement: &str,
) -> Option<String> {
    let replaced = text.contains(secret).then(|| text.replace(secret, replacement));
    let rest = replaced.as_deref().unwrap_or(text);
    let truncated = strip_truncated_secret(rest, secret).map(|it| format!("{it}{replacement}"));
    truncated.or(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::redactor::Redactor;
    use crate::http::template::SettingSecret;

    #[test]
    fn secret_that_a_text_ends_within_is_redacted() {
        let secrets = [
            ("KEY", "s3cret-vélue"),
            ("OTHER", "x.s3cret-b"),
            ("SHORT", "s3cret"),
            ("HOOK", "https://x.example/T0/Zx81a"),
        ]
        .map(|(name, value)| SettingSecret { name: name.to_owned(), value: value.to_owned() });
        let redactor = Redactor::new(secrets.iter());
        for (text, expected) in [
            ("{\"k\":\"s3cr", "{\"k\":\"[KEY]"),
            ("s3cret-vélu", "[KEY]"),
            ("s3cret-v\u{fffd}", "[KEY]"),
            ("x.s3cret-", "[OTHER]"),
            ("s3cret-vélue and s3cret-v", "[KEY] and [KEY]"),
            ("see https://x.exam", "see [HOOK]"),
            ("POST /T0/Zx8", "POST [HOOK]"),
            ("use https://", "use https://"),
            ("s3c", "s3c"),
            ("s3cret-v!", "s3cret-v!"),
            ("", ""),
        ] {
            assert_eq!(redactor.redact_truncated(text), expected, "{text}");
        }
    }

    #[test]
    fn text_before_a_cut_secret_is_returned() {
        assert_eq!(strip_truncated_secret("Bearer eyJ0eX", "eyJ0eXAi"), Some("Bearer "));
        for other in ["eyJ", "eyJ0eXAi", "eyJ0 ", ""] {
            assert_eq!(strip_truncated_secret(other, "eyJ0eXAi"), None, "{other}");
        }
    }
}
