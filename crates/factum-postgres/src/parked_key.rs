//! Parked keys as a person sees them, and what a person may do with them: release a key, or set its first event
//! aside. A key is never skipped or emptied.

use std::time::Duration;

use factum_event::{DeadLetterReason, EventId};
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::audit::{self, Actor, Deed};
use crate::database::Database;
use crate::dead_letter::{self, DeadLetter};
use crate::error::DatabaseError;
use crate::parking::{self, DueKey};

/// Events of a key that are counted at most.
const COUNT_WAITING: i64 = 10_001;
/// Released together, so many keys become due in a second.
const RELEASED_PER_SECOND: i64 = 100;
/// A key is shown to the audit in full up to here.
const SUBJECT_BYTES: usize = 512;

/// A parked key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedKey {
    /// The consumer's stable name.
    pub consumer: String,
    /// The topic.
    pub topic: String,
    /// The key's bytes.
    pub key: Vec<u8>,
    /// Events that wait, the failed one among them, counted up to 10,001.
    pub waiting: u64,
    /// How often the first of them was tried.
    pub attempts: u32,
    /// How often it may be tried.
    pub max_attempts: u32,
    /// When it is tried next; `None` while the key is held.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// When the key was parked.
    pub parked_at: OffsetDateTime,
    /// What failed last, without values.
    pub error: Option<String>,
}

/// What became of [`set_aside_parked`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetAside {
    /// The key's first event is a dead letter, and the key goes on with the next.
    Done {
        /// Where the record lies.
        partition: i32,
        /// Where the record lies.
        offset: i64,
    },
    /// Nothing of that key is parked.
    NotParked,
    /// A retrier is handling the event now.
    Busy,
}

/// Parked keys, of one consumer or of all, the longest parked first; at most `limit`.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn parked_keys(
    db: &Database,
    consumer: Option<&str>,
    limit: u32,
) -> Result<Vec<ParkedKey>, DatabaseError> {
    let mut held = db.hold().await?;
    let keys = held
        .answered(async |conn| {
            sqlx::query(
                "SELECT k.consumer, k.topic, k.key, \
                        (SELECT count(*) FROM (SELECT FROM parked_event e \
                           WHERE e.consumer = k.consumer AND e.topic = k.topic AND e.key = k.key LIMIT $3) few), \
                        k.attempts, k.max_attempts, \
                        CASE WHEN k.held_at IS NULL THEN k.next_attempt_at END, k.parked_at, k.error \
                 FROM parked_key k WHERE $1::text IS NULL OR k.consumer = $1 \
                 ORDER BY k.parked_at, k.consumer, k.topic, k.key LIMIT $2",
            )
            .bind(consumer)
            .bind(i64::from(limit))
            .bind(COUNT_WAITING)
            .fetch_all(conn)
            .await?
            .iter()
            .map(|row| {
                let small = |n: i32| u32::try_from(n).unwrap_or(0);
                Ok(ParkedKey {
                    consumer: row.try_get(0)?,
                    topic: row.try_get(1)?,
                    key: row.try_get(2)?,
                    waiting: u64::try_from(row.try_get::<i64, _>(3)?).unwrap_or(0),
                    attempts: small(row.try_get(4)?),
                    max_attempts: small(row.try_get(5)?),
                    next_attempt_at: row.try_get(6)?,
                    parked_at: row.try_get(7)?,
                    error: row.try_get(8)?,
                })
            })
            .collect::<Result<Vec<_>, sqlx::Error>>()
        })
        .await
        .map_err(|err| DatabaseError::new("list parked keys", &err))?;
    held.give_back();
    Ok(keys)
}

/// Makes parked keys of a consumer due: one, or all of them with `None`. All together they are spread at random over
/// a second per hundred keys. Each gets its attempts anew. Writes an audit row; answers the number of keys.
///
/// # Errors
/// No connection, or a statement failed: nothing was changed.
pub async fn release_parked(
    db: &Database,
    consumer: &str,
    key: Option<&DueKey>,
    actor: Actor<'_>,
) -> Result<u64, DatabaseError> {
    transaction(db, "release parked keys", async |conn| {
        let released = sqlx::query(
            // In one order, so that two releases don't deadlock.
            "WITH chosen AS ( \
               SELECT consumer, topic, key, count(*) OVER () AS keys FROM ( \
                 SELECT consumer, topic, key FROM parked_key \
                  WHERE consumer = $1 AND ($2::text IS NULL OR (topic = $2 AND key = $3)) \
                  ORDER BY consumer, topic, key FOR NO KEY UPDATE \
               ) locked \
             ) \
             UPDATE parked_key k SET held_at = NULL, attempts = 0, \
                    next_attempt_at = clock_timestamp() \
                      + CASE WHEN $2::text IS NULL THEN random() * chosen.keys / $4 ELSE 0 END * interval '1 s' \
               FROM chosen \
              WHERE k.consumer = chosen.consumer AND k.topic = chosen.topic AND k.key = chosen.key",
        )
        .bind(consumer)
        .bind(key.map(|key| &key.topic))
        .bind(key.map(|key| &key.key))
        .bind(RELEASED_PER_SECOND)
        .execute(&mut *conn)
        .await?
        .rows_affected();
        if released > 0 {
            let subject = key.map_or("all parked keys".to_owned(), subject);
            let deed = Deed {
                action: "release",
                consumer,
                subject: &subject,
                events: i64::try_from(released).unwrap_or(i64::MAX),
            };
            audit::write(conn, actor, deed).await?;
        }
        Ok(released)
    })
    .await
}

