//! Sessions of conversations with MCP servers in turns.

use super::*;
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::message::Message;
use turnwheel_queries::plugins::list_plugins;

/// Texts of the results of all calls.
async fn results(env: &TestEnv) -> Vec<String> {
    let entries = env.entries().await;
    let messages = entries.iter().filter_map(|entry| entry.body.message());
    let texts = messages.filter_map(|message| {
        let Message::ToolResult(result) = message else { return None };
        Some(joined_text(&result.content))
    });
    texts.collect()
}

fn env_with_sessions(
    script: Script,
    server: &TestServer,
) -> (TestEnv, Services, Arc<RequestLogStore>) {
    let (mut env, _, counting) = env_with(script, server, false);
    let worker = new_process(&mut env, server.connect_conversations(), false);
    (env, worker, counting)
}

#[tokio::test]
async fn other_worker_continues_the_session() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (mut env, worker, _) = env_with_sessions(calls_send, &server);
    env.send_prompt(&worker).await;
    run(&env, &worker).await;
    let other = new_process(&mut env, server.connect_conversations(), false);
    env.queue_prompt(&other, &TestEnv::key(), "again").await.unwrap();
    run(&env, &other).await;
    assert_eq!(results(&env).await, ["call 1 of s2", "call 2 of s2"]);
    assert_eq!(server.count("initialize"), 2, "that of the list, and that of the conversation");
    server.forget_sessions();
    env.queue_prompt(&worker, &TestEnv::key(), "once more").await.unwrap();
    run(&env, &worker).await;
    let last = results(&env).await.pop().unwrap();
    assert!(last.starts_with("call 1 of s3") && last.contains("has ended"), "{last}");
    let head = env.head().await.unwrap();
    assert!(head.plugin_state.contains_key("mcp:desk"));
    assert!(list_plugins(&head).is_empty(), "a session is no plugin");
}

/// Otherwise each would open a session, and one would be lost.
#[tokio::test]
async fn parallel_calls_of_a_session_run_one_after_the_other() {
    let script: Script = |results, _| match results {
        0 => (0..3).map(|n| call(&format!("c{n}"), "mcp__desk__send", n)).collect(),
        _ => vec![text("done")],
    };
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (mut env, worker, _) = env_with_sessions(script, &server);
    env.enable_parallel_calls(3);
    env.send_prompt(&worker).await;
    run(&env, &worker).await;
    assert_eq!(results(&env).await, ["call 1 of s2", "call 2 of s2", "call 3 of s2"]);
}

#[tokio::test]
async fn session_adds_no_store_request() {
    let script: Script = |results, _| {
        if results < 2 { vec![call("c1", "mcp__desk__send", results)] } else { vec![text("done")] }
    };
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let (mut env, worker, counting) = env_with_sessions(script, &server);
    env.send_prompt(&worker).await;
    handle_next_nudge(&env, &worker, &counting).await;
    insta::assert_snapshot!(handle_next_nudge(&env, &worker, &counting).await, @r"
    write head
    write head, commit
    write head, commit
    ");
    assert_eq!(results(&env).await, ["call 1 of s2", "call 2 of s2"]);
}
