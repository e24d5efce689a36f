//! Recorded requests of clients: the local host passes them on, and answers, as the Functions host
//! does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedSender};

use super::raw_handler::{Ending, RawRequest, Script, decode_chunks};
use super::recorded_cases::{
    assert_no_differences, built_text, latin1_bytes, latin1_text, name, read_cases,
};
use super::recording_queue::TIMEOUT;
use super::routes::{keys, routes_config};
use super::test_host::TestHost;

/// Waits of the capture are that much shorter here.
const HASTE: f64 = 20.0;
/// Silence of a handler after which its response ends; four minutes in the capture.
const SILENCE: Duration = Duration::from_secs(1);
/// Longer than the handler waits before its answer. It sees no close after that.
const CLOSE_TIME: Duration = Duration::from_secs(10);
/// Cases that run at once: some wait for repeats.
const CONCURRENT_CASES: usize = 16;

/// Cases that the local host does not play.
const SKIPPED: [(&str, &str); 6] = [
    ("as-is-admin-", "like `func start`, the local host has no keys for its own routes"),
    ("as-is-runtime", "the local host has no such routes"),
    ("body-shorter-than-length", "`hostile_clients::slow_body_through_local_host_gets_500`"),
    ("two-requests-pipelined", "`hostile_clients::pipelined_requests_get_responses_in_order`"),
    (
        "body-chunked-lf-only",
        "`hostile_clients::ambiguous_requests_are_rejected_without_smuggling`",
    ),
    ("path-fragment", "hyper drops the fragment before the host sees it"),
];
/// Played although its name begins like one of [`SKIPPED`].
const PING: &str = "as-is-admin-ping-no-key";

/// Requests with another status than recorded, and whether the handler receives them.
const ANSWERED_OTHERWISE: [(&str, u16, bool, &str); 4] = [
    ("path-other-signs", 400, false, "hyper refuses a backtick in a target"),
    ("query-quote-angle", 400, false, "hyper refuses quotes and angle brackets in a query"),
    ("websocket-handler-101", 500, true, "Turnwheel opens no web sockets: there is no tunnel"),
    ("websocket-client-frame", 500, true, "Turnwheel opens no web sockets: there is no tunnel"),
];

/// Headers that one of both hosts lacks.
const OTHER_HEADERS: [(&str, &str, &str); 3] = [
    ("host-unicode", "host", "the Functions host passes this one name on, for an unknown reason"),
    ("answer-304", "content-length", "hyper sends no length with 304"),
    ("body-chunked-and-length", "x-content-length", "hyper drops the length that chunks replace"),
];

/// A message as it is compared: headers in order, without those of one connection.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    first_line: String,
    headers: Vec<(String, String)>,
    body: Body,
}

#[derive(Clone, Debug, PartialEq)]
enum Body {
    Bytes(String),
    Length(usize),
    /// The body was cut off.
    Begins(String),
    Unknown,
}

impl Seen {
    fn new(
        first_line: String,
        headers: impl Iterator<Item = (String, String)>,
        body: Body,
    ) -> Self {
        let ignored = ["date", "server", "connection"];
        let mut headers: Vec<_> = headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .filter(|(name, value)| {
                let is_empty_body = name == "content-length" && value == "0";
                // The server of the capture announces itself; a handler's own value stays.
                !(ignored.contains(&name.as_str()) || first_line.len() == 3 && is_empty_body)
            })
            .map(|(name, value)| match name.as_str() {
                "host" => (name, value.split(':').next().unwrap().to_owned()),
                "x-azure-functions-invocationid" | "x-ms-invocation-id" if value.len() == 36 => {
                    (name, "ID".to_owned())
                }
                _ => (name, value),
            })
            .collect();
        headers.sort();
        Self { first_line, headers, body }
    }

