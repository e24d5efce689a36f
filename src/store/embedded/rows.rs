//! Documents as rows, and all SQL statements on them.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::store::embedded::store_error;
use crate::store::place::{self, DuePlace, HeadPlace, PAGE_MAX};
use crate::store::{
    Document, ETag, HeadQuery, Kind, Owed, Page, Partition, Selection, StoreError, Stored, Write,
};

/// Reasons why a batch was not applied.
pub(super) enum Refusal {
    Conflict,
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// Applies a batch. On an error the writes before it remain: the caller rolls back to its
/// savepoint.
pub(super) fn apply(
    connection: &Connection,
    partition: &Partition,
    writes: &[Write],
    versions: &mut i64,
) -> Result<Vec<ETag>, Refusal> {
    writes.iter().map(|write| apply_one(connection, partition, write, versions)).collect()
}

fn apply_one(
    connection: &Connection,
    partition: &Partition,
    write: &Write,
    versions: &mut i64,
) -> Result<ETag, Refusal> {
    *versions += 1;
    let (changed, etag) = match write {
        Write::Create(document) => {
            (create(connection, partition, document, *versions)?, version_etag(*versions))
        }
        Write::Replace(document, wanted) => {
            let wanted = wanted_version(wanted.as_ref())?;
            let changed = replace(connection, partition, document, *versions, wanted)?;
            (changed, version_etag(*versions))
        }
        Write::Delete(id, wanted) => {
            let wanted = wanted_version(wanted.as_ref())?;
            (delete(connection, partition, id, wanted)?, ETag(String::new()))
        }
    };
    if changed == 1 { Ok(etag) } else { Err(Refusal::Conflict) }
}

fn create(
    connection: &Connection,
    partition: &Partition,
    document: &Document,
    version: i64,
) -> rusqlite::Result<usize> {
    let [tenant, user, conversation] = partition.parts();
    let Document { id, kind, body, due, created_at, state, ttl } = document;
    connection
        .prepare_cached(
            "INSERT INTO documents
                 (tenant, user, conversation, id, kind, version, due, created_at, state, body, ttl)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            tenant,
            user,
            conversation,
            id,
            kind.as_str(),
            version,
            due.map(integer),
            created_at.map(integer),
            state,
            body.text(),
            ttl
        ])
}

fn replace(
    connection: &Connection,
    partition: &Partition,
    document: &Document,
    version: i64,
    wanted: Option<i64>,
) -> rusqlite::Result<usize> {
    let [tenant, user, conversation] = partition.parts();
    let Document { id, kind, body, due, created_at, state, ttl } = document;
    connection
        .prepare_cached(
            "UPDATE documents
             SET kind = ?5, version = ?6, due = ?7, created_at = ?8, state = ?9, body = ?10, ttl = ?11
             WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = ?4
                 AND version = ifnull(?12, version)",
        )?
        .execute(params![
            tenant,
            user,
            conversation,
            id,
            kind.as_str(),
            version,
            due.map(integer),
            created_at.map(integer),
            state,
            body.text(),
            ttl,
            wanted
        ])
}

fn delete(
    connection: &Connection,
    partition: &Partition,
    id: &str,
    wanted: Option<i64>,
) -> rusqlite::Result<usize> {
    let [tenant, user, conversation] = partition.parts();
    connection
        .prepare_cached(
            "DELETE FROM documents
             WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = ?4
                 AND version = ifnull(?5, version)",
        )?
        .execute(params![tenant, user, conversation, id, wanted])
}

const COLUMNS: &str =
    "tenant, user, conversation, id, kind, version, due, created_at, state, body, ttl";

pub(super) fn read(
    connection: &Connection,
    partition: &Partition,
    id: &str,
) -> Result<Option<Stored>, StoreError> {
    let [tenant, user, conversation] = partition.parts();
    let sql = format!(
        "SELECT {COLUMNS} FROM documents
         WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND id = ?4"
    );
    connection
        .prepare_cached(&sql)
        .and_then(|mut statement| {
            statement.query_row(params![tenant, user, conversation, id], raw).optional()
        })
        .map_err(store_error)?
        .map(|raw| raw.stored().map(|(_, stored)| stored))
        .transpose()
}

