//! Numbers of arguments keep each digit in every part of a request.

use crate::edge::digits::numbers;

use super::server::{Reply, Server};
use super::tool_caller::{ToolCaller, tool};

/// A tool with the argument in path, query, header and in a body of its own.
const TEMPLATES: &str = "method: POST
url: ${SERVER}/pay/{to}?limit={amount}&label=n{amount}
parameters: { required: [to], properties: { to: {}, amount: {}, note: {} } }
headers: { x-amount: '{amount}' }
body: { total: '{amount}', memo: 'for {to}', note: '{note}', list: ['{amount}'] }";

const BODY: &str = "method: POST
url: ${SERVER}/pay/{to}
parameters: { required: [to], properties: { to: {}, amount: {}, note: {} } }";

const QUERY: &str = "url: ${SERVER}/look\nparameters: { properties: { q: {}, tag: {} } }";

#[tokio::test]
async fn any_number_is_sent_as_written_in_every_part() {
    let server = Server::start(&[Reply::text("ok")]);
    let [templates, body, query] = [TEMPLATES, BODY, QUERY].map(|spec| tool(spec, &server));
    let caller = ToolCaller::new();
    for number in numbers(60) {
        let encoded = number.replace('+', "%2B");
        let rest = format!(r#""amount":{number},"note":[{number},{{"a":{number}}}]"#);
        let arguments = format!(r#"{{"to":{number},{rest}}}"#);

        caller.expect_result(&templates, &arguments).await;
        let sent = server.requests().pop().unwrap();
        assert_eq!(
            sent.line,
            format!("POST /pay/{encoded}?limit={encoded}&label=n{encoded} HTTP/1.1")
        );
        assert_eq!(sent.header("x-amount"), Some(number.as_str()));
        let list = format!(r#"[{number},{{"a":{number}}}]"#);
        assert_eq!(
            sent.body,
            format!(
                r#"{{"total":{number},"memo":"for {number}","note":{list},"list":[{number}]}}"#
            )
        );

        caller.expect_result(&body, &arguments).await;
        let sent = server.requests().pop().unwrap();
        assert_eq!(sent.line, format!("POST /pay/{encoded} HTTP/1.1"));
        assert_eq!(sent.body, format!("{{{rest}}}"));

        let arguments = format!(r#"{{"q":{number},"tag":[{number},"{number}"]}}"#);
        caller.expect_result(&query, &arguments).await;
        let sent = server.requests().pop().unwrap();
        let pairs = format!("q={encoded}&tag={encoded}&tag={encoded}");
        assert_eq!((sent.line, sent.body), (format!("GET /look?{pairs} HTTP/1.1"), String::new()));
    }
    assert_eq!(server.requests().len(), 180);
}
