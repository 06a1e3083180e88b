//! What a person reads of dead letters: lists without payloads, and one letter with a part of its own.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::bounded;
use crate::database::Database;
use crate::error::DatabaseError;

/// Rows of a page.
pub const PAGE: usize = 50;

/// Bytes of a payload that are read to show where its fault is: 64 KiB, from its beginning.
pub const SHOWN_BYTES: usize = 65_536;

/// Which dead letters. Fields that are `None` take all; at least the state always narrows it.
#[derive(Debug, Clone, Copy)]
pub struct Letters<'a> {
    /// `open`, `replayed` or `discarded`; `None` for any.
    pub state: Option<&'a str>,
    /// The consumer's stable name.
    pub consumer: Option<&'a str>,
    /// The event's type; an empty text for letters of which it is not known.
    pub event_type: Option<&'a str>,
    /// The reason's stable name.
    pub reason: Option<&'a str>,
    /// The path without indices: `$.items[].price`; an empty text for letters without a path.
    pub path_group: Option<&'a str>,
    /// The record's key.
    pub key: Option<&'a [u8]>,
    /// Seen at last not before.
    pub since: Option<OffsetDateTime>,
    /// Seen at last before.
    pub until: Option<OffsetDateTime>,
}

impl Letters<'_> {
    /// Every letter that is open.
    pub const OPEN: Letters<'static> = Letters {
        state: Some("open"),
        consumer: None,
        event_type: None,
        reason: None,
        path_group: None,
        key: None,
        since: None,
        until: None,
    };
}

/// The condition of [`Letters`], for [`bind`]. The server plans each call with its parameters, and so sees which of
/// them are there.
macro_rules! matching {
    () => {
        "($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR consumer = $2) \
         AND ($3::text IS NULL OR coalesce(event_type, '') = $3) AND ($4::text IS NULL OR reason = $4) \
         AND ($5::text IS NULL OR path_group = $5) AND ($6::bytea IS NULL OR key = $6) \
         AND ($7::timestamptz IS NULL OR last_seen >= $7) AND ($8::timestamptz IS NULL OR last_seen < $8)"
    };
}
pub(crate) use matching;

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Binds the first eight parameters.
pub(crate) fn bind<'q>(sql: &'static str, letters: &Letters<'q>) -> Query<'q> {
    sqlx::query(sql)
        .bind(letters.state)
        .bind(letters.consumer)
        .bind(letters.event_type)
        .bind(letters.reason)
        .bind(letters.path_group)
        .bind(letters.key)
        .bind(letters.since)
        .bind(letters.until)
}

/// A dead letter without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Letter {
    /// Its id, which commands take.
    pub id: i64,
    /// `open`, `replayed` or `discarded`.
    pub state: String,
    /// Since when, unless it is open since it was written.
    pub state_at: Option<OffsetDateTime>,
    /// The consumer's stable name.
    pub consumer: String,
    /// Where the record lies.
    pub topic: String,
    /// Where the record lies.
    pub partition: i32,
    /// Where the record lies.
    pub offset: i64,
    /// The record's key.
    pub key: Option<Vec<u8>>,
    /// The event's id, if it could be read.
    pub event_id: Option<Uuid>,
    /// The event's type, if it could be read.
    pub event_type: Option<String>,
    /// The reason's stable name.
    pub reason: String,
    /// Where in the payload the fault is, for poison.
    pub path: Option<String>,
    /// What failed, without values.
    pub error: Option<String>,
    /// How often the handler ran.
    pub attempts: i32,
    /// When it failed first.
    pub first_seen: OffsetDateTime,
    /// When it failed last.
    pub last_seen: OffsetDateTime,
    /// The payload's size in bytes.
    pub payload_bytes: i64,
    /// The build that failed; empty if it is not known.
    pub build: String,
}

/// A dead letter with the beginning of its payload.
#[derive(Clone)]
#[non_exhaustive]
pub struct LetterDetail {
    /// What lists show.
    pub letter: Letter,
    /// The headers' names with the sizes of their values in bytes; `None` for a null value.
    pub headers: Vec<(String, Option<i64>)>,
    /// The first [`SHOWN_BYTES`] of the payload; `None` for a tombstone. Not for anybody's eyes as it is.
    pub payload: Option<Vec<u8>>,
    /// Whether the key is parked now.
    pub key_is_parked: bool,
    /// The newest process of the consumer that lives: its service and its build.
    pub running: Option<Build>,
}

impl std::fmt::Debug for LetterDetail {
    /// Without the payload.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LetterDetail")
            .field("letter", &self.letter)
            .finish_non_exhaustive()
    }
}

