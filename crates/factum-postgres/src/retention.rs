//! What goes with time, and how: a few rows at a time, each time in a transaction of its own.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;

use crate::connection::millis;
use crate::database::Database;
use crate::error::{self, DatabaseError};

/// How long rows stay that nobody needs any more. The dedup window has a setting of its own,
/// [`Window`](crate::Window), and goes by whole partitions.
///
/// What waits is not deleted by time, whatever its age: outbox rows that are unpublished or were set aside, parked
/// events, calls that are unfinished or in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Published outbox rows, from their publication on.
    pub outbox: Duration,
    /// Dead letters that were replayed or discarded, from then on.
    pub dead_letters: Duration,
    /// Dead letters that are open, since they were last seen. `None`: they stay.
    pub open_dead_letters: Option<Duration>,
    /// Calls that are done or were resolved, from then on. A row is also what stops a second call when an event is
    /// handled again outside of the dedup window, so keep it for longer than that.
    pub calls: Duration,
    /// Replays that have ended, and plans that were not carried out, with their items.
    pub replays: Duration,
    /// Rows of the audit. `None`: they stay.
    pub audit: Option<Duration>,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Retention {
    /// Published rows 3 days, settled dead letters 30, calls and replays 90; open dead letters and the audit stay.
    fn default() -> Self {
        Self {
            outbox: DAY * 3,
            dead_letters: DAY * 30,
            open_dead_letters: None,
            calls: DAY * 90,
            replays: DAY * 90,
            audit: None,
        }
    }
}

/// What one run of [`apply_retention`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// `false`: another instance is at it, and nothing was done here.
    pub leader: bool,
    /// Published outbox rows deleted.
    pub outbox: u64,
    /// Dead letters deleted.
    pub dead_letters: u64,
    /// Finished calls deleted.
    pub calls: u64,
    /// Replays deleted, and items of replays.
    pub replays: u64,
    /// Ids of foreign producers forgotten.
    pub foreign_ids: u64,
    /// Rows of the audit deleted.
    pub audit: u64,
    /// More is due: the time was over, or something stood in the way. The next run goes on with it.
    pub unfinished: bool,
}

/// Advisory lock "factum", retention.
const LOCK: i64 = 0x6661_6374_756d_0004;

/// Rows of one statement, at most: some ten milliseconds of work.
const BATCH: i64 = 1_000;

/// Only rows that nobody else has locked are deleted, so this is for what else might be in the way, such as an ALTER TABLE.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// At most for one statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// At most for one run.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// After each statement it waits for as long as the statement took, so that at most half of one core and of one disk is
/// its own: at least so long, at most so long.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));

const WHAT: &str = "delete what is older than its retention";

/// Deletes what is older than its retention. One instance does it, the others find the advisory lock taken. Run it every
/// minute or so: it ends after ten minutes at the latest, and the next run goes on.
///
/// Writers don't notice. Each statement deletes at most 1,000 rows in a transaction of its own, in the order of an index
/// and from where the last one ended, and passes over rows that others have locked; then it pauses for as long as it took
/// (public case 39). It waits half a second for a lock at most, and then leaves the table to the next run.
///
/// # Errors
/// No connection, or a statement failed otherwise than for its time or a lock; what was deleted before stays deleted.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::DatabaseError> {
/// let report = factum_postgres::apply_retention(&db, &factum_postgres::Retention::default()).await?;
/// println!("{} published rows deleted", report.outbox);
/// # Ok(()) }
/// ```
pub async fn apply_retention(
    db: &Database,
    retention: &Retention,
) -> Result<RetentionReport, DatabaseError> {
    let mut held = db.hold().await?;
    let report = held
        .answered_within(LIMIT * 2, async |conn| run(conn, retention).await)
        .await
        .map_err(|err| DatabaseError::new(WHAT, &err));
    // Closed, not given back: that frees the advisory lock, and the time limits set here are retention's own.
    held.close().await;
    report
}

async fn run(
    conn: &mut PgConnection,
    retention: &Retention,
) -> Result<RetentionReport, sqlx::Error> {
    let set_up = format!(
        "SET lock_timeout = {}; SET statement_timeout = {}; SET factum.retention = 'audit'",
        millis(LOCK_TIMEOUT),
        millis(STATEMENT_TIMEOUT),
    );
    sqlx::raw_sql(AssertSqlSafe(set_up))
        .execute(&mut *conn)
        .await?;
    let leader: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
        .bind(LOCK)
        .fetch_one(&mut *conn)
        .await?;
    let mut run = Run {
        conn,
        ends_at: Instant::now() + LIMIT,
        unfinished: false,
    };
    let mut report = RetentionReport {
        leader,
        ..RetentionReport::default()
    };
    if !leader {
        return Ok(report);
    }
    report.outbox = run.by_id(OUTBOX, retention.outbox).await?;
    report.foreign_ids = run.by_time(FOREIGN_IDS, Duration::ZERO).await?;
    report.dead_letters = run.by_time(DEAD_LETTERS, retention.dead_letters).await?;
    if let Some(keep) = retention.open_dead_letters {
        report.dead_letters += run.by_id(OPEN_DEAD_LETTERS, keep).await?;
    }
    report.calls = run.by_time(CALLS, retention.calls).await?;
    report.replays = run.by_time(REPLAY_ITEMS, retention.replays).await?;
    report.replays += run.by_time(REPLAYS, retention.replays).await?;
    if let Some(keep) = retention.audit {
        report.audit = run.by_id(AUDIT, keep).await?;
    }
    report.unfinished = run.unfinished;
    Ok(report)
}

