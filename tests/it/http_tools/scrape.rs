//! The tool `scrape`: pages become text, redirects are followed, and no page leads to a private
//! address.

use std::sync::Arc;

use turnwheel::testing::tools::CallableTool;
use turnwheel::testing::tools::http::address_rules::AddressRules;
use turnwheel::testing::tools::http::client::HttpClient;
use turnwheel::testing::tools::http::scrape::scrape_tool;

use super::server::{Reply, Server};
use super::tool_caller::{ToolCaller, text};

fn scrape(rules: AddressRules) -> Arc<dyn CallableTool> {
    scrape_tool(HttpClient::new(rules).unwrap()).unwrap()
}

/// The text of a call to this path of a server with these replies, and whether it is an error.
async fn read_page(replies: &[Reply], path: &str) -> (String, bool) {
    let server = Server::start(replies);
    let tool = scrape(AddressRules::default().with_loopback());
    let arguments = format!(r#"{{"url": "{}{path}"}}"#, server.url);
    let result = ToolCaller::new().expect_result(&tool, &arguments).await;
    (text(&result), result.is_error)
}

fn page(html: &str) -> Reply {
    Reply::status(200).with_body("text/html; charset=utf-8", html)
}

#[tokio::test]
async fn page_becomes_text() {
    let html = "<html><head><title>T</title></head><body><h1>Shop</h1><script>evil()</script><p>caf\u{e9} &amp; more</p></body></html>";
    assert_eq!(read_page(&[page(html)], "/a").await, ("Shop caf\u{e9} & more".to_owned(), false));
    assert_eq!(read_page(&[page("<p></p>")], "/").await, ("(no text)".to_owned(), false));
    assert_eq!(read_page(&[Reply::json("{\"a\": 1}")], "/").await.0, "{\"a\": 1}");
    // Bytes that are not UTF-8.
    let broken = Reply::status(200).with_bytes("text/html", b"<p>a\xff\xfeb</p>");
    assert_eq!(read_page(&[broken], "/").await.0, "a\u{fffd}\u{fffd}b");
}

#[tokio::test]
async fn five_redirects_are_followed() {
    let to = |location: &str| Reply::status(302).with("location", location);
    let replies = [to("/b"), to("../c?x=1"), page("here")];
    let server = Server::start(&replies);
    let tool = scrape(AddressRules::default().with_loopback());
    let arguments = format!(r#"{{"url": "{}/a"}}"#, server.url);
    let result = ToolCaller::new().expect_result(&tool, &arguments).await;
    assert_eq!((text(&result).as_str(), result.is_error), ("here", false));
    let lines: Vec<String> = server.requests().into_iter().map(|request| request.line).collect();
    assert_eq!(lines, ["GET /a HTTP/1.1", "GET /b HTTP/1.1", "GET /c?x=1 HTTP/1.1"]);
    let (endless, is_error) = read_page(&[to("/again")], "/").await;
    assert!(is_error && endless.contains("more than 5 redirects"), "{endless}");
    for location in ["", "file:///etc/passwd", "http://user:pass@a.example"] {
        let (refused, is_error) = read_page(&[to(location)], "/").await;
        assert!(is_error && refused.contains("redirects to an invalid URL"), "{refused}");
    }
}

#[tokio::test]
async fn private_addresses_are_not_read() {
    let inside = Server::start(&[Reply::text("inside")]);
    let public_only = scrape(AddressRules::default());
    for url in [inside.url.as_str(), "http://169.254.169.254/latest", "http://[::1]/"] {
        let arguments = format!(r#"{{"url": "{url}"}}"#);
        let result = ToolCaller::new().expect_result(&public_only, &arguments).await;
        assert!(result.is_error, "{url}");
        assert!(text(&result).contains("Invalid input: the address is private or local."));
    }
    assert!(inside.requests().is_empty());
    // A page of the operator's own address redirects to another private one.
    let to_private = Reply::status(302).with("location", "http://169.254.169.254/latest");
    let (refused, is_error) = read_page(&[to_private], "/").await;
    assert!(is_error && refused.contains("Invalid input: the address is private"), "{refused}");
}

#[tokio::test]
async fn failures_say_what_the_server_did() {
    for (reply, expected) in [
        (
            Reply::status(404).with_body("text/plain", "no such page"),
            "404 Not Found:\nno such page",
        ),
        (
            Reply::status(200).with_body("application/pdf", "%PDF"),
            "not text: its content is application/pdf",
        ),
        (Reply::status(500), "The server responded 500 Internal Server Error."),
        (Reply::text("x").with("content-encoding", "br"), "compressed in an unsupported way"),
        (Reply::Cut, "could not be"),
        (Reply::text("half").truncated(), "was cut off"),
    ] {
        let (failure, is_error) = read_page(&[reply], "/").await;
        assert!(is_error && failure.contains(expected), "{failure}");
    }
    let tool = scrape(AddressRules::default().with_loopback());
    let server = Server::start(&[Reply::Hang]);
    let hasty = ToolCaller { time_limit: std::time::Duration::from_secs(3), ..ToolCaller::new() };
    let arguments = format!(r#"{{"url": "{}"}}"#, server.url);
    let result = hasty.expect_result(&tool, &arguments).await;
    assert!(text(&result).contains("there was no response within "), "{}", text(&result));
}