    /// The message without the header that differs in this case.
    fn without_other_header(mut self, case: &Value) -> Self {
        let other = OTHER_HEADERS.iter().find(|(one, _, _)| *one == name(case));
        self.headers.retain(|(name, _)| other.is_none_or(|(_, header, _)| name != header));
        self
    }

    fn recorded(first_line: String, message: &Value) -> Self {
        let body = &message["body"];
        let length = body["length"].as_u64().map(|length| usize::try_from(length).unwrap());
        let body = match (body.as_str(), body["base64"].as_str(), length) {
            (Some(text), _, _) => Body::Bytes(latin1_text(text.as_bytes())),
            (_, Some(text), _) => Body::Bytes(latin1_text(&STANDARD.decode(text).unwrap())),
            (_, _, Some(length)) => Body::Length(length),
            (None, None, None) => Body::Unknown,
        };
        Self::new(first_line, recorded_headers(message).into_iter(), body)
    }

    fn is_like(&self, recorded: &Self) -> bool {
        let has_body = match (&self.body, &recorded.body) {
            (_, Body::Unknown) => true,
            (Body::Bytes(bytes), Body::Length(length)) => bytes.len() == *length,
            (Body::Begins(bytes), Body::Bytes(start)) => bytes.starts_with(start),
            (body, recorded) => body == recorded,
        };
        let has_headers = self.headers == recorded.headers || recorded.body == Body::Unknown;
        self.first_line == recorded.first_line && has_headers && has_body
    }
}

/// The headers of a message, with those that the capture only counts: `{"X-0 to X-89": "v"}`.
fn recorded_headers(message: &Value) -> Vec<(String, String)> {
    let listed =
        message["headers"].as_array().into_iter().flatten().map(|header| {
            (header[0].as_str().unwrap().to_owned(), built_text(&header[1]).unwrap())
        });
    let mut headers: Vec<_> = listed.collect();
    for (names, value) in message["and_headers"].as_object().into_iter().flatten() {
        let last: usize = names.rsplit('-').next().unwrap().parse().unwrap();
        let value = value.as_str().unwrap();
        headers.extend((0..=last).map(|number| (format!("X-{number}"), value.to_owned())));
    }
    headers
}

