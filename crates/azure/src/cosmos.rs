//! The Cosmos account: a client with time limits that fit a lease, and the two containers.

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
    CosmosRuntime, CosmosStatus, DatabaseClient, RoutingStrategy,
};

use crate::is_unknown_host;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::settings::azure::{CosmosAccess, CosmosAccount};

/// Time limit of one operation, with the SDK's retries and throttling. Equals the interval of lease
/// renewals.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(20);

/// Definition of a container, as `infra/` deploys it and as it is created in an emulator.
#[derive(Debug)]
pub struct ContainerShape {
    pub name: &'static str,
    /// Paths of the partition key, from the widest to the narrowest.
    pub key_paths: &'static [&'static str],
    /// Paths by which queries filter or order; all others are in [`EXCLUDED_PATH`].
    pub indexed_paths: &'static [&'static str],
    /// −1: documents without their own time to live never expire.
    pub default_ttl_seconds: i32,
}

/// Excludes bodies from the index: no query searches them, and indexing costs request units.
pub const EXCLUDED_PATH: &str = "/*";

pub const CONVERSATIONS: ContainerShape = ContainerShape {
    name: "conversations",
    key_paths: &["/owner", "/conversationId"],
    indexed_paths: &[
        "/tenant/?",
        "/owner/?",
        "/conversationId/?",
        "/id/?",
        "/kind/?",
        "/due/?",
        "/createdAt/?",
        "/state/?",
        "/searchText/?",
        "/lastEntry/?",
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

/// Errors of connecting to the containers. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "the Cosmos account {endpoint} was not reached: check its name, its firewall and the network"
    )]
    Unreachable { endpoint: String, source: Box<CosmosError> },
    #[error(
        "the Cosmos account {endpoint} denies access: an identity needs the role `Cosmos DB Built-in Data Contributor` on the account (`infra/` assigns it), a key must be one of the account's keys"
    )]
    Refused { endpoint: String, source: Box<CosmosError> },
    #[error(
        "the Cosmos database `{database}` has no container `{container}`, and an identity may not create one: deploy `infra/`"
    )]
    Missing { database: String, container: &'static str },
    #[error(
        "the container `{container}` of the Cosmos database `{database}` has the partition key {found}, but needs {wanted}: use another database, or delete the container if you do not need its data"
    )]
    WrongPartitionKey { database: String, container: &'static str, found: String, wanted: String },
    #[error("the Cosmos account {endpoint} is used with an identity, but no credential was passed")]
    NoCredential { endpoint: String },
}

impl ConnectError {
    /// True if the account has responded and may accept the same request later.
    pub fn is_temporary(&self) -> bool {
        let Self::Unreachable { source, .. } = self else { return false };
        let status = u16::from(source.status().status_code());
        matches!(status, 429 | 449)
            || is_region_change(source.status())
            || (source.response().is_some() && matches!(status, 408 | 500..))
    }

    /// True if the account may accept the same request later, without a change of the
    /// configuration: no response arrived, or one that asks to try again.
    pub fn is_outage(&self) -> bool {
        let Self::Unreachable { source, .. } = self else { return false };
        self.is_temporary() || (source.response().is_none() && !is_unknown_host(source))
    }
}

