//! Parent side of an isolated turn: executes the child's port calls until the child ends or dies.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::mpsc;

use super::protocol::{
    ArtifactCall, ChildInit, ChildMessage, IpcFrame, LeaseParams, ParentMessage, PortReply,
    PortRequest, WireStoreError, WireTurnError, encode_frame, take_frame,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::shutdown::StopTimes;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::{ArtifactError, ArtifactScope};
use turnwheel_storage::live::LiveEvent;
use turnwheel_storage::store::{LeaseRequest, StoreError};

/// Time before the turn limit at which the turn of a child ends. A child that has not ended at the
/// limit counts as stuck, and is killed.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(30);
/// Time for the last store requests of a dead child to complete.
const LAST_CALLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a child to exit after it has reported its outcome.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Outcome of a child's turn.
pub(super) enum ChildOutcome {
    Ended(Result<DeliveryOutcome, WireTurnError>),
    /// The child died without an outcome; contains the reason.
    Died(String),
}

pub(super) async fn serve_child(
    services: &Services,
    child: &mut Child,
    socket: UnixStream,
    init: &ChildInit,
) -> ChildOutcome {
    let (mut reader, mut writer) = socket.into_split();
    let (frames, mut outgoing) = mpsc::unbounded_channel::<Vec<u8>>();
    match encode_frame(init, b"") {
        Ok(frame) => drop(frames.send(frame)),
        Err(error) => {
            return ChildOutcome::Died(format!(
                "its first message could not be serialised: {error}"
            ));
        }
    }
    let mut writing = std::pin::pin!(async move {
        while let Some(frame) = outgoing.recv().await {
            if writer.write_all(&frame).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    });
    let mut stopping =
        std::pin::pin!(services.shutdown.forward_times(|times| send_stop(&frames, times)));
    let mut stuck = std::pin::pin!(tokio::time::sleep(services.limits.turn_duration));
    let (mut buffer, mut calls) = (BytesMut::new(), FuturesUnordered::new());
    let (mut is_open, mut is_stuck) = (true, false);
    let status = loop {
        tokio::select! {
            biased;
            read = reader.read_buf(&mut buffer), if is_open => {
                is_open = matches!(read, Ok(1..));
                while let Some(frame) = take_frame(&mut buffer) {
                    match serde_json::from_slice(&frame.json) {
                        Ok(ChildMessage::Call { id, request }) => {
                            calls.push(handle_call(services, id, *request, frame));
                        }
                        Ok(ChildMessage::Publish { key, event, epoch }) => {
                            services.live.publish(&key, with_epoch(*event, epoch));
                        }
                        Ok(ChildMessage::Ended(outcome)) => {
                            let _ = tokio::time::timeout(exit_time(services), child.wait()).await;
                            return ChildOutcome::Ended(outcome);
                        }
                        Err(error) => {
                            return ChildOutcome::Died(format!("it sent an invalid message: {error}"));
                        }
                    }
                }
            }
            Some(reply) = calls.next(), if !calls.is_empty() => {
                // Sending cannot fail: the receiver lives as long as this loop.
                let _ = frames.send(reply);
            }
            () = &mut writing => {}
            () = &mut stopping => {}
            status = child.wait() => break status,
            () = &mut stuck, if !is_stuck => {
                is_stuck = true;
                let _ = child.start_kill();
            }
        }
    };
    // Store requests in flight complete before another worker takes over.
    let _ =
        tokio::time::timeout(LAST_CALLS_TIMEOUT, async { while calls.next().await.is_some() {} })
            .await;
    if is_stuck {
        return ChildOutcome::Died(
            "it exceeded the time limit of a turn and was killed".to_owned(),
        );
    }
    ChildOutcome::Died(status.map_or_else(|error| error.to_string(), |status| status.to_string()))
}

fn send_stop(frames: &mpsc::UnboundedSender<Vec<u8>>, times: StopTimes) {
    if let Ok(frame) = encode_frame(&ParentMessage::Stop(times), b"") {
        let _ = frames.send(frame);
    }
}

/// Time for a child to exit. Once this process ends, the invocation ends with the time of writes.
fn exit_time(services: &Services) -> Duration {
    services.shutdown.times_left().map_or(EXIT_TIMEOUT, |left| left.writes.min(EXIT_TIMEOUT))
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
async fn handle_call(
    services: &Services,
    id: u64,
    request: PortRequest,
    frame: IpcFrame,
) -> Vec<u8> {
    let (result, bytes) = Box::pin(execute_request(services, request, frame.bytes)).await;
    let reply = encode_frame(&ParentMessage::Reply(PortReply { id, result }), &bytes);
    reply.unwrap_or_else(|error| {
        let result = RawJson::from_value(&Err::<(), _>(WireStoreError(StoreError::TooLarge(
            error.to_string(),
        ))));
        encode_frame(&ParentMessage::Reply(PortReply { id, result }), b"").unwrap_or_default()
    })
}

fn encode_store_result<T: Serialize>(result: Result<T, StoreError>) -> (RawJson, Bytes) {
    (RawJson::from_value(&result.map_err(WireStoreError)), Bytes::new())
}

async fn execute_request(
    services: &Services,
    request: PortRequest,
    bytes: Bytes,
) -> (RawJson, Bytes) {
    let store = &services.store;
    match request {
        PortRequest::Write { partition, writes } => {
            encode_store_result(store.write(&partition, writes).await)
        }
        PortRequest::Read { partition, id, freshness } => {
            encode_store_result(store.read(&partition, &id, freshness).await)
        }
        PortRequest::Select { partition, selection, freshness } => {
            encode_store_result(store.select(&partition, &selection, freshness).await)
        }
        PortRequest::AcquireLease(lease) => {
            encode_store_result(store.acquire_lease(to_lease_request(&lease)).await)
        }
        PortRequest::RenewLease(lease) => {
            encode_store_result(store.renew_lease(to_lease_request(&lease)).await)
        }
        PortRequest::ReleaseLease { key, worker } => {
            store.release_lease(&key, &worker).await;
            encode_store_result(Ok(()))
        }
        PortRequest::Due { at, limit, continuation } => {
            encode_store_result(store.list_due(at, limit, continuation.as_deref()).await)
        }
        PortRequest::Heads(query) => encode_store_result(store.list_heads(&query).await),
        PortRequest::Search(query) => encode_store_result(store.search(&query).await),
        PortRequest::Send { queue, text, delay_ms } => {
            let sent = services.queue.send(&queue, text, Duration::from_millis(delay_ms)).await;
            (RawJson::from_value(&sent), Bytes::new())
        }
        PortRequest::Artifacts { scope, call } => {
            execute_artifact_call(services, &scope, call, bytes).await
        }
    }
}

async fn execute_artifact_call(
    services: &Services,
    scope: &ArtifactScope,
    call: ArtifactCall,
    bytes: Bytes,
) -> (RawJson, Bytes) {
    let artifacts = &services.artifacts;
    let result = match call {
        ArtifactCall::Put(facts) => RawJson::from_value(&artifacts.put(scope, &facts, bytes).await),
        ArtifactCall::Facts(id) => RawJson::from_value(&artifacts.metadata(scope, &id).await),
        ArtifactCall::List => RawJson::from_value(&artifacts.list(scope).await),
        ArtifactCall::DeleteAll => RawJson::from_value(&artifacts.delete_all(scope).await),
        ArtifactCall::Get { id, range } => match artifacts.get(scope, &id, range).await {
            Ok(bytes) => return (RawJson::from_value(&Ok::<(), ArtifactError>(())), bytes),
            Err(error) => RawJson::from_value(&Err::<(), _>(error)),
        },
    };
    (result, Bytes::new())
}

fn to_lease_request(lease: &LeaseParams) -> LeaseRequest<'_> {
    let LeaseParams { key, worker, now, until, expired } = lease;
    LeaseRequest { key, worker, now: *now, until: *until, expired: *expired }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use tokio::process::Command;

    use super::super::{ChildProcessIsolator, DEATH_REPORT_DELAY, SettingsSource};
    use super::*;
    use crate::start::options::ServiceOptions;
    use crate::start::test_services::TestServices;
    use turnwheel_platform::clock::Timestamp;
    use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId, WorkerId};
    use turnwheel_record::error::TurnError;
    use turnwheel_record::nudge::Nudge;

    /// The child's end of the socket, without a turn.
    struct ChildSocket {
        stream: UnixStream,
        buffer: BytesMut,
    }

    impl ChildSocket {
        async fn read<T: DeserializeOwned>(&mut self) -> T {
            loop {
                if let Some(frame) = take_frame(&mut self.buffer) {
                    return serde_json::from_slice(&frame.json).unwrap();
                }
                let bytes = self.stream.read_buf(&mut self.buffer).await.unwrap();
                assert_ne!(bytes, 0, "the parent has closed the socket");
            }
        }

        async fn read_stop(&mut self) -> StopTimes {
            match self.read().await {
                ParentMessage::Stop(times) => times,
                ParentMessage::Reply(reply) => panic!("{reply:?}"),
            }
        }

        async fn send(&mut self, message: &ChildMessage) {
            let frame = encode_frame(message, b"").unwrap();
            self.stream.write_all(&frame).await.unwrap();
        }
    }

    fn conversation_key() -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new("c"),
        }
    }

    fn isolator() -> ChildProcessIsolator {
        ChildProcessIsolator::new(SettingsSource::Environment, None, &ServiceOptions::default())
    }

    fn seconds(repeatable: u64, writes: u64) -> StopTimes {
        StopTimes {
            repeatable: Duration::from_secs(repeatable),
            writes: Duration::from_secs(writes),
        }
    }

    /// The child gives its turn back through the parent, whose host may end meanwhile.
    #[tokio::test(start_paused = true)]
    async fn stop_reaches_child_and_stopped_turn_ends_in_time() {
        let services = TestServices::new(Timestamp(0)).services;
        let (key, worker) = (conversation_key(), WorkerId::new("w.1"));
        let init =
            isolator().build_init(&services, &Nudge::for_conversation(key.clone(), None), &worker);
        let (parent, stream) = UnixStream::pair().unwrap();
        let mut socket = ChildSocket { stream, buffer: BytesMut::new() };
        // It never exits by itself.
        let mut process = Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
        let turn = async {
            assert_eq!(socket.read::<ChildInit>().await.worker, worker);
            services.shutdown.begin(seconds(4, 9));
            assert_eq!(socket.read_stop().await, seconds(4, 9));
            tokio::time::sleep(Duration::from_secs(1)).await;
            services.shutdown.begin(seconds(2, 3));
            assert_eq!(socket.read_stop().await, seconds(2, 3));
            services.shutdown.wait_for_deadline(true).await;
            let request = PortRequest::ReleaseLease { key: key.clone(), worker: worker.clone() };
            socket.send(&ChildMessage::Call { id: 7, request: Box::new(request) }).await;
            match socket.read().await {
                ParentMessage::Reply(reply) => assert_eq!(reply.id, 7),
                ParentMessage::Stop(times) => panic!("{times:?}"),
            }
            let stopped = TurnError::Stopped { key: key.clone() };
            socket.send(&ChildMessage::Ended(Err(stopped.into()))).await;
        };
        let served = async {
            let serving = Box::pin(serve_child(&services, &mut process, parent, &init));
            let (outcome, ()) = tokio::join!(serving, turn);
            outcome
        };
        let ended = tokio::time::timeout(Duration::from_secs(5), served).await;
        let ChildOutcome::Ended(Err(error)) = ended.expect("the stopped turn ends in time") else {
            panic!("the child has reported its outcome")
        };
        assert!(matches!(error.into_turn_error(&key), TurnError::Stopped { .. }));
    }

    /// The shortest turn is half of the shortest `functionTimeout`.
    #[test]
    fn isolated_turn_and_its_grace_end_before_function_timeout() {
        let isolator = isolator();
        let nudge = Nudge::for_conversation(conversation_key(), None);
        for function_timeout in [201, 300, 600].map(Duration::from_secs) {
            let mut services = TestServices::new(Timestamp(0)).services;
            services.limits.turn_duration = function_timeout / 2;
            let init = isolator.build_init(&services, &nudge, &WorkerId::new("w"));
            let turn = Duration::from_millis(init.turn_ms);
            assert!(turn > Duration::from_mins(1), "{turn:?}");
            assert_eq!(turn + KILL_GRACE, services.limits.turn_duration);
            let ends = turn + KILL_GRACE + LAST_CALLS_TIMEOUT + DEATH_REPORT_DELAY;
            assert!(ends + Duration::from_secs(15) < function_timeout, "{ends:?}");
        }
    }
}
