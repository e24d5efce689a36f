//! Certification of real tools of an MCP server.

use serde_json::json;

use super::*;
use turnwheel_platform::clock::{Clock as _, SystemClock};
use turnwheel_tools::http::ApprovalRule;
use turnwheel_tools::http::template::{Piece, Template};
use turnwheel_tools::mcp::McpServer;
use turnwheel_tools::mcp::test_server::{TestServer, tool};
use turnwheel_tools::mcp::tool::{McpContent, McpRules, McpToolSource};

/// An agent with the tool of the server. Its calls need an approval, and read the definition again.
async fn options_of(server: Arc<McpServer>) -> CertifyOptions {
    let approval = ApprovalRule {
        condition: None,
        reason: Template(vec![Piece::Text("x".to_owned())]),
        approvers: vec!["owner".to_owned()],
        is_requester_excluded: false,
        expires_after: Duration::from_hours(1),
    };
    let rules = McpRules {
        selection: None,
        effect: None,
        on_unknown: OnUnknown::Ask,
        approval: Some(approval),
        has_reason: false,
        timeout: Duration::from_secs(30),
        content: McpContent::Native,
        revision: String::new(),
    };
    server.refresh(SystemClock::default().now()).await.unwrap();
    let agent = AgentDefinition {
        name: "clerk".to_owned(),
        instructions: "Be good.".into(),
        mcp: vec![McpToolSource::new(server, rules)],
        revision: "r".to_owned(),
        ..AgentDefinition::default()
    };
    let conversation = Conversation::for_agent(&agent, std::path::Path::new("nowhere")).unwrap();
    CertifyOptions {
        agents: vec![(Arc::new(agent), conversation)],
        extensions: Vec::new(),
        tools: ToolMode::Real,
        harmless: BTreeSet::new(),
        filter: None,
        run_interval: run_interval(),
        command: "turnwheel certify --tools real".to_owned(),
        progress: |_| {},
    }
}

#[tokio::test]
async fn write_of_a_real_mcp_server_survives_every_fault() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let all = options_of(server.connect(false)).await;
    let around_result = CertifyOptions {
        filter: Some("tool.after".parse().unwrap()),
        ..options_of(server.connect_conversations()).await
    };
    for (options, sent_min) in [(all, 100 / run_interval()), (around_result, 3)] {
        let sent_before = server.count("tools/call");
        let report = run_certify(&options).await.unwrap();
        assert!(report.is_ok(), "{report}");
        let [agent] = report.agents.as_slice() else { panic!("{report}") };
        assert_eq!(agent.calls.get("mcp__desk__send"), Some(&1), "{report}");
        assert!(agent.uncalled_tools.is_empty() && agent.notes.is_empty(), "{report}");
        for needed in
            ["tool-definitions.before", "tool-definitions.after", "tool.before", "tool.after"]
        {
            let has_hit = agent.fail_points.iter().any(|(fail_point, _)| *fail_point == needed);
            assert!(has_hit, "{needed}: {report}");
        }
        assert!(server.count("tools/call") - sent_before > sent_min, "the tool is real");
    }
}

/// The oracle sees writes of MCP servers.
#[tokio::test]
async fn repeated_write_of_an_mcp_server_is_reported() {
    let server = TestServer::start(json!([tool("send", "x")])).await;
    let options = options_of(server.connect(false)).await;
    let run = fault_run::run_conversation(
        &options,
        &options.agents[0].0,
        &options.agents[0].1,
        StoreKind::Embedded,
        None,
    );
    let mut outcome = Box::pin(run).await.unwrap();
    assert_eq!(oracle::check_invariants(&outcome), Vec::<String>::new());
    assert_eq!(outcome.write_tools.iter().collect::<Vec<_>>(), ["mcp__desk__send"]);
    *outcome.calls_by_effect.values_mut().next().unwrap() += 1;
    let violations = oracle::check_invariants(&outcome);
    assert!(!violations.is_empty());
}
