//! All Cosmos queries: text, parameters and scope.
//!
//! The WHERE clause repeats the key of the scope: Cosmos routes a prefix of a hierarchical key by
//! it.

use azure_data_cosmos::{CosmosError, FeedScope, PartitionKey, Query};
use serde_json::{Value, json};

use super::envelope::{owner, owner_of};
use crate::store::validate::DELETED;
use crate::store::{DocumentKind, HeadQuery, Partition, SearchQuery, Selection};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{TenantId, UserId};

pub(super) struct CosmosQuery {
    columns: &'static str,
    conditions: Vec<String>,
    order: Option<&'static str>,
    parameters: Vec<(&'static str, Value)>,
    pub(super) scope: FeedScope,
}

impl CosmosQuery {
    fn new(columns: &'static str, scope: FeedScope) -> Self {
        Self { columns, conditions: Vec::new(), order: None, parameters: Vec::new(), scope }
    }

    /// Adds a condition, which ends with the parameter `name`, and the value of the parameter.
    fn with_condition(mut self, condition: &str, name: &'static str, value: Value) -> Self {
        self.conditions.push(format!("{condition} {name}"));
        self.parameters.push((name, value));
        self
    }

    fn ordered_by(self, by: &'static str) -> Self {
        Self { order: Some(by), ..self }
    }

    fn to_sql(&self) -> String {
        let Self { columns, conditions, order, .. } = self;
        let conditions = conditions.join(" AND ");
        let order = order.map_or_else(String::new, |by| format!(" ORDER BY {by}"));
        format!("SELECT {columns} FROM c WHERE {conditions}{order}")
    }

