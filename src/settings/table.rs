//! The table of all settings: the sample file, the documentation and the checks are held to it by tests.

/// Who gives the setting its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// Whoever runs the app; these are the keys of `local.settings.sample.json`.
    You,
    /// Azure or the Functions host.
    Platform,
    /// Whoever runs the app, by the names that OpenTelemetry has given them; not in the sample file.
    OpenTelemetry,
    /// Crash tests on one machine; refused in Azure.
    Tests,
    /// Belongs to a later release: setting it is a mistake, so that nobody believes it works already.
    Later,
}

/// Who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    Turnwheel,
    FunctionsHost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: &'static str,
    /// One sentence.
    pub purpose: &'static str,
    /// What counts when it is absent; `None`: nothing does.
    pub default: Option<&'static str>,
    /// Its value in `local.settings.sample.json`; empty counts as absent.
    pub sample: &'static str,
    /// A value as it might look.
    pub example: &'static str,
    /// Its value is never shown, not even when it is wrong.
    pub is_secret: bool,
    pub set_by: SetBy,
    pub read_by: ReadBy,
}

impl Row {
    const fn of(name: &'static str, set_by: SetBy, purpose: &'static str) -> Self {
        Self {
            name,
            purpose,
            default: None,
            sample: "",
            example: "",
            is_secret: false,
            set_by,
            read_by: ReadBy::Turnwheel,
        }
    }

    const fn otel(name: &'static str, purpose: &'static str) -> Self {
        Self::of(name, SetBy::OpenTelemetry, purpose)
    }

    const fn yours(name: &'static str, purpose: &'static str) -> Self {
        Self::of(name, SetBy::You, purpose)
    }

