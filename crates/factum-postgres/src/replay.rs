//! The service's side of a replay: it checks the plans of its consumers and carries their runs out. The command makes
//! plans and says when a run begins, pauses and stops.
//!
//! A run's items are taken one after the other, in the order of their offsets: an item's row is locked until its
//! state says what became of it, so that of several processes each takes the first one that is left, or none.

use std::time::Duration;

use factum_event::EventId;
use sqlx::postgres::PgRow;
use sqlx::{Connection, Row};
use uuid::Uuid;

use crate::database::Database;
use crate::dead_letter::{ERROR_BYTES, text};
use crate::error::DatabaseError;
use crate::event_id::now_unix_millis;
use crate::instance::InstanceId;
use crate::partition::{self, Place};

/// After so many failures one after the other a run stops itself.
pub const FAILURES_IN_A_ROW: u32 = 10;

/// Letters that one transaction checks, in number and in bytes (the first one counts whatever it has).
const CHECK_LETTERS: i64 = 200;
const CHECK_BYTES: i64 = 8 * 1024 * 1024;
/// Runs and plans that are looked at in one turn.
const DUE: i64 = 100;
const LIMIT: Duration = Duration::from_secs(30);

/// A plan or a run of one consumer that its service has work with, see [`due_replays`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DueReplay {
    /// `replay_run.id`.
    pub id: i64,
    /// What there is to do.
    pub task: ReplayTask,
}

/// See [`DueReplay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayTask {
    /// A plan: each of its letters is to be decoded, see [`check_replay`].
    Check,
    /// A run: its items are to be handled, so many in a second at most.
    Run {
        /// Items in a second.
        rate: u32,
    },
}

/// A dead letter's record, as it was stored.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoredLetter {
    /// `dead_letter.id`.
    pub id: i64,
    /// Where the record lay.
    pub topic: String,
    /// Where the record lay.
    pub partition: i32,
    /// Where the record lay.
    pub offset: i64,
    /// The record's key.
    pub key: Option<Vec<u8>>,
    /// The record's value.
    pub value: Option<Vec<u8>>,
    /// The record's headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// Where it lay, never what is in it.
impl std::fmt::Debug for StoredLetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredLetter")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// The next item of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplayItem {
    /// Its letter; nothing if that is gone, or open no longer.
    pub letter: Option<StoredLetter>,
    /// `dead_letter.id`.
    pub id: i64,
    /// Whether nobody knows any more if the event was handled: no dedup row can be written for it, and the item's own
    /// row guards the effect.
    pub outside_window: bool,
}

/// What became of an item, see [`Session::settle_replay`](crate::Session::settle_replay).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayOutcome {
    /// The handler's effect commits with this.
    Handled,
    /// The event had been handled before.
    Duplicate,
    /// The record was set aside again in this transaction.
    SetAside,
}

/// What a replay of one letter failed with.
#[derive(Debug, Clone, Copy)]
pub struct ReplayFailure<'a> {
    /// A stable name: `DeadLetterReason::as_str`.
    pub reason: &'a str,
    /// What failed, without values; cut at 1 KiB.
    pub error: &'a str,
    /// The build of the service that failed.
    pub build: &'a str,
}

/// Which item of which run, and who is at it.
#[derive(Debug, Clone, Copy)]
pub struct ReplayPlace {
    /// `replay_run.id`.
    pub run: i64,
    /// `dead_letter.id`.
    pub letter: i64,
    /// The process.
    pub runner: InstanceId,
}

