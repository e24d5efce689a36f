//! Tests of accounts and identities: every form, and the error of every mistake.

use std::sync::Arc;

use super::*;
use crate::settings::ServiceSettings;
use crate::settings::mistake::SettingMistake;
use crate::settings::model::Provider;

type Pairs<'p> = &'p [(&'static str, &'p str)];

fn try_read(pairs: Pairs<'_>) -> Result<ServiceSettings, Vec<SettingMistake>> {
    let pairs: Arc<[(&'static str, String)]> =
        pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    ServiceSettings::read(move |requested| {
        pairs.iter().find(|(name, _)| *name == requested).map(|(_, value)| value.clone())
    })
}

fn read(pairs: Pairs<'_>) -> ServiceSettings {
    try_read(pairs).unwrap_or_else(|errors| panic!("{pairs:?}: {errors:?}"))
}

fn mistakes(pairs: Pairs<'_>) -> String {
    let errors = try_read(pairs).expect_err("the settings must be invalid");
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

const MINE: &str = "11111111-2222-3333-4444-555555555555";
const OTHER: &str = "99999999-2222-3333-4444-555555555555";
const TENANT: &str = "77777777-2222-3333-4444-555555555555";
const STORAGE: &str = "AzureWebJobsStorage";
const COSMOS: (&str, &str) = ("COSMOS__accountEndpoint", "https://mine.documents.azure.com:443/");
/// "hush-hush" in base64.
const KEY: &str = "aHVzaC1odXNo";

fn managed(client_id: Option<&str>) -> AzureIdentity {
    AzureIdentity::Managed { client_id: client_id.map(str::to_owned) }
}

#[test]
fn connection_string_sets_account_and_key() {
    let forms = [
        (
            "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=aHVzaC1odXNo;EndpointSuffix=core.windows.net",
            "https://mine.queue.core.windows.net/",
            "https://mine.blob.core.windows.net/",
        ),
        (
            " accountname=mine ; accountkey=aHVzaC1odXNo;",
            "https://mine.queue.core.windows.net/",
            "https://mine.blob.core.windows.net/",
        ),
        (
            "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=aHVzaC1odXNo;EndpointSuffix=core.chinacloudapi.cn;BlobEndpoint=https://files.example.com/;TableEndpoint=https://t.example.com",
            "https://mine.queue.core.chinacloudapi.cn/",
            "https://files.example.com/",
        ),
        (
            "DefaultEndpointsProtocol=http;AccountName=mine;AccountKey=aHVzaC1odXNo;QueueEndpoint=http://localhost:1/mine/;BlobEndpoint=http://[::1]:2/mine",
            "http://localhost:1/mine",
            "http://[::1]:2/mine",
        ),
    ];
    for (text, queue, blob) in forms {
        let account = read(&[(STORAGE, text)]).storage.unwrap();
        assert_eq!((account.queue.as_str(), account.blob.as_str()), (queue, blob), "{text}");
        let key = Secret::new(b"hush-hush".to_vec());
        assert_eq!(account.access, StorageAccess::SharedKey { account: "mine".to_owned(), key });
    }
}

#[test]
fn emulator_short_form_expands() {
    for text in ["UseDevelopmentStorage=true", "usedevelopmentstorage=True;"] {
        let account = read(&[(STORAGE, text)]).storage.unwrap();
        assert_eq!(account.queue.as_str(), "http://127.0.0.1:10001/devstoreaccount1");
        assert_eq!(account.blob.as_str(), "http://127.0.0.1:10000/devstoreaccount1");
        let StorageAccess::SharedKey { account, key } = account.access else {
            panic!("expected a key")
        };
        assert_eq!((account.as_str(), key.reveal().len()), ("devstoreaccount1", 64));
    }
}

#[test]
fn connection_string_accepts_shared_access_signature() {
    let sas = "sv=2024&sig=hush%3D";
    for text in [
        format!(
            "BlobEndpoint=https://a.example.com/;QueueEndpoint=https://b.example.com/;SharedAccessSignature={sas}"
        ),
        format!("AccountName=mine;SharedAccessSignature=?{sas}"),
    ] {
        let access = read(&[(STORAGE, &text)]).storage.unwrap().access;
        assert_eq!(access, StorageAccess::Sas(Secret::new(sas.to_owned())), "{text}");
    }
}

#[test]
fn storage_account_name_uses_identity() {
    let named = read(&[("AzureWebJobsStorage__accountName", "mine")]).storage.unwrap();
    assert_eq!(named.queue.as_str(), "https://mine.queue.core.windows.net/");
    assert_eq!(named.blob.as_str(), "https://mine.blob.core.windows.net/");
    assert_eq!(named.access, StorageAccess::Identity(AzureIdentity::DeveloperTools));
    let addressed = read(&[
        ("AzureWebJobsStorage__queueServiceUri", "https://127.0.0.1:10001/devstoreaccount1/"),
        ("AzureWebJobsStorage__blobServiceUri", "https://mine.blob.core.usgovcloudapi.net"),
        ("AzureWebJobsStorage__credential", "managedidentity"),
    ]);
    let addressed = addressed.storage.unwrap();
    assert_eq!(addressed.queue.as_str(), "https://127.0.0.1:10001/devstoreaccount1");
    assert_eq!(addressed.blob.as_str(), "https://mine.blob.core.usgovcloudapi.net/");
    assert_eq!(addressed.access, StorageAccess::Identity(managed(None)));
}

#[test]
fn storage_addresses_must_match_account_name() {
    let name = ("AzureWebJobsStorage__accountName", "mine");
    let queue =
        ("AzureWebJobsStorage__queueServiceUri", "https://mine.queue.core.usgovcloudapi.net");
    let blob = ("AzureWebJobsStorage__blobServiceUri", "https://mine.blob.core.windows.net");
    let both = read(&[name, queue, blob]).storage.unwrap();
    assert_eq!(both.queue.as_str(), "https://mine.queue.core.usgovcloudapi.net/");
    assert_eq!(both.blob.as_str(), "https://mine.blob.core.windows.net/");
    let one = read(&[name, queue]).storage.unwrap();
    assert_eq!((one.queue, one.blob), (both.queue, both.blob));
    let other = ("AzureWebJobsStorage__blobServiceUri", "https://other.blob.core.windows.net");
    assert_eq!(
        mistakes(&[name, queue, other]),
        "AzureWebJobsStorage__blobServiceUri is `https://other.blob.core.windows.net/`, and AzureWebJobsStorage__accountName is `mine`, another account: correct one of them, or remove one"
    );
}

#[test]
fn cosmos_account_uses_key_or_identity() {
    let by_key = read(&[COSMOS, ("COSMOS__accountKey", KEY), ("COSMOS__database", "other")]);
    let by_key = by_key.cosmos.unwrap();
    assert_eq!(by_key.endpoint.as_str(), "https://mine.documents.azure.com/");
    assert_eq!(by_key.access, CosmosAccess::Key(Secret::new(KEY.to_owned())));
    assert_eq!(by_key.database, "other");
    let by_identity = read(&[
        ("COSMOS__accountEndpoint", "http://127.0.0.1:8081"),
        ("COSMOS__credential", "ManagedIdentity"),
        ("COSMOS__clientId", MINE),
    ]);
    let by_identity = by_identity.cosmos.unwrap();
    assert_eq!(by_identity.access, CosmosAccess::Identity(managed(Some(MINE))));
    assert_eq!(by_identity.database, "turnwheel");
    assert_eq!(read(&[]).cosmos, None);
    assert_eq!(read(&[]).storage, None);
}

#[test]
fn explicit_identity_overrides_platform_identity() {
    let azure = ("WEBSITE_SKU", "FlexConsumption");
    let (tenant, client) = (("AZURE_TENANT_ID", TENANT), ("AZURE_CLIENT_ID", MINE));
    let secret = ("AZURE_CLIENT_SECRET", "hush");
    let file = ("AZURE_FEDERATED_TOKEN_FILE", "/run/token");
    let by_secret = AzureIdentity::ClientSecret {
        tenant_id: TENANT.to_owned(),
        client_id: MINE.to_owned(),
        secret: Secret::new("hush".to_owned()),
    };
    let workload = AzureIdentity::Workload {
        tenant_id: TENANT.to_owned(),
        client_id: MINE.to_owned(),
        token_file: "/run/token".into(),
    };
    let cases: [(Pairs<'_>, AzureIdentity); 9] = [
        (&[], AzureIdentity::DeveloperTools),
        (&[client, tenant], AzureIdentity::DeveloperTools),
        (&[azure], managed(None)),
        (&[azure, client], managed(Some(MINE))),
        (&[("IDENTITY_ENDPOINT", "http://127.0.0.1:8081/msi")], managed(None)),
        (&[tenant, client, file], workload.clone()),
        (&[azure, tenant, client, file], workload),
        (&[tenant, client, secret], by_secret.clone()),
        (&[azure, tenant, client, secret], by_secret),
    ];
    for (pairs, identity) in cases {
        assert_eq!(read(pairs).identity, identity, "{pairs:?}");
    }
}

#[test]
fn connection_may_have_its_own_identity() {
    let azure = ("WEBSITE_SKU", "FlexConsumption");
    let account = ("AzureWebJobsStorage__accountName", "mine");
    let (credential, client) = ("AzureWebJobsStorage__credential", "AzureWebJobsStorage__clientId");
    let own = ("AZURE_CLIENT_ID", MINE);
    let (tenant, file) =
        (("AZURE_TENANT_ID", TENANT), ("AZURE_FEDERATED_TOKEN_FILE", "/run/token"));
    let workload = |client: &str| AzureIdentity::Workload {
        tenant_id: TENANT.to_owned(),
        client_id: client.to_owned(),
        token_file: "/run/token".into(),
    };
    let cases: [(Pairs<'_>, AzureIdentity); 8] = [
        (&[azure, own], managed(Some(MINE))),
        (&[azure, own, (client, OTHER)], managed(Some(OTHER))),
        // As in the Functions host: without a client id it is the system-assigned identity.
        (&[azure, own, (credential, "managedidentity")], managed(None)),
        (&[(credential, "managedidentity"), (client, OTHER)], managed(Some(OTHER))),
        (&[(client, OTHER)], AzureIdentity::DeveloperTools),
        (&[own, tenant, file], workload(MINE)),
        (&[own, tenant, file, (credential, "workloadidentity"), (client, OTHER)], workload(OTHER)),
        (&[own, tenant, file, (credential, "managedidentity")], managed(None)),
    ];
    for (pairs, identity) in cases {
        let access = read(&[&[account], pairs].concat()).storage.unwrap().access;
        assert_eq!(access, StorageAccess::Identity(identity), "{pairs:?}");
    }
}

#[test]
fn connection_string_errors_contain_no_secret() {
    let error_text = |text: &str| {
        let error_text = mistakes(&[(STORAGE, text)]);
        assert!(!error_text.contains("hush") && !error_text.contains("aHVz"), "{error_text}");
        error_text
    };
    let cases = [
        ("hush", "is not a connection string: expected `UseDevelopmentStorage=true` or"),
        ("DefaultEndpointsProtocol=https;hush", "is not a connection string"),
        ("AccountName=mine", "has neither AccountKey nor SharedAccessSignature"),
        ("AccountKey=aHVzaA==", "has an AccountKey and no AccountName"),
        ("Endpoint=sb://hush;SharedAccessKey=hush", "has neither AccountName nor QueueEndpoint"),
        (
            "AccountName=Mine_1;AccountKey=aHVzaA==",
            "has an AccountName that is not a storage account's",
        ),
        ("AccountName=mine;AccountKey=hush!", "has an AccountKey that is not base64"),
        (
            "AccountName=mine;AccountKey=aHVzaA==;SharedAccessSignature=sig=hush",
            "has AccountKey and SharedAccessSignature",
        ),
        (
            "AccountName=mine;SharedAccessSignature=hush",
            "has a SharedAccessSignature without `sig=`",
        ),
        (
            "AccountName=mine;AccountName=hush;AccountKey=aHVzaA==",
            "names a part of the connection string twice",
        ),
        (
            "DefaultEndpointsProtocol=http;AccountName=mine;AccountKey=aHVzaA==",
            "has a DefaultEndpointsProtocol other than https",
        ),
        (
            "AccountName=mine;AccountKey=aHVzaA==;EndpointSuffix=evil.com/hush",
            "that forms no valid address",
        ),
        (
            "AccountName=mine;AccountKey=aHVzaA==;QueueEndpoint=http://azurite:10001/mine",
            "has a QueueEndpoint that must be an address that begins with https://, or with http:// on loopback",
        ),
        (
            "AccountName=mine;AccountKey=aHVzaA==;BlobEndpoint=https://hush@b.example.com",
            "has a BlobEndpoint that must be an address",
        ),
        (
            "UseDevelopmentStorage=false",
            "has UseDevelopmentStorage: write `UseDevelopmentStorage=true` and nothing else",
        ),
        ("UseDevelopmentStorage=true;AccountName=mine", "has UseDevelopmentStorage: write"),
        (
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://hush",
            "names a DevelopmentStorageProxyUri, which is not supported",
        ),
    ];
    for (text, expected) in cases {
        let error_text = error_text(text);
        assert!(
            error_text.starts_with("AzureWebJobsStorage ") && error_text.contains(expected),
            "{text}: {error_text}"
        );
    }
    let both =
        error_text("AccountName=mine;AccountKey=hush!;QueueEndpoint=ftp://a;BlobEndpoint=ftp://b");
    assert_eq!(both.lines().count(), 3, "all errors are reported: {both}");
}

#[test]
fn incomplete_or_contradictory_settings_are_reported_together() {
    insta::assert_snapshot!(mistakes(&[
        (STORAGE, "UseDevelopmentStorage=true"),
        ("WEBSITE_SKU", "FlexConsumption"),
        ("AzureWebJobsStorage__accountName", "Mine"),
        ("AzureWebJobsStorage__credential", "secret"),
        COSMOS,
        ("COSMOS__accountKey", KEY),
        ("COSMOS__credential", "managedidentity"),
        ("AZURE_CLIENT_SECRET", "hush"),
        ("AZURE_FEDERATED_TOKEN_FILE", "/run/token"),
        ("AZURE_CLIENT_ID", "me"),
    ]), @r"
    AzureWebJobsStorage is the emulator of a developer's machine: remove it and set AzureWebJobsStorage__accountName to the app's storage account
    AzureWebJobsStorage__accountName is `Mine`: expected a storage account's name: 3 to 24 of a-z and 0-9
    AzureWebJobsStorage__accountName is set, and AzureWebJobsStorage too: remove the connection string to use an identity, or this to use the connection string
    AzureWebJobsStorage__credential is `secret`: expected `managedidentity` or `workloadidentity`; without it the app's own identity is used
    AzureWebJobsStorage__credential is set, and AzureWebJobsStorage too: remove the connection string to use an identity, or this to use the connection string
    COSMOS__credential is set, and COSMOS__accountKey too: remove the key to use an identity, or this to use the key
    AZURE_CLIENT_ID is `me`: expected the client id of an identity, such as 00000000-0000-0000-0000-000000000000
    AZURE_CLIENT_SECRET is set, and AZURE_FEDERATED_TOKEN_FILE too: keep one, they are two identities
    AZURE_CLIENT_SECRET is set, but AZURE_TENANT_ID is not: set it to the tenant that gives the tokens
    ");
    insta::assert_snapshot!(mistakes(&[
        ("AzureWebJobsStorage__accountName", "mine"),
        ("AzureWebJobsStorage__queueServiceUri", "http://127.0.0.1:10001/mine"),
        ("COSMOS__accountEndpoint", "http://cosmos.example.com"),
        ("COSMOS__accountKey", "hush!"),
        ("COSMOS__database", "a/b"),
        ("AZURE_FEDERATED_TOKEN_FILE", "/run/token"),
    ]), @r"
    AzureWebJobsStorage__queueServiceUri is `http://127.0.0.1:10001/mine`: expected an address that begins with https://, such as https://my-account.queue.core.windows.net
    COSMOS__accountEndpoint is `http://cosmos.example.com`: expected an address that begins with https://, such as https://my-account.documents.azure.com (http:// on loopback alone)
    COSMOS__accountKey is not usable (its value is kept secret): expected the account's key, in base64
    COSMOS__database is `a/b`: expected a database's name: at most 255 characters, without `/`, `\`, `?` and `#`
    AZURE_FEDERATED_TOKEN_FILE is set, but AZURE_TENANT_ID is not: set it to the tenant that gives the tokens
    AZURE_FEDERATED_TOKEN_FILE is set, but AZURE_CLIENT_ID is not: set it to the client id that it belongs to
    ");
    insta::assert_snapshot!(mistakes(&[
        ("AzureWebJobsStorage__blobServiceUri", "https://b.example.com"),
        ("COSMOS__accountKey", KEY),
        ("COSMOS__clientId", MINE),
        ("COSMOS__database", "mine"),
        ("COSMOS__credential", "workloadidentity"),
    ]), @r"
    AzureWebJobsStorage__blobServiceUri is set, but AzureWebJobsStorage__queueServiceUri is not: set both, or AzureWebJobsStorage__accountName alone
    COSMOS__accountKey is set, but COSMOS__accountEndpoint is not: set it to the account's address
    COSMOS__credential is `workloadidentity`, which needs AZURE_FEDERATED_TOKEN_FILE, AZURE_TENANT_ID and AZURE_CLIENT_ID: the platform sets them where it offers one
    COSMOS__credential is set, but COSMOS__accountEndpoint is not: set it to the account's address
    COSMOS__clientId is set, but COSMOS__accountEndpoint is not: set it to the account's address
    COSMOS__database is set, but COSMOS__accountEndpoint is not: set it to the account's address
    ");
    insta::assert_snapshot!(mistakes(&[
        ("AzureWebJobsStorage__clientId", MINE),
        COSMOS,
        ("COSMOS__clientId", OTHER),
        ("AZURE_CLIENT_ID", MINE),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_CLIENT_SECRET", "hush"),
    ]), @r"
    AzureWebJobsStorage__clientId is set, but no storage account is named: set AzureWebJobsStorage__accountName
    COSMOS__clientId names another identity than AZURE_CLIENT_ID, which AZURE_CLIENT_SECRET belongs to: remove it, or set COSMOS__credential to `managedidentity`
    ");
}

#[test]
fn unresolved_key_vault_reference_is_reported_once() {
    let reference = "@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/hush)";
    insta::assert_snapshot!(mistakes(&[
        COSMOS,
        ("COSMOS__accountKey", reference),
        ("AZURE_OPENAI_API_KEY", " @microsoft.keyvault(VaultName=v;SecretName=hush)"),
        ("TURNWHEEL_WEBHOOK_URL", "https://hooks.example.com"),
        ("TURNWHEEL_WEBHOOK_SECRET", reference),
    ]), @r#"
    COSMOS__accountKey is a Key Vault reference that is not resolved: in Azure give the app's identity the role `Key Vault Secrets User`, wait some minutes, or have App Service resolve it again (`az rest --method POST --uri "https://management.azure.com$(az functionapp show -g GROUP -n APP --query id -o tsv)/config/configreferences/appsettings/refresh?api-version=2022-03-01"`); elsewhere set the value itself
    AZURE_OPENAI_API_KEY is a Key Vault reference that is not resolved: in Azure give the app's identity the role `Key Vault Secrets User`, wait some minutes, or have App Service resolve it again (`az rest --method POST --uri "https://management.azure.com$(az functionapp show -g GROUP -n APP --query id -o tsv)/config/configreferences/appsettings/refresh?api-version=2022-03-01"`); elsewhere set the value itself
    TURNWHEEL_WEBHOOK_SECRET is a Key Vault reference that is not resolved: in Azure give the app's identity the role `Key Vault Secrets User`, wait some minutes, or have App Service resolve it again (`az rest --method POST --uri "https://management.azure.com$(az functionapp show -g GROUP -n APP --query id -o tsv)/config/configreferences/appsettings/refresh?api-version=2022-03-01"`); elsewhere set the value itself
    "#);
}

#[test]
fn serving_in_azure_requires_storage_and_cosmos() {
    let missing = |pairs: Pairs<'_>| -> Vec<String> {
        read(pairs).missing_required().into_iter().map(|mistake| mistake.name).collect()
    };
    let azure = ("WEBSITE_SKU", "FlexConsumption");
    let names = missing(&[azure]);
    assert_eq!(names[..2], ["AzureWebJobsStorage__accountName", "COSMOS__accountEndpoint"]);
    let names = missing(&[azure, COSMOS, ("AzureWebJobsStorage__accountName", "mine")]);
    assert!(names.iter().all(|name| !name.contains("__")), "{names:?}");
    let elsewhere = missing(&[]);
    assert!(elsewhere.iter().all(|name| !name.contains("__")), "{elsewhere:?}");
}

#[test]
fn account_secrets_are_absent_from_debug_output() {
    let settings = read(&[
        (STORAGE, "AccountName=mine;SharedAccessSignature=sig=hush"),
        COSMOS,
        ("COSMOS__accountKey", KEY),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_CLIENT_ID", MINE),
        ("AZURE_CLIENT_SECRET", "hush"),
    ]);
    let shown = format!("{settings:?}");
    assert!(!shown.contains("hush") && !shown.contains(KEY), "{shown}");
}

#[test]
fn model_key_may_be_in_key_vault() {
    let resource = ("AZURE_OPENAI_RESOURCE_NAME", "res");
    let url = "AZURE_OPENAI_API_KEY_SECRET_URL";
    let read_secret = |text: &str| {
        let Provider::Azure(azure) = read(&[resource, (url, text)]).model.provider else {
            panic!("expected an Azure model")
        };
        azure.key_vault_secret.unwrap()
    };
    let newest = read_secret("https://mine.vault.azure.net/secrets/model-key/");
    assert_eq!(newest.to_string(), "https://mine.vault.azure.net/secrets/model-key");
    assert_eq!((newest.vault.as_str(), newest.version), ("https://mine.vault.azure.net/", None));
    let pinned = read_secret("https://mine.vault.azure.net/secrets/model-key/0a1b");
    assert_eq!(pinned.version.as_deref(), Some("0a1b"));
    for bad in [
        "mine/secrets/model-key",
        "http://127.0.0.1/secrets/model-key",
        "https://mine.vault.azure.net/keys/model-key",
        "https://mine.vault.azure.net/secrets",
        "https://mine.vault.azure.net/secrets/a%2Fb",
        "https://mine.vault.azure.net/secrets/a/b/c",
    ] {
        let error_text = mistakes(&[resource, (url, bad)]);
        assert!(
            error_text.contains("expected a Key Vault secret's address"),
            "{bad}: {error_text}"
        );
    }
    let good = (url, "https://mine.vault.azure.net/secrets/model-key");
    assert!(
        mistakes(&[good]).contains("is set without an address. Azure OpenAI base URL is required.")
    );
    let both = mistakes(&[resource, good, ("AZURE_OPENAI_API_KEY", "hush")]);
    assert_eq!(
        both,
        "AZURE_OPENAI_API_KEY_SECRET_URL is set, and AZURE_OPENAI_API_KEY too: keep one of them"
    );
}