    pub(super) fn to_sdk_query(&self) -> Result<Query, CosmosError> {
        let query = Query::from(self.to_sql());
        self.parameters
            .iter()
            .try_fold(query, |query, (name, value)| query.with_parameter(*name, value))
    }
}

pub(super) fn partition_key(partition: &Partition) -> PartitionKey {
    let [tenant, _, conversation] = partition.parts();
    match owner(partition) {
        Some(owner) => PartitionKey::from((owner, conversation.to_owned())),
        None => PartitionKey::from(tenant.to_owned()),
    }
}

/// Selects all documents of a partition.
fn partition_query(partition: &Partition) -> CosmosQuery {
    let [tenant, _, conversation] = partition.parts();
    let query = CosmosQuery::new("*", FeedScope::partition(partition_key(partition)));
    match owner(partition) {
        Some(owner) => query.with_condition("c.owner =", "@owner", json!(owner)).with_condition(
            "c.conversationId =",
            "@conversation",
            json!(conversation),
        ),
        None => query.with_condition("c.tenant =", "@tenant", json!(tenant)),
    }
}

/// Selects documents of all conversations of a user.
fn owner_query(columns: &'static str, tenant: &TenantId, user: &UserId) -> CosmosQuery {
    let owner = owner_of(tenant.as_str(), user.as_str());
    let scope = FeedScope::partition(PartitionKey::from(owner.clone()));
    CosmosQuery::new(columns, scope).with_condition("c.owner =", "@owner", json!(owner))
}

pub(super) fn select(partition: &Partition, selection: &Selection) -> CosmosQuery {
    let Selection { kind, from_id, to_id, to_last_entry, limit: _ } = selection;
    let query = partition_query(partition);
    if *kind == DocumentKind::Entry {
        // Each document with entries has the member; every text is at least the empty one.
        let from = json!(from_id.as_deref().unwrap_or_default());
        let mut query = query.with_condition("c.lastEntry >=", "@from", from);
        if let Some(to) = to_id {
            let last = to_last_entry.as_ref().unwrap_or(to);
            query = query.with_condition("c.lastEntry <=", "@last", json!(last));
            query.conditions.push("(c.lastEntry <= @to OR c.kind = @events)".to_owned());
            query.parameters.push(("@to", json!(to)));
            query.parameters.push(("@events", json!(DocumentKind::Events.into_str())));
        }
        return query.ordered_by("c.lastEntry");
    }
    let mut query = query.with_condition("c.kind =", "@kind", json!(kind.into_str()));
    if let Some(from) = from_id {
        query = query.with_condition("c.id >=", "@from", json!(from));
    }
    if let Some(to) = to_id {
        query = query.with_condition("c.id <=", "@to", json!(to));
    }
    query.ordered_by("c.id")
}

/// Selects the heads of a user, or of a tenant, that were created at `newest` or before, newest first.
/// Those of a tenant are in every physical partition. Not resumed by the SDK's continuation: with
/// several physical partitions it returns heads again.
pub(super) fn heads(query: &HeadQuery, newest: u64) -> CosmosQuery {
    let HeadQuery { tenant, user, state, limit: _, continuation: _ } = query;
    let selected = match user {
        Some(user) => owner_query("*", tenant, user),
        None => CosmosQuery::new("*", FeedScope::full_container()).with_condition(
            "c.tenant =",
            "@tenant",
            json!(tenant),
        ),
    };
    let selected =
        selected.with_condition("c.kind =", "@kind", json!(DocumentKind::Head.into_str()));
    let selected = match state {
        Some(state) => selected.with_condition("c.state =", "@state", json!(state)),
        None => selected.with_condition("c.state !=", "@deleted", json!(DELETED)),
    };
    let selected = selected.with_condition("c.createdAt <=", "@newest", json!(newest));
    selected.ordered_by("c.createdAt DESC")
}

/// Selects entries of a user by their search text, newest first.
pub(super) fn search(query: &SearchQuery) -> CosmosQuery {
    let SearchQuery { tenant, user, except, lower, limit: _ } = query;
    let columns = "c.conversationId, c.createdAt, c.excerpt";
    let mut selected = owner_query(columns, tenant, user).with_condition(
        "c.conversationId !=",
        "@except",
        json!(except),
    );
    selected.conditions.push("CONTAINS(c.searchText, @text)".to_owned());
    selected.parameters.push(("@text", json!(lower)));
    selected.ordered_by("c.createdAt DESC")
}

/// The query of the recovery sweep: the only one over all physical partitions, one at a time and
/// in no order.
pub(super) fn due(at: Timestamp, scope: FeedScope) -> CosmosQuery {
    let columns = "c.id, c.kind, c.due, c.tenant, c.user, c.conversationId, \
        (IS_OBJECT(c.body.claim) OR IS_DEFINED(c.bodyText)) AS isLeased";
    CosmosQuery::new(columns, scope).with_condition("c.due <=", "@at", json!(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_azure::cosmos::{CONVERSATIONS, ContainerShape, SCOPES};
    use turnwheel_platform::ids::{ConversationId, ConversationKey};

    fn paths(query: &CosmosQuery) -> Vec<String> {
        let text = query.to_sql();
        let conditions = text.split_once(" WHERE ").unwrap().1;
        let path = regex::Regex::new(r"\bc\.(\w+)").unwrap();
        path.captures_iter(conditions).map(|found| format!("/{}/?", &found[1])).collect()
    }

    fn assert_indexed(query: &CosmosQuery, shape: &ContainerShape) {
        let paths = paths(query);
        assert!(!paths.is_empty());
        for path in paths {
            let is_indexed = shape.indexed_paths.contains(&path.as_str());
            assert!(is_indexed, "{path} of `{}` is not in {}", query.to_sql(), shape.name);
        }
    }

    fn selection(kind: DocumentKind) -> Selection {
        let (from_id, to_id) = (Some("a".to_owned()), Some("b".to_owned()));
        Selection { from_id, to_id, ..Selection::all(kind) }
    }

    #[test]
    fn filtered_and_ordered_paths_are_indexed() {
        let tenant = TenantId::new("t");
        let scope = Partition::Scope(tenant.clone());
        let conversation = Partition::Conversation(ConversationKey {
            tenant: tenant.clone(),
            user: UserId::new("u"),
            conversation_id: ConversationId::new("c"),
        });
        for kind in [DocumentKind::Entry, DocumentKind::Events] {
            assert_indexed(&select(&conversation, &selection(kind)), &CONVERSATIONS);
        }
        assert_indexed(&select(&scope, &selection(DocumentKind::Scope)), &SCOPES);
        let user = Partition::User { tenant: tenant.clone(), user: UserId::new("u") };
        assert_indexed(&select(&user, &selection(DocumentKind::Scope)), &CONVERSATIONS);
        assert_indexed(&due(Timestamp(1), FeedScope::full_container()), &CONVERSATIONS);
        assert_indexed(&due(Timestamp(1), FeedScope::full_container()), &SCOPES);
        let users = [None, Some(UserId::new("u"))];
        for (user, state) in users.into_iter().zip([Some("idle".to_owned()), None]) {
            let query =
                HeadQuery { tenant: tenant.clone(), user, state, limit: 1, continuation: None };
            assert_indexed(&heads(&query, 1), &CONVERSATIONS);
        }
        let key = ConversationKey {
            tenant,
            user: UserId::new("u"),
            conversation_id: ConversationId::new("c"),
        };
        assert_indexed(&search(&SearchQuery::new(&key, "text", 3)), &CONVERSATIONS);
    }

    #[test]
    fn queries_need_no_composite_index() {
        let at = Partition::Scope(TenantId::new("t"));
        let text = select(&at, &selection(DocumentKind::Scope)).to_sql();
        assert_eq!(
            text,
            "SELECT * FROM c WHERE c.tenant = @tenant AND c.kind = @kind AND c.id >= @from AND c.id <= @to ORDER BY c.id"
        );
        let query = HeadQuery {
            tenant: TenantId::new("t"),
            user: Some(UserId::new("u")),
            state: None,
            limit: 1,
            continuation: None,
        };
        assert_eq!(
            heads(&query, 1).to_sql(),
            "SELECT * FROM c WHERE c.owner = @owner AND c.kind = @kind AND c.state != @deleted AND c.createdAt <= @newest ORDER BY c.createdAt DESC"
        );
        assert!(
            !due(Timestamp(1), FeedScope::full_container()).to_sql().contains("ORDER"),
            "the sweep needs no order"
        );
    }
}
