//! Recovery from processes of this machine that died: their turns continue at once instead of after
//! their leases.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};

use crate::start::work_file::{DeadProcess, WorkFile};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_record::error::TurnError;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::services::Services;
use turnwheel_storage::store::first_request::DeliveryError as _;
use turnwheel_turn::crash_count;

/// Time in which a start looks for dead processes: the former one may still be ending.
const SEARCH_TIME: Duration = Duration::from_secs(10);
/// Interval of the searches, and of the attempts that an unavailable store needs.
const INTERVAL: Duration = Duration::from_secs(1);
/// Conversations that are recovered at the same time.
const CONCURRENCY: usize = 16;

/// The file of this process, in a folder of this app in the machine's temporary folder.
pub(crate) fn create_work_file(
    settings: &ServiceSettings,
    services: &Services,
) -> Option<Arc<WorkFile>> {
    let folder = std::env::current_dir().unwrap_or_default();
    let site = settings.app_setting("WEBSITE_SITE_NAME").unwrap_or_default();
    let app = sha256_hex(format!("{site}\n{}", folder.display()).as_bytes());
    let name: String = app.chars().take(16).collect();
    let folder = std::env::temp_dir().join(format!("turnwheel-{name}"));
    match WorkFile::create(&folder, &services.worker) {
        Ok(file) => Some(Arc::new(file)),
        Err(error) => {
            tracing::warn!(error = %error, folder = %folder.display(), "work file not created: after a crash, turns continue when their leases end");
            None
        }
    }
}

/// Ends the leases of dead processes of this machine, so that their turns continue at once.
pub(crate) async fn recover_dead_processes(services: Arc<Services>, work_file: Arc<WorkFile>) {
    let recover = |key: ConversationKey, worker: WorkerId| {
        let services = &services;
        async move { Box::pin(crash_count::recover_from_process(services, &key, &worker)).await }
    };
    Box::pin(recover_with(&work_file, recover)).await;
}

/// A file stays, with its lock, until its conversations are recovered: another process takes it if
/// this one dies meanwhile.
async fn recover_with<F>(work_file: &WorkFile, recover: impl Fn(ConversationKey, WorkerId) -> F)
where
    F: Future<Output = Result<(), TurnError>>,
{
    let mut refused = BTreeSet::new();
    let mut dead: Vec<DeadProcess> = Vec::new();
    let mut past = Duration::ZERO;
    while past < SEARCH_TIME || !dead.is_empty() {
        if past < SEARCH_TIME {
            dead.extend(work_file.find_dead(&mut refused));
        }
        // Later the leases have ended by themselves.
        let is_last = past >= LEASE_DURATION;
        let mut remaining = Vec::new();
        for mut process in dead {
            process.conversations = recover_process(&process, &recover).await;
            if process.conversations.is_empty() || is_last {
                process.remove();
            } else {
                remaining.push(process);
            }
        }
        dead = remaining;
        tokio::time::sleep(INTERVAL).await;
        past += INTERVAL;
    }
}

/// Returns the conversations that need another attempt.
async fn recover_process<F>(
    process: &DeadProcess,
    recover: &impl Fn(ConversationKey, WorkerId) -> F,
) -> Vec<ConversationKey>
where
    F: Future<Output = Result<(), TurnError>>,
{
    let attempt = |key: &ConversationKey| {
        let (key, attempt) = (key.clone(), recover(key.clone(), process.worker.clone()));
        async move {
            let error = attempt.await.err()?;
            tracing::warn!(conversation.id = %key.conversation_id, error = %error, "turn of a dead process not taken over yet");
            error.is_store_away().then_some(key)
        }
    };
    let attempts: Vec<_> = process.conversations.iter().map(attempt).collect();
    let outcomes: Vec<_> = stream::iter(attempts).buffer_unordered(CONCURRENCY).collect().await;
    outcomes.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::start::work_file::testing::{create, key, kill};
    use turnwheel_platform::shutdown::Shutdown;
    use turnwheel_record::error::store_error;
    use turnwheel_storage::store::StoreError;

    #[tokio::test(start_paused = true)]
    async fn recovery_is_repeated_until_store_responds() {
        let folder = tempfile::tempdir().unwrap();
        let dying = create(folder.path(), "w1");
        let running = Shutdown::default();
        let _marks = (dying.add(&key("a"), &running), dying.add(&key("b"), &running));
        kill(&dying, &folder.path().join("copy.work"));
        let successor = create(folder.path(), "w2");
        let attempts = Mutex::new(Vec::new());
        let recover = |key: ConversationKey, worker: WorkerId| {
            let id = key.conversation_id.to_string();
            let mut attempts = attempts.lock().unwrap();
            let is_first = !attempts.contains(&id);
            attempts.push(id.clone());
            async move {
                assert_eq!(worker, WorkerId::new("w1"));
                let away = StoreError::Unavailable("connection refused".into());
                let fails = is_first && id == "b";
                if fails { Err(store_error(&key, "read", away)) } else { Ok(()) }
            }
        };
        recover_with(&successor, recover).await;
        assert_eq!(*attempts.lock().unwrap(), ["a", "b", "b"]);
        assert!(!folder.path().join("copy.work").exists());
    }

    #[tokio::test(start_paused = true)]
    async fn file_is_given_up_when_leases_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let dying = create(folder.path(), "w1");
        let _mark = dying.add(&key("a"), &Shutdown::default());
        kill(&dying, &folder.path().join("copy.work"));
        let successor = create(folder.path(), "w2");
        let start = tokio::time::Instant::now();
        let recover = |key: ConversationKey, _worker: WorkerId| async move {
            let away = StoreError::Unavailable("connection refused".into());
            Err(store_error(&key, "read", away))
        };
        recover_with(&successor, recover).await;
        assert!(start.elapsed() <= LEASE_DURATION + 2 * INTERVAL);
        assert!(!folder.path().join("copy.work").exists());
    }
}
