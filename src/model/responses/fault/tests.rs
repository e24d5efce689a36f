//! What a failure is taken for, and how long to wait.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use super::*;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect()
}

fn retry(ms: u64) -> Failure {
    Failure::Retryable { after: Some(Duration::from_millis(ms)) }
}

const RETRY: Failure = Failure::Retryable { after: None };

#[test]
fn an_http_failure_is_judged_by_status_and_code() {
    let quota =
        json!({"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}})
            .to_string();
    let filtered = json!({"error":{"code":"content_filter","innererror":{"code":"ResponsibleAIPolicyViolation"}}}).to_string();
    let overflow =
        json!({"error":{"code":"context_length_exceeded","message":"Too long"}}).to_string();
    let patience =
        json!({"error":{"code":"429","message":"Rate. Please retry after 7 seconds. Go on"}})
            .to_string();
    let cases: Vec<(u16, &str, HeaderMap, Failure)> = vec![
        (400, "{}", headers(&[]), Failure::Final),
        (400, &overflow, headers(&[]), Failure::Overflow),
        (413, "too large", headers(&[]), Failure::Overflow),
        (400, &filtered, headers(&[]), Failure::Final),
        (401, "{}", headers(&[]), Failure::Final),
        (403, "{}", headers(&[]), Failure::Final),
        (404, "{}", headers(&[]), Failure::Final),
        (302, "", headers(&[]), Failure::Final),
        (408, "", headers(&[]), RETRY),
        (409, "", headers(&[]), RETRY),
        (429, "{}", headers(&[]), RETRY),
        (429, &quota, headers(&[("x-should-retry", "true")]), Failure::Final),
        (429, "{}", headers(&[("retry-after", "2")]), retry(2_000)),
        (429, "{}", headers(&[("retry-after", "2"), ("retry-after-ms", "2500")]), retry(2_500)),
        (429, &patience, headers(&[]), retry(7_000)),
        (429, "{}", headers(&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), RETRY),
        (429, "{}", headers(&[("retry-after", "-1")]), RETRY),
        (500, "<html>", headers(&[]), RETRY),
        (503, "", headers(&[("x-should-retry", "false")]), Failure::Final),
        (400, "{}", headers(&[("x-should-retry", "true")]), RETRY),
        // The text of a client error does not make it pass.
        (400, r#"{"error":{"message":"limit 500 exceeded"}}"#, headers(&[]), Failure::Final),
    ];
    for (status, body, headers, expected) in cases {
        assert_eq!(classify(&Fault::of_http(status, body), &headers), expected, "{status} {body}");
    }
}

#[test]
fn a_failure_within_a_stream_is_judged_by_code_type_or_text() {
    let cases = [
        (json!({"error":{"type":"too_many_requests","code":"x"}}), RETRY),
        (
            json!({"error":{"type":"tokens","code":"rate_limit_exceeded","message":"Please try again in 44ms."}}),
            retry(44),
        ),
        (
            json!({"error":{"code":"rate_limit_exceeded","message":"Please try again in 1.2s."}}),
            retry(1_200),
        ),
        (
            json!({"error":{"code":"rate_limit_exceeded","message":"Please try again in 6m0s"}}),
            retry(360_000),
        ),
        (json!({"code":"503","message":"busy"}), RETRY),
        (json!({"code":"server_error","message":"x"}), RETRY),
        (json!({"message":"503 service unavailable"}), RETRY),
        (
            json!({"error":{"type":"invalid_request_error","code":"content_policy_violation"}}),
            Failure::Final,
        ),
        (json!({"error":{"code":"context_length_exceeded"}}), Failure::Overflow),
        (
            json!({"message":"Your input exceeds the context window of this model."}),
            Failure::Overflow,
        ),
        (
            json!({"error":{"type":"invalid_request_error","message":"no such parameter"}}),
            Failure::Final,
        ),
        (json!({"error":{"code":"insufficient_quota","message":"rate limit"}}), Failure::Final),
    ];
    for (body, expected) in cases {
        let fault = Fault::of_error_event(&body).unwrap();
        assert_eq!(classify(&fault, &HeaderMap::new()), expected, "{body}");
    }
}

#[test]
fn a_lost_connection_is_tried_again() {
    assert_eq!(
        classify(&Fault::lost("stream closed before response.completed"), &HeaderMap::new()),
        RETRY
    );
    assert_eq!(classify(&Fault::unknown(), &headers(&[("retry-after", "4")])), retry(4_000));
}

#[test]
fn the_record_says_what_happened_and_what_to_do() {
    let text = |status, body: &str| Fault::of_http(status, body).text;
    let missing =
        r#"{"error":{"code":"DeploymentNotFound","message":"The API deployment does not exist"}}"#;
    assert_eq!(
        text(404, missing),
        "HTTP 404: DeploymentNotFound: The API deployment does not exist. Check AZURE_OPENAI_BASE_URL, and name the \
         deployment of this model in AZURE_OPENAI_DEPLOYMENT_NAME_MAP (`model=deployment`)."
    );
    assert!(
        text(401, r#"{"error":{"code":"401","message":"Access denied"}}"#)
            .starts_with("HTTP 401: Access denied. Check")
    );
    assert_eq!(text(500, ""), "HTTP 500 without an explanation");
    assert_eq!(text(502, "Bad gateway"), "HTTP 502: Bad gateway");
    assert_eq!(text(500, r#"{"error":"plain"}"#), "HTTP 500: plain");
    assert!(text(500, &"x".repeat(9_000)).chars().count() < 2_100);
}

#[test]
fn events_have_the_sources_texts() {
    let event = |body| Fault::of_error_event(&body).map(|fault| fault.text);
    let failed = |body| Fault::of_failed_response(&body).map(|fault| fault.text);
    assert_eq!(
        event(json!({"type":"error","code":"rate_limit_exceeded","message":"Too many"})).as_deref(),
        Some("Error Code rate_limit_exceeded: Too many")
    );
    assert_eq!(event(json!({"type":"error","message":"x"})).as_deref(), Some("x"));
    assert_eq!(event(json!({"type":"error"})), None);
    assert_eq!(event(json!({"type":"error","error":{}})), None);
    assert_eq!(
        failed(json!({"error":{"code":"server_error","message":"x"}})).as_deref(),
        Some("server_error: x")
    );
    assert_eq!(failed(json!({"error":null})), None);
    assert_eq!(Fault::unknown().text, "Unknown error");
}
