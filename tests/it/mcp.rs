//! MCP servers that were written elsewhere: the reference servers and a server of the official SDK,
//! through the built binary with the fake model.

use std::path::Path;

use serde_json::{Value, json};

use self::node_server::{NodeServer, install_servers};
use crate::support::dev_client::DevClient;
use crate::support::openapi_check::SendValidated as _;

mod kills;
mod node_server;

const EVERYTHING: &str = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const FILES: &str = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
const MEMORY: &str = "node_modules/@modelcontextprotocol/server-memory/dist/index.js";

/// Writes the files of one agent with these servers, and starts `turnwheel dev`.
fn start(folder: &Path, agent: &str, servers: &Value) -> DevClient {
    std::fs::create_dir_all(folder.join("agents")).unwrap();
    std::fs::write(folder.join("agents/desk.agent.md"), agent).unwrap();
    let file = json!({ "servers": servers }).to_string();
    std::fs::write(folder.join("mcp.json"), file).unwrap();
    start_in(folder)
}

fn start_in(folder: &Path) -> DevClient {
    DevClient::start(folder, &[("TURNWHEEL_MCP_STDIO", "files,memory".to_owned())])
}

/// Content of the results of a conversation's calls.
async fn tool_results(app: &DevClient, conversation: &str) -> Vec<Value> {
    let messages = app.get(&format!("/api/conversations/{conversation}/messages?limit=100")).await;
    let messages = messages["items"].as_array().unwrap().iter();
    let results = messages.filter(|message| message["role"] == "toolResult");
    results.map(|message| message["content"].clone()).collect()
}

#[tokio::test]
async fn reference_server_over_http_runs_its_tools() {
    let servers = install_servers();
    let mut everything = NodeServer::start(&servers.join(EVERYTHING), &["streamableHttp"]);
    let folder = tempfile::tempdir().unwrap();
    let agent = "---\ntools:\n  - mcp: everything\n---\nWork.";
    let entry = json!({ "everything": { "url": everything.url("/mcp") } });
    let app = start(folder.path(), agent, &entry);
    let listed = app.get("/api/agents").await["items"][0]["tools"].to_string();
    assert!(listed.contains("\"mcp__everything__echo\""), "{listed}");
    let echo = r#"use mcp__everything__echo with {"message": "hello"}"#;
    let input = format!(
        "{echo} then use mcp__everything__get-sum with {{\"a\": 2, \"b\": 3}} then use mcp__everything__get-tiny-image with {{}} then use mcp__everything__get-structured-content with {{\"location\": \"Chicago\"}} then use mcp__everything__trigger-long-running-operation with {{\"duration\": 0.2, \"steps\": 2}} then use mcp__everything__get-sum with {{\"a\": \"x\"}} then say done"
    );
    let prompt = app.prompt("c", &input).await;
    assert_eq!(prompt["state"], "completed", "{prompt}\n{}", app.dev.log());
    let results = tool_results(&app, "c").await;
    assert_eq!(results.len(), 6, "{results:#?}");
    assert_eq!(results[0][0]["text"], "Echo: hello");
    assert_eq!(results[1][0]["text"], "The sum of 2 and 3 is 5.");
    assert!(results[2].to_string().contains("\"image/png\""), "{}", results[2]);
    assert!(results[3].to_string().contains("temperature"), "{}", results[3]);
    assert!(results[4].to_string().contains("Long running operation completed"), "{}", results[4]);
    assert!(results[5].to_string().contains("Validation failed"), "{}", results[5]);
    // Another process of the server does not know the session.
    everything.restart();
    app.prompt("d", &format!("{echo} then say done")).await;
    assert_eq!(tool_results(&app, "d").await[0][0]["text"], "Echo: hello");
    everything.stop();
    let prompt = app.prompt("e", &format!("{echo} then say done")).await;
    assert_eq!(prompt["state"], "completed", "the agent stays usable: {prompt}");
    let failure = tool_results(&app, "e").await[0].to_string();
    let expected = "The MCP server `everything` could not run the tool: it could not be reached";
    assert!(failure.contains(expected), "{failure}");
}

