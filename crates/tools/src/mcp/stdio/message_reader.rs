//! Reader of the messages that a program writes, and of the requests without a response.

use std::collections::VecDeque;

use rmcp::model::{
    CustomRequest, ErrorData, JsonRpcMessage, PingRequest, RequestId, ServerJsonRpcMessage,
    ServerRequest,
};
use serde_json::json;

use crate::http::redactor::Redactor;
use crate::mcp::message::{ServerMessage, ServerResponse, read_messages, too_large_message};
use crate::mcp::progress::{self, ProgressListener};
use crate::mcp::stdio::ProgramLine;
use crate::mcp::unmatched_output::UnmatchedOutput;
use turnwheel_json::raw::RawJson;

/// A request without a response.
pub(super) struct OpenRequest {
    pub(super) id: RequestId,
    pub(super) is_handshake: bool,
    /// As it is written.
    pub(super) progress_token: Option<String>,
    pub(super) on_progress: Option<ProgressListener>,
    pub(super) output: Option<UnmatchedOutput>,
}

/// Messages of the lines of a program.
pub(super) struct MessageReader {
    pub(super) open: Vec<OpenRequest>,
    pub(super) received: VecDeque<ServerJsonRpcMessage>,
    pub(super) redactor: Redactor,
    /// True if output may be a late response to a cancelled request.
    has_cancelled: bool,
    /// True if the line that has not ended began before the last request was sent.
    pub(super) has_older_line: bool,
}

impl MessageReader {
    pub(super) fn new(redactor: Redactor) -> Self {
        let (open, received) = (Vec::new(), VecDeque::new());
        Self { open, received, redactor, has_cancelled: false, has_older_line: false }
    }

    /// The output of the request to which all output belongs that is no message.
    pub(super) fn output_of_only_request(&self) -> Option<&UnmatchedOutput> {
        let [request] = self.open.as_slice() else { return None };
        request.output.as_ref().filter(|_| !self.has_cancelled && !self.has_older_line)
    }

    pub(super) fn read(&mut self, line: ProgramLine) {
        for output in self.open.iter().filter_map(|request| request.output.as_ref()) {
            output.end_line();
        }
        let is_older = std::mem::take(&mut self.has_older_line);
        let ProgramLine::Whole(line) = line else {
            // Only one request can have it.
            if let [OpenRequest { id, is_handshake: false, .. }] = self.open.as_slice() {
                self.received.push_back(too_large_message(id.clone()));
                self.open.clear();
            }
            return;
        };
        let text = encoding_rs::UTF_8.decode(&line).0;
        let redact = |string: &str| {
            let redacted = self.redactor.redact(string);
            (redacted != string).then_some(redacted)
        };
        let mut is_matched = false;
        for message in read_messages(&text, &redact).unwrap_or_default() {
            is_matched |= self.add_message(message);
        }
        // Lines that are no JSON are logs of the program, or spoilt responses.
        if !(is_matched || is_older)
            && let Some(output) = self.output_of_only_request()
        {
            output.add_line(&line, &self.redactor);
        }
    }

    /// True if it is a response to an open or an earlier request, or was sent while the program works on one.
    fn add_message(&mut self, message: ServerMessage) -> bool {
        match message {
            ServerMessage::Response(response) => return self.add_response(response),
            ServerMessage::Request { id, method } => {
                let request = if method == "ping" {
                    ServerRequest::PingRequest(PingRequest::default())
                } else {
                    ServerRequest::CustomRequest(CustomRequest::new(method, None))
                };
                self.received.push_back(JsonRpcMessage::request(request, id));
            }
            ServerMessage::Notification { method, params: Some(params) }
                if method == progress::METHOD =>
            {
                self.report_progress(&params);
            }
            ServerMessage::Notification { .. } => {}
            ServerMessage::Unknown => return false,
        }
        true
    }

    fn report_progress(&self, params: &RawJson) {
        let token = progress::token(params);
        let request = self.open.iter().find(|it| token.is_some() && it.progress_token == token);
        if let Some(listener) = request.and_then(|request| request.on_progress.as_ref()) {
            progress::report(params, listener);
        }
    }

