//! Destinations to which approvals of calls are bound: what an approver sees, and a hash of all that
//! leads there.

use std::sync::LazyLock;

use url::Url;

use turnwheel_conversation::destination::Destination;
use turnwheel_platform::digest::sha256_hex;

static APP: LazyLock<BoundDestination> = LazyLock::new(|| BoundDestination::new(None, ""));

/// The destination of a tool's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundDestination {
    /// `None`: the calls run in the app itself.
    pub shown: Option<Destination>,
    /// Hash of the whole destination without values of secrets. Equal destinations have equal
    /// hashes in each deployment.
    pub hash: String,
}

impl BoundDestination {
    /// The app itself.
    pub fn app() -> Self {
        APP.clone()
    }

    /// `details`: all that leads the request there, apart from what `shown` has.
    pub fn new(shown: Option<Destination>, details: &str) -> Self {
        let kept = serde_json::json!([shown, details]).to_string();
        let hash = sha256_hex(kept.as_bytes()).chars().take(16).collect();
        Self { shown, hash }
    }

    pub fn http(method: &str, url: Option<&Url>, details: &str) -> Self {
        let shown = Destination {
            kind: "http".to_owned(),
            method: Some(method.to_owned()),
            host: url.and_then(host_of),
            ..Destination::default()
        };
        Self::new(Some(shown), details)
    }

    /// `url`: `None` for a server that is a program.
    pub fn mcp(server: &str, tool: &str, url: Option<&Url>, details: &str) -> Self {
        let shown = Destination {
            kind: "mcp".to_owned(),
            method: url.map(|_| "POST".to_owned()),
            host: url.and_then(host_of),
            server: Some(server.to_owned()),
            tool: Some(tool.to_owned()),
        };
        Self::new(Some(shown), details)
    }

    /// `pool`: the session pool that runs the commands; `None`: a sandbox on this machine.
    pub fn shell(pool: Option<&Url>) -> Self {
        let shown = Destination {
            kind: "shell".to_owned(),
            host: pool.and_then(host_of),
            ..Destination::default()
        };
        Self::new(Some(shown), pool.map_or("", Url::as_str))
    }
}

fn host_of(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}
