//! Search of a user's messages: a scan of the index of search texts, newest first.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::ids::ConversationId;
use crate::store::embedded::rows::from_sql_integer;
use crate::store::embedded::store_error;
use crate::store::search::HitCollector;
use crate::store::validate::DELETED;
use crate::store::{HEAD_ID, SearchHit, SearchQuery, SearchResult, StoreError};

/// Messages that one search compares. Older ones are not found.
pub(super) const MESSAGES_MAX: usize = 200_000;

const SEARCH_SQL: &str = "SELECT created_at, conversation, id, search_text FROM documents
     WHERE tenant = ?1 AND user = ?2 AND conversation <> ?3 AND search_text IS NOT NULL
     ORDER BY created_at DESC, conversation DESC, id DESC";

const STATE_SQL: &str = "SELECT state FROM documents
     WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = ?4";

/// Compares at most `messages_max` messages.
pub(super) fn search(
    connection: &Connection,
    query: &SearchQuery,
    messages_max: usize,
) -> Result<SearchResult, StoreError> {
    search_index(connection, query, messages_max).map_err(store_error)
}

fn search_index(
    connection: &Connection,
    query: &SearchQuery,
    messages_max: usize,
) -> rusqlite::Result<SearchResult> {
    let mut collector = HitCollector::new(query.limit);
    let mut statement = connection.prepare_cached(SEARCH_SQL)?;
    let values = params![query.tenant.as_str(), query.user.as_str(), query.excluded.as_str()];
    let mut rows = statement.query(values)?;
    let mut compared = 0;
    while !collector.is_full() {
        let Some(row) = rows.next()? else { return Ok(collector.into_result(true)) };
        if compared == messages_max {
            break;
        }
        compared += 1;
        let text = row.get_ref(3)?.as_str()?;
        let at = from_sql_integer(row.get(0)?);
        if !text.contains(&query.text) || collector.has_copy(at, text) {
            continue;
        }
        let conversation = ConversationId::new(row.get::<_, String>(1)?);
        if is_listed(connection, query, &conversation)? {
            let (id, text) = (row.get(2)?, text.to_owned());
            collector.add(SearchHit { conversation, id, at, text });
        }
    }
    Ok(collector.into_result(false))
}

/// True if the conversation exists and is not deleted.
fn is_listed(
    connection: &Connection,
    query: &SearchQuery,
    conversation: &ConversationId,
) -> rusqlite::Result<bool> {
    let values =
        params![query.tenant.as_str(), query.user.as_str(), conversation.as_str(), HEAD_ID];
    let mut statement = connection.prepare_cached(STATE_SQL)?;
    let state = statement.query_row(values, |row| row.get::<_, Option<String>>(0)).optional()?;
    Ok(state.is_some_and(|state| state.as_deref() != Some(DELETED)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{TenantId, UserId};
    use crate::store::embedded::rows::tests::query_plan;
    use crate::store::embedded::schema::{self, Durability};

    #[test]
    fn search_reads_only_its_index() {
        let plan = query_plan(SEARCH_SQL);
        assert!(plan.contains("COVERING INDEX documents_search (tenant=? AND user=?)"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }

    #[test]
    fn search_stops_at_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.db");
        let (connection, _) = schema::open_writer(&file, Durability::Process).unwrap();
        connection
            .execute_batch(
                "INSERT INTO documents
                     (tenant, user, conversation, id, kind, version, created_at, state, body, search_text)
                 VALUES ('t', 'ada', 'c', 'head', 'head', 1, 1, 'idle', '{}', NULL),
                     ('t', 'ada', 'c', '1', 'entry', 1, 1, NULL, '{}', 'old tea'),
                     ('t', 'ada', 'c', '2', 'entry', 1, 2, NULL, '{}', 'coffee'),
                     ('t', 'ada', 'c', '3', 'entry', 1, 3, NULL, '{}', 'new tea')",
            )
            .unwrap();
        let query = |limit| SearchQuery {
            tenant: TenantId::new("t"),
            user: UserId::new("ada"),
            text: "tea".to_owned(),
            excluded: ConversationId::new("other"),
            limit,
        };
        let found = |limit, messages_max| {
            let result = search(&connection, &query(limit), messages_max).unwrap();
            let ids: Vec<String> = result.hits.into_iter().map(|hit| hit.id).collect();
            (ids.concat(), result.is_complete)
        };
        assert_eq!(found(3, 3), ("31".to_owned(), true), "all messages were compared");
        assert_eq!(found(3, 2), ("3".to_owned(), false));
        assert_eq!(found(1, 2), ("3".to_owned(), true), "the limit comes first");
    }
}
