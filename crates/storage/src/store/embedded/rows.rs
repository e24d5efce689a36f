//! Documents as rows, and all SQL statements on them.

use std::ops::Range;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::store::cursor::{self, DueCursor, HeadCursor, PAGE_ITEMS_MAX};
use crate::store::embedded::store_error;
use crate::store::{
    Document, DocumentKind, DueItem, ETag, HEAD_ID, HeadQuery, Partition, ResultPage, SearchHit,
    SearchHits, SearchQuery, SearchText, Selection, StoreError, StoredDocument, Write, inbox_count,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationId;

/// Reasons why a batch was not applied.
pub(super) enum ApplyError {
    Conflict,
    Sql(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for ApplyError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for ApplyError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict => Self::Conflict,
            error @ (StoreError::TooLarge(_)
            | StoreError::Invalid(_)
            | StoreError::Unavailable(_)
            | StoreError::Corrupt(_)) => Self::Store(error),
        }
    }
}

/// Applies a batch. On an error the writes before it remain: the caller rolls back to its
/// savepoint.
pub(super) fn apply(
    connection: &Connection,
    partition: &Partition,
    writes: &[Write],
    versions: &mut i64,
) -> Result<Vec<ETag>, ApplyError> {
    writes.iter().map(|write| apply_one(connection, partition, write, versions)).collect()
}

fn apply_one(
    connection: &Connection,
    partition: &Partition,
    write: &Write,
    versions: &mut i64,
) -> Result<ETag, ApplyError> {
    *versions += 1;
    let (changed, etag) = match write {
        Write::Create(document) => {
            (create(connection, partition, document, *versions)?, version_etag(*versions))
        }
        Write::Replace(document, expected) => {
            let expected = expected_version(expected.as_ref())?;
            let changed = replace(connection, partition, document, *versions, expected)?;
            (changed, version_etag(*versions))
        }
        Write::Delete(id, expected) => {
            let expected = expected_version(expected.as_ref())?;
            (delete(connection, partition, id, expected)?, ETag(String::new()))
        }
        Write::CountInboxChange { due, room } => {
            let changed =
                count_inbox_change(connection, partition, *due, room.as_ref(), *versions)?;
            (changed, version_etag(*versions))
        }
    };
    if changed == 1 { Ok(etag) } else { Err(ApplyError::Conflict) }
}

fn create(
    connection: &Connection,
    partition: &Partition,
    document: &Document,
    version: i64,
) -> rusqlite::Result<usize> {
    let [tenant, user, conversation] = partition.parts();
    let Document { id, kind, body, due, created_at, state, ttl, search, inbox_count, last_entry } =
        document;
    connection
        .prepare_cached(
            "INSERT INTO documents
                 (tenant, user, conversation, id, kind, version, due, created_at, state, body, ttl,
                  search_text, excerpt, inbox_count, last_entry)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            tenant,
            user,
            conversation,
            id,
            kind.into_str(),
            version,
            due.map(to_sql_integer),
            created_at.map(to_sql_integer),
            state,
            body.text(),
            ttl,
            search.as_ref().map(|it| &it.lower),
            search.as_ref().map(|it| &it.excerpt),
            inbox_count,
            last_entry
        ])
}

fn replace(
    connection: &Connection,
    partition: &Partition,
    document: &Document,
    version: i64,
    expected: Option<i64>,
) -> rusqlite::Result<usize> {
    let [tenant, user, conversation] = partition.parts();
    let Document { id, kind, body, due, created_at, state, ttl, search, inbox_count, last_entry } =
        document;
    connection
        .prepare_cached(
            "UPDATE documents
             SET kind = ?5, version = ?6, due = ?7, created_at = ?8, state = ?9, body = ?10, ttl = ?11,
                 search_text = ?13, excerpt = ?14, inbox_count = ?15, last_entry = ?16
             WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = ?4
                 AND version = ifnull(?12, version)",
        )?
        .execute(params![
            tenant,
            user,
            conversation,
            id,
            kind.into_str(),
            version,
            due.map(to_sql_integer),
            created_at.map(to_sql_integer),
            state,
            body.text(),
            ttl,
            expected,
            search.as_ref().map(|it| &it.lower),
            search.as_ref().map(|it| &it.excerpt),
            inbox_count,
            last_entry
        ])
}

