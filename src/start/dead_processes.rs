//! Recovery from processes of this machine that died: their turns continue at once instead of after
//! their leases.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use crate::start::work_file::{DeadProcess, WorkFile};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_record::error::TurnError;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::services::Services;
use turnwheel_storage::store::outage_retry::DeliveryError as _;
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
    let folder = std::env::temp_dir().join(folder_name(settings));
    match WorkFile::create(&folder, &services.worker, Arc::clone(&services.clock)) {
        Ok(file) => Some(Arc::new(file)),
        Err(error) => {
            tracing::warn!(error = %error, folder = %folder.display(), "work file not created: after a crash, turns continue when their leases end");
            None
        }
    }
}

/// Name of the folder of this app. Apps with other databases or storage accounts have no work in common,
/// even if they run in the same folder.
fn folder_name(settings: &ServiceSettings) -> String {
    let site = settings.app_setting("WEBSITE_SITE_NAME").unwrap_or_default();
    let folder = std::env::current_dir().unwrap_or_default();
    let database = settings.cosmos.as_ref().map(|it| (it.endpoint.as_str(), &it.database));
    let storage = settings.storage.as_ref().map(|it| it.queue.as_str());
    let app = format!("{site}\n{}\n{database:?}\n{storage:?}", folder.display());
    let name: String = sha256_hex(app.as_bytes()).chars().take(16).collect();
    format!("turnwheel-{name}")
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
    let begun = Instant::now();
    while begun.elapsed() < SEARCH_TIME || !dead.is_empty() {
        if begun.elapsed() < SEARCH_TIME {
            dead.extend(work_file.find_dead(&mut refused));
        }
        let mut remaining = Vec::new();
        for mut process in dead {
            let attempts = timeout_at(begun + LEASE_DURATION, recover_process(&process, &recover));
            process.conversations = attempts.await.unwrap_or_default();
            // Later the leases have ended by themselves.
            if process.conversations.is_empty() || begun.elapsed() >= LEASE_DURATION {
                process.remove();
            } else {
                remaining.push(process);
            }
        }
        dead = remaining;
        tokio::time::sleep(INTERVAL).await;
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

    #[test]
    fn apps_with_other_accounts_have_other_folders() {
        let name = |database: &str, storage: &str| {
            let (database, storage) = (database.to_owned(), storage.to_owned());
            let read = move |name: &str| match name {
                "COSMOS__accountEndpoint" => Some(format!("https://{database}/")),
                "COSMOS__accountKey" => Some("a2V5".to_owned()),
                "COSMOS__database" => Some("turnwheel".to_owned()),
                "AzureWebJobsStorage" => Some(format!(
                    "DefaultEndpointsProtocol=https;AccountName={storage};AccountKey=a2V5;EndpointSuffix=core.windows.net"
                )),
                _ => None,
            };
            folder_name(&ServiceSettings::read(read).unwrap())
        };
        let first = name("one.documents.azure.com", "one");
        assert_eq!(first, name("one.documents.azure.com", "one"));
        let others =
            [name("two.documents.azure.com", "one"), name("one.documents.azure.com", "two")];
        let names: BTreeSet<&String> = others.iter().chain([&first]).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

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
        let start = Instant::now();
        let recover = |key: ConversationKey, _worker: WorkerId| async move {
            let away = StoreError::Unavailable("connection refused".into());
            Err(store_error(&key, "read", away))
        };
        recover_with(&successor, recover).await;
        assert!(start.elapsed() <= LEASE_DURATION + 2 * INTERVAL);
        assert!(!folder.path().join("copy.work").exists());
    }
}
