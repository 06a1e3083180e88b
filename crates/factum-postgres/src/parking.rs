//! Keys whose events wait (tables `parked_key` and `parked_event`): the first of them failed, the later ones queue
//! behind it, in order (RTRY-1).
//!
//! # Who may do what
//!
//! - A **lane** adds events to the end of a key's queue: in its batch under the key row's `FOR KEY SHARE`, or with the
//!   key row itself when an event fails first.
//! - A **retrier** takes events from the queue's front: under the lock of the *first event's row*, and after a second
//!   look at the key under that lock. Several may run.
//! - A retrier **frees** a key behind which nothing waits: under the key row's `FOR UPDATE`, after a second look at
//!   the queue under that lock.
//!
//! # Why no event overtakes another, and none is left behind
//!
//! A fresh event of a key is handled by its lane only if the statement that wrote its dedup row found no key row. The
//! key row goes only in a transaction that held `FOR UPDATE` on it and *then*, with a snapshot of its own, saw the queue empty.
//! `FOR UPDATE` and `FOR KEY SHARE` exclude each other, so a lane's transaction either
//!
//! - had its share first: the retrier passes the key by (`SKIP LOCKED`) until the lane has committed, and then its
//!   second look sees what the lane queued; or
//! - came later: it waits for the deletion, finds no row, and handles the event itself, after everything of the queue
//!   was committed; or
//! - came after the deletion, which is the same.
//!
//! A lane that parks a first failure inserts the key row, or locks the one that is there by an update; both exclude
//! `FOR UPDATE` likewise. So each parked event has a key row for as long as it waits.
//!
//! Only the first event's row is locked while a handler runs. `FOR KEY SHARE` on the key isn't in its way, so a lane
//! never waits for a retrier's handler. Two retriers exclude each other by the first row: who locks it second finds
//! it gone, or looks at the key again and finds other attempts, a later time, another first event.
//!
//! What comes again (a rewind, a crash before the offset moved) is already queued, by its offset, or was handled, by
//! its dedup row; if neither is visible yet it is queued a second time, and the retrier's dedup row finds that out.

use std::time::Duration;

use factum_event::EventId;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::database::Database;
use crate::dead_letter::text;
use crate::error::DatabaseError;
use crate::session::Session;

const ERROR_BYTES: usize = 1024;
/// Keys that are counted at most.
const COUNT_KEYS: i64 = 10_000;

/// A record that is to wait.
#[derive(Debug, Clone)]
pub struct ParkedRecord<'a> {
    /// Where the record lies.
    pub topic: &'a str,
    /// Where the record lies.
    pub partition: i32,
    /// Where the record lies.
    pub offset: i64,
    /// The record's key; its aggregate's id if it has none.
    pub key: &'a [u8],
    /// Whether the record itself had no key.
    pub keyless: bool,
    /// The record's value, byte for byte.
    pub value: &'a [u8],
    /// The record's headers, in order.
    pub headers: &'a [(String, Option<Vec<u8>>)],
    /// The event's id.
    pub event_id: EventId,
    /// The type that the record has.
    pub event_type: &'a str,
}

/// When a key's first event is tried again, and why it failed.
#[derive(Debug, Clone)]
pub struct Parking<'a> {
    /// How often its first event was tried.
    pub attempts: u32,
    /// How often it may be tried, for whoever looks on.
    pub max_attempts: u32,
    /// How long until it is tried again; `None` to hold it until a person releases it.
    pub wait: Option<Duration>,
    /// What failed, without values; cut at 1 KiB.
    pub error: &'a str,
}

/// What became of a batch's events whose key is parked, see [`Session::park_behind`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ParkedBehind {
    /// For each record in the given order, whether its event had been handled before: it doesn't wait.
    pub processed: Vec<bool>,
    /// Events that wait now and didn't before.
    pub added: usize,
    /// The number of one key's events is beyond the limit: the transaction must be rolled back.
    pub full: bool,
}

/// A parked key whose time has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DueKey {
    /// The topic.
    pub topic: String,
    /// The key's bytes.
    pub key: Vec<u8>,
}

/// The first events of a parked key, as a retrier takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedHead {
    /// How often the first of them was tried.
    pub attempts: u32,
    /// In order; empty when nothing waits behind the key any more.
    pub events: Vec<ParkedEvent>,
}

