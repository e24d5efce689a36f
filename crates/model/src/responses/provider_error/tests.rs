//! Classes of errors, and their retry delays.

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

fn retry_after(ms: u64) -> ModelFailure {
    ModelFailure::Retryable { after: Some(Duration::from_millis(ms)) }
}

/// 2026-11-21T20:19:09.669Z.
const NOW: Timestamp = Timestamp(1_795_292_349_669);

const RETRY: ModelFailure = ModelFailure::Retryable { after: None };

#[test]
fn http_error_is_classified_by_status_and_code() {
    let quota =
        json!({"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}})
            .to_string();
    let filtered = json!({"error":{"code":"content_filter","innererror":{"code":"ResponsibleAIPolicyViolation"}}}).to_string();
    let overflow =
        json!({"error":{"code":"context_length_exceeded","message":"Too long"}}).to_string();
    let cases: Vec<(u16, &str, HeaderMap, ModelFailure)> = vec![
        (400, "{}", headers(&[]), ModelFailure::Permanent),
        (400, &overflow, headers(&[]), ModelFailure::ContextOverflow),
        (413, "too large", headers(&[]), ModelFailure::ContextOverflow),
        (400, &filtered, headers(&[]), ModelFailure::Permanent),
        (401, "{}", headers(&[]), ModelFailure::Permanent),
        (403, "{}", headers(&[]), ModelFailure::Permanent),
        (404, "{}", headers(&[]), ModelFailure::Permanent),
        (302, "", headers(&[]), ModelFailure::Permanent),
        (408, "", headers(&[]), RETRY),
        (409, "", headers(&[]), RETRY),
        (429, "{}", headers(&[]), RETRY),
        (429, &quota, headers(&[("x-should-retry", "true")]), ModelFailure::Permanent),
        (500, "<html>", headers(&[]), RETRY),
        (503, "", headers(&[("x-should-retry", "false")]), ModelFailure::Permanent),
        (400, "{}", headers(&[("x-should-retry", "true")]), RETRY),
        (400, r#"{"error":{"code":"tool_use_failed"}}"#, headers(&[]), RETRY),
        (400, r#"{"error":{"code":"json_validate_failed"}}"#, headers(&[]), RETRY),
        // A client error does not become transient by its text, nor a refusal by its status.
        (
            400,
            r#"{"error":{"message":"limit 500 exceeded"}}"#,
            headers(&[]),
            ModelFailure::Permanent,
        ),
        (
            500,
            r#"{"error":{"code":500,"message":"image input is not supported - hint: mmproj","type":"server_error"}}"#,
            headers(&[]),
            ModelFailure::Permanent,
        ),
        (
            500,
            r#"{"error":{"message":"Failed to parse: Unsupported content part type: \"image_url\""}}"#,
            headers(&[]),
            ModelFailure::Permanent,
        ),
    ];
    assert_classified(cases);
}

#[test]
fn retry_delay_is_read_from_headers_and_text() {
    let delayed =
        json!({"error":{"code":"429","message":"Rate. Please retry after 7 seconds. Go on"}})
            .to_string();
    assert_classified(vec![
        (429, "{}", headers(&[("retry-after", "2")]), retry_after(2_000)),
        (
            429,
            "{}",
            headers(&[("retry-after", "2"), ("retry-after-ms", "2500")]),
            retry_after(2_500),
        ),
        (429, &delayed, headers(&[]), retry_after(7_000)),
        (
            429,
            "{}",
            headers(&[("retry-after", "Sat, 21 Nov 2026 20:19:19 GMT")]),
            retry_after(9_331),
        ),
        (429, "{}", headers(&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), retry_after(0)),
        (
            429,
            "{}",
            headers(&[
                ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
                ("retry-after", "Thu, 01 Jan 2026 00:00:30 GMT"),
            ]),
            retry_after(30_000),
        ),
        (429, "{}", headers(&[("retry-after", "tomorrow")]), RETRY),
        (429, "{}", headers(&[("x-ratelimit-reset", "1795292354")]), retry_after(4_331)),
        (429, "{}", headers(&[("x-ratelimit-reset", "1")]), retry_after(1_000)),
        (
            429,
            "{}",
            headers(&[("x-ratelimit-reset", "1795292354"), ("retry-after", "2")]),
            retry_after(2_000),
        ),
        (429, "{}", headers(&[("retry-after", "-1")]), RETRY),
    ]);
}

fn assert_classified(cases: Vec<(u16, &str, HeaderMap, ModelFailure)>) {
    for (status, body, headers, expected) in cases {
        assert_eq!(
            classify(&ProviderError::from_http(status, body), &headers, NOW),
            expected,
            "{status} {body}"
        );
    }
}

#[test]
fn stream_error_is_classified_by_code_or_text() {
    let cases = [
        (json!({"error":{"type":"too_many_requests","code":"x"}}), RETRY),
        (
            json!({"error":{"type":"tokens","code":"rate_limit_exceeded","message":"Please try again in 44ms."}}),
            retry_after(44),
        ),
        (
            json!({"error":{"code":"rate_limit_exceeded","message":"Please try again in 1.2s."}}),
            retry_after(1_200),
        ),
        (
            json!({"error":{"code":"rate_limit_exceeded","message":"Please try again in 6m0s"}}),
            retry_after(360_000),
        ),
        (json!({"error_type":"RateLimitError","error_message":"too many tokens"}), RETRY),
        (json!({"code":"503","message":"busy"}), RETRY),
        (json!({"code":"server_error","message":"x"}), RETRY),
        (json!({"error":{"type":"ServiceUnavailableError","message":"x"}}), RETRY),
        (json!({"message":"503 service unavailable"}), RETRY),
        (
            json!({"error":{"type":"invalid_request_error","code":"content_policy_violation"}}),
            ModelFailure::Permanent,
        ),
        (json!({"error":{"code":"context_length_exceeded"}}), ModelFailure::ContextOverflow),
        (
            json!({"message":"Your input exceeds the context window of this model."}),
            ModelFailure::ContextOverflow,
        ),
        (
            json!({"error":{"type":"invalid_request_error","message":"no such parameter"}}),
            ModelFailure::Permanent,
        ),
        (
            json!({"error":{"code":"insufficient_quota","message":"rate limit"}}),
            ModelFailure::Permanent,
        ),
    ];
    for (body, expected) in cases {
        let fault = ProviderError::from_error_event(&body).unwrap();
        assert_eq!(classify(&fault, &HeaderMap::new(), NOW), expected, "{body}");
    }
}

#[test]
fn refused_member_is_read_in_each_form() {
    for (body, param) in [
        (json!({"error": {"param": "input[2].output", "message": "x"}}), "input[2].output"),
        (
            json!({"detail": [{"loc": ["body", "input", 2, "output"], "msg": "x"}]}),
            "input[2].output",
        ),
        (
            json!({"detail": [
                {"loc": ["body", "input", "str"], "msg": "x"},
                {"loc": ["body", "input", "list[union[A,B]]", 2, "output"], "msg": "y"}
            ]}),
            "input[2].output",
        ),
        (
            json!({"error": {"message": "x", "path": ["messages", 2, "content"]}}),
            "messages[2].content",
        ),
        (json!([{"instancePath": "/input/2/output", "message": "x"}]), "/input/2/output"),
        (json!({"errors": [{"detail": "x", "source": {"pointer": "/input/2"}}]}), "/input/2"),
        (
            json!({"error": {"code": 400, "message": "x", "details": [{"fieldViolations": [{"field": "contents[2].parts"}]}]}}),
            "contents[2].parts",
        ),
        (
            json!({"error": {"message": "Provider returned error", "metadata": {"raw": r#"{"error":{"message":"y","param":"input[1]"}}"#}}}),
            "input[1]",
        ),
    ] {
        let fault = ProviderError::from_http(400, &body.to_string());
        assert_eq!(fault.param.as_deref(), Some(param), "{body}");
        assert!(fault.text.contains('x') || fault.text.contains('y'), "{}", fault.text);
    }
    let spring = json!({"status": 400, "error": "Bad Request", "path": "/v1/responses"});
    assert_eq!(ProviderError::from_http(400, &spring.to_string()).param, None);
}

/// The sources' pattern with the additions of later releases. The text decides if no status or code
/// does.
#[test]
fn error_text_is_classified_by_source_pattern() {
    let passing = [
        "Overloaded",
        "rate limit reached",
        "Rate-limited: rate_limit",
        "Too Many Requests",
        "429 status code (no body)",
        "HTTP 500",
        "502 Bad Gateway",
        "error 503.",
        "504",
        "Service Unavailable",
        "service-unavailable",
        "server error",
        "Internal error occurred",
        "Connection error.",
        "connection refused",
        "other side closed",
        "fetch failed",
        "upstream connect error",
        "reset before headers",
        "terminated",
        "retry delay exceeded",
        "read ECONNRESET",
        "socket hang up",
        "network error",
        "The request timed out",
    ];
    for text in passing {
        let fault = ProviderError::from_error_event(&json!({ "message": text })).unwrap();
        assert_eq!(classify(&fault, &HeaderMap::new(), NOW), RETRY, "{text}");
    }
    let lasting = [
        "no such parameter",
        "at most 5000 tokens",
        "id 14290",
        "You exceeded your current quota, rate limit 429",
        "429 Quota exceeded for this deployment",
        "503 billing hard limit has been reached",
        "Your credit balance is too low (429)",
        "The response was filtered due to our content management policy, error 500",
    ];
    for text in lasting {
        let fault = ProviderError::from_error_event(&json!({ "message": text })).unwrap();
        assert_eq!(classify(&fault, &HeaderMap::new(), NOW), ModelFailure::Permanent, "{text}");
    }
    // Azure's texts mention quotas for transient limits too.
    let limited = "Requests have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds. \
         To request a quota increase, see https://aka.ms/oai/quotaincrease.";
    let fault =
        ProviderError::from_error_event(&json!({ "code": "429", "message": limited })).unwrap();
    assert_eq!(classify(&fault, &HeaderMap::new(), NOW), retry_after(6_000));
    assert!(!fault.text.contains("unpaid"), "{}", fault.text);
}

#[test]
fn exhausted_quota_is_permanent_and_gives_advice() {
    let advice = "raise the quota of the deployment or settle the billing of its subscription.";
    let error = json!({"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}});
    for fault in [
        ProviderError::from_http(429, &error.to_string()),
        ProviderError::from_error_event(&error).unwrap(),
        ProviderError::from_failed_response(&error).unwrap(),
    ] {
        assert_eq!(
            classify(&fault, &headers(&[("retry-after", "2")]), NOW),
            ModelFailure::Permanent
        );
        assert!(fault.text.contains("You exceeded your current quota. "), "{}", fault.text);
        assert!(fault.text.ends_with(advice), "{}", fault.text);
    }
}

#[test]
fn lost_connection_is_retried() {
    assert_eq!(
        classify(
            &ProviderError::connection_lost("stream closed before response.completed"),
            &HeaderMap::new(),
            NOW
        ),
        RETRY
    );
}

#[test]
fn error_without_details_is_not_retried() {
    let failed = ProviderError::without_details("failed");
    assert_eq!(classify(&failed, &headers(&[("retry-after", "4")]), NOW), ModelFailure::Permanent);
    assert_eq!(failed.name().as_deref(), Some("failed"));
    // An HTTP status counts as a text.
    assert_eq!(classify(&ProviderError::from_http(503, ""), &HeaderMap::new(), NOW), RETRY);
}

#[test]
fn error_text_states_cause_and_remedy() {
    let text = |status, body: &str| ProviderError::from_http(status, body).text;
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
fn error_events_have_source_texts() {
    let event = |body| ProviderError::from_error_event(&body).map(|fault| fault.text);
    let failed = |body| ProviderError::from_failed_response(&body).map(|fault| fault.text);
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
}

#[test]
fn final_quotas_are_permanent_and_named_waits_are_not() {
    let quota = "You exceeded your current quota, please check your plan and billing details.";
    for code in [
        "insufficient_quota",
        "usage_limit_reached",
        "usage_not_included",
        "budget_exceeded",
        "billing_error",
        "insufficient_user_quota",
        "Arrearage",
        "InsufficientBalance",
    ] {
        for member in ["code", "type"] {
            let body = json!({ "error": { member: code, "message": "Retry in 5 seconds" } });
            let fault = ProviderError::from_http(429, &body.to_string());
            let class = classify(&fault, &headers(&[("retry-after", "2")]), NOW);
            assert_eq!(class, ModelFailure::Permanent, "{body}");
        }
    }
    let class = |message: &str, pairs: &[(&'static str, &'static str)]| {
        let body = json!({ "message": message }).to_string();
        let fault = ProviderError::from_http_response(429, &headers(pairs), &body);
        let class = classify(&fault, &headers(pairs), NOW);
        assert_eq!(fault.text.contains("unpaid"), class == ModelFailure::Permanent, "{fault:?}");
        class
    };
    assert_eq!(class(quota, &[]), ModelFailure::Permanent);
    assert_eq!(class(quota, &[("retry-after", "2")]), retry_after(2_000));
    assert_eq!(class(&format!("{quota} Please retry in 33.5s."), &[]), retry_after(33_500));
    assert_eq!(class("Quota exceeded. Try again in 1 second.", &[]), retry_after(1_000));
    assert_eq!(class("Quota exceeded for tokens per minute.", &[]), RETRY);
    assert_eq!(class("The usage limit has been reached", &[]), ModelFailure::Permanent);
    assert_eq!(class("Insufficient credits", &[("retry-after", "2")]), ModelFailure::Permanent);
}

#[test]
fn errors_of_any_shape_keep_code_and_message() {
    let cases = [
        (json!({ "error": { "message": "m", "code": "c" }, "message": "outer" }), Some("c"), "m"),
        (json!({ "error": "c", "error_description": "m" }), Some("c"), "m"),
        (
            json!({ "status": 429, "error": "Too Many Requests", "message": "m" }),
            Some("429"),
            "Too Many Requests: m",
        ),
        (json!({ "detail": "m" }), None, "m"),
        (json!({ "detail": [{ "loc": ["body"], "msg": "m" }] }), None, "m"),
        (json!({ "detail": { "code": "c", "message": "m" } }), Some("c"), "m"),
        (json!({ "type": "about:blank", "title": "t", "detail": "m" }), None, "m"),
        (json!({ "title": "m" }), None, "m"),
        (json!({ "Message": "m" }), None, "m"),
        (json!({ "errors": [{ "code": 7, "message": "m" }] }), Some("7"), "m"),
        (json!({ "fault": { "faultstring": "m", "detail": { "code": "c" } } }), Some("c"), "m"),
        (json!([{ "error": { "code": 503, "message": "m" } }]), Some("503"), "m"),
        (json!({ "message": "{\"error\":{\"code\":\"c\",\"message\":\"m\"}}" }), Some("c"), "m"),
        (json!({ "error": { "message": "m", "innererror": { "code": "i" } } }), None, "m"),
    ];
    for (body, code, message) in cases {
        for fault in [
            ProviderError::from_http(400, &body.to_string()),
            ProviderError::from_error_event(&body).unwrap(),
        ] {
            assert_eq!((fault.code.as_deref(), fault.message.as_str()), (code, message), "{body}");
        }
    }
    let page = "<!DOCTYPE html><HTML><Title lang=en>Sign in\n to team-7</title>";
    assert_eq!(ProviderError::from_http(502, page).text, "HTTP 502: Sign in to team-7");
    let fault = ProviderError::from_page(page);
    assert!(fault.text.contains("HTML page with the title `Sign in to team-7`"), "{}", fault.text);
    assert_eq!(classify(&fault, &HeaderMap::new(), NOW), ModelFailure::Permanent);
    assert!(ProviderError::from_page("<html>").text.contains("an HTML page in place of"));
}

#[test]
fn throttled_calls_are_those_of_load_and_rate_limits() {
    let call = |status, error: Option<&str>| CallMetadata {
        status,
        error: error.map(ToOwned::to_owned),
        ..CallMetadata::default()
    };
    for throttled in [
        call(Some(429), None),
        call(Some(503), Some("x")),
        call(None, Some("rate_limit_exceeded")),
        call(None, Some("503")),
        call(None, Some("overloaded_error")),
        call(None, Some("ServiceUnavailableError")),
    ] {
        assert!(is_throttled(&throttled), "{throttled:?}");
    }
    for other in [call(Some(500), None), call(None, Some("connection")), call(None, None)] {
        assert!(!is_throttled(&other), "{other:?}");
    }
}
