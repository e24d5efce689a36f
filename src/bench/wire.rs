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
use crate::bench::{BenchError, io};
use crate::store::{HEAD_ID, Kind};

/// A Cosmos batch has at most 2 MB, a block of a blob 4 MB.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Time for deliveries that still run after the last prompt has ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// Headers of one connection.
const HOP: [HeaderName; 4] =
    [header::HOST, header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
const LOOK_EVERY: Duration = Duration::from_millis(20);

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
    QueryOfAll,
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
            Self::QueryOfAll => "Cosmos query of all partitions",
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

    fn of(
        service: Service,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        answer: &[u8],
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
                if is_narrow { Self::Query } else { Self::QueryOfAll }
            }
            (Service::Cosmos, "GET") if path.contains("/docs/") => {
                let id = path.rsplit('/').next();
                if id == Some(HEAD_ID) {
                    Self::ReadHead
                } else if id == Some(Kind::Watch.as_str()) {
                    Self::ReadWatch
                } else {
                    Self::ReadOther
                }
            }
            (Service::Cosmos, _) => Self::CosmosOther,
            (Service::Queue, "POST") if is_messages => Self::Put,
            (Service::Queue, "GET") if is_messages => {
                if between(answer, "<MessageId>", "</").is_some() { Self::Get } else { Self::Poll }
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
pub(super) fn between<'a>(text: &'a [u8], from: &str, to: &str) -> Option<&'a str> {
    let (_, after) = std::str::from_utf8(text).ok()?.split_once(from)?;
    after.split_once(to).map(|(found, _)| found)
}

/// One request and its response.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// Position in the order of arrival.
    number: usize,
    pub(super) operation: Operation,
    pub(super) method: Method,
    /// Includes the query.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) status: StatusCode,
    pub(super) answer: Bytes,
}

impl Sent {
    pub(super) fn is_refused(&self) -> bool {
        // A missing document, or a poison queue that was never created, is not a failure.
        let may_be_absent = self.operation.is_read() || self.operation == Operation::Poll;
        let is_nothing = may_be_absent && self.status == StatusCode::NOT_FOUND;
        self.status.is_client_error() && !is_nothing || self.status.is_server_error()
    }

    /// True for a message with a visibility delay.
    fn is_put_for_later(&self) -> bool {
        let (_, query) = self.path.split_once('?').unwrap_or_default();
        let is_later =
            |(name, value): (_, Cow<'_, str>)| name == "visibilitytimeout" && value != "0";
        self.operation == Operation::Put && form_urlencoded::parse(query.as_bytes()).any(is_later)
    }
}

/// Proxies the accounts until dropped.
#[derive(Debug)]
pub(super) struct Wire {
    /// The accounts with the proxy's addresses.
    pub(super) accounts: Accounts,
    notes: Arc<Notes>,
    _servers: [AbortOnDropHandle<()>; 3],
}

#[derive(Debug, Default)]
struct Notes {
    next: AtomicUsize,
    sent: Mutex<Vec<Sent>>,
}

struct Place {
    service: Service,
    to: Url,
    /// The proxy's address, which replaces the account's in Cosmos responses.
    own: String,
    client: reqwest::Client,
    notes: Arc<Notes>,
}

impl Wire {
    /// # Errors
    /// No port is free.
    pub(super) async fn start(accounts: &Accounts) -> Result<Self, BenchError> {
        let client = reqwest::Client::builder().no_proxy().no_gzip().build();
        let client = client.map_err(io("make an HTTP client"))?;
        let mut accounts = accounts.clone();
        let notes = Arc::<Notes>::default();
        let stand = async |service, url: &mut Url| {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let own = listener.local_addr()?;
            let to = url.clone();
            let _ = url.set_host(Some("127.0.0.1"));
            let _ = url.set_port(Some(own.port()));
            let (client, notes) = (client.clone(), Arc::clone(&notes));
            let place = Place { service, to, own: own.to_string(), client, notes };
            let router = Router::new().fallback(any(pass_on)).with_state(Arc::new(place));
            #[expect(clippy::disallowed_methods, reason = "a server that ends with its handle")]
            let server = tokio::spawn(async move {
                let _ = axum::serve(listener, router).await;
            });
            std::io::Result::Ok(AbortOnDropHandle::new(server))
        };
        let failed = "start the storage proxy";
        let servers = [
            stand(Service::Cosmos, &mut accounts.cosmos.endpoint).await.map_err(io(failed))?,
            stand(Service::Queue, &mut accounts.storage.queue).await.map_err(io(failed))?,
            stand(Service::Blob, &mut accounts.storage.blob).await.map_err(io(failed))?,
        ];
        Ok(Self { accounts, notes, _servers: servers })
    }