/// An event that waits.
#[derive(Clone, PartialEq, Eq)]
pub struct ParkedEvent {
    /// Its place in the queue.
    pub id: i64,
    /// Where the record lies.
    pub partition: i32,
    /// Where the record lies.
    pub offset: i64,
    /// Whether the record has no key of its own.
    pub keyless: bool,
    /// The record's value.
    pub value: Vec<u8>,
    /// The record's headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// When it failed first; `None` if it only waits.
    pub first_failed_at: Option<OffsetDateTime>,
}

impl std::fmt::Debug for ParkedEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParkedEvent")
            .field("id", &self.id)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .field("value_bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

/// How much of a consumer is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParkedCounts {
    /// Events, counted up to the limit that was asked for.
    pub events: u64,
    /// Keys, counted up to 10,000.
    pub keys: u64,
    /// Keys of those that wait for a person.
    pub held: u64,
    /// How long the longest parked key has been parked; nothing with none.
    pub oldest: Duration,
}

impl Session {
    /// Queues events whose key is parked, in the given order; those that wait already are left as they are, and
    /// those that were handled before don't wait. All of one topic; for the batch's
    /// [`Parked`](crate::DedupVerdict::Parked) events, in its transaction. Without a limit of one key's events, because
    /// it can't be reached, nothing is counted.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn park_behind(
        &mut self,
        consumer: &str,
        topic: &str,
        records: &[ParkedRecord<'_>],
        limit_per_key: Option<u32>,
    ) -> Result<ParkedBehind, DatabaseError> {
        const WHAT: &str = "park events";
        self.needs_open(WHAT)?;
        let columns = Columns::of(records);
        let (processed, added, full) = self
            .statement(async |conn| {
                let query = sqlx::query(PARK_BEHIND).bind(consumer).bind(topic);
                let row = columns
                    .bind(query)
                    .bind(limit_per_key.map(i64::from))
                    .fetch_one(conn)
                    .await?;
                Ok((
                    row.try_get::<Vec<i64>, _>(0)?,
                    row.try_get::<i64, _>(1)?,
                    row.try_get::<bool, _>(2)?,
                ))
            })
            .await
            .map_err(|failed| failed.into_error(WHAT))?;
        let mut told = vec![false; records.len()];
        for place in processed {
            // WITH ORDINALITY counts from 1.
            let place = usize::try_from(place - 1).ok();
            if let Some(told) = place.and_then(|place| told.get_mut(place)) {
                *told = true;
            }
        }
        Ok(ParkedBehind {
            processed: told,
            added: usize::try_from(added).unwrap_or(0),
            full,
        })
    }

