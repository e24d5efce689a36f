//! Reader of response bodies. A streamed body (NDJSON or server-sent events) has progress reports,
//! then the result.

mod records;
mod whole_document;

use axum::http::{HeaderValue, header};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use sse_stream::{Sse, SseByteStream};

use crate::ToolResult;
use crate::http::full_result;
use crate::http::text::LossyDecoder;
use crate::http::tool_response::{RESPONSE_BYTES_MAX, ToolResponse};
use turnwheel_json::body_kind::BodyKind;
use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::raw::RawJson;

use records::Records;
pub(super) use records::{STREAMED_RESULT, StreamedResult};
pub(super) use whole_document::is_whole_document;

/// Callback with the JSON text of each `progress` member, called as soon as it arrives.
pub(super) type ProgressCallback<'a> = &'a (dyn Fn(&str) + Send + Sync);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// The connection was cut, or the body does not match its headers.
    Broken,
    /// The body ended after its progress reports.
    NoResult,
}

/// The form of records in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordForm {
    Lines,
    /// Lines, or one document: the label does not say.
    LinesOrDocument,
    Events,
}

impl RecordForm {
    /// The form of a body with this label. Its first bytes count where they contradict it.
    fn of(mime_type: &str, kind: Option<BodyKind>) -> Option<Self> {
        let is_stream = kind == Some(BodyKind::Stream);
        let is_json = kind == Some(BodyKind::Json);
        match mime_type {
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" => {
                Some(if is_stream { Self::Events } else { Self::Lines })
            }
            "text/event-stream" => Some(if is_json { Self::LinesOrDocument } else { Self::Events }),
            "" => is_json.then_some(Self::LinesOrDocument),
            json if json == "text/json"
                || json == "application/json"
                || json.ends_with("+json") =>
            {
                if is_stream {
                    Some(Self::Events)
                } else {
                    is_json.then_some(Self::LinesOrDocument)
                }
            }
            _ => None,
        }
    }
}

/// The kind of a body by its first bytes, and the whole body.
pub(crate) async fn peek_kind<E, S>(
    mut chunks: S,
) -> (Option<BodyKind>, impl Stream<Item = Result<Bytes, E>> + Send + Unpin)
where
    E: Send,
    S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
{
    let mut start = BytesMut::new();
    let mut first = Vec::new();
    let mut kind = None;
    while kind.is_none()
        && let Some(chunk) = chunks.next().await
    {
        let is_cut = chunk.is_err();
        if let Ok(chunk) = &chunk {
            start.extend_from_slice(chunk);
            kind = BodyKind::of_start(&start);
        }
        first.push(chunk);
        if is_cut {
            break;
        }
    }
    (kind, stream::iter(first).chain(chunks))
}

/// Reads the body of `response` up to its bound. Uses memory of a few times the bound at most.
///
/// # Errors
/// The body has no result, see [`ReadError`]. Treat it as a lost response.
pub(super) async fn read_body<E: Send>(
    response: ToolResponse,
    chunks: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
    progress: ProgressCallback<'_>,
) -> Result<ToolResponse, ReadError> {
    let mut body = BodyBuffer { bytes: BytesMut::new(), is_cut: false };
    let mut records = Records::default();
    let is_encoded = response.headers.contains_key(header::CONTENT_ENCODING);
    let (kind, chunks) = peek_kind(chunks).await;
    let form = RecordForm::of(&response.mime_type(), kind).filter(|_| !is_encoded);
    match form {
        Some(RecordForm::Lines | RecordForm::LinesOrDocument) => {
            read_lines(&mut body, chunks, |line| records.add(line, progress)).await?;
        }
        Some(RecordForm::Events) => {
            read_events(&mut body, chunks, |event| records.add(event, progress)).await?;
        }
        None => body.read(chunks).await?,
    }
    // Lines can also be those of one document.
    let is_lines = form != Some(RecordForm::Events);
    let result = records.find_result().filter(|_| !is_lines || !body.is_json_document());
    let is_document = form == Some(RecordForm::LinesOrDocument)
        && result.is_none()
        && (!records.has_progress || body.is_json_document());
    if is_document {
        let mut response =
            ToolResponse { is_cut: body.is_cut, body: body.bytes.freeze(), ..response };
        if response.mime_type() == "text/event-stream" {
            let json = HeaderValue::from_static("application/json");
            response.headers.insert(header::CONTENT_TYPE, json);
        }
        return Ok(response);
    }
    complete_response(response, body, &records, result.as_ref())
}