/// Builds the query with the kind as a literal: the planner ignores bound values, and needs the
/// kind to use a partial index. The text contains no untrusted input.
fn select_sql(selection: &Selection) -> String {
    // SQLite uses a partial index only if the query repeats its condition.
    let rare = match selection.kind {
        Kind::Entry | Kind::Events | Kind::Head | Kind::Scope => "",
        Kind::Inbox | Kind::Receipt | Kind::Notice | Kind::Live | Kind::Watch => {
            "AND kind <> 'entry' AND kind <> 'events' AND kind <> 'head' AND kind <> 'scope'"
        }
    };
    let upper = if selection.to_id.is_some() { "AND id <= ?5" } else { "AND ?5 IS NULL" };
    let kind = selection.kind.as_str();
    format!(
        "SELECT {COLUMNS} FROM documents
         WHERE tenant = ?1 AND user = ?2 AND conversation = ?3 AND kind = '{kind}' {rare}
             AND id >= ?4 {upper}
         ORDER BY id LIMIT ?6"
    )
}

pub(super) fn select(
    connection: &Connection,
    partition: &Partition,
    selection: &Selection,
) -> Result<Vec<Stored>, StoreError> {
    let [tenant, user, conversation] = partition.parts();
    let Selection { kind: _, from_id, to_id, limit } = selection;
    let from_id = from_id.as_deref().unwrap_or_default();
    let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
    let values = params![tenant, user, conversation, from_id, to_id, limit];
    let rows = collect(connection, &select_sql(selection), values).map_err(store_error)?;
    rows.into_iter().map(|raw| raw.stored().map(|(_, stored)| stored)).collect()
}

const DUE: &str = "SELECT tenant, user, conversation, id, kind, due FROM documents
     WHERE due <= ?1 AND (due, tenant, user, conversation, id) > (?2, ?3, ?4, ?5, ?6)
     ORDER BY due, tenant, user, conversation, id LIMIT ?7";

