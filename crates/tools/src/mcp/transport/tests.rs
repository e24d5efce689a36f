//! Tests of responses that are cut off or left open.

use futures_util::stream::{self, Stream};

use super::fuzz::CONNECTOR;
use super::*;
use crate::http::redactor::Redactor;
use crate::http::template::SettingSecret;

const BOOKED: &str = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"text":"booked é 4711"}]}}"#;
const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"half"}}"#;

/// End of a response after its last byte.
#[derive(Clone, Copy, Debug)]
enum End {
    Ended,
    Cut,
    Open,
}

/// The response to the request 7, and the seconds until it was read. The request has a minute.
async fn read_chunks(
    chunks: impl Stream<Item = Result<Bytes, ()>> + Send + 'static,
) -> (Result<ServerResponse, McpFailure>, u64) {
    let start = Instant::now();
    let secret = SettingSecret { name: "KEY".to_owned(), value: "s3cret-value".to_owned() };
    let redactor = Redactor::new([&secret].into_iter());
    let connector = HttpConnector { redactor, ..CONNECTOR.clone() };
    let until = start + Duration::from_mins(1);
    let transport = GuardedTransport::new(connector, until, SessionSlot::default());
    let (headers, exchange) = (HeaderMap::new(), McpExchange::read(until));
    let reader = ResponseReader {
        transport: &transport,
        headers: &headers,
        exchange: &exchange,
        bearer: None,
        status: StatusCode::OK,
        is_stream: false,
    };
    let read = reader.read(chunks.boxed(), &RequestId::Number(7)).await;
    (read, start.elapsed().as_secs())
}

async fn read(body: impl AsRef<[u8]>, end: End) -> (Result<ServerResponse, McpFailure>, u64) {
    let chunks = body.as_ref().chunks(9).map(|it| Ok::<_, ()>(Bytes::copy_from_slice(it)));
    let chunks: Vec<_> = chunks.collect();
    let last: BoxStream<'static, Result<Bytes, ()>> = match end {
        End::Ended => stream::empty().boxed(),
        End::Cut => stream::iter([Err(())]).boxed(),
        End::Open => stream::pending().boxed(),
    };
    read_chunks(stream::iter(chunks).chain(last)).await
}

async fn read_failure(body: impl AsRef<[u8]>, end: End) -> String {
    let shown = String::from_utf8_lossy(body.as_ref()).into_owned();
    match read(body, end).await.0 {
        Err(failure @ McpFailure::Lost(_)) => failure.to_string(),
        Err(other) => panic!("{end:?} {shown}: {other}"),
        Ok(_) => panic!("{end:?} {shown}: read as a response"),
    }
}