    /// The line that cancels a request, if it is open.
    pub(super) fn cancel(&mut self, id: &RequestId) -> Option<String> {
        let index = self.open.iter().position(|request| request.id == *id)?;
        self.open.remove(index);
        self.has_cancelled = true;
        let params = json!({ "requestId": id, "reason": "the caller does not wait any more" });
        let notice =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        Some(format!("{notice}\n"))
    }

    /// An error without an id belongs to the only open request. Returns false if neither an open request
    /// has it nor an earlier one, perhaps of another user.
    fn add_response(&mut self, response: ServerResponse) -> bool {
        let is_for = |OpenRequest { id, .. }: &OpenRequest| {
            response.has_id(id)
                || (response.has_no_id() && response.is_error() && self.open.len() == 1)
        };
        let Some(index) = self.open.iter().position(is_for) else {
            tracing::debug!("JSON-RPC response of an MCP server to no open request");
            return self.open.iter().any(|request| response.has_id_before(&request.id));
        };
        let OpenRequest { id, is_handshake, .. } = self.open.remove(index);
        let message = response.into_message(id.clone(), is_handshake).unwrap_or_else(|failure| {
            JsonRpcMessage::error(ErrorData::internal_error(failure.to_string(), None), Some(id))
        });
        self.received.push_back(message);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;
    use tokio::time::timeout;

    use super::*;
    use crate::ToolResult;
    use crate::http::template::SettingSecret;
    use crate::http::tool_response::RESPONSE_BYTES_MAX;
    use crate::mcp::failure::McpFailure;
    use crate::mcp::message::received_result;
    use crate::mcp::stdio::LineReader;
    use turnwheel_conversation::content::joined_text;

    fn open(id: i64) -> OpenRequest {
        OpenRequest {
            id: RequestId::Number(id),
            is_handshake: false,
            progress_token: Some(id.to_string()),
            on_progress: None,
            output: Some(UnmatchedOutput::default()),
        }
    }

    fn reader() -> MessageReader {
        let secrets =
            [("KEY", "s3\"cret-ü"), ("DB", "postgres://u:p4ssword@host/db"), ("PIN", "12345678")];
        let secrets = secrets
            .map(|(name, value)| SettingSecret { name: name.to_owned(), value: value.to_owned() });
        let mut reader = MessageReader::new(Redactor::new(secrets.iter()));
        reader.open = vec![open(1)];
        reader
    }

    fn shown(reader: &MessageReader) -> String {
        reader.open[0].output.as_ref().unwrap().redacted(&reader.redactor)
    }

    fn received(reader: &mut MessageReader, line: &str) -> Option<Result<String, String>> {
        reader.read(ProgramLine::Whole(line.as_bytes().to_vec()));
        let JsonRpcMessage::Response(response) = reader.received.pop_front()? else { return None };
        let received = received_result(response.result);
        Some(received.map(|it| it.json.text().to_owned()).map_err(|it| it.to_string()))
    }

    #[test]
    fn program_never_shows_app_settings() {
        for (written, expected) in [
            (json!("a s3\"cret-ü b").to_string(), "\"a [KEY] b\""),
            (r#""a s3\u0022cret-\u00fc b""#.to_owned(), "\"a [KEY] b\""),
            (r#"{"s3\"cret-ü":[12345678]}"#.to_owned(), r#"{"[KEY]":["[PIN]"]}"#),
            (r#""postgres:\/\/u:p4ssword@host\/db""#.to_owned(), "\"[DB]\""),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{written}}}"#);
            assert_eq!(received(&mut reader(), &line), Some(Ok(expected.to_owned())));
        }
        let line = r#"{"id":1,"error":{"code":5,"message":"no s3\"cret-ü"}}"#;
        let refused = received(&mut reader(), line).unwrap().unwrap_err();
        assert_eq!(refused, "it responded with the error 5: no [KEY]");
    }

    #[test]
    fn error_without_id_belongs_to_only_open_request() {
        let line = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no"}}"#;
        assert!(received(&mut reader(), line).unwrap().is_err());
        let mut two = reader();
        two.open.push(open(2));
        assert_eq!(received(&mut two, line), None);
        assert_eq!(received(&mut two, "[INFO] {not json}"), None);
        assert!(received(&mut two, r#"{"id":"2","result":{}}"#).unwrap().is_ok());
        assert!(received(&mut two, line).unwrap().is_err());
    }

    #[tokio::test]
    async fn long_line_is_a_response_and_costs_no_memory() {
        let long = format!("{}\nshort\nrest", "x".repeat(RESPONSE_BYTES_MAX + 1));
        let mut lines = LineReader::new(long.as_bytes());
        assert_eq!(lines.next(None).await, Some(ProgramLine::TooLong));
        assert_eq!(lines.next(None).await, Some(ProgramLine::Whole(b"short\n".to_vec())));
        assert_eq!(lines.next(None).await, Some(ProgramLine::Whole(b"rest".to_vec())));
        assert_eq!(lines.next(None).await, None);
        let mut reader = reader();
        reader.read(ProgramLine::TooLong);
        let JsonRpcMessage::Response(response) = reader.received.pop_front().unwrap() else {
            panic!("no response")
        };
        let failure = received_result(response.result).unwrap_err();
        assert_eq!(failure, McpFailure::too_large());
    }

    #[test]
    fn progress_reaches_the_call_with_its_token() {
        let mut reader = reader();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&seen);
        reader.open[0].on_progress = Some(Arc::new(move |partial: &ToolResult| {
            listener.lock().unwrap().push(joined_text(&partial.content));
        }));
        for params in [
            r#"{"progressToken":1,"progress":1,"message":"uses s3\"cret-ü"}"#,
            r#"{"progressToken":1,"progress":2,"total":3}"#,
            r#"{"progressToken":2,"progress":9}"#,
            r#"{"progress":9}"#,
        ] {
            let line = format!(r#"{{"method":"notifications/progress","params":{params}}}"#);
            assert_eq!(received(&mut reader, &line), None);
        }
        assert_eq!(*seen.lock().unwrap(), ["uses [KEY]", "2/3"]);
    }

    /// The program writes a line in parts, and its end never comes.
    #[tokio::test(start_paused = true)]
    async fn output_without_a_message_belongs_to_the_only_request() {
        let (mut program, output) = tokio::io::duplex(1_024);
        let mut lines = LineReader::new(tokio::io::BufReader::new(output));
        let mut reader = reader();
        let log = "Traceback\n{\"id\":9,\"result\":1}";
        let late = "{\"id\":0,\"result\":\"of an earlier request\"}";
        let texts = [
            format!("{{\"method\":\"notifications/message\"}}\n{late}\n{log}\n{{\"id\":1,"),
            r#""result":"booked 4711 for 1234567"#.to_owned(),
        ];
        for text in texts {
            program.write_all(text.as_bytes()).await.unwrap();
            loop {
                let output = reader.output_of_only_request().cloned();
                let next = timeout(Duration::from_secs(1), lines.next(output.as_ref())).await;
                let Ok(line) = next else { break };
                reader.read(line.unwrap());
            }
        }
        let expected = format!("{log}\n{{\"id\":1,\"result\":\"booked 4711 for [PIN]");
        assert_eq!(shown(&reader), expected);
        assert_eq!(received(&mut reader, "spoilt\n"), None);
        assert_eq!(shown(&reader), format!("{log}\nspoilt"));
        reader.open.push(open(2));
        assert_eq!(received(&mut reader, "of either request"), None);
        assert!(reader.cancel(&RequestId::Number(2)).is_some());
        assert_eq!(received(&mut reader, "of the cancelled request"), None);
        assert_eq!(shown(&reader), format!("{log}\nspoilt"));
    }

    #[test]
    fn line_begun_before_a_request_is_not_its_output() {
        let mut reader = reader();
        reader.has_older_line = true;
        assert!(reader.output_of_only_request().is_none());
        assert_eq!(received(&mut reader, "of an earlier request\n"), None);
        assert_eq!(received(&mut reader, "booked 4711\n"), None);
        assert_eq!(shown(&reader), "booked 4711");
    }

    #[test]
    fn only_an_open_request_is_cancelled() {
        let mut reader = reader();
        let notice = reader.cancel(&RequestId::Number(1)).unwrap();
        assert!(notice.contains(r#""method":"notifications/cancelled""#), "{notice}");
        assert!(notice.contains(r#""requestId":1"#) && notice.ends_with('\n'), "{notice}");
        assert_eq!(reader.cancel(&RequestId::Number(1)), None);
    }
}
