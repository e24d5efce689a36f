//! Artifact store on Azure blobs, in a private container.

mod link;
mod metadata;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_core::http::pager::PagerOptions;
use azure_core::http::{ClientMethodOptions, RequestContent};
use azure_storage_blob::models::{
    BlobClientDeleteOptions, BlobClientDownloadOptions, BlobClientGetPropertiesOptions,
    BlobClientGetPropertiesResultHeaders as _, BlobClientUploadOptions,
    BlobContainerClientCreateOptions, BlobContainerClientListBlobsOptions, BlobItem,
    DeleteSnapshotsOptionType, ListBlobsIncludeItem,
};
use azure_storage_blob::{BlobClient, BlobContainerClient, BlobServiceClient};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use url::Url;

use self::link::LinkSigner;
use super::{
    ARTIFACT_BYTES_MAX, ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts, CONTAINER,
    ContentHeaders, clamp_range, has_plain_names, sort_oldest_first,
};
use turnwheel_azure::storage::{self, StorageError, TransportSettings};
use turnwheel_platform::ids::{ArtifactId, EffectId};
use turnwheel_platform::settings::azure::{StorageAccess, StorageAccount};

/// Larger content is sent in blocks of this size, so that a broken connection costs one block.
const BLOCK_BYTES: u64 = 4 * 1024 * 1024;
const BLOCK_CONCURRENCY: NonZero<usize> = NonZero::new(4).expect("four is not zero");
const DELETE_CONCURRENCY: usize = 8;

pub struct BlobArtifacts {
    service: BlobServiceClient,
    container: BlobContainerClient,
    /// Signs links; requires an identity.
    link_signer: Option<LinkSigner>,
    /// Blobs of one list page; `None`: the service's 5,000.
    page_size: Option<i32>,
}

impl BlobArtifacts {
    /// Creates the client without a request. The container is `{prefix}agent-artifacts`.
    /// `credential` replaces the credential of the account's identity.
    ///
    /// # Errors
    /// The account is not usable. Show the error and do not start.
    pub fn connect(
        account: &StorageAccount,
        credential: Option<Arc<dyn TokenCredential>>,
        prefix: &str,
        sending: &TransportSettings,
    ) -> Result<Self, StorageError> {
        let service = storage::blob_client(account, credential, sending)?;
        let container = service.blob_container_client(&format!("{prefix}{CONTAINER}"));
        Ok(Self { service, container, link_signer: None, page_size: None })
    }

    /// Lets clients read the bytes directly from the storage account.
    ///
    /// # Errors
    /// The account uses a key or a SAS token, whose links could be neither traced nor revoked. Show
    /// the error and do not start.
    pub fn with_links(mut self, account: &StorageAccount) -> Result<Self, StorageError> {
        match &account.access {
            StorageAccess::Identity(_) => {
                self.link_signer = Some(LinkSigner::new(&account.blob));
                Ok(self)
            }
            StorageAccess::SharedKey { .. } | StorageAccess::Sas(_) => Err(StorageError::new(
                "links to artifacts require a storage account with an identity: set \
                 AzureWebJobsStorage__accountName in place of a connection string, or TURNWHEEL_ARTIFACT_LINKS to api",
            )),
        }
    }

    /// Creates the private container if it does not exist.
    ///
    /// # Errors
    /// [`ArtifactError::Unavailable`]: show its source, which states what to do.
    pub async fn create(&self) -> Result<(), ArtifactError> {
        let options = BlobContainerClientCreateOptions {
            method_options: method_options("blob.create"),
            ..Default::default()
        };
        match self.container.create(Some(options)).await {
            Ok(_) => Ok(()),
            Err(error) if storage::error_code(&error) == Some("ContainerAlreadyExists") => Ok(()),
            Err(error) => Err(self.to_artifact_error(&error)),
        }
    }

    /// Returns the blob path; `None` if a name is not valid in a path.
    fn blob_path(scope: &ArtifactScope, id: &ArtifactId) -> Option<String> {
        if has_plain_names(scope) { scope.path(id) } else { None }
    }

