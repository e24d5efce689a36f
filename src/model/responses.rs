//! Client of Azure OpenAI's Responses API over server-sent events. Building requests, parsing
//! events and classifying errors are pure; only the client does I/O.

pub mod body;
pub mod client;
pub mod config;
pub mod credential;
pub mod effort;
pub mod event;
pub mod fold;
#[cfg(test)]
mod fuzz;
pub mod headers;
pub mod ids;
pub mod input;
pub mod item;
pub mod names;
pub mod provider_error;
pub mod stream;
pub mod validate;

pub use client::AzureResponses;
pub use config::{ResponsesConfig, Secret};

/// API name in recorded messages. The newer provider name is `azure`; the older one equals the API
/// name.
pub const API: &str = "azure-openai-responses";
pub const PROVIDER: &str = "azure";
