//! Lines with frame documents: checked by their hash, and skipped if they cannot be used.

use serde_json::json;

use super::super::{Line, ParsedLine, SessionReader, frame_document_line};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::digest::sha256_hex;

#[test]
fn documents_are_read_with_their_hash_only() {
    let text = r#"{"b": 1.50, "a": "x"}"#;
    let document = RawJson::from_text(text).unwrap();
    let sha256 = sha256_hex(text.as_bytes());
    let line = frame_document_line(&sha256, Some(&document));
    let header = json!({
        "type": "turnwheel", "version": 1, "id": "c", "timestamp": "2026-01-01T00:00:00.000Z",
        "agent": "clerk", "leafId": null,
    });
    let mut reader = SessionReader::new("0a1b2c3d", Timestamp(5));
    let mut read = |line: &str| {
        let mut parsed = reader.read(&Line::Bytes(line.trim_end().into())).unwrap();
        match parsed.remove(0) {
            ParsedLine::FrameDocument { sha256, document } => Ok((sha256, document)),
            ParsedLine::Skipped(reason) => Err(reason),
            other @ (ParsedLine::Header | ParsedLine::Entry(_)) => Err(format!("{other:?}")),
        }
    };
    assert_eq!(read(&header.to_string()), Err("Header".to_owned()));
    assert_eq!(read(&line), Ok((sha256.clone(), document)));
    for (line, reason) in [
        (line.replace("1.50", "1.5"), "does not have its `sha256`"),
        (line.replace(&sha256, "0"), "does not have its `sha256`"),
        (line.replace(text, "[1]"), "is not a JSON object"),
        (frame_document_line(&sha256, None), "the store of its export lost it"),
    ] {
        assert!(read(&line).is_err_and(|error| error.contains(reason)), "{line}");
    }
}
