//! Connections that only read, off the async runtime: a cold page comes from the disk.
//!
//! tokio's blocking threads run them. Measured: a point read takes 40 µs by itself, 50 on a thread of our own, 80 here;
//! beside a commit's millisecond that is not worth a pool of threads.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::store::StoreError;
use crate::store::embedded::{schema, store_error, unavailable};

/// Reads at the same time; more wait.
const READERS_MAX: usize = 4;

pub(super) struct Readers {
    file: PathBuf,
    /// At most [`READERS_MAX`]; opened when first needed.
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(file: PathBuf) -> Self {
        let permits = Arc::new(Semaphore::new(READERS_MAX));
        Self { file, idle: Mutex::default(), permits }
    }

    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let readers = Arc::clone(self);
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| unavailable("the store is closed"))?;
        let done = tokio::task::spawn_blocking(move || {
            let connection = readers.connection()?;
            let answer = work(&connection);
            if answer.is_ok() {
                // One that failed is closed: the next read opens the file again.
                readers.idle().push(connection);
            }
            drop(permit);
            answer
        });
        done.await.map_err(|error| StoreError::Unavailable(Box::new(error)))?
    }

    fn connection(&self) -> Result<Connection, StoreError> {
        let idle = self.idle().pop();
        idle.map_or_else(|| schema::open_reader(&self.file).map_err(store_error), Ok)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("file", &self.file).finish_non_exhaustive()
    }
}
