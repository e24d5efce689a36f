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

use crate::azure::bare::{Signer, Unsigned};
use crate::bench::accounts::Accounts;
use crate::bench::wire::{Operation, Sent, between};
use crate::bench::{BenchError, io};

/// Headers that are not sent again: authorization, dates and version conditions.
const DROPPED: [&str; 6] =
    ["authorization", "x-ms-date", "date", "if-match", "if-none-match", "x-ms-session-token"];

struct Bare<'a> {
    accounts: &'a Accounts,
    signer: Signer,
    client: reqwest::Client,
    /// Version of the queue protocol that the workers use.
    version: String,
    /// The tag in the names of the counted run, and its replacement of the same length.
    tags: (&'a str, &'a str),
}

/// A sender: one request after the other, with its own queue.
struct Lane {
    queue: String,
    /// The message that it put or received last: id and pop receipt.
    message: Option<(String, String)>,
}

/// Measures the time to send all requests with this number of senders.
pub(super) async fn time(
    sent: &[Sent],
    accounts: &Accounts,
    lanes: usize,
    tags: (&str, &str),
) -> Result<Duration, BenchError> {
    let client = reqwest::Client::builder().no_proxy().no_gzip().build();
    let client = client.map_err(io("make an HTTP client"))?;
    let signer = Signer::of(&accounts.storage, &accounts.cosmos);
    let signer = signer.ok_or_else(|| BenchError::Bare("there are no keys".to_owned()))?;
    let version = sent
        .iter()
        .find(|sent| sent.operation == Operation::Put)
        .and_then(|sent| sent.headers.get("x-ms-version")?.to_str().ok())
        .ok_or_else(|| BenchError::Bare("no message was sent to a queue".to_owned()))?;
    let bare = Bare { accounts, signer, client, version: version.to_owned(), tags };
    let conversations = Mutex::new(conversations(sent, tags.0));
    let lanes: Vec<Lane> = (0..lanes)
        .map(|lane| Lane { queue: format!("bare-{}-{lane}", tags.1), message: None })
        .collect();
    try_join_all(lanes.iter().map(|lane| bare.make(&lane.queue))).await?;
    let began = Instant::now();
    try_join_all(lanes.into_iter().map(|mut lane| {
        let (bare, conversations) = (&bare, &conversations);
        async move {
            loop {
                let next = conversations.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some(next) = next else { return Ok(()) };
                for sent in next {
                    bare.send(sent, &mut lane).await?;
                }
            }
        }
    }))
    .await?;
    Ok(began.elapsed())
}

/// Groups the requests by conversation, in their order. Leaves out failed requests and those of no
/// conversation.
fn conversations<'a>(sent: &'a [Sent], tag: &str) -> VecDeque<Vec<&'a Sent>> {
    let mut places = HashMap::<String, usize>::new();
    let mut conversations = VecDeque::<Vec<&Sent>>::new();
    let mut of_messages = HashMap::<String, String>::new();
    for sent in sent.iter().filter(|sent| !sent.is_refused()) {
        let named = if sent.operation.is_of_conversation() {
            conversation_of(sent)
        } else if sent.operation == Operation::Put {
            told_of(&sent.body, tag)
        } else if sent.operation == Operation::Get {
            told_of(&sent.answer, tag)
        } else if sent.operation == Operation::Delete {
            message_of(sent).and_then(|id| of_messages.get(id).cloned())
        } else {
            None
        };
        let Some(named) = named else { continue };
        if sent.operation == Operation::Put
            && let Some(id) = between(&sent.answer, "<MessageId>", "</")
        {
            of_messages.insert(id.to_owned(), named.clone());
        }
        let place = *places.entry(named).or_insert_with(|| {
            conversations.push_back(Vec::new());
            conversations.len() - 1
        });
        if let Some(conversation) = conversations.get_mut(place) {
            conversation.push(sent);
        }
    }
    conversations
}

/// The key's last part: the conversation's id, or the tenant's, which is the same.
fn conversation_of(sent: &Sent) -> Option<String> {
    let key = sent.headers.get("x-ms-documentdb-partitionkey")?.to_str().ok()?;
    serde_json::from_str::<Vec<String>>(key).ok()?.pop()
}

