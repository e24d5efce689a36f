//! Tests of lists of tools: an odd definition or page costs only itself.

use super::*;

fn names(source: &McpToolSource) -> Vec<String> {
    source.tools().iter().map(|it| it.definition().name.replace("mcp__desk__", "")).collect()
}

#[tokio::test]
async fn unusable_definition_costs_only_that_tool() {
    let bad = [
        json!({ "name": "bad" }),
        json!({ "name": "bad", "inputSchema": null }),
        json!({ "name": "bad", "inputSchema": [] }),
        json!({ "name": "bad", "inputSchema": "x" }),
        json!({ "name": "bad", "inputSchema": true }),
        json!({ "name": "bad", "inputSchema": { "type": "string" } }),
        json!({ "name": null, "inputSchema": {} }),
        json!({ "name": 5, "inputSchema": {} }),
        json!({ "inputSchema": {} }),
        json!("bad"),
        json!(null),
        json!([["name", "bad"]]),
    ];
    for definition in bad {
        let tools = json!([tool("good", "x"), definition, tool("other", "x")]);
        let (_server, source) = connected(tools, None, true).await;
        assert_eq!(names(&source), ["good", "other"], "{definition}");
        let rejected = source.server.definitions().unwrap().rejected.clone();
        assert!(rejected.len() == 1 && !rejected[0].reason.is_empty(), "{definition}");
    }
}

#[tokio::test]
async fn odd_member_of_definition_costs_only_itself() {
    for (member, value) in [
        ("annotations", json!([])),
        ("annotations", json!("x")),
        ("annotations", json!({ "readOnlyHint": "true", "idempotentHint": 1, "title": 5 })),
        ("outputSchema", json!(true)),
        ("outputSchema", json!([])),
        ("icons", json!([{ "url": "x" }])),
        ("execution", json!({ "taskSupport": "sometimes" })),
        ("title", json!(5)),
        ("title", json!({})),
        ("description", json!(5)),
        ("description", json!(null)),
        ("description", json!(["x"])),
        ("_meta", json!([1])),
        ("later", json!(1)),
    ] {
        let mut odd = tool("odd", "x");
        odd[member] = value.clone();
        let (_server, source) = connected(json!([odd, tool("good", "x")]), None, true).await;
        assert_eq!(names(&source), ["odd", "good"], "{member}: {value}");
        assert_eq!(source.tools()[0].definition().effect, Effect::Write, "{member}: {value}");
    }
    let mut numbered = tool("odd", "x");
    numbered["description"] = json!(4711);
    let (_server, source) = connected(json!([numbered]), None, false).await;
    assert_eq!(source.tools()[0].definition().description, "4711");
}

#[tokio::test]
async fn server_that_ignores_the_cursor_lists_each_tool_once() {
    let tools: Vec<Value> = (0..200).map(|number| tool(&format!("t{number}"), "x")).collect();
    let pages = |cursors: u32| (0..cursors).map(|at| json!({ "tools": tools, "nextCursor": at }));
    let more: Vec<Value> = (0..300).map(|number| tool(&format!("m{number}"), "x")).collect();
    let too_many = pages(1).chain([json!({ "tools": &more })]);
    let in_one_page = |count: usize| vec![json!({ "tools": more.get(..count).unwrap() })];
    for (pages, expected) in [
        (pages(1).collect::<Vec<_>>(), 200),
        (pages(3).collect(), 200),
        (too_many.collect(), 256),
        (in_one_page(256), 256),
        (in_one_page(257), 256),
    ] {
        let server = TestServer::start(json!([])).await;
        server.set_pages(pages);
        let source = McpToolSource::new(server.connect(false), rules(None));
        source.server.refresh(NOW).await.unwrap();
        assert_eq!(names(&source).len(), expected);
    }
}

#[tokio::test]
async fn odd_cursor_ends_pages_with_what_was_read() {
    let page = |tools: &[&str], cursor: Value| {
        let tools: Vec<Value> = tools.iter().map(|name| tool(name, "x")).collect();
        json!({ "tools": tools, "nextCursor": cursor })
    };
    for (pages, expected, requests) in [
        (vec![page(&["a", "b"], json!("8"))], vec!["a", "b"], 2),
        (vec![page(&["a", "b"], json!(""))], vec!["a", "b"], 2),
        (vec![page(&["a"], json!("")), page(&["b"], json!(null))], vec!["a", "b"], 2),
        (vec![page(&["a"], json!(1)), page(&["b"], json!(null))], vec!["a", "b"], 2),
        (vec![page(&["a"], json!({})), page(&["b"], json!(null))], vec!["a"], 1),
        (vec![page(&["a"], json!("x")), json!({ "tools": null })], vec!["a"], 2),
        (vec![json!({ "tools": null })], vec![], 1),
        (vec![page(&["a"], json!("x")), json!({ "tools": 5 })], vec!["a"], 2),
        (vec![page(&["a"], json!("x")), json!([])], vec!["a"], 2),
        (vec![page(&["a"], json!("x")), json!({ "tools": [], "nextCursor": "x" })], vec!["a"], 2),
    ] {
        let server = TestServer::start(json!([])).await;
        server.set_pages(pages.clone());
        let source = McpToolSource::new(server.connect(false), rules(None));
        source.server.refresh(NOW).await.unwrap();
        assert_eq!(names(&source), expected, "{pages:?}");
        assert_eq!(server.count("tools/list"), requests, "{pages:?}");
        assert!(source.server.definitions().unwrap().rejected.is_empty(), "{pages:?}");
    }
}

#[tokio::test]
async fn endless_pages_end_with_what_was_read() {
    let server = TestServer::start(json!([])).await;
    let page = |number: usize| json!({ "tools": [tool(&format!("t{number}"), "x")], "nextCursor": number.to_string() });
    server.set_pages((0..100).map(page));
    let source = McpToolSource::new(server.connect(false), rules(None));
    source.server.refresh(NOW).await.unwrap();
    assert_eq!((names(&source).len(), server.count("tools/list")), (20, 20));
}

#[tokio::test]
async fn response_without_a_list_is_a_failure() {
    for page in [json!([]), json!({}), json!({ "tools": {} }), json!(null), json!("x")] {
        let server = TestServer::start(json!([])).await;
        server.set_pages([page.clone()]);
        assert!(server.connect(false).refresh(NOW).await.is_err(), "{page}");
    }
}