#[tokio::test]
async fn reference_servers_run_as_programs_of_dev() {
    let servers = install_servers();
    let folder = tempfile::tempdir().unwrap();
    let path = |path: &str| servers.join(path).display().to_string();
    let graph = folder.path().join("graph.jsonl").display().to_string();
    let entries = json!({
        "files": { "command": "node", "args": [path(FILES), "."] },
        "memory": { "type": "stdio", "command": "node", "args": [path(MEMORY)],
            "env": { "MEMORY_FILE_PATH": graph } },
    });
    let agent =
        "---\ntools:\n  - mcp: { server: files, tools: ['*_file'] }\n  - mcp: memory\n---\nWork.";
    let app = start(folder.path(), agent, &entries);
    let input = r#"use mcp__files__write_file with {"path": "a.txt", "content": "hello"} then use mcp__files__list_directory with {"path": "."} then use mcp__memory__create_entities with {"entities": [{"name": "Ada", "entityType": "person", "observations": ["sells boats"]}]} then use mcp__memory__search_nodes with {"query": "Ada"} then say done"#;
    let prompt = app.prompt("c", input).await;
    assert_eq!(prompt["state"], "completed", "{prompt}\n{}", app.dev.log());
    let results = tool_results(&app, "c").await;
    assert_eq!(std::fs::read_to_string(folder.path().join("a.txt")).unwrap(), "hello");
    assert!(results[1].to_string().contains("not found"), "not selected: {}", results[1]);
    assert!(results[3].to_string().contains("sells boats"), "{}", results[3]);
}

#[tokio::test]
async fn changed_definition_of_a_server_needs_another_approval() {
    let servers = install_servers();
    let changing = NodeServer::start(&servers.join("changing.mjs"), &[]);
    let folder = tempfile::tempdir().unwrap();
    let agent = "---\ntools:\n  - mcp: { server: desk, approval: always }\n---\nWork.";
    let entry = json!({ "desk": { "url": changing.url("/mcp") } });
    let app = start(folder.path(), agent, &entry);
    let sent = async || {
        let response = app.http.get(changing.url("/sent")).send_validated().await.unwrap();
        response.text().await.unwrap()
    };
    app.prompt("c", r#"use mcp__desk__send with {"text": "hello"} then say done"#).await;
    app.http.get(changing.url("/change")).send_validated().await.unwrap();
    let first = app.decide("c", "approve").await;
    let is_other = |seen: &Value| {
        let approvals = seen["pendingApprovals"].as_array().unwrap();
        approvals.first().is_some_and(|approval| approval["id"] != first["id"])
    };
    app.wait_for("c", is_other).await;
    assert_eq!(sent().await, "0", "the changed tool was not approved");
    app.decide("c", "approve").await;
    app.wait_until_idle("c").await;
    assert_eq!(sent().await, "1");
    assert_eq!(tool_results(&app, "c").await[0][0]["text"], "sent hello");
}

/// Copies the example, with the pinned installation instead of npx, which would load the package.
fn copy_example(folder: &Path) {
    let servers = install_servers();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/mcp-servers");
    for path in [
        "mcp.json",
        "agents/librarian.agent.md",
        "documents/turnwheel.txt",
        "prompts/find.md",
        "skills/citing/SKILL.md",
        "skills/citing/forms.md",
        "skills/summaries.skill.md",
    ] {
        let target = folder.join(path);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        let text = std::fs::read_to_string(example.join(path)).unwrap();
        let package = "\"-y\", \"@modelcontextprotocol/server-filesystem@2026.8.31\"";
        let installed = json!(servers.join(FILES)).to_string();
        let text = text.replace("\"npx\"", "\"node\"").replace(package, &installed);
        std::fs::write(target, text).unwrap();
    }
}

#[tokio::test]
async fn example_agent_reads_its_documents() {
    let folder = tempfile::tempdir().unwrap();
    copy_example(folder.path());
    let app = start_in(folder.path());
    let input = r#"use mcp__files__read_text_file with {"path": "turnwheel.txt"} then use mcp__files__write_file with {"path": "note.txt", "content": "seen"} then say done"#;
    let prompt = app.prompt("c", input).await;
    assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}\n{}", app.dev.log());
    let text = &tool_results(&app, "c").await[0][0]["text"];
    assert!(text.as_str().unwrap().starts_with("Turnwheel turns one"), "{text}");
    app.decide("c", "approve").await;
    app.wait_until_idle("c").await;
    assert_eq!(std::fs::read_to_string(folder.path().join("documents/note.txt")).unwrap(), "seen");
}