    fn blob_client(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<BlobClient, ArtifactError> {
        let path = Self::blob_path(scope, id).ok_or(ArtifactError::NotFound)?;
        Ok(self.container.blob_client(&path))
    }

    fn to_artifact_error(&self, error: &azure_core::Error) -> ArtifactError {
        if storage::http_status(error) == Some(404) {
            return ArtifactError::NotFound;
        }
        ArtifactError::Unavailable(storage::to_storage_error(error, self.service.url()).into())
    }

    async fn read_properties(
        &self,
        blob: &BlobClient,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        let options = BlobClientGetPropertiesOptions {
            method_options: method_options("blob.facts"),
            ..Default::default()
        };
        let read = async {
            let answer = blob.get_properties(Some(options)).await?;
            let size = answer.content_length()?.unwrap_or(0);
            Ok(metadata::from_blob(id.clone(), size, answer.content_type()?, &answer.metadata()?))
        };
        read.await.map_err(|error| self.to_artifact_error(&error))
    }

    /// Lists the blobs with this prefix, page by page.
    fn list_pages(
        &self,
        prefix: String,
        include: Vec<ListBlobsIncludeItem>,
    ) -> impl futures_util::Stream<Item = Result<Vec<BlobItem>, ArtifactError>> + Send + '_ {
        let options = BlobContainerClientListBlobsOptions {
            prefix: Some(prefix),
            include: Some(include).filter(|include| !include.is_empty()),
            maxresults: self.page_size,
            method_options: PagerOptions {
                context: storage::operation_context("blob.list"),
                ..Default::default()
            },
            ..Default::default()
        };
        let pages = self.container.list_blobs(Some(options)).map(|pager| {
            pager.into_pages().and_then(async |page| Ok(page.into_model()?.blob_items))
        });
        stream::once(std::future::ready(pages))
            .try_flatten()
            // A missing container counts as empty.
            .take_while(|page| {
                let is_missing = |error| storage::error_code(error) == Some("ContainerNotFound");
                std::future::ready(!page.as_ref().is_err_and(is_missing))
            })
            .map_err(|error| self.to_artifact_error(&error))
    }
}

impl fmt::Debug for BlobArtifacts {
    /// Omits the query of the URL, which may be a SAS token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.container.url();
        write!(f, "BlobArtifacts({}, {})", url.host_str().unwrap_or_default(), url.path())
    }
}

fn method_options(operation: &'static str) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: storage::operation_context(operation) }
}

#[async_trait]
impl Artifacts for BlobArtifacts {
    async fn put(
        &self,
        scope: &ArtifactScope,
        metadata: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        let size = bytes.len() as u64;
        if size > ARTIFACT_BYTES_MAX {
            return Err(ArtifactError::TooLarge(size));
        }
        let blob = self.blob_client(scope, &metadata.id)?;
        // The upload sends blocks before the service checks that the blob exists.
        if size > BLOCK_BYTES && self.read_properties(&blob, &metadata.id).await.is_ok() {
            return Ok(());
        }
        let put = async || {
            let options = BlobClientUploadOptions {
                blob_content_type: metadata::header_content_type(&metadata.mime_type),
                metadata: Some(metadata::to_blob_metadata(metadata)),
                parallel: Some(BLOCK_CONCURRENCY),
                partition_size: NonZero::new(BLOCK_BYTES),
                method_options: method_options("blob.put"),
                ..Default::default()
            };
            let content: RequestContent<_, _> = bytes.clone().into();
            blob.upload(content, Some(options.if_not_exists())).await.map(|_| ())
        };
        let mut done = put().await;
        if let Err(error) = &done
            && storage::error_code(error) == Some("ContainerNotFound")
        {
            self.create().await?;
            done = put().await;
        }
        match done {
            Ok(()) => Ok(()),
            // The same bytes, from another attempt or worker.
            Err(error) if storage::error_code(&error) == Some("BlobAlreadyExists") => Ok(()),
            Err(error) => Err(self.to_artifact_error(&error)),
        }
    }

