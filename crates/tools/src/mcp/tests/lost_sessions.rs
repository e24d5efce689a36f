//! Tests of sessions that a server does not know, and of its refusals.

use super::sessions::{LOST, call_in, new_process, send_in, start, texts};
use super::*;
use turnwheel_conversation::plugin_state::PluginStates;

#[tokio::test]
async fn errors_of_unknown_sessions_replace_them() {
    for (status, body) in [
        (404, r#"{"id":"ID","error":{"code":-32001,"message":"Session not found"}}"#),
        (400, r#"{"id":"ID","error":{"code":-32600,"message":"Invalid session ID"}}"#),
        (404, r#"{"id":"ID","error":{"code":-32000,"message":"Session not found"}}"#),
        (404, r#"{"id":"ID","error":{"code":-32603,"message":"session expired"}}"#),
        (404, r#"{"id":null,"error":{"code":-32600,"message":"expired"}}"#),
        (400, r#"{"id":"server-error","error":{"code":-32600,"message":"no valid session ID"}}"#),
        (404, "not found"),
        (404, r#"{"jsonrpc":"2.0","id":"ID"}"#),
        (404, r#"{"jsonrpc":"2.0","id":"ID","result":null}"#),
        (410, ""),
        (410, r#"{"jsonrpc":"2.0","id":"ID"}"#),
        (410, r#"{"id":"ID","error":{"code":-32001,"message":"Session not found"}}"#),
        (
            400,
            r#"{"id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#,
        ),
        (401, "Unauthorized: Session not found"),
        (200, r#"{"id":"ID","error":{"code":-32002,"message":"Server not initialized"}}"#),
        (
            200,
            r#"{"id":"ID","error":{"code":-32600,"message":"Invalid Request: Session not found"}}"#,
        ),
        (
            200,
            r#"{"id":"ID","error":{"code":-32005,"message":"Session 's2' not found or expired. Please re-initialize the connection."}}"#,
        ),
    ] {
        let (server, source) = start(None).await;
        server.reply(Reply::Raw(status, "application/json", body.as_bytes().to_vec()));
        let result = call_in(&source, &mut PluginStates::new(), "one").await;
        assert!(
            !result.is_error && texts(&result).starts_with("call 1 of s3"),
            "{body} {result:?}"
        );
        assert_eq!(server.count("tools/call"), 2, "{body}");
    }
}

/// The server may have read the call, so only the next one goes to another session.
#[tokio::test]
async fn possible_session_error_ends_session_without_resend() {
    let progress =
        r#"{"method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
    let begun = r#"{"id":"ID","error":{"code":-32000,"message":"Session not found"}}"#;
    for (status, body) in [
        (200, r#"{"id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#.to_owned()),
        (400, r#"{"id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#.to_owned()),
        (404, r#"{"id":"ID","error":{"code":-32600,"message":"Not Found"}}"#.to_owned()),
        (410, r#"{"id":"ID","error":{"code":-32600,"message":"Gone"}}"#.to_owned()),
        (200, r#"{"id":"ID","error":{"code":-32000,"message":"Session expired"}}"#.to_owned()),
        (200, r#"{"id":"ID","error":{"code":-32600,"message":"Invalid Request: session terminated"}}"#.to_owned()),
        (200, r#"{"id":null,"error":{"code":-32001,"message":"session of desk expired"}}"#.to_owned()),
        (200, r#"{"error":{"code":-32000,"message":"Payment sent, but the checkout session expired"}}"#.to_owned()),
        (200, r#"{"error":{"code":-32000,"message":"Paid, but the checkout session was not found"}}"#.to_owned()),
        (200, format!("data: {progress}\n\ndata: {begun}\n\n")),
        (200, format!("{progress}\n{begun}\n")),
    ] {
        let (server, source) = start(None).await;
        let mut states = PluginStates::new();
        server.reply(Reply::Raw(status, "application/json", body.as_bytes().to_vec()));
        let refused = call_in(&source, &mut states, "one").await;
        assert!(refused.is_error && texts(&refused).contains("error -32"), "{body} {refused:?}");
        assert_eq!(server.count("tools/call"), 1, "{body}");
        let replaced = texts(&call_in(&source, &mut states, "one").await);
        assert!(replaced.starts_with("call 1 of s3") && replaced.contains(LOST), "{replaced}");
        assert_eq!(texts(&call_in(&source, &mut states, "one").await), "call 2 of s3");
    }
}

/// A notification that is missing, or is no strict JSON, may be about work.
#[tokio::test]
async fn session_error_in_cut_response_is_not_resent() {
    let error = r#"{"id":"ID","error":{"code":-32001,"message":"Session not found"}}"#;
    let progress = r#"{"method":"notifications/progress","params":{"progress":NaN}}"#;
    for body in [format!("data: {error}"), format!("data: {progress}\n\ndata: {error}")] {
        let (server, source) = start(None).await;
        let mut states = PluginStates::new();
        server.reply(Reply::Cut("text/event-stream", body.clone()));
        let refused = call_in(&source, &mut states, "one").await;
        assert!(refused.is_error && texts(&refused).contains("-32001"), "{body} {refused:?}");
        assert_eq!(server.count("tools/call"), 1, "{body}");
        let replaced = texts(&call_in(&source, &mut states, "one").await);
        assert!(replaced.starts_with("call 1 of s3") && replaced.contains(LOST), "{replaced}");
    }
}

/// Tools such as browsers have sessions of their own.
#[tokio::test]
async fn error_about_session_argument_is_one_of_the_tool() {
    let body = r#"{"id":"ID","error":{"code":-32000,"message":"Session not found"}}"#;
    for arguments in [r#"{"session_id":"x"}"#, r#"{"browserSession":"x"}"#] {
        let (server, source) = start(None).await;
        let mut states = PluginStates::new();
        call_in(&source, &mut states, "one").await;
        server.reply(Reply::Raw(200, "application/json", body.as_bytes().to_vec()));
        let refused = send_in(&source, &mut states, "one", arguments).await;
        assert!(refused.is_error && texts(&refused).contains("Session not found"), "{refused:?}");
        assert_eq!(server.count("tools/call"), 2, "{arguments}");
        assert_eq!(texts(&call_in(&source, &mut states, "one").await), "call 3 of s2");
        assert_eq!(server.count("initialize"), 2, "{arguments}");
    }
}

/// A session of the process serves lists and calls of all conversations.
#[tokio::test]
async fn lost_session_of_process_is_replaced_after_any_status() {
    let uninitialized = r#"{"id":"ID","error":{"code":-32002,"message":"Server not initialized"}}"#;
    let invalid = r#"{"id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#;
    for (status, body, is_resent) in [
        (200, uninitialized, true),
        (404, r#"{"jsonrpc":"2.0","id":"ID"}"#, true),
        (410, "", true),
        (200, invalid, false),
        (400, invalid, false),
    ] {
        let (server, _) = start(None).await;
        let source = McpToolSource::new(server.connect(false), rules(None));
        source.server.refresh(NOW).await.unwrap();
        server.set_unknown_session(Reply::Raw(
            status,
            "application/json",
            body.as_bytes().to_vec(),
        ));
        server.forget_sessions();
        assert_eq!(source.server.refresh(NOW).await.is_ok(), is_resent, "{status} {body}");
        source.server.refresh(NOW).await.unwrap();
        server.forget_sessions();
        let result = returned(call(&source, &TestEnv::new()).await);
        assert_eq!(result.is_error, !is_resent, "{status} {body} {result:?}");
        assert!(!returned(call(&source, &TestEnv::new()).await).is_error, "{status} {body}");
    }
}

#[tokio::test]
async fn session_works_when_initialized_notification_is_refused() {
    for status in [302, 400, 404, 405, 410, 422, 500, 501, 502] {
        let server = TestServer::start(json!([tool("send", "x")])).await;
        server.refuse_notifications(status);
        let source = McpToolSource::new(server.connect(false), rules(None));
        source.server.refresh(NOW).await.unwrap();
        assert!(!returned(call(&source, &TestEnv::new()).await).is_error, "{status}");
        let source = new_process(&server, None);
        source.server.refresh(NOW).await.unwrap();
        let mut states = PluginStates::new();
        call_in(&source, &mut states, "one").await;
        server.forget_sessions();
        let replaced = texts(&call_in(&source, &mut states, "one").await);
        assert!(replaced.contains(LOST), "{status} {replaced}");
    }
    // The server has a reason that another request may not have.
    for status in [401, 403, 408, 429, 503, 504] {
        let server = TestServer::start(json!([tool("send", "x")])).await;
        server.refuse_notifications(status);
        assert!(server.connect(false).refresh(NOW).await.is_err(), "{status}");
    }
}
