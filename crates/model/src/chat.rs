//! Chat Completions: the second API of Azure OpenAI, and the only one of many compatible endpoints.
//! The client of the Responses API sends and reads its requests.

pub mod body;
pub mod chunk;
mod chunk_repair;
pub mod fold;
#[cfg(test)]
mod fuzz;
pub mod messages;

/// API name in recorded messages, as in the sources.
pub const API: &str = "openai-completions";
