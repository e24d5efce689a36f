//! Reader of a streamed response. Events that are no messages cost only themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use rmcp::model::RequestId;
use sse_stream::SseByteStream;

use crate::http::text::LossyDecoder;
use crate::http::tool_response::RESPONSE_BYTES_MAX;
use crate::mcp::failure::{McpFailure, ResponseExcerpt};
use crate::mcp::message::{SHOWN_BYTES_MAX, ServerAnswer, ServerMessage, shown};
use crate::mcp::progress;
use crate::mcp::transport::{CUT_OFF, GuardedTransport, McpExchange};

pub(super) struct StreamReader<'t> {
    pub(super) transport: &'t GuardedTransport,
    pub(super) headers: &'t HeaderMap,
    pub(super) exchange: &'t McpExchange,
    /// The access token of the request.
    pub(super) bearer: Option<&'t HeaderValue>,
}

impl StreamReader<'_> {
    /// Reads events up to the answer to the request.
    pub(super) async fn read<E: Send>(
        &self,
        chunks: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
        id: &RequestId,
    ) -> Result<ServerAnswer, McpFailure> {
        let mut left = RESPONSE_BYTES_MAX;
        let mut decoder = LossyDecoder::default();
        let bounded = chunks.map(move |chunk| {
            let chunk = chunk.map_err(|_| std::io::Error::other(CUT_OFF))?;
            left = left.checked_sub(chunk.len()).ok_or(std::io::ErrorKind::FileTooLarge)?;
            Ok::<_, std::io::Error>(decoder.decode(&chunk))
        });
        let is_too_large = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_too_large);
        let bounded = bounded
            .inspect_err(move |error| {
                let large = error.kind() == std::io::ErrorKind::FileTooLarge;
                seen.fetch_or(large, Ordering::SeqCst);
            })
            // The last event counts even without the empty line after it.
            .chain(stream::once(std::future::ready(Ok(Bytes::from_static(b"\n\n")))));
        let mut events = std::pin::pin!(SseByteStream::new(bounded));
        // The beginning of what was no answer.
        let mut others = String::new();
        let mut has_work_begun = false;
        while let Some(event) = events.next().await {
            let Ok(event) = event else {
                if is_too_large.load(Ordering::SeqCst) {
                    return Err(McpFailure::too_large());
                }
                return Err(self.lost(CUT_OFF, &others));
            };
            let data = event.data.unwrap_or_default();
            let Some(messages) = self.transport.read_messages(&data, self.bearer) else {
                keep_beginning(&mut others, &data);
                continue;
            };
            for message in messages {
                has_work_begun |= message.is_server_initiated();
                match self.handle(message, id).await {
                    Some(Ok(mut answer)) => {
                        answer.has_work_begun = has_work_begun;
                        return Ok(answer);
                    }
                    Some(Err(_other_answer)) => keep_beginning(&mut others, &data),
                    None => {}
                }
            }
        }
        Err(self.lost("the response ended without a result", &others))
    }

    /// Returns an answer: the one to the request, or another one as an error. Handles other messages.
    async fn handle(
        &self,
        message: ServerMessage,
        id: &RequestId,
    ) -> Option<Result<ServerAnswer, ServerAnswer>> {
        match message {
            ServerMessage::Answer(answer) if answer.has_id(id) || answer.has_no_id() => {
                Some(Ok(answer))
            }
            ServerMessage::Answer(answer) => Some(Err(answer)),
            ServerMessage::Request { id, method } => {
                self.transport.reply(id, &method, self.headers).await;
                None
            }
            ServerMessage::Notification { method, params } => {
                if let Some(params) = params.filter(|_| method == progress::METHOD)
                    && let Some(listener) = &self.exchange.on_progress
                {
                    progress::report(&params, listener);
                }
                None
            }
            ServerMessage::Unknown => None,
        }
    }

    fn lost(&self, what: &str, others: &str) -> McpFailure {
        let received = self.transport.hide_secrets(others, self.bearer);
        McpFailure::Lost(ResponseExcerpt::new(what, &received))
    }
}

fn keep_beginning(kept: &mut String, data: &str) {
    // Twice the bound, since secrets are removed later.
    if kept.len() < 2 * SHOWN_BYTES_MAX {
        kept.push_str(&shown(data, 2 * SHOWN_BYTES_MAX));
        kept.push(' ');
    }
}
