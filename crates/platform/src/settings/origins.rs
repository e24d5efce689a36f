//! Origins of web pages that may call the API from a browser.

use url::Url;

use super::links::is_loopback;
use super::reader::{Reader, split_list};

/// `TURNWHEEL_CORS_ORIGINS`. The default allows only the app's own pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins {
    /// In the form that browsers send: `https://app.example:8443`.
    exact: Vec<String>,
    is_any: bool,
    has_loopback: bool,
}

/// The reason why an origin is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// The list contains it, or `dev` allows pages of this machine.
    Listed,
    /// `*`: such a page may not use the credentials that a browser adds by itself.
    Any,
}

impl AllowedOrigins {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let expected =
            "`*`, or origins such as https://app.example without a path, separated by commas";
        reader.parse("TURNWHEEL_CORS_ORIGINS", expected, Self::parse).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self { is_any: true, ..Self::default() });
        }
        let exact: Option<Vec<String>> = split_list(text).map(parse_origin).collect();
        Some(Self { exact: exact?, ..Self::default() })
    }

    /// Also allows `localhost` and `127.0.0.1` on any port, for `dev`.
    #[must_use]
    pub fn with_loopback(self) -> Self {
        Self { has_loopback: true, ..self }
    }

    pub fn find(&self, given: &str) -> Option<Allowance> {
        let is_named = self.exact.iter().any(|exact| exact == given)
            || (self.has_loopback && is_loopback_page(given));
        if is_named {
            return Some(Allowance::Listed);
        }
        self.is_any.then_some(Allowance::Any)
    }

    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && !self.is_any && !self.has_loopback
    }
}

/// Returns `None` for a path, a wildcard, or a scheme other than http and https.
fn parse_origin(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let origin = url.origin().ascii_serialization();
    let is_web = matches!(url.scheme(), "http" | "https");
    (is_web && !text.contains('*') && origin.eq_ignore_ascii_case(text)).then_some(origin)
}

fn is_loopback_page(given: &str) -> bool {
    parse_origin(given).is_some_and(|origin| is_loopback(&origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_origins_match_exactly() {
        let origins = AllowedOrigins::parse("https://app.example, http://HOST:8080").unwrap();
        assert_eq!(origins.find("https://app.example"), Some(Allowance::Listed));
        assert_eq!(origins.find("http://host:8080"), Some(Allowance::Listed));
        for other in [
            "http://app.example",
            "https://app.example:8443",
            "https://x.app.example",
            "https://app.example.evil",
            "http://localhost:3000",
            "null",
        ] {
            assert_eq!(origins.find(other), None, "{other}");
        }
        for wrong in ["app.example", "https://app.example/", "https://*.example", "*, https://a.b"]
        {
            assert_eq!(AllowedOrigins::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn wildcard_origin_is_not_listed() {
        let any = AllowedOrigins::parse("*").unwrap();
        assert_eq!(any.find("https://app.example"), Some(Allowance::Any));
        assert_eq!(any.find("null"), Some(Allowance::Any));
    }

    #[test]
    fn dev_allows_loopback_origins() {
        let local = AllowedOrigins::default().with_loopback();
        for page in ["http://localhost:5173", "http://127.0.0.1:3000", "https://localhost"] {
            assert_eq!(local.find(page), Some(Allowance::Listed), "{page}");
        }
        for page in ["http://localhost.evil.example", "https://evil.example", "null", "file://"] {
            assert_eq!(local.find(page), None, "{page}");
        }
        assert!(AllowedOrigins::default().is_empty() && !local.is_empty());
    }
}
