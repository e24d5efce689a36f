//! Chat Completions: the second API of Azure OpenAI, and the only one of many compatible endpoints.
//! The client of the Responses API sends and reads its requests.

pub(crate) mod body;
pub(crate) mod chunk;
pub(crate) mod fold;
#[cfg(test)]
mod fuzz;
pub(crate) mod messages;

/// API name in recorded messages, as in the sources.
pub(crate) const API: &str = "openai-completions";