    async fn metadata(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        let blob = self.blob_client(scope, id)?;
        self.read_properties(&blob, id).await
    }

    async fn get(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        let blob = self.blob_client(scope, id)?;
        let range = range.map(|range| clamp_range(Some(range), ARTIFACT_BYTES_MAX));
        if range.as_ref().is_some_and(Range::is_empty) {
            self.read_properties(&blob, id).await?;
            return Ok(Bytes::new());
        }
        let options = BlobClientDownloadOptions {
            range: range.map(Into::into),
            // One request for all bytes, because downloads are billed by request.
            partition_size: usize::try_from(ARTIFACT_BYTES_MAX).ok().and_then(NonZero::new),
            method_options: method_options("blob.get"),
            ..Default::default()
        };
        let read = async { blob.download(Some(options)).await?.body.collect().await };
        match read.await {
            Ok(bytes) => Ok(bytes),
            // The range starts past the end.
            Err(error) if storage::http_status(&error) == Some(416) => Ok(Bytes::new()),
            Err(error) => Err(self.to_artifact_error(&error)),
        }
    }

    async fn list(&self, scope: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        if !has_plain_names(scope) {
            return Ok(Vec::new());
        }
        let prefix = scope.prefix();
        let mut all = Vec::new();
        let mut pages =
            std::pin::pin!(self.list_pages(prefix.clone(), vec![ListBlobsIncludeItem::Metadata]));
        while let Some(page) = pages.try_next().await? {
            all.extend(page.into_iter().filter_map(|blob| listed_metadata(&prefix, blob)));
        }
        Ok(sort_oldest_first(all))
    }

    async fn delete_all(&self, scope: &ArtifactScope) -> Result<(), ArtifactError> {
        if !has_plain_names(scope) {
            return Ok(());
        }
        let mut pages = std::pin::pin!(self.list_pages(scope.prefix(), Vec::new()));
        while let Some(page) = pages.try_next().await? {
            let deletes = page.into_iter().filter_map(|blob| blob.name).map(|name| async move {
                let options = BlobClientDeleteOptions {
                    delete_snapshots: Some(DeleteSnapshotsOptionType::Include),
                    method_options: method_options("blob.delete"),
                    ..Default::default()
                };
                match self.container.blob_client(&name).delete(Some(options)).await {
                    Err(error) if storage::http_status(&error) != Some(404) => {
                        Err(self.to_artifact_error(&error))
                    }
                    Ok(_) | Err(_) => Ok(()),
                }
            });
            let deletes = stream::iter(deletes).buffer_unordered(DELETE_CONCURRENCY);
            deletes.try_collect::<()>().await?;
        }
        Ok(())
    }

    async fn link(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
        headers: &ContentHeaders,
    ) -> Result<Option<Url>, ArtifactError> {
        let Some(signer) = &self.link_signer else { return Ok(None) };
        let path = Self::blob_path(scope, id).ok_or(ArtifactError::NotFound)?;
        let url = self.container.blob_client(&path).url().clone();
        let container = self.container.url().path_segments().and_then(Iterator::last);
        let container = container.unwrap_or(CONTAINER);
        let signed = signer.sign(&self.service, container, &path, headers).await;
        let query = signed.map_err(|error| self.to_artifact_error(&error))?;
        let mut url = url;
        url.set_query(Some(&query));
        Ok(Some(url))
    }
}

/// Metadata of a listed blob; `None` for a blob that is no artifact.
fn listed_metadata(prefix: &str, blob: BlobItem) -> Option<ArtifactMetadata> {
    let (effect, sha256) = blob.name.as_deref()?.strip_prefix(prefix)?.split_once('/')?;
    let id = ArtifactId::from_hash(&EffectId::new(effect), sha256);
    id.parts()?;
    let properties = blob.properties.unwrap_or_default();
    let metadata = blob.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
    let size = properties.content_length.unwrap_or(0);
    Some(metadata::from_blob(id, size, properties.content_type, &metadata))
}
