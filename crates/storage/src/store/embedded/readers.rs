//! Read-only connections, used outside the async runtime because a cold page comes from the disk.
//!
//! Reads run on tokio's blocking threads. Measured: a point read takes 40 µs by itself, 50 µs on a
//! dedicated thread and 80 µs here. A commit takes 1 ms, so a thread pool is not worth it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::store::StoreError;
use crate::store::embedded::{schema, store_error, unavailable};

/// Maximum number of concurrent reads; further reads wait.
const READERS_MAX: usize = 4;

pub(super) struct Readers {
    file: PathBuf,
    /// Idle connections, at most [`READERS_MAX`]; opened on first use.
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(file: PathBuf) -> Self {
        let permits = Arc::new(Semaphore::new(READERS_MAX));
        Self { file, idle: Mutex::default(), permits }
    }

    pub(super) async fn run_read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let readers = Arc::clone(self);
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| unavailable("the store is closed"))?;
        let done = tokio::task::spawn_blocking(move || {
            let connection = readers.take_connection()?;
            let answer = work(&connection);
            if answer.is_ok() {
                // A connection that failed is closed: the next read opens the file again.
                readers.lock_idle().push(connection);
            }
            drop(permit);
            answer
        });
        done.await.map_err(|error| StoreError::Unavailable(Box::new(error)))?
    }

    fn take_connection(&self) -> Result<Connection, StoreError> {
        let idle = self.lock_idle().pop();
        idle.map_or_else(|| schema::open_reader(&self.file).map_err(store_error), Ok)
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
