//! Queues of an Azure Storage account, shared by all instances and any other authorised writer.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_core::http::ClientMethodOptions;
use azure_core::time::OffsetDateTime;
use azure_storage_queue::models::{
    QueueClientCreateOptions, QueueClientDeleteMessageOptions, QueueClientGetPropertiesOptions,
    QueueClientGetPropertiesResultHeaders as _, QueueClientReceiveMessagesOptions,
    QueueClientSendMessageOptions, QueueClientUpdateMessageOptions, ReceivedMessage,
};
use azure_storage_queue::{QueueClient, QueueServiceClient};
use bytes::Bytes;
use tokio::sync::watch;

use super::{NEVER, Queue, QueueError, QueueMessage, is_queue_name, poison_queue, validate_text};
use turnwheel_azure::storage::{self, StorageError, TransportSettings};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::is_plain_text;
use turnwheel_platform::settings::azure::StorageAccount;

/// Maximum messages of one receive request (limit of the service).
const RECEIVE_MAX: usize = 32;
/// Maximum time to hide a message: seven days (limit of the service).
const HIDE_SECONDS_MAX: u64 = 7 * 24 * 60 * 60;
/// Messages never expire: the store defines the pending work, and a prompt is a user's only copy.
const NEVER_EXPIRES: i32 = -1;

pub struct StorageQueue {
    service: QueueServiceClient,
    prefix: String,
}

impl StorageQueue {
    /// Creates the client and sends no request. Each queue name starts with `prefix`, which is
    /// empty in production. `credential` replaces the credential of the account's identity.
    ///
    /// # Errors
    /// The account or the prefix cannot be used: show the error and do not start.
    pub fn connect(
        account: &StorageAccount,
        credential: Option<Arc<dyn TokenCredential>>,
        prefix: &str,
        transport: &TransportSettings,
    ) -> Result<Self, StorageError> {
        let longest = format!("{prefix}{}", poison_queue(super::PROMPTS));
        if !is_queue_name(&longest) {
            return Err(StorageError::new(format!(
                "the queue prefix `{prefix}` is invalid: use at most 43 of a-z, 0-9 and single hyphens, without a hyphen first"
            )));
        }
        let service = storage::queue_client(account, credential, transport)?;
        Ok(Self { service, prefix: prefix.to_owned() })
    }

    /// Creates the missing queues.
    ///
    /// # Errors
    /// [`QueueError::Unavailable`]: show its source, which says what to do.
    pub async fn create_queues(&self, queues: &[&str]) -> Result<(), QueueError> {
        for queue in queues {
            let options = QueueClientCreateOptions {
                method_options: method_options("queue.create"),
                ..Default::default()
            };
            self.client(queue)?
                .create(Some(options))
                .await
                .map_err(|error| self.unavailable(&error))?;
        }
        Ok(())
    }

    fn client(&self, queue: &str) -> Result<QueueClient, QueueError> {
        let name = format!("{}{queue}", self.prefix);
        if !is_queue_name(&name) {
            let text = format!("`{name}` is not a valid queue name");
            return Err(QueueError::Unavailable(StorageError::new(text).into()));
        }
        self.service.queue_client(&name).map_err(|error| self.unavailable(&error))
    }

    fn unavailable(&self, error: &azure_core::Error) -> QueueError {
        QueueError::Unavailable(storage::to_storage_error(error, self.service.url()).into())
    }

    /// Maps an error of a request on a received message: `Gone` if the pop receipt is not valid.
    fn message_error(&self, error: &azure_core::Error) -> QueueError {
        match (storage::http_status(error), storage::error_code(error)) {
            (Some(404), _)
            | (Some(400), Some("PopReceiptMismatch" | "InvalidQueryParameterValue")) => {
                QueueError::Gone
            }
            _ => self.unavailable(error),
        }
    }

    /// Returns the client for a received message, after a check of its id and pop receipt.
    fn message_client(
        &self,
        queue: &str,
        id: &str,
        pop_receipt: &str,
    ) -> Result<QueueClient, QueueError> {
        // Both become part of a URL, and an empty one would address another resource.
        if !is_plain_text(id) || pop_receipt.is_empty() {
            return Err(QueueError::Gone);
        }
        self.client(queue)
    }
}

impl fmt::Debug for StorageQueue {
    /// Omits the query of the URL, which may be a signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.service.url().host_str().unwrap_or_default();
        write!(f, "StorageQueue({host}, {}*)", self.prefix)
    }
}

fn method_options(operation: &'static str) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: storage::operation_context(operation) }
}