pub(super) fn due(
    connection: &Connection,
    at: Timestamp,
    limit: usize,
    after: &DuePlace,
) -> Result<Page<Owed>, StoreError> {
    let limit = limit.clamp(1, PAGE_MAX);
    let DuePlace { due, tenant, user, conversation, id } = after;
    let due = integer(Timestamp(*due));
    let values = params![integer(at), due, tenant, user, conversation, id, limit_of(limit)];
    let mut items = connection
        .prepare_cached(DUE)
        .and_then(|mut statement| statement.query_map(values, owed)?.collect::<Result<Vec<_>, _>>())
        .map_err(store_error)?
        .into_iter()
        .collect::<Result<Vec<Owed>, StoreError>>()?;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let continuation = items.last().filter(|_| has_more).map(|last| {
        let [tenant, user, conversation] = last.partition.parts().map(ToOwned::to_owned);
        let id = last.id.clone();
        place::due_continuation(at, &DuePlace { due: last.due.0, tenant, user, conversation, id })
    });
    Ok(Page { items, continuation })
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

pub(super) fn heads(
    connection: &Connection,
    query: &HeadQuery,
    after: &HeadPlace,
) -> Result<Page<Stored>, StoreError> {
    let limit = query.limit.clamp(1, PAGE_MAX);
    let user = query.user.as_ref().map(crate::ids::UserId::as_str);
    let created_at = integer(Timestamp(after.created_at));
    let values = params![
        query.tenant.as_str(),
        user,
        query.state,
        created_at,
        after.conversation,
        after.user,
        limit_of(limit)
    ];
    let mut rows = collect(connection, &heads_sql(query), values).map_err(store_error)?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let found = rows.into_iter().map(Raw::stored).collect::<Result<Vec<_>, _>>()?;
    let last = found.last().filter(|_| has_more);
    let continuation = last.map(|(partition, head)| {
        let [_, user, conversation] = partition.parts().map(ToOwned::to_owned);
        let created_at = head.document.created_at.unwrap_or_default().0;
        place::heads_continuation(query, &HeadPlace { created_at, conversation, user })
    });
    Ok(Page { items: found.into_iter().map(|(_, head)| head).collect(), continuation })
}

/// Returns the SQL limit: one row more than the page, which shows if another page follows.
fn limit_of(page: usize) -> i64 {
    i64::try_from(page).unwrap_or(i64::MAX).saturating_add(1)
}

/// An unparsed row. Parsing is separate, because a document that cannot be parsed is no SQLite
/// error.
struct Raw {
    partition: Partition,
    id: String,
    kind: String,
    version: i64,
    due: Option<i64>,
    created_at: Option<i64>,
    state: Option<String>,
    body: String,
    ttl: Option<u32>,
}

fn collect(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Raw>> {
    connection.prepare_cached(sql)?.query_map(values, raw)?.collect()
}

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok(Raw {
        partition: Partition::from_parts(row.get(0)?, row.get(1)?, row.get(2)?),
        id: row.get(3)?,
        kind: row.get(4)?,
        version: row.get(5)?,
        due: row.get(6)?,
        created_at: row.get(7)?,
        state: row.get(8)?,
        body: row.get(9)?,
        ttl: row.get(10)?,
    })
}

fn owed(row: &Row<'_>) -> rusqlite::Result<Result<Owed, StoreError>> {
    let partition = Partition::from_parts(row.get(0)?, row.get(1)?, row.get(2)?);
    let (id, kind, due) = (row.get(3)?, row.get::<_, String>(4)?, row.get(5)?);
    Ok(Kind::named(&kind).map(|kind| Owed { partition, id, kind, due: timestamp(due) }))
}

impl Raw {
    fn stored(self) -> Result<(Partition, Stored), StoreError> {
        let body = RawJson::from_text(self.body)
            .map_err(|error| StoreError::Corrupt(format!("`{}` is not JSON: {error}", self.id)))?;
        let document = Document {
            kind: Kind::named(&self.kind)?,
            id: self.id,
            body,
            due: self.due.map(timestamp),
            created_at: self.created_at.map(timestamp),
            state: self.state,
            ttl: self.ttl,
        };
        Ok((self.partition, Stored { document, etag: version_etag(self.version) }))
    }
}

fn version_etag(version: i64) -> ETag {
    ETag(version.to_string())
}

/// Parses the expected version. An `ETag` of another format matches no document.
fn wanted_version(etag: Option<&ETag>) -> Result<Option<i64>, Refusal> {
    etag.map(|etag| etag.0.parse().map_err(|_| Refusal::Conflict)).transpose()
}

/// Converts to an SQL integer. `validate` has rejected times that do not fit.
fn integer(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn timestamp(number: i64) -> Timestamp {
    Timestamp(u64::try_from(number).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{TenantId, UserId};
    use crate::store::embedded::schema::{self, Outlives};

    fn plan(sql: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let (connection, _) = schema::open(&folder.path().join("a.db"), Outlives::Process).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let mut rows = statement.raw_query();
        let mut steps = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push(row.get::<_, String>(3).unwrap());
        }
        steps.join("; ")
    }

    #[test]
    fn every_list_follows_an_index_and_sorts_nothing() {
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
            (by_kind(Kind::Inbox), "documents_rare", "kind=? AND id>?)"),
            (by_kind(Kind::Receipt), "documents_rare", "kind=? AND id>?)"),
            (select_sql(&Selection::entries(1, 2)), "autoindex", "id>? AND id<?)"),
            (by_kind(Kind::Events), "autoindex", "conversation=? AND id>?)"),
            (DUE.to_owned(), "COVERING INDEX documents_due", "due<?)"),
            (heads(None, None), "heads_of_tenant", "<(?,?,?))"),
            (heads(Some("ada"), Some("idle")), "heads_of_user", "user=? AND (created_at,"),
        ] {
            let plan = plan(&sql);
            assert!(plan.contains(index) && plan.contains(bound), "{sql}: {plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
    }
}
