//! Frame documents: stored before the commit that names them, once, and never at the cost of a response.

mod secrets;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::store_requests::replies_hello;
use super::test_env::{PauseFailPoint, TestEnv, call, idempotency, kill_at, owner, text};
use crate::delivery::handle;
use turnwheel_commands::delete::{TOMBSTONE_RETENTION, delete_conversation, purge};
use turnwheel_commands::fork::{ForkRequest, fork_conversation};
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::frame_entry::FrameEntry;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ArtifactId, ConversationKey};
use turnwheel_platform::shutdown::StopTimes;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::frame_documents::get_frame_document;
use turnwheel_storage::artifacts::{
    ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts, MemoryArtifacts,
};

fn pays_twice(results: usize, _input: &str) -> Vec<Value> {
    if results < 2 { vec![call("c1", "pay", results)] } else { vec![text("done")] }
}

/// Counts the requests. Refuses all of them while `is_down`, and responds to none while it `hangs`.
#[derive(Debug)]
struct CountedArtifacts {
    inner: Arc<MemoryArtifacts>,
    requests: AtomicUsize,
    is_down: AtomicBool,
    hangs: AtomicBool,
}

impl CountedArtifacts {
    async fn count(&self) -> Result<(), ArtifactError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.is_down.load(Ordering::Relaxed) {
            return Err(ArtifactError::Unavailable("down".into()));
        }
        Ok(())
    }

    fn take(&self) -> usize {
        self.requests.swap(0, Ordering::Relaxed)
    }
}

#[async_trait]
impl Artifacts for CountedArtifacts {
    async fn put(
        &self,
        scope: &ArtifactScope,
        metadata: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        self.count().await?;
        self.inner.put(scope, metadata, bytes).await
    }

    async fn metadata(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        self.count().await?;
        self.inner.metadata(scope, id).await
    }

    async fn get(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        self.count().await?;
        self.inner.get(scope, id, range).await
    }

    async fn list(&self, scope: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        self.count().await?;
        self.inner.list(scope).await
    }

    async fn delete_all(&self, scope: &ArtifactScope) -> Result<(), ArtifactError> {
        self.count().await?;
        self.inner.delete_all(scope).await
    }
}

fn new_worker(env: &mut TestEnv) -> (Services, Arc<CountedArtifacts>) {
    let artifacts = Arc::new(CountedArtifacts {
        inner: env.artifacts.clone(),
        requests: AtomicUsize::new(0),
        is_down: AtomicBool::new(false),
        hangs: AtomicBool::new(false),
    });
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    services.artifacts = artifacts.clone();
    (services, artifacts)
}

async fn frames_of(env: &TestEnv, key: &ConversationKey) -> Vec<FrameEntry> {
    let entries = env.entries_of(key).await.into_iter();
    let frame = |body| if let EntryBody::Frame(frame) = body { Some(frame) } else { None };
    entries.filter_map(|entry| frame(entry.body)).collect()
}

async fn frames(env: &TestEnv) -> Vec<FrameEntry> {
    frames_of(env, &TestEnv::key()).await
}

/// The stored document of a frame.
async fn read_document(env: &TestEnv, key: &ConversationKey, frame: &FrameEntry) -> Option<Value> {
    let incarnation = env.head_of(key).await?.incarnation;
    let scope = ArtifactScope { key: key.clone(), incarnation };
    let sha256 = frame.document.as_ref()?;
    let bytes = get_frame_document(&*env.artifacts, &scope, sha256).await.unwrap()?;
    assert_eq!(*sha256, turnwheel_platform::digest::sha256_hex(&bytes));
    Some(serde_json::from_slice(&bytes).unwrap())
}

async fn fork_at_last_entry(env: &TestEnv, services: &Services) -> ConversationKey {
    let last = env.entries().await.last().unwrap().base.entry_id.clone();
    let request = json!({"entryId": last, "position": "at", "conversationId": "f"});
    let request: ForkRequest = serde_json::from_value(request).unwrap();
    fork_conversation(services, &TestEnv::key(), request, &idempotency("fork")).await.unwrap();
    owner().conversation_key("f")
}

/// `seq` of each frame entry, and the frames that the responses name.
async fn named_frames(env: &TestEnv) -> (Vec<u64>, Vec<Option<u64>>) {
    let (mut seqs, mut named) = (Vec::new(), Vec::new());
    for entry in env.entries().await {
        match &entry.body {
            EntryBody::Frame(_) => seqs.push(entry.base.seq),
            EntryBody::Message(message) if message.message.as_assistant().is_some() => {
                named.push(message.frame);
            }
            _ => {}
        }
    }
    (seqs, named)
}

#[tokio::test(start_paused = true)]
async fn warm_turns_make_no_request() {
    let mut env = TestEnv::with_script(1, pays_twice);
    let (services, artifacts) = new_worker(&mut env);
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    assert_eq!(artifacts.take(), 1, "one put in three rounds");
    let (other, others) = new_worker(&mut env);
    for services in [&services, &other] {
        env.queue_prompt(services, &TestEnv::key(), "again").await.unwrap();
        handle_until_idle(&env, services).await;
    }
    assert_eq!((artifacts.take(), others.take()), (0, 0), "no put in warm and cold processes");
    let (seqs, named) = named_frames(&env).await;
    assert_eq!(seqs.len(), 1);
    assert!(named.len() > 3 && named.iter().all(|frame| *frame == Some(seqs[0])), "{named:?}");
}

