//! Azure OpenAI's Responses API over server-sent events or a WebSocket, and the client of both APIs.
//! Building requests, parsing events and classifying errors are pure; only the client does I/O.

mod api_fold;
pub(crate) mod body;
pub(crate) mod client;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod credential;
pub(crate) mod effort;
mod endpoint;
pub(crate) mod event;
pub(crate) mod fold;
#[cfg(test)]
pub(crate) mod fuzz;
pub(crate) mod headers;
mod http_call;
pub(crate) mod ids;
pub(crate) mod input;
pub(crate) mod item;
pub(crate) mod names;
pub(crate) mod provider_error;
mod request;
mod secret;
mod socket;
mod socket_call;
pub(crate) mod stream;
pub(crate) mod validate;

pub use client::ModelApiClient;
pub use config::{ResponsesConfig, Secret};

/// API name in recorded messages. The newer provider name is `azure`; the older one equals the API
/// name.
pub(crate) const API: &str = "azure-openai-responses";
pub(crate) const PROVIDER: &str = "azure";
