//! Table of all settings. Tests compare the sample file, the documentation and the reader with it.

/// The party that sets the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The operator of the app; these are the keys of `local.settings.sample.json`.
    You,
    /// Azure or the Functions host.
    Platform,
    /// The operator of the app, under OpenTelemetry's names; not in the sample file.
    OpenTelemetry,
    /// Crash tests on one machine; rejected in Azure.
    Tests,
    /// Reserved for a later release. Setting it is an error, because it has no effect yet.
    Later,
}

/// The reader of the value.
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
    /// The value when absent; `None`: there is none.
    pub default: Option<&'static str>,
    /// The value in `local.settings.sample.json`; empty counts as absent.
    pub sample: &'static str,
    /// A typical value.
    pub example: &'static str,
    /// True if the value is never shown, not even in an error.
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

/// The row of a setting; `None` if Turnwheel does not know the name.
pub fn row(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// The index of a setting in the table; unknown names come last.
pub fn position(name: &str) -> usize {
    ROWS.iter().position(|row| row.name == name).unwrap_or(usize::MAX)
}

/// In the order of the documentation; names are unique.
pub const ROWS: &[Row] = &[
    Row::yours("FUNCTIONS_WORKER_RUNTIME", "Marks the app as a custom handler for the Functions host and its tools.")
        .sample("custom").like("custom").for_host(),
    Row::yours("AzureWebJobsStorage", "The storage account of queues and artifacts, and of the Functions host, as a connection string.")
        .or("the account in the next rows").sample("UseDevelopmentStorage=true").like("UseDevelopmentStorage=true").secret(),
    Row::yours("AzureWebJobsStorage__accountName", "The name of the storage account, for access with an identity; excludes a connection string.")
        .like("mystorageaccount"),
    Row::yours("AzureWebJobsStorage__queueServiceUri", "The address of its queue service, instead of the account name or in addition to it.")
        .like("https://mystorageaccount.queue.core.windows.net"),
    Row::yours("AzureWebJobsStorage__blobServiceUri", "The address of its blob service, instead of the account name or in addition to it.")
        .like("https://mystorageaccount.blob.core.windows.net"),
    Row::yours("AzureWebJobsStorage__tableServiceUri", "The address of its table service, for the Functions host's diagnostic events.")
        .like("https://mystorageaccount.table.core.windows.net").for_host(),
    Row::yours("AzureWebJobsStorage__credential", "The kind of identity that uses the storage account: `managedidentity` or `workloadidentity`.")
        .or("the app's own").like("managedidentity"),
    Row::yours("AzureWebJobsStorage__clientId", "The client id of the user-assigned identity that uses the storage account.")
        .or("the app's own").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("COSMOS__accountEndpoint", "The address of the Cosmos DB account that stores conversations.")
        .or("the embedded store; refused in Azure").like("https://my-account.documents.azure.com"),
    Row::yours("COSMOS__accountKey", "The Cosmos DB account's key.").or("an identity").secret(),
    Row::yours("COSMOS__credential", "The kind of identity that uses the Cosmos DB account: `managedidentity` or `workloadidentity`.")
        .or("the app's own").like("managedidentity"),
    Row::yours("COSMOS__clientId", "The client id of the user-assigned identity that uses the Cosmos DB account.")
        .or("the app's own").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("COSMOS__database", "The database in the Cosmos DB account.").or("turnwheel").like("turnwheel"),
    Row::yours("AZURE_CLIENT_ID", "The app's own identity: the client id of a user-assigned one, or of an app registration.")
        .or("the system-assigned one; on a developer's machine the sign-in of `az` or `azd`").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("AZURE_TENANT_ID", "The tenant of an app registration.").like("00000000-0000-0000-0000-000000000000"),
    Row::yours("AZURE_CLIENT_SECRET", "The secret of an app registration; with tenant and client id it is the app's own identity.").secret(),
    Row::yours("APPLICATIONINSIGHTS_CONNECTION_STRING", "The destination of Turnwheel's spans and metrics, and of the Functions host's telemetry with Turnwheel's log lines.")
        .like("InstrumentationKey=00000000-0000-0000-0000-000000000000").secret(),
    Row::yours("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", "Sends to Application Insights as the app's identity; with `;ClientId=…` as a user-assigned one.")
        .or("the key in the connection string"),
    Row::yours("TURNWHEEL_MODEL", "The model of agents that name none: `scripted` (the demo model, no network), a model id, or a model id per tier.")
        .or("`dev` without an address of a model: `scripted`").like("normal=gpt-5-mini,high=gpt-5.1"),
    Row::yours("TURNWHEEL_PRICES", "Model data by model id, as JSON, which overrides the built-in data: prices in US dollars per million tokens, abilities, extra request headers. [Models](costs.md#models) lists the members.")
        .like(r#"{"gpt-5.1":{"input":1.25,"output":10,"cacheRead":0.125}}"#).secret(),
    Row::yours("AZURE_OPENAI_BASE_URL", "The base URL of the model API; overrides the next two.")
        .like("https://my-resource.openai.azure.com/openai/v1"),
    Row::yours("AZURE_OPENAI_ENDPOINT", "The resource's endpoint, as the portal shows it.")
        .like("https://my-resource.openai.azure.com"),
    Row::yours("AZURE_OPENAI_RESOURCE_NAME", "The resource's name.").like("my-resource"),
    Row::yours("AZURE_OPENAI_API_KEY", "The resource's key.").or("an Entra token of the app's identity").secret(),
    Row::yours("AZURE_OPENAI_API_KEY_SECRET_URL", "The Key Vault secret with the resource's key. The app's identity reads it, and reads it again every 5 minutes and when the key is rejected, so that a rotation needs no restart.")
        .like("https://my-vault.vault.azure.net/secrets/my-key"),
    Row::yours("AZURE_OPENAI_API_VERSION", "The version of the model's API.").or("v1").sample("v1").like("v1"),
    Row::yours("AZURE_OPENAI_DEPLOYMENT_NAME_MAP", "The deployment that serves each model id.")
        .or("the model id is the deployment").like("gpt-5.1=my-deployment,gpt-5-mini=small"),
    Row::yours("AZURE_OPENAI_SCOPE", "The scope of the Entra token.")
        .or("https://cognitiveservices.azure.com/.default; for `*.ai.azure.com` https://ai.azure.com/.default; in sovereign clouds their equivalents").like("https://cognitiveservices.azure.com/.default"),
    Row::yours("AZURE_OPENAI_HEADERS", "Additional headers of every model request, as `name=value` separated by commas, for example for a gateway.")
        .like("x-team=clerks").secret(),
    Row::yours("AZURE_OPENAI_CACHE_RETENTION", "Retention of a conversation in the provider's prompt cache: `none` sends no cache key, `short` uses the provider's default, `long` requests 24 hours, which not every deployment supports.")
        .or("short").sample("short").like("long"),
    Row::yours("TURNWHEEL_AGENTS_DIR", "The folder of the agent files.").or("agents").sample("agents").like("agents"),
    Row::yours("TURNWHEEL_DEFAULT_AGENT", "The agent of requests that name none.")
        .or("the only agent, if there is exactly one").like("assistant"),
    Row::yours("TURNWHEEL_AUTH", "How callers are authenticated: `keys`, `easyauth` or `header`.")
        .or("`keys`; in `dev` `header`").sample("keys").like("easyauth"),
    Row::yours("TURNWHEEL_CORS_ORIGINS", "Origins of web pages that may call the API from a browser, separated by commas, or `*`.")
        .or("the app's own origin; `dev` adds `localhost` and `127.0.0.1` on any port").like("https://app.example,https://admin.example:8443"),
    Row::yours("TURNWHEEL_PUBLIC_URL", "The app's public address; approval links begin with it.")
        .or("from `WEBSITE_HOSTNAME`").like("https://agents.example.com"),
    Row::yours("TURNWHEEL_SIGNING_KEYS", "Keys of approval links: base64 of at least 32 bytes each, separated by spaces; the first signs, all verify.")
        .or("`dev` generates one").secret(),
    Row::yours("TURNWHEEL_WEBHOOK_URL", "The address that receives notifications: approval requests, ended prompts, budget alerts.")
        .like("https://hooks.example.com/turnwheel").secret(),
    Row::yours("TURNWHEEL_WEBHOOK_SECRET", "Standard Webhooks secrets, `whsec_` and base64, separated by spaces; all sign.")
        .secret(),
    Row::yours("TURNWHEEL_ARTIFACT_LINKS", "How clients download artifacts: `api` through this app, or `sas` from the storage account, with a link that the app's identity signs and that expires after five minutes.")
        .or("`api`").sample("api").like("sas"),
    Row::yours("TURNWHEEL_HTTP_TOOLS_ALLOW", "Private addresses that HTTP tools may reach: hosts, host:port, addresses or CIDR ranges, separated by commas.")
        .or("none; loopback in `dev`").like("10.1.0.0/16,payments.internal:8443"),
    Row::yours("TURNWHEEL_BUDGETS", "Spending limits of each tenant, each user and an agent per `day`, per `month` (UTC) and in `total`, in `usd` or `tokens`, as JSON; `approvers` may raise a limit that is used up.")
        .or("no limit; approvers `owner` and `link`").like(r#"{"user": {"day": {"usd": 5}}, "tenant": {"month": {"usd": 500}}, "agent:clerk": {"total": {"tokens": 1000000}}, "approvers": ["role:Finance"]}"#),
    Row::yours("TURNWHEEL_RATE_LIMITS", "Requests and model calls per owner, on each instance: a burst of the given number, refilled at that number per `s`, `min` or `h`.")
        .or("no limit").like("requests=60/min,modelCalls=30/min"),
    Row::yours("TURNWHEEL_PAUSED", "Agents and tools whose work is queued but not started: `*` for everything, `agent:NAME`, `tool:NAME`, separated by commas.")
        .or("nothing is paused").like("agent:clerk,tool:send_payment"),
    Row::yours("TURNWHEEL_HOOK_TIMEOUT", "The time limit of one extension hook, from `100ms` to `30s`; a hook that takes longer fails.")
        .or("5s").sample("5s").like("2s"),
    Row::yours("RUST_LOG", "The filter of log lines.").or("info").sample("info").like("info,turnwheel=debug"),
    Row::otel("OTEL_SDK_DISABLED", "Disables the export of spans, metrics and logs, also to Application Insights.").or("false").like("true"),
    Row::otel("OTEL_SERVICE_NAME", "The service's name.").or("the app's name in Azure, else `turnwheel`").like("agents"),
    Row::otel("OTEL_RESOURCE_ATTRIBUTES", "Attributes of the service, added to all exported telemetry.").like("deployment.environment.name=test"),
    Row::otel("OTEL_EXPORTER_OTLP_ENDPOINT", "The collector of all three signals; Turnwheel appends each signal's path.").or("no export").like("http://localhost:4318"),
    Row::otel("OTEL_EXPORTER_OTLP_HEADERS", "Headers for the collector.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_PROTOCOL", "The protocol; `http/protobuf` is the only supported value.").or("http/protobuf").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_TIMEOUT", "Time limit of one export in milliseconds, including retries.").or("10000").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_COMPRESSION", "`gzip` or `none`.").or("none").like("gzip"),
    Row::otel("OTEL_TRACES_EXPORTER", "`otlp` or `none`.").or("`otlp` when an endpoint is set").like("none"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The collector of spans, as a complete URL with the path.").like("http://localhost:4318/v1/traces"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "As for all signals, but for spans only.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "As for all signals, but for spans only.").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "As for all signals, but for spans only.").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "As for all signals, but for spans only.").like("none"),
    Row::otel("OTEL_METRICS_EXPORTER", "`otlp` or `none`.").or("`otlp` when an endpoint is set").like("none"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "The collector of metrics, as a complete URL with the path.").like("http://localhost:4318/v1/metrics"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "As for all signals, but for metrics only.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "As for all signals, but for metrics only.").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "As for all signals, but for metrics only.").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "As for all signals, but for metrics only.").like("none"),
    Row::otel("OTEL_LOGS_EXPORTER", "`otlp` or `none`.").or("`otlp` when an endpoint is set").like("none"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "The collector of logs, as a complete URL with the path.").like("http://localhost:4318/v1/logs"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "As for all signals, but for logs only.").like("api-key=secret").secret(),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "As for all signals, but for logs only.").like("http/protobuf"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "As for all signals, but for logs only.").like("10000"),
    Row::otel("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "As for all signals, but for logs only.").like("none"),
    Row::otel("OTEL_TRACES_SAMPLER", "The sampler of traces: `always_on`, `always_off`, `traceidratio`, each also after `parentbased_`.").or("parentbased_always_on").like("parentbased_traceidratio"),
    Row::otel("OTEL_TRACES_SAMPLER_ARG", "The ratio of `traceidratio`.").or("1").like("0.1"),
    Row::otel("OTEL_BSP_SCHEDULE_DELAY", "Milliseconds between two exports of spans.").or("5000").like("1000"),
    Row::otel("OTEL_BLRP_SCHEDULE_DELAY", "Milliseconds between two exports of logs.").or("1000").like("1000"),
    Row::otel("OTEL_METRIC_EXPORT_INTERVAL", "Milliseconds between two exports of metrics.").or("60000").like("30000"),
    Row::otel("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "Records prompts, responses, arguments and results on spans: `SPAN_ONLY` or `true`.").or("NO_CONTENT").like("SPAN_ONLY"),
    Row::of("FUNCTIONS_CUSTOMHANDLER_PORT", SetBy::Platform, "The port on 127.0.0.1 on which the Functions host calls the app.").like("43211"),
    Row::of("WEBSITE_HOSTNAME", SetBy::Platform, "The app's host name.").like("my-app.azurewebsites.net"),
    Row::of("WEBSITE_SITE_NAME", SetBy::Platform, "The app's name, used as the service name in telemetry.").like("my-app"),
    Row::of("WEBSITE_AUTH_ENABLED", SetBy::Platform, "True if the platform's sign-in is on; without it `easyauth` rejects every caller.").like("True"),
    Row::of("WEBSITE_INSTANCE_ID", SetBy::Platform, "Present on App Service plans; indicates that the app runs in Azure."),
    Row::of("WEBSITE_SKU", SetBy::Platform, "Present on Consumption plans; indicates that the app runs in Azure.").like("FlexConsumption"),
    Row::of("LEGION_SERVICE_HOST", SetBy::Platform, "Present on Flex Consumption, which has no instance id; indicates that the app runs in Azure."),
    Row::of("IDENTITY_ENDPOINT", SetBy::Platform, "The token endpoint of the managed identity; indicates that the app has one.").like("http://127.0.0.1:8081/msi/token"),
    Row::of("AZURE_FEDERATED_TOKEN_FILE", SetBy::Platform, "The token of a workload identity; with tenant and client id it is the app's own identity.").like("/var/run/secrets/azure/tokens/azure-identity-token"),
    Row::of("TURNWHEEL_HALT_AT", SetBy::Tests, "Suspends the process at a fail point, so that a test can kill it there.").like("after-answer#2"),
    Row::of("TURNWHEEL_RETENTION", SetBy::Later, "Retention of conversations."),
];
