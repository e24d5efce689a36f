//! The Cosmos account: a client that waits no longer than a claim can, and the two containers as they must be.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::{Secret, TokenCredential};
use azure_data_cosmos::models::{
    ContainerProperties, IndexingMode, IndexingPolicy, PartitionKeyDefinition, ResourceResponse,
    TimeToLive,
};
use azure_data_cosmos::options::{
    BinaryEncodingOptions, EndToEndOperationLatencyPolicy, OperationOptions,
    OperationOptionsBuilder, ReadConsistencyStrategy,
};
use azure_data_cosmos::{
    AccountReference, ContainerClient, CosmosClient, CosmosClientBuilder, CosmosError,
    CosmosRuntime, DatabaseClient, RoutingStrategy,
};

use crate::settings::azure::{CosmosAccess, CosmosAccount};

/// One operation with all that the SDK repeats in it, throttling included: a claim is renewed as often.
const OPERATION_MAX: Duration = Duration::from_secs(20);

/// A container as `infra/` deploys it and as it is made in an emulator.
#[derive(Debug)]
pub struct ContainerShape {
    pub name: &'static str,
    /// The partition key, from the widest to the narrowest.
    pub key_paths: &'static [&'static str],
    /// What queries filter or order by; everything else is [`EXCLUDED_PATH`].
    pub indexed_paths: &'static [&'static str],
    /// −1: documents live until they are deleted, unless they say otherwise themselves.
    pub default_ttl_seconds: i32,
}

/// Bodies are not searched, so nobody pays for an index of them.
pub const EXCLUDED_PATH: &str = "/*";

pub const CONVERSATIONS: ContainerShape = ContainerShape {
    name: "conversations",
    key_paths: &["/tenant", "/user", "/conversationId"],
    indexed_paths: &[
        "/tenant/?",
        "/user/?",
        "/conversationId/?",
        "/id/?",
        "/kind/?",
        "/due/?",
        "/createdAt/?",
        "/state/?",
    ],
    default_ttl_seconds: -1,
};

pub const SCOPES: ContainerShape = ContainerShape {
    name: "scopes",
    key_paths: &["/tenant"],
    indexed_paths: &["/tenant/?", "/id/?", "/kind/?", "/due/?"],
    default_ttl_seconds: -1,
};

pub const CONTAINERS: [&ContainerShape; 2] = [&CONVERSATIONS, &SCOPES];

#[derive(Clone)]
pub struct Containers {
    pub conversations: ContainerClient,
    pub scopes: ContainerClient,
}

impl fmt::Debug for Containers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Containers")
    }
}

/// Why there is no way to the containers. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "the Cosmos account {endpoint} was not reached: look at its name, its firewall and the network"
    )]
    Unreachable { endpoint: String, source: Box<CosmosError> },
    #[error(
        "the Cosmos account {endpoint} refuses us: an identity needs the role `Cosmos DB Built-in Data Contributor` on the account (`infra/` assigns it), a key must be one of the account's keys"
    )]
    Refused { endpoint: String, source: Box<CosmosError> },
    #[error(
        "the Cosmos database `{database}` has no container `{container}`, and an identity may not make one: deploy `infra/`"
    )]
    Missing { database: String, container: &'static str },
    #[error(
        "the container `{container}` of the Cosmos database `{database}` has the partition key {found}, and {wanted} is needed: name another database, or delete the container if nothing in it is wanted"
    )]
    OtherKey { database: String, container: &'static str, found: String, wanted: String },
    #[error("the Cosmos account {endpoint} is used with an identity, and no credential was given")]
    NoCredential { endpoint: String },
}

