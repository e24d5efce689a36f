//! Payments service of the example agent. It sends no money and records one payment per idempotency
//! key.

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

/// Payments that the service stores at most: more than an example needs.
const PAYMENTS_MAX: usize = 10_000;

/// A recorded payment.
#[derive(Clone, Debug, PartialEq)]
pub struct Payment {
    pub key: String,
    pub receipt: String,
    pub to: String,
    /// With the digits of the request.
    pub amount: Number,
    /// Number of requests with this key.
    pub requests: u32,
}

impl Payment {
    fn shown(&self) -> Value {
        json!({"receipt": self.receipt, "to": self.to, "amount": self.amount, "status": "sent"})
    }
}

#[derive(Debug, Default)]
struct Book {
    /// Oldest first.
    payments: Vec<Payment>,
    by_key: BTreeMap<String, usize>,
}

type Shared = Arc<Mutex<Book>>;

/// A server on a free loopback port. It stops when it is dropped.
#[derive(Debug)]
pub struct PaymentsServer {
    /// `http://127.0.0.1:PORT`
    pub base_url: String,
    book: Shared,
    _stop: DropGuard,
}

impl PaymentsServer {
    /// # Errors
    /// No loopback port is free. Report it; the example cannot start.
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
            reason = "the server runs beside `dev` and stops with its guard"
        )]
        tokio::spawn(serve.into_future());
        Ok(Self { base_url, book, _stop: stop.drop_guard() })
    }

    /// All payments, oldest first.
    pub fn payments(&self) -> Vec<Payment> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).payments.clone()
    }
}

fn router(book: Shared) -> Router {
    Router::new()
        .route("/pay/{to}", post(pay))
        .route("/payments", get(list))
        .fallback(|| async {
            refused(StatusCode::NOT_FOUND, "The routes are POST /pay/{to} and GET /payments.")
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
                "This Idempotency-Key belongs to another payment: send a new key.",
            );
        }
        return Json(payment.shown()).into_response();
    }
    if book.payments.len() >= PAYMENTS_MAX {
        return refused(
            StatusCode::INSUFFICIENT_STORAGE,
            "The example cannot store more payments: restart it.",
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
            .ok_or("Send the header Idempotency-Key: each key pays once.")?;
        if to.trim().is_empty() || to.chars().count() > 100 {
            return Err(
                "Name the payee in the path, in at most 100 characters: POST /pay/Ada.".to_owned()
            );
        }
        let amount = serde_json::from_str::<Value>(body)
            .ok()
            .and_then(|body| match body.get("amount") {
                Some(Value::Number(amount)) => Some(amount.clone()),
                _ => None,
            })
            .filter(|amount| amount.as_f64().is_some_and(|amount| amount > 0.0 && amount <= 1e6))
            .ok_or(r#"Send JSON like {"amount": 250}, with more than 0 and at most 1000000."#)?;
        Ok(Self { key: key.to_owned(), to: to.to_owned(), amount })
    }
}

fn refused(status: StatusCode, reason: &str) -> Response {
    (status, Json(json!({"error": reason}))).into_response()
}