/// Writes down what a service keeps for how long, by the names of its settings, and that it looks after it now: for
/// `factum doctor`.
///
/// # Errors
/// No connection, or the statement failed.
pub async fn record_maintenance(
    db: &Database,
    service: &str,
    settings: &[(&str, String)],
) -> Result<(), DatabaseError> {
    let settings: serde_json::Map<String, serde_json::Value> = settings
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone().into()))
        .collect();
    let statement = sqlx::query(
        "INSERT INTO maintenance (service, settings) VALUES ($1, $2::text::jsonb) \
         ON CONFLICT (service) DO UPDATE SET settings = excluded.settings, ran_at = clock_timestamp()",
    )
    .bind(service)
    .bind(serde_json::Value::Object(settings).to_string());
    let mut held = db.hold().await?;
    held.answered(async |conn| statement.execute(conn).await)
        .await
        .map_err(|err| DatabaseError::new("write down what maintenance keeps", &err))?;
    held.give_back();
    Ok(())
}

struct Run<'a> {
    conn: &'a mut PgConnection,
    ends_at: Instant,
    unfinished: bool,
}

impl Run<'_> {
    /// Walks a table from its smallest id up. What was read once isn't read again in this run, so that neither rows that
    /// stay nor entries of what was deleted make later statements slower.
    async fn by_id(&mut self, sql: &'static str, keep: Duration) -> Result<u64, sqlx::Error> {
        let mut deleted = 0;
        let mut after = i64::MIN;
        let mut batch = BATCH;
        while self.has_time() {
            let asked_at = Instant::now();
            let answer = sqlx::query(sql)
                // No plan is kept: one from when the table was empty would read all of it.
                .persistent(false)
                .bind(keep.as_secs_f64())
                .bind(batch)
                .bind(after)
                .fetch_one(&mut *self.conn)
                .await;
            let row = match self.answered(answer, &mut batch)? {
                Answer::Row(row) => row,
                Answer::Again => continue,
                Answer::Leave => break,
            };
            let (last, read): (Option<i64>, i64) = (row.try_get(0)?, row.try_get(1)?);
            deleted += count(row.try_get(2)?);
            // Ids ascend with the time at which rows were written, about: behind a batch that is all young nothing is due.
            let old: bool = row.try_get(3)?;
            match last {
                Some(last) if read >= batch && old => after = last,
                _ => break,
            }
            pause(asked_at.elapsed()).await;
        }
        Ok(deleted)
    }

    /// Takes the oldest by an index on the time.
    async fn by_time(&mut self, sql: &'static str, keep: Duration) -> Result<u64, sqlx::Error> {
        let mut deleted = 0;
        let mut from = OffsetDateTime::UNIX_EPOCH;
        let mut batch = BATCH;
        while self.has_time() {
            let asked_at = Instant::now();
            let answer = sqlx::query(sql)
                .persistent(false)
                .bind(keep.as_secs_f64())
                .bind(batch)
                .bind(from)
                .fetch_one(&mut *self.conn)
                .await;
            let row = match self.answered(answer, &mut batch)? {
                Answer::Row(row) => row,
                Answer::Again => continue,
                Answer::Leave => break,
            };
            let last: Option<OffsetDateTime> = row.try_get(0)?;
            let gone: i64 = row.try_get(1)?;
            deleted += count(gone);
            match last {
                Some(last) if gone >= batch => from = last,
                _ => break,
            }
            pause(asked_at.elapsed()).await;
        }
        Ok(deleted)
    }

    fn has_time(&mut self) -> bool {
        let left = Instant::now() < self.ends_at;
        self.unfinished |= !left;
        left
    }

    /// A statement that was cut takes fewer rows the next time; one that met a lock leaves its table to the next run.
    fn answered<T>(
        &mut self,
        answer: Result<T, sqlx::Error>,
        batch: &mut i64,
    ) -> Result<Answer<T>, sqlx::Error> {
        match answer {
            Ok(row) => Ok(Answer::Row(row)),
            Err(err) if error::code(&err) == CUT && *batch > 1 => {
                *batch = (*batch / 4).max(1);
                Ok(Answer::Again)
            }
            Err(err) if [CUT, LOCKED, DEADLOCK].contains(&error::code(&err)) => {
                self.unfinished = true;
                Ok(Answer::Leave)
            }
            Err(err) => Err(err),
        }
    }
}

