//! Messages between the runner and the sandbox: a header as JSON, then the bytes of its files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::shell::{RefusalReason, ShellCommandEnd, ShellLimits};

/// Bytes of a header.
const HEADER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Header of a request. Its files follow in this order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RequestHeader {
    pub(super) command: String,
    pub(super) folder: String,
    pub(super) limits: ShellLimits,
    /// Paths and sizes.
    pub(super) files: Vec<(String, u64)>,
}

/// Arguments of the last stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SandboxCommand {
    pub(super) command: String,
    pub(super) folder: String,
    pub(super) limits: ShellLimits,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ResponseHeader {
    /// The command did not start.
    Unavailable(String),
    /// The output follows, then the files.
    Finished(SandboxResult),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SandboxResult {
    pub(super) end: ShellCommandEnd,
    pub(super) output_bytes: u64,
    pub(super) dropped_bytes: u64,
    pub(super) changes: Result<ChangesHeader, String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ChangesHeader {
    pub(super) written: Vec<(String, u64)>,
    pub(super) deleted: BTreeSet<String>,
    pub(super) refused: BTreeMap<String, RefusalReason>,
    pub(super) further_refused: u64,
}

pub(super) fn write_header(to: &mut impl Write, header: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(header)?;
    to.write_all(&(text.len() as u64).to_be_bytes())?;
    to.write_all(&text)
}

pub(super) fn read_header<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let text = read_body(from, u64::from_be_bytes(length), HEADER_BYTES_MAX)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Reads `size` bytes.
///
/// # Errors
/// The input ends earlier, or `size` is above `max`.
pub(super) fn read_body(from: &mut impl Read, size: u64, max: u64) -> io::Result<Bytes> {
    if size > max {
        return Err(io::Error::other("a part of the message is too large"));
    }
    let mut bytes = Vec::new();
    if from.take(size).read_to_end(&mut bytes)? as u64 != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes.into())
}
