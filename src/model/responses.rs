//! Azure OpenAI's Responses API over server-sent events: three pure parts (what to send, what came, what went wrong) and a client.

pub mod body;
pub mod check;
pub mod client;
pub mod config;
pub mod credential;
pub mod effort;
pub mod event;
pub mod fault;
pub mod fold;
#[cfg(test)]
mod fuzz;
pub mod headers;
pub mod ids;
pub mod input;
pub mod item;
pub mod names;
pub mod stream;

pub use client::AzureResponses;
pub use config::{ResponsesConfig, Secret};

/// As messages record it; the newer provider name is `azure`, the older one the same as the api.
pub const API: &str = "azure-openai-responses";
pub const PROVIDER: &str = "azure";
