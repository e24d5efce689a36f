//! The packaged program whose store is away when it starts.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use turnwheel::testing::azure::cosmos::CONTAINERS;

#[cfg(unix)]
use super::send_signal;
use super::{Handler, TIMEOUT, deliver_until_completed};
use crate::support::openapi_check::SendValidated as _;
use turnwheel_cosmos_emulator::{self as cosmos_emulator, Container, CosmosHost};

const DATABASE: &str = "turnwheel";

/// A database at a fixed address, and the settings that name it.
pub(super) fn start_database() -> (CosmosHost, Vec<(&'static str, String)>) {
    let containers: Vec<Container<'_>> =
        CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect();
    let database = CosmosHost::start(0, DATABASE, &containers, 1).unwrap();
    let settings = vec![
        ("TURNWHEEL_MODEL", "scripted".to_owned()),
        ("COSMOS__accountEndpoint", database.emulator.endpoint.to_string()),
        ("COSMOS__accountKey", cosmos_emulator::KEY.to_owned()),
        ("COSMOS__database", DATABASE.to_owned()),
    ];
    (database, settings)
}

async fn start(settings: &[(&'static str, String)]) -> Handler {
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    Handler::start(&settings).await
}

async fn invoke(handler: &Handler, function: &str, message: &str) -> u16 {
    let data = json!({"message": json!(message).to_string(), "timer": {}});
    let envelope = json!({"Data": data, "Metadata": {"Id": "\"m-1\""}});
    let url = format!("{}/{function}", handler.base);
    handler.client.post(url).json(&envelope).send_validated().await.unwrap().status().as_u16()
}

/// The port of the database.
fn bind(database: &CosmosHost) -> std::net::TcpListener {
    let port = database.emulator.endpoint.port().unwrap();
    std::net::TcpListener::bind(("127.0.0.1", port)).unwrap()
}

async fn health(handler: &Handler) -> reqwest::Response {
    handler.client.get(format!("{}/api/health", handler.base)).send_validated().await.unwrap()
}

#[tokio::test]
async fn handler_without_its_database_waits_and_serves_later() {
    let (mut database, settings) = start_database();
    database.stop();
    let handler = start(&settings).await;

    let waiting = health(&handler).await;
    assert_eq!(waiting.status(), 503);
    assert_eq!(waiting.headers()["content-type"], "application/problem+json");
    let problem: Value = waiting.json().await.unwrap();
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with("The service waits for its") && detail.contains("database"));
    assert_eq!(invoke(&handler, "sweep", "{}").await, 200);
    // The whole body is read, or the Functions host would respond with an empty 500.
    let mut stream = TcpStream::connect(handler.base.trim_start_matches("http://")).await.unwrap();
    let head = "POST /api/prompts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; 20_000_000]).await.expect("the whole body is read");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 503");

    let message = json!({"conversationId": "of-queue", "input": "Hello"}).to_string();
    let mut delivery = Box::pin(invoke(&handler, "prompt", &message));
    tokio::select! {
        status = &mut delivery => panic!("{status}: five such failures move the message"),
        () = tokio::time::sleep(Duration::from_millis(300)) => {}
    }
    database.serve(bind(&database));
    let deadline = Instant::now() + 3 * TIMEOUT;
    let mut status = delivery.await;
    while status != 200 {
        assert!(Instant::now() < deadline, "the message is not accepted: {status}");
        status = invoke(&handler, "prompt", &message).await;
    }
    while health(&handler).await.status() != 200 {
        assert!(Instant::now() < deadline, "the handler does not connect");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let path = handler.prompt("after-outage").await;
    deliver_until_completed(&handler, "after-outage", &path).await;
}

#[cfg(unix)]
#[tokio::test]
async fn signal_keeps_port_of_waiting_handler_open() {
    let (mut database, settings) = start_database();
    database.stop();
    let mut handler = start(&settings).await;
    send_signal(handler.process.id(), "-TERM");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(health(&handler).await.status(), 503);
    send_signal(handler.process.id(), "-TERM");
    assert_eq!(handler.process.wait().unwrap().code(), Some(200));
}

/// The first attempt to connect takes up to 10 s, and the port is not open before its end.
#[cfg(unix)]
#[tokio::test]
async fn signal_during_the_first_attempt_ends_the_process() {
    let (mut database, settings) = start_database();
    database.stop();
    // Accepts connections, and does not respond.
    let listener = bind(&database);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    let mut handler = Handler::spawn(&settings, |program| Command::new(program)).await;
    listener.set_nonblocking(true).unwrap();
    let silent = tokio::net::TcpListener::from_std(listener).unwrap();
    let (connection, _) = silent.accept().await.unwrap();
    send_signal(handler.process.id(), "-TERM");
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop((connection, silent));
    database.serve(bind(&database));
    assert_eq!(handler.wait_for_end().await.code(), Some(200));
}

#[tokio::test]
async fn refused_database_ends_the_start() {
    let (_database, mut settings) = start_database();
    settings.retain(|(name, _)| *name != "COSMOS__accountKey");
    settings.push(("COSMOS__accountKey", "d3Jvbmc=".to_owned()));
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, it)| (*name, &**it)).collect();
    let mut handler = Handler::spawn(&settings, |program| Command::new(program)).await;
    assert_eq!(handler.wait_for_end().await.code(), Some(1));
}

/// The handler of a former host, which ends some seconds after it.
#[tokio::test]
async fn handler_waits_for_a_locked_data_folder() {
    let model = [("TURNWHEEL_MODEL", "scripted")];
    let former = Handler::start(&model).await;
    let folder = Arc::clone(&former.folder);
    let mut handler = Handler::spawn_in(folder, &model, |program| Command::new(program)).await;
    let deadline = Instant::now() + TIMEOUT;
    let problem: Value = loop {
        assert!(handler.process.try_wait().unwrap().is_none(), "three exits stop the host");
        if let Ok(waiting) =
            handler.client.get(format!("{}/api/health", handler.base)).send_validated().await
        {
            assert_eq!(waiting.status(), 503);
            break waiting.json().await.unwrap();
        }
        assert!(Instant::now() < deadline, "the handler does not respond");
        tokio::time::sleep(Duration::from_millis(25)).await;
    };
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with("The service waits for its data folder"), "{detail}");
    drop(former);
    while health(&handler).await.status() != 200 {
        assert!(Instant::now() < deadline, "the handler does not start");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let path = handler.prompt("after-lock").await;
    deliver_until_completed(&handler, "after-lock", &path).await;
}