/// Plans of a consumer that wait for their check, and runs that this process may go on with: nobody has finished an
/// item of theirs for 3 s, or this process did. 100 at most; cheap when there is nothing.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn due_replays(
    db: &Database,
    consumer: &str,
    runner: InstanceId,
) -> Result<Vec<DueReplay>, DatabaseError> {
    let failed = |err: sqlx::Error| DatabaseError::new("look for replays", &err);
    let mut held = db.hold().await?;
    let rows = held
        .answered(async |conn| {
            sqlx::query(
                "SELECT id, state, rate FROM replay_run \
                 WHERE consumer = $1 AND state IN ('checking', 'running') \
                   AND CASE state WHEN 'checking' THEN good_until > clock_timestamp() \
                       ELSE runner IS NULL OR runner = $2 \
                         OR runner_at < clock_timestamp() - interval '3 seconds' END \
                 ORDER BY state, id LIMIT $3",
            )
            .bind(consumer)
            .bind(runner.0)
            .bind(DUE)
            .fetch_all(conn)
            .await
        })
        .await
        .map_err(failed)?;
    held.give_back();
    let read = |row: PgRow| {
        let rate: i32 = row.try_get(2)?;
        Ok(DueReplay {
            id: row.try_get(0)?,
            task: match row.try_get::<&str, _>(1)? {
                "checking" => ReplayTask::Check,
                _ => ReplayTask::Run {
                    rate: u32::try_from(rate).unwrap_or(1).max(1),
                },
            },
        })
    };
    rows.into_iter()
        .map(read)
        .collect::<Result<_, _>>()
        .map_err(failed)
}

/// Checks the next letters of a plan, 200 at most, and gives whether more are to be checked by this process. `decode`
/// gives the event's id, or the reason why there is none.
///
/// The last call makes the plan `planned`. Another process that is at the same plan is left alone.
///
/// # Errors
/// No connection, or a statement failed; what earlier calls found stands.
pub async fn check_replay(
    db: &Database,
    consumer: &str,
    run: i64,
    decode: impl Fn(&StoredLetter) -> Result<EventId, &'static str>,
) -> Result<bool, DatabaseError> {
    let mut held = db.hold().await?;
    let more = held
        .answered_within(LIMIT, async |conn| {
            let mut tx = conn.begin().await?;
            let claimed = sqlx::query(
                "SELECT 1 FROM replay_run WHERE id = $1 AND consumer = $2 AND state = 'checking' \
                 FOR UPDATE SKIP LOCKED",
            )
            .bind(run)
            .bind(consumer)
            .fetch_optional(&mut *tx)
            .await?;
            if claimed.is_none() {
                tx.rollback().await?;
                return Ok(false);
            }
            let rows = sqlx::query(
                "SELECT i.dead_letter_id, l.state = 'open', l.topic, l.partition, l.record_offset, l.key, l.value, \
                        l.header_names, l.header_values \
                 FROM (SELECT i.dead_letter_id, i.topic, i.partition, i.record_offset, row_number() OVER place AS n, \
                              sum(coalesce(l.payload_bytes, 0)) OVER place AS bytes \
                       FROM (SELECT * FROM replay_item WHERE run_id = $1 AND state = 'unchecked' \
                             ORDER BY topic, partition, record_offset LIMIT $2) AS i \
                       LEFT JOIN dead_letter l ON l.id = i.dead_letter_id \
                       WINDOW place AS (ORDER BY i.topic, i.partition, i.record_offset, i.dead_letter_id)) AS i \
                 LEFT JOIN dead_letter l ON l.id = i.dead_letter_id \
                 WHERE i.n = 1 OR i.bytes <= $3 ORDER BY i.n",
            )
            .bind(run)
            .bind(CHECK_LETTERS)
            .bind(CHECK_BYTES)
            .fetch_all(&mut *tx)
            .await?;
            if rows.is_empty() {
                sqlx::query("UPDATE replay_run SET state = 'planned' WHERE id = $1")
                    .bind(run)
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await?;
                return Ok(false);
            }

            let partitions = partition::list(&mut tx).await?;
            let now = now_unix_millis();
            let mut letters: Vec<i64> = Vec::with_capacity(rows.len());
            let mut states: Vec<&'static str> = Vec::with_capacity(rows.len());
            let mut details: Vec<Option<&'static str>> = Vec::with_capacity(rows.len());
            let mut ids: Vec<Option<Uuid>> = Vec::with_capacity(rows.len());
            for row in &rows {
                let letter: i64 = row.try_get(0)?;
                let open: Option<bool> = row.try_get(1)?;
                let (state, detail, id) = match open {
                    Some(true) => match decode(&stored(row, letter, 2)?) {
                        Err(reason) => ("undecodable", Some(reason), None),
                        // It says no time: its table alone knows.
                        Ok(id) if id.is_foreign() => ("ready", None, Some(id.as_uuid())),
                        Ok(id) => match partition::place(&partitions, id, now) {
                            Place::OutOfWindow => ("out_of_window", None, None),
                            // For a partition that is missing the run waits, as a lane does.
                            Place::Inside | Place::Missing => ("ready", None, Some(id.as_uuid())),
                        },
                    },
                    Some(false) => ("gone", Some("no longer open"), None),
                    None => ("gone", Some("deleted"), None),
                };
                letters.push(letter);
                states.push(state);
                details.push(detail);
                ids.push(id);
            }
            sqlx::query(
                "UPDATE replay_item AS i \
                 SET state = CASE WHEN coalesce(known.event_id, foreign_id.event_id) IS NULL THEN given.state \
                                 ELSE 'duplicate' END, \
                     detail = given.detail, at = clock_timestamp() \
                 FROM unnest($2::bigint[], $3::text[], $4::text[], $5::uuid[]) AS given (letter, state, detail, id) \
                 LEFT JOIN processed_event AS known ON known.consumer_group = $6 AND known.event_id = given.id \
                 LEFT JOIN processed_foreign_event AS foreign_id \
                        ON foreign_id.consumer_group = $6 AND foreign_id.event_id = given.id \
                 WHERE i.run_id = $1 AND i.dead_letter_id = given.letter AND i.state = 'unchecked'",
            )
            .bind(run)
            .bind(letters)
            .bind(states)
            .bind(details)
            .bind(ids)
            .bind(consumer)
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(true)
        })
        .await
        .map_err(|err| DatabaseError::new("check the plan of a replay", &err))?;
    held.give_back();
    Ok(more)
}

