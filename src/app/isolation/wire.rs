//! Protocol between an isolated process and its parent: frames with a JSON part and a byte part.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::agent::raw::RawJson;
use crate::app::agent_files::AgentsInForce;
use crate::artifacts::{ArtifactError, ArtifactFacts, Shelf};
use crate::clock::Timestamp;
use crate::ids::{ArtifactId, ConversationKey, WorkerId};
use crate::live::LiveEvent;
use crate::queue::QueueError;
use crate::store::{Freshness, HeadQuery, Partition, Selection, StoreError, Write};
use crate::turn::Nudge;
use crate::turn::delivery::{Handled, TurnError};

/// Size of the frame prefix: the lengths of the JSON part and the byte part, four bytes each.
pub(super) const PREFIX: usize = 8;

/// Source of the settings.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::app) enum SettingsSource {
    /// Environment variables, which the Functions host sets.
    Environment,
    /// Environment variables, then `local.settings.json`.
    Local,
}

/// Content of the first frame: everything a child needs besides its environment.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Beginning {
    pub(super) nudge: Nudge,
    /// Worker id with which the child acquires its lease.
    pub(super) worker: WorkerId,
    pub(super) settings: SettingsSource,
    pub(super) payments_url: Option<String>,
    pub(super) root: PathBuf,
    /// Folder of the agent files, used in messages.
    pub(super) agents: Option<PathBuf>,
    pub(super) agents_in_force: AgentsInForce,
    pub(super) writes_notices: bool,
    pub(super) turn_ms: u64,
    pub(super) settle_after_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromChild {
    /// The parent sends a [`PortReply`] with the same id.
    Call { id: u64, request: Box<Request> },
    /// `epoch` is that of a tool update, which does not serialise its own `epoch` field.
    Publish { key: ConversationKey, event: Box<LiveEvent>, epoch: Option<u64> },
    /// The last frame.
    Ended(Result<Handled, TurnFault>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) id: u64,
    /// A serialised `Result` with the types of the requested port method.
    pub(super) result: RawJson,
}

