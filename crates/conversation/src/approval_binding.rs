//! Bindings of approvals. An approval covers a call of a tool in one revision, with its arguments and
//! its destination, and the extensions that required it.
//!
//! A binding has the hash of the call, then parts that begin with `+`. The first character of a part
//! shows its kind: `#` definition, `=` arguments, `@` destination, otherwise an extension. Bindings
//! of earlier versions have no part but extensions.

use crate::destination::Destination;

const DEFINITION: char = '#';
const ARGUMENTS: char = '=';
const DESTINATION: char = '@';

/// Hashes of a call.
#[derive(Debug)]
pub struct CallHashes {
    /// Of tool name, definition and arguments.
    pub call: String,
    pub definition: String,
    pub arguments: String,
    pub destination: String,
}

impl CallHashes {
    /// The binding of a call whose approval these extensions require, each given by a hash.
    pub fn bind(&self, extensions: impl Iterator<Item = String>) -> String {
        let parts = [
            (DEFINITION, &self.definition),
            (ARGUMENTS, &self.arguments),
            (DESTINATION, &self.destination),
        ];
        let own = parts.map(|(mark, hash)| format!("{mark}{hash}"));
        own.into_iter().chain(extensions).fold(self.call.clone(), |all, part| all + "+" + &part)
    }
}

/// True if an approval of `approved` includes all that `binding` requires.
pub fn covers(approved: &str, binding: &str) -> bool {
    is_same_call(approved, binding)
        && extensions(binding).all(|needed| extensions(approved).any(|it| it == needed))
}

/// True if both are for the same arguments of the same tool in the same revision, at the same
/// destination. A binding of an earlier version names no destination: then the revision decides.
pub fn is_same_call(first: &str, second: &str) -> bool {
    first.split('+').next() == second.split('+').next() && !differs(first, second, DESTINATION)
}

/// The sentences that describe to an approver how a call differs from the approved one.
pub(crate) fn describe_changes(
    approved: &str,
    shown_before: Option<&Destination>,
    binding: &str,
    shown: Option<&Destination>,
) -> String {
    let mut sentences = Vec::new();
    if differs(approved, binding, DESTINATION) {
        sentences.push(if shown_before == shown {
            format!("It goes to {}, with another path or other settings.", name_of(shown))
        } else {
            format!(
                "It would go to {}, and it was approved for {}.",
                name_of(shown),
                name_of(shown_before)
            )
        });
    }
    if differs(approved, binding, DEFINITION) {
        sentences.push("Its definition changed.".to_owned());
    }
    if differs(approved, binding, ARGUMENTS) {
        sentences.push("Its arguments changed.".to_owned());
    }
    if sentences.is_empty() && !is_same_call(approved, binding) {
        sentences.push("Its definition or its arguments changed.".to_owned());
    }
    sentences.join(" ")
}

fn name_of(destination: Option<&Destination>) -> String {
    destination.map_or_else(|| "the app itself".to_owned(), ToString::to_string)
}

/// True if both bindings have a part of this kind, and the parts differ.
fn differs(first: &str, second: &str, mark: char) -> bool {
    let part = |binding: &'_ str| -> Option<String> {
        binding.split('+').skip(1).find_map(|part| part.strip_prefix(mark)).map(ToOwned::to_owned)
    };
    matches!((part(first), part(second)), (Some(first), Some(second)) if first != second)
}

fn extensions(binding: &str) -> impl Iterator<Item = &str> {
    let is_extension = |part: &&str| !part.starts_with([DEFINITION, ARGUMENTS, DESTINATION]);
    binding.split('+').skip(1).filter(is_extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(call: &str, destination: &str, extensions: &[&str]) -> String {
        let hashes = CallHashes {
            call: call.to_owned(),
            definition: "d".to_owned(),
            arguments: "a".to_owned(),
            destination: destination.to_owned(),
        };
        hashes.bind(extensions.iter().map(|it| (*it).to_owned()))
    }

    #[test]
    fn approval_covers_only_its_call_destination_and_extensions() {
        let approved = binding("call", "here", &["e1", "e2"]);
        assert!(covers(&approved, &binding("call", "here", &["e1", "e2"])));
        assert!(covers(&approved, &binding("call", "here", &["e2"])));
        assert!(!covers(&approved, &binding("call", "here", &["e3"])));
        assert!(!covers(&approved, &binding("call", "there", &["e1"])));
        assert!(!covers(&approved, &binding("other", "here", &["e1"])));
    }

    #[test]
    fn approval_of_an_earlier_version_covers_the_same_revision() {
        assert!(covers("call+e1", &binding("call", "here", &["e1"])));
        assert!(!covers("call", &binding("call", "here", &["e1"])));
        assert!(!covers("other+e1", &binding("call", "here", &["e1"])));
        // An earlier version compares the hash of the call and searches the extensions.
        assert!(binding("call", "here", &["e1"]).starts_with("call+"));
    }
}