enum Answer<T> {
    Row(T),
    Again,
    Leave,
}

/// "canceling statement due to statement timeout".
const CUT: &str = "57014";
/// "canceling statement due to lock timeout".
const LOCKED: &str = "55P03";
const DEADLOCK: &str = "40P01";

async fn pause(took: Duration) {
    tokio::time::sleep(took.clamp(PAUSE.0, PAUSE.1)).await;
}

fn count(rows: i64) -> u64 {
    u64::try_from(rows).unwrap_or(0)
}

macro_rules! cutoff {
    () => {
        "statement_timestamp() - make_interval(secs => $1)"
    };
}

/// One batch in the order of ids: the last id read, how many were read, how many deleted, and whether one of them was
/// written before the cutoff.
macro_rules! by_id {
    ($table:literal, $due:expr, $written:literal) => {
        concat!(
            "WITH batch AS MATERIALIZED ( \
                 SELECT id, coalesce(",
            $due,
            ", false) AS due, ",
            $written,
            " < ",
            cutoff!(),
            " AS old FROM ",
            $table,
            " WHERE id > $3 ORDER BY id LIMIT $2 \
             ), gone AS ( \
                 DELETE FROM ",
            $table,
            " WHERE id = ANY(ARRAY( \
                     SELECT id FROM ",
            $table,
            " WHERE id = ANY(ARRAY(SELECT id FROM batch WHERE due)) AND ",
            $due,
            " FOR UPDATE SKIP LOCKED)) \
                 RETURNING 1 \
             ) \
             SELECT max(id), count(*), (SELECT count(*) FROM gone), coalesce(bool_or(old), false) FROM batch"
        )
    };
}

/// One batch of the oldest: the last time, and how many were deleted.
macro_rules! by_time {
    ($table:literal, $which:literal, $time:literal) => {
        concat!(
            "WITH due AS MATERIALIZED ( \
                 SELECT ctid AS place, ",
            $time,
            " AS at FROM ",
            $table,
            " WHERE ",
            $which,
            " AND ",
            $time,
            " < ",
            cutoff!(),
            " AND ",
            $time,
            " >= $3 ORDER BY 2 LIMIT $2 FOR UPDATE SKIP LOCKED \
             ), gone AS ( \
                 DELETE FROM ",
            $table,
            " WHERE ctid = ANY(ARRAY(SELECT place FROM due)) RETURNING 1 \
             ) \
             SELECT max(at), (SELECT count(*) FROM gone) FROM due"
        )
    };
}

/// Published rows and no others: a row that is on its way or was set aside has no `published_at`.
const OUTBOX: &str = by_id!(
    "outbox",
    concat!("published_at < ", cutoff!()),
    "created_at"
);

const OPEN_DEAD_LETTERS: &str = by_id!(
    "dead_letter",
    concat!("(state = 'open' AND last_seen < ", cutoff!(), ")"),
    "first_seen"
);

const AUDIT: &str = by_id!("audit", concat!("at < ", cutoff!()), "at");

const DEAD_LETTERS: &str = by_time!("dead_letter", "state <> 'open'", "state_at");

const CALLS: &str = by_time!(
    "outbound_call",
    "state IN ('done', 'resolved')",
    "finished_at"
);

const FOREIGN_IDS: &str = by_time!("processed_foreign_event", "true", "keep_until");

/// Before their runs: a run may have 100,000 of them, which would go with it in one statement.
const REPLAY_ITEMS: &str = concat!(
    "WITH due AS MATERIALIZED ( \
         SELECT i.ctid AS place FROM replay_run r JOIN replay_item i ON i.run_id = r.id \
         WHERE r.state NOT IN ('running', 'paused') AND coalesce(r.ended_at, r.good_until) < ",
    cutoff!(),
    " LIMIT $2 FOR UPDATE OF i SKIP LOCKED \
     ), gone AS ( \
         DELETE FROM replay_item WHERE ctid = ANY(ARRAY(SELECT place FROM due)) RETURNING 1 \
     ) \
     SELECT max($3::timestamptz), (SELECT count(*) FROM gone) FROM due"
);

const REPLAYS: &str = by_time!(
    "replay_run",
    "state NOT IN ('running', 'paused') \
     AND NOT EXISTS (SELECT FROM replay_item i WHERE i.run_id = replay_run.id)",
    "coalesce(ended_at, good_until)"
);
