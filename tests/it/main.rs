//! All integration tests: one binary, so that the library is linked once.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, in its helpers too"
)]

mod azure_model;
mod recordings;
mod support;
