//! A recording proxy between workers and storage: forwards each request and records it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, Response, StatusCode, header};
use axum::routing::any;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use url::{Url, form_urlencoded};

use crate::bench::accounts::Accounts;
use crate::bench::{BenchError, io_error};
use crate::store::{DocumentKind, HEAD_ID};

/// A Cosmos batch has at most 2 MB, a block of a blob 4 MB.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Time for deliveries that still run after the last prompt has ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Headers of one connection.
const HOP_BY_HOP_HEADERS: [HeaderName; 4] =
    [header::HOST, header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Cosmos,
    Queue,
    Blob,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Batch,
    Query,
    /// A query of the sweep over all partitions.
    QueryAllPartitions,
    /// The SDK requests it before a query that it cannot plan by itself.
    QueryPlan,
    ReadHead,
    /// Reads if another instance subscribes to streamed events.
    ReadWatch,
    ReadOther,
    /// Accounts, containers, ranges: metadata that a client needs first.
    CosmosOther,
    Put,
    Get,
    /// A receive that found nothing.
    Poll,
    Delete,
    Update,
    QueueOther,
    BlobPut,
    BlobGet,
    BlobOther,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Batch => "Cosmos batch",
            Self::Query => "Cosmos query",
            Self::QueryAllPartitions => "Cosmos query of all partitions",
            Self::QueryPlan => "Cosmos query plan",
            Self::ReadHead => "Cosmos read of a head",
            Self::ReadWatch => "Cosmos read of a watch",
            Self::ReadOther => "Cosmos read of another",
            Self::CosmosOther => "Cosmos other",
            Self::Put => "queue put",
            Self::Get => "queue get",
            Self::Poll => "queue get of nothing",
            Self::Delete => "queue delete",
            Self::Update => "queue update",
            Self::QueueOther => "queue other",
            Self::BlobPut => "blob put",
            Self::BlobGet => "blob get",
            Self::BlobOther => "blob other",
        }
    }

    pub(super) fn is_read(self) -> bool {
        matches!(self, Self::ReadHead | Self::ReadWatch | Self::ReadOther)
    }

    /// True if Cosmos serves it from one conversation.
    pub(super) fn is_of_conversation(self) -> bool {
        self.is_read() || matches!(self, Self::Batch | Self::Query)
    }

    fn classify(
        service: Service,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        response: &[u8],
    ) -> Self {
        let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
        let is_messages = path.ends_with("/messages");
        match (service, method.as_str()) {
            (Service::Cosmos, "POST") if headers.contains_key("x-ms-cosmos-is-batch-request") => {
                Self::Batch
            }
            (Service::Cosmos, "POST")
                if headers.contains_key("x-ms-cosmos-is-query-plan-request") =>
            {
                Self::QueryPlan
            }
            (Service::Cosmos, "POST") if headers.contains_key("x-ms-documentdb-isquery") => {
                let is_narrow = headers.contains_key("x-ms-documentdb-partitionkey");
                if is_narrow { Self::Query } else { Self::QueryAllPartitions }
            }
            (Service::Cosmos, "GET") if path.contains("/docs/") => {
                let id = path.rsplit('/').next();
                if id == Some(HEAD_ID) {
                    Self::ReadHead
                } else if id == Some(DocumentKind::Watch.as_str()) {
                    Self::ReadWatch
                } else {
                    Self::ReadOther
                }
            }
            (Service::Cosmos, _) => Self::CosmosOther,
            (Service::Queue, "POST") if is_messages => Self::Put,
            (Service::Queue, "GET") if is_messages => {
                if text_between(response, "<MessageId>", "</").is_some() {
                    Self::Get
                } else {
                    Self::Poll
                }
            }
            (Service::Queue, "DELETE") if path.contains("/messages/") => Self::Delete,
            (Service::Queue, "PUT") if path.contains("/messages/") => Self::Update,
            (Service::Queue, _) => Self::QueueOther,
            (Service::Blob, "PUT") => Self::BlobPut,
            (Service::Blob, "GET" | "HEAD") => Self::BlobGet,
            (Service::Blob, _) => Self::BlobOther,
        }
    }
}

