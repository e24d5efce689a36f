//! Marks of conversations in the work file.

use std::sync::Mutex;

use axum::body::Body;
use axum::extract::Request;
use serde_json::json;
use tower::ServiceExt as _;

use crate::start::function_handlers::tests::{NOW, handlers_of, key};
use crate::start::function_handlers::*;
use crate::start::work_file::testing::{create_with_clock, read_marked};
use turnwheel_http::functions::functions_router;
use turnwheel_model::scripted::ScriptedModel;
use turnwheel_platform::clock::{Clock, ManualClock};
use turnwheel_platform::ids::{ConversationKey, SystemIds, WorkerId};
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::services::ServicePorts;
use turnwheel_storage::artifacts::MemoryArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::queue::{MemoryQueue, QueueFaults};
use turnwheel_storage::store::TAKE_OVER_DELAY;
use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, StoreRequest};
use turnwheel_storage::store::memory::MemoryStore;

/// Reads the marks at each request to the store.
#[derive(Debug)]
struct MarkReader {
    file: Arc<WorkFile>,
    is_broken: bool,
    marked: Mutex<Vec<Vec<ConversationKey>>>,
}

impl StoreInterceptor for MarkReader {
    fn before_request(&self, _request: &StoreRequest<'_>) -> Result<(), StoreError> {
        self.marked.lock().unwrap().push(read_marked(&self.file));
        if self.is_broken { Err(StoreError::Corrupt("the head".to_owned())) } else { Ok(()) }
    }
}

struct MarkedHandlers {
    functions: Arc<FunctionHandlers>,
    store: Arc<InterceptedStore<MarkReader>>,
    file: Arc<WorkFile>,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

impl MarkedHandlers {
    fn new(is_broken: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manual = Arc::new(ManualClock::new(NOW));
        let clock: Arc<dyn Clock> = Arc::clone(&manual) as _;
        let file = create_with_clock(folder.path(), "w1", Arc::clone(&clock));
        let reader =
            MarkReader { file: Arc::clone(&file), is_broken, marked: Mutex::new(Vec::new()) };
        let store = Arc::new(InterceptedStore::new(Arc::new(MemoryStore::new()), reader));
        let ports = ServicePorts {
            store: Arc::clone(&store) as _,
            queue: Arc::new(MemoryQueue::new(Arc::clone(&clock), 0, QueueFaults::default())),
            artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
            live: Arc::new(EmbeddedLive::default()),
            model: Arc::new(ScriptedModel),
            clock,
            ids: Arc::new(SystemIds),
        };
        let functions = Arc::new(FunctionHandlers {
            work_file: Some(Arc::clone(&file)),
            ..handlers_of(Services::new(WorkerId::new("w1"), ports))
        });
        Self { functions, store, file, clock: manual, _folder: folder }
    }

    /// Delivers a wake-up message as the Functions host does. Returns the marks at each request to
    /// the store.
    async fn deliver(&self) -> Vec<Vec<ConversationKey>> {
        let nudge = serde_json::to_string(&Nudge::for_conversation(key("c"), None)).unwrap();
        let envelope = json!({"Data": {"message": json!(nudge).to_string()}, "Metadata": {}});
        let request = Request::post("/turn").body(Body::from(envelope.to_string())).unwrap();
        let functions = Arc::clone(&self.functions) as Arc<dyn Functions>;
        let router = functions_router(functions, Shutdown::default(), Duration::from_mins(5));
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        self.take_requests()
    }

    fn take_requests(&self) -> Vec<Vec<ConversationKey>> {
        std::mem::take(&mut *self.store.interceptor.marked.lock().unwrap())
    }
}

#[tokio::test]
async fn mark_lasts_from_first_store_request_beyond_response() {
    let app = MarkedHandlers::new(false);
    let requests = app.deliver().await;
    assert!(!requests.is_empty() && requests.iter().all(|marked| *marked == [key("c")]));
    // The host has not deleted the message yet. If both are killed, the next handler wakes a worker.
    assert_eq!(read_marked(&app.file), [key("c")]);
    app.clock.advance(Duration::from_secs(70));
    assert!(read_marked(&app.file).is_empty());
}

#[tokio::test]
async fn mark_of_a_failed_turn_outlasts_its_lease() {
    let app = MarkedHandlers::new(true);
    let requests = app.deliver().await;
    assert!(!requests.is_empty() && requests.iter().all(|marked| *marked == [key("c")]));
    app.clock.advance(LEASE_DURATION + TAKE_OVER_DELAY);
    assert_eq!(read_marked(&app.file), [key("c")]);
    app.clock.advance(Duration::from_mins(1));
    assert!(read_marked(&app.file).is_empty());
}

#[tokio::test]
async fn turns_for_a_client_are_marked() {
    let app = MarkedHandlers::new(false);
    let nudge = Nudge::for_conversation(key("c"), None);
    let client = CancellationToken::new();
    Box::pin(app.functions.take_turns(&nudge, Some(&client))).await.unwrap();
    let requests = app.take_requests();
    assert!(!requests.is_empty() && requests.iter().all(|marked| *marked == [key("c")]));
}