/// `result`: the full result among several records.
fn complete_response(
    mut response: ToolResponse,
    body: BodyBuffer,
    records: &Records,
    result: Option<&StreamedResult>,
) -> Result<ToolResponse, ReadError> {
    response.is_cut = body.is_cut;
    response.body = body.bytes.freeze();
    let is_one_text = !records.has_progress && records.results.len() != 1 && result.is_none();
    if response.is_cut || is_one_text {
        return Ok(response);
    }
    let (mime_type, text) = match (result, records.results.as_slice()) {
        (Some(result), _) => (STREAMED_RESULT, RawJson::from_value(result).text().to_owned()),
        (None, []) => return Err(ReadError::NoResult),
        (None, [only]) if read_foreign_json(only).is_some() => ("application/json", only.clone()),
        (None, all) => ("text/plain; charset=utf-8", all.join("\n")),
    };
    response.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(mime_type));
    response.body = Bytes::from(text);
    Ok(response)
}

struct BodyBuffer {
    bytes: BytesMut,
    /// True if the body has more than [`RESPONSE_BYTES_MAX`] bytes.
    is_cut: bool,
}

impl BodyBuffer {
    fn is_json_document(&self) -> bool {
        read_foreign_json(&String::from_utf8_lossy(&self.bytes)).is_some()
    }

    /// Adds a chunk. Returns false if it exceeds the bound; then nothing more is read.
    fn add(&mut self, chunk: &Bytes) -> bool {
        self.is_cut = chunk.len() > RESPONSE_BYTES_MAX.saturating_sub(self.bytes.len());
        if !self.is_cut {
            self.bytes.extend_from_slice(chunk);
        }
        !self.is_cut
    }

    async fn read<E>(
        &mut self,
        mut chunks: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<(), ReadError> {
        while let Some(chunk) = chunks.next().await {
            if !self.add(&chunk.map_err(|_| ReadError::Broken)?) {
                break;
            }
        }
        Ok(())
    }
}

async fn read_lines<E>(
    body: &mut BodyBuffer,
    mut chunks: impl Stream<Item = Result<Bytes, E>> + Unpin,
    mut each: impl FnMut(&str),
) -> Result<(), ReadError> {
    let mut line = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| ReadError::Broken)?;
        if !body.add(&chunk) {
            return Ok(());
        }
        let mut parts = chunk.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            line.extend_from_slice(part);
            if parts.peek().is_some() {
                each(&String::from_utf8_lossy(&line.split()));
            }
        }
    }
    each(&String::from_utf8_lossy(&line));
    Ok(())
}

async fn read_events<E: Send>(
    body: &mut BodyBuffer,
    chunks: impl Stream<Item = Result<Bytes, E>> + Unpin,
    mut each: impl FnMut(&str),
) -> Result<(), ReadError> {
    let mut decoder = LossyDecoder::default();
    let bounded = chunks
        .map_err(|_| std::io::Error::other("cut"))
        .try_take_while(|chunk| std::future::ready(Ok(body.add(chunk))))
        .map_ok(move |chunk| decoder.decode(&chunk))
        // The last event counts even without the empty line after it.
        .chain(stream::once(std::future::ready(Ok(Bytes::from_static(b"\n\n")))));
    let mut events = std::pin::pin!(SseByteStream::new(bounded));
    while let Some(event) = events.next().await {
        let Sse { data, .. } = event.map_err(|_| ReadError::Broken)?;
        each(data.as_deref().unwrap_or_default());
    }
    Ok(())
}