/// What runs a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// The service's name.
    pub service: String,
    /// The service's own version; empty if it doesn't say.
    pub build: String,
}

macro_rules! columns {
    () => {
        "id, state, state_at, consumer, topic, partition, record_offset, key, event_id, event_type, reason, path, \
         error, attempts, first_seen, last_seen, payload_bytes, build"
    };
}

fn read_letter(row: &PgRow) -> Result<Letter, sqlx::Error> {
    Ok(Letter {
        id: row.try_get(0)?,
        state: row.try_get(1)?,
        state_at: row.try_get(2)?,
        consumer: row.try_get(3)?,
        topic: row.try_get(4)?,
        partition: row.try_get(5)?,
        offset: row.try_get(6)?,
        key: row.try_get(7)?,
        event_id: row.try_get(8)?,
        event_type: row.try_get(9)?,
        reason: row.try_get(10)?,
        path: row.try_get(11)?,
        error: row.try_get(12)?,
        attempts: row.try_get(13)?,
        first_seen: row.try_get(14)?,
        last_seen: row.try_get(15)?,
        payload_bytes: row.try_get(16)?,
        build: row.try_get(17)?,
    })
}

/// One page of letters by their ids, those above `after`, without payloads: at most `limit`, and never more than 10,001.
///
/// # Errors
/// No connection, a statement failed, or it took longer than two seconds.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// use factum_postgres::dead_letter_list::{self, Letters, PAGE};
///
/// for letter in dead_letter_list::page(&db, &Letters::OPEN, 0, PAGE).await? {
///     println!("{} of {}", letter.id, letter.consumer);
/// }
/// # Ok(()) }
/// ```
pub async fn page(
    db: &Database,
    letters: &Letters<'_>,
    after: i64,
    limit: usize,
) -> Result<Vec<Letter>, DatabaseError> {
    const MOST: usize = 10_001;
    let limit = i64::try_from(limit.min(MOST)).unwrap_or_default();
    bounded::read(db, "read dead letters", async |conn| {
        let sql = concat!(
            "SELECT ",
            columns!(),
            " FROM dead_letter WHERE ",
            matching!(),
            " AND id > $9 ORDER BY id LIMIT $10"
        );
        let rows = bind(sql, letters).bind(after).bind(limit);
        rows.fetch_all(conn)
            .await?
            .iter()
            .map(read_letter)
            .collect()
    })
    .await
}

/// One letter; `None` when there is none of this id.
///
/// # Errors
/// No connection, a statement failed, or it took longer than two seconds.
pub async fn letter(db: &Database, id: i64) -> Result<Option<LetterDetail>, DatabaseError> {
    bounded::read(db, "read a dead letter", async |conn| {
        let sql = concat!(
            "SELECT ",
            columns!(),
            ", header_names, \
             ARRAY(SELECT length(value)::bigint FROM unnest(header_values) WITH ORDINALITY AS v (value, n) ORDER BY n), \
             substring(value from 1 for $2), \
             EXISTS (SELECT FROM parked_key p WHERE p.consumer = dead_letter.consumer \
                     AND p.topic = dead_letter.topic AND p.key = dead_letter.key) \
             FROM dead_letter WHERE id = $1"
        );
        let row = sqlx::query(sql)
            .bind(id)
            .bind(i32::try_from(SHOWN_BYTES).unwrap_or(i32::MAX))
            .fetch_optional(&mut *conn)
            .await?;
        let Some(row) = row else {
            return Ok(None);
        };
        let letter = read_letter(&row)?;
        let names: Vec<String> = row.try_get(18)?;
        let sizes: Vec<Option<i64>> = row.try_get(19)?;
        let running = running(conn, &letter.consumer).await?;
        Ok(Some(LetterDetail {
            headers: names.into_iter().zip(sizes).collect(),
            payload: row.try_get(20)?,
            key_is_parked: row.try_get(21)?,
            running,
            letter,
        }))
    })
    .await
}

/// The newest process of a consumer that has given a sign of life within 20 seconds.
pub(crate) async fn running(
    conn: &mut PgConnection,
    consumer: &str,
) -> Result<Option<Build>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT service, build FROM instance \
         WHERE $1 = ANY(consumers) AND seen_at > clock_timestamp() - interval '20 s' \
         ORDER BY started_at DESC, id LIMIT 1",
    )
    .bind(consumer)
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(Build {
            service: row.try_get(0)?,
            build: row.try_get(1)?,
        })
    })
    .transpose()
}
