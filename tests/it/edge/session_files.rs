//! Tests of session files: imports, exports, and hostile files.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use turnwheel::testing::fail_points::NoFailPoints;
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::MemoryStore;

use super::test_app::{TestApp, TestRequest};
use super::waiting_clients::RequestPause;
use crate::support::shared_data::find_shared_data;

const IMPORT: &str = "/api/conversations/import";

fn import<'a>(app: &'a TestApp, id: &str, file: impl Into<axum::body::Body>) -> TestRequest<'a> {
    app.request(Method::POST, &format!("{IMPORT}?conversationId={id}"))
        .header("content-type", "application/x-ndjson")
        .body(file)
}

async fn export(app: &TestApp, id: &str, format: &str) -> String {
    let path = format!("/api/conversations/{id}/export?format={format}");
    app.get(&path).send().await.expect_status(200).text
}

fn parse(file: &str) -> Vec<Value> {
    file.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A file of version 3 with these entries.
fn file(lines: &[Value]) -> String {
    let header = json!({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"});
    let lines: Vec<String> = [header].iter().chain(lines).map(ToString::to_string).collect();
    lines.join("\n") + "\n"
}

fn message(id: &str, parent: Option<&str>, text: &str) -> Value {
    json!({
        "type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z",
        "message": {"role": "user", "content": text, "timestamp": 1}
    })
}

fn lines_of(report: &Value) -> Vec<u64> {
    report.as_array().unwrap().iter().map(|it| it["line"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn file_of_windows_tools_is_read_and_utf16_is_named() {
    let app = TestApp::new();
    let plain = file(&[message("aaaaaaaa", None, "hello")]);
    for (id, text) in [
        ("mark", format!("\u{feff}{plain}")),
        ("line-ends", format!("\u{feff}{}", plain.replace('\n', "\r\n"))),
        ("blank", format!("\n{plain}")),
    ] {
        let report = import(&app, id, text).send().await.expect_status(201).json();
        assert_eq!(report["imported"], 1, "{id}: {report}");
    }
    let utf16: Vec<u8> = plain.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let marked: Vec<u8> = [&[0xff, 0xfe][..], &utf16].concat();
    for bytes in [utf16, marked] {
        let refused = import(&app, "utf16", bytes).send().await.expect_problem(400, "bad-request");
        assert!(refused["detail"].as_str().unwrap().contains("UTF-16"), "{refused}");
    }
    // A request's body, and a skill's.
    let body = format!("\u{feff}{}", json!({"agent": "clerk", "input": "say hello"}));
    let prompt =
        app.request(Method::POST, "/api/prompts").header("content-type", "application/json");
    prompt.body(body).send().await.expect_status(202);
    let latin1 = b"---\ndescription: caf\xe9\n---\nBrew.\n".to_vec();
    let skill =
        app.request(Method::PUT, "/api/skills/brew").header("content-type", "text/markdown");
    let refused = skill.body(latin1).send().await.expect_problem(400, "bad-request");
    assert!(refused["detail"].as_str().unwrap().contains("UTF-8"), "{refused}");
}

#[tokio::test]
async fn real_files_are_exported_as_they_were_imported() {
    let files = [
        ("v3-tree-written-by-origin.jsonl", vec![]),
        ("v3-torn-and-malformed.jsonl", vec![6, 8, 32]),
        ("v3-migrated-by-origin.jsonl", vec![]),
    ];
    for (name, skipped) in files {
        let Some(path) = find_shared_data(&format!("pi-sessions/{name}")) else { return };
        let content = std::fs::read_to_string(path).unwrap();
        let app = TestApp::new();
        let report = import(&app, "c", content.clone()).send().await.expect_status(201).json();
        assert_eq!(lines_of(&report["skipped"]), skipped, "{name}: {report}");
        assert!(report.get("warnings").is_none(), "{name}: {report}");
        let lines: Vec<Value> =
            content.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(report["imported"], lines.len() - 1, "{name}");
        let exported = export(&app, "c", "pi").await;
        assert_eq!(parse(&exported), lines, "{name}");
        let again = import(&app, "again", exported).send().await.expect_status(201).json();
        assert_eq!(again["skippedCount"], 0, "{name}");
        assert_eq!(parse(&export(&app, "again", "pi").await), lines, "{name}");
        let longer = continue_and_load_again(&app).await;
        assert_eq!(longer[..lines.len()], lines, "{name}");
        assert_eq!(longer[lines.len()]["customType"], "turnwheel/prompt");
        assert_eq!(longer[lines.len()]["parentId"], lines.last().unwrap()["id"]);
    }
}

/// Continues conversation `c`, and loads its exports in both formats: they are equal to those of `c`.
/// Returns the lines of the file of Pi.
async fn continue_and_load_again(app: &TestApp) -> Vec<Value> {
    app.run("say on").await;
    let pi = parse(&export(app, "c", "pi").await);
    for format in ["pi", "turnwheel"] {
        let id = format!("loaded-{format}");
        let exported = export(app, "c", format).await;
        let report = import(app, &id, exported).send().await.expect_status(201).json();
        assert_eq!(report["skippedCount"], 0, "{format}: {report}");
        assert_eq!(parse(&export(app, &id, "pi").await)[1..], pi[1..], "{format}");
    }
    pi
}

#[tokio::test]
async fn settings_and_name_come_from_the_path_of_the_file() {
    let Some(path) = find_shared_data("pi-sessions/v3-tree-written-by-origin.jsonl") else {
        return;
    };
    let app = TestApp::new();
    import(&app, "c", std::fs::read(path).unwrap()).send().await.expect_status(201);
    let conversation = app.get_json("/api/conversations/c").await;
    assert_eq!(conversation["name"], "Fix failing test");
    assert_eq!(conversation["settings"]["thinkingLevel"], "high");
    assert_eq!(conversation["usage"]["totalTokens"], 0, "imported usage costs nothing");
    let export = export(&app, "c", "html").await;
    assert!(
        export.contains("<h1>Fix failing test</h1>") && export.contains("ok go on"),
        "{export}"
    );
}

#[tokio::test]
async fn first_version_is_migrated_as_by_the_origin() {
    let read = |name: &str| {
        let path = find_shared_data(&format!("pi-sessions/{name}"))?;
        Some(std::fs::read_to_string(path).unwrap())
    };
    let (Some(first), Some(migrated)) =
        (read("v1-large-session-head.jsonl"), read("v3-migrated-by-origin.jsonl"))
    else {
        return;
    };
    let app = TestApp::new();
    import(&app, "c", first).send().await.expect_status(201);
    let rename = |lines: Vec<Value>| {
        let mut names = HashMap::from([(Value::Null, Value::Null)]);
        let mut lines = lines;
        for line in lines.iter_mut().skip(1) {
            names.insert(line["id"].clone(), json!(names.len()));
            (line["id"], line["parentId"]) =
                (names[&line["id"]].clone(), names[&line["parentId"]].clone());
        }
        lines
    };
    assert_eq!(rename(parse(&export(&app, "c", "pi").await)), rename(parse(&migrated)));
    let longer = continue_and_load_again(&app).await;
    let migrated = rename(parse(&migrated));
    assert_eq!(rename(longer)[..migrated.len()], migrated);
}

#[tokio::test]
async fn own_format_loses_nothing() {
    let app = TestApp::new();
    app.patch("/api/conversations/c", &json!({})).send().await;
    app.run("use pay with {\"amount\": 5} then say done").await;
    app.patch("/api/conversations/c", &json!({"name": "Pay", "metadata": {"cwd": "/x"}}))
        .send()
        .await;
    let first = export(&app, "c", "turnwheel").await;
    let report = import(&app, "d", first.clone()).send().await.expect_status(201).json();
    assert_eq!((&report["skippedCount"], &report["warnings"]), (&json!(0), &json!(null)));
    let second = export(&app, "d", "turnwheel").await;
    let without_identity = |file: &str| {
        let mut lines = parse(file);
        for member in ["id", "timestamp"] {
            lines[0].as_object_mut().unwrap().remove(member);
        }
        lines
    };
    assert_eq!(without_identity(&second), without_identity(&first));
    let (one, other) =
        (app.get_json("/api/conversations/c").await, app.get_json("/api/conversations/d").await);
    for member in ["name", "metadata", "leafId", "prompts", "agent", "settings"] {
        assert_eq!(one[member], other[member], "{member}");
    }
    let pi = parse(&export(&app, "c", "pi").await);
    assert_eq!((&pi[0]["version"], &pi[0]["cwd"]), (&json!(3), &json!("/x")));
    import(&app, "e", export(&app, "c", "pi").await).send().await.expect_status(201);
    assert_eq!(parse(&export(&app, "e", "pi").await), pi);
}

#[tokio::test]
async fn bad_lines_are_reported_by_number() {
    let app = TestApp::new();
    let unknown = json!({"type": "hologram", "id": "b", "parentId": "a", "timestamp": "2026-01-01T00:00:02.000Z", "seq": 9, "n": 1.5});
    let lines = file(&[
        message("a", None, "one"),
        message("a", None, "the same id"),
        unknown.clone(),
        message("c", Some("d"), "before its parent"),
        message("d", Some("c"), "in a loop"),
        message("e", Some("e"), "its own parent"),
        message("../x", Some("a"), "bad id"),
        json!({"type": "message", "id": "f", "parentId": "a", "message": {"role": "user"}}),
        json!({"id": "g"}),
        json!([1]),
        json!({"type": "session", "id": "s"}),
        json!({"type": "custom", "id": "h", "parentId": "d", "customType": "turnwheel/state", "data": {"plugin": "p", "state": {"schema": 1, "value": 1}}}),
    ]);
    let mut bytes = lines.into_bytes();
    bytes.extend(b"\n\xff\xfe\n{\"type\":\"custom\",\"id\":\"i\",\"data\":\"");
    bytes.extend(vec![b'x'; 1_500_000]);
    bytes.extend(b"\"}\n");
    bytes.extend(message("z", Some("d"), "last").to_string().into_bytes());
    let report = import(&app, "c", bytes).send().await.expect_status(201).json();
    assert_eq!(lines_of(&report["skipped"]), [3, 10, 11, 12, 14, 15, 16], "{report}");
    assert_eq!(lines_of(&report["warnings"]), [5, 7, 8, 9], "{report}");
    assert_eq!(report["skipped"][0]["reason"], "line 2 has the same `id`");
    assert_eq!(report["imported"], 9);
    let exported = parse(&export(&app, "c", "pi").await);
    assert_eq!(exported[2], unknown, "an unknown kind is kept whole");
    assert_eq!(exported[3]["parentId"], "d", "the export has the line as it was");
    assert_eq!(exported[8]["customType"], "turnwheel/state");
    app.run("say on").await;
    let page = app.get_json("/api/conversations/c/messages").await;
    let roots = page["items"].as_array().unwrap();
    assert_eq!(roots[0]["content"], "before its parent");
}

#[tokio::test]
async fn labels_beyond_the_bounds_are_reported_by_line() {
    let app = TestApp::new();
    let label = |number: usize, target: &str, label: &str| {
        let parent = if number == 0 { "m0".to_owned() } else { format!("l{}", number - 1) };
        json!({"type": "label", "id": format!("l{number}"), "parentId": parent, "targetId": target, "label": label, "timestamp": "2026-01-01T00:00:02.000Z"})
    };
    let mut lines: Vec<Value> = (0..104)
        .map(|number| {
            let parent = usize::checked_sub(number, 1).map(|before| format!("m{before}"));
            message(&format!("m{number}"), parent.as_deref(), "text")
        })
        .collect();
    // The header is line 1, and the messages are lines 2 to 105.
    lines.extend((0..102).map(|number| label(number, &format!("m{number}"), "here")));
    lines.push(label(102, "m0", "again"));
    lines.push(label(103, "m1", &"x".repeat(65)));
    lines.push(label(104, "m2", "two\nlines"));
    let report = import(&app, "c", file(&lines)).send().await.expect_status(201).json();
    assert_eq!(lines_of(&report["warnings"]), [206, 207, 209, 210], "{report}");
    let reason = report["warnings"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("100 labels"), "{reason}");
    assert_eq!(report["imported"], lines.len(), "each entry is kept");
    assert_eq!(parse(&export(&app, "c", "pi").await)[1..], lines);
    let tree = app.get_json("/api/conversations/c/tree?all=true&limit=2").await;
    assert_eq!(tree["items"][0]["label"], "again", "{tree}");
}

#[tokio::test]
async fn files_that_are_no_session_are_refused() {
    let app = TestApp::new();
    let newer = json!({"type": "session", "version": 9, "id": "s"}).to_string();
    for (name, content, reason) in [
        ("a", String::new(), "line 1: this is no session file"),
        ("b", message("a", None, "x").to_string(), "line 1: this is no session file"),
        ("c", "\n\nnot json\n".to_owned(), "line 3: this is no session file"),
        ("d", newer, "line 1: the `version` of the header must be 1 to 3"),
    ] {
        let problem = import(&app, name, content).send().await.expect_problem(400, "bad-request");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with(reason), "{detail}");
        app.get(&format!("/api/conversations/{name}"))
            .send()
            .await
            .expect_problem(404, "not-found");
    }
    let unusable = "{\"type\":\"session\",\"id\":\"s\"}\n{\"role\":\"user\",\"content\":\"x\"}\n";
    let problem = import(&app, "e", unusable).send().await.expect_problem(400, "bad-request");
    assert!(problem["detail"].as_str().unwrap().starts_with("line 2: "), "{problem}");
    app.get("/api/conversations/e").send().await.expect_problem(404, "not-found");
    let wrong = app.request(Method::POST, IMPORT).header("content-type", "text/html").body("x");
    wrong.send().await.expect_problem(415, "unsupported-media-type");
    let mut long = file(&[]).into_bytes();
    long.resize(65 * 1024 * 1024, b'x');
    import(&app, "long", long).send().await.expect_problem(413, "payload-too-large");
    import(&app, "a/b", "x").send().await.expect_problem(400, "bad-request");
    let operator = import(&app, "x", "x").user("ops", "Turnwheel.Operator");
    operator.send().await.expect_problem(403, "forbidden");
}

#[tokio::test]
async fn repeated_import_returns_same_response() {
    let app = TestApp::new();
    let one = file(&[message("a", None, "one")]);
    let first = import(&app, "c", one.clone()).key("k").send().await.expect_status(201);
    let again = import(&app, "c", one.clone()).key("k").send().await.expect_status(201);
    assert_eq!((again.header("idempotency-replayed"), again.json()), ("true", first.json()));
    let other = file(&[message("a", None, "two")]);
    import(&app, "c", other).key("k").send().await.expect_problem(422, "idempotency-key-reused");
    import(&app, "c", one).key("l").send().await.expect_problem(409, "conflict");
    let foreign = app.get("/api/conversations/c/export").user("eve", "").send().await;
    foreign.expect_problem(404, "not-found");
    let bad = app.get("/api/conversations/c/export?format=pdf").send().await;
    bad.expect_problem(400, "bad-request");
    let bad = app.get("/api/conversations/c/export?format=html&timeZone=Berlin").send().await;
    bad.expect_problem(400, "bad-request");
    let page = app.get("/api/conversations/c/export?format=html&timeZone=Asia/Tokyo").send().await;
    assert!(page.text.contains("<dd>Asia/Tokyo</dd>"), "{}", page.text);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    assert!(page.header("content-disposition").starts_with("attachment"));
}

#[tokio::test(start_paused = true)]
async fn killed_import_is_invisible_and_repeatable() {
    let store = Arc::new(MemoryStore::new());
    let app = TestApp::with(store, RequestPause::new("admission.import"), Auth::Header);
    let mut lines = vec![message("e0", None, "first")];
    lines.extend(
        (1..300).map(|number| {
            message(&format!("e{number}"), Some(&format!("e{}", number - 1)), "more")
        }),
    );
    let whole = file(&lines);
    let killed = import(&app, "c", whole.clone()).key("k").send();
    assert!(tokio::time::timeout(Duration::from_secs(2), killed).await.is_err());
    let app = app.with_services(|services| services.fail_points = Arc::new(NoFailPoints));
    app.get("/api/conversations/c").send().await.expect_problem(404, "not-found");
    import(&app, "c", whole.clone()).key("k").send().await.expect_status(201);
    assert_eq!(parse(&export(&app, "c", "pi").await), parse(&whole));
}