impl Containers {
    /// With an account key, as in emulators, what is missing is made.
    ///
    /// # Errors
    /// Tell the person, and stop: none of them passes by itself but [`ConnectError::Unreachable`].
    pub async fn connect(
        builder: CosmosClientBuilder,
        account: &CosmosAccount,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, ConnectError> {
        let failed = |error| refusal(account, error);
        let client = client(builder, account, credential).await?;
        let database = client.database_client(account.database.clone());
        let mut found = Vec::with_capacity(CONTAINERS.len());
        for shape in CONTAINERS {
            let container = match database.container_client(shape.name, None).await {
                Err(error) if is_missing(&error) => match account.access {
                    CosmosAccess::Key(_) => {
                        make(&client, &account.database, shape).await.map_err(failed)?;
                        database.container_client(shape.name, None).await.map_err(failed)?
                    }
                    CosmosAccess::Identity(_) => {
                        return Err(ConnectError::Missing {
                            database: account.database.clone(),
                            container: shape.name,
                        });
                    }
                },
                answer => answer.map_err(failed)?,
            };
            inspect(&container, shape, account).await?;
            found.push(container);
        }
        let (Some(scopes), Some(conversations)) = (found.pop(), found.pop()) else {
            return Err(ConnectError::Missing {
                database: account.database.clone(),
                container: CONVERSATIONS.name,
            });
        };
        Ok(Self { conversations, scopes })
    }
}

async fn client(
    builder: CosmosClientBuilder,
    account: &CosmosAccount,
    credential: Option<Arc<dyn TokenCredential>>,
) -> Result<CosmosClient, ConnectError> {
    let endpoint = account.endpoint.clone().into();
    let reference = match (&account.access, credential) {
        (CosmosAccess::Key(key), _) => {
            AccountReference::with_authentication_key(endpoint, Secret::new(key.reveal().clone()))
        }
        (CosmosAccess::Identity(_), Some(credential)) => {
            AccountReference::with_credential(endpoint, credential)
        }
        (CosmosAccess::Identity(_), None) => {
            return Err(ConnectError::NoCredential { endpoint: account.endpoint.to_string() });
        }
    };
    builder
        .with_default_operation_options(bounded())
        // Text: the emulators of others do not know the binary form, and texts pass through unchanged.
        .with_binary_encoding_options(BinaryEncodingOptions::new().with_enabled(false))
        // One region: the account's own order is the right one.
        .build(reference, RoutingStrategy::PreferredRegions(Vec::new()))
        .await
        .map_err(|error| refusal(account, error))
}

/// A builder over a runtime of its own: the SDK's shared one would live in whichever runtime came first.
///
/// # Errors
/// The SDK finds no sockets, or a variable of its own in the environment that it does not understand.
pub async fn builder(account: &CosmosAccount) -> Result<CosmosClientBuilder, ConnectError> {
    let runtime = CosmosRuntime::builder().build().await;
    let runtime = runtime.map_err(|error| refusal(account, error))?;
    Ok(CosmosClient::builder().with_runtime(runtime))
}

/// What every operation starts from.
pub fn bounded() -> OperationOptions {
    OperationOptionsBuilder::new()
        .with_end_to_end_latency_policy(EndToEndOperationLatencyPolicy::new(OPERATION_MAX))
        .build()
}

/// For reads that decide: a quorum answers, at about twice the price. Session tokens are not shared between instances, so
/// the account's own consistency is not enough.
pub fn latest() -> OperationOptions {
    let mut options = bounded();
    options.read_consistency_strategy = Some(ReadConsistencyStrategy::LatestCommitted);
    options
}

/// The container or its database is not there, as opposed to a document.
fn is_missing(error: &CosmosError) -> bool {
    u16::from(error.status().status_code()) == 404
}

async fn make(
    client: &CosmosClient,
    database: &str,
    shape: &ContainerShape,
) -> Result<(), CosmosError> {
    let database_client: DatabaseClient = client.database_client(database.to_owned());
    unless_there(client.create_database(database, None).await.map(|_| ()))?;
    unless_there(database_client.create_container(properties(shape), None).await.map(|_| ()))
}

/// Two processes may start at once: who comes second finds it made.
fn unless_there(made: Result<(), CosmosError>) -> Result<(), CosmosError> {
    match made {
        Err(error) if error.status().is_conflict() => Ok(()),
        made => made,
    }
}

fn properties(shape: &ContainerShape) -> ContainerProperties {
    let mut policy = IndexingPolicy::default()
        .with_indexing_mode(IndexingMode::Consistent)
        .with_excluded_path(EXCLUDED_PATH);
    // The default says no, and then nothing is indexed at all.
    policy.automatic = true;
    for path in shape.indexed_paths {
        policy = policy.with_included_path(*path);
    }
    let time_to_live = match u32::try_from(shape.default_ttl_seconds) {
        Ok(seconds) => TimeToLive::Seconds(seconds),
        Err(_) => TimeToLive::NoDefault,
    };
    ContainerProperties::new(shape.name, key_definition(shape))
        .with_indexing_policy(policy)
        .with_default_ttl(time_to_live)
}

fn key_definition(shape: &ContainerShape) -> PartitionKeyDefinition {
    match *shape.key_paths {
        [one, two, three] => PartitionKeyDefinition::from((one, two, three)),
        [one, two] => PartitionKeyDefinition::from((one, two)),
        _ => PartitionKeyDefinition::from(shape.key_paths.first().copied().unwrap_or("/id")),
    }
}

/// A container of another making would take our documents and lose them to every read.
async fn inspect(
    container: &ContainerClient,
    shape: &ContainerShape,
    account: &CosmosAccount,
) -> Result<(), ConnectError> {
    let read = container.read(None).await.and_then(ResourceResponse::into_model);
    let found: ContainerProperties = read.map_err(|error| refusal(account, error))?;
    let paths: Vec<&str> = found.partition_key.paths().iter().map(AsRef::as_ref).collect();
    if paths != shape.key_paths {
        return Err(ConnectError::OtherKey {
            database: account.database.clone(),
            container: shape.name,
            found: paths.join(", "),
            wanted: shape.key_paths.join(", "),
        });
    }
    let indexed = found.indexing_policy.map(|policy| policy.included_paths).unwrap_or_default();
    let missing: Vec<&str> = shape
        .indexed_paths
        .iter()
        .filter(|path| !indexed.iter().any(|found| found.path == **path || found.path == "/*"))
        .copied()
        .collect();
    if !missing.is_empty() {
        tracing::warn!(container = shape.name, missing = ?missing, "the container {} has no index on {}: lists and the sweep are slow or refused until `infra/` is deployed", shape.name, missing.join(", "));
    }
    Ok(())
}

fn refusal(account: &CosmosAccount, error: CosmosError) -> ConnectError {
    let endpoint = account.endpoint.to_string();
    let status = error.status();
    let source = Box::new(error);
    if status.is_unauthorized() || status.is_forbidden() {
        ConnectError::Refused { endpoint, source }
    } else {
        ConnectError::Unreachable { endpoint, source }
    }
}
