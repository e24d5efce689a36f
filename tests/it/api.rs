//! Tests of the API over HTTP, with the complete service.

mod deciding;
mod owning;
mod prompting;
mod reconnecting;
mod scheduling;
mod stage;