/// The conversation that the first message wakes.
fn told_of(xml: &[u8], tag: &str) -> Option<String> {
    let text = STANDARD.decode(between(xml, "<MessageText>", "</")?).ok()?;
    let text = String::from_utf8(text).ok()?;
    let at = text.find(&format!("c-{tag}-"))?;
    text.get(at..)?.split('"').next().map(str::to_owned)
}

/// `/account/queue/messages/ID?popreceipt=…`
fn message_of(sent: &Sent) -> Option<&str> {
    sent.path.split_once("/messages/")?.1.split('?').next()
}

impl Bare<'_> {
    async fn make(&self, queue: &str) -> Result<(), BenchError> {
        let url = self.queue_url(queue, "");
        let headers = vec![("x-ms-version".to_owned(), self.version.clone())];
        self.signed(Unsigned { method: "PUT".to_owned(), url, headers, body: Vec::new() }, false)
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

    async fn send(&self, sent: &Sent, lane: &mut Lane) -> Result<(), BenchError> {
        let rename = |text: &str| text.replace(self.tags.0, self.tags.1);
        let is_cosmos = sent.operation.is_of_conversation();
        let path = rename(&sent.path);
        let url = if is_cosmos {
            self.accounts.cosmos.endpoint.join(&path).map_err(io("name a document"))?
        } else if sent.operation == Operation::Delete {
            let Some((id, receipt)) = lane.message.take() else { return Ok(()) };
            let receipt: String =
                url::form_urlencoded::byte_serialize(receipt.as_bytes()).collect();
            self.queue_url(&lane.queue, &format!("/messages/{id}?popreceipt={receipt}"))
        } else {
            let query = path.split_once('?').map_or("", |(_, query)| query);
            self.queue_url(&lane.queue, &format!("/messages?{query}"))
        };
        let body = match std::str::from_utf8(&sent.body) {
            Ok(text) if is_cosmos => rename(text).into_bytes(),
            _ => sent.body.to_vec(),
        };
        let body = if sent.operation == Operation::Batch { unconditional(&body) } else { body };
        let headers = sent.headers.iter().filter(|(name, _)| !DROPPED.contains(&name.as_str()));
        let headers = headers.filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), rename(value.to_str().ok()?)))
        });
        let unsigned =
            Unsigned { method: sent.method.to_string(), url, headers: headers.collect(), body };
        let answer = self.signed(unsigned, is_cosmos).await?;
        if matches!(sent.operation, Operation::Put | Operation::Get)
            && let (Some(id), Some(receipt)) =
                (between(&answer, "<MessageId>", "</"), between(&answer, "<PopReceipt>", "</"))
        {
            lane.message = Some((id.to_owned(), receipt.to_owned()));
        }
        Ok(())
    }

    async fn signed(&self, unsigned: Unsigned, is_cosmos: bool) -> Result<Vec<u8>, BenchError> {
        let signature = if is_cosmos {
            self.signer.for_cosmos(&unsigned)
        } else {
            self.signer.for_storage(&unsigned)
        };
        let wrong = |what: String| BenchError::Bare(what);
        let signature = signature.ok_or_else(|| wrong("a request cannot be signed".to_owned()))?;
        let Unsigned { method, url, headers, body } = unsigned;
        let what = format!("{method} {}", url.path());
        let method: Method = method.parse().map_err(io("name a method"))?;
        let mut asked = self.client.request(method.clone(), url);
        for (name, value) in headers.iter().chain(&signature) {
            asked = asked.header(name, value);
        }
        if !body.is_empty() || method != Method::GET {
            asked = asked.header(header::CONTENT_LENGTH, body.len()).body(body);
        }
        let answer = asked.send().await.map_err(io("reach storage"))?;
        let status = answer.status();
        let answer = answer.bytes().await.map_err(io("read from storage"))?;
        let is_nothing = is_cosmos && status == reqwest::StatusCode::NOT_FOUND;
        if status.is_success() || is_nothing {
            return Ok(answer.to_vec());
        }
        let said = String::from_utf8_lossy(&answer).chars().take(300).collect::<String>();
        Err(wrong(format!("{what} failed with {status}: {said}")))
    }
}

/// Removes the version conditions of a batch's operations.
fn unconditional(batch: &[u8]) -> Vec<u8> {
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
