//! Protocol between an isolated process and its parent: frames with a JSON part and a byte part.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::app::SettingsSource;
use crate::start::agent_files::ActiveAgents;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::error_chain::as_text;
use turnwheel_platform::ids::{ArtifactId, ConversationKey, WorkerId};
use turnwheel_platform::shutdown::StopTimes;
use turnwheel_record::error::{DeliveryOutcome, TurnError};
use turnwheel_record::nudge::Nudge;
use turnwheel_storage::artifacts::{ArtifactMetadata, ArtifactScope};
use turnwheel_storage::live::LiveEvent;
use turnwheel_storage::store::{
    Freshness, HeadQuery, Partition, SearchQuery, Selection, StoreError, Write,
};

pub(super) type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Size of the frame prefix: the lengths of the JSON part and the byte part, four bytes each.
pub(super) const PREFIX_BYTES: usize = 8;

/// Content of the first frame: everything a child needs besides its environment.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChildInit {
    pub(super) nudge: Nudge,
    /// Worker id with which the child acquires its lease.
    pub(super) worker: WorkerId,
    pub(super) settings: SettingsSource,
    pub(super) payments_url: Option<String>,
    pub(super) root: PathBuf,
    /// Folder of the agent files, used in messages.
    pub(super) agents: Option<PathBuf>,
    pub(super) active_agents: ActiveAgents,
    pub(super) stores_notifications: bool,
    pub(super) turn_ms: u64,
    pub(super) settle_after_ms: u64,
    /// Ports of the parent, which no tool may reach.
    #[serde(default)]
    pub(super) own_ports: Vec<u16>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ChildMessage {
    /// The parent sends a [`PortReply`] with the same id.
    Call { id: u64, request: Box<PortRequest> },
    /// `epoch` is that of a tool update, which does not serialise its own `epoch` field.
    Publish { key: ConversationKey, event: Box<LiveEvent>, epoch: Option<u64> },
    /// The last frame.
    Ended(Result<DeliveryOutcome, WireTurnError>),
}

/// Content of the parent's frames after the first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ParentMessage {
    Reply(PortReply),
    /// The process ends: work under way has these times left. Sent again when they get shorter.
    Stop(StopTimes),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PortReply {
    pub(super) id: u64,
    /// A serialised `Result` with the types of the requested port method.
    pub(super) result: RawJson,
}

/// A call of a port method.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PortRequest {
    Write { partition: Partition, writes: Vec<Write> },
    Read { partition: Partition, id: String, freshness: Freshness },
    Select { partition: Partition, selection: Selection, freshness: Freshness },
    AcquireLease(LeaseParams),
    RenewLease(LeaseParams),
    ReleaseLease { key: ConversationKey, worker: WorkerId },
    Due { at: Timestamp, limit: usize, continuation: Option<String> },
    Heads(HeadQuery),
    Search(SearchQuery),
    Send { queue: String, text: String, delay_ms: u64 },
    Artifacts { scope: ArtifactScope, call: ArtifactCall },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ArtifactCall {
    /// The artifact bytes are in the byte part of the frame.
    Put(ArtifactMetadata),
    Facts(ArtifactId),
    /// The artifact bytes are in the byte part of the reply's frame.
    Get {
        id: ArtifactId,
        range: Option<Range<u64>>,
    },
    List,
    DeleteAll,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeaseParams {
    pub(super) key: ConversationKey,
    pub(super) worker: WorkerId,
    pub(super) now: Timestamp,
    pub(super) until: Timestamp,
    pub(super) expired: Option<Timestamp>,
}

/// [`StoreError`] with the causes as text.
#[derive(Serialize, Deserialize)]
#[serde(remote = "StoreError")]
enum StoreErrorFields {
    Conflict,
    TooLarge(String),
    Invalid(String),
    Unavailable(#[serde(with = "as_text")] BoxedError),
    Corrupt(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireStoreError(#[serde(with = "StoreErrorFields")] pub(super) StoreError);

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireTurnError {
    LeaseLost,
    Stopped,
    Store(WireStoreError),
}

impl From<TurnError> for WireTurnError {
    fn from(error: TurnError) -> Self {
        match error {
            TurnError::LeaseLost { .. } => Self::LeaseLost,
            TurnError::Stopped { .. } => Self::Stopped,
            TurnError::Store { source, .. } => Self::Store(WireStoreError(source)),
        }
    }
}

impl WireTurnError {
    pub(super) fn into_turn_error(self, key: &ConversationKey) -> TurnError {
        let key = key.clone();
        match self {
            Self::LeaseLost => TurnError::LeaseLost { key },
            Self::Stopped => TurnError::Stopped { key },
            Self::Store(error) => {
                TurnError::Store { key, what: "run in isolation", source: error.0 }
            }
        }
    }
}

pub(super) fn duration_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
pub(super) struct IpcFrame {
    pub(super) json: Bytes,
    pub(super) bytes: Bytes,
}

/// # Errors
/// The JSON or the bytes exceed 4 GiB, or serialisation failed: report the call as failed.
pub(super) fn encode_frame(message: &impl Serialize, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    let too_long = |_| std::io::Error::other("a message to another process exceeds 4 GiB");
    let mut frame = Vec::with_capacity(PREFIX_BYTES + json.len() + bytes.len());
    for length in [json.len(), bytes.len()] {
        frame.extend(u32::try_from(length).map_err(too_long)?.to_be_bytes());
    }
    frame.extend_from_slice(&json);
    frame.extend_from_slice(bytes);
    Ok(frame)
}

/// Decodes the lengths of the JSON part and the byte part from a frame prefix.
pub(super) fn decode_lengths(prefix: [u8; PREFIX_BYTES]) -> (usize, usize) {
    let mut prefix = &prefix[..];
    (prefix.get_u32() as usize, prefix.get_u32() as usize)
}

/// Removes the first complete frame from the buffer. Returns `None` if it is incomplete.
pub(super) fn take_frame(buffer: &mut BytesMut) -> Option<IpcFrame> {
    let (json, bytes) = decode_lengths(*buffer.first_chunk::<PREFIX_BYTES>()?);
    let frame_bytes = PREFIX_BYTES + json + bytes;
    if buffer.len() < frame_bytes {
        buffer.reserve(frame_bytes - buffer.len());
        return None;
    }
    buffer.advance(PREFIX_BYTES);
    let json = buffer.split_to(json).freeze();
    let bytes = buffer.split_to(bytes).freeze();
    Some(IpcFrame { json, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_decode_from_partial_reads() {
        let frames = [
            encode_frame(&"one", b"bytes").unwrap(),
            encode_frame(&ChildMessage::Ended(Ok(DeliveryOutcome::Worked)), b"").unwrap(),
        ]
        .concat();
        for piece in 1..frames.len() {
            let mut buffer = BytesMut::new();
            let mut taken = Vec::new();
            for bytes in frames.chunks(piece) {
                buffer.extend_from_slice(bytes);
                while let Some(frame) = take_frame(&mut buffer) {
                    taken.push((frame.json, frame.bytes));
                }
            }
            assert_eq!(taken[0], (Bytes::from("\"one\""), Bytes::from("bytes")));
            assert_eq!(taken[1].0, r#"{"Ended":{"Ok":"Worked"}}"#);
            assert_eq!(taken.len(), 2);
        }
    }
}
