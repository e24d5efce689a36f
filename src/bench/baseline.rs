//! Measures the requests of the counted run alone: sends them again without workers.
//!
//! They go to separate conversations and queues, in the original order of each conversation.
//! Version conditions are left out, since the service assigns the versions.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::header;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::try_join_all;
use reqwest::Method;
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use crate::azure::request_signer::{RequestSigner, UnsignedRequest};
use crate::bench::accounts::Accounts;
use crate::bench::recording_proxy::{Operation, RecordedRequest, text_between};
use crate::bench::{BenchError, io_error};

/// Headers that are not sent again: authorization, dates and version conditions.
const DROPPED_HEADERS: [&str; 6] =
    ["authorization", "x-ms-date", "date", "if-match", "if-none-match", "x-ms-session-token"];

struct Replayer<'a> {
    accounts: &'a Accounts,
    signer: RequestSigner,
    client: reqwest::Client,
    /// Version of the queue protocol that the workers use.
    version: String,
    /// The tag in the names of the counted run, and its replacement of the same length.
    tags: (&'a str, &'a str),
}

/// A sender: one request after the other, with its own queue.
struct ReplaySender {
    queue: String,
    /// The message that it put or received last: id and pop receipt.
    message: Option<(String, String)>,
}

/// Measures the time to send all requests with this number of senders.
pub(super) async fn measure_replay(
    recorded: &[RecordedRequest],
    accounts: &Accounts,
    senders: usize,
    tags: (&str, &str),
) -> Result<Duration, BenchError> {
    let client = reqwest::Client::builder().no_proxy().no_gzip().build();
    let client = client.map_err(io_error("make an HTTP client"))?;
    let signer = RequestSigner::from_accounts(&accounts.storage, &accounts.cosmos);
    let signer = signer.ok_or_else(|| BenchError::Baseline("there are no keys".to_owned()))?;
    let version = recorded
        .iter()
        .find(|recorded| recorded.operation == Operation::Put)
        .and_then(|recorded| recorded.headers.get("x-ms-version")?.to_str().ok())
        .ok_or_else(|| BenchError::Baseline("no message was sent to a queue".to_owned()))?;
    let replayer = Replayer { accounts, signer, client, version: version.to_owned(), tags };
    let conversations = Mutex::new(group_by_conversation(recorded, tags.0));
    let senders: Vec<ReplaySender> = (0..senders)
        .map(|lane| ReplaySender { queue: format!("bare-{}-{lane}", tags.1), message: None })
        .collect();
    try_join_all(senders.iter().map(|lane| replayer.create_queue(&lane.queue))).await?;
    let started_at = Instant::now();
    try_join_all(senders.into_iter().map(|mut lane| {
        let (replayer, conversations) = (&replayer, &conversations);
        async move {
            loop {
                let next = conversations.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some(next) = next else { return Ok(()) };
                for recorded in next {
                    replayer.send(recorded, &mut lane).await?;
                }
            }
        }
    }))
    .await?;
    Ok(started_at.elapsed())
}

/// Groups the requests by conversation, in their order. Leaves out failed requests and those of no
/// conversation.
fn group_by_conversation<'a>(
    sent: &'a [RecordedRequest],
    tag: &str,
) -> VecDeque<Vec<&'a RecordedRequest>> {
    let mut indexes = HashMap::<String, usize>::new();
    let mut conversations = VecDeque::<Vec<&RecordedRequest>>::new();
    let mut conversation_by_message = HashMap::<String, String>::new();
    for sent in sent.iter().filter(|sent| !sent.is_failure()) {
        let conversation_id = if sent.operation.is_of_conversation() {
            conversation_in_key(sent)
        } else if sent.operation == Operation::Put {
            conversation_in_message(&sent.body, tag)
        } else if sent.operation == Operation::Get {
            conversation_in_message(&sent.response, tag)
        } else if sent.operation == Operation::Delete {
            message_id(sent).and_then(|id| conversation_by_message.get(id).cloned())
        } else {
            None
        };
        let Some(conversation_id) = conversation_id else { continue };
        if sent.operation == Operation::Put
            && let Some(id) = text_between(&sent.response, "<MessageId>", "</")
        {
            conversation_by_message.insert(id.to_owned(), conversation_id.clone());
        }
        let index = *indexes.entry(conversation_id).or_insert_with(|| {
            conversations.push_back(Vec::new());
            conversations.len() - 1
        });
        if let Some(conversation) = conversations.get_mut(index) {
            conversation.push(sent);
        }
    }
    conversations
}

/// The key's last part: the conversation's id, or the tenant's, which is the same.
fn conversation_in_key(sent: &RecordedRequest) -> Option<String> {
    let key = sent.headers.get("x-ms-documentdb-partitionkey")?.to_str().ok()?;
    serde_json::from_str::<Vec<String>>(key).ok()?.pop()
}

/// The conversation that the first message wakes.
fn conversation_in_message(xml: &[u8], tag: &str) -> Option<String> {
    let text = STANDARD.decode(text_between(xml, "<MessageText>", "</")?).ok()?;
    let text = String::from_utf8(text).ok()?;
    let at = text.find(&format!("c-{tag}-"))?;
    text.get(at..)?.split('"').next().map(str::to_owned)
}

