//! The writer thread: commits all waiting batches in one transaction and reports after COMMIT. It
//! waits briefly for more batches only if many conversations are active.

use std::collections::{HashSet, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;
use tokio::sync::oneshot;

use crate::store::embedded::cache::{ConversationCache, TakenConversation};
use crate::store::embedded::file_identity::FileIdentity;
use crate::store::embedded::leases::Leases;
use crate::store::embedded::rows::{self, ApplyError};
use crate::store::embedded::{store_error, unavailable};
use crate::store::{ETag, EVENTS_ID_PREFIX, Partition, StoreError, Write};
use turnwheel_platform::ids::ConversationKey;

/// Maximum batches of one transaction; bounds how long the first batch waits for its result.
const GROUP_MAX: usize = 256;
/// Log size in pages (4 MB) above which a checkpoint runs. Measured with 2000: 2 % fewer bytes
/// written, but the next commit waits 8 ms instead of 3.
const CHECKPOINT_LOG_PAGES: u64 = 1000;
/// Time between log lines about failed writes.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Bits of the version counter of one opening of the store. The number of the opening is in the
/// higher bits, so that no version is used twice: a document that is deleted and created again
/// matches none of its old `ETag`s.
const VERSION_BITS: u32 = 40;

/// Number of active conversations below which a commit does not wait for others.
const ACTIVE_CONVERSATIONS_MIN: usize = 8;
/// Time that a commit waits for others, per active conversation and at most. The others share its
/// fsync and its pages, and their workers do other work meanwhile. (`PostgreSQL` has the same:
/// `commit_siblings` and `commit_delay`.)
const COMMIT_DELAY_EACH: Duration = Duration::from_micros(40);
const COMMIT_DELAY_MAX: Duration = Duration::from_micros(2_500);

type BatchResult = Result<Vec<ETag>, StoreError>;

struct Batch {
    partition: Partition,
    writes: Vec<Write>,
    reply: oneshot::Sender<BatchResult>,
}

enum Job {
    Write(Batch),
    /// Runs alone on the write connection: tests block the writer and break its disk with it.
    #[cfg(test)]
    Run(Box<dyn FnOnce(&mut Connection) + Send>),
}

impl Job {
    /// True for a batch of a scope or a user, whose documents several conversations write.
    fn is_scope_write(&self) -> bool {
        matches!(
            self,
            Self::Write(Batch { partition: Partition::Scope(_) | Partition::User { .. }, .. })
        )
    }
}

/// Handle of the writer thread. Dropping it waits until all sent batches are committed and the
/// database is closed.
pub(super) struct Writer {
    /// Taken on drop, which ends the thread.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    commits: AtomicU64,
    checkpoints: AtomicU64,
    log_pages: AtomicU64,
}

impl Counters {
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    pub(super) fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::SeqCst)
    }
}

impl Writer {
    pub(super) fn start(
        mut connection: Connection,
        generation: u32,
        identity: FileIdentity,
        cache: Arc<ConversationCache>,
        leases: Arc<Leases>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let counters = Arc::new(Counters::default());
        let hook_counters = Arc::clone(&counters);
        // SQLite calls this after each COMMIT that wrote pages. It replaces the automatic
        // checkpoint, which would delay results.
        connection.wal_hook(Some(move |_: &mut _, pages| {
            hook_counters.commits.fetch_add(1, Ordering::SeqCst);
            hook_counters.log_pages.store(u64::try_from(pages).unwrap_or(0), Ordering::SeqCst);
            Ok(())
        }))?;
        let (jobs, receiver) = channel();
        let thread = WriterThread {
            connection,
            receiver,
            pending: VecDeque::new(),
            last_version: i64::from(generation) << VERSION_BITS,
            counters: Arc::clone(&counters),
            cache,
            leases,
            identity,
            failure_log: FailureLog::default(),
            has_purged: false,
        };
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || thread.run())?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), counters })
    }

    /// Writes a batch. The write continues if the caller stops waiting.
    pub(super) async fn write(&self, partition: Partition, writes: Vec<Write>) -> BatchResult {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Write(Batch { partition, writes, reply: answer }))?;
        answered.await.map_err(|_| unavailable("the writing thread has ended"))?
    }

    #[cfg(test)]
    pub(super) fn run_on_connection(&self, work: impl FnOnce(&mut Connection) + Send + 'static) {
        self.send(Job::Run(Box::new(work))).unwrap();
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let ended = || unavailable("the writing thread has ended");
        self.jobs.as_ref().ok_or_else(ended)?.send(job).map_err(|_| ended())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // An error means a panic of the thread: no caller is left, and commits are durable.
            let _ = thread.join();
        }
    }
}