#[tokio::test(start_paused = true)]
async fn changed_agent_leaves_earlier_documents() {
    let mut env = TestEnv::with_script(1, replies_hello);
    env.change_agent(|agent| agent.instructions = "Be brief.".into());
    let (services, artifacts) = new_worker(&mut env);
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    env.change_agent(|agent| agent.instructions = "Be long.".into());
    for text in ["again", "once more"] {
        env.queue_prompt(&services, &TestEnv::key(), text).await.unwrap();
        handle_until_idle(&env, &services).await;
    }
    assert_eq!(artifacts.take(), 2);
    let frames = frames(&env).await;
    assert_eq!(frames.len(), 2);
    for (frame, prompt) in frames.iter().zip(["Be brief.", "Be long."]) {
        assert_eq!(frame.hash.len(), 64);
        let document = read_document(&env, &TestEnv::key(), frame).await.unwrap();
        assert_eq!(document["systemPrompt"], prompt);
        let names = document["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone());
        let offered = frame.tools.iter().map(|tool| json!(tool.name));
        assert_eq!(names.collect::<Vec<_>>(), offered.collect::<Vec<_>>());
        assert_eq!(document["tools"][0]["parameters"]["type"], "object");
        assert!(document["model"]["cost"].is_object() && document["models"]["normal"].is_string());
    }
    // A fork has the documents of its entries.
    let fork = fork_at_last_entry(&env, &services).await;
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    let copied = frames_of(&env, &fork).await;
    assert_eq!(copied.len(), 2);
    assert!(read_document(&env, &fork, &copied[0]).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn response_survives_a_lost_artifact_store() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let (services, artifacts) = new_worker(&mut env);
    artifacts.is_down.store(true, Ordering::Relaxed);
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    env.queue_prompt(&services, &TestEnv::key(), "still down").await.unwrap();
    handle_until_idle(&env, &services).await;
    let documents = async |env: &TestEnv| -> Vec<bool> {
        frames(env).await.iter().map(|frame| frame.document.is_some()).collect()
    };
    assert_eq!(documents(&env).await, [false], "an entry names only a stored document");
    artifacts.is_down.store(false, Ordering::Relaxed);
    env.queue_prompt(&services, &TestEnv::key(), "up again").await.unwrap();
    handle_until_idle(&env, &services).await;
    assert_eq!(documents(&env).await, [false, true]);
    let frames = frames(&env).await;
    assert_eq!(frames[0].hash, frames[1].hash);
    assert!(read_document(&env, &TestEnv::key(), &frames[1]).await.is_some());
}

/// A response waits 5 s for its document, and is committed at once if the process ends or if it names
/// no frame.
#[tokio::test(start_paused = true)]
async fn response_waits_for_its_document_only_while_it_can() {
    for (failures, end, expected) in [(0, None, 5), (0, Some(1), 1), (1, None, 0)] {
        let mut env = TestEnv::with_script(1, replies_hello);
        let (services, artifacts) = new_worker(&mut env);
        artifacts.hangs.store(true, Ordering::Relaxed);
        env.send_prompt(&services).await;
        *env.model.failures_left.lock().unwrap() = failures;
        let began = tokio::time::Instant::now();
        let stop = async {
            if let Some(end) = end {
                tokio::time::sleep(Duration::from_secs(end)).await;
                let time = Duration::from_secs(10);
                services.shutdown.begin(StopTimes { repeatable: time, writes: time });
            }
        };
        let nudge = TestEnv::nudge();
        let (handled, ()) = tokio::join!(handle(&services, &nudge), stop);
        handled.unwrap();
        assert_eq!(began.elapsed().as_secs(), expected, "{failures} failures");
        let documents: Vec<_> = frames(&env).await.into_iter().map(|it| it.document).collect();
        assert_eq!(documents, vec![None; 1 - failures as usize]);
    }
}

/// The documents of a fork are missing, not the fork.
#[tokio::test(start_paused = true)]
async fn fork_succeeds_without_the_artifact_store() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let (services, artifacts) = new_worker(&mut env);
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    artifacts.is_down.store(true, Ordering::Relaxed);
    let fork = fork_at_last_entry(&env, &services).await;
    let copied = frames_of(&env, &fork).await;
    assert!(read_document(&env, &fork, &copied[0]).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn crash_around_the_put_loses_nothing() {
    for fail_point in ["frame-document.before", "frame-document.after"] {
        let mut env = TestEnv::with_script(1, replies_hello);
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        env.send_prompt(&victim).await;
        kill_at(victim, &pause).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        env.run_until_idle().await;
        let frames = frames(&env).await;
        assert_eq!(frames.len(), 1, "{fail_point}");
        assert!(read_document(&env, &TestEnv::key(), &frames[0]).await.is_some(), "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_put_of_deleted_conversation_ends_with_its_tombstone() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let (services, artifacts) = new_worker(&mut env);
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    let frame = frames(&env).await.remove(0);
    let document = read_document(&env, &TestEnv::key(), &frame).await.unwrap();
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    assert!(read_document(&env, &TestEnv::key(), &frame).await.is_none());
    // A worker that has not noticed the deletion.
    let scope =
        ArtifactScope { key: TestEnv::key(), incarnation: env.head().await.unwrap().incarnation };
    let bytes = Bytes::from(document.to_string());
    let sha256 = frame.document.clone().unwrap();
    let now = services.clock.now();
    turnwheel_storage::artifacts::frame_documents::put_frame_document(
        &*artifacts,
        &scope,
        &sha256,
        bytes,
        now,
    )
    .await
    .unwrap();
    tokio::time::sleep(TOMBSTONE_RETENTION).await;
    purge(&services, &TestEnv::key()).await.unwrap();
    assert_eq!(get_frame_document(&*artifacts, &scope, &sha256).await.unwrap(), None);
}