/// Output of `doctor` in the folder, with the fake model.
fn doctor(folder: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .arg("doctor")
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("TURNWHEEL_MODEL", "scripted")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn doctor_reports_a_changed_definition() {
    let servers = install_servers();
    let changing = NodeServer::start(&servers.join("changing.mjs"), &[]);
    let folder = tempfile::tempdir().unwrap();
    let entry = json!({ "desk": { "url": changing.url("/mcp") } });
    let app = start(folder.path(), "---\ntools:\n  - mcp: desk\n---\nWork.", &entry);
    app.prompt("c", "say hello").await;
    let data = app.stop();
    let arguments = ["--data", data.path().to_str().unwrap()];
    let text = doctor(folder.path(), &arguments);
    assert!(text.contains("lists 1 usable tools") && !text.contains("changed since"), "{text}");
    reqwest::Client::new().get(changing.url("/change")).send_validated().await.unwrap();
    let text = doctor(folder.path(), &arguments);
    assert!(text.contains("changed since") && text.contains(": send."), "{text}");
}

#[tokio::test]
async fn example_agent_has_skills_a_template_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    copy_example(folder.path());
    let app = start_in(folder.path());
    let prompt = app.prompt("c", "/find wheel").await;
    assert_eq!(prompt["state"], "completed", "{prompt}\n{}", app.dev.log());
    let found = tool_results(&app, "c").await[0].to_string();
    assert!(found.contains("turnwheel.txt"), "{found}");
    // A skill of each shape, and the file that the first one refers to.
    let read = |path: &str| format!("use read with {{\"path\": \"/.turnwheel/skills/{path}\"}}");
    let paths = ["citing/SKILL.md", "citing/forms.md", "summaries/SKILL.md"].map(read);
    app.prompt("d", &format!("{} then say done", paths.join(" then "))).await;
    let results = tool_results(&app, "d").await;
    for (result, expected) in results.iter().zip(["name: citing", "`turnwheel.txt:3`", "Write one"])
    {
        assert!(result.to_string().contains(expected), "{result}");
    }
    assert_eq!(results.len(), 3);
    let entries = app.get("/api/conversations/d/entries?limit=100").await.to_string();
    assert!(entries.contains("<location>/.turnwheel/skills/summaries/SKILL.md</location>"));
    app.prompt("e", "/skill:citing then say done").await;
    let messages = app.get("/api/conversations/e/messages").await.to_string();
    let expected = "References are relative to /.turnwheel/skills/citing.";
    assert!(messages.contains(expected), "{messages}");
    app.prompt("f", r#"use remember with {"text": "cites by line"} then say done"#).await;
    app.decide("f", "approve").await;
    app.wait_until_idle("f").await;
    let memory = app.get("/api/memory?project=library").await;
    assert_eq!(memory["items"][0]["text"], "cites by line");
}

#[test]
fn doctor_reads_each_server() {
    let servers = install_servers();
    let mut changing = NodeServer::start(&servers.join("changing.mjs"), &[]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/a.agent.md"), "---\ntools:\n  - mcp: desk\n---\nx")
        .unwrap();
    let file = json!({ "servers": { "desk": { "url": changing.url("/mcp") } } }).to_string();
    std::fs::write(folder.path().join("mcp.json"), file).unwrap();
    let doctor = |arguments: &[&str]| doctor(folder.path(), arguments);
    let text = doctor(&[]);
    assert!(text.contains("MCP server desk") && text.contains("lists 1 usable tools"), "{text}");
    changing.stop();
    assert!(doctor(&[]).contains("it could not be reached"));
    assert!(doctor(&["--offline"]).contains("not checked (--offline)"));
    std::fs::write(folder.path().join("mcp.json"), "{\n  \"servers\": { \"desk\": {} } }").unwrap();
    let text = doctor(&["--offline"]);
    assert!(text.contains("mcp.json:2") && text.contains("a server needs `url`"), "{text}");
}