fn count_inbox_change(
    connection: &Connection,
    partition: &Partition,
    due: Option<Timestamp>,
    room: Option<&Range<u32>>,
    version: i64,
) -> Result<usize, ApplyError> {
    let Some(mut head) = read(connection, partition, HEAD_ID)? else { return Ok(0) };
    inbox_count::count_change(&mut head.document, due, room)?;
    let [tenant, user, conversation] = partition.parts();
    let changed = connection
        .prepare_cached(
            "UPDATE documents SET version = ?4, due = ?5, inbox_count = ?6
             WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = 'head'",
        )?
        .execute(params![
            tenant,
            user,
            conversation,
            version,
            head.document.due.map(to_sql_integer),
            head.document.inbox_count
        ])?;
    Ok(changed)
}

fn delete(
    connection: &Connection,
    partition: &Partition,
    id: &str,
    expected: Option<i64>,
) -> rusqlite::Result<usize> {
    let [tenant, user, conversation] = partition.parts();
    connection
        .prepare_cached(
            "DELETE FROM documents
             WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = ?4
                 AND version = ifnull(?5, version)",
        )?
        .execute(params![tenant, user, conversation, id, expected])
}

const COLUMNS: &str = "tenant, user, conversation, id, kind, version, due, created_at, state, body, ttl, search_text, excerpt, inbox_count, last_entry";

pub(super) fn read(
    connection: &Connection,
    partition: &Partition,
    id: &str,
) -> Result<Option<StoredDocument>, StoreError> {
    let [tenant, user, conversation] = partition.parts();
    let sql = format!(
        "SELECT {COLUMNS} FROM documents
         WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = ?4"
    );
    connection
        .prepare_cached(&sql)
        .and_then(|mut statement| {
            statement.query_row(params![tenant, user, conversation, id], read_row).optional()
        })
        .map_err(store_error)?
        .map(|raw| raw.into_stored().map(|(_, stored)| stored))
        .transpose()
}

/// Builds the query with the kind as a literal: the planner ignores bound values, and needs the
/// kind to use a partial index. The text contains no untrusted input.
fn select_sql(selection: &Selection) -> String {
    // SQLite uses a partial index only if the query repeats its condition.
    let rare = match selection.kind {
        DocumentKind::Entry | DocumentKind::Events | DocumentKind::Head | DocumentKind::Scope => "",
        DocumentKind::Inbox
        | DocumentKind::Receipt
        | DocumentKind::Notification
        | DocumentKind::Live
        | DocumentKind::Watch => {
            "AND kind <> 'entry' AND kind <> 'events' AND kind <> 'head' AND kind <> 'scope'"
        }
    };
    let is_of_entries = selection.kind == DocumentKind::Entry;
    let (key, of_kind) = if is_of_entries {
        ("ifnull(last_entry, id)", "(kind = 'entry' OR last_entry IS NOT NULL)".to_owned())
    } else {
        ("id", format!("kind = '{}'", selection.kind.into_str()))
    };
    let upper = match (&selection.to_id, is_of_entries) {
        (None, _) => "AND ?5 IS NULL AND ?7 IS NULL".to_owned(),
        (Some(_), false) => format!("AND {key} <= ?5 AND ?7 IS NULL"),
        (Some(_), true) => {
            format!("AND {key} <= ifnull(?7, ?5) AND (id <= ?5 OR last_entry IS NOT NULL)")
        }
    };
    format!(
        "SELECT {COLUMNS} FROM documents
         WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND {of_kind} {rare}
             AND {key} >= ?4 {upper}
         ORDER BY {key} LIMIT ?6"
    )
}