#[tokio::test(start_paused = true)]
async fn whole_result_counts_when_its_response_has_no_end() {
    let pretty = BOOKED.replace(':', ": \n").replace('{', "{\n");
    for body in [
        BOOKED.to_owned(),
        pretty.clone(),
        format!("\u{feff}\n{BOOKED}\r\n"),
        format!("[{NOTE},{BOOKED}]"),
        format!("{NOTE}\n{BOOKED}\n"),
        format!("{BOOKED}\n{{\"jsonrpc\":"),
        BOOKED.replace("\"id\":7", "\"id\":\"7\""),
        BOOKED.replace("\"result\"", "\"result\":{},\"result\""),
        r#"{"id":7,"error":{"code":-32602,"message":"no such account"}}"#.to_owned(),
        format!("data: {BOOKED}"),
        format!("data:{BOOKED}\n"),
        format!("event: message\r\ndata: {BOOKED}\r\n"),
        format!(": ping\n\ndata: {NOTE}\n\nid: 1\ndata: {BOOKED}\nda"),
        format!("data: {}", pretty.replace('\n', "\ndata: ")),
    ] {
        for (end, seconds) in [(End::Ended, 0), (End::Cut, 0), (End::Open, 2)] {
            let (read, waited) = read(&body, end).await;
            let is_error = read.unwrap_or_else(|failure| panic!("{body}: {failure}")).is_error();
            assert_eq!((is_error, waited), (body.contains("error"), seconds), "{end:?} {body}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_result_is_read_soon_when_its_response_stays_open() {
    // Checks are after 2, 6, 14 and 30 seconds, and shortly before the end.
    assert_eq!(seconds_until_read(Duration::from_secs(9)).await, 14);
    assert_eq!(seconds_until_read(Duration::from_millis(59_800)).await, 59);
}

/// The seconds until a result is read that arrives after `time`.
async fn seconds_until_read(time: Duration) -> u64 {
    let late = stream::once(async move {
        tokio::time::sleep(time).await;
        Ok::<_, ()>(Bytes::from_static(BOOKED.as_bytes()))
    });
    let (read, seconds) = read_chunks(late.chain(stream::pending())).await;
    assert!(read.is_ok());
    seconds
}

#[tokio::test(start_paused = true)]
async fn part_of_a_result_is_none() {
    for length in 0..BOOKED.len() {
        let part = BOOKED.as_bytes().split_at(length).0;
        for body in [part.to_vec(), [b"data: ", part].concat(), [b"[", part].concat()] {
            read_failure(body, End::Cut).await;
        }
    }
    for body in [
        "12",
        "data: 12",
        "\"booked",
        // Rows with the id of the request.
        "{\"id\":8,\"result\":[\n{\"id\":7,\"result\":{}}",
        "{\"id\":8,\"result\":[\n{\"id\":7},\n{\"id\":7}\n",
        "data: {\"id\":8,\"result\":[\ndata: {\"id\":7,\"result\":{}}",
        // Other responses, and one without an id.
        r#"{"id":70,"result":{}}"#,
        r#"{"id":null,"result":{}}"#,
        r#"data: {"result":{}}"#,
        r#"{"id":7,"result":{"score":NaN}}"#,
        r#"{"id":7,"method":"ping"}"#,
    ] {
        let reason = read_failure(body, End::Cut).await;
        assert!(reason.starts_with("the response was cut off"), "{reason}");
        let reason = read_failure(body, End::Open).await;
        assert!(reason.starts_with("the response (200 OK) did not end in time"), "{reason}");
    }
}

#[test]
fn token_that_a_text_ends_within_is_hidden() {
    let bearer = HeaderValue::from_static("Bearer eyJ0eXAi.payload");
    for (text, expected) in [
        ("{\"a\":\"Bearer eyJ0eXAi.pay", "{\"a\":\"Bearer [token]"),
        ("eyJ0eXAi.payload, eyJ0", "[token], [token]"),
        ("eyJ", "eyJ"),
    ] {
        assert_eq!(hide_truncated_token(text, Some(&bearer)), expected);
        assert_eq!(hide_truncated_token(text, None), text);
    }
}

#[tokio::test(start_paused = true)]
async fn reason_shows_the_beginning_of_a_response_without_its_end() {
    let part = BOOKED.trim_end_matches('}').replace("booked", "s3cret-value");
    let shown = part.replace("s3cret-value", "[KEY]");
    for (body, expected) in [
        (part.clone(), shown.clone()),
        (format!("{NOTE}\n{part}"), shown.clone()),
        (format!("data: {part}"), shown.clone()),
        (format!("data: {NOTE}\n\ndata: {part}\n"), shown.clone()),
        (format!("data: ping\n\ndata: {part}"), format!("ping {shown}")),
        (r#"data: {"id":70,"result":{}}"#.to_owned(), r#"{"id":70,"result":{}}"#.to_owned()),
        ("<h1>s3cret-value".to_owned(), "<h1>[KEY]".to_owned()),
        (r#"{"k":"s3cret-va"#.to_owned(), r#"{"k":"[KEY]"#.to_owned()),
        (r#"data: {"k":"s3cret-va"#.to_owned(), r#"{"k":"[KEY]"#.to_owned()),
    ] {
        let cut = read_failure(&body, End::Cut).await;
        assert_eq!(cut, format!("the response was cut off: {expected}"));
        let open = read_failure(&body, End::Open).await;
        assert_eq!(open, format!("the response (200 OK) did not end in time: {expected}"));
    }
    assert_eq!(read_failure("", End::Cut).await, "the response was cut off");
    let long = read_failure(format!("{{{}", "é".repeat(9_000)), End::Cut).await;
    assert!((2_000..2_100).contains(&long.len()), "{}", long.len());
}
