//! Documents whose response was cut off or left open after their end.

use serde::de::IgnoredAny;

use super::RecordForm;
use super::records::Records;
use crate::http::response::trim_blank;
use crate::http::text::decode_body;
use crate::http::tool_response::ToolResponse;
use turnwheel_json::body_kind::BodyKind;

/// True if the part of a response that has arrived is one whole JSON object or array, and neither its label
/// nor its form shows that other records follow: one line with its end may be the first of several. A larger
/// `Content-Length` does not count, because proxies often announce a wrong one.
pub(in crate::http) fn is_whole_document(received: &ToolResponse) -> bool {
    let mime_type = received.mime_type();
    let form = RecordForm::of(&mime_type, BodyKind::of_start(&received.body));
    let has_other_label = mime_type == "text/event-stream" || received.has_unknown_encoding();
    if form != Some(RecordForm::LinesOrDocument) || has_other_label {
        return false;
    }
    let text = decode_body(received);
    let document = trim_blank(&text);
    let end = text.split_once(document).map_or("", |(_, end)| end);
    if !document.contains('\n') && end.contains(['\r', '\n']) {
        return false;
    }
    let mut records = Records::default();
    records.add(document, &|_| {});
    !records.has_progress && serde_json::from_str::<IgnoredAny>(document).is_ok()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
    use bytes::Bytes;

    use super::*;

    #[test]
    fn whole_document_is_known_by_its_label_and_its_last_bracket() {
        let is_whole = |mime_type: &'static str, body: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(mime_type));
            let body = Bytes::copy_from_slice(body);
            is_whole_document(&ToolResponse {
                status: StatusCode::OK,
                headers,
                body,
                is_cut: false,
            })
        };
        let receipt = "{\"receipt\":{\"id\":\"é}\"}}";
        for mime_type in ["application/json", "application/vnd.pay+json; charset=utf-8", ""] {
            let padded = format!("\u{feff}\n{receipt} \0");
            let lines = format!("{}\r\n\0", receipt.replace("{\"id", "{\n\"id"));
            for body in
                [receipt, &padded, &lines, "{}", "[1,2]", "{\"progress\":1,\"status\":\"done\"}"]
            {
                assert!(is_whole(mime_type, body.as_bytes()), "{mime_type} {body}");
            }
            for length in 0..receipt.len() {
                let body = receipt.as_bytes().split_at(length).0;
                assert!(!is_whole(mime_type, body), "{mime_type} {length}");
            }
            for body in [
                "{}{",
                "{}\n{}",
                "{}\n",
                "{\"a\":1}\r",
                "\n[1] \r\n",
                "{\"progress\":1}",
                "12",
                "\"text\"",
                "null",
                "text",
                "{\"a\":NaN}",
            ] {
                assert!(!is_whole(mime_type, body.as_bytes()), "{mime_type} {body}");
            }
        }
        // More lines, events or text may follow.
        for mime_type in ["application/x-ndjson", "text/event-stream", "text/plain", "text/html"] {
            assert!(!is_whole(mime_type, receipt.as_bytes()), "{mime_type}");
        }
    }
}