#[async_trait]
impl Queue for StorageQueue {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        validate_text(&text)?;
        let client = self.client(queue)?;
        let body = Bytes::from(message_xml(&text));
        let send = async || {
            let options = QueueClientSendMessageOptions {
                message_time_to_live: Some(NEVER_EXPIRES),
                visibility_timeout: Some(whole_seconds(delay, 0)),
                method_options: method_options("queue.send"),
                ..Default::default()
            };
            client.send_message(body.clone().into(), Some(options)).await.map(|_| ())
        };
        let mut sent = send().await;
        if let Err(error) = &sent
            && storage::error_code(error) == Some("QueueNotFound")
        {
            self.create_queues(&[queue]).await?;
            sent = send().await;
        }
        sent.map_err(|error| match storage::http_status(&error) {
            Some(413) => QueueError::TooLarge(text.len()),
            _ => self.unavailable(&error),
        })
    }

    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError> {
        let client = self.client(queue)?;
        let mut all = Vec::new();
        while all.len() < count_max {
            let requested = RECEIVE_MAX.min(count_max - all.len());
            let options = QueueClientReceiveMessagesOptions {
                number_of_messages: i32::try_from(requested).ok(),
                visibility_timeout: Some(whole_seconds(hide, 1)),
                method_options: method_options("queue.receive"),
                ..Default::default()
            };
            let answer = match client.receive_messages(Some(options)).await {
                Ok(answer) => answer.into_model(),
                Err(error) if storage::http_status(&error) == Some(404) => break,
                Err(error) => Err(error),
            };
            let messages = answer.map(|answer| answer.items.unwrap_or_default());
            let messages = match messages {
                Ok(messages) => messages,
                // Earlier requests have hidden their messages: return them. The next poll reports
                // the error.
                Err(_) if !all.is_empty() => break,
                Err(error) => return Err(self.unavailable(&error)),
            };
            let count = messages.len();
            all.extend(messages.into_iter().map(to_queue_message));
            if count < requested {
                break;
            }
        }
        Ok(all)
    }

    async fn renew(
        &self,
        queue: &str,
        id: &str,
        pop_receipt: &str,
        hide: Duration,
    ) -> Result<String, QueueError> {
        let client = self.message_client(queue, id, pop_receipt)?;
        let options = QueueClientUpdateMessageOptions {
            method_options: method_options("queue.renew"),
            ..Default::default()
        };
        let renewed =
            client.update_message(id, pop_receipt, whole_seconds(hide, 0), Some(options)).await;
        let renewed = renewed.map_err(|error| self.message_error(&error))?;
        let receipt = renewed.headers().get_optional_string(&"x-ms-popreceipt".into());
        receipt.ok_or_else(|| {
            let text = "the storage account renewed a message without a new pop receipt";
            QueueError::Unavailable(StorageError::new(text).into())
        })
    }

    async fn delete(&self, queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError> {
        let client = self.message_client(queue, id, pop_receipt)?;
        let options = QueueClientDeleteMessageOptions {
            method_options: method_options("queue.delete"),
            ..Default::default()
        };
        let deleted = client.delete_message(id, pop_receipt, Some(options)).await;
        deleted.map(|_| ()).map_err(|error| self.message_error(&error))
    }

    async fn length(&self, queue: &str) -> Result<u64, QueueError> {
        let options = QueueClientGetPropertiesOptions {
            method_options: method_options("queue.length"),
            ..Default::default()
        };
        let counted = match self.client(queue)?.get_properties(Some(options)).await {
            Ok(answer) => answer.approximate_messages_count(),
            Err(error) if storage::http_status(&error) == Some(404) => return Ok(0),
            Err(error) => Err(error),
        };
        let counted = counted.map_err(|error| self.unavailable(&error))?;
        Ok(counted.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    fn arrivals(&self, _queue: &str) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// Rounds up to whole seconds, within the limits.
fn whole_seconds(span: Duration, min: u64) -> i32 {
    let whole = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    i32::try_from(whole.clamp(min, HIDE_SECONDS_MAX)).unwrap_or(i32::MAX)
}

/// Builds the XML of a message. The SDK does not escape carriage returns, which XML readers turn
/// into line feeds.
fn message_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\r' => escaped.push_str("&#13;"),
            c => escaped.push(c),
        }
    }
    format!("<QueueMessage><MessageText>{escaped}</MessageText></QueueMessage>")
}

fn to_queue_message(message: ReceivedMessage) -> QueueMessage {
    let count = message.dequeue_count.unwrap_or(1);
    QueueMessage {
        id: message.message_id.unwrap_or_default(),
        pop_receipt: message.pop_receipt.unwrap_or_default(),
        dequeue_count: u32::try_from(count).unwrap_or(u32::MAX),
        text: message.message_text.unwrap_or_default(),
        inserted_at: timestamp(message.insertion_time),
        // The service returns the year 9999, which is later than our maximum.
        expires_at: timestamp(message.expiration_time).min(NEVER),
        next_visible_at: timestamp(message.time_next_visible),
    }
}

fn timestamp(time: Option<OffsetDateTime>) -> Timestamp {
    let seconds = time.map_or(0, OffsetDateTime::unix_timestamp);
    Timestamp(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000))
}