    /// Parks the key of an event that failed first, and the event. A key that is parked already keeps its state,
    /// an event that waits already its place. `true` if the event waits now and didn't before.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn park_key(
        &mut self,
        consumer: &str,
        record: &ParkedRecord<'_>,
        parking: &Parking<'_>,
        first_failed_at: OffsetDateTime,
    ) -> Result<bool, DatabaseError> {
        const WHAT: &str = "park a key";
        self.needs_open(WHAT)?;
        let (names, values) = headers(record.headers);
        self.statement(async |conn| {
            sqlx::query(
                // The update changes nothing: it locks the row that is there, or a retrier could free the key
                // before this event is to be seen behind it.
                "INSERT INTO parked_key AS known \
                   (consumer, topic, key, attempts, next_attempt_at, held_at, last_failed_at, error, \
                    max_attempts) \
                 VALUES ($1, $2, $3, $4, clock_timestamp() + coalesce($5, 0) * interval '1 ms', \
                         CASE WHEN $5 IS NULL THEN clock_timestamp() END, clock_timestamp(), $6, $7) \
                 ON CONFLICT (consumer, topic, key) DO UPDATE SET parked_at = known.parked_at",
            )
            .bind(consumer)
            .bind(record.topic)
            .bind(record.key)
            .bind(count(parking.attempts))
            .bind(parking.wait.map(millis))
            .bind(text(parking.error, ERROR_BYTES))
            .bind(count(parking.max_attempts))
            .execute(&mut *conn)
            .await?;
            let added = sqlx::query(
                "INSERT INTO parked_event \
                   (consumer, topic, key, keyless, partition, record_offset, value, header_names, header_values, \
                    event_id, event_type, first_failed_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
                 ON CONFLICT (consumer, topic, partition, record_offset) DO NOTHING",
            )
            .bind(consumer)
            .bind(record.topic)
            .bind(record.key)
            .bind(record.keyless)
            .bind(record.partition)
            .bind(record.offset)
            .bind(record.value)
            .bind(names)
            .bind(values)
            .bind(record.event_id.as_uuid())
            .bind(record.event_type)
            .bind(first_failed_at)
            .execute(conn)
            .await?;
            Ok(added.rows_affected() > 0)
        })
        .await
        .map_err(|failed| failed.into_error(WHAT))
    }

    /// The first events of a parked key, at most `limit`; `None` if the key isn't parked any more. Outside of a
    /// transaction, and it locks nothing: what is read here is to be claimed by
    /// [`claim_parked`](Self::claim_parked).
    ///
    /// # Errors
    /// The statement failed.
    pub async fn parked_events(
        &mut self,
        consumer: &str,
        due: &DueKey,
        limit: u32,
    ) -> Result<Option<ParkedHead>, DatabaseError> {
        self.statement(async |conn| read_head(conn, consumer, due, limit).await)
            .await
            .map_err(|failed| failed.into_error("read parked events"))
    }

    /// Makes the first events of a parked key this transaction's own, until it ends. `false` if they aren't the
    /// first any more, another has them, or the key's time hasn't come.
    ///
    /// # Errors
    /// A statement failed, or no transaction is open.
    pub async fn claim_parked(
        &mut self,
        consumer: &str,
        due: &DueKey,
        head: &ParkedHead,
    ) -> Result<bool, DatabaseError> {
        const WHAT: &str = "claim a parked event";
        self.needs_open(WHAT)?;
        let ids = ids(&head.events);
        let Some(first) = ids.first() else {
            return Ok(false);
        };
        self.statement(async |conn| {
            let locked =
                sqlx::query("SELECT 1 FROM parked_event WHERE id = $1 FOR UPDATE SKIP LOCKED")
                    .bind(first)
                    .fetch_optional(&mut *conn)
                    .await?;
            if locked.is_none() {
                return Ok(false);
            }
            // Another retrier may have tried it between this statement's snapshot and its lock: the next statement
            // sees what that one wrote.
            sqlx::query_scalar(CLAIM)
                .bind(consumer)
                .bind(&due.topic)
                .bind(&due.key)
                .bind(count(head.attempts))
                .bind(&ids)
                .bind(i64::try_from(ids.len()).unwrap_or(i64::MAX))
                .fetch_one(conn)
                .await
        })
        .await
        .map_err(|failed| failed.into_error(WHAT))
    }

    /// Takes claimed events out of their queue: they have an outcome. The next one has no attempts yet, and its time
    /// has come.
    ///
    /// # Errors
    /// A statement failed, or no transaction is open.
    pub async fn settle_parked(
        &mut self,
        consumer: &str,
        due: &DueKey,
        head: &ParkedHead,
    ) -> Result<(), DatabaseError> {
        const WHAT: &str = "take parked events out";
        self.needs_open(WHAT)?;
        let ids = ids(&head.events);
        self.statement(async |conn| settle(conn, consumer, due, &ids).await)
            .await
            .map_err(|failed| failed.into_error(WHAT))
    }

    /// Lets the first event of a parked key, which was claimed and failed again, wait for its next attempt, or hold.
    ///
    /// # Errors
    /// A statement failed, or no transaction is open.
    pub async fn park_again(
        &mut self,
        consumer: &str,
        due: &DueKey,
        head: &ParkedHead,
        parking: &Parking<'_>,
    ) -> Result<(), DatabaseError> {
        const WHAT: &str = "park a key again";
        self.needs_open(WHAT)?;
        let first = head.events.first().map(|event| event.id);
        self.statement(async |conn| {
            sqlx::query(
                "WITH failed AS ( \
                   UPDATE parked_event SET first_failed_at = clock_timestamp() \
                    WHERE id = $7 AND first_failed_at IS NULL \
                 ) \
                 UPDATE parked_key SET attempts = $4, \
                        next_attempt_at = clock_timestamp() + coalesce($5, 0) * interval '1 ms', \
                        held_at = CASE WHEN $5 IS NULL THEN clock_timestamp() END, \
                        last_failed_at = clock_timestamp(), error = $6, max_attempts = $8 \
                  WHERE consumer = $1 AND topic = $2 AND key = $3",
            )
            .bind(consumer)
            .bind(&due.topic)
            .bind(&due.key)
            .bind(count(parking.attempts))
            .bind(parking.wait.map(millis))
            .bind(text(parking.error, ERROR_BYTES))
            .bind(first)
            .bind(count(parking.max_attempts))
            .execute(conn)
            .await?;
            Ok(())
        })
        .await
        .map_err(|failed| failed.into_error(WHAT))
    }

    /// Keeps lanes away from a parked key until this transaction ends, so that it can be freed. `false` if a lane's
    /// open transaction knows the key as parked, or the key isn't parked any more.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn lock_parked_key(
        &mut self,
        consumer: &str,
        due: &DueKey,
    ) -> Result<bool, DatabaseError> {
        const WHAT: &str = "lock a parked key";
        self.needs_open(WHAT)?;
        self.statement(async |conn| {
            let locked = sqlx::query(
                "SELECT 1 FROM parked_key WHERE consumer = $1 AND topic = $2 AND key = $3 FOR UPDATE SKIP LOCKED",
            )
            .bind(consumer)
            .bind(&due.topic)
            .bind(&due.key)
            .fetch_optional(conn)
            .await?;
            Ok(locked.is_some())
        })
        .await
        .map_err(|failed| failed.into_error(WHAT))
    }

    /// Frees a [locked](Self::lock_parked_key) key if nothing waits behind it, so that its next event is handled by
    /// its lane again. A statement of its own after the lock: its snapshot has what a lane that held the row before
    /// has queued. `false` if something waits.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn free_parked_key(
        &mut self,
        consumer: &str,
        due: &DueKey,
    ) -> Result<bool, DatabaseError> {
        const WHAT: &str = "free a parked key";
        self.needs_open(WHAT)?;
        self.statement(async |conn| {
            let freed = sqlx::query(
                "DELETE FROM parked_key WHERE consumer = $1 AND topic = $2 AND key = $3 \
                   AND NOT EXISTS (SELECT FROM parked_event e \
                                    WHERE e.consumer = $1 AND e.topic = $2 AND e.key = $3)",
            )
            .bind(consumer)
            .bind(&due.topic)
            .bind(&due.key)
            .execute(conn)
            .await?;
            Ok(freed.rows_affected() > 0)
        })
        .await
        .map_err(|failed| failed.into_error(WHAT))
    }
}