/// Returns the text between the first occurrences of both.
pub(super) fn text_between<'a>(text: &'a [u8], from: &str, to: &str) -> Option<&'a str> {
    let (_, after) = std::str::from_utf8(text).ok()?.split_once(from)?;
    after.split_once(to).map(|(found, _)| found)
}

/// One request and its response.
#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    /// Position in the order of arrival.
    number: usize,
    pub(super) operation: Operation,
    pub(super) method: Method,
    /// Includes the query.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) status: StatusCode,
    pub(super) response: Bytes,
}

impl RecordedRequest {
    pub(super) fn is_failure(&self) -> bool {
        // A missing document, or a poison queue that was never created, is not a failure.
        let can_be_absent = self.operation.is_read() || self.operation == Operation::Poll;
        let is_missing = can_be_absent && self.status == StatusCode::NOT_FOUND;
        self.status.is_client_error() && !is_missing || self.status.is_server_error()
    }

    /// True for a message with a visibility delay.
    fn is_delayed_put(&self) -> bool {
        let (_, query) = self.path.split_once('?').unwrap_or_default();
        let is_later =
            |(name, value): (_, Cow<'_, str>)| name == "visibilitytimeout" && value != "0";
        self.operation == Operation::Put && form_urlencoded::parse(query.as_bytes()).any(is_later)
    }
}

/// Proxies the accounts until dropped.
#[derive(Debug)]
pub(super) struct RecordingProxy {
    /// The accounts with the proxy's addresses.
    pub(super) accounts: Accounts,
    log: Arc<TrafficLog>,
    _servers: [AbortOnDropHandle<()>; 3],
}

#[derive(Debug, Default)]
struct TrafficLog {
    next_number: AtomicUsize,
    requests: Mutex<Vec<RecordedRequest>>,
}

struct ProxyTarget {
    service: Service,
    upstream: Url,
    /// The proxy's address, which replaces the account's in Cosmos responses.
    own_address: String,
    client: reqwest::Client,
    log: Arc<TrafficLog>,
}

impl RecordingProxy {
    /// # Errors
    /// No port is free.
    pub(super) async fn start(accounts: &Accounts) -> Result<Self, BenchError> {
        let client = reqwest::Client::builder().no_proxy().no_gzip().build();
        let client = client.map_err(io_error("make an HTTP client"))?;
        let mut accounts = accounts.clone();
        let notes = Arc::<TrafficLog>::default();
        let start_target = async |service, url: &mut Url| {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let own = listener.local_addr()?;
            let to = url.clone();
            let _ = url.set_host(Some("127.0.0.1"));
            let _ = url.set_port(Some(own.port()));
            let (client, notes) = (client.clone(), Arc::clone(&notes));
            let place = ProxyTarget {
                service,
                upstream: to,
                own_address: own.to_string(),
                client,
                log: notes,
            };
            let router =
                Router::new().fallback(any(forward_and_record)).with_state(Arc::new(place));
            #[expect(clippy::disallowed_methods, reason = "a server that ends with its handle")]
            let server = tokio::spawn(async move {
                let _ = axum::serve(listener, router).await;
            });
            std::io::Result::Ok(AbortOnDropHandle::new(server))
        };
        let action = "start the storage proxy";
        let servers = [
            start_target(Service::Cosmos, &mut accounts.cosmos.endpoint)
                .await
                .map_err(io_error(action))?,
            start_target(Service::Queue, &mut accounts.storage.queue)
                .await
                .map_err(io_error(action))?,
            start_target(Service::Blob, &mut accounts.storage.blob)
                .await
                .map_err(io_error(action))?,
        ];
        Ok(Self { accounts, log: notes, _servers: servers })
    }

