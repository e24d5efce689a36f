//! Tests of odd responses to calls: one with the id of the call is a response to it.

use super::*;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const BOOKED: &str =
    r#"{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"booked 4711"}]}}"#;
const REFUSED: &str = r#""error":{"code":-32602,"message":"no such account"}"#;

async fn outcome_of(status: u16, mime_type: &'static str, body: impl AsRef<[u8]>) -> ToolOutcome {
    let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
    server.reply(Reply::Raw(status, mime_type, body.as_ref().to_vec()));
    let outcome = call(&source, &TestEnv::new()).await;
    assert_eq!(server.count("tools/call"), 1);
    outcome
}

async fn assert_booked(status: u16, mime_type: &'static str, body: impl AsRef<[u8]>) {
    let text = String::from_utf8_lossy(body.as_ref()).into_owned();
    let result = returned(outcome_of(status, mime_type, body).await);
    assert!(!result.is_error && joined_text(&result.content).starts_with("booked 4711"), "{text}");
}

#[tokio::test]
async fn odd_envelope_with_the_id_is_a_response() {
    let with = |from: &str, to: &str| BOOKED.replace(from, to);
    for body in [
        with("\"ID\"", "\"ID\".0"),
        with("{\"jsonrpc\":\"2.0\",", "{"),
        with("{\"jsonrpc\"", "{\"error\":null,\"jsonrpc\""),
        with("{\"jsonrpc\"", "{\"error\":\"\",\"jsonrpc\""),
        with("{\"jsonrpc\"", "{\"error\":{\"code\":0,\"message\":\"\"},\"jsonrpc\""),
        with("{\"jsonrpc\"", "{\"method\":5,\"jsonrpc\""),
        format!("\u{feff}{BOOKED}\n\0"),
        format!("[{BOOKED}]"),
        format!("{BOOKED} -- took 3 ms"),
        format!(r#"[{{"method":"notifications/x","params":[]}},{BOOKED}]"#),
        with("{\"content\"", "{\"structuredContent\":{\"score\":NaN,\"far\":1e400},\"content\""),
        with("booked 4711", "booked 4711\\ud83d"),
        with("\"result\"", "\"result\":{},\"result\""),
        with("\"text\":\"b", "\"annotations\":{\"priority\":\"high\"},\"text\":\"b"),
        with("\"ID\"", "null"),
    ] {
        assert_booked(200, JSON, &body).await;
        assert_booked(200, "Text/Event-Stream; charset=utf-8", format!("data: {body}\n\n")).await;
    }
    assert_booked(
        200,
        JSON,
        [b"[", BOOKED.replace("4711", "4711 \u{1}").as_bytes(), b"]"].concat(),
    )
    .await;
    let mut bytes = BOOKED.replace("4711", "4711 ?").into_bytes();
    let at = bytes.iter().position(|byte| *byte == b'?').unwrap();
    bytes[at] = 0xff;
    assert_booked(200, JSON, &bytes).await;
    assert_booked(200, EVENTS, [b"data: ", bytes.as_slice()].concat()).await;
    assert_booked(200, JSON, format!("PHP Warning:  x in {{a}}\n\n{BOOKED}")).await;
    assert_booked(500, JSON, BOOKED).await;
    assert_booked(500, EVENTS, format!(": ping\r\n\r\ndata: {BOOKED}\r\n\r\n")).await;
    let long = BOOKED.replace("4711", &format!("4711 {}", "x".repeat(20_000)));
    assert_booked(502, JSON, &long).await;
    assert_booked(400, JSON, format!("data: {long}\n\n")).await;
    // The test server puts the id only into ASCII.
    let text = with("\"ID\"", "null");
    let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    for utf16 in [little.clone(), big, [b"\xff\xfe", little.as_slice()].concat()] {
        assert_booked(200, JSON, utf16).await;
    }
}

#[tokio::test]
async fn content_decides_when_the_label_does_not_fit() {
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    assert_booked(200, EVENTS, BOOKED).await;
    assert_booked(200, EVENTS, format!("{notification}\n{BOOKED}\n")).await;
    assert_booked(200, JSON, format!("{notification}\n{BOOKED}\n")).await;
    assert_booked(200, JSON, format!("event: message\ndata: {BOOKED}\n\n")).await;
    assert_booked(200, "text/plain", format!("data: {BOOKED}\n\n")).await;
}

#[tokio::test]
async fn odd_events_before_the_result_are_passed_over() {
    for odd in [
        "event: ping\ndata: ping",
        "data: {\"heartbeat\": 1}",
        "data: [1]",
        "data: {",
        ": comment",
        r#"data: {"jsonrpc":"2.0","method":"notifications/custom/x","params":[1]}"#,
        r#"data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"warn"}}"#,
        r#"data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":"50%"}}"#,
        r#"data: {"jsonrpc":"2.0","method":"notifications/progress","params":5}"#,
        r#"data: {"jsonrpc":"2.0","id":999,"error":{"code":1,"message":"other"}}"#,
        r#"data: {"jsonrpc":"2.0","id":{},"method":"ping"}"#,
    ] {
        assert_booked(200, EVENTS, format!("\u{feff}{odd}\r\n\r\ndata: {BOOKED}\r\n\r\n")).await;
    }
}

#[tokio::test]
async fn error_of_any_form_is_a_response() {
    for body in [
        format!(r#"{{"jsonrpc":"2.0","id":null,{REFUSED}}}"#),
        format!(r#"{{"jsonrpc":"2.0",{REFUSED}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"ID","result":null,{REFUSED}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"ID","result":{{"content":[]}},{REFUSED}}}"#),
        r#"{"id":"ID","error":{"code":"E42","message":"no such account"}}"#.to_owned(),
        r#"{"id":"ID","error":"no such account"}"#.to_owned(),
        r#"{"id":"ID","error":{"code":-32603,"message":"no such account","data":[1]}}"#.to_owned(),
    ] {
        for (status, mime_type, body) in [
            (200, JSON, body.clone()),
            (200, EVENTS, format!("data: {body}\n\n")),
            (400, JSON, body.clone()),
        ] {
            let result = returned(outcome_of(status, mime_type, &body).await);
            let text = joined_text(&result.content);
            assert!(result.is_error && text.contains("no such account"), "{body}: {text}");
        }
    }
    // Without a result and an error the status decides.
    let result = returned(outcome_of(400, JSON, r#"{"jsonrpc":"2.0","id":"ID"}"#).await);
    assert!(result.is_error && joined_text(&result.content).contains("400"), "{result:?}");
    let named = r#"{"id":"ID","error":{"code":-32603,"message":"half done"}}"#;
    for status in [200, 500] {
        let result = returned(outcome_of(status, JSON, named).await);
        let text = joined_text(&result.content);
        assert!(text.contains("half done") && text.contains("may have had its effect"), "{text}");
    }
}

/// The result was booked, and its response has no end.
#[tokio::test]
async fn whole_result_of_a_write_without_the_end_of_its_response_is_known() {
    let event = format!(": ping\n\ndata: {BOOKED}");
    for (mime_type, body) in [(JSON, BOOKED), (EVENTS, event.as_str())] {
        for reply in
            [Reply::Cut(mime_type, body.to_owned()), Reply::Open(mime_type, body.to_owned())]
        {
            let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
            server.reply(reply);
            let result = returned(call(&source, &TestEnv::new()).await);
            assert_eq!(joined_text(&result.content), "booked 4711", "{body}");
            assert_eq!(server.count("tools/call"), 1);
        }
    }
}

#[tokio::test]
async fn unknown_outcome_shows_the_part_of_a_result_that_arrived() {
    let part = BOOKED.trim_end_matches('}').replace("booked", "s3cret-value booked");
    for reply in [Reply::Cut(JSON, part.clone()), Reply::Cut(EVENTS, format!("data: {part}"))] {
        let (server, source) = connected(json!([tool("send", "x")]), None, false).await;
        server.reply(reply);
        let text = reason_of_unknown(call(&source, &TestEnv::new()).await);
        let reason = "the response was cut off: {\"jsonrpc\"";
        assert!(text.contains(reason) && text.contains("\"[KEY] booked 4711\""), "{text}");
    }
}

/// A person who decides sees what arrived.
#[tokio::test]
async fn unknown_outcome_shows_the_response() {
    let long = format!("<html>s3cret-value booked 4711 {}", "x".repeat(5_000));
    for (status, mime_type, body) in [
        (200, JSON, long.clone()),
        (502, "text/html", long.clone()),
        (200, EVENTS, format!("data: {long}\n\n")),
        (200, EVENTS, "data: {\"id\":999,\"result\":\"booked 4711\"}\n\n".to_owned()),
        (200, JSON, r#"{"id":999,"result":"booked 4711"}"#.to_owned()),
        (500, JSON, r#"{"id":null,"error":{"message":"booked 4711"}}"#.to_owned()),
        (500, JSON, r#"{"id":null,"error":{"code":-32600,"message":"booked 4711"}}"#.to_owned()),
        (500, JSON, r#"{"jsonrpc":"2.0","id":"ID","note":"booked 4711"}"#.to_owned()),
        (502, EVENTS, "data: {\"id\":\"ID\",\"note\":\"booked 4711\"}\n\n".to_owned()),
        (503, JSON, r#"{"id":"ID","result":null,"note":"booked 4711"}"#.to_owned()),
    ] {
        let reason = reason_of_unknown(outcome_of(status, mime_type, &body).await);
        assert!(reason.contains("booked 4711") && !reason.contains("s3cret"), "{body}: {reason}");
        assert!(reason.len() < 2_400, "{}", reason.len());
    }
}
