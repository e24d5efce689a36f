//! Internals for the integration tests and benchmarks of this repository. They have no stable API.

pub mod agent {
    pub mod compaction {
        pub use crate::agent::compaction::ContextBudget;
    }
    pub mod content {
        pub use crate::agent::content::joined_text;
    }
    pub mod entry {
        pub use crate::agent::entry::{Entry, Output, Source};
    }
    pub mod head {
        pub use crate::agent::head::Head;
    }
    pub mod path {
        pub use crate::agent::path::path_to_leaf;
    }
    pub mod projection {
        pub use crate::agent::projection::{project_messages, to_model_messages};
    }
    pub mod raw {
        pub use crate::agent::raw::RawJson;
    }
    pub mod step {
        pub use crate::agent::step::{FailureKind, Input, ResponseInput, step};
    }
    pub mod transition {
        pub use crate::agent::transition::{Policy, Transition};
    }
}
pub mod agents {
    pub use crate::agents::{
        Agent, AgentFileContext, Catalog, McpServers, PromptTemplate, SecuritySection, Skill,
        ToolSet, load_folder,
    };
}
pub mod app {
    pub use crate::app::{RunningService, ServiceOptions, StartError};
}
pub mod artifacts {
    pub use crate::artifacts::{
        ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts, CONTAINER, ContentHeaders,
        MemoryArtifacts,
    };
}
pub mod azure {
    pub mod cosmos {
        pub use crate::azure::cosmos::{CONTAINERS, ContainerShape, EXCLUDED_PATH};
    }
    pub mod credential {
        pub use crate::azure::credential::Credentials;
    }
    pub mod storage {
        pub use crate::azure::storage::{TransportSettings, queue_client};
    }
    pub mod vault {
        pub use crate::azure::vault::VaultSecret;
    }
}
pub mod azurite {
    pub use crate::azurite::{ACCOUNT, Azurite, AzuriteOptions, KEY, Ports, Tls};
}
pub mod bench {
    pub mod report {
        pub use crate::bench::report::{MeasuredCase, Report};
    }
}
pub mod clock {
    pub use crate::clock::{Clock, ManualClock, SystemClock, Timestamp, parse_iso};
}
pub mod commands {
    pub mod contract {
        pub use crate::commands::contract::Owner;
    }
    pub mod delete {
        pub use crate::commands::delete::purge;
    }
    pub mod idempotency {
        pub use crate::commands::idempotency::Idempotency;
    }
    pub mod prompt {
        pub use crate::commands::prompt::{
            FirstPromptRequest, Sender, WhenBusy, begin_conversation,
        };
    }
    pub mod prompt_queue {
        pub use crate::commands::prompt_queue::{QueueMessageOutcome, accept_queue_message};
    }
}
pub mod fail_points {
    pub use crate::fail_points::{FAIL_POINTS, FailPoints, NoFailPoints};
}
pub mod host {
    pub use crate::host::{
        Function, GRACE, HostError, HostKeys, HostOptions, HttpTrigger, IDLE_MAX, Json, JsonReader,
        LEASE, ScriptRoot, TimerStatuses, Trigger, start,
    };
}
pub mod http {
    pub use crate::http::router;
    pub mod api {
        pub use crate::http::api::Api;
    }
    pub mod approval_token {
        pub use crate::http::approval_token::{LinkClaims, SigningKeys};
    }
    pub mod auth {
        pub use crate::http::auth::Access;
    }
    pub mod functions {
        pub use crate::http::functions::{
            FunctionFailure, Functions, InvocationMeta, MESSAGE_BINDING, TIMER_BINDING, TimerInfo,
            binding_text, functions_router,
        };
    }
    pub mod openapi {
        pub use crate::http::openapi::{DOCUMENT, DOCUMENT_3_0};
    }
}
pub mod ids {
    pub use crate::ids::{
        ArtifactId, CommitId, ConversationId, ConversationKey, EffectId, EntryId, Ids, PromptId,
        RequestId, SeededIds, SystemIds, TenantId, UserId, WorkerId,
    };
}
pub mod ledger {
    pub mod spending_limits {
        pub use crate::ledger::spending_limits::SpendingLimits;
    }
}
pub mod live {
    pub use crate::live::{EmbeddedLive, LiveEvent, LiveResponse, ModelIdentity, SharedLive};
}
pub mod model {
    pub mod catalogue {
        pub use crate::model::catalogue::{Catalogue, Tariff, find_tariff};
    }
    pub mod chat {
        pub mod body {
            pub use crate::model::chat::body::build_chat_body;
        }
        pub mod fold {
            pub use crate::model::chat::fold::ChatFold;
        }
    }
    pub mod protocol {
        pub use crate::model::protocol::ProtocolModel;
        pub use crate::model::protocol::parser::ProtocolParser;
    }
    pub mod tokens {
        pub use crate::model::tokens::count_tokens;
    }
    pub mod responses {
        pub use crate::model::responses::{ModelApiClient, ResponsesConfig, Secret};
        pub mod body {
            pub use crate::model::responses::body::build_request_body;
        }
        pub mod client {
            pub use crate::model::responses::client::ModelApiClient;
        }
        pub mod config {
            pub use crate::model::responses::config::{CacheRetention, ResponsesConfig, Secret};
        }
        pub mod fold {
            pub use crate::model::responses::fold::{FoldedResponse, ResponseFold};
        }
        pub mod names {
            pub use crate::model::responses::names::ToolNames;
        }
        pub mod provider_error {
            pub use crate::model::responses::provider_error::{ProviderError, classify};
        }
        pub mod stream {
            pub use crate::model::responses::stream::SseReader;
        }
    }
}
pub mod payments {
    pub use crate::payments::{Payment, PaymentsServer};
}
pub mod queries {
    pub mod event_stream {
        pub use crate::queries::event_stream::{EventReader, StreamEnd};
    }
}
pub mod queue {
    pub use crate::queue::{
        MemoryQueue, NOTIFY, PROMPTS, Queue, QueueError, QueueFaults, QueueMessage, StorageQueue,
        TURNS, poison_queue, validate_text,
    };
    pub mod output_binding {
        pub use crate::queue::output_binding::OutputBindingQueue;
    }
}
pub mod server {
    pub use crate::server::{MinThroughput, ServerLimits, serve};
}
pub mod services {
    pub use crate::services::{ServicePorts, Services};
}
pub mod settings {
    pub use crate::settings::Settings;
    pub mod azure {
        pub use crate::settings::azure::{Identity, KeyVaultSecret};
    }
    pub mod budgets {
        pub use crate::settings::budgets::Budgets;
    }
    pub mod links {
        pub use crate::settings::links::Auth;
    }
    pub mod model {
        pub use crate::settings::model::{ModelApi, ModelApis};
    }
    pub mod origins {
        pub use crate::settings::origins::AllowedOrigins;
    }
    pub mod pauses {
        pub use crate::settings::pauses::parse;
    }
    pub mod rate_limits {
        pub use crate::settings::rate_limits::{Rate, RateLimits};
    }
    pub mod table {
        pub use crate::settings::table::{ROWS, ReadBy, SetBy, find_row};
    }
}
pub mod shutdown {
    pub use crate::shutdown::{Shutdown, StopTimes};
}
pub mod store {
    pub use crate::store::{
        ConversationStore, Document, DocumentKind, Partition, SearchQuery, SearchText, Write,
    };
    pub mod embedded {
        pub use crate::store::embedded::{DATABASE_FILE, EmbeddedStore};
    }
    pub mod memory {
        pub use crate::store::memory::{MemoryStore, StoreFaults};
    }
}
pub mod tools {
    pub use crate::tools::{
        ApprovalRequirement, Arguments, CallableTool, TIMEOUT_DEFAULT, ToolContext, ToolDefinition,
        ToolOutcome, sha256_hex,
    };
    pub mod code {
        pub use crate::tools::code::build_code_tool;
    }
    pub mod http {
        pub mod address_rules {
            pub use crate::tools::http::address_rules::AddressRules;
        }
        pub mod client {
            pub use crate::tools::http::client::{HostResolver, HttpClient};
        }
        pub mod scrape {
            pub use crate::tools::http::scrape::scrape_tool;
        }
    }
    pub mod recall {
        pub use crate::tools::recall::recall_tool;
    }
    pub mod validate {
        pub use crate::tools::validate::Checker;
    }
    pub mod workspace {
        pub use crate::tools::workspace::builtins;
    }
}
pub mod turn {
    pub mod delivery {
        pub use crate::turn::delivery::handle;
    }
    pub mod nudge {
        pub use crate::turn::nudge::Nudge;
    }
    pub mod sweep {
        pub use crate::turn::sweep::sweep;
    }
}

/// Starts the service in this process.
///
/// # Errors
/// As for the command `serve`.
pub async fn start_service(
    app: crate::App,
    settings: crate::settings::Settings,
    options: crate::app::ServiceOptions,
) -> Result<crate::app::RunningService, crate::app::StartError> {
    Box::pin(app.start(settings, options)).await
}
