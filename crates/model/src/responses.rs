//! Azure OpenAI's Responses API over server-sent events or a WebSocket, and the client of both APIs.
//! Building requests, parsing events and classifying errors are pure; only the client does I/O.

mod api_fold;
pub mod body;
pub mod client;
pub mod config;
pub mod connection;
pub mod credential;
pub mod effort;
mod endpoint;
pub mod event;
pub mod fold;
#[cfg(test)]
pub mod fuzz;
pub mod headers;
mod http_call;
pub mod ids;
pub mod input;
pub mod item;
pub mod names;
pub mod provider_error;
mod request;
mod secret;
mod socket;
mod socket_call;
pub mod stream;
pub mod validate;

pub use client::ModelApiClient;
pub use config::{ResponsesConfig, SecretText};

/// API name in recorded messages. The newer provider name is `azure`; the older one equals the API
/// name.
pub const API: &str = "azure-openai-responses";
pub(crate) const PROVIDER: &str = "azure";
