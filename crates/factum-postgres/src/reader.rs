//! Which consumer takes which version of an event (table `event_reader`): what says when an old version can go.

use std::time::Duration;

use sqlx::Row;
use time::OffsetDateTime;

use crate::database::Database;
use crate::error::DatabaseError;

/// How long writing the rows may take; a consumer goes on without.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Rows that are read at most: a consumer has one per type and generation of its code.
const MAX_ROWS: i64 = 10_000;

/// What one consumer says of one type of records that it takes, see [`record_readers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The type of the records.
    pub event_type: &'a str,
    /// The type that the handler gets: the same, or a newer one.
    pub taken_as: &'a str,
    /// The newest version of this event that the consumer's code knows.
    pub newest: &'a str,
    /// The topic that carries the records.
    pub topic: &'a str,
    /// Events that took effect from such records since the last time.
    pub taken: u64,
    /// Such records whose event had been handled before, mostly from another version, since the last time.
    pub duplicates: u64,
    /// When the last event took effect from such a record, if one did since the last time.
    pub last_taken_at: Option<OffsetDateTime>,
}

/// The consumer that says it, see [`record_readers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadingConsumer<'a> {
    /// Its stable name.
    pub name: &'a str,
    /// Kafka's group id.
    pub group: &'a str,
    /// The longest time from an event's first failure to its last retry.
    pub retry_horizon: Duration,
    /// For how many days it remembers foreign ids, if it takes any.
    pub foreign_days: Option<u32>,
}

/// A row of table `event_reader`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventReader {
    /// The consumer's stable name.
    pub consumer: String,
    /// The type of the records.
    pub event_type: String,
    /// The type that the handler gets: the same, or a newer one.
    pub taken_as: String,
    /// The newest version of this event that the consumer's code knows.
    pub newest: String,
    /// The topic that carries the records.
    pub topic: String,
    /// Kafka's group id at last.
    pub consumer_group: String,
    /// When a consumer first said so.
    pub declared_at: OffsetDateTime,
    /// When a running consumer last said so.
    pub seen_at: OffsetDateTime,
    /// Events that took effect from such records: about, since a process that dies doesn't tell its last ones.
    pub taken: u64,
    /// Such records whose event had been handled before.
    pub duplicates: u64,
    /// When the last event took effect from such a record.
    pub last_taken_at: Option<OffsetDateTime>,
    /// The longest time from an event's first failure to its last retry, in this consumer.
    pub retry_horizon: Duration,
    /// For how many days this consumer remembers foreign ids, if it takes any.
    pub foreign_days: Option<u32>,
}

/// Says what a consumer takes, in one short statement of its own: never part of an event's transaction.
///
/// # Errors
/// No connection, or the statement failed or wasn't done within five seconds. Nothing depends on it but what
/// `factum contract readers` shows.
pub async fn record_readers(
    db: &Database,
    consumer: &ReadingConsumer<'_>,
    readings: &[Reading<'_>],
) -> Result<(), DatabaseError> {
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let column = |of: fn(&Reading<'_>) -> String| readings.iter().map(of).collect::<Vec<String>>();
    let taken: Vec<i64> = readings.iter().map(|r| count(r.taken)).collect();
    let duplicates: Vec<i64> = readings.iter().map(|r| count(r.duplicates)).collect();
    let last: Vec<Option<OffsetDateTime>> = readings.iter().map(|r| r.last_taken_at).collect();
    let statement = sqlx::query(
        // Sorted, so that two instances of a consumer don't deadlock.
        "INSERT INTO event_reader AS known \
           (consumer, event_type, taken_as, newest, topic, consumer_group, taken, duplicates, last_taken_at, \
            retry_seconds, foreign_days) \
         SELECT $1, event_type, taken_as, newest, topic, $2, taken, duplicates, last_taken_at, $10, $11 \
         FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], \
                     $9::timestamptz[]) \
              AS given (event_type, taken_as, newest, topic, taken, duplicates, last_taken_at) \
         ORDER BY event_type, taken_as, newest \
         ON CONFLICT (consumer, event_type, taken_as, newest) DO UPDATE SET \
           topic = excluded.topic, consumer_group = excluded.consumer_group, \
           seen_at = greatest(known.seen_at, excluded.seen_at), \
           taken = known.taken + excluded.taken, \
           duplicates = known.duplicates + excluded.duplicates, \
           last_taken_at = greatest(known.last_taken_at, excluded.last_taken_at), \
           retry_seconds = excluded.retry_seconds, foreign_days = excluded.foreign_days",
    )
    .bind(consumer.name)
    .bind(consumer.group)
    .bind(column(|r| r.event_type.to_owned()))
    .bind(column(|r| r.taken_as.to_owned()))
    .bind(column(|r| r.newest.to_owned()))
    .bind(column(|r| r.topic.to_owned()))
    .bind(taken)
    .bind(duplicates)
    .bind(last)
    .bind(count(consumer.retry_horizon.as_secs()))
    .bind(consumer.foreign_days.map(|days| i32::try_from(days).unwrap_or(i32::MAX)));
    let mut held = db.hold().await?;
    held.answered_within(WRITE_LIMIT, async |conn| statement.execute(conn).await)
        .await
        .map_err(|err| DatabaseError::new("write what a consumer takes", &err))?;
    held.give_back();
    Ok(())
}

/// What every consumer of this database takes, by event type and consumer; at most 10,000 rows.
///
/// # Errors
/// A statement failed; [`ErrorKind::Other`](crate::ErrorKind::Other) when the table isn't there: run the migrations.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// for reader in factum_postgres::event_readers(&db).await? {
///     println!("{} takes {} as {}", reader.consumer, reader.event_type, reader.taken_as);
/// }
/// # Ok(()) }
/// ```
pub async fn event_readers(db: &Database) -> Result<Vec<EventReader>, DatabaseError> {
    let failed = |err: sqlx::Error| DatabaseError::new("read which consumers take what", &err);
    let mut held = db.hold().await?;
    let rows = held
        .answered(async |conn| {
            sqlx::query(
                "SELECT consumer, event_type, taken_as, newest, topic, consumer_group, declared_at, seen_at, \
                        taken, duplicates, last_taken_at, retry_seconds, foreign_days \
                 FROM event_reader ORDER BY event_type, consumer, taken_as, newest LIMIT $1",
            )
            .bind(MAX_ROWS)
            .fetch_all(conn)
            .await
        })
        .await
        .map_err(failed)?;
    held.give_back();
    let read = |row: sqlx::postgres::PgRow| {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(EventReader {
            consumer: row.try_get(0)?,
            event_type: row.try_get(1)?,
            taken_as: row.try_get(2)?,
            newest: row.try_get(3)?,
            topic: row.try_get(4)?,
            consumer_group: row.try_get(5)?,
            declared_at: row.try_get(6)?,
            seen_at: row.try_get(7)?,
            taken: count(row.try_get(8)?),
            duplicates: count(row.try_get(9)?),
            last_taken_at: row.try_get(10)?,
            retry_horizon: Duration::from_secs(count(row.try_get(11)?)),
            foreign_days: row
                .try_get::<Option<i32>, _>(12)?
                .and_then(|days| u32::try_from(days).ok()),
        })
    };
    rows.into_iter()
        .map(read)
        .collect::<Result<_, _>>()
        .map_err(failed)
}