/// `/account/queue/messages/ID?popreceipt=…`
fn message_id(sent: &RecordedRequest) -> Option<&str> {
    sent.path.split_once("/messages/")?.1.split('?').next()
}

impl Replayer<'_> {
    async fn create_queue(&self, queue: &str) -> Result<(), BenchError> {
        let url = self.queue_url(queue, "");
        let headers = vec![("x-ms-version".to_owned(), self.version.clone())];
        self.send_signed(
            UnsignedRequest { method: "PUT".to_owned(), url, headers, body: Vec::new() },
            false,
        )
        .await?;
        Ok(())
    }

    fn queue_url(&self, queue: &str, rest: &str) -> Url {
        let mut url = self.accounts.storage.queue.clone();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        url.set_path(&format!("{}/{queue}{path}", url.path().trim_end_matches('/')));
        url.set_query(Some(query).filter(|query| !query.is_empty()));
        url
    }

    async fn send(
        &self,
        sent: &RecordedRequest,
        sender: &mut ReplaySender,
    ) -> Result<(), BenchError> {
        let rename = |text: &str| text.replace(self.tags.0, self.tags.1);
        let is_cosmos = sent.operation.is_of_conversation();
        let path = rename(&sent.path);
        let url = if is_cosmos {
            self.accounts.cosmos.endpoint.join(&path).map_err(io_error("name a document"))?
        } else if sent.operation == Operation::Delete {
            let Some((id, receipt)) = sender.message.take() else { return Ok(()) };
            let receipt: String =
                url::form_urlencoded::byte_serialize(receipt.as_bytes()).collect();
            self.queue_url(&sender.queue, &format!("/messages/{id}?popreceipt={receipt}"))
        } else {
            let query = path.split_once('?').map_or("", |(_, query)| query);
            self.queue_url(&sender.queue, &format!("/messages?{query}"))
        };
        let body = match std::str::from_utf8(&sent.body) {
            Ok(text) if is_cosmos => rename(text).into_bytes(),
            _ => sent.body.to_vec(),
        };
        let body = if sent.operation == Operation::Batch {
            without_version_conditions(&body)
        } else {
            body
        };
        let headers =
            sent.headers.iter().filter(|(name, _)| !DROPPED_HEADERS.contains(&name.as_str()));
        let headers = headers.filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), rename(value.to_str().ok()?)))
        });
        let unsigned = UnsignedRequest {
            method: sent.method.to_string(),
            url,
            headers: headers.collect(),
            body,
        };
        let response = self.send_signed(unsigned, is_cosmos).await?;
        if matches!(sent.operation, Operation::Put | Operation::Get)
            && let (Some(id), Some(receipt)) = (
                text_between(&response, "<MessageId>", "</"),
                text_between(&response, "<PopReceipt>", "</"),
            )
        {
            sender.message = Some((id.to_owned(), receipt.to_owned()));
        }
        Ok(())
    }

    async fn send_signed(
        &self,
        unsigned: UnsignedRequest,
        is_cosmos: bool,
    ) -> Result<Vec<u8>, BenchError> {
        let signature = if is_cosmos {
            self.signer.cosmos_headers(&unsigned)
        } else {
            self.signer.storage_headers(&unsigned)
        };
        let baseline_error = |target: String| BenchError::Baseline(target);
        let signature =
            signature.ok_or_else(|| baseline_error("a request cannot be signed".to_owned()))?;
        let UnsignedRequest { method, url, headers, body } = unsigned;
        let target = format!("{method} {}", url.path());
        let method: Method = method.parse().map_err(io_error("name a method"))?;
        let mut request = self.client.request(method.clone(), url);
        for (name, value) in headers.iter().chain(&signature) {
            request = request.header(name, value);
        }
        if !body.is_empty() || method != Method::GET {
            request = request.header(header::CONTENT_LENGTH, body.len()).body(body);
        }
        let response = request.send().await.map_err(io_error("reach storage"))?;
        let status = response.status();
        let response = response.bytes().await.map_err(io_error("read from storage"))?;
        let is_missing_document = is_cosmos && status == reqwest::StatusCode::NOT_FOUND;
        if status.is_success() || is_missing_document {
            return Ok(response.to_vec());
        }
        let text = String::from_utf8_lossy(&response).chars().take(300).collect::<String>();
        Err(baseline_error(format!("{target} failed with {status}: {text}")))
    }
}

/// Removes the version conditions of a batch's operations.
fn without_version_conditions(batch: &[u8]) -> Vec<u8> {
    let Ok(mut operations) = serde_json::from_slice::<Vec<Value>>(batch) else {
        return batch.to_vec();
    };
    for operation in &mut operations {
        if let Some(members) = operation.as_object_mut() {
            members.remove("ifMatch");
        }
    }
    serde_json::to_vec(&operations).unwrap_or_else(|_| batch.to_vec())
}