pub(crate) async fn settle(
    conn: &mut PgConnection,
    consumer: &str,
    due: &DueKey,
    ids: &[i64],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "WITH done AS (DELETE FROM parked_event WHERE id = ANY($4)) \
         UPDATE parked_key SET attempts = 0, next_attempt_at = clock_timestamp(), error = NULL \
          WHERE consumer = $1 AND topic = $2 AND key = $3 AND attempts <> 0",
    )
    .bind(consumer)
    .bind(&due.topic)
    .bind(&due.key)
    .bind(ids)
    .execute(conn)
    .await?;
    Ok(())
}

/// Parked keys of a consumer whose time has come, the longest due first.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn due_keys(
    db: &Database,
    consumer: &str,
    limit: u32,
) -> Result<Vec<DueKey>, DatabaseError> {
    let mut held = db.hold().await?;
    let rows = held
        .answered(async |conn| {
            sqlx::query(
                "SELECT topic, key FROM parked_key \
                 WHERE consumer = $1 AND held_at IS NULL AND next_attempt_at <= clock_timestamp() \
                 ORDER BY next_attempt_at LIMIT $2",
            )
            .bind(consumer)
            .bind(i64::from(limit))
            .fetch_all(conn)
            .await?
            .iter()
            .map(|row| {
                Ok(DueKey {
                    topic: row.try_get(0)?,
                    key: row.try_get(1)?,
                })
            })
            .collect::<Result<Vec<_>, sqlx::Error>>()
        })
        .await
        .map_err(|err| DatabaseError::new("look for parked keys", &err))?;
    held.give_back();
    Ok(rows)
}