pub(super) fn select(
    connection: &Connection,
    partition: &Partition,
    selection: &Selection,
) -> Result<Vec<StoredDocument>, StoreError> {
    let [tenant, user, conversation] = partition.parts();
    let Selection { kind: _, from_id, to_id, to_last_entry, limit } = selection;
    let from_id = from_id.as_deref().unwrap_or_default();
    let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
    let values = params![tenant, user, conversation, from_id, to_id, limit, to_last_entry];
    let rows = query_rows(connection, &select_sql(selection), values).map_err(store_error)?;
    rows.into_iter().map(|raw| raw.into_stored().map(|(_, stored)| stored)).collect()
}

const DUE_SQL: &str = "SELECT tenant, user, conversation, id, kind, due FROM documents
     WHERE due <= ?1 AND (due, tenant, user, conversation, id) > (?2, ?3, ?4, ?5, ?6)
     ORDER BY due, tenant, user, conversation, id LIMIT ?7";

pub(super) fn list_due(
    connection: &Connection,
    at: Timestamp,
    limit: usize,
    after: &DueCursor,
) -> Result<ResultPage<DueItem>, StoreError> {
    let limit = limit.clamp(1, PAGE_ITEMS_MAX);
    let DueCursor { due, tenant, user, conversation, id } = after;
    let due = to_sql_integer(Timestamp(*due));
    let values =
        params![to_sql_integer(at), due, tenant, user, conversation, id, limit_with_next(limit)];
    let mut items = connection
        .prepare_cached(DUE_SQL)
        .and_then(|mut statement| {
            statement.query_map(values, read_due_item)?.collect::<Result<Vec<_>, _>>()
        })
        .map_err(store_error)?
        .into_iter()
        .collect::<Result<Vec<DueItem>, StoreError>>()?;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let continuation = items.last().filter(|_| has_more).map(|last| {
        let [tenant, user, conversation] = last.partition.parts().map(ToOwned::to_owned);
        let id = last.id.clone();
        cursor::encode_due_cursor(
            at,
            &DueCursor { due: last.due.0, tenant, user, conversation, id },
        )
    });
    Ok(ResultPage { items, continuation })
}

fn heads_sql(query: &HeadQuery) -> String {
    let of_user = if query.user.is_some() { "AND user = ?2" } else { "AND ?2 IS NULL" };
    let in_state = if query.state.is_some() { "AND state = ?3" } else { "AND ?3 IS NULL" };
    format!(
        "SELECT {COLUMNS} FROM documents
         WHERE tenant = ?1 {of_user} AND kind = 'head' AND state <> 'deleted' {in_state}
             AND (created_at, conversation, user) < (?4, ?5, ?6)
         ORDER BY created_at DESC, conversation DESC, user DESC LIMIT ?7"
    )
}

pub(super) fn list_heads(
    connection: &Connection,
    query: &HeadQuery,
    after: &HeadCursor,
) -> Result<ResultPage<StoredDocument>, StoreError> {
    let limit = query.limit.clamp(1, PAGE_ITEMS_MAX);
    let user = query.user.as_ref().map(turnwheel_platform::ids::UserId::as_str);
    let created_at = to_sql_integer(Timestamp(after.created_at));
    let values = params![
        query.tenant.as_str(),
        user,
        query.state,
        created_at,
        after.conversation,
        after.user,
        limit_with_next(limit)
    ];
    let mut rows = query_rows(connection, &heads_sql(query), values).map_err(store_error)?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let found = rows.into_iter().map(RawRow::into_stored).collect::<Result<Vec<_>, _>>()?;
    let last = found.last().filter(|_| has_more);
    let continuation = last.map(|(partition, head)| {
        let [_, user, conversation] = partition.parts().map(ToOwned::to_owned);
        let created_at = head.document.created_at.unwrap_or_default().0;
        cursor::encode_head_cursor(query, &HeadCursor { created_at, conversation, user })
    });
    Ok(ResultPage { items: found.into_iter().map(|(_, head)| head).collect(), continuation })
}

const SEARCH_SQL: &str = "SELECT conversation, created_at, excerpt FROM documents
     WHERE tenant = ?1 AND user = ?2 AND search_text IS NOT NULL
         AND conversation <> ?3 AND instr(search_text, ?4) > 0
     ORDER BY created_at DESC, conversation DESC, id DESC LIMIT ?5";