/// The first item of a running run that is left; nothing when there is none, or the run was paused or stopped.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn next_replay_item(
    db: &Database,
    run: i64,
) -> Result<Option<ReplayItem>, DatabaseError> {
    let failed = |err: sqlx::Error| DatabaseError::new("read the next item of a replay", &err);
    let mut held = db.hold().await?;
    let row = held
        .answered(async |conn| {
            sqlx::query(
                "SELECT i.dead_letter_id, i.state = 'out_of_window', l.state = 'open', \
                        l.topic, l.partition, l.record_offset, l.key, l.value, l.header_names, l.header_values \
                 FROM replay_run r JOIN replay_item i ON i.run_id = r.id \
                 LEFT JOIN dead_letter l ON l.id = i.dead_letter_id AND l.state = 'open' \
                 WHERE r.id = $1 AND r.state = 'running' AND i.state IN ('ready', 'duplicate', 'out_of_window') \
                   AND (i.state <> 'out_of_window' OR r.accept_outside_window) \
                 ORDER BY i.topic, i.partition, i.record_offset LIMIT 1",
            )
            .bind(run)
            .fetch_optional(conn)
            .await
        })
        .await
        .map_err(failed)?;
    held.give_back();
    let read = |row: PgRow| {
        let id = row.try_get(0)?;
        let open: Option<bool> = row.try_get(2)?;
        Ok(ReplayItem {
            id,
            outside_window: row.try_get(1)?,
            letter: match open {
                Some(true) => Some(stored(&row, id, 3)?),
                _ => None,
            },
        })
    };
    row.map(read).transpose().map_err(failed)
}