pub(crate) async fn read_head(
    conn: &mut PgConnection,
    consumer: &str,
    due: &DueKey,
    limit: u32,
) -> Result<Option<ParkedHead>, sqlx::Error> {
    // One statement: the key's attempts are the first event's.
    let rows = sqlx::query(
        "SELECT k.attempts, e.id, e.partition, e.record_offset, e.keyless, e.value, e.header_names, \
                e.header_values, e.first_failed_at \
         FROM parked_key k LEFT JOIN LATERAL ( \
           SELECT * FROM parked_event e \
            WHERE e.consumer = k.consumer AND e.topic = k.topic AND e.key = k.key \
            ORDER BY e.id LIMIT $4 \
         ) e ON true \
         WHERE k.consumer = $1 AND k.topic = $2 AND k.key = $3 ORDER BY e.id",
    )
    .bind(consumer)
    .bind(&due.topic)
    .bind(&due.key)
    .bind(i64::from(limit))
    .fetch_all(conn)
    .await?;
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let attempts: i32 = first.try_get(0)?;
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(id) = row.try_get::<Option<i64>, _>(1)? else {
            continue;
        };
        let names: Vec<String> = row.try_get(6)?;
        let values: Vec<Option<Vec<u8>>> = row.try_get(7)?;
        events.push(ParkedEvent {
            id,
            partition: row.try_get(2)?,
            offset: row.try_get(3)?,
            keyless: row.try_get(4)?,
            value: row.try_get(5)?,
            headers: names.into_iter().zip(values).collect(),
            first_failed_at: row.try_get(8)?,
        });
    }
    Ok(Some(ParkedHead {
        attempts: u32::try_from(attempts).unwrap_or(0),
        events,
    }))
}

/// How much of a consumer is parked; of events at most `limit` are counted, of keys 10,000.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn parked_counts(
    db: &Database,
    consumer: &str,
    limit: u32,
) -> Result<ParkedCounts, DatabaseError> {
    let mut held = db.hold().await?;
    let counts = held
        .answered(async |conn| {
            let row = sqlx::query(
                "SELECT (SELECT count(*) FROM (SELECT FROM parked_event WHERE consumer = $1 LIMIT $2) e), \
                        count(*), count(held_at), \
                        coalesce(extract(epoch FROM clock_timestamp() - min(parked_at)), 0)::float8 \
                 FROM (SELECT held_at, parked_at FROM parked_key WHERE consumer = $1 LIMIT $3) k",
            )
            .bind(consumer)
            .bind(i64::from(limit))
            .bind(COUNT_KEYS)
            .fetch_one(conn)
            .await?;
            let number = |n: i64| u64::try_from(n).unwrap_or(0);
            Ok(ParkedCounts {
                events: number(row.try_get(0)?),
                keys: number(row.try_get(1)?),
                held: number(row.try_get(2)?),
                oldest: Duration::try_from_secs_f64(row.try_get(3)?).unwrap_or_default(),
            })
        })
        .await
        .map_err(|err| DatabaseError::new("count parked events", &err))?;
    held.give_back();
    Ok(counts)
}

/// Records as columns: one array for each.
#[derive(Default)]
struct Columns<'a> {
    keys: Vec<&'a [u8]>,
    keyless: Vec<bool>,
    partitions: Vec<i32>,
    offsets: Vec<i64>,
    values: Vec<&'a [u8]>,
    ids: Vec<Uuid>,
    types: Vec<&'a str>,
    /// All headers, one record's behind the other's, and where each one's begin and end, from 1.
    header_names: Vec<String>,
    header_values: Vec<Option<&'a [u8]>>,
    first_headers: Vec<i32>,
    last_headers: Vec<i32>,
}

