//! Internals for the integration tests and benchmarks of this repository. They have no stable API.

pub mod agent {
    pub mod compaction {
        pub use turnwheel_conversation::compaction::ContextBudget;
    }
    pub mod content {
        pub use turnwheel_conversation::content::joined_text;
    }
    pub mod entry {
        pub use turnwheel_conversation::entry::{Entry, Output, Source};
    }
    pub mod head {
        pub use turnwheel_conversation::head::Head;
    }
    pub mod path {
        pub use turnwheel_conversation::path::path_to_leaf;
    }
    pub mod projection {
        pub use turnwheel_conversation::projection::{project_messages, to_model_messages};
    }
    pub mod raw {
        pub use turnwheel_json::raw::RawJson;
    }
    pub mod step {
        pub use turnwheel_conversation::step::{FailureKind, Input, ResponseInput, step};
    }
    pub mod transition {
        pub use turnwheel_conversation::transition::{Policy, Transition};
    }
}
pub mod agents {
    pub use turnwheel_agent_files::{
        AgentDefinition, AgentFileContext, Catalog, Execution, McpServers, PromptTemplate,
        SecuritySection, Skill, ToolSet, load_folder,
    };
}
pub mod app {
    pub use crate::start::options::ServiceOptions;
    pub use crate::start::service::RunningService;
    pub use crate::start::start_error::StartError;
    pub use crate::start::supervisor::find_free_port;
}
pub mod artifacts {
    pub use turnwheel_storage::artifacts::{
        ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts, CONTAINER, ContentHeaders,
        MemoryArtifacts,
    };
}
pub mod azure {
    pub mod cosmos {
        pub use turnwheel_azure::cosmos::{CONTAINERS, ContainerShape, EXCLUDED_PATH};
    }
    pub mod credential {
        pub use turnwheel_azure::credential::Credentials;
    }
    pub mod storage {
        pub use turnwheel_azure::storage::{TransportSettings, queue_client};
    }
    pub mod vault {
        pub use turnwheel_azure::vault::VaultSecret;
    }
}
pub mod azurite {
    pub use turnwheel_azurite::{ACCOUNT, Azurite, AzuriteOptions, AzuritePorts, KEY, Tls};
}
pub mod bench {
    pub mod report {
        pub use crate::bench::report::{BenchReport, MeasuredCase};
    }
}
pub mod clock {
    pub use turnwheel_platform::clock::{Clock, ManualClock, SystemClock, Timestamp, parse_iso};
}
pub mod commands {
    pub mod contract {
        pub use turnwheel_record::contract::Owner;
    }
    pub mod delete {
        pub use turnwheel_commands::delete::purge;
    }
    pub mod idempotency {
        pub use turnwheel_record::idempotency::Idempotency;
    }
    pub mod prompt {
        pub use turnwheel_commands::prompt::{
            FirstPromptRequest, Sender, WhenBusy, begin_conversation,
        };
    }
    pub mod waiting_client {
        pub use turnwheel_commands::waiting_client::{TurnRunner, WaitingClients};
    }
    pub mod prompt_queue {
        pub use turnwheel_commands::prompt_queue::{QueueMessageOutcome, accept_queue_message};
    }
}
pub mod fail_points {
    pub use turnwheel_platform::fail_points::{FAIL_POINTS, FailPoints, NoFailPoints};
}
pub mod host {
    pub use turnwheel_devhost::{
        Function, GRACE, HostError, HostKeys, HostOptions, HttpTrigger, IDLE_MAX, Json, JsonReader,
        LEASE, ScriptRoot, TimerStatuses, Trigger, start,
    };
}
pub mod http {
    pub use turnwheel_http::router;
    pub mod api {
        pub use turnwheel_http::api::Api;
    }
    pub mod approval_token {
        pub use turnwheel_http::approval_token::{LinkClaims, SigningKeys};
    }
    pub mod auth {
        pub use turnwheel_http::auth::Access;
    }
    pub mod doctor {
        pub use turnwheel_http::doctor::{Doctor, ServiceChecks};
    }
    pub mod functions {
        pub use turnwheel_http::functions::{
            FunctionFailure, Functions, InvocationMeta, MESSAGE_BINDING, TIMER_BINDING, TimerInfo,
            binding_text, functions_router,
        };
    }
    pub mod openapi {
        pub use turnwheel_http::openapi::{DOCUMENT, DOCUMENT_3_0};
    }
}
pub mod ids {
    pub use turnwheel_platform::ids::{
        ArtifactId, CommitId, ConversationId, ConversationKey, EffectId, EntryId, Ids, PromptId,
        RequestId, SeededIds, SystemIds, TenantId, UserId, WorkerId,
    };
}
pub mod ledger {
    pub mod spending_limits {
        pub use turnwheel_record::ledger::spending_limits::SpendingLimits;
    }
}
pub mod live {
    pub use turnwheel_storage::live::{
        EmbeddedLive, LiveEvent, LiveResponse, ModelIdentity, SharedLive,
    };
}
pub mod model {
    pub mod catalogue {
        pub use turnwheel_model::catalogue::{Catalogue, Tariff, find_tariff};
    }
    pub mod chat {
        pub mod body {
            pub use turnwheel_model::chat::body::build_chat_body;
        }
        pub mod fold {
            pub use turnwheel_model::chat::fold::ChatFold;
        }
    }
    pub mod protocol {
        pub use turnwheel_model::protocol::ProtocolModel;
        pub use turnwheel_model::protocol::parser::ProtocolParser;
    }
    pub mod tokens {
        pub use turnwheel_model::tokens::count_tokens;
    }
    pub mod responses {
        pub use turnwheel_model::responses::{ModelApiClient, ResponsesConfig, SecretText};
        pub mod body {
            pub use turnwheel_model::responses::body::build_request_body;
        }
        pub mod client {
            pub use turnwheel_model::responses::client::ModelApiClient;
        }
        pub mod config {
            pub use turnwheel_model::responses::config::{
                CacheRetention, ResponsesConfig, SecretText,
            };
        }
        pub mod fold {
            pub use turnwheel_model::responses::fold::{FoldedResponse, ResponseFold};
        }
        pub mod names {
            pub use turnwheel_model::responses::names::ToolNames;
        }
        pub mod provider_error {
            pub use turnwheel_model::responses::provider_error::{ProviderError, classify};
        }
        pub mod stream {
            pub use turnwheel_model::responses::stream::SseReader;
        }
    }
}
pub mod payments {
    pub use turnwheel_agent_files::payments::{Payment, PaymentsServer};
}
pub mod queries {
    pub mod event_stream {
        pub use turnwheel_queries::event_stream::{EventReader, StreamEnd};
    }
}
pub mod queue {
    pub use turnwheel_storage::queue::{
        MemoryQueue, NOTIFY, PROMPTS, Queue, QueueError, QueueFaults, QueueMessage, StorageQueue,
        TURNS, poison_queue, redrive, validate_text,
    };
    pub mod output_binding {
        pub use turnwheel_storage::queue::output_binding::OutputBindingQueue;
    }
}
pub mod server {
    pub use turnwheel_platform::server::{MinThroughput, ServerLimits, serve};
}
pub mod services {
    pub use turnwheel_record::services::{ServicePorts, Services};
}
pub mod settings {
    pub use turnwheel_platform::settings::ServiceSettings;
    pub mod azure {
        pub use turnwheel_platform::settings::azure::{AzureIdentity, KeyVaultSecret};
    }
    pub mod budgets {
        pub use turnwheel_platform::settings::budgets::Budgets;
    }
    pub mod links {
        pub use turnwheel_platform::settings::links::Auth;
    }
    pub mod model {
        pub use turnwheel_platform::settings::model::{ModelApi, ModelApis};
    }
    pub mod origins {
        pub use turnwheel_platform::settings::origins::AllowedOrigins;
    }
    pub mod pauses {
        pub use turnwheel_platform::settings::pauses::parse;
    }
    pub mod rate_limits {
        pub use turnwheel_platform::settings::rate_limits::{Rate, RateLimits};
    }
    pub mod table {
        pub use turnwheel_platform::settings::table::{ROWS, ReadBy, SetBy, find_row};
    }
}
pub mod shutdown {
    pub use turnwheel_platform::shutdown::{Shutdown, StopTimes};
}
pub mod store {
    pub use turnwheel_storage::store::{
        ConversationStore, Document, DocumentKind, Partition, SearchQuery, SearchText, Write,
    };
    pub mod embedded {
        pub use turnwheel_storage::store::embedded::{DATABASE_FILE, EmbeddedStore};
    }
    pub mod memory {
        pub use turnwheel_storage::store::memory::{MemoryStore, StoreFaults};
    }
}
pub mod tools {
    pub use turnwheel_tools::{
        ApprovalRequirement, Arguments, CallableTool, TIMEOUT_DEFAULT, ToolContext, ToolDefinition,
        ToolOutcome, sha256_hex,
    };
    pub mod code {
        pub use turnwheel_tools::code::build_code_tool;
    }
    pub mod http {
        pub mod address_rules {
            pub use turnwheel_tools::http::address_rules::AddressRules;
        }
        pub mod client {
            pub use turnwheel_tools::http::client::{HostResolver, HttpClient};
        }
        pub mod scrape {
            pub use turnwheel_tools::http::scrape::scrape_tool;
        }
    }
    pub mod recall {
        pub use turnwheel_tools::recall::recall_tool;
    }
    pub mod validate {
        pub use turnwheel_tools::validate::Checker;
    }
    pub mod workspace {
        pub use turnwheel_tools::workspace::builtins;
    }
}
pub mod turn {
    pub mod delivery {
        pub use turnwheel_turn::delivery::handle;
    }
    pub mod nudge {
        pub use turnwheel_record::nudge::Nudge;
    }
    pub mod sweep {
        pub use turnwheel_turn::sweep::sweep;
    }
}

/// Starts the service in this process.
///
/// # Errors
/// As for the command `serve`.
pub async fn start_service(
    app: crate::App,
    settings: turnwheel_platform::settings::ServiceSettings,
    options: crate::start::options::ServiceOptions,
) -> Result<crate::start::service::RunningService, crate::start::start_error::StartError> {
    Box::pin(app.start(settings, options)).await
}