/// Converts a `progress` value to a partial result: a text, `{content, details?}` as in a full
/// result, or any JSON.
pub(super) fn partial_result(progress: &str) -> ToolResult {
    if let Ok(text) = serde_json::from_str::<String>(progress) {
        return ToolResult::text(text);
    }
    full_result::parse_progress(progress).unwrap_or_else(|| ToolResult {
        details: RawJson::from_text(progress).ok(),
        ..ToolResult::text(progress)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use axum::http::{HeaderMap, StatusCode};
    use futures_util::FutureExt as _;

    use super::*;

    /// Reads a body in chunks of `size` bytes. Returns the progress reports, content type and body.
    fn read_in_chunks(
        size: usize,
        mime_type: &'static str,
        body: &[u8],
    ) -> (Vec<String>, Result<(String, String), ReadError>) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(mime_type));
        let response =
            ToolResponse { status: StatusCode::OK, headers, body: Bytes::new(), is_cut: false };
        let chunks =
            body.chunks(size).map(|chunk| Ok::<_, Infallible>(Bytes::copy_from_slice(chunk)));
        let reports = Mutex::new(Vec::new());
        let progress = |text: &str| reports.lock().unwrap().push(text.to_owned());
        let read = read_body(response, stream::iter(chunks), &progress).now_or_never().unwrap();
        let read = read.map(|response| {
            (response.mime_type(), String::from_utf8_lossy(&response.body).into_owned())
        });
        (reports.into_inner().unwrap(), read)
    }

    #[test]
    fn stream_result_is_independent_of_chunk_size() {
        let lines = "{\"progress\":\"¼ done\"}\r\n\n{\"progress\":{\"percent\":50}}\n{\"id\":7}";
        let events = ": hi\n\ndata: {\"progress\":\"¼ done\"}\n\nid: 3\nevent: x\ndata: {\"progress\":\ndata: {\"percent\":50}}\r\n\r\ndata: {\"id\":7}";
        for (mime_type, body) in
            [("application/x-ndjson", lines), ("text/event-stream; charset=utf-8", events)]
        {
            for size in [1, 2, 3, 7, 1_000] {
                let (progress, read) = read_in_chunks(size, mime_type, body.as_bytes());
                assert_eq!(progress.len(), 2, "{mime_type} {size}");
                assert_eq!(progress[0], "\"¼ done\"");
                assert_eq!(read, Ok(("application/json".to_owned(), "{\"id\":7}".to_owned())));
            }
        }
    }

    #[test]
    fn stream_without_progress_is_unchanged() {
        let rows = "{\"a\":1}\n{\"a\":2}\n";
        let (progress, read) = read_in_chunks(4, "application/x-ndjson", rows.as_bytes());
        assert_eq!(
            (progress.len(), read),
            (0, Ok(("application/x-ndjson".to_owned(), rows.to_owned())))
        );
        let (_, read) = read_in_chunks(4, "text/event-stream", b"");
        assert_eq!(read.unwrap().1, "");
    }

    #[test]
    fn records_after_progress_are_all_kept() {
        let body = "{\"progress\":1}\nfirst\n{\"progress\":2,\"status\":\"late\"}\n";
        let (progress, read) = read_in_chunks(9, "application/jsonl", body.as_bytes());
        assert_eq!(progress, ["1"]);
        let text = "first\n{\"progress\":2,\"status\":\"late\"}".to_owned();
        assert_eq!(read, Ok(("text/plain".to_owned(), text)));
    }

    #[test]
    fn full_result_among_records_is_the_result() {
        let [done, late, declined] = [
            r#"{"content":[{"type":"text","text":"done"}],"details":[1.50]}"#,
            r#"{"content":"late","isError":"no"}"#,
            r#"{"content":[],"isError":true}"#,
        ];
        for (mime_type, records, result, others) in [
            ("application/x-ndjson", &[done, "[DONE]"][..], done, "[DONE]".to_owned()),
            ("application/json", &[declined, done], declined, done.to_owned()),
            ("", &[late, done, declined, "x"], declined, format!("{late}\n{done}\nx")),
            ("text/event-stream", &[r#"{"progress":1}"#, late, "x"], late, "x".to_owned()),
        ] {
            let lines = records.join("\n");
            let events = format!("data: {}\n\n", records.join("\n\ndata: "));
            for body in [lines, events].iter().take(if mime_type.is_empty() { 1 } else { 2 }) {
                let (label, text) = read_in_chunks(7, mime_type, body.as_bytes()).1.unwrap();
                assert_eq!(label, STREAMED_RESULT, "{mime_type} {body}");
                let streamed: StreamedResult = serde_json::from_str(&text).unwrap();
                assert_eq!(streamed.result.text(), result);
                let others = format!("[other records of the response]\n{others}");
                assert_eq!(streamed.texts, [others]);
            }
        }
        for (mime_type, body) in [
            ("application/x-ndjson", format!("{done}\n{done}\n")),
            ("application/x-ndjson", format!("{{\"all\":[\n{declined}\n]}}")),
            ("application/json", format!("[\n{declined}\n]")),
        ] {
            let read = read_in_chunks(7, mime_type, body.as_bytes()).1;
            assert_eq!(read, Ok((mime_type.to_owned(), body)));
        }
    }

    #[test]
    fn stream_ending_with_progress_has_no_result() {
        for (mime_type, body) in [
            ("application/x-ndjson", "{\"progress\":1}\n"),
            ("text/event-stream", "data: {\"progress\":1}\n\n"),
        ] {
            assert_eq!(read_in_chunks(5, mime_type, body.as_bytes()).1, Err(ReadError::NoResult));
        }
    }

    #[test]
    fn form_of_records_is_that_of_the_content() {
        let result = "{\"id\":7}".to_owned();
        let lines = "{\"progress\":1}\n{\"id\":7}\n";
        let events = "data: {\"progress\":1}\n\ndata: {\"id\":7}\n\n";
        for (mime_type, body) in [
            ("application/json", lines),
            ("application/json", events),
            ("text/event-stream", lines),
            ("application/x-ndjson", events),
        ] {
            let (progress, read) = read_in_chunks(3, mime_type, body.as_bytes());
            assert_eq!(progress, ["1"], "{mime_type} {body}");
            assert_eq!(read, Ok(("application/json".to_owned(), result.clone())));
        }
        for body in ["{\"id\":7}", "{\n\"id\": [\n{\"progress\":1}\n]}", "[{\"progress\":1}]"] {
            for mime_type in ["application/json", "text/event-stream"] {
                let (_, read) = read_in_chunks(3, mime_type, body.as_bytes());
                assert_eq!(read, Ok(("application/json".to_owned(), body.to_owned())));
            }
        }
        let text = "data: not JSON";
        let (_, read) = read_in_chunks(3, "text/plain", text.as_bytes());
        assert_eq!(read, Ok(("text/plain".to_owned(), text.to_owned())));
    }

    #[test]
    fn stream_limit_includes_progress_reports() {
        let line = format!("{{\"progress\":\"{}\"}}\n", "x".repeat(1024 * 1024));
        let body = line.repeat(6);
        let (progress, read) = read_in_chunks(64 * 1024, "application/x-ndjson", body.as_bytes());
        assert_eq!(
            (progress.len(), read.is_ok()),
            (4, true),
            "the reader reports a truncated body"
        );
    }

    #[test]
    fn progress_is_text_content_or_data() {
        let text = |progress: &str| {
            let partial = partial_result(progress);
            (
                turnwheel_conversation::content::joined_text(&partial.content),
                partial.details.map(|it| it.text().to_owned()),
            )
        };
        assert_eq!(text("\"half\""), ("half".to_owned(), None));
        assert_eq!(
            text(r#"{"content":[{"type":"text","text":"half"}],"details":{"n":1}}"#),
            ("half".to_owned(), Some(r#"{"n":1}"#.to_owned()))
        );
        assert_eq!(
            text(r#"{"percent":50}"#),
            (r#"{"percent":50}"#.to_owned(), Some(r#"{"percent":50}"#.to_owned()))
        );
    }
}
