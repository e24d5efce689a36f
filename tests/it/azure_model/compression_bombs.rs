//! Compressed responses that grow when unpacked: the limit counts unpacked bytes, not sent bytes.

use std::io::Write as _;

use axum::Router;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::StatusCode;
use turnwheel::models::ModelFailure;

use super::{call_with_config, config, expect_failure};

/// Unpacked size in MB: above every limit of one event or one body.
const MEGABYTES: usize = 24;

/// Compresses `head` and 24 MB of one letter to a few kilobytes.
fn compress_bomb(head: &str) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(head.as_bytes()).unwrap();
    let megabyte = vec![b'a'; 1024 * 1024];
    for _ in 0..MEGABYTES {
        packer.write_all(&megabyte).unwrap();
    }
    packer.finish().unwrap()
}

#[tokio::test]
async fn decompressed_response_size_is_limited() {
    for (status, kind, head) in [
        (200, "text/event-stream", "data: "),
        (200, "application/json", "{\"object\":\""),
        (400, "application/json", "{\"error\":{\"message\":\""),
    ] {
        let bomb = compress_bomb(head);
        assert!(bomb.len() < 1024 * 1024, "{} bytes", bomb.len());
        let status = StatusCode::from_u16(status).unwrap();
        let router = Router::new().fallback(move || {
            let answer =
                (status, [("content-type", kind), ("content-encoding", "gzip")], bomb.clone());
            async move { answer }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/openai/v1", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let (answer, events) = call_with_config(&config(&url)).await;
        server.abort();
        let (text, failure) = expect_failure(&answer);
        assert!(text.len() < 4_096 && events.events_json().is_empty(), "{} bytes", text.len());
        if status == 200 {
            assert!(text.contains("exceeds 8388608 bytes"), "{text}");
            assert_eq!(failure, &ModelFailure::Permanent, "a retry would be as large");
        }
    }
}
