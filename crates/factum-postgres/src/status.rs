//! How everything is, by a few bounded queries: what `factum status` shows.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use crate::bounded;
use crate::database::Database;
use crate::dead_letter_list;
use crate::error::DatabaseError;
use crate::partition::{self, Bounds};

/// Counts of tables that grow stop here: a count above it means "more than 10,000".
pub const COUNTED: i64 = 10_000;

/// How everything is. A part that is `None` took longer than two seconds and was cut.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// The database's name.
    pub database: String,
    /// The database's clock.
    pub at: OffsetDateTime,
    /// Every consumer that has run here.
    pub consumers: Option<Vec<ConsumerStatus>>,
    /// The outbox.
    pub outbox: Option<OutboxStatus>,
    /// Calls to other systems.
    pub calls: Option<CallStatus>,
    /// The dedup window.
    pub window: Option<WindowStatus>,
}

/// A consumer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// Its stable name.
    pub consumer: String,
    /// Its processes with a sign of life within 20 seconds.
    pub processes: i64,
    /// Records that it has not handled yet, if its processes say so.
    pub lag: Option<i64>,
    /// The age of the oldest of them in seconds, if its processes say so.
    pub oldest_seconds: Option<f64>,
    /// Events a second, if its processes say so.
    pub events_per_second: Option<f64>,
    /// Keys that are parked, counted up to one more than [`COUNTED`].
    pub parked_keys: i64,
    /// Those of them that wait for a person.
    pub held_keys: i64,
    /// Dead letters that are open, exactly.
    pub dead_letters: i64,
}

/// The outbox.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OutboxStatus {
    /// Rows on their way, counted up to one more than [`COUNTED`].
    pub unpublished: i64,
    /// The age of the oldest row on its way.
    pub oldest: Option<Duration>,
    /// Slots whose first row has failed.
    pub stopped_slots: Vec<i16>,
    /// Rows that were given up, counted up to one more than [`COUNTED`].
    pub set_aside: i64,
    /// Relays that share the slots now.
    pub relays: i64,
    /// Slots, of 64, that no relay holds now.
    pub free_slots: i64,
}

/// Calls to other systems.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStatus {
    /// Calls that wait for a person, counted up to one more than [`COUNTED`].
    pub set_aside: i64,
    /// Calls of which nobody knows whether they had an effect, counted likewise.
    pub unknown: i64,
}

/// The partitions of `processed_event`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct WindowStatus {
    /// For how many days back an event is known.
    pub days_back: i64,
    /// For how many days ahead there are partitions; negative when there is none for today.
    pub days_ahead: i64,
}

/// Reads it all. Each part has two seconds.
///
/// # Errors
/// No connection, or a statement failed otherwise than for its time.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// let status = factum_postgres::status::status(&db).await?;
/// println!("{} as of {}", status.database, status.at);
/// # Ok(()) }
/// ```
pub async fn status(db: &Database) -> Result<Status, DatabaseError> {
    let (database, at) = bounded::read(db, "read the time", async |conn| {
        let row = sqlx::query("SELECT current_database()::text, clock_timestamp()")
            .fetch_one(conn)
            .await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    })
    .await?;
    Ok(Status {
        database,
        at,
        consumers: bounded::read_or_cut(db, "read the consumers", consumers).await?,
        outbox: bounded::read_or_cut(db, "read the outbox", outbox).await?,
        calls: bounded::read_or_cut(db, "read the calls", calls).await?,
        window: bounded::read_or_cut(db, "read the dedup window", async |conn| {
            window(conn, at).await
        })
        .await?,
    })
}

/// Whether a process with this consumer has given a sign of life within 20 seconds.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn runs(db: &Database, consumer: &str) -> Result<bool, DatabaseError> {
    bounded::read(db, "look for the consumer's processes", async |conn| {
        Ok(dead_letter_list::running(conn, consumer).await?.is_some())
    })
    .await
}

