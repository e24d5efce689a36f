//! The client over a socket, without the service: time limits, and calls that are dropped.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use turnwheel::agent_settings::ProtocolMode;
use turnwheel::events::AssistantMessageEvent;
use turnwheel::messages::Message;
use turnwheel::models::{
    Listener, Model, ModelConnection, ModelFailure, ModelRequest, ModelResponse,
};
use turnwheel::testing::model::responses::{ModelApiClient, ResponsesConfig, SecretText};
use turnwheel::testing::settings::model::ModelApis;

use super::{calls, done};
use crate::support::socket_model::{Reply, SocketModel, Transport, Upgrades};

#[derive(Default)]
struct RecordingListener(Mutex<Vec<AssistantMessageEvent>>);

impl Listener for RecordingListener {
    fn on_event(&self, event: AssistantMessageEvent) {
        self.0.lock().unwrap().push(event);
    }
}

fn client(model: &SocketModel, apis: &str) -> ModelApiClient {
    let config = ResponsesConfig {
        base_url: Some(model.url.clone()),
        api_key: Some(SecretText::new("key-of-this-test")),
        idle_timeout: Some(Duration::from_millis(300)),
        apis: ModelApis::parse(apis).unwrap(),
        ..ResponsesConfig::default()
    };
    ModelApiClient::new(&config, None).unwrap()
}

async fn call(client: &ModelApiClient, connection: &ModelConnection) -> ModelResponse {
    call_and_listen(client, connection, &RecordingListener::default()).await
}

async fn call_and_listen(
    client: &ModelApiClient,
    connection: &ModelConnection,
    listener: &RecordingListener,
) -> ModelResponse {
    let record = client.record("gpt-5-mini").unwrap();
    let message: Message =
        serde_json::from_value(json!({ "role": "user", "content": "hi", "timestamp": 0 })).unwrap();
    let messages = [&message];
    let request = ModelRequest { system: Some("SYS"), ..ModelRequest::new(&record, &messages) };
    client.respond_on_connection(connection, request, listener).await
}

#[tokio::test]
async fn service_that_only_pings_is_lost_and_then_called_over_http() {
    let model = SocketModel::start(Upgrades::Accepted, [Reply::Hang, done()]).await;
    let (client, connection) =
        (client(&model, "responses"), ModelConnection::new(ProtocolMode::Resume));
    let response = call(&client, &connection).await;
    assert!(matches!(response.failure, Some(ModelFailure::Retryable { .. })), "{response:?}");
    let text = response.message.error_message.unwrap();
    assert!(text.contains("no data received from the model"), "{text}");
    assert_eq!(call(&client, &connection).await.failure, None);
    assert_eq!(model.transports(), [Transport::Socket, Transport::Http]);
}

#[tokio::test]
async fn dropped_call_breaks_its_socket() {
    let model = SocketModel::start(Upgrades::Accepted, [Reply::Hang, done()]).await;
    let (client, connection) =
        (client(&model, "responses"), ModelConnection::new(ProtocolMode::Resume));
    tokio::select! {
        _ = call(&client, &connection) => panic!("the model does not respond"),
        () = model.wait_for_turns(1) => {}
    }
    assert_eq!(call(&client, &connection).await.failure, None);
    assert_eq!(model.upgrades().len(), 2, "the next call has a socket of its own");
}

#[tokio::test]
async fn chat_completions_model_opens_no_socket() {
    let model = SocketModel::start(Upgrades::Accepted, []).await;
    let (client, connection) = (client(&model, "chat"), ModelConnection::new(ProtocolMode::Resume));
    // The fake has only the Responses API.
    let response = call(&client, &connection).await;
    assert_eq!(response.metadata.status, Some(404));
    assert!(model.upgrades().is_empty());
}

#[tokio::test]
async fn events_and_message_equal_those_over_http() {
    let mut outcomes = Vec::new();
    for upgrades in [Upgrades::Accepted, Upgrades::Rejected(404)] {
        let model = SocketModel::start(upgrades, [calls("a")]).await;
        let connection = ModelConnection::new(ProtocolMode::Resume);
        let listener = RecordingListener::default();
        let mut response =
            call_and_listen(&client(&model, "responses"), &connection, &listener).await;
        let state = response.message.extra.remove("providerState").unwrap();
        assert_eq!(state["mode"] == "resume", upgrades == Upgrades::Accepted);
        let events = listener.0.into_inner().unwrap();
        assert!(events.len() > 2);
        response.metadata.id = None;
        outcomes.push((events, response));
    }
    assert_eq!(outcomes[0], outcomes[1]);
}
