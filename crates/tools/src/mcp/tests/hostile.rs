//! Tests of servers that try to exhaust this process.

use super::*;

/// Fast events exceed the bound of a response before the time-out.
#[tokio::test]
async fn endless_events_end_at_the_size_bound() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    server.reply(Reply::EndlessEvents);
    let result = returned(call(&source, &TestEnv::new()).await);
    let text = joined_text(&result.content);
    assert!(text.contains("larger than 5 MB") && text.contains("The server responded"), "{text}");
    assert_eq!(server.count("tools/call"), 1);
    // The session goes on.
    assert_eq!(
        joined_text(&returned(call(&source, &TestEnv::new()).await).content),
        "ran \"send\""
    );
}

#[tokio::test]
async fn deeply_nested_result_is_a_response() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    server.reply(Reply::Raw(
        200,
        "application/json",
        format!(r#"{{"jsonrpc":"2.0","id":"ID","result":{{"content":[{{"type":"text","text":"booked"}}],"structuredContent":{deep}}}}}"#).into_bytes(),
    ));
    let result = returned(call(&source, &TestEnv::new()).await);
    let text = joined_text(&result.content);
    assert!(text.starts_with("booked") && text.contains("nest too deeply"), "{text}");
    assert!(result.structured.unwrap().depth() <= 96);
}

/// Responses with the id of another request are no result of the call.
#[tokio::test]
async fn response_to_another_request_is_not_taken() {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    let other = json!({ "jsonrpc": "2.0", "id": 999, "result": { "content": [] } });
    server.reply(Reply::Stream(vec![other.clone()]));
    let reason = reason_of_unknown(call(&source, &TestEnv::new()).await);
    assert!(reason.contains("ended without a result"), "{reason}");
    server.reply(Reply::Text(other.to_string()));
    let reason = reason_of_unknown(call(&source, &TestEnv::new()).await);
    assert!(reason.contains("no JSON-RPC response to this request: {\"jsonrpc\""), "{reason}");
}

/// Characters that providers refuse are replaced in requests, so that names may become equal.
#[tokio::test]
async fn names_that_differ_in_one_character_stay_two_tools() {
    let (_server, source) =
        connected(json!([tool("a.b", "x"), tool("a/b", "x"), tool("a_b", "x")]), None, false).await;
    let names: Vec<String> = source.tools().iter().map(|it| it.definition().name.clone()).collect();
    assert_eq!(names, ["mcp__desk__a.b", "mcp__desk__a/b", "mcp__desk__a_b"]);
}
