//! Parent side of an isolated turn: executes the child's port calls until the child ends or dies.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::mpsc;

use super::wire::{
    ArtifactCall, ArtifactFault, Beginning, Frame, FromChild, Lease, QueueFault, Reply, Request,
    StoreFault, TurnFault, encode, take_frame,
};
use crate::agent::raw::RawJson;
use crate::artifacts::{ArtifactError, Shelf};
use crate::live::LiveEvent;
use crate::store::{ClaimRequest, StoreError};
use crate::turn::World;
use crate::turn::delivery::Handled;

/// Time after the turn limit until a child counts as stuck and is killed. A turn normally ends by
/// itself within its limit.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Time for the last store requests of a dead child to complete.
const LAST_CALLS: Duration = Duration::from_secs(10);
/// Time for a child to exit after it has reported its outcome.
const LEAVES_WITHIN: Duration = Duration::from_secs(2);

/// Outcome of a child's turn.
pub(super) enum Served {
    Ended(Result<Handled, TurnFault>),
    /// The child died without an outcome; contains the reason.
    Died(String),
}

pub(super) async fn serve(
    world: &World,
    child: &mut Child,
    socket: UnixStream,
    beginning: &Beginning,
) -> Served {
    let (mut reader, mut writer) = socket.into_split();
    let (replies, mut outgoing) = mpsc::unbounded_channel::<Vec<u8>>();
    match encode(beginning, b"") {
        Ok(frame) => drop(replies.send(frame)),
        Err(error) => return Served::Died(format!("its first message could not be serialised: {error}")),
    }
    let mut writing = std::pin::pin!(async move {
        while let Some(frame) = outgoing.recv().await {
            if writer.write_all(&frame).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    });
    let mut stuck = std::pin::pin!(tokio::time::sleep(world.limits.turn + STUCK_AFTER));
    let (mut buffer, mut calls) = (BytesMut::new(), FuturesUnordered::new());
    let (mut is_open, mut is_stuck) = (true, false);
    let status = loop {
        tokio::select! {
            biased;
            read = reader.read_buf(&mut buffer), if is_open => {
                is_open = matches!(read, Ok(1..));
                while let Some(frame) = take_frame(&mut buffer) {
                    match serde_json::from_slice(&frame.json) {
                        Ok(FromChild::Call { id, request }) => {
                            calls.push(answer(world, id, *request, frame));
                        }
                        Ok(FromChild::Publish { key, event, epoch }) => {
                            world.live.publish(&key, with_epoch(*event, epoch));
                        }
                        Ok(FromChild::Ended(outcome)) => {
                            let _ = tokio::time::timeout(LEAVES_WITHIN, child.wait()).await;
                            return Served::Ended(outcome);
                        }
                        Err(error) => {
                            return Served::Died(format!("it sent an invalid message: {error}"));
                        }
                    }
                }
            }
            Some(reply) = calls.next(), if !calls.is_empty() => {
                // Sending cannot fail: the receiver lives as long as this loop.
                let _ = replies.send(reply);
            }
            () = &mut writing => {}
            status = child.wait() => break status,
            () = &mut stuck, if !is_stuck => {
                is_stuck = true;
                let _ = child.start_kill();
            }
        }
    };
    // Store requests in flight complete before another worker takes over.
    let _ = tokio::time::timeout(LAST_CALLS, async { while calls.next().await.is_some() {} }).await;
    if is_stuck {
        return Served::Died("it exceeded the time limit of a turn and was killed".to_owned());
    }
    Served::Died(status.map_or_else(|error| error.to_string(), |status| status.to_string()))
}

fn with_epoch(event: LiveEvent, epoch: Option<u64>) -> LiveEvent {
    match (event, epoch) {
        (LiveEvent::ToolUpdate(mut update), Some(epoch)) => {
            update.epoch = epoch;
            LiveEvent::ToolUpdate(update)
        }
        (event, _) => event,
    }
}

/// Executes a port call of the child and returns the encoded reply.
async fn answer(world: &World, id: u64, request: Request, frame: Frame) -> Vec<u8> {
    let (result, bytes) = Box::pin(perform(world, request, frame.bytes)).await;
    let reply = encode(&Reply { id, result }, &bytes);
    reply.unwrap_or_else(|error| {
        let result = RawJson::of(&Err::<(), _>(StoreFault::TooLarge(error.to_string())));
        encode(&Reply { id, result }, b"").unwrap_or_default()
    })
}

fn of_store<T: Serialize>(result: Result<T, StoreError>) -> (RawJson, Bytes) {
    (RawJson::of(&result.map_err(StoreFault::from)), Bytes::new())
}

async fn perform(world: &World, request: Request, bytes: Bytes) -> (RawJson, Bytes) {
    let store = &world.store;
    match request {
        Request::Write { partition, writes } => of_store(store.write(&partition, writes).await),
        Request::Read { partition, id, freshness } => {
            of_store(store.read(&partition, &id, freshness).await)
        }
        Request::Select { partition, selection, freshness } => {
            of_store(store.select(&partition, &selection, freshness).await)
        }
        Request::Claim(lease) => of_store(store.claim(asked(&lease)).await),
        Request::Renew(lease) => of_store(store.renew(asked(&lease)).await),
        Request::Release { key, worker } => {
            store.release(&key, &worker).await;
            of_store(Ok(()))
        }
        Request::Due { at, limit, continuation } => {
            of_store(store.due(at, limit, continuation.as_deref()).await)
        }
        Request::Heads(query) => of_store(store.heads(&query).await),
        Request::Send { queue, text, delay_ms } => {
            let sent = world.queue.send(&queue, text, Duration::from_millis(delay_ms)).await;
            (RawJson::of(&sent.map_err(QueueFault::from)), Bytes::new())
        }
        Request::Artifacts { shelf, call } => with_artifacts(world, &shelf, call, bytes).await,
    }
}

async fn with_artifacts(
    world: &World,
    shelf: &Shelf,
    call: ArtifactCall,
    bytes: Bytes,
) -> (RawJson, Bytes) {
    let artifacts = &world.artifacts;
    let result = match call {
        ArtifactCall::Put(facts) => of_artifacts(artifacts.put(shelf, &facts, bytes).await),
        ArtifactCall::Facts(id) => of_artifacts(artifacts.facts(shelf, &id).await),
        ArtifactCall::List => of_artifacts(artifacts.list(shelf).await),
        ArtifactCall::DeleteAll => of_artifacts(artifacts.delete_all(shelf).await),
        ArtifactCall::Get { id, range } => match artifacts.get(shelf, &id, range).await {
            Ok(bytes) => return (of_artifacts(Ok(())), bytes),
            Err(error) => of_artifacts::<()>(Err(error)),
        },
    };
    (result, Bytes::new())
}

fn of_artifacts<T: Serialize>(result: Result<T, ArtifactError>) -> RawJson {
    RawJson::of(&result.map_err(ArtifactFault::from))
}

fn asked(lease: &Lease) -> ClaimRequest<'_> {
    ClaimRequest { key: &lease.key, worker: &lease.worker, now: lease.now, until: lease.until }
}
