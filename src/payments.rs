//! The example's payments service: it sends no money, and pays one key once.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Number, Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::tools::sha256_hex;

/// One more than anybody shows in an example.
const PAYMENTS_MAX: usize = 10_000;

/// A payment that was made, once.
#[derive(Clone, Debug, PartialEq)]
pub struct Payment {
    pub key: String,
    pub receipt: String,
    pub to: String,
    /// As it was written.
    pub amount: Number,
    /// How often it was asked for with the same key.
    pub requests: u32,
}

impl Payment {
    fn shown(&self) -> Value {
        json!({"receipt": self.receipt, "to": self.to, "amount": self.amount, "status": "sent"})
    }
}

#[derive(Debug, Default)]
struct Book {
    /// In the order in which they were made.
    payments: Vec<Payment>,
    by_key: BTreeMap<String, usize>,
}

type Shared = Arc<Mutex<Book>>;

/// Listens on a free port of loopback until it is dropped.
#[derive(Debug)]
pub struct PaymentsServer {
    /// `http://127.0.0.1:PORT`
    pub base_url: String,
    book: Shared,
    _stop: DropGuard,
}

impl PaymentsServer {
    /// # Errors
    /// No port of loopback is free.
    pub async fn start() -> std::io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = tokio::net::TcpListener::bind(address).await?;
        let base_url = format!("http://{}", listener.local_addr()?);
        let book = Shared::default();
        let router = router(Arc::clone(&book));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let serve = axum::serve(listener, router).with_graceful_shutdown(stopped);
        #[expect(
            clippy::disallowed_methods,
            reason = "it serves beside `dev` and ends with the guard"
        )]
        tokio::spawn(serve.into_future());
        Ok(Self { base_url, book, _stop: stop.drop_guard() })
    }

    /// In the order in which they were made.
    pub fn payments(&self) -> Vec<Payment> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).payments.clone()
    }
}

fn router(book: Shared) -> Router {
    Router::new()
        .route("/pay/{to}", post(pay))
        .route("/payments", get(list))
        .fallback(|| async {
            refused(StatusCode::NOT_FOUND, "Here are POST /pay/{to} and GET /payments.")
        })
        .with_state(book)
}

async fn list(State(book): State<Shared>) -> Json<Value> {
    let book = book.lock().unwrap_or_else(PoisonError::into_inner);
    Json(json!({"payments": book.payments.iter().map(Payment::shown).collect::<Vec<_>>()}))
}

async fn pay(
    State(book): State<Shared>,
    Path(to): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let asked = match Asked::read(&to, &headers, &body) {
        Ok(asked) => asked,
        Err(reason) => return refused(StatusCode::BAD_REQUEST, &reason),
    };
    let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = book.by_key.get(&asked.key).copied()
        && let Some(payment) = book.payments.get_mut(at)
    {
        payment.requests += 1;
        if payment.to != asked.to || payment.amount != asked.amount {
            return refused(
                StatusCode::UNPROCESSABLE_ENTITY,
                "This Idempotency-Key was used for another payment: take a new one.",
            );
        }
        return Json(payment.shown()).into_response();
    }
    if book.payments.len() >= PAYMENTS_MAX {
        return refused(
            StatusCode::INSUFFICIENT_STORAGE,
            "The example's book is full: start it anew.",
        );
    }
    let payment = Payment {
        receipt: format!(
            "rcpt_{}",
            sha256_hex(asked.key.as_bytes()).chars().take(12).collect::<String>()
        ),
        key: asked.key,
        to: asked.to,
        amount: asked.amount,
        requests: 1,
    };
    let answer = Json(payment.shown()).into_response();
    let at = book.payments.len();
    book.by_key.insert(payment.key.clone(), at);
    book.payments.push(payment);
    answer
}

struct Asked {
    key: String,
    to: String,
    amount: Number,
}

impl Asked {
    fn read(to: &str, headers: &HeaderMap, body: &str) -> Result<Self, String> {
        let key = headers
            .get("idempotency-key")
            .and_then(|value| value.to_str().ok())
            .map(|key| key.trim().trim_matches('"'))
            .filter(|key| (1..=255).contains(&key.len()))
            .ok_or("Send the header Idempotency-Key: the same key pays once.")?;
        if to.trim().is_empty() || to.chars().count() > 100 {
            return Err(
                "Say whom to pay in the path, in at most 100 letters: POST /pay/Ada.".to_owned()
            );
        }
        let amount = serde_json::from_str::<Value>(body)
            .ok()
            .and_then(|body| match body.get("amount") {
                Some(Value::Number(amount)) => Some(amount.clone()),
                _ => None,
            })
            .filter(|amount| amount.as_f64().is_some_and(|amount| amount > 0.0 && amount <= 1e6))
            .ok_or(r#"Send JSON like {"amount": 250}: more than 0, at most 1000000."#)?;
        Ok(Self { key: key.to_owned(), to: to.to_owned(), amount })
    }
}

fn refused(status: StatusCode, reason: &str) -> Response {
    (status, Json(json!({"error": reason}))).into_response()
}
