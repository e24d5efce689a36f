//! Reservation of a command's run, so that requests with one key run it once, whichever process
//! receives them. The locks of `request_locks` order those of one process.

use std::time::Duration;

use tokio::time::Instant;

use crate::pipeline::CommandContext;
use turnwheel_conversation::inbox::{InputOutcome, Receipt};
use turnwheel_extensions::runner::HOOK_TIMEOUT_MAX;
use turnwheel_platform::ids::InputId;
use turnwheel_record::certain_write::{BatchOutcome, write_until_certain};
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::documents;
use turnwheel_record::load::parse_body;
use turnwheel_storage::store::{Document, ETag, Freshness, Partition, StoredDocument, Write};

/// A run that is older has lost its process. No command runs as long.
const RUN_TIME_MAX: Duration = HOOK_TIMEOUT_MAX.saturating_add(Duration::from_secs(5));
/// Delay between two reads of a request that waits for a run of another process.
const POLL_DELAY: Duration = Duration::from_millis(200);
/// Member of the document with the worker that runs the command.
const WORKER: &str = "worker";

/// The right to run a command.
pub(super) struct RunReservation<'a> {
    context: CommandContext<'a>,
    /// The version of the document. `None`: no other process can receive the same request.
    etag: Option<ETag>,
}

pub(super) enum RunStart<'a> {
    Own(RunReservation<'a>),
    /// Another process has run the command.
    Finished(CommandResponse),
}

impl<'a> RunReservation<'a> {
    /// Reserves the run, or waits for that of another process. The caller has the lock of the
    /// request, and has found no earlier response.
    ///
    /// # Errors
    /// As for [`CommandContext::find_response`].
    pub(super) async fn begin(context: CommandContext<'a>) -> Result<RunStart<'a>, CommandError> {
        let CommandContext { services, key, idempotency, .. } = context;
        if !idempotency.is_repeatable || services.store.is_of_one_process() {
            return Ok(RunStart::Own(Self { context, etag: None }));
        }
        let began = Instant::now();
        let mut write = Write::Create(document(context));
        loop {
            if let BatchOutcome::Won(etags) =
                write_until_certain(services, key, vec![write]).await?
            {
                let run = Self { context, etag: etags.into_iter().next() };
                // The other run may have ended before the write.
                let Some(response) = context.find_response().await? else {
                    return Ok(RunStart::Own(run));
                };
                run.end().await;
                return Ok(RunStart::Finished(response));
            }
            write = loop {
                if let Some(response) = context.find_response().await? {
                    return Ok(RunStart::Finished(response));
                }
                match read(context).await? {
                    None => break Write::Create(document(context)),
                    Some(found) if is_over(context, &found, began)? => {
                        break Write::Replace(document(context), Some(found.etag));
                    }
                    Some(_) => tokio::time::sleep(POLL_DELAY).await,
                }
            };
        }
    }

    /// Releases the reservation after the response is stored. If that fails, repetitions find the
    /// response first.
    pub(super) async fn end(self) {
        let Some(etag) = self.etag else { return };
        let CommandContext { services, key, .. } = self.context;
        let id = document_id(self.context);
        let delete = vec![Write::Delete(id.as_str().to_owned(), Some(etag))];
        if let Err(error) = write_until_certain(services, key, delete).await {
            tracing::debug!(error = %error, "command reservation release failed");
        }
    }
}

fn document_id(context: CommandContext<'_>) -> InputId {
    InputId::new(format!("{}-run", context.input_id()))
}

fn document(context: CommandContext<'_>) -> Document {
    let CommandContext { services, idempotency, .. } = context;
    let placeholder =
        CommandResponse { status: 0, body: None, location: None, etag: None, is_replayed: false };
    let record = idempotency.to_record(&placeholder);
    let now = services.clock.now();
    let mut receipt = Receipt::new(document_id(context), now, record, InputOutcome::Applied);
    receipt.extra.insert(WORKER.to_owned(), services.worker.as_str().into());
    documents::receipt_document(&receipt)
}

async fn read(context: CommandContext<'_>) -> Result<Option<StoredDocument>, CommandError> {
    let CommandContext { services, key, .. } = context;
    let partition = Partition::Conversation(key.clone());
    let id = document_id(context);
    Ok(services.store.read(&partition, id.as_str(), Freshness::Latest).await?)
}

/// True if the run that the document reserves cannot be in progress. `began`: the wait for it.
fn is_over(
    context: CommandContext<'_>,
    found: &StoredDocument,
    began: Instant,
) -> Result<bool, CommandError> {
    let services = context.services;
    let receipt: Receipt = parse_body(found)?;
    let worker = receipt.extra.get(WORKER).and_then(|it| it.as_str());
    // The lock shows that the run of this process has ended.
    Ok(worker == Some(services.worker.as_str())
        || receipt.accepted_at.until(services.clock.now()) >= RUN_TIME_MAX
        || began.elapsed() >= RUN_TIME_MAX)
}
