//! Destinations of tool calls, as approval requests show them.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The place to which a call is sent. A call without one runs in the app itself.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    /// `http`, `mcp` or `shell`.
    // A text, because a worker must also load the kinds of later versions.
    #[serde(rename = "type")]
    pub kind: String,
    /// HTTP method of the request.
    #[schema(nullable = false)]
    pub method: Option<String>,
    /// Host of the request, with its port if that is not the default one.
    #[schema(nullable = false)]
    pub host: Option<String>,
    /// Name of the MCP server.
    #[schema(nullable = false)]
    pub server: Option<String>,
    /// Name of the tool at the MCP server.
    #[schema(nullable = false)]
    pub tool: Option<String>,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = [self.method.as_deref(), self.host.as_deref()];
        let address: Vec<&str> = address.into_iter().flatten().collect();
        let address = address.join(" ");
        match (&self.server, &self.tool) {
            (Some(server), Some(tool)) => {
                write!(f, "tool {tool} of MCP server {server}")?;
                if address.is_empty() { Ok(()) } else { write!(f, " ({address})") }
            }
            _ if address.is_empty() => f.write_str("the sandbox of this machine"),
            _ => f.write_str(&address),
        }
    }
}
