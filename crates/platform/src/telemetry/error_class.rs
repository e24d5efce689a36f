//! Classes of errors. Every failed span names the domain that has to act on the failure.

use std::borrow::Cow;

/// The domain that has to act on a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum ErrorDomain {
    /// The agents, extensions and settings of this app.
    App,
    /// Turnwheel itself: a defect, or a race that it resolves by retrying.
    Runtime,
    /// Azure: the store, the queues, the blobs, the host.
    Platform,
    /// The model and its provider.
    Model,
    /// A tool, or a service that it calls.
    Tool,
}

impl ErrorDomain {
    pub fn name(self) -> &'static str {
        self.into_str()
    }
}

/// The class of a failure, for spans and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorClass {
    pub domain: ErrorDomain,
    /// `error.type`: one of a small set of words, never free text.
    pub kind: Cow<'static, str>,
}

const KIND_LENGTH_MAX: usize = 64;

impl ErrorClass {
    pub fn new(domain: ErrorDomain, kind: impl Into<Cow<'static, str>>) -> Self {
        Self { domain, kind: kind.into() }
    }

    /// Classifies an external error. A `kind` that is not a plain word becomes OpenTelemetry's
    /// `_OTHER`.
    pub fn from_external(domain: ErrorDomain, kind: &str) -> Self {
        let is_word = (1..=KIND_LENGTH_MAX).contains(&kind.len())
            && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        let kind = if is_word { Cow::Owned(kind.to_owned()) } else { Cow::Borrowed("_OTHER") };
        Self { domain, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_error_kind_is_one_word() {
        let of = |kind: &str| ErrorClass::from_external(ErrorDomain::Model, kind).kind.into_owned();
        assert_eq!(of("rate_limit_exceeded"), "rate_limit_exceeded");
        for text in ["", "the prompt said: hush", "a\nb", &"x".repeat(65)] {
            assert_eq!(of(text), "_OTHER");
        }
    }
}
