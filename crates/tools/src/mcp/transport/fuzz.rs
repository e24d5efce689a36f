//! Fuzz test of streamed responses: any bytes are a response or a failure.

use std::sync::LazyLock;

use futures_util::stream;

use super::*;
use crate::http::address_rules::AddressRules;
use crate::http::client::HttpClient;
use crate::http::redactor::Redactor;
use turnwheel_test_support::fuzz::check;

/// Replies are not sent: the address is not allowed.
pub(super) static CONNECTOR: LazyLock<HttpConnector> = LazyLock::new(|| HttpConnector {
    url: "http://127.0.0.1:9/mcp".parse().unwrap(),
    headers: Vec::new(),
    auth: None,
    client: HttpClient::new(AddressRules::default()).unwrap(),
    redactor: Redactor::new(std::iter::empty()),
    has_conversation_sessions: false,
});

fn streamed_response(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let until = Instant::now() + REPLY_TIMEOUT;
        let transport = GuardedTransport::new(CONNECTOR.clone(), until, SessionSlot::default());
        let (headers, exchange) = (HeaderMap::new(), McpExchange::read(until));
        let reader = ResponseReader {
            transport: &transport,
            headers: &headers,
            exchange: &exchange,
            bearer: None,
            status: StatusCode::OK,
            is_stream: true,
        };
        let read = async |size: usize| {
            let chunks = input.chunks(size).map(|it| Ok::<_, ()>(Bytes::copy_from_slice(it)));
            let chunks: Vec<_> = chunks.collect();
            let read = reader.read_events(stream::iter(chunks), &RequestId::Number(7)).await;
            let read = read.and_then(|it| it.into_message(RequestId::Number(7), false));
            read.map(|message| serde_json::to_string(&message).unwrap())
        };
        // The network may cut a stream anywhere.
        assert_eq!(read(7).await, read(input.len().max(1)).await);
    });
}

#[test]
fn fuzz_mcp_stream() {
    check("mcp_stream", streamed_response);
}