    /// Returns the requests since the last call, in order, once every immediate message has been
    /// deleted: a delivery outlasts its prompt a little. Leaves out messages that a sweep sends for
    /// a later minute.
    pub(super) async fn take_settled(&self) -> Result<Vec<RecordedRequest>, BenchError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            {
                let mut sent = self.log.requests.lock().unwrap_or_else(PoisonError::into_inner);
                if is_settled(&sent) {
                    let mut sent = std::mem::take(&mut *sent);
                    sent.retain(|sent| !sent.is_delayed_put());
                    sent.sort_by_key(|sent| sent.number);
                    return Ok(sent);
                }
            }
            if Instant::now() > deadline {
                return Err(BenchError::Worker("messages remain in its queues".to_owned()));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// True if all immediate messages have been deleted.
fn is_settled(sent: &[RecordedRequest]) -> bool {
    let succeeded = |operation| {
        sent.iter().filter(move |sent| sent.operation == operation && !sent.is_failure())
    };
    let deleted: HashSet<&str> =
        succeeded(Operation::Delete).filter_map(|sent| deleted_message(&sent.path)).collect();
    succeeded(Operation::Put).filter(|sent| !sent.is_delayed_put()).all(|put| {
        text_between(&put.response, "<MessageId>", "</").is_some_and(|id| deleted.contains(id))
    })
}

/// `…/messages/ID?popreceipt=…`
fn deleted_message(path: &str) -> Option<&str> {
    path.split('?').next()?.rsplit('/').next()
}

async fn forward_and_record(
    State(target): State<Arc<ProxyTarget>>,
    request: Request,
) -> Response<Body> {
    let number = target.log.next_number.fetch_add(1, Ordering::Relaxed);
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let forwarded = async {
        let body = to_bytes(body, REQUEST_BYTES_MAX).await.ok()?;
        let url = target.upstream.join(&path).ok()?;
        let mut headers = parts.headers.clone();
        for name in HOP_BY_HOP_HEADERS {
            headers.remove(name);
        }
        let upstream_request =
            target.client.request(parts.method.clone(), url).headers(headers.clone());
        // A request without a body has no length either; a length would change its signature.
        let upstream_request = if body.is_empty() && parts.method == Method::GET {
            upstream_request
        } else {
            upstream_request.body(body.clone())
        };
        let response_body = upstream_request.send().await.ok()?;
        let (status, response_headers) = (response_body.status(), response_body.headers().clone());
        let response_body = target.with_own_address(response_body.bytes().await.ok()?, &path);
        let method = parts.method.clone();
        let operation =
            Operation::classify(target.service, &method, &path, &headers, &response_body);
        let recorded = RecordedRequest {
            number,
            operation,
            method,
            path: path.clone(),
            headers,
            body,
            status,
            response: response_body.clone(),
        };
        target.log.requests.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
        let mut response = Response::new(Body::from(response_body));
        *response.status_mut() = status;
        *response.headers_mut() = response_headers;
        for name in HOP_BY_HOP_HEADERS {
            response.headers_mut().remove(name);
        }
        Some(response)
    };
    forwarded.await.unwrap_or_else(|| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

impl ProxyTarget {
    /// Replaces the address in a Cosmos account document with the proxy's.
    fn with_own_address(&self, response: Bytes, path: &str) -> Bytes {
        let is_account = self.service == Service::Cosmos && path.trim_matches('/').is_empty();
        let (Some(host), Some(port)) = (self.upstream.host_str(), self.upstream.port()) else {
            return response;
        };
        match std::str::from_utf8(&response) {
            Ok(text) if is_account => {
                Bytes::from(text.replace(&format!("{host}:{port}"), &self.own_address))
            }
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_request(operation: Operation, path: &str, answer: &'static str) -> RecordedRequest {
        let method = if operation == Operation::Put { Method::POST } else { Method::DELETE };
        RecordedRequest {
            number: 0,
            operation,
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            status: StatusCode::OK,
            response: Bytes::from_static(answer.as_bytes()),
        }
    }

    #[test]
    fn delayed_messages_do_not_block_settling() {
        let answer = "<QueueMessage><MessageId>m-1</MessageId></QueueMessage>";
        let now =
            new_request(Operation::Put, "/a/turns/messages?visibilitytimeout=0&timeout=9", answer);
        let later = new_request(Operation::Put, "/a/turns/messages?visibilitytimeout=55", answer);
        let deleted = |id| format!("/a/turns/messages/{id}?popreceipt=x%2Fy");
        let gone = new_request(Operation::Delete, &deleted("m-1"), "");
        let another = new_request(Operation::Delete, &deleted("m-2"), "");
        assert!(is_settled(std::slice::from_ref(&later)));
        assert!(is_settled(&[now.clone(), gone, later]));
        assert!(!is_settled(&[now, another]));
    }
}