/// Sets a parked key's first event aside as a dead letter, whatever its attempts, and lets the key go on with the
/// next. Writes an audit row.
///
/// # Errors
/// No connection, or a statement failed: nothing was changed.
pub async fn set_aside_parked(
    db: &Database,
    consumer: &str,
    key: &DueKey,
    actor: Actor<'_>,
) -> Result<SetAside, DatabaseError> {
    transaction(db, "set a parked event aside", async |conn| {
        let head = parking::read_head(&mut *conn, consumer, key, 1).await?;
        let Some((head, event)) = head.and_then(|mut head| {
            let event = head.events.pop()?;
            Some((head, event))
        }) else {
            return Ok(SetAside::NotParked);
        };
        // The row's lock is the retrier's, too: it then finds the event gone.
        let locked = sqlx::query(
            "SELECT event_id, event_type FROM parked_event WHERE id = $1 FOR UPDATE SKIP LOCKED",
        )
        .bind(event.id)
        .fetch_optional(&mut *conn)
        .await?;
        let Some(row) = locked else {
            return Ok(SetAside::Busy);
        };
        let event_id: Uuid = row.try_get(0)?;
        let event_type: String = row.try_get(1)?;
        let failed_with: Option<String> = sqlx::query_scalar(
            "SELECT error FROM parked_key WHERE consumer = $1 AND topic = $2 AND key = $3",
        )
        .bind(consumer)
        .bind(&key.topic)
        .bind(&key.key)
        .fetch_one(&mut *conn)
        .await?;
        let letter = DeadLetter {
            consumer,
            topic: &key.topic,
            partition: event.partition,
            offset: event.offset,
            key: (!event.keyless).then_some(key.key.as_slice()),
            value: Some(&event.value),
            headers: &event.headers,
            event_id: EventId::foreign(event_id).ok(),
            event_type: Some(&event_type),
            reason: DeadLetterReason::SetAside.as_str(),
            path: None,
            error: failed_with.as_deref(),
            attempts: head.attempts,
            first_failed_at: event.first_failed_at,
            // It wasn't the service that set it aside.
            build: "",
        };
        dead_letter::write(&mut *conn, &letter).await?;
        parking::settle(&mut *conn, consumer, key, &[event.id]).await?;
        sqlx::query(
            "UPDATE parked_key SET held_at = NULL, next_attempt_at = clock_timestamp() \
              WHERE consumer = $1 AND topic = $2 AND key = $3",
        )
        .bind(consumer)
        .bind(&key.topic)
        .bind(&key.key)
        .execute(&mut *conn)
        .await?;
        let deed = Deed {
            action: "dead-letter",
            consumer,
            subject: &subject(key),
            events: 1,
        };
        audit::write(conn, actor, deed).await?;
        Ok(SetAside::Done {
            partition: event.partition,
            offset: event.offset,
        })
    })
    .await
}

/// All or nothing, within a minute.
async fn transaction<T>(
    db: &Database,
    what: &'static str,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<T, DatabaseError> {
    const LIMIT: Duration = Duration::from_secs(60);
    let mut held = db.hold().await?;
    // An error drops the connection, and with it the transaction.
    let done = held
        .answered_within(LIMIT, async |conn| {
            sqlx::raw_sql("BEGIN").execute(&mut *conn).await?;
            let done = work(&mut *conn).await?;
            sqlx::raw_sql("COMMIT").execute(&mut *conn).await?;
            Ok(done)
        })
        .await
        .map_err(|err| DatabaseError::new(what, &err))?;
    held.give_back();
    Ok(done)
}

fn subject(key: &DueKey) -> String {
    let shown = dead_letter::text(String::from_utf8_lossy(&key.key), SUBJECT_BYTES);
    format!("{} {shown}", key.topic)
}