/// Says of an item that its letter is gone or open no longer, if it is so.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn drop_replay_item(db: &Database, place: ReplayPlace) -> Result<(), DatabaseError> {
    execute(
        db,
        "leave a letter out of a replay",
        sqlx::query(
            "UPDATE replay_item SET state = 'gone', at = clock_timestamp(), detail = 'no longer open' \
             WHERE run_id = $1 AND dead_letter_id = $2 AND state IN ('ready', 'duplicate', 'out_of_window') \
               AND NOT EXISTS (SELECT 1 FROM dead_letter WHERE id = $2 AND state = 'open')",
        )
        .bind(place.run)
        .bind(place.letter),
    )
    .await
}

/// Ends a run of which no item is left; nothing happens if one is.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn finish_replay(db: &Database, run: i64) -> Result<(), DatabaseError> {
    execute(
        db,
        "end a replay",
        sqlx::query(
            "UPDATE replay_run r SET state = 'done', ended_at = clock_timestamp() \
             WHERE r.id = $1 AND r.state IN ('running', 'paused') AND NOT EXISTS ( \
               SELECT 1 FROM replay_item i WHERE i.run_id = r.id \
                 AND i.state IN ('ready', 'duplicate', 'out_of_window') \
                 AND (i.state <> 'out_of_window' OR r.accept_outside_window))",
        )
        .bind(run),
    )
    .await
}

/// Stops a run for good, with a cause for a person to read.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn stop_replay(db: &Database, run: i64, cause: &str) -> Result<(), DatabaseError> {
    execute(
        db,
        "stop a replay",
        sqlx::query(
            "UPDATE replay_run SET state = 'stopped', stop_cause = $2, ended_at = clock_timestamp() \
             WHERE id = $1 AND state IN ('running', 'paused')",
        )
        .bind(run)
        .bind(text(cause, ERROR_BYTES)),
    )
    .await
}

async fn execute(
    db: &Database,
    what: &'static str,
    statement: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
) -> Result<(), DatabaseError> {
    let mut held = db.hold().await?;
    held.answered(async |conn| statement.execute(conn).await)
        .await
        .map_err(|err| DatabaseError::new(what, &err))?;
    held.give_back();
    Ok(())
}

/// A letter's record, whose columns begin at `first`: topic, partition, offset, key, value, names, values.
fn stored(row: &PgRow, id: i64, first: usize) -> Result<StoredLetter, sqlx::Error> {
    let names: Vec<String> = row.try_get(first + 5)?;
    let values: Vec<Option<Vec<u8>>> = row.try_get(first + 6)?;
    Ok(StoredLetter {
        id,
        topic: row.try_get(first)?,
        partition: row.try_get(first + 1)?,
        offset: row.try_get(first + 2)?,
        key: row.try_get(first + 3)?,
        value: row.try_get(first + 4)?,
        headers: names.into_iter().zip(values).collect(),
    })
}

/// What `Session::claim_replay` asks, and locks until the transaction ends.
pub(crate) async fn claim(
    conn: &mut sqlx::PgConnection,
    place: ReplayPlace,
) -> Result<bool, sqlx::Error> {
    let claimed = sqlx::query(
        "SELECT 1 FROM replay_item i JOIN replay_run r ON r.id = i.run_id \
         JOIN dead_letter l ON l.id = i.dead_letter_id \
         WHERE i.run_id = $1 AND i.dead_letter_id = $2 AND i.state IN ('ready', 'duplicate', 'out_of_window') \
           AND r.state = 'running' AND l.state = 'open' \
         FOR UPDATE OF i, l SKIP LOCKED",
    )
    .bind(place.run)
    .bind(place.letter)
    .fetch_optional(conn)
    .await?;
    Ok(claimed.is_some())
}