/// A call of a port method.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Write { partition: Partition, writes: Vec<Write> },
    Read { partition: Partition, id: String, freshness: Freshness },
    Select { partition: Partition, selection: Selection, freshness: Freshness },
    Claim(Lease),
    Renew(Lease),
    Release { key: ConversationKey, worker: WorkerId },
    Due { at: Timestamp, limit: usize, continuation: Option<String> },
    Heads(HeadQuery),
    Send { queue: String, text: String, delay_ms: u64 },
    Artifacts { shelf: Shelf, call: ArtifactCall },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ArtifactCall {
    /// The artifact bytes are in the byte part of the frame.
    Put(ArtifactFacts),
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
pub(super) struct Lease {
    pub(super) key: ConversationKey,
    pub(super) worker: WorkerId,
    pub(super) now: Timestamp,
    pub(super) until: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StoreFault {
    Conflict,
    TooLarge(String),
    Invalid(String),
    Unavailable(String),
    Corrupt(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum QueueFault {
    Gone,
    TooLarge(usize),
    BadCharacter(char),
    Unavailable(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ArtifactFault {
    NotFound,
    TooLarge(u64),
    Unavailable(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum TurnFault {
    LeaseLost,
    Store(StoreFault),
}

impl From<StoreError> for StoreFault {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict => Self::Conflict,
            StoreError::TooLarge(what) => Self::TooLarge(what),
            StoreError::Invalid(what) => Self::Invalid(what),
            StoreError::Unavailable(source) => Self::Unavailable(chain(&*source)),
            StoreError::Corrupt(what) => Self::Corrupt(what),
        }
    }
}

impl From<StoreFault> for StoreError {
    fn from(fault: StoreFault) -> Self {
        match fault {
            StoreFault::Conflict => Self::Conflict,
            StoreFault::TooLarge(what) => Self::TooLarge(what),
            StoreFault::Invalid(what) => Self::Invalid(what),
            StoreFault::Unavailable(what) => Self::Unavailable(what.into()),
            StoreFault::Corrupt(what) => Self::Corrupt(what),
        }
    }
}

impl From<QueueError> for QueueFault {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Gone => Self::Gone,
            QueueError::TooLarge(bytes) => Self::TooLarge(bytes),
            QueueError::BadCharacter(character) => Self::BadCharacter(character),
            QueueError::Unavailable(source) => Self::Unavailable(chain(&*source)),
        }
    }
}

impl From<QueueFault> for QueueError {
    fn from(fault: QueueFault) -> Self {
        match fault {
            QueueFault::Gone => Self::Gone,
            QueueFault::TooLarge(bytes) => Self::TooLarge(bytes),
            QueueFault::BadCharacter(character) => Self::BadCharacter(character),
            QueueFault::Unavailable(what) => Self::Unavailable(what.into()),
        }
    }
}

impl From<ArtifactError> for ArtifactFault {
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::NotFound => Self::NotFound,
            ArtifactError::TooLarge(bytes) => Self::TooLarge(bytes),
            ArtifactError::Unavailable(source) => Self::Unavailable(chain(&*source)),
        }
    }
}

impl From<ArtifactFault> for ArtifactError {
    fn from(fault: ArtifactFault) -> Self {
        match fault {
            ArtifactFault::NotFound => Self::NotFound,
            ArtifactFault::TooLarge(bytes) => Self::TooLarge(bytes),
            ArtifactFault::Unavailable(what) => Self::Unavailable(what.into()),
        }
    }
}

impl From<TurnError> for TurnFault {
    fn from(error: TurnError) -> Self {
        match error {
            TurnError::ClaimLost { .. } => Self::LeaseLost,
            TurnError::Store { source, .. } => Self::Store(source.into()),
        }
    }
}

impl TurnFault {
    pub(super) fn of(self, key: &ConversationKey) -> TurnError {
        let key = key.clone();
        match self {
            Self::LeaseLost => TurnError::ClaimLost { key },
            Self::Store(fault) => {
                TurnError::Store { key, what: "run in isolation", source: fault.into() }
            }
        }
    }
}

/// Error type of a call that can represent a missing or invalid reply.
pub(super) trait Unreadable {
    fn unreadable(why: String) -> Self;
}

impl Unreadable for StoreFault {
    fn unreadable(why: String) -> Self {
        Self::Unavailable(why)
    }
}

impl Unreadable for QueueFault {
    fn unreadable(why: String) -> Self {
        Self::Unavailable(why)
    }
}

impl Unreadable for ArtifactFault {
    fn unreadable(why: String) -> Self {
        Self::Unavailable(why)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

pub(super) fn span_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) json: Bytes,
    pub(super) bytes: Bytes,
}

/// # Errors
/// The JSON or the bytes exceed 4 GiB, or serialisation failed: report the call as failed.
pub(super) fn encode(message: &impl Serialize, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    let too_long = |_| std::io::Error::other("a message to another process exceeds 4 GiB");
    let mut frame = Vec::with_capacity(PREFIX + json.len() + bytes.len());
    for length in [json.len(), bytes.len()] {
        frame.extend(u32::try_from(length).map_err(too_long)?.to_be_bytes());
    }
    frame.extend_from_slice(&json);
    frame.extend_from_slice(bytes);
    Ok(frame)
}

/// Decodes the lengths of the JSON part and the byte part from a frame prefix.
pub(super) fn lengths(prefix: [u8; PREFIX]) -> (usize, usize) {
    let mut prefix = &prefix[..];
    (prefix.get_u32() as usize, prefix.get_u32() as usize)
}

/// Removes the first complete frame from the buffer. Returns `None` if it is incomplete.
pub(super) fn take_frame(buffer: &mut BytesMut) -> Option<Frame> {
    let (json, bytes) = lengths(*buffer.first_chunk::<PREFIX>()?);
    let whole = PREFIX + json + bytes;
    if buffer.len() < whole {
        buffer.reserve(whole - buffer.len());
        return None;
    }
    buffer.advance(PREFIX);
    let json = buffer.split_to(json).freeze();
    let bytes = buffer.split_to(bytes).freeze();
    Some(Frame { json, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_any_pieces() {
        let frames = [
            encode(&"one", b"bytes").unwrap(),
            encode(&FromChild::Ended(Ok(Handled::Worked)), b"").unwrap(),
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