impl Containers {
    /// Connects to both containers and checks them. With an account key, as in emulators, creates
    /// the missing ones.
    ///
    /// # Errors
    /// Show the error to the operator and do not start. Only [`ConnectError::Unreachable`] may be
    /// temporary.
    pub async fn connect(
        builder: CosmosClientBuilder,
        account: &CosmosAccount,
        credential: Option<Arc<dyn TokenCredential>>,
    ) -> Result<Self, ConnectError> {
        let failed = |error| connect_error(account, error);
        let client = build_client(builder, account, credential).await?;
        let database = client.database_client(account.database.clone());
        let mut found = Vec::with_capacity(CONTAINERS.len());
        for shape in CONTAINERS {
            let container = match database.container_client(shape.name, None).await {
                Err(error) if is_missing(&error) => match account.access {
                    CosmosAccess::Key(_) => {
                        create_container(&client, &account.database, shape)
                            .await
                            .map_err(failed)?;
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
            check_container(&container, shape, account).await?;
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

async fn build_client(
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
        .with_default_operation_options(default_options())
        // Text encoding: other emulators do not support the binary one, and texts stay unchanged.
        .with_binary_encoding_options(BinaryEncodingOptions::new().with_enabled(false))
        // One region: the order of the account is right.
        .build(reference, RoutingStrategy::PreferredRegions(Vec::new()))
        .await
        .map_err(|error| connect_error(account, error))
}

/// Creates a client builder with its own SDK runtime. The SDK's shared runtime would be bound to
/// the first Tokio runtime that uses it.
///
/// # Errors
/// The SDK cannot open sockets, or rejects one of its environment variables: show the error and do
/// not start.
pub async fn client_builder(account: &CosmosAccount) -> Result<CosmosClientBuilder, ConnectError> {
    let runtime = CosmosRuntime::builder().build().await;
    let runtime = runtime.map_err(|error| connect_error(account, error))?;
    Ok(CosmosClient::builder().with_runtime(runtime))
}

/// Returns the default options of every operation.
pub fn default_options() -> OperationOptions {
    OperationOptionsBuilder::new()
        .with_end_to_end_latency_policy(EndToEndOperationLatencyPolicy::new(OPERATION_TIMEOUT))
        .build()
}

/// Returns the options for reads that decide something: a quorum read, at about twice the price.
/// Instances do not share session tokens, so the account's own consistency is not enough.
pub fn latest_committed_options() -> OperationOptions {
    let mut options = default_options();
    options.read_consistency_strategy = Some(ReadConsistencyStrategy::LatestCommitted);
    options
}

/// True if the container or its database does not exist. Not for errors of document requests.
fn is_missing(error: &CosmosError) -> bool {
    u16::from(error.status().status_code()) == 404
}

async fn create_container(
    client: &CosmosClient,
    database: &str,
    shape: &ContainerShape,
) -> Result<(), CosmosError> {
    let database_client: DatabaseClient = client.database_client(database.to_owned());
    ignore_conflict(client.create_database(database, None).await.map(|_| ()))?;
    ignore_conflict(
        database_client.create_container(container_properties(shape), None).await.map(|_| ()),
    )
}

/// Ignores a conflict: another process may have created the resource at the same time.
fn ignore_conflict(created: Result<(), CosmosError>) -> Result<(), CosmosError> {
    match created {
        Err(error) if error.status().is_conflict() => Ok(()),
        created => created,
    }
}

fn container_properties(shape: &ContainerShape) -> ContainerProperties {
    let mut policy = IndexingPolicy::default()
        .with_indexing_mode(IndexingMode::Consistent)
        .with_excluded_path(EXCLUDED_PATH);
    // The default is false, which disables all indexing.
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

/// Checks the partition key and the index. A container with another key would accept our documents,
/// but no read would find them. If many instances start at once, the account may refuse to show its
/// properties: that ends no start.
///
/// # Errors
/// The partition key or the index is another one, or the account refuses the request.
pub async fn check_container(
    container: &ContainerClient,
    shape: &ContainerShape,
    account: &CosmosAccount,
) -> Result<(), ConnectError> {
    let read = container.read(None).await.and_then(ResourceResponse::into_model);
    let found: ContainerProperties = match read.map_err(|error| connect_error(account, error)) {
        Ok(found) => found,
        Err(ConnectError::Unreachable { source, .. }) => {
            tracing::warn!(container = shape.name, error = %error_chain(&source), "container properties not read; partition key and indexes not checked");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let paths: Vec<&str> = found.partition_key.paths().iter().map(AsRef::as_ref).collect();
    if paths != shape.key_paths {
        return Err(ConnectError::WrongPartitionKey {
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
        tracing::warn!(container = shape.name, missing = ?missing, "container lacks indexes: turns, lists and the recovery sweep are slow or fail; deploy `infra/`");
    }
    Ok(())
}

fn connect_error(account: &CosmosAccount, error: CosmosError) -> ConnectError {
    let endpoint = account.endpoint.to_string();
    let status = error.status();
    let source = Box::new(error);
    if status.is_unauthorized() || (status.is_forbidden() && !is_region_change(status)) {
        ConnectError::Refused { endpoint, source }
    } else {
        ConnectError::Unreachable { endpoint, source }
    }
}

/// True for a 403 that refuses no identity: the region does not write, or does not know the account.
/// Both occur while an account changes its regions.
pub fn is_region_change(status: CosmosStatus) -> bool {
    status.is_write_forbidden() || status.is_database_account_not_found()
}

#[cfg(test)]
mod tests {
    use azure_core::http::StatusCode;
    use url::Url;

    use super::*;
    use turnwheel_platform::settings::secret::Secret;

    #[test]
    fn account_that_changes_its_regions_is_an_outage() {
        let account = CosmosAccount {
            endpoint: Url::parse("https://account.documents.azure.com/").unwrap(),
            database: "turnwheel".to_owned(),
            access: CosmosAccess::Key(Secret::new("key".to_owned())),
        };
        let unauthorized = CosmosStatus::new(StatusCode::Unauthorized);
        let forbidden = CosmosStatus::new(StatusCode::Forbidden);
        for (status, is_outage) in [
            (unauthorized, false),
            (forbidden, false),
            // `RbacOperationNotSupported`.
            (forbidden.with_sub_status(5_300), false),
            (forbidden.with_sub_status(3), true),
            (forbidden.with_sub_status(1_008), true),
        ] {
            let error = CosmosError::builder().with_status(status).with_message("no").build();
            let error = connect_error(&account, error);
            assert_eq!(error.is_outage(), is_outage, "{error:?}");
            assert_eq!(matches!(error, ConnectError::Refused { .. }), !is_outage, "{error:?}");
        }
    }
}