    /// Returns the requests since the last call, in order, once every immediate message has been
    /// deleted: a delivery outlasts its prompt a little. Leaves out messages that a sweep sends for
    /// a later minute.
    pub(super) async fn settled(&self) -> Result<Vec<Sent>, BenchError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            {
                let mut sent = self.notes.sent.lock().unwrap_or_else(PoisonError::into_inner);
                if is_settled(&sent) {
                    let mut sent = std::mem::take(&mut *sent);
                    sent.retain(|sent| !sent.is_put_for_later());
                    sent.sort_by_key(|sent| sent.number);
                    return Ok(sent);
                }
            }
            if Instant::now() > deadline {
                return Err(BenchError::Worker("messages remain in its queues".to_owned()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// True if all immediate messages have been deleted.
fn is_settled(sent: &[Sent]) -> bool {
    let done = |operation| {
        sent.iter().filter(move |sent| sent.operation == operation && !sent.is_refused())
    };
    let deleted: HashSet<&str> =
        done(Operation::Delete).filter_map(|sent| deleted_message(&sent.path)).collect();
    done(Operation::Put)
        .filter(|sent| !sent.is_put_for_later())
        .all(|put| between(&put.answer, "<MessageId>", "</").is_some_and(|id| deleted.contains(id)))
}

/// `…/messages/ID?popreceipt=…`
fn deleted_message(path: &str) -> Option<&str> {
    path.split('?').next()?.rsplit('/').next()
}

async fn pass_on(State(place): State<Arc<Place>>, request: Request) -> Response<Body> {
    let number = place.notes.next.fetch_add(1, Ordering::Relaxed);
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let passed = async {
        let body = to_bytes(body, REQUEST_BYTES_MAX).await.ok()?;
        let url = place.to.join(&path).ok()?;
        let mut headers = parts.headers.clone();
        for name in HOP {
            headers.remove(name);
        }
        let asked = place.client.request(parts.method.clone(), url).headers(headers.clone());
        // A request without a body has no length either; a length would change its signature.
        let asked = if body.is_empty() && parts.method == Method::GET {
            asked
        } else {
            asked.body(body.clone())
        };
        let answer = asked.send().await.ok()?;
        let (status, answer_headers) = (answer.status(), answer.headers().clone());
        let answer = place.in_place(answer.bytes().await.ok()?, &path);
        let method = parts.method.clone();
        let operation = Operation::of(place.service, &method, &path, &headers, &answer);
        let noted = Sent {
            number,
            operation,
            method,
            path: path.clone(),
            headers,
            body,
            status,
            answer: answer.clone(),
        };
        place.notes.sent.lock().unwrap_or_else(PoisonError::into_inner).push(noted);
        let mut response = Response::new(Body::from(answer));
        *response.status_mut() = status;
        *response.headers_mut() = answer_headers;
        for name in HOP {
            response.headers_mut().remove(name);
        }
        Some(response)
    };
    passed.await.unwrap_or_else(|| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

impl Place {
    /// Replaces the address in a Cosmos account document with the proxy's.
    fn in_place(&self, answer: Bytes, path: &str) -> Bytes {
        let is_account = self.service == Service::Cosmos && path.trim_matches('/').is_empty();
        let (Some(host), Some(port)) = (self.to.host_str(), self.to.port()) else { return answer };
        match std::str::from_utf8(&answer) {
            Ok(text) if is_account => {
                Bytes::from(text.replace(&format!("{host}:{port}"), &self.own))
            }
            _ => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(operation: Operation, path: &str, answer: &'static str) -> Sent {
        let method = if operation == Operation::Put { Method::POST } else { Method::DELETE };
        Sent {
            number: 0,
            operation,
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            status: StatusCode::OK,
            answer: Bytes::from_static(answer.as_bytes()),
        }
    }

    #[test]
    fn what_a_sweep_puts_for_later_is_not_waited_for() {
        let answer = "<QueueMessage><MessageId>m-1</MessageId></QueueMessage>";
        let now = sent(Operation::Put, "/a/turns/messages?visibilitytimeout=0&timeout=9", answer);
        let later = sent(Operation::Put, "/a/turns/messages?visibilitytimeout=55", answer);
        let deleted = |id| format!("/a/turns/messages/{id}?popreceipt=x%2Fy");
        let gone = sent(Operation::Delete, &deleted("m-1"), "");
        let another = sent(Operation::Delete, &deleted("m-2"), "");
        assert!(is_settled(std::slice::from_ref(&later)));
        assert!(is_settled(&[now.clone(), gone, later]));
        assert!(!is_settled(&[now, another]));
    }
}
