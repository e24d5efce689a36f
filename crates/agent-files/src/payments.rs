//! Payments service of the example agent. It sends no money and records one payment per idempotency
//! key.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use turnwheel_json::raw::{RawJson, raw_object};
use turnwheel_tools::sha256_hex;

/// Payments that the service stores at most: more than an example needs.
const PAYMENTS_MAX: usize = 10_000;

/// A recorded payment.
#[derive(Clone, Debug, PartialEq)]
pub struct Payment {
    pub key: String,
    pub receipt: String,
    pub to: String,
    /// A number with the digits of the request.
    pub amount: RawJson,
    /// Number of requests with this key.
    pub requests: u32,
}

impl Payment {
    fn to_json(&self) -> RawJson {
        raw_object!({
            "receipt": self.receipt, "to": self.to, "amount": self.amount, "status": "sent",
        })
    }
}

#[derive(Debug, Default)]
struct PaymentRecords {
    /// Oldest first.
    payments: Vec<Payment>,
    by_key: BTreeMap<String, usize>,
}

type SharedRecords = Arc<Mutex<PaymentRecords>>;

/// A server on a free loopback port. It stops when it is dropped.
#[derive(Debug)]
pub struct PaymentsServer {
    /// `http://127.0.0.1:PORT`
    pub base_url: String,
    records: SharedRecords,
    _stop_guard: DropGuard,
}

impl PaymentsServer {
    /// # Errors
    /// No loopback port is free. Report it; the example cannot start.
    pub async fn start() -> std::io::Result<Self> {
        Self::start_on(0).await
    }

    /// Starts on this port if it is free, else on any free port.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub async fn start_on(port: u16) -> std::io::Result<Self> {
        let bind = |port| tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = match bind(port).await {
            Ok(listener) => listener,
            Err(_) => bind(0).await?,
        };
        let base_url = format!("http://{}", listener.local_addr()?);
        let records = SharedRecords::default();
        let router = router(Arc::clone(&records));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let serve = axum::serve(listener, router).with_graceful_shutdown(stopped);
        #[expect(
            clippy::disallowed_methods,
            reason = "the server runs beside `dev` and stops with its guard"
        )]
        tokio::spawn(serve.into_future());
        Ok(Self { base_url, records, _stop_guard: stop.drop_guard() })
    }

    /// All payments, oldest first.
    pub fn payments(&self) -> Vec<Payment> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).payments.clone()
    }
}

fn router(records: SharedRecords) -> Router {
    Router::new()
        .route("/pay/{to}", post(create_payment))
        .route("/payments", get(list_payments))
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .fallback(|| async {
            error_response(
                StatusCode::NOT_FOUND,
                "The routes are POST /pay/{to}, GET /payments and GET /health.",
            )
        })
        .with_state(records)
}

async fn list_payments(State(records): State<SharedRecords>) -> Json<RawJson> {
    let records = records.lock().unwrap_or_else(PoisonError::into_inner);
    let payments: Vec<RawJson> = records.payments.iter().map(Payment::to_json).collect();
    Json(raw_object!({"payments": payments}))
}

async fn create_payment(
    State(records): State<SharedRecords>,
    Path(to): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let request = match PaymentRequest::parse(&to, &headers, &body) {
        Ok(request) => request,
        Err(reason) => return error_response(StatusCode::BAD_REQUEST, &reason),
    };
    let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(index) = records.by_key.get(&request.key).copied()
        && let Some(payment) = records.payments.get_mut(index)
    {
        payment.requests += 1;
        if payment.to != request.to || payment.amount != request.amount {
            return error_response(
                StatusCode::UNPROCESSABLE_ENTITY,
                "This Idempotency-Key belongs to another payment: send a new key.",
            );
        }
        return Json(payment.to_json()).into_response();
    }
    if records.payments.len() >= PAYMENTS_MAX {
        return error_response(
            StatusCode::INSUFFICIENT_STORAGE,
            "The example cannot store more payments: restart it.",
        );
    }
    let payment = Payment {
        receipt: format!(
            "rcpt_{}",
            sha256_hex(request.key.as_bytes()).chars().take(12).collect::<String>()
        ),
        key: request.key,
        to: request.to,
        amount: request.amount,
        requests: 1,
    };
    let response = Json(payment.to_json()).into_response();
    let index = records.payments.len();
    records.by_key.insert(payment.key.clone(), index);
    records.payments.push(payment);
    response
}

struct PaymentRequest {
    key: String,
    to: String,
    amount: RawJson,
}

impl PaymentRequest {
    fn parse(to: &str, headers: &HeaderMap, body: &str) -> Result<Self, String> {
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
        let body = RawJson::from_text(body).ok();
        let mut members = body.and_then(|body| body.members()).into_iter().flatten().rev();
        let amount = members
            .find_map(|(name, value)| (name == "amount").then_some(value))
            .filter(|amount| amount.read::<f64>().is_ok_and(|it| it > 0.0 && it <= 1e6))
            .ok_or(r#"Send JSON like {"amount": 250}, with more than 0 and at most 1000000."#)?;
        Ok(Self { key: key.to_owned(), to: to.to_owned(), amount })
    }
}

fn error_response(status: StatusCode, reason: &str) -> Response {
    (status, Json(json!({"error": reason}))).into_response()
}