struct WriterThread {
    connection: Connection,
    receiver: Receiver<Job>,
    /// Received jobs that are not yet written, oldest first.
    pending: VecDeque<Job>,
    /// The last assigned version.
    last_version: i64,
    counters: Arc<Counters>,
    cache: Arc<ConversationCache>,
    leases: Arc<Leases>,
    identity: FileIdentity,
    failure_log: FailureLog,
    /// True if text was removed that the log still has.
    has_purged: bool,
}

/// Failures that are not logged one by one: a full disk fails each write.
#[derive(Debug, Default)]
struct FailureLog {
    logged_at: Option<Instant>,
    suppressed: u32,
}

impl FailureLog {
    /// Returns the number of failures since the last line, if a line is due.
    fn count(&mut self) -> Option<u32> {
        if self.logged_at.is_some_and(|at| at.elapsed() < FAILURE_LOG_INTERVAL) {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut self.suppressed).saturating_add(1))
    }
}

impl WriterThread {
    fn run(mut self) {
        loop {
            if self.pending.is_empty() {
                match self.receiver.recv() {
                    Ok(job) => self.pending.push_back(job),
                    Err(_) => return,
                }
                // A scope write does not wait: other writers would conflict with it meanwhile.
                if !self.pending.front().is_some_and(Job::is_scope_write) {
                    self.wait_for_more();
                }
            }
            self.pending.extend(self.receiver.try_iter());
            let group = self.next_group();
            if !group.is_empty() {
                self.commit_group(group);
                self.checkpoint_if_log_is_long();
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a dedicated thread, not one of the runtime's")]
    fn wait_for_more(&self) {
        let wait = commit_delay(self.leases.count());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    /// Takes the batches that may share a transaction and leaves the rest, in order. Batches of one
    /// conversation never share a transaction: a commit is reported before the next one of its
    /// conversation is tried.
    fn next_group(&mut self) -> Vec<Batch> {
        let mut conversations: HashSet<ConversationKey> = HashSet::new();
        let mut group = Vec::new();
        let mut later = VecDeque::new();
        for job in self.pending.drain(..) {
            match job {
                Job::Write(batch) => {
                    let is_first = match &batch.partition {
                        Partition::Conversation(key) => conversations.insert(key.clone()),
                        Partition::Scope(_) | Partition::User { .. } => true,
                    };
                    if is_first && group.len() < GROUP_MAX {
                        group.push(batch);
                    } else {
                        later.push_back(Job::Write(batch));
                    }
                }
                #[cfg(test)]
                Job::Run(work) => work(&mut self.connection),
            }
        }
        self.pending = later;
        group
    }

    fn commit_group(&mut self, group: Vec<Batch>) {
        if let Err(reason) = self.identity.check() {
            if let Some(count) = self.failure_log.count() {
                tracing::error!(reason, count, "store write refused");
            }
            for batch in group {
                let _ = batch.reply.send(Err(unavailable(reason.clone())));
            }
            return;
        }
        self.has_purged |= group.iter().any(removes_text);
        match self.run_transaction(&group) {
            Ok(answers) => {
                for (batch, answer) in group.into_iter().zip(answers) {
                    // The caller may have stopped waiting.
                    let _ = batch.reply.send(answer);
                }
            }
            Err(error) => {
                if !self.connection.is_autocommit() {
                    let _ = self.connection.execute_batch("ROLLBACK");
                }
                if let Some(count) = self.failure_log.count() {
                    tracing::error!(%error, batches = group.len(), count, "store transaction failed");
                }
                let error = Arc::new(error);
                for batch in group {
                    let _ = batch.reply.send(Err(store_error(Arc::clone(&error))));
                }
            }
        }
    }

    /// Writes a group in one transaction.
    ///
    /// # Errors
    /// SQLite reports that nothing of the group was written: report the failure to each caller.
    fn run_transaction(&mut self, group: &[Batch]) -> rusqlite::Result<Vec<BatchResult>> {
        self.execute("BEGIN IMMEDIATE")?;
        let answers = match self.apply_all(group)? {
            Some(answers) => answers,
            None => self.apply_each(group)?,
        };
        if !answers.iter().any(Result::is_ok) {
            self.execute("ROLLBACK")?;
            return Ok(answers);
        }
        let taken: Vec<Option<TakenConversation>> =
            group.iter().map(|batch| self.cache.take_for_commit(&batch.partition)).collect();
        let committed = self.execute("COMMIT");
        for ((batch, answer), taken) in group.iter().zip(&answers).zip(taken) {
            let Some(taken) = taken else { continue };
            match (&committed, answer) {
                (Ok(()), Ok(etags)) => self.cache.restore_after_commit(taken, &batch.writes, etags),
                (Ok(()), Err(_)) => self.cache.restore_after_commit(taken, &[], &[]),
                (Err(_), _) => self.cache.discard_after_failure(&taken),
            }
        }
        committed.map(|()| answers)
    }

    /// Applies all batches without savepoints, which would copy the pages that a batch changes.
    /// Returns `None` if the batch of a conversation is rejected, which is rare; the transaction
    /// has then restarted empty. Batches of scopes and users are often rejected and use savepoints.
    fn apply_all(&mut self, group: &[Batch]) -> rusqlite::Result<Option<Vec<BatchResult>>> {
        let mut answers = Vec::with_capacity(group.len());
        for batch in group {
            let Batch { partition, writes, .. } = batch;
            if matches!(partition, Partition::Scope(_) | Partition::User { .. }) {
                answers.push(self.apply_alone(batch)?);
                continue;
            }
            match rows::apply(&self.connection, partition, writes, &mut self.last_version) {
                Ok(etags) => answers.push(Ok(etags)),
                Err(ApplyError::Sql(error)) if self.connection.is_autocommit() => {
                    return Err(error);
                }
                Err(_) => {
                    self.execute("ROLLBACK")?;
                    self.execute("BEGIN IMMEDIATE")?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(answers))
    }

    /// Applies each batch in its own savepoint: a rejected batch does not affect the others.
    fn apply_each(&mut self, group: &[Batch]) -> rusqlite::Result<Vec<BatchResult>> {
        group.iter().map(|batch| self.apply_alone(batch)).collect()
    }

    fn apply_alone(&mut self, batch: &Batch) -> rusqlite::Result<BatchResult> {
        self.execute("SAVEPOINT batch")?;
        let Batch { partition, writes, .. } = batch;
        let answer = match rows::apply(&self.connection, partition, writes, &mut self.last_version)
        {
            Ok(etags) => Ok(etags),
            Err(refusal) => {
                let answer = match refusal {
                    ApplyError::Conflict => Err(StoreError::Conflict),
                    // A full disk can end the whole transaction, including the batches before.
                    ApplyError::Sql(error) if self.connection.is_autocommit() => return Err(error),
                    ApplyError::Sql(error) => Err(store_error(error)),
                    ApplyError::Store(error) => Err(error),
                };
                self.execute("ROLLBACK TO batch")?;
                answer
            }
        };
        self.execute("RELEASE batch")?;
        Ok(answer)
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute(()).map(|_| ())
    }

    /// Runs a checkpoint if the log is long. Called after the results are sent, because it waits
    /// for the disk twice.
    fn checkpoint_if_log_is_long(&mut self) {
        // What users deleted must leave the log, too.
        let is_purge_done = self.has_purged && self.pending.is_empty();
        let is_long = self.counters.log_pages.load(Ordering::SeqCst) >= CHECKPOINT_LOG_PAGES;
        if !is_long && !is_purge_done {
            return;
        }
        let mode = if is_purge_done { CheckpointMode::TRUNCATE } else { CheckpointMode::PASSIVE };
        match self.connection.wal_checkpoint_v2(None::<&str>, mode) {
            Ok(_) => {
                self.has_purged &= !is_purge_done;
                self.counters.checkpoints.fetch_add(1, Ordering::SeqCst);
                self.counters.log_pages.store(0, Ordering::SeqCst);
            }
            // The log stays valid; the next commit tries again.
            Err(error) => {
                if let Some(count) = self.failure_log.count() {
                    tracing::warn!(%error, count, "store checkpoint failed");
                }
            }
        }
    }
}

/// True if the batch removes text of a user: entries, as the deletion of a conversation does, or
/// documents of a user. Deleting one of several notes replaces their document.
fn removes_text(batch: &Batch) -> bool {
    let is_user = matches!(batch.partition, Partition::User { .. });
    let has_entries = |id: &str| {
        id.starts_with(EVENTS_ID_PREFIX)
            || (id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit()))
    };
    batch.writes.iter().any(|write| match write {
        Write::Delete(id, _) => is_user || has_entries(id),
        Write::Replace(..) => is_user,
        Write::Create(_) | Write::CountInboxChange { .. } => false,
    })
}

/// Returns the time that a commit waits for others, by the number of active conversations.
fn commit_delay(active_conversations: usize) -> Duration {
    if active_conversations < ACTIVE_CONVERSATIONS_MIN {
        return Duration::ZERO;
    }
    COMMIT_DELAY_EACH
        .saturating_mul(u32::try_from(active_conversations).unwrap_or(u32::MAX))
        .min(COMMIT_DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_delay_grows_with_conversations_and_is_bounded() {
        let waits = [0, 1, 7, 8, 64, 1_000_000].map(|siblings| commit_delay(siblings).as_micros());
        assert_eq!(waits, [0, 0, 0, 320, 2_500, 2_500]);
    }
}
