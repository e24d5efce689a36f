//! Errors with their causes: as one line of text, by type, and as JSON.

use std::error::Error;

/// Renders an error and its causes, separated by colons. Causes that the text already contains are
/// left out.
pub fn error_chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// True if the error or one of its causes is a `T`.
pub fn has_cause<T: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |cause| (*cause).source()).any(<dyn Error>::is::<T>)
}

/// `#[serde(with = "as_text")]`: the error and its causes as text.
pub mod as_text {
    use std::error::Error;

    use serde::{Deserialize as _, Deserializer, Serializer};

    type BoxedError = Box<dyn Error + Send + Sync>;

    /// Writes the error as a text.
    ///
    /// # Errors
    /// The serializer fails.
    pub fn serialize<S: Serializer>(error: &BoxedError, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::error_chain(error.as_ref()))
    }

    /// Reads the error from a text.
    ///
    /// # Errors
    /// The value is no text.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BoxedError, D::Error> {
        String::deserialize(from).map(Into::into)
    }
}
