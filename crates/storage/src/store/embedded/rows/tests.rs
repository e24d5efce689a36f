//! Query plans of the statements.

use super::*;
use crate::store::embedded::schema::{self, Durability};
use turnwheel_platform::ids::{TenantId, UserId};

fn query_plan(sql: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (connection, _) =
        schema::open_writer(&folder.path().join("a.db"), Durability::Process).unwrap();
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut rows = statement.raw_query();
    let mut steps = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        steps.push(row.get::<_, String>(3).unwrap());
    }
    steps.join("; ")
}

#[test]
fn list_queries_use_indexes_without_sorting() {
    let by_kind = |kind| select_sql(&Selection::all(kind));
    let heads = |user: Option<&str>, state: Option<&str>| {
        heads_sql(&HeadQuery {
            tenant: TenantId::new("t"),
            user: user.map(UserId::new),
            state: state.map(ToOwned::to_owned),
            limit: 1,
            continuation: None,
        })
    };
    for (sql, index, bound) in [
        (by_kind(DocumentKind::Inbox), "documents_rare", "kind=? AND id>?)"),
        (by_kind(DocumentKind::Receipt), "documents_rare", "kind=? AND id>?)"),
        (select_sql(&Selection::entries(1, 2)), "documents_with_entries", "<expr>>? AND <expr><?)"),
        (by_kind(DocumentKind::Events), "autoindex", "conversation=? AND id>?)"),
        (DUE_SQL.to_owned(), "COVERING INDEX documents_due", "due<?)"),
        (heads(None, None), "heads_of_tenant", "<(?,?,?))"),
        (heads(Some("ada"), Some("idle")), "heads_of_user", "user=? AND (created_at,"),
    ] {
        let plan = query_plan(&sql);
        assert!(plan.contains(index) && plan.contains(bound), "{sql}: {plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
}
