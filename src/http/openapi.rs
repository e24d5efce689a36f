//! The OpenAPI 3.1 description, made from the routes themselves; and the shapes that other layers do not describe.

use axum::response::{IntoResponse, Response};
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::agent::settings::Settings;
use crate::http::health::AgentView;
use crate::http::{
    Shared, approvals, artifacts, compact, conversations, events, health, inbox, links, prompts,
    schedules, stop, usage, why,
};
use crate::turn::views::ArtifactView;
use crate::turn::views::approvals::ApprovalView;
use crate::turn::views::conversation::ConversationView;
use crate::turn::views::inbox::InputView;
use crate::turn::views::schedules::ScheduleView;

#[derive(OpenApi)]
#[openapi(info(
    title = "Turnwheel",
    description = "Durable conversations with agents. Every POST and PATCH takes an Idempotency-Key; errors are application/problem+json.",
    license(name = "MIT"),
))]
struct Description;

/// Every route with its description; all are under `/api`.
pub(crate) fn described() -> OpenApiRouter<Shared> {
    let api = OpenApiRouter::new()
        .routes(routes!(conversations::create, conversations::list))
        .routes(routes!(conversations::read, conversations::change, conversations::delete))
        .routes(routes!(why::read))
        .routes(routes!(why::list))
        .routes(routes!(conversations::list_messages, inbox::add_message))
        .routes(routes!(conversations::list_entries))
        .routes(routes!(compact::compact))
        .routes(routes!(prompts::begin))
        .routes(routes!(prompts::create, prompts::list))
        .routes(routes!(prompts::read))
        .routes(routes!(stop::abort))
        .routes(routes!(stop::go_on_from_here))
        .routes(routes!(prompts::receipt))
        .routes(routes!(inbox::list, inbox::clear_all))
        .routes(routes!(inbox::read, inbox::change, inbox::clear))
        .routes(routes!(events::stream))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::settle))
        .routes(routes!(links::look, links::settle))
        .routes(routes!(artifacts::list, artifacts::add))
        .routes(routes!(artifacts::read))
        .routes(routes!(schedules::create, schedules::list))
        .routes(routes!(schedules::read, schedules::cancel))
        .routes(routes!(usage::read))
        .routes(routes!(health::agents))
        .routes(routes!(health::health))
        .routes(routes!(document));
    OpenApiRouter::with_openapi(Description::openapi()).nest("/api", api)
}

/// This description.
#[utoipa::path(
    get, path = "/openapi.json", tag = "service",
    responses((status = 200, description = "OpenAPI 3.1"))
)]
async fn document() -> Response {
    static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let (_, api) = described().split_for_parts();
        api.to_json().unwrap_or_default()
    });
    ([(http::header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

macro_rules! described_only {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, ToSchema)]
        #[schema(rename_all = "camelCase")]
        #[expect(dead_code, reason = "only its description is used: the value itself is made elsewhere")]
        pub(crate) struct $name { $($(#[$attribute])* $field: $kind,)* }
    )*};
}

described_only! {
    /// RFC 9457.
    Problem {
        /// `urn:turnwheel:problem:<name>`.
        #[schema(rename = "type")]
        kind: String,
        title: String,
        status: u16,
        detail: String,
        instance: String,
        trace_id: String,
        errors: Option<Vec<ProblemFault>>,
    }
    ProblemFault {
        /// JSON pointer into the body, or `?name` for a query parameter.
        pointer: String,
        detail: String,
    }
    Conversations { items: Vec<ConversationView>, continuation: Option<String>, }
    Prompts { items: Vec<Prompt>, continuation: Option<String>, }
    Inputs { items: Vec<InputView>, continuation: Option<String>, }
    Approvals { items: Vec<ApprovalView>, continuation: Option<String>, }
    Artifacts { items: Vec<ArtifactView>, continuation: Option<String>, }
    Schedules { items: Vec<ScheduleView>, continuation: Option<String>, }
    Agents { items: Vec<AgentView>, }
    Objects { items: Vec<std::collections::HashMap<String, serde_json::Value>>, continuation: Option<String>, }
    /// One input, many outputs.
    Prompt {
        id: String,
        user_id: String,
        model: String,
        visible: bool,
        /// `running`, `waiting_for_approval`, `completed`, `failed` or `aborted`.
        state: String,
        /// `end`, `max_rounds`, `budget`, `aborted` or `error`.
        stop_reason: Option<String>,
        /// Text, or blocks.
        input: Option<serde_json::Value>,
        /// In order: `text`, `tool`, `file`, `widget`, and kinds that later versions bring.
        output: Vec<serde_json::Value>,
        usage: serde_json::Value,
        /// The last answer as JSON, when the agent has a response schema.
        result: Option<serde_json::Value>,
        error: Option<serde_json::Value>,
        /// While a failed call of the model waits to be made once more: `attempt`, and `at`, the time of it.
        retry: Option<serde_json::Value>,
    }
    /// RFC 7396: what is absent stays, `null` removes.
    ConversationPatch {
        settings: Option<Settings>,
        metadata: Option<std::collections::HashMap<String, Option<String>>>,
        name: Option<String>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_openapi_3_1_and_has_every_route() {
        let (_, api) = described().split_for_parts();
        let json: serde_json::Value = serde_json::from_str(&api.to_json().unwrap()).unwrap();
        assert_eq!(json["openapi"], "3.1.0");
        let paths: Vec<&String> = json["paths"].as_object().unwrap().keys().collect();
        assert_eq!(paths.len(), 27, "{paths:?}");
        assert!(json["paths"]["/api/conversations/{id}"]["patch"].is_object());
        // The wire's names, not Rust's.
        assert!(
            json["components"]["schemas"]["ApprovalView"]["properties"]["toolCallId"].is_object()
        );
        assert!(json["components"]["schemas"]["Prompt"]["properties"]["stopReason"].is_object());
        assert!(json["components"]["schemas"]["Settings"]["properties"]["loop"].is_object());
    }
}
