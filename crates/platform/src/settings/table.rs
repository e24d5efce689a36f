//! Table of all settings. Tests compare the sample file, the documentation and the reader with it.

/// The party that sets the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The operator of the app; these are the keys of `local.settings.sample.json`.
    Operator,
    /// Azure or the Functions host.
    Platform,
    /// The operator of the app, under OpenTelemetry's names; not in the sample file.
    OpenTelemetry,
    /// Crash tests on one machine; rejected in Azure.
    Tests,
    /// Reserved for a later release. Setting it is an error, because it has no effect yet.
    FutureRelease,
}

/// The reader of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    Turnwheel,
    FunctionsHost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingRow {
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

impl SettingRow {
    const fn new(name: &'static str, set_by: SetBy, purpose: &'static str) -> Self {
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

    const fn for_otel(name: &'static str, purpose: &'static str) -> Self {
        Self::new(name, SetBy::OpenTelemetry, purpose)
    }

    const fn for_operator(name: &'static str, purpose: &'static str) -> Self {
        Self::new(name, SetBy::Operator, purpose)
    }

    const fn with_default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn sample(self, sample: &'static str) -> Self {
        Self { sample, ..self }
    }

    const fn with_example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    const fn mark_secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    const fn read_by_host(self) -> Self {
        Self { read_by: ReadBy::FunctionsHost, ..self }
    }
}

/// The row of a setting; `None` if Turnwheel does not know the name.
pub fn find_row(name: &str) -> Option<&'static SettingRow> {
    ROWS.iter().find(|row| row.name == name)
}

/// The index of a setting in the table; unknown names come last.
pub(crate) fn row_index(name: &str) -> usize {
    ROWS.iter().position(|row| row.name == name).unwrap_or(usize::MAX)
}

/// In the order of the documentation; names are unique.
pub const ROWS: &[SettingRow] = &[
    SettingRow::for_operator("FUNCTIONS_WORKER_RUNTIME", "Marks the app as a custom handler for the Functions host and its tools.")
        .sample("custom").with_example("custom").read_by_host(),
    SettingRow::for_operator("AzureWebJobsStorage", "The storage account of queues and artifacts, and of the Functions host, as a connection string.")
        .with_default("the account in the next rows").sample("UseDevelopmentStorage=true").with_example("UseDevelopmentStorage=true").mark_secret(),
    SettingRow::for_operator("AzureWebJobsStorage__accountName", "The name of the storage account, for access with an identity; excludes a connection string.")
        .with_example("mystorageaccount"),
    SettingRow::for_operator("AzureWebJobsStorage__queueServiceUri", "The address of its queue service, instead of the account name or in addition to it.")
        .with_example("https://mystorageaccount.queue.core.windows.net"),
    SettingRow::for_operator("AzureWebJobsStorage__blobServiceUri", "The address of its blob service, instead of the account name or in addition to it.")
        .with_example("https://mystorageaccount.blob.core.windows.net"),
    SettingRow::for_operator("AzureWebJobsStorage__tableServiceUri", "The address of its table service, for the Functions host's diagnostic events.")
        .with_example("https://mystorageaccount.table.core.windows.net").read_by_host(),
    SettingRow::for_operator("AzureWebJobsStorage__credential", "The kind of identity that uses the storage account: `managedidentity` or `workloadidentity`.")
        .with_default("the app's own").with_example("managedidentity"),
    SettingRow::for_operator("AzureWebJobsStorage__clientId", "The client id of the user-assigned identity that uses the storage account.")
        .with_default("the app's own").with_example("00000000-0000-0000-0000-000000000000"),
    SettingRow::for_operator("COSMOS__accountEndpoint", "The address of the Cosmos DB account that stores conversations.")
        .with_default("the embedded store; refused in Azure").with_example("https://my-account.documents.azure.com"),
    SettingRow::for_operator("COSMOS__accountKey", "The Cosmos DB account's key.").with_default("an identity").mark_secret(),
    SettingRow::for_operator("COSMOS__credential", "The kind of identity that uses the Cosmos DB account: `managedidentity` or `workloadidentity`.")
        .with_default("the app's own").with_example("managedidentity"),
    SettingRow::for_operator("COSMOS__clientId", "The client id of the user-assigned identity that uses the Cosmos DB account.")
        .with_default("the app's own").with_example("00000000-0000-0000-0000-000000000000"),
    SettingRow::for_operator("COSMOS__database", "The database in the Cosmos DB account.").with_default("turnwheel").with_example("turnwheel"),
    SettingRow::for_operator("AZURE_CLIENT_ID", "The app's own identity: the client id of a user-assigned one, or of an app registration.")
        .with_default("the system-assigned one; on a developer's machine the sign-in of `az` or `azd`").with_example("00000000-0000-0000-0000-000000000000"),
    SettingRow::for_operator("AZURE_TENANT_ID", "The tenant of an app registration.").with_example("00000000-0000-0000-0000-000000000000"),
    SettingRow::for_operator("AZURE_CLIENT_SECRET", "The secret of an app registration; with tenant and client id it is the app's own identity.").mark_secret(),
    SettingRow::for_operator("APPLICATIONINSIGHTS_CONNECTION_STRING", "The destination of Turnwheel's spans and metrics, and of the Functions host's telemetry with Turnwheel's log lines.")
        .with_example("InstrumentationKey=00000000-0000-0000-0000-000000000000").mark_secret(),
    SettingRow::for_operator("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", "Sends to Application Insights as the app's identity; with `;ClientId=…` as a user-assigned one.")
        .with_default("the key in the connection string"),
    SettingRow::for_operator("TURNWHEEL_MODEL", "The model of agents that name none: `scripted` (the demo model, no network), a model id, or a model id per tier.")
        .with_default("`dev` without an address of a model: `scripted`").with_example("normal=gpt-5-mini,high=gpt-5.1"),
    SettingRow::for_operator("TURNWHEEL_MODEL_API", "The API of the models: `responses`, `chat` for Chat Completions, or an API per model id. [Models](models.md) compares them.")
        .with_default("`responses`").sample("responses").with_example("DeepSeek-V3.2=chat,Mistral-Large-3=chat"),
    SettingRow::for_operator("TURNWHEEL_PRICES", "Model data by model id, as JSON, which overrides the built-in data: prices in US dollars per million tokens, abilities, extra request headers, an address with its key. [Models](costs.md#models) lists the members.")
        .with_example(r#"{"gpt-5.1":{"input":1.25,"output":10,"cacheRead":0.125}}"#).mark_secret(),
    SettingRow::for_operator("AZURE_OPENAI_BASE_URL", "The base URL of the model API; overrides the next two.")
        .with_example("https://my-resource.openai.azure.com/openai/v1"),
    SettingRow::for_operator("AZURE_OPENAI_ENDPOINT", "The resource's endpoint, as the portal shows it.")
        .with_example("https://my-resource.openai.azure.com"),
    SettingRow::for_operator("AZURE_OPENAI_RESOURCE_NAME", "The resource's name.").with_example("my-resource"),
    SettingRow::for_operator("AZURE_OPENAI_API_KEY", "The resource's key.").with_default("an Entra token of the app's identity").mark_secret(),
    SettingRow::for_operator("AZURE_OPENAI_API_KEY_SECRET_URL", "The Key Vault secret with the resource's key. The app's identity reads it, and reads it again every 5 minutes and when the key is rejected, so that a rotation needs no restart.")
        .with_example("https://my-vault.vault.azure.net/secrets/my-key"),
    SettingRow::for_operator("AZURE_OPENAI_API_VERSION", "The version of the model's API.").with_default("v1").sample("v1").with_example("v1"),
    SettingRow::for_operator("AZURE_OPENAI_DEPLOYMENT_NAME_MAP", "The deployment that serves each model id.")
        .with_default("the model id is the deployment").with_example("gpt-5.1=my-deployment,gpt-5-mini=small"),
    SettingRow::for_operator("AZURE_OPENAI_SCOPE", "The scope of the Entra token.")
        .with_default("https://cognitiveservices.azure.com/.default; for `*.ai.azure.com` https://ai.azure.com/.default; in sovereign clouds their equivalents").with_example("https://cognitiveservices.azure.com/.default"),
    SettingRow::for_operator("AZURE_OPENAI_HEADERS", "Additional headers of every model request, as `name=value` separated by commas, for example for a gateway.")
        .with_example("x-team=clerks").mark_secret(),
    SettingRow::for_operator("AZURE_OPENAI_CACHE_RETENTION", "Retention of a conversation in the provider's prompt cache: `none` sends no cache key, `short` uses the provider's default, `long` requests 24 hours, which not every deployment supports.")
        .with_default("short").sample("short").with_example("long"),
    SettingRow::for_operator("TURNWHEEL_AGENTS_DIR", "The folder of the agent files.").with_default("agents").sample("agents").with_example("agents"),
    SettingRow::for_operator("TURNWHEEL_DEFAULT_AGENT", "The agent of requests that name none.")
        .with_default("the only agent, if there is exactly one").with_example("assistant"),
    SettingRow::for_operator("TURNWHEEL_AUTH", "How callers are authenticated: `keys`, `easyauth` or `header`.")
        .with_default("`keys`; in `dev` `header`").sample("keys").with_example("easyauth"),
    SettingRow::for_operator("TURNWHEEL_CONSOLE", "The web console at `/api/console/`: `on` or `off`; the package needs the same value.")
        .with_default("`off`; in `dev` `on`").sample("off").with_example("on"),
    SettingRow::for_operator("TURNWHEEL_CORS_ORIGINS", "Origins of web pages that may call the API from a browser, separated by commas, or `*`.")
        .with_default("the app's own origin; `dev` adds `localhost` and `127.0.0.1` on any port").with_example("https://app.example,https://admin.example:8443"),
    SettingRow::for_operator("TURNWHEEL_PUBLIC_URL", "The app's public address; approval links begin with it.")
        .with_default("from `WEBSITE_HOSTNAME`").with_example("https://agents.example.com"),
    SettingRow::for_operator("TURNWHEEL_SIGNING_KEYS", "Keys of approval links: base64 of at least 32 bytes each, separated by spaces; the first signs, all verify.")
        .with_default("`dev` generates one").mark_secret(),
    SettingRow::for_operator("TURNWHEEL_WEBHOOK_URL", "The address that receives notifications: approval requests, ended prompts, budget alerts.")
        .with_example("https://hooks.example.com/turnwheel").mark_secret(),
    SettingRow::for_operator("TURNWHEEL_WEBHOOK_SECRET", "Standard Webhooks secrets, `whsec_` and base64, separated by spaces; all sign.")
        .mark_secret(),
    SettingRow::for_operator("TURNWHEEL_WEBHOOK_FORMAT", "Format of notifications: `standard` for programs, `slack` for an incoming webhook of Slack, `teams` for a workflow of Microsoft Teams, `email` for a workflow that sends e-mails.")
        .with_default("`standard`").sample("standard").with_example("slack"),
    SettingRow::for_operator("TURNWHEEL_ARTIFACT_LINKS", "How clients download artifacts: `api` through this app, or `sas` from the storage account, with a link that the app's identity signs and that expires after five minutes.")
        .with_default("`api`").sample("api").with_example("sas"),
    SettingRow::for_operator("TURNWHEEL_HTTP_TOOLS_ALLOW", "Private addresses that HTTP tools may reach: hosts, host:port, addresses or CIDR ranges, separated by commas.")
        .with_default("none; loopback in `dev`").with_example("10.1.0.0/16,payments.internal:8443"),
    SettingRow::for_operator("TURNWHEEL_MCP_STDIO", "MCP servers of `mcp.json` that `dev` may start as programs: their names, separated by commas. No other command starts one.")
        .with_default("none").with_example("filesystem,memory"),
    SettingRow::for_operator("TURNWHEEL_SHELL", "Where the tools `bash` and `shell` run commands: `off` nowhere, `sandbox` in a sandbox on this Linux machine (refused in Azure), `sessions` in the session pool of `TURNWHEEL_SHELL_POOL`.")
        .with_default("off").sample("off").with_example("sandbox"),
    SettingRow::for_operator("TURNWHEEL_SHELL_POOL", "The management endpoint of the Container Apps session pool that runs shell commands.")
        .with_example("https://my-pool.my-environment.westeurope.azurecontainerapps.io"),
    SettingRow::for_operator("TURNWHEEL_BUDGETS", "Spending limits of each tenant, each user and an agent per `day`, per `month` (UTC) and in `total`, in `usd` or `tokens`, as JSON; `approvers` may raise a limit that is used up.")
        .with_default("no limit; approvers `owner` and `link`").with_example(r#"{"user": {"day": {"usd": 5}}, "tenant": {"month": {"usd": 500}}, "agent:clerk": {"total": {"tokens": 1000000}}, "approvers": ["role:Finance"]}"#),
    SettingRow::for_operator("TURNWHEEL_RATE_LIMITS", "Requests and model calls per owner, on each instance: a burst of the given number, refilled at that number per `s`, `min` or `h`.")
        .with_default("no limit").with_example("requests=60/min,modelCalls=30/min"),
    SettingRow::for_operator("TURNWHEEL_PAUSED", "Agents and tools whose work is queued but not started: `*` for everything, `agent:NAME`, `tool:NAME`, separated by commas.")
        .with_default("nothing is paused").with_example("agent:clerk,tool:send_payment"),
    SettingRow::for_operator("TURNWHEEL_HOOK_TIMEOUT", "The time limit of one extension hook, from `100ms` to `30s`; a hook that takes longer fails.")
        .with_default("5s").sample("5s").with_example("2s"),
    SettingRow::for_operator("TURNWHEEL_EXTENSION_PROMPTS_MAX", "The number of prompts in a row that extensions may start in a conversation without an input of a person, from 1 to 1000.")
        .with_default("8").sample("8").with_example("20"),
    SettingRow::for_operator("TURNWHEEL_OWNER_TURNS_MAX", "The number of turns of one owner that an instance runs at once, from 1 to 1000; further ones wait while others have work.")
        .with_default("no limit").with_example("4"),
    SettingRow::for_operator("RUST_LOG", "The filter of log lines.").with_default("info").sample("info").with_example("info,turnwheel=debug"),
    SettingRow::for_otel("OTEL_SDK_DISABLED", "Disables the export of spans, metrics and logs, also to Application Insights.").with_default("false").with_example("true"),
    SettingRow::for_otel("OTEL_SERVICE_NAME", "The service's name.").with_default("the app's name in Azure, else `turnwheel`").with_example("agents"),
    SettingRow::for_otel("OTEL_RESOURCE_ATTRIBUTES", "Attributes of the service, added to all exported telemetry.").with_example("deployment.environment.name=test"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_ENDPOINT", "The collector of all three signals; Turnwheel appends each signal's path.").with_default("no export").with_example("http://localhost:4318"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_HEADERS", "Headers for the collector.").with_example("api-key=secret").mark_secret(),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_PROTOCOL", "The protocol; `http/protobuf` is the only supported value.").with_default("http/protobuf").with_example("http/protobuf"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_TIMEOUT", "Time limit of one export in milliseconds, including retries.").with_default("10000").with_example("10000"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_COMPRESSION", "`gzip` or `none`.").with_default("none").with_example("gzip"),
    SettingRow::for_otel("OTEL_TRACES_EXPORTER", "`otlp` or `none`.").with_default("`otlp` when an endpoint is set").with_example("none"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The collector of spans, as a complete URL with the path.").with_example("http://localhost:4318/v1/traces"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "As for all signals, but for spans only.").with_example("api-key=secret").mark_secret(),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "As for all signals, but for spans only.").with_example("http/protobuf"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "As for all signals, but for spans only.").with_example("10000"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "As for all signals, but for spans only.").with_example("none"),
    SettingRow::for_otel("OTEL_METRICS_EXPORTER", "`otlp` or `none`.").with_default("`otlp` when an endpoint is set").with_example("none"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "The collector of metrics, as a complete URL with the path.").with_example("http://localhost:4318/v1/metrics"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "As for all signals, but for metrics only.").with_example("api-key=secret").mark_secret(),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "As for all signals, but for metrics only.").with_example("http/protobuf"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "As for all signals, but for metrics only.").with_example("10000"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "As for all signals, but for metrics only.").with_example("none"),
    SettingRow::for_otel("OTEL_LOGS_EXPORTER", "`otlp` or `none`.").with_default("`otlp` when an endpoint is set").with_example("none"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "The collector of logs, as a complete URL with the path.").with_example("http://localhost:4318/v1/logs"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "As for all signals, but for logs only.").with_example("api-key=secret").mark_secret(),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "As for all signals, but for logs only.").with_example("http/protobuf"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "As for all signals, but for logs only.").with_example("10000"),
    SettingRow::for_otel("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", "As for all signals, but for logs only.").with_example("none"),
    SettingRow::for_otel("OTEL_TRACES_SAMPLER", "The sampler of traces: `always_on`, `always_off`, `traceidratio`, each also after `parentbased_`.").with_default("parentbased_always_on").with_example("parentbased_traceidratio"),
    SettingRow::for_otel("OTEL_TRACES_SAMPLER_ARG", "The ratio of `traceidratio`.").with_default("1").with_example("0.1"),
    SettingRow::for_otel("OTEL_BSP_SCHEDULE_DELAY", "Milliseconds between two exports of spans.").with_default("5000").with_example("1000"),
    SettingRow::for_otel("OTEL_BLRP_SCHEDULE_DELAY", "Milliseconds between two exports of logs.").with_default("1000").with_example("1000"),
    SettingRow::for_otel("OTEL_METRIC_EXPORT_INTERVAL", "Milliseconds between two exports of metrics.").with_default("60000").with_example("30000"),
    SettingRow::for_otel("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "Records prompts, responses, arguments and results on spans: `SPAN_ONLY` or `true`.").with_default("NO_CONTENT").with_example("SPAN_ONLY"),
    SettingRow::new("FUNCTIONS_CUSTOMHANDLER_PORT", SetBy::Platform, "The port on 127.0.0.1 on which the Functions host calls the app.").with_example("43211"),
    SettingRow::new("FUNCTIONS_APP_ROOT_PATH", SetBy::Platform, "The folder with `host.json` and the functions. The app reads there whether they require keys.").with_example("/srv/app"),
    SettingRow::new("WEBSITE_HOSTNAME", SetBy::Platform, "The app's host name.").with_example("my-app.azurewebsites.net"),
    SettingRow::new("WEBSITE_SITE_NAME", SetBy::Platform, "The app's name, used as the service name in telemetry.").with_example("my-app"),
    SettingRow::new("WEBSITE_AUTH_ENABLED", SetBy::Platform, "True if the platform's sign-in is on; without it `easyauth` rejects every caller.").with_example("True"),
    SettingRow::new("WEBSITE_INSTANCE_ID", SetBy::Platform, "Present on App Service plans; indicates that the app runs in Azure."),
    SettingRow::new("WEBSITE_SKU", SetBy::Platform, "Present on Consumption plans; indicates that the app runs in Azure.").with_example("FlexConsumption"),
    SettingRow::new("LEGION_SERVICE_HOST", SetBy::Platform, "Present on Flex Consumption, which has no instance id; indicates that the app runs in Azure."),
    SettingRow::new("IDENTITY_ENDPOINT", SetBy::Platform, "The token endpoint of the managed identity; indicates that the app has one.").with_example("http://127.0.0.1:8081/msi/token"),
    SettingRow::new("AZURE_FEDERATED_TOKEN_FILE", SetBy::Platform, "The token of a workload identity; with tenant and client id it is the app's own identity.").with_example("/var/run/secrets/azure/tokens/azure-identity-token"),
    SettingRow::new("TURNWHEEL_HALT_AT", SetBy::Tests, "Suspends the process at a fail point, so that a test can kill it there.").with_example("response.after#2"),
    SettingRow::new("TURNWHEEL_RETENTION", SetBy::FutureRelease, "Retention of conversations."),
];