pub(super) fn search(
    connection: &Connection,
    query: &SearchQuery,
) -> Result<SearchHits, StoreError> {
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let (tenant, user) = (query.tenant.as_str(), query.user.as_str());
    let values = params![tenant, user, query.except.as_str(), query.lower, limit];
    let read_hit = |row: &Row<'_>| {
        Ok(SearchHit {
            conversation_id: ConversationId::new(row.get::<_, String>(0)?),
            created_at: from_sql_integer(row.get(1)?),
            excerpt: row.get(2)?,
        })
    };
    let hits = connection
        .prepare_cached(SEARCH_SQL)
        .and_then(|mut statement| statement.query_map(values, read_hit)?.collect())
        .map_err(store_error)?;
    Ok(SearchHits { hits, is_complete: true })
}

/// Returns the SQL limit: one row more than the page, which shows if another page follows.
fn limit_with_next(page: usize) -> i64 {
    i64::try_from(page).unwrap_or(i64::MAX).saturating_add(1)
}

/// An unparsed row. Parsing is separate, because a document that cannot be parsed is no SQLite
/// error.
struct RawRow {
    partition: Partition,
    id: String,
    kind: String,
    version: i64,
    due: Option<i64>,
    created_at: Option<i64>,
    state: Option<String>,
    body: String,
    ttl: Option<u32>,
    search: Option<Box<SearchText>>,
    inbox_count: Option<u32>,
    last_entry: Option<String>,
}

fn query_rows(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<RawRow>> {
    connection.prepare_cached(sql)?.query_map(values, read_row)?.collect()
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<RawRow> {
    Ok(RawRow {
        partition: Partition::from_parts(row.get(0)?, row.get(1)?, row.get(2)?),
        id: row.get(3)?,
        kind: row.get(4)?,
        version: row.get(5)?,
        due: row.get(6)?,
        created_at: row.get(7)?,
        state: row.get(8)?,
        body: row.get(9)?,
        ttl: row.get(10)?,
        search: match (row.get(11)?, row.get(12)?) {
            (Some(lower), Some(excerpt)) => Some(Box::new(SearchText { lower, excerpt })),
            (None, _) | (_, None) => None,
        },
        inbox_count: row.get(13)?,
        last_entry: row.get(14)?,
    })
}

fn read_due_item(row: &Row<'_>) -> rusqlite::Result<Result<DueItem, StoreError>> {
    let partition = Partition::from_parts(row.get(0)?, row.get(1)?, row.get(2)?);
    let (id, kind, due) = (row.get(3)?, row.get::<_, String>(4)?, row.get(5)?);
    Ok(DocumentKind::from_name(&kind).map(|kind| DueItem {
        partition,
        id,
        kind,
        due: from_sql_integer(due),
        // Leases of this store are in memory.
        is_leased: false,
    }))
}

impl RawRow {
    fn into_stored(self) -> Result<(Partition, StoredDocument), StoreError> {
        let body = RawJson::from_text(self.body)
            .map_err(|error| StoreError::Corrupt(format!("`{}` is not JSON: {error}", self.id)))?;
        let document = Document {
            kind: DocumentKind::from_name(&self.kind)?,
            id: self.id,
            body,
            due: self.due.map(from_sql_integer),
            created_at: self.created_at.map(from_sql_integer),
            state: self.state,
            ttl: self.ttl,
            search: self.search,
            inbox_count: self.inbox_count,
            last_entry: self.last_entry,
        };
        Ok((self.partition, StoredDocument { document, etag: version_etag(self.version) }))
    }
}

fn version_etag(version: i64) -> ETag {
    ETag(version.to_string())
}

/// Parses the expected version. An `ETag` of another format matches no document.
fn expected_version(etag: Option<&ETag>) -> Result<Option<i64>, ApplyError> {
    etag.map(|etag| etag.0.parse().map_err(|_| ApplyError::Conflict)).transpose()
}

/// Converts to an SQL integer. `validate` has rejected times that do not fit.
fn to_sql_integer(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn from_sql_integer(number: i64) -> Timestamp {
    Timestamp(u64::try_from(number).unwrap_or(0))
}

#[cfg(test)]
mod tests;
