//! Reader of the events of a response. Events that are no messages cost only themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use rmcp::model::RequestId;
use sse_stream::SseByteStream;

use crate::http::text::LossyDecoder;
use crate::http::tool_response::RESPONSE_BYTES_MAX;
use crate::mcp::failure::McpFailure;
use crate::mcp::message::{ServerMessage, ServerResponse};
use crate::mcp::progress;
use crate::mcp::transport::CUT_OFF;
use crate::mcp::transport::response_reader::ResponseReader;

impl ResponseReader<'_> {
    /// Reads events up to the JSON-RPC response to the request.
    pub(super) async fn read_events<E: Send>(
        &self,
        chunks: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
        id: &RequestId,
    ) -> Result<ServerResponse, McpFailure> {
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
        let mut has_work_begun = false;
        while let Some(event) = events.next().await {
            let Ok(event) = event else {
                if is_too_large.load(Ordering::SeqCst) {
                    return Err(McpFailure::too_large());
                }
                return Err(McpFailure::Lost(CUT_OFF.into()));
            };
            let data = event.data.unwrap_or_default();
            for message in self.transport.read_messages(&data, self.bearer).unwrap_or_default() {
                has_work_begun |= message.is_server_initiated();
                if let Some(mut rpc_response) = self.handle(message, id).await {
                    rpc_response.has_work_begun = has_work_begun;
                    return Ok(rpc_response);
                }
            }
        }
        Err(McpFailure::Lost("the response ended without a result".into()))
    }

    /// Returns the JSON-RPC response to the request. Handles other messages.
    async fn handle(&self, message: ServerMessage, id: &RequestId) -> Option<ServerResponse> {
        match message {
            ServerMessage::Response(rpc_response) => {
                (rpc_response.has_id(id) || rpc_response.has_no_id()).then_some(rpc_response)
            }
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
}