/// What `Session::settle_replay` writes.
pub(crate) async fn settle(
    conn: &mut sqlx::PgConnection,
    place: ReplayPlace,
    outcome: ReplayOutcome,
) -> Result<(), sqlx::Error> {
    let failed = match outcome {
        ReplayOutcome::Handled | ReplayOutcome::Duplicate => {
            let state = match outcome {
                ReplayOutcome::Handled => "handled",
                _ => "was_duplicate",
            };
            sqlx::query(
                "WITH letter AS ( \
                   UPDATE dead_letter SET state = 'replayed', state_at = clock_timestamp() WHERE id = $2) \
                 UPDATE replay_item SET state = $3, detail = NULL, at = clock_timestamp() \
                 WHERE run_id = $1 AND dead_letter_id = $2",
            )
            .bind(place.run)
            .bind(place.letter)
            .bind(state)
            .execute(&mut *conn)
            .await?;
            false
        }
        // The letter says why. An event that has left the window since the check is left out, and no failure.
        ReplayOutcome::SetAside => {
            let state: Option<String> = sqlx::query_scalar(
                "WITH letter AS ( \
                   UPDATE dead_letter SET attempts = attempts + 1 WHERE id = $2 RETURNING reason, path) \
                 UPDATE replay_item \
                 SET state = CASE reason WHEN 'out_of_window' THEN reason ELSE 'failed' END, \
                     detail = concat_ws(' at ', reason, path), at = clock_timestamp() \
                 FROM letter WHERE run_id = $1 AND dead_letter_id = $2 RETURNING state",
            )
            .bind(place.run)
            .bind(place.letter)
            .fetch_optional(&mut *conn)
            .await?;
            state.as_deref() == Some("failed")
        }
    };
    count(conn, place, failed).await
}

/// What `Session::fail_replay` writes. Nothing, if another process has finished the item meanwhile.
pub(crate) async fn fail(
    conn: &mut sqlx::PgConnection,
    place: ReplayPlace,
    failure: &ReplayFailure<'_>,
) -> Result<(), sqlx::Error> {
    let written = sqlx::query(
        "WITH item AS ( \
           UPDATE replay_item SET state = 'failed', detail = $4, at = clock_timestamp() \
           WHERE run_id = $1 AND dead_letter_id = $2 AND state IN ('ready', 'duplicate', 'out_of_window') \
           RETURNING dead_letter_id), \
         letter AS ( \
           UPDATE dead_letter l SET attempts = attempts + 1, last_seen = clock_timestamp(), reason = $3, path = NULL, \
             path_group = '', error = $4, build = $5 \
           FROM item WHERE l.id = item.dead_letter_id AND l.state = 'open') \
         SELECT 1 FROM item",
    )
    .bind(place.run)
    .bind(place.letter)
    .bind(failure.reason)
    .bind(text(failure.error, ERROR_BYTES))
    .bind(text(failure.build, 255))
    .fetch_optional(&mut *conn)
    .await?;
    match written {
        Some(_) => count(conn, place, true).await,
        None => Ok(()),
    }
}

/// Counts an item: its run pauses after so many as were asked for, and stops after too many failures in a row.
async fn count(
    conn: &mut sqlx::PgConnection,
    place: ReplayPlace,
    failed: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE replay_run r SET runner = $2, runner_at = clock_timestamp(), \
           first = CASE WHEN r.first > 1 THEN r.first - 1 END, \
           failures_in_a_row = now.failures, \
           state = CASE WHEN r.state <> 'running' THEN r.state WHEN now.failures >= $4 THEN 'stopped' \
                        WHEN r.first <= 1 THEN 'paused' ELSE r.state END, \
           stop_cause = CASE WHEN r.state = 'running' AND now.failures >= $4 \
                             THEN now.failures || ' failures in a row' ELSE r.stop_cause END, \
           ended_at = CASE WHEN r.state = 'running' AND now.failures >= $4 THEN clock_timestamp() \
                           ELSE r.ended_at END \
         FROM (SELECT id, CASE WHEN $3 THEN failures_in_a_row + 1 ELSE 0 END AS failures \
               FROM replay_run WHERE id = $1 FOR UPDATE) AS now \
         WHERE r.id = now.id",
    )
    .bind(place.run)
    .bind(place.runner.0)
    .bind(failed)
    .bind(i32::try_from(FAILURES_IN_A_ROW).unwrap_or(i32::MAX))
    .execute(conn)
    .await?;
    Ok(())
}