impl<'a> Columns<'a> {
    fn of(records: &'a [ParkedRecord<'a>]) -> Columns<'a> {
        let mut columns = Columns::default();
        for record in records {
            let place = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
            columns.keys.push(record.key);
            columns.keyless.push(record.keyless);
            columns.partitions.push(record.partition);
            columns.offsets.push(record.offset);
            columns.values.push(record.value);
            columns.ids.push(record.event_id.as_uuid());
            columns.types.push(record.event_type);
            columns
                .first_headers
                .push(place(columns.header_names.len() + 1));
            let (names, values) = headers(record.headers);
            columns.header_names.extend(names);
            columns.header_values.extend(values);
            columns.last_headers.push(place(columns.header_names.len()));
        }
        columns
    }

    fn bind<'q>(&'q self, query: Query<'q>) -> Query<'q> {
        query
            .bind(&self.keys)
            .bind(&self.keyless)
            .bind(&self.partitions)
            .bind(&self.offsets)
            .bind(&self.values)
            .bind(&self.ids)
            .bind(&self.types)
            .bind(&self.first_headers)
            .bind(&self.last_headers)
            .bind(&self.header_names)
            .bind(&self.header_values)
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// `$3` to `$13` are [`Columns`]; `$14` is the limit of one key, if it is to be looked at.
const PARK_BEHIND: &str = "\
    WITH given AS MATERIALIZED ( \
        SELECT g.*, \
               coalesce( \
                   (SELECT true FROM processed_event p \
                     WHERE p.consumer_group = $1 AND p.event_id = g.event_id LIMIT 1), \
                   (SELECT true FROM processed_foreign_event p \
                     WHERE p.consumer_group = $1 AND p.event_id = g.event_id)) AS processed \
        FROM unnest($3::bytea[], $4::boolean[], $5::integer[], $6::bigint[], $7::bytea[], $8::uuid[], $9::text[], \
                    $10::integer[], $11::integer[]) WITH ORDINALITY \
             AS g (key, keyless, record_partition, record_offset, value, event_id, event_type, \
                   first_header, last_header, place) \
    ), added AS ( \
        INSERT INTO parked_event (consumer, topic, key, keyless, partition, record_offset, value, \
                                  header_names, header_values, event_id, event_type) \
        SELECT $1, $2, key, keyless, record_partition, record_offset, value, \
               ($12::text[])[first_header:last_header], ($13::bytea[])[first_header:last_header], \
               event_id, event_type \
        FROM given WHERE processed IS NULL ORDER BY place \
        ON CONFLICT (consumer, topic, partition, record_offset) DO NOTHING \
        RETURNING key \
    ) \
    SELECT ARRAY(SELECT place FROM given WHERE processed), \
           (SELECT count(*) FROM added), \
           CASE WHEN $14 IS NULL THEN false ELSE \
             EXISTS (SELECT FROM (SELECT key, count(*) AS events FROM added GROUP BY key) new \
                      WHERE new.events + ( \
                          SELECT count(*) FROM ( \
                              SELECT FROM parked_event e \
                               WHERE e.consumer = $1 AND e.topic = $2 AND e.key = new.key LIMIT $14 \
                          ) few \
                      ) > $14) \
           END";

/// Whether the events `$5` are still the first `$6` of a key that is due after `$4` attempts.
const CLAIM: &str = "\
    SELECT EXISTS (SELECT FROM parked_key \
                    WHERE consumer = $1 AND topic = $2 AND key = $3 AND attempts = $4 \
                      AND held_at IS NULL AND next_attempt_at <= clock_timestamp()) \
       AND ARRAY(SELECT id FROM parked_event \
                  WHERE consumer = $1 AND topic = $2 AND key = $3 ORDER BY id LIMIT $6) = $5::bigint[]";

fn headers(headers: &[(String, Option<Vec<u8>>)]) -> (Vec<String>, Vec<Option<&[u8]>>) {
    headers
        .iter()
        .map(|(name, value)| (text(name.as_str(), usize::MAX), value.as_deref()))
        .unzip()
}

fn ids(events: &[ParkedEvent]) -> Vec<i64> {
    events.iter().map(|event| event.id).collect()
}

fn count(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// A hundred years at most, which PostgreSQL's clock can still add.
fn millis(wait: Duration) -> i64 {
    const MOST: i64 = 100 * 365 * 24 * 60 * 60 * 1000;
    i64::try_from(wait.as_millis()).unwrap_or(MOST).min(MOST)
}