/// The pieces of a request of a client, with the wait before each.
fn request_pieces(case: &Value) -> Vec<(Duration, Vec<u8>)> {
    let sent = &case["sent"];
    let method = sent["method"].as_str().unwrap();
    let target = built_text(&sent["target"]).unwrap();
    let version = sent["version"].as_str().unwrap_or("HTTP/1.1");
    let mut head = format!("{method} {target} {version}\r\n");
    for (name, value) in recorded_headers(sent) {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let mut pieces = vec![(Duration::ZERO, latin1_bytes(&(head + "\r\n")))];
    let parts = sent["body"].as_array().cloned().unwrap_or_else(|| vec![sent["body"].clone()]);
    let mut wait = Duration::ZERO;
    for part in &parts {
        match part["pause_s"].as_f64() {
            Some(pause) => wait = haste(pause, case),
            None => pieces.push((std::mem::take(&mut wait), body_bytes(part, case))),
        }
    }
    pieces
}

/// The bytes of one part of a body. Of long ones the capture has the length.
fn body_bytes(part: &Value, case: &Value) -> Vec<u8> {
    if name(case) == "body-1mb-chunked" {
        let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", 1 << 20, "z".repeat(1 << 20));
        assert_eq!(part["length"].as_u64(), Some(chunk.len() as u64));
        return chunk.into_bytes();
    }
    let length = usize::try_from(part["length"].as_u64().unwrap_or_default()).unwrap();
    let mut bytes = b"z".repeat(length);
    bytes.extend(STANDARD.decode(part["base64"].as_str().unwrap_or_default()).unwrap());
    bytes.extend(part.as_str().unwrap_or_default().as_bytes());
    bytes
}

/// The time after which the client leaves.
fn client_leaves_after(case: &Value) -> Option<Duration> {
    let text = case["connection"].as_str()?.strip_prefix("the client closed after ")?;
    Some(haste(text.strip_suffix(" s").unwrap().parse().unwrap(), case))
}

/// A wait of the capture, here. Where a client leaves, it is as long as in the capture: the handler
/// must not answer before it sees that.
fn haste(seconds: f64, case: &Value) -> Duration {
    let has_left = case["connection"].as_str().is_some_and(|text| text.starts_with("the client"));
    Duration::from_secs_f64(seconds / if has_left { 1.0 } else { HASTE })
}

/// The bytes of one piece of the handler's answer. Of long ones the capture has the beginning.
fn piece_bytes(raw: &Value) -> Vec<u8> {
    if let Some(text) = raw.as_str() {
        return latin1_bytes(text);
    }
    let mut text = raw["begins"].as_str().unwrap().to_owned();
    let length = usize::try_from(raw["length"].as_u64().unwrap()).unwrap();
    let end = if text.contains("\r\n\r\n") { "" } else { "\r\nContent-Length: 2\r\n\r\nok" };
    text += &"y".repeat(length - text.len() - end.len());
    (text + end).into_bytes()
}

fn script(case: &Value, on_close: UnboundedSender<()>) -> Script {
    let Some(pieces) = case["handler_answers"].as_array() else {
        // The capture's handler answers this path with outputs.
        let is_function = name(case) == "as-is-turn-in-prefix";
        let body = case["answered"]["body"].as_str().filter(|_| is_function);
        let body = body.unwrap_or(r#"{"ok":true}"#);
        let mut script = Script::json(body);
        if case["sent"]["method"] == "HEAD" {
            let (_, bytes) = &mut script.pieces[0];
            bytes.truncate(bytes.len() - body.len());
        }
        return script;
    };
    let pieces = pieces
        .iter()
        .map(|piece| (haste(piece["after_s"].as_f64().unwrap(), case), piece_bytes(&piece["raw"])));
    let ending = match case["handler_then"].as_str() {
        None => Ending::Open,
        Some("closes the connection") => Ending::Close,
        Some("resets the connection") => Ending::Reset,
        Some("sends nothing for 270 s") => Ending::Silence,
        Some(other) => panic!("{other}"),
    };
    Script { pieces: pieces.collect(), ending, on_close: Some(on_close) }
}

/// Sends the request and reads one response, or what there is of it when the client leaves.
/// `handler_has_request` is awaited before the time until it leaves.
async fn exchange(
    host: &TestHost,
    case: &Value,
    handler_has_request: impl Future<Output = ()>,
) -> Seen {
    let is_head = case["sent"]["method"] == "HEAD";
    let leaves = client_leaves_after(case);
    let stream = TcpStream::connect(host.address).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let mut received = Vec::new();
    let writes = async {
        for (wait, bytes) in request_pieces(case) {
            tokio::time::sleep(wait).await;
            // A host that rejects a request may not read all of it.
            let _ = writing.write_all(&bytes).await;
        }
        std::future::pending::<()>().await;
    };
    let reads = async {
        loop {
            if let Some(seen) = parse_response(&received, is_head, false) {
                return Some(seen);
            }
            // A client that leaves has first received what it did in the capture.
            let so_far = parse_response(&received, is_head, true).filter(|_| leaves.is_some());
            if so_far.clone().is_some_and(|seen| answer_difference(case, seen).is_none()) {
                return so_far;
            }
            if reading.read_buf(&mut received).await.unwrap_or(0) == 0 {
                return parse_response(&received, is_head, true);
            }
        }
    };
    let time = leaves.filter(|_| case["answered"].is_null());
    let leaving = async {
        if let Some(time) = time {
            if case["handler_saw"].is_object() {
                handler_has_request.await;
            }
            tokio::time::sleep(time).await;
        } else {
            tokio::time::sleep(TIMEOUT).await;
            panic!("{}: no response", name(case));
        }
    };
    let seen = tokio::select! {
        seen = reads => seen,
        () = writes => None,
        () = leaving => None,
    };
    let seen = seen.or_else(|| parse_response(&received, is_head, true));
    seen.unwrap_or(Seen {
        first_line: String::new(),
        headers: Vec::new(),
        body: Body::Begins(String::new()),
    })
}

/// Returns the response once it is complete, or what there is of it at the end of the connection.
/// Skips interim responses.
fn parse_response(bytes: &[u8], is_head: bool, has_ended: bool) -> Option<Seen> {
    let head_length = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let (head, rest) = bytes.split_at(head_length);
    let head = latin1_text(head);
    let mut lines = head.trim_end().split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.to_owned();
    if status.starts_with('1') {
        return parse_response(rest, is_head, has_ended);
    }
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let find = |name: &str| headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
    let body = if is_head || status == "204" || status == "304" {
        Body::Bytes(String::new())
    } else if find("transfer-encoding").is_some() {
        match decode_chunks(rest) {
            Some((body, _)) => Body::Bytes(latin1_text(&body)),
            None if has_ended => Body::Begins(cut_chunks(rest)),
            None => return None,
        }
    } else if let Some((_, length)) = find("content-length") {
        match rest.get(..length.parse().unwrap()) {
            Some(body) => Body::Bytes(latin1_text(body)),
            None if has_ended => Body::Begins(latin1_text(rest)),
            None => return None,
        }
    } else {
        return has_ended.then(|| Seen::new(status, headers.into_iter(), Body::Unknown));
    };
    Some(Seen::new(status, headers.into_iter(), body))
}

/// The body of chunks without an end.
fn cut_chunks(bytes: &[u8]) -> String {
    let ended = [bytes, b"0\r\n\r\n"].concat();
    decode_chunks(&ended).map(|(body, _)| latin1_text(&body)).unwrap_or_default()
}

/// Plays one case. Returns its differences.
async fn play(case: Value) -> Option<String> {
    let functions = if case["functions"].as_array().unwrap().contains(&json!("zapi")) {
        json!({
            "approve": {"authLevel": "anonymous", "route": "approvals/{token}", "methods": ["get", "post"]},
            "health": {"authLevel": "anonymous", "route": "health", "methods": ["get"]},
            "zapi": {"authLevel": "function", "route": "{*path}"},
        })
    } else {
        json!({
            "api": {"authLevel": "function", "route": "{*path}"},
            "approve": {"authLevel": "anonymous", "route": "approvals/{token}", "methods": ["get", "post"]},
            "health": {"authLevel": "anonymous", "route": "health", "methods": ["get"]},
        })
    };
    let catch_all = if functions["zapi"].is_object() { "zapi" } else { "api" };
    let received = Arc::new(Mutex::new(Vec::<RawRequest>::new()));
    let (on_close, mut closed) = mpsc::unbounded_channel();
    let (log, answer) = (Arc::clone(&received), script(&case, on_close));
    let respond = move |request: RawRequest| {
        if request.target == "/" {
            return Script::json("{}");
        }
        log.lock().unwrap().push(request);
        answer.clone()
    };
    let mut config = routes_config(&functions, keys(catch_all));
    if case["handler_then"] == "sends nothing for 270 s" {
        config.idle_max = SILENCE;
    }
    let host = TestHost::start_raw(respond, config).await;
    let has_request = async {
        while received.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let answered = exchange(&host, &case, has_request).await;
    if case["handler_saw_the_connection_close_after_s"].is_number() {
        let closed = tokio::time::timeout(CLOSE_TIME, closed.recv()).await;
        assert_eq!(closed, Ok(Some(())), "{}: the handler's connection stays", name(&case));
    }
    let received = received.lock().unwrap().clone();
    let differences = [answer_difference(&case, answered), handler_difference(&case, &received)];
    let differences: Vec<String> = differences.into_iter().flatten().collect();
    (!differences.is_empty()).then(|| format!("{}: {}", name(&case), differences.join("; ")))
}

fn answered_otherwise(case: &Value) -> Option<(u16, bool)> {
    let found = ANSWERED_OTHERWISE.iter().find(|(one, ..)| *one == name(case));
    found.map(|(_, status, is_received, _)| (*status, *is_received))
}

fn answer_difference(case: &Value, answered: Seen) -> Option<String> {
    if let Some((status, _)) = answered_otherwise(case) {
        let is_same = answered.first_line == status.to_string();
        return (!is_same).then(|| format!("answered {answered:?}, expected {status}"));
    }
    let answered = answered.without_other_header(case);
    let is_cut = matches!(answered.body, Body::Begins(_));
    if case["answered"].is_null() {
        return (!is_cut).then(|| format!("answered {answered:?}, recorded nothing"));
    }
    let status = case["answered"]["status"].to_string();
    let recorded = Seen::recorded(status, &case["answered"]).without_other_header(case);
    let is_cut_too = case["answered"]["complete"] == false;
    let is_same = answered.is_like(&recorded) && is_cut == is_cut_too;
    (!is_same).then(|| format!("answered {answered:?}, recorded {recorded:?}"))
}

fn handler_difference(case: &Value, received: &[RawRequest]) -> Option<String> {
    if case["handler_saw"].is_null()
        || answered_otherwise(case).is_some_and(|(_, is_received)| !is_received)
    {
        return (!received.is_empty()).then(|| format!("the handler got {received:?}"));
    }
    let times = case["times_sent_to_the_handler"].as_u64().unwrap_or(1);
    let Some(first) = received.first() else { return Some("the handler got nothing".to_owned()) };
    let ids: BTreeMap<_, _> = received
        .iter()
        .map(|request| (request.header("x-ms-invocation-id"), request.header("host")))
        .collect();
    if received.len() as u64 != times || ids.len() != 1 {
        return Some(format!("sent {} times with {ids:?}, recorded {times}", received.len()));
    }
    let saw = &case["handler_saw"];
    let target = built_text(&saw["target"]).unwrap();
    let recorded_line = format!("{} {target}", saw["method"].as_str().unwrap());
    let first_line = format!("{} {}", first.method, first.target);
    if saw["headers"].is_null() {
        return (first_line != recorded_line).then_some(first_line);
    }
    let headers = first.headers.iter().cloned();
    let body = Body::Bytes(latin1_text(&first.body));
    let seen = Seen::new(first_line, headers, body).without_other_header(case);
    let recorded = Seen::recorded(recorded_line, saw).without_other_header(case);
    let has_upgrade = recorded.headers.iter().any(|(name, _)| name == "upgrade");
    let is_upgraded = first.header("connection").contains(&"Upgrade");
    (!seen.is_like(&recorded) || has_upgrade != is_upgraded)
        .then(|| format!("the handler got {seen:?}, recorded {recorded:?}"))
}

#[tokio::test]
async fn recorded_requests_and_answers_pass_alike() {
    let mut cases = read_cases("http.jsonl");
    let all = cases.len();
    let is_skipped = |case: &Value| {
        let is_skipped = |skipped: &str| match skipped.strip_suffix('-') {
            Some(_) => name(case).starts_with(skipped),
            None => name(case) == skipped,
        };
        name(case) != PING && SKIPPED.iter().any(|(skipped, _)| is_skipped(skipped))
    };
    cases.retain(|case| !is_skipped(case));
    let played = cases.len();
    let differences: Vec<String> = stream::iter(cases)
        .map(play)
        .buffer_unordered(CONCURRENT_CASES)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert_no_differences(&differences, played);
    assert!(all == 0 || all - played == 7, "{played} of {all}");
}
