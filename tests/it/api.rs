//! The API as a client meets it: over HTTP, with the whole service behind it.

mod deciding;
mod owning;
mod prompting;
mod reconnecting;
mod scheduling;
mod stage;