async fn consumers(conn: &mut PgConnection) -> Result<Vec<ConsumerStatus>, sqlx::Error> {
    let rows = sqlx::query(
        "WITH alive AS MATERIALIZED ( \
           SELECT unnest(consumers) AS consumer, state -> 'consumers' AS said FROM instance \
            WHERE seen_at > clock_timestamp() - interval '20 s'), \
         said AS ( \
           SELECT consumer, said -> consumer -> 'lag' AS lag, \
                  said -> consumer -> 'oldest_seconds' AS oldest, \
                  said -> consumer -> 'events_per_second' AS rate FROM alive), \
         process AS ( \
           SELECT consumer, count(*) AS processes, \
                  sum(CASE WHEN jsonb_typeof(lag) = 'number' THEN (lag #>> '{}')::float8 END) AS lag, \
                  max(CASE WHEN jsonb_typeof(oldest) = 'number' THEN (oldest #>> '{}')::float8 END) AS oldest, \
                  sum(CASE WHEN jsonb_typeof(rate) = 'number' THEN (rate #>> '{}')::float8 END) AS rate \
             FROM said GROUP BY consumer), \
         dead AS ( \
           SELECT consumer, sum(open)::bigint AS open FROM ( \
             SELECT consumer, open FROM dead_letter_group UNION ALL SELECT consumer, open FROM dead_letter_delta) AS all_open \
            GROUP BY consumer), \
         known AS ( \
           SELECT consumer FROM event_reader WHERE seen_at > clock_timestamp() - interval '7 d' \
           UNION SELECT consumer FROM process UNION SELECT consumer FROM dead WHERE open <> 0) \
         SELECT consumer, coalesce(processes, 0), lag, oldest, rate, \
                (SELECT count(*) FROM (SELECT FROM parked_key k WHERE k.consumer = known.consumer LIMIT $1) AS counted), \
                (SELECT count(*) FROM (SELECT FROM parked_key k WHERE k.consumer = known.consumer \
                                       AND held_at IS NOT NULL LIMIT $1) AS counted), \
                coalesce(open, 0) \
           FROM known LEFT JOIN process USING (consumer) LEFT JOIN dead USING (consumer) ORDER BY consumer LIMIT 1000",
    )
    .bind(COUNTED + 1)
    .fetch_all(conn)
    .await?;
    let read = |row: &PgRow| {
        let lag: Option<f64> = row.try_get(2)?;
        Ok(ConsumerStatus {
            consumer: row.try_get(0)?,
            processes: row.try_get(1)?,
            // A count: what is beyond an integer's range is cut to it.
            lag: lag.map(|lag| lag as i64),
            oldest_seconds: row.try_get(3)?,
            events_per_second: row.try_get(4)?,
            parked_keys: row.try_get(5)?,
            held_keys: row.try_get(6)?,
            dead_letters: row.try_get(7)?,
        })
    };
    rows.iter().map(read).collect()
}

/// The outbox alone: `None` when it took longer than two seconds and was cut.
///
/// # Errors
/// No connection, or a statement failed otherwise than for its time.
pub async fn outbox_status(db: &Database) -> Result<Option<OutboxStatus>, DatabaseError> {
    bounded::read_or_cut(db, "read the outbox", outbox).await
}

async fn outbox(conn: &mut PgConnection) -> Result<OutboxStatus, sqlx::Error> {
    let row = sqlx::query(
        "SELECT (SELECT count(*) FROM (SELECT FROM outbox \
                  WHERE published_at IS NULL AND set_aside_at IS NULL LIMIT $1) AS counted), \
                (SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 FROM outbox \
                  WHERE published_at IS NULL AND set_aside_at IS NULL ORDER BY id LIMIT 1), \
                ARRAY(SELECT s::smallint FROM generate_series(0, 63) AS s, LATERAL ( \
                        SELECT attempts, last_error FROM outbox WHERE slot = s AND published_at IS NULL \
                           AND set_aside_at IS NULL ORDER BY id LIMIT 1) AS head \
                      WHERE head.attempts > 0 AND head.last_error IS NOT NULL ORDER BY s), \
                (SELECT count(*) FROM (SELECT FROM outbox \
                  WHERE published_at IS NULL AND set_aside_at IS NOT NULL LIMIT $1) AS counted), \
                (SELECT count(*) FROM relay_member WHERE expires_at > clock_timestamp()), \
                (SELECT count(*) FROM relay_lease WHERE expires_at <= clock_timestamp())",
    )
    .bind(COUNTED + 1)
    .fetch_one(conn)
    .await?;
    let oldest: Option<f64> = row.try_get(1)?;
    Ok(OutboxStatus {
        unpublished: row.try_get(0)?,
        oldest: oldest.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
        stopped_slots: row.try_get(2)?,
        set_aside: row.try_get(3)?,
        relays: row.try_get(4)?,
        free_slots: row.try_get(5)?,
    })
}

async fn calls(conn: &mut PgConnection) -> Result<CallStatus, sqlx::Error> {
    let row = sqlx::query(
        "SELECT (SELECT count(*) FROM (SELECT FROM outbound_call WHERE state = 'set_aside' LIMIT $1) AS counted), \
                (SELECT count(*) FROM (SELECT FROM outbound_call WHERE state = 'unknown' LIMIT $1) AS counted)",
    )
    .bind(COUNTED + 1)
    .fetch_one(conn)
    .await?;
    Ok(CallStatus {
        set_aside: row.try_get(0)?,
        unknown: row.try_get(1)?,
    })
}

async fn window(conn: &mut PgConnection, at: OffsetDateTime) -> Result<WindowStatus, sqlx::Error> {
    const DAY: i64 = 86_400_000;
    let partitions = partition::list(conn).await?;
    let now = i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX);
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    for partition in partitions.iter().filter(|p| !p.detach_pending) {
        if let Bounds::Range { lower, upper } = partition.bounds {
            // The first 48 bits of an id are its milliseconds.
            let moment = |id: uuid::Uuid| i64::try_from(id.as_u128() >> 80).unwrap_or(i64::MAX);
            first = first.min(lower.map_or(0, moment));
            last = last.max(upper.map_or(i64::MAX, moment));
        }
    }
    if last < now {
        return Ok(WindowStatus {
            days_back: 0,
            days_ahead: -1,
        });
    }
    Ok(WindowStatus {
        days_back: (now - first.min(now)) / DAY,
        days_ahead: (last - now) / DAY,
    })
}
