//! Address rules: no literal, name, changing name or redirect leads a tool to a private address.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use turnwheel::testing::tools::http::address_rules::AddressRules;
use turnwheel::testing::tools::http::client::{HostResolver, HttpClient};

use super::server::{Reply, Server};
use super::tool_caller::{ToolCaller, text, tool, tool_with_client};
use super::{payment_arguments, read_spec, write_spec};

/// Each look-up returns the next list of addresses, and repeats the last one.
#[derive(Debug)]
struct FakeResolver {
    address_lists: Vec<Vec<IpAddr>>,
    lookup_count: AtomicUsize,
}

impl FakeResolver {
    fn with_addresses(address_lists: &[&[&str]]) -> Arc<dyn HostResolver> {
        let address_lists = address_lists
            .iter()
            .map(|ips| ips.iter().map(|ip| ip.parse().unwrap()).collect())
            .collect();
        Arc::new(Self { address_lists, lookup_count: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl HostResolver for FakeResolver {
    async fn resolve_host(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        let number =
            self.lookup_count.fetch_add(1, Ordering::SeqCst).min(self.address_lists.len() - 1);
        Ok(self.address_lists[number].clone())
    }
}

/// The server's URL with a public host name.
fn url_with_public_name(server: &Server) -> String {
    server.url.replace("127.0.0.1", "api.example")
}

fn parse_rules(list: &str) -> AddressRules {
    AddressRules::parse(list).unwrap()
}

#[tokio::test]
async fn name_of_private_address_is_rejected_unsent() {
    for addresses in
        [&["127.0.0.1"][..], &["10.0.0.1", "169.254.169.254"], &["::ffff:127.0.0.1"], &["::1"]]
    {
        let server = Server::start(&[Reply::text("inside")]);
        let client =
            HttpClient::with_resolver(parse_rules(""), &FakeResolver::with_addresses(&[addresses]))
                .unwrap();
        for spec in [read_spec(""), write_spec("")] {
            let tool = tool_with_client(&spec, &url_with_public_name(&server), &client);
            let result =
                ToolCaller::new().expect_result(&tool, &payment_arguments().to_string()).await;
            assert!(
                result.is_error && text(&result).contains("may not be reached"),
                "{}",
                text(&result)
            );
        }
        assert_eq!(server.requests().len(), 0);
    }
}

#[tokio::test]
async fn name_is_resolved_and_checked_per_connection() {
    let server = Server::start(&[Reply::text("once")]);
    let names = FakeResolver::with_addresses(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let client = HttpClient::with_resolver(parse_rules("127.0.0.1/32"), &names).unwrap();
    let tool = tool_with_client(&write_spec(""), &url_with_public_name(&server), &client);
    let first = ToolCaller::new().expect_result(&tool, &payment_arguments().to_string()).await;
    assert_eq!(text(&first), "once");
    let second = ToolCaller::new().expect_result(&tool, &payment_arguments().to_string()).await;
    assert!(second.is_error && text(&second).contains("may not be reached"), "{}", text(&second));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn only_allowed_addresses_of_a_name_are_used() {
    let server = Server::start(&[Reply::text("listed")]);
    let names = FakeResolver::with_addresses(&[&["10.255.255.1", "127.0.0.1", "169.254.169.254"]]);
    let client = HttpClient::with_resolver(parse_rules("127.0.0.0/8"), &names).unwrap();
    let result = ToolCaller::new()
        .expect_result(
            &tool_with_client(&read_spec(""), &url_with_public_name(&server), &client),
            "{}",
        )
        .await;
    assert_eq!(text(&result), "listed");
}

#[tokio::test]
async fn listed_name_reaches_private_address_on_its_port() {
    let server = Server::start(&[Reply::text("intranet")]);
    let names = FakeResolver::with_addresses(&[&["127.0.0.1"]]);
    let port = server.url.rsplit(':').next().unwrap();
    let client =
        HttpClient::with_resolver(parse_rules(&format!("api.example:{port}")), &names).unwrap();
    let result = ToolCaller::new()
        .expect_result(
            &tool_with_client(&read_spec(""), &url_with_public_name(&server), &client),
            "{}",
        )
        .await;
    assert_eq!(text(&result), "intranet");
    let client = HttpClient::with_resolver(parse_rules("api.example:1"), &names).unwrap();
    let result = ToolCaller::new()
        .expect_result(
            &tool_with_client(&read_spec(""), &url_with_public_name(&server), &client),
            "{}",
        )
        .await;
    assert!(result.is_error && text(&result).contains("may not be reached"));
}

#[tokio::test]
async fn redirects_are_not_followed_and_write_is_unknown() {
    let inside = Server::start(&[Reply::text("inside")]);
    for status in [301, 302, 303, 307, 308] {
        let server = Server::start(&[Reply::status(status).with("location", &inside.url)]);
        let result = ToolCaller::new().expect_result(&tool(&read_spec(""), &server), "{}").await;
        assert!(result.is_error && text(&result).contains("redirect"), "{}", text(&result));
        let reason = ToolCaller::new()
            .expect_unknown(&tool(&write_spec(""), &server), &payment_arguments().to_string())
            .await;
        assert!(reason.contains("a redirect, which is not followed"), "{reason}");
        assert_eq!(server.requests().len(), 2, "redirects are not retried");
    }
    assert_eq!(inside.requests().len(), 0);
}
