//! The `scrape` tool: reads a page of the web as text. It reaches only public addresses and those
//! that the operator has listed.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, header};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError, build_code_tool};
use crate::http::attempt::{AttemptOutcome, send_once};
use crate::http::client::HttpClient;
use crate::http::request::ToolRequest;
use crate::http::response::{ContentKind, classify_content, error_text, read_streamed_result};
use crate::http::text::{decode_body, extract_page_text};
use crate::http::tool_response::{RESPONSE_BYTES_MAX, ToolResponse};
use crate::{CallableTool, CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;

/// Redirects of one call. Each address is checked.
const REDIRECTS_MAX: usize = 5;
const URL_BYTES_MAX: usize = 2_048;
const TIMEOUT: Duration = Duration::from_secs(30);
const NOT_PUBLIC: &str =
    "Invalid input: the address is private or local. Only public pages can be read.";

struct ScrapeTool {
    client: HttpClient,
}

#[derive(Deserialize, JsonSchema)]
struct ScrapeArgs {
    /// URL of the page; http or https
    url: String,
}

/// The tool with the client of the HTTP tools.
pub fn scrape_tool(client: HttpClient) -> Option<Arc<dyn CallableTool>> {
    let tool = build_code_tool(ScrapeTool { client });
    debug_assert!(tool.is_ok(), "{tool:?}");
    tool.ok()
}

impl Tool for ScrapeTool {
    type Args = ScrapeArgs;

    fn name(&self) -> &'static str {
        "scrape"
    }

    fn description(&self) -> &'static str {
        "Fetch a web page and return its text. Follows up to 5 redirects. Reads text, HTML, JSON and XML."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    async fn check(&self, args: &ScrapeArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        let url = parse_url(&args.url)?;
        self.client.client_for(&url, Effect::Read).map(drop).map_err(|_| NOT_PUBLIC.to_owned())
    }

    async fn call(&self, args: ScrapeArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        // The call ends by itself before its deadline, so that the model reads the reason.
        let until = Instant::now() + cx.remaining().mul_f64(0.95);
        let mut url = parse_url(&args.url).map_err(ToolError::Failed)?;
        for _ in 0..=REDIRECTS_MAX {
            let response = self.get(&url, until).await?;
            if response.status.is_success() {
                return page_text(&response);
            }
            if !response.status.is_redirection() {
                let (status, text) = (response.status, error_text(&response));
                let text = if text.is_empty() { ".".to_owned() } else { format!(":\n{text}") };
                return Err(ToolError::failed(format!("The server responded {status}{text}")));
            }
            let location = response.header(&header::LOCATION);
            url = url
                .join(location)
                .ok()
                .filter(|_| !location.is_empty())
                .and_then(|url| parse_url(url.as_str()).ok())
                .ok_or_else(|| ToolError::failed("The server redirects to an invalid URL."))?;
        }
        Err(ToolError::failed(format!("The page has more than {REDIRECTS_MAX} redirects.")))
    }
}

impl ScrapeTool {
    async fn get(&self, url: &Url, until: Instant) -> Result<ToolResponse, ToolError> {
        let rejected = || ToolError::failed(NOT_PUBLIC);
        let client = self.client.client_for(url, Effect::Read).map_err(|_| rejected())?;
        let accept = HeaderValue::from_static("text/html, text/*;q=0.9, application/json;q=0.8");
        let request = ToolRequest {
            method: Method::GET,
            url: url.clone(),
            headers: HeaderMap::from_iter([(header::ACCEPT, accept)]),
            body: None,
        };
        let send = async || {
            let left = until.saturating_duration_since(Instant::now());
            send_once(client, request.clone(), left, &|_| {}).await
        };
        let mut outcome = send().await;
        if matches!(outcome, AttemptOutcome::ResponseLost { .. }) && Instant::now() < until {
            // A reused connection may have been stale.
            outcome = send().await;
        }
        match outcome {
            AttemptOutcome::Responded(response) => Ok(response),
            AttemptOutcome::AddressRejected => Err(rejected()),
            AttemptOutcome::NotSent(cause) | AttemptOutcome::NoToken(cause) => {
                Err(ToolError::failed(format!("The server could not be reached: {cause}.")))
            }
            AttemptOutcome::ResponseLost { cause, .. } => {
                Err(ToolError::failed(format!("The page could not be read: {cause}.")))
            }
        }
    }
}

/// A URL that may be requested, without its fragment.
fn parse_url(text: &str) -> Result<Url, String> {
    let invalid = |reason: &str| format!("Invalid input: {reason}");
    if text.len() > URL_BYTES_MAX {
        return Err(invalid("the URL has more than 2,048 bytes."));
    }
    let mut url = Url::parse(text.trim())
        .map_err(|error| invalid(&format!("the URL is not valid ({error}).")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("the URL must begin with http:// or https://."));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("the URL must not have a user name or a password."));
    }
    url.set_fragment(None);
    Ok(url)
}

fn page_text(response: &ToolResponse) -> Result<ToolResult, ToolError> {
    if response.has_unknown_encoding() {
        return Err(ToolError::failed("The page is compressed in an unsupported way."));
    }
    let mime_type = response.mime_type();
    let streamed = read_streamed_result(response, &mime_type);
    let mut text = match (streamed, classify_content(&mime_type, &response.body)) {
        (Some(streamed), _) => {
            let own = std::iter::once(streamed.result.text().to_owned());
            own.chain(streamed.texts).collect::<Vec<_>>().join("\n")
        }
        (None, ContentKind::Json | ContentKind::Text) => decode_body(response).trim().to_owned(),
        (None, ContentKind::Page) => extract_page_text(&decode_body(response)),
        (None, ContentKind::Image | ContentKind::Binary) => {
            let kind = if mime_type.is_empty() { "of an unknown type" } else { &mime_type };
            return Err(ToolError::failed(format!("The page is not text: its content is {kind}.")));
        }
    };
    if text.is_empty() {
        "(no text)".clone_into(&mut text);
    }
    if response.is_cut {
        let read = RESPONSE_BYTES_MAX / (1024 * 1024);
        text = format!("{text}\n\n[Only the first {read} MB were read.]");
    }
    Ok(ToolResult::text(text))
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn urls_must_be_of_the_web() {
        for (url, reason) in [
            ("file:///etc/passwd", "must begin with http"),
            ("nonsense", "is not valid"),
            ("https://user:pass@example.com", "user name"),
            (&format!("https://e.example/{}", "x".repeat(2_048)), "2,048 bytes"),
        ] {
            let error = parse_url(url).unwrap_err();
            assert!(error.contains("Invalid input: ") && error.contains(reason), "{error}");
        }
        assert_eq!(parse_url(" https://e.example/a#b ").unwrap().as_str(), "https://e.example/a");
    }

    #[test]
    fn hostile_pages_end() {
        let nested = "<div>".repeat(1_000_000);
        let mixed = "<table><tr><td><script><b></".repeat(100_000);
        for page in [&nested, &mixed, "<", "<!--", "<a href=", "\0\u{fffd}<p"] {
            let response = ToolResponse {
                status: StatusCode::OK,
                headers: [(header::CONTENT_TYPE, HeaderValue::from_static("text/html"))]
                    .into_iter()
                    .collect(),
                body: page.to_owned().into(),
                is_cut: false,
            };
            assert!(page_text(&response).is_ok());
        }
    }
}
