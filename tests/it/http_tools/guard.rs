//! Address rules: no literal, name, changing name or redirect leads a tool to a private address.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use turnwheel::tools::http::addresses::AddressRules;
use turnwheel::tools::http::client::{HttpClient, LookUp};

use super::bench::{Bench, text, tool, tool_of};
use super::server::{Reply, Server};
use super::{ada, look, pay};

/// Each look-up returns the next list of addresses, and repeats the last one.
#[derive(Debug)]
struct Names {
    answers: Vec<Vec<IpAddr>>,
    asked: AtomicUsize,
}

impl Names {
    fn answering(answers: &[&[&str]]) -> Arc<dyn LookUp> {
        let answers =
            answers.iter().map(|ips| ips.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        Arc::new(Self { answers, asked: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl LookUp for Names {
    async fn addresses(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst).min(self.answers.len() - 1);
        Ok(self.answers[number].clone())
    }
}

/// The server's URL with a public host name.
fn named(server: &Server) -> String {
    server.url.replace("127.0.0.1", "api.example")
}

fn rules(list: &str) -> AddressRules {
    AddressRules::parse(list).unwrap()
}

#[tokio::test]
async fn a_name_that_stands_for_a_private_address_is_refused_and_nothing_is_sent() {
    for addresses in
        [&["127.0.0.1"][..], &["10.0.0.1", "169.254.169.254"], &["::ffff:127.0.0.1"], &["::1"]]
    {
        let server = Server::start(&[Reply::text("inside")]);
        let client = HttpClient::with_look_up(rules(""), &Names::answering(&[addresses])).unwrap();
        for spec in [look(""), pay("")] {
            let tool = tool_of(&spec, &named(&server), &client);
            let result = Bench::new().returned(&tool, &ada().to_string()).await;
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
async fn a_name_whose_answer_changes_is_judged_at_each_connection() {
    let server = Server::start(&[Reply::text("once")]);
    let names = Names::answering(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let client = HttpClient::with_look_up(rules("127.0.0.1/32"), &names).unwrap();
    let tool = tool_of(&pay(""), &named(&server), &client);
    let first = Bench::new().returned(&tool, &ada().to_string()).await;
    assert_eq!(text(&first), "once");
    let second = Bench::new().returned(&tool, &ada().to_string()).await;
    assert!(second.is_error && text(&second).contains("may not be reached"), "{}", text(&second));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn of_mixed_answers_only_the_allowed_is_connected_to() {
    let server = Server::start(&[Reply::text("listed")]);
    let names = Names::answering(&[&["10.255.255.1", "127.0.0.1", "169.254.169.254"]]);
    let client = HttpClient::with_look_up(rules("127.0.0.0/8"), &names).unwrap();
    let result = Bench::new().returned(&tool_of(&look(""), &named(&server), &client), "{}").await;
    assert_eq!(text(&result), "listed");
}

#[tokio::test]
async fn a_listed_name_reaches_private_addresses_on_its_port_only() {
    let server = Server::start(&[Reply::text("intranet")]);
    let names = Names::answering(&[&["127.0.0.1"]]);
    let port = server.url.rsplit(':').next().unwrap();
    let client = HttpClient::with_look_up(rules(&format!("api.example:{port}")), &names).unwrap();
    let result = Bench::new().returned(&tool_of(&look(""), &named(&server), &client), "{}").await;
    assert_eq!(text(&result), "intranet");
    let client = HttpClient::with_look_up(rules("api.example:1"), &names).unwrap();
    let result = Bench::new().returned(&tool_of(&look(""), &named(&server), &client), "{}").await;
    assert!(result.is_error && text(&result).contains("may not be reached"));
}

#[tokio::test]
async fn redirects_are_never_followed_and_leave_a_write_in_doubt() {
    let inside = Server::start(&[Reply::text("inside")]);
    for status in [301, 302, 303, 307, 308] {
        let server = Server::start(&[Reply::status(status).with("location", &inside.url)]);
        let result = Bench::new().returned(&tool(&look(""), &server), "{}").await;
        assert!(result.is_error && text(&result).contains("redirect"), "{}", text(&result));
        let reason = Bench::new().unknown(&tool(&pay(""), &server), &ada().to_string()).await;
        assert!(reason.contains("a redirect, which is not followed"), "{reason}");
        assert_eq!(server.requests().len(), 2, "redirects are not retried");
    }
    assert_eq!(inside.requests().len(), 0);
}
