//! Recorded responses of a handler: the local host does with the message what the Functions host
//! did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use turnwheel::testing::queue::TURNS;

use super::lenient_json::LENIENT;
use super::raw_handler::{Ending, RawRequest, Script};
use super::recorded_cases::{assert_no_differences, built_text, latin1_bytes, name, read_cases};
use super::test_host::{EditHostJson as _, OK_RESPONSE, TestHost, TestHostConfig};

/// A delay of the capture is that much here, below the time-out of the test.
const DELAY: Duration = Duration::from_millis(50);

/// The bytes of the recorded response.
fn response_bytes(case: &Value) -> Vec<u8> {
    if let Some(raw) = case["raw_base64"].as_str() {
        return STANDARD.decode(raw).unwrap();
    }
    if let Some(raw) = case["raw"].as_str() {
        // The capture shows the whole response; its body never came.
        let shown = if name(case) == "head-only" { raw.trim_end_matches("{}") } else { raw };
        return latin1_bytes(shown);
    }
    let Some(status) = case["status"].as_u64() else { return Vec::new() };
    let mut head = format!("HTTP/1.1 {status} X\r\n");
    let mut is_chunked = false;
    for header in case["headers"].as_array().unwrap() {
        let (header, value) = (header[0].as_str().unwrap(), built_text(&header[1]).unwrap());
        is_chunked |= header == "Transfer-Encoding";
        let _ = write!(head, "{header}: {value}\r\n");
    }
    let body = built_text(&case["body"]).unwrap();
    let body = match body.as_str() {
        "" if is_chunked => "0\r\n\r\n".to_owned(),
        body if is_chunked => format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
        _ => body,
    };
    if !is_chunked && ![204, 304].contains(&status) {
        let _ = write!(head, "Content-Length: {}\r\n", body.len());
    }
    (head + "\r\n" + &body).into_bytes()
}

fn script(case: &Value) -> Script {
    let mut script = Script::new(response_bytes(case));
    if case["delay_s"].is_number() {
        script.pieces[0].0 = DELAY;
    }
    if name(case) == "slow-body" {
        let last = script.pieces[0].1.pop().unwrap();
        script.pieces.push((DELAY, vec![last]));
    }
    script.ending = match case["then"].as_str() {
        None => Ending::Open,
        Some("closes the connection") => Ending::Close,
        Some("resets the connection") => Ending::Reset,
        Some(other) => panic!("{other}"),
    };
    script
}

/// Deliveries until the message is gone: the response to the second one is good, except for the
/// message that always fails.
fn expected_deliveries(case: &Value) -> usize {
    match case["outcome"].as_str().unwrap() {
        // The Functions host follows redirects; the local host fails the invocation.
        "deleted" if case["evidence"]["followed"].is_string() => 2,
        "deleted" => 1,
        // The Functions host waits in vain; the local host fails the invocation at once.
        "retried" | "hangs until the time-out" => 2,
        "poison" => 5,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn recorded_answers_delete_or_repeat_the_message() {
    let cases = Arc::new(read_cases("answers.jsonl"));
    let deliveries = Arc::new(Mutex::new(BTreeMap::<String, usize>::new()));
    let (given, counts) = (Arc::clone(&cases), Arc::clone(&deliveries));
    let respond = move |request: RawRequest| {
        let ok = Script::json(OK_RESPONSE);
        if request.target != "/turn" {
            return ok;
        }
        let envelope: Value = serde_json::from_slice(&request.body).unwrap();
        let message: String =
            serde_json::from_str(envelope["Data"]["message"].as_str().unwrap()).unwrap();
        let case = given.iter().find(|case| name(case) == message).unwrap();
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(message).or_default();
        *count += 1;
        if *count == 1 || case["outcome"] == "poison" { script(case) } else { ok }
    };
    let mut config = TestHostConfig { json: LENIENT, ..TestHostConfig::default() };
    config.root.replace("00:10:00", "00:00:05");
    let host = TestHost::start_raw(respond, config).await;
    for case in cases.iter() {
        host.queue.put(TURNS, name(case)).await;
    }
    host.queue.until("no message is left", |state| state.texts(TURNS).is_empty()).await;
    let deliveries = deliveries.lock().unwrap();
    let differences: Vec<String> = cases
        .iter()
        .filter(|case| deliveries[name(case)] != expected_deliveries(case))
        .map(|case| {
            format!("{}: {} deliveries, {}", name(case), deliveries[name(case)], case["outcome"])
        })
        .collect();
    assert_no_differences(&differences, cases.len());
    assert!(cases.is_empty() || cases.len() == 123, "{}", cases.len());
}
