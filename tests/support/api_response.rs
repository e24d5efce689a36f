//! Response of the HTTP API.

use http::{HeaderMap, StatusCode};
use serde_json::Value;

/// Status, headers and body of a response.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl ApiResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// Asserts the status.
    #[track_caller]
    pub(crate) fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }

    /// Asserts a problem of that name with all its required members.
    #[track_caller]
    pub(crate) fn expect_problem(self, status: u16, name: &str) -> Value {
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.text);
        let body = self.expect_status(status).json();
        assert_eq!(body["type"], format!("urn:turnwheel:problem:{name}"), "{body}");
        assert_eq!(body["status"], status);
        assert!(
            body["detail"].is_string() && body["title"].is_string() && body["instance"].is_string(),
            "{body}"
        );
        assert_eq!(body["traceId"].as_str().unwrap().len(), 32, "{body}");
        body
    }
}
