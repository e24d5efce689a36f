//! Bindings of approvals. An approval covers a call of a tool in one revision, and the extensions
//! that required it. A binding has the hash of the call, then `+` and a hash for each extension.

/// The binding of a call whose approval these extensions require, each given by a hash.
pub(crate) fn with_extensions(call: &str, extensions: impl Iterator<Item = String>) -> String {
    extensions.fold(call.to_owned(), |binding, extension| binding + "+" + &extension)
}

/// True if an approval of `approved` includes all that `binding` requires.
pub(crate) fn covers(approved: &str, binding: &str) -> bool {
    is_same_call(approved, binding)
        && extensions(binding).all(|needed| extensions(approved).any(|it| it == needed))
}

/// True if both are for the same arguments of the same tool in the same revision.
pub(crate) fn is_same_call(first: &str, second: &str) -> bool {
    first.split('+').next() == second.split('+').next()
}

fn extensions(binding: &str) -> impl Iterator<Item = &str> {
    binding.split('+').skip(1)
}