    const fn or(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn sample(self, sample: &'static str) -> Self {
        Self { sample, ..self }
    }

    const fn like(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    const fn for_host(self) -> Self {
        Self { read_by: ReadBy::FunctionsHost, ..self }
    }
}

/// The row of a setting; `None` when Turnwheel does not know the name.
pub fn row(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// Where a setting stands in the table; unknown names come last.
pub fn position(name: &str) -> usize {
    ROWS.iter().position(|row| row.name == name).unwrap_or(usize::MAX)
}

/// Ordered as a reader of the documentation wants them; names are unique.
pub const ROWS: &[Row] = &[
    Row::yours("FUNCTIONS_WORKER_RUNTIME", "Tells the Functions host and its tools that the app is a custom handler.")
        .sample("custom").like("custom").for_host(),
    Row::yours("AzureWebJobsStorage", "The storage account of queues and artifacts, and of the Functions host, as a connection string.")
        .or("the account that the next rows name").sample("UseDevelopmentStorage=true").like("UseDevelopmentStorage=true").secret(),
    Row::yours("AzureWebJobsStorage__accountName", "The storage account by its name, used by an identity; no connection string beside it.")
        .like("mystorageaccount"),
    Row::yours("AzureWebJobsStorage__queueServiceUri", "Its queues by their address, in place of the name or beside it.")
        .like("https://mystorageaccount.queue.core.windows.net"),
    Row::yours("AzureWebJobsStorage__blobServiceUri", "Its blobs by their address, in place of the name or beside it.")
        .like("https://mystorageaccount.blob.core.windows.net"),
    Row::yours("AzureWebJobsStorage__tableServiceUri", "Its tables by their address: the Functions host's diagnostic events.")
        .like("https://mystorageaccount.table.core.windows.net").for_host(),
    Row::yours("AzureWebJobsStorage__credential", "Which identity uses the storage account: `managedidentity` or `workloadidentity`.")
        .or("the app's own").like("managedidentity"),
    Row::yours("AzureWebJobsStorage__clientId", "The client id of the user-assigned identity that uses the storage account.")
        .or("the app's own").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("COSMOS__accountEndpoint", "The Cosmos DB account that holds conversations.")
        .or("the embedded store; refused in Azure").like("https://my-account.documents.azure.com"),
    Row::yours("COSMOS__accountKey", "The Cosmos DB account's key.").or("an identity").secret(),
    Row::yours("COSMOS__credential", "Which identity uses the Cosmos DB account: `managedidentity` or `workloadidentity`.")
        .or("the app's own").like("managedidentity"),
    Row::yours("COSMOS__clientId", "The client id of the user-assigned identity that uses the Cosmos DB account.")
        .or("the app's own").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("COSMOS__database", "The database in the Cosmos DB account.").or("turnwheel").like("turnwheel"),
    Row::yours("AZURE_CLIENT_ID", "The app's own identity: the client id of a user-assigned one, or of an app registration.")
        .or("the system-assigned one; on a developer's machine the sign-in of `az` or `azd`").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("AZURE_TENANT_ID", "The tenant of an app registration.").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("AZURE_CLIENT_SECRET", "The secret of an app registration; with tenant and client id it is the app's own identity.").secret(),
    Row::yours("APPLICATIONINSIGHTS_CONNECTION_STRING", "Where our spans and metrics go, and where the Functions host sends its telemetry and our log lines.")
        .like("InstrumentationKey=00000000-0000-0000-0000-000000000000").secret(),
    Row::yours("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", "Sends to Application Insights as the app's identity; with `;ClientId=…` as a user-assigned one.")
        .or("the key in the connection string"),
    Row::yours("TURNWHEEL_MODEL", "The model of agents that name none: `scripted` (the demo model, no network), a model id, or a model id per tier.")
        .or("`dev` without an address of a model: `scripted`").like("normal=gpt-5-mini,high=gpt-5.1"),
    Row::yours("TURNWHEEL_PRICES", "Facts about models, by model id, as JSON; they win over the built-in ones: prices in US dollars per million tokens, abilities, extra request headers. [Models](costs.md#models) lists the members.")
        .like(r#"{"gpt-5.1":{"input":1.25,"output":10,"cacheRead":0.125}}"#).secret(),
    Row::yours("AZURE_OPENAI_BASE_URL", "Where the model answers; wins over the next two.")
        .like("https://my-resource.openai.azure.com/openai/v1"),
    Row::yours("AZURE_OPENAI_ENDPOINT", "The resource's endpoint, as the portal shows it.")
        .like("https://my-resource.openai.azure.com"),
    Row::yours("AZURE_OPENAI_RESOURCE_NAME", "The resource's name.").like("my-resource"),
    Row::yours("AZURE_OPENAI_API_KEY", "The resource's key.").or("an Entra token of the app's identity").secret(),
    Row::yours("AZURE_OPENAI_API_KEY_SECRET_URL", "The Key Vault secret that holds the resource's key: read by the app's identity, and again every 5 minutes and when the key is refused, so that a rotation needs no restart.")
        .like("https://my-vault.vault.azure.net/secrets/my-key"),
    Row::yours("AZURE_OPENAI_API_VERSION", "The version of the model's API.").or("v1").sample("v1").like("v1"),
    Row::yours("AZURE_OPENAI_DEPLOYMENT_NAME_MAP", "Which deployment serves which model id.")
        .or("the model id is the deployment").like("gpt-5.1=my-deployment,gpt-5-mini=small"),
    Row::yours("AZURE_OPENAI_SCOPE", "The scope of the Entra token.")
        .or("https://cognitiveservices.azure.com/.default; for `*.ai.azure.com` https://ai.azure.com/.default; in sovereign clouds theirs").like("https://cognitiveservices.azure.com/.default"),
    Row::yours("AZURE_OPENAI_HEADERS", "Headers that every model request has besides, as `name=value` separated by commas: for a gateway.")
        .like("x-team=clerks").secret(),
    Row::yours("AZURE_OPENAI_CACHE_RETENTION", "How long the provider's prompt cache keeps a conversation: `none` sends no key for it, `short` leaves it to the provider, `long` asks for a day, which not every deployment takes.")
        .or("short").sample("short").like("long"),
    Row::yours("TURNWHEEL_AGENTS_DIR", "The folder of the agent files.").or("agents").sample("agents").like("agents"),
    Row::yours("TURNWHEEL_DEFAULT_AGENT", "The agent of requests that name none.")
        .or("the only one there is").like("assistant"),
    Row::yours("TURNWHEEL_AUTH", "How callers are known: `keys`, `easyauth` or `header`.")
        .or("`keys`; in `dev` `header`").sample("keys").like("easyauth"),
    Row::yours("TURNWHEEL_CORS_ORIGINS", "Origins of web pages that may call the API from a browser, separated by commas, or `*`.")
        .or("the app's own origin; `dev` adds `localhost` and `127.0.0.1` on any port").like("https://app.example,https://admin.example:8443"),
    Row::yours("TURNWHEEL_PUBLIC_URL", "The address people reach the app at; approval links begin with it.")
        .or("from `WEBSITE_HOSTNAME`").like("https://agents.example.com"),
    Row::yours("TURNWHEEL_SIGNING_KEYS", "Keys of approval links: base64 of at least 32 bytes each, separated by spaces; the first signs, all verify.")
        .or("`dev` makes one").secret(),
    Row::yours("TURNWHEEL_WEBHOOK_URL", "Where notifications are sent: an approval is wanted, a prompt ended, a budget alert.")
        .like("https://hooks.example.com/turnwheel").secret(),
    Row::yours("TURNWHEEL_WEBHOOK_SECRET", "Standard Webhooks secrets, `whsec_` and base64, separated by spaces; all sign.")
        .secret(),
    Row::yours("TURNWHEEL_ARTIFACT_LINKS", "Who hands out the bytes of artifacts: `api`, this app, or `sas`, the storage account, by a link of five minutes that the app's identity signs.")
        .or("`api`").sample("api").like("sas"),
    Row::yours("TURNWHEEL_HTTP_TOOLS_ALLOW", "Private addresses that HTTP tools may reach: hosts, host:port, addresses or CIDR ranges, separated by commas.")
        .or("none; loopback in `dev`").like("10.1.0.0/16,payments.internal:8443"),
    Row::yours("TURNWHEEL_BUDGETS", "What each tenant, each user and an agent may spend in a `day`, in a `month` (UTC) and in `total`, in `usd` or `tokens`, as JSON; `approvers` may raise a limit that is used up.")
        .or("no limit; approvers `owner` and `link`").like(r#"{"user": {"day": {"usd": 5}}, "tenant": {"month": {"usd": 500}}, "agent:clerk": {"total": {"tokens": 1000000}}, "approvers": ["role:Finance"]}"#),
    Row::yours("TURNWHEEL_RATE_LIMITS", "How many requests and model calls one owner may make, for each instance: so many at once, and as many again in each `s`, `min` or `h`.")
        .or("no limit").like("requests=60/min,modelCalls=30/min"),
    Row::yours("TURNWHEEL_PAUSED", "Whose work is kept and not started: `*` everything, `agent:NAME`, `tool:NAME`, separated by commas.")
        .or("nothing is paused").like("agent:clerk,tool:send_payment"),
    Row::yours("TURNWHEEL_HOOK_TIMEOUT", "How long one hook of an extension may take, from `100ms` to `30s`; a hook that takes longer has failed.")
        .or("5s").sample("5s").like("2s"),
    Row::yours("RUST_LOG", "Which log lines are written.").or("info").sample("info").like("info,turnwheel=debug"),
    Row::otel("OTEL_SDK_DISABLED", "Sends no spans, metrics and logs, to Application Insights neither.").or("false").like("true"),
    Row::otel("OTEL_SERVICE_NAME", "The service's name.").or("the app's name in Azure, else `turnwheel`").like("agents"),
    Row::otel("OTEL_RESOURCE_ATTRIBUTES", "What is said of the service on everything sent.").like("deployment.environment.name=test"),
    Row::otel("OTEL_EXPORTER_OTLP_ENDPOINT", "The collector of all three signals; each signal's path is added.").or("nothing is sent").like("http://localhost:4318"),
    Row::otel("OTEL_EXPORTER_OTLP_HEADERS", "Headers for the collector.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_PROTOCOL", "The only protocol there is.").or("http/protobuf").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_TIMEOUT", "Milliseconds of one export, its tries included.").or("10000").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_COMPRESSION", "`gzip` or `none`.").or("none").like("gzip"),
    Row::otel("OTEL_TRACES_EXPORTER", "`otlp` or `none`.").or("`otlp` when an endpoint is set").like("none"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The same for spans alone, with its whole path.").like("http://localhost:4318/v1/traces"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "The same for spans alone.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "The same for spans alone.").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "The same for spans alone.").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "The same for spans alone.").like("none"),
    Row::otel("OTEL_METRICS_EXPORTER", "`otlp` or `none`.").or("`otlp` when an endpoint is set").like("none"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "The same for metrics alone, with its whole path.").like("http://localhost:4318/v1/metrics"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "The same for metrics alone.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "The same for metrics alone.").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "The same for metrics alone.").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "The same for metrics alone.").like("none"),
    Row::otel("OTEL_LOGS_EXPORTER", "`otlp` or `none`.").or("`otlp` when an endpoint is set").like("none"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "The same for logs alone, with its whole path.").like("http://localhost:4318/v1/logs"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "The same for logs alone.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "The same for logs alone.").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "The same for logs alone.").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "The same for logs alone.").like("none"),
    Row::otel("OTEL_TRACES_SAMPLER", "Which traces are kept: `always_on`, `always_off`, `traceidratio`, each also after `parentbased_`.").or("parentbased_always_on").like("parentbased_traceidratio"),
    Row::otel("OTEL_TRACES_SAMPLER_ARG", "The ratio of `traceidratio`.").or("1").like("0.1"),
    Row::otel("OTEL_BSP_SCHEDULE_DELAY", "Milliseconds between two exports of spans.").or("5000").like("1000"),
    Row::otel("OTEL_BLRP_SCHEDULE_DELAY", "Milliseconds between two exports of logs.").or("1000").like("1000"),
    Row::otel("OTEL_METRIC_EXPORT_INTERVAL", "Milliseconds between two exports of metrics.").or("60000").like("30000"),
    Row::otel("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "Puts prompts, answers, arguments and results on spans: `SPAN_ONLY` or `true`.").or("NO_CONTENT").like("SPAN_ONLY"),
    Row::of("FUNCTIONS_CUSTOMHANDLER_PORT", SetBy::Platform, "The port on 127.0.0.1 that the Functions host expects us on.").like("43211"),
    Row::of("WEBSITE_HOSTNAME", SetBy::Platform, "The app's host name.").like("my-app.azurewebsites.net"),
    Row::of("WEBSITE_SITE_NAME", SetBy::Platform, "The app's name, under which its telemetry stands.").like("my-app"),
    Row::of("WEBSITE_AUTH_ENABLED", SetBy::Platform, "Whether the platform's sign-in is on; without it `easyauth` believes nobody.").like("True"),
    Row::of("WEBSITE_INSTANCE_ID", SetBy::Platform, "Present on App Service plans: we are in Azure."),
    Row::of("WEBSITE_SKU", SetBy::Platform, "Present on Consumption plans: we are in Azure.").like("FlexConsumption"),
    Row::of("LEGION_SERVICE_HOST", SetBy::Platform, "Present on Flex Consumption, which has no instance id: we are in Azure."),
    Row::of("IDENTITY_ENDPOINT", SetBy::Platform, "Where a managed identity's tokens are given: the app has one.").like("http://127.0.0.1:8081/msi/token"),
    Row::of("AZURE_FEDERATED_TOKEN_FILE", SetBy::Platform, "The token of a workload identity; with tenant and client id it is the app's own identity.").like("/var/run/secrets/azure/tokens/azure-identity-token"),
    Row::of("TURNWHEEL_HALT_AT", SetBy::Tests, "Stops the process for ever at a boundary, so that a test can kill it there.").like("after-answer#2"),
    Row::of("TURNWHEEL_RETENTION", SetBy::Later, "How long conversations are kept."),
];
