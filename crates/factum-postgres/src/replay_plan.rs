//! What a person decides about dead letters: plans of replays, their start, pause and stop, and discarding.
//!
//! Nothing here handles an event. A plan is a fixed list of letters, which the consumer's own service checks; a run
//! is a plan that the service carries out (RTRY-4).

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use crate::audit::{self, Actor, Deed};
use crate::bounded;
use crate::database::Database;
use crate::dead_letter_list::{self, Build, Letters, matching};
use crate::error::{self, DatabaseError};

/// Letters that a plan or a discarding holds unless it is told otherwise.
pub const USUAL_LETTERS: i64 = 10_000;
/// Letters that a plan or a discarding holds at most.
pub const MOST_LETTERS: i64 = 100_000;
/// Letters a second that a replay handles at most, unless it is told otherwise.
pub const USUAL_RATE: i32 = 100;
/// Letters a second that a replay may be told to handle.
pub const MOST_RATE: i32 = 10_000;

const UNIQUE_VIOLATION: &str = "23505";

/// Which letters a plan or a discarding is about.
#[derive(Debug, Clone, Copy)]
pub enum Selection<'a> {
    /// These, by their ids.
    Ids(&'a [i64]),
    /// Those that match, the oldest ids first, at most so many. The consumer must be given.
    Matching(&'a Letters<'a>, i64),
}

/// A plan to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewPlan<'a> {
    /// Which open letters.
    pub selection: Selection<'a>,
    /// What was asked for, in words: kept with the plan.
    pub asked: &'a str,
    /// Letters a second, 1 to [`MOST_RATE`].
    pub rate: i32,
    /// Whether letters outside the dedup window are handled too, once, without a dedup row.
    pub accept_outside_window: bool,
    /// Who makes it.
    pub actor: Actor<'a>,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActionError {
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// No process of the consumer has given a sign of life within 20 seconds.
    #[error("no process of {consumer} runs")]
    NoInstance {
        /// The consumer.
        consumer: String,
    },
    /// No letter is selected.
    #[error("no dead letter matches")]
    NoLetters,
    /// Letters of several consumers were named.
    #[error("these dead letters belong to {} consumers: {}", .consumers.len(), .consumers.join(", "))]
    ManyConsumers {
        /// The consumers.
        consumers: Vec<String>,
    },
    /// A named letter isn't there.
    #[error("there is no dead letter {id}")]
    NoLetter {
        /// The first such letter.
        id: i64,
    },
    /// A named letter isn't in the state that is needed.
    #[error("dead letter {id} is not {wanted}")]
    WrongState {
        /// The first such letter.
        id: i64,
        /// `open` or `discarded`.
        wanted: &'static str,
    },
    /// Letters have changed since the list was made.
    #[error("of {expected} dead letters only {found} are still {wanted}")]
    Changed {
        /// How many were in the list.
        expected: i64,
        /// How many still are.
        found: i64,
        /// `open` or `discarded`.
        wanted: &'static str,
    },
    /// There is no plan or run of this id.
    #[error("there is no such plan or run")]
    NoRun,
    /// The service hasn't checked the plan yet.
    #[error("the plan is not checked yet")]
    NotChecked,
    /// The plan's 15 minutes are over.
    #[error("the plan was good until {good_until}")]
    Expired {
        /// The moment.
        good_until: OffsetDateTime,
    },
    /// The run is in a state that doesn't allow it.
    #[error("it is {state}")]
    RunIs {
        /// Its state.
        state: String,
    },
    /// Another run of the consumer isn't at its end.
    #[error("another run of {consumer} is {state}")]
    AnotherRun {
        /// The other run.
        id: i64,
        /// Its state: `running` or `paused`.
        state: String,
        /// The consumer.
        consumer: String,
    },
}

/// A plan or a run with its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// Its id; `p-…` and `r-…` are written from it.
    pub id: i64,
    /// The consumer.
    pub consumer: String,
    /// `checking`, `planned`, `running`, `paused`, `stopped` or `done`.
    pub state: String,
    /// Letters a second.
    pub rate: i32,
    /// Whether letters outside the dedup window are handled.
    pub accept_outside_window: bool,
    /// After how many more items it pauses.
    pub first: Option<i32>,
    /// Who planned it.
    pub created_by: String,
    /// When it was planned.
    pub created_at: OffsetDateTime,
    /// Until when it can be started.
    pub good_until: OffsetDateTime,
    /// Who started it.
    pub started_by: Option<String>,
    /// When it was started.
    pub started_at: Option<OffsetDateTime>,
    /// Why.
    pub reason: Option<String>,
    /// Why it stopped.
    pub stop_cause: Option<String>,
    /// When it ended.
    pub ended_at: Option<OffsetDateTime>,
    /// Its items.
    pub items: Items,
}

/// How many items of a run are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Items {
    /// All.
    pub total: i64,
    /// Not looked at yet.
    pub unchecked: i64,
    /// Would be handled.
    pub ready: i64,
    /// Would be duplicates.
    pub duplicate: i64,
    /// The running build can't decode them.
    pub undecodable: i64,
    /// Outside the dedup window.
    pub out_of_window: i64,
    /// No longer open.
    pub gone: i64,
    /// Handled.
    pub handled: i64,
    /// Turned out to have been handled before.
    pub was_duplicate: i64,
    /// Failed again.
    pub failed: i64,
}

impl Items {
    /// What is done.
    #[must_use]
    pub fn finished(&self) -> i64 {
        self.handled + self.was_duplicate + self.failed
    }

    /// What a run still has before it.
    #[must_use]
    pub fn ahead(&self, accept_outside_window: bool) -> i64 {
        let outside = if accept_outside_window {
            self.out_of_window
        } else {
            0
        };
        self.ready + self.duplicate + outside
    }
}

/// What a person wants to know of a plan beside its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanFacts {
    /// Keys of the plan that are parked now.
    pub parked_keys: i64,
    /// What the running build can't decode, by the reasons that it gives; the most frequent three.
    pub undecodable: Vec<(String, i64)>,
    /// The newest process of the consumer.
    pub running: Option<Build>,
}

/// An item that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedItem {
    /// The letter's id.
    pub letter: i64,
    /// What failed, without values.
    pub detail: String,
}

/// A run's id as people write it: in base 36, behind `p-` for a plan and `r-` for a run.
///
/// ```
/// assert_eq!(factum_postgres::replay_plan::digits(1296), "100");
/// ```
#[must_use]
pub fn digits(run: i64) -> String {
    let mut digits = Vec::new();
    let mut rest = run.unsigned_abs();
    loop {
        let digit = u32::try_from(rest % 36).unwrap_or_default();
        digits.push(char::from_digit(digit, 36).unwrap_or('0'));
        rest /= 36;
        if rest == 0 {
            return digits.iter().rev().collect();
        }
    }
}

/// Makes a plan: a fixed list of open letters, good for 15 minutes, which the consumer's service now checks.
///
/// # Errors
/// [`ActionError::NoInstance`] when nobody is there to check it; `NoLetters`, `ManyConsumers` and `WrongState` when the
/// selection is no plan. Then nothing is written.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database) -> Result<(), factum_postgres::replay_plan::ActionError> {
/// use factum_postgres::audit::Actor;
/// use factum_postgres::replay_plan::{self, NewPlan, Selection, USUAL_RATE};
///
/// let plan = replay_plan::plan(&db, NewPlan {
///     selection: Selection::Ids(&[48213]),
///     asked: "letter 48213",
///     rate: USUAL_RATE,
///     accept_outside_window: false,
///     actor: Actor { name: "ana", via: "cli", reason: "" },
/// }).await?;
/// println!("{:?}", replay_plan::run(&db, plan).await?);
/// # Ok(()) }
/// ```
pub async fn plan(db: &Database, new: NewPlan<'_>) -> Result<i64, ActionError> {
    bounded::act(db, "plan a replay", async |conn| {
        let ids = match select(conn, new.selection, "open").await? {
            Ok(ids) => ids,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(consumer) = consumer_of(conn, &ids).await? else {
            return Ok(Err(ActionError::NoLetters));
        };
        if dead_letter_list::running(conn, &consumer).await?.is_none() {
            return Ok(Err(ActionError::NoInstance { consumer }));
        }
        let run: i64 = sqlx::query_scalar(
            "INSERT INTO replay_run (consumer, filter, rate, accept_outside_window, created_by, good_until) \
             VALUES ($1, jsonb_build_object('asked', $2::text), $3, $4, $5, clock_timestamp() + interval '15 min') \
             RETURNING id",
        )
        .bind(&consumer)
        .bind(new.asked)
        .bind(new.rate)
        .bind(new.accept_outside_window)
        .bind(new.actor.name)
        .fetch_one(&mut *conn)
        .await?;
        sqlx::query(
            "INSERT INTO replay_item (run_id, dead_letter_id, key, topic, partition, record_offset) \
             SELECT $1, id, key, topic, partition, record_offset FROM dead_letter WHERE id = ANY($2)",
        )
        .bind(run)
        .bind(&ids)
        .execute(conn)
        .await?;
        Ok(Ok(run))
    })
    .await?
}

/// The ids of a selection, in their order; all are in the state `wanted` and of one consumer.
async fn select(
    conn: &mut PgConnection,
    selection: Selection<'_>,
    wanted: &'static str,
) -> Result<Result<Vec<i64>, ActionError>, sqlx::Error> {
    let ids: Vec<i64> = match selection {
        Selection::Ids(asked) => {
            let rows = sqlx::query(
                "SELECT id, consumer, state = $2 FROM dead_letter WHERE id = ANY($1) ORDER BY id",
            )
            .bind(asked)
            .bind(wanted)
            .fetch_all(conn)
            .await?;
            let mut consumers: Vec<String> = Vec::new();
            let mut ids = Vec::new();
            let mut wrong = None;
            for row in &rows {
                let id: i64 = row.try_get(0)?;
                ids.push(id);
                let consumer: String = row.try_get(1)?;
                if !consumers.contains(&consumer) {
                    consumers.push(consumer);
                }
                if !row.try_get::<bool, _>(2)? {
                    wrong = wrong.or(Some(id));
                }
            }
            if let Some(id) = asked.iter().copied().find(|id| !ids.contains(id)) {
                return Ok(Err(ActionError::NoLetter { id }));
            }
            if let Some(id) = wrong {
                return Ok(Err(ActionError::WrongState { id, wanted }));
            }
            if consumers.len() > 1 {
                return Ok(Err(ActionError::ManyConsumers { consumers }));
            }
            ids
        }
        Selection::Matching(letters, limit) => {
            let sql = concat!(
                "SELECT id FROM dead_letter WHERE ",
                matching!(),
                " AND consumer = $2 AND state = $9 ORDER BY id LIMIT $10"
            );
            let rows = dead_letter_list::bind(sql, letters)
                .bind(wanted)
                .bind(limit);
            let rows = rows.fetch_all(conn).await?;
            rows.iter()
                .map(|row| row.try_get(0))
                .collect::<Result<_, _>>()?
        }
    };
    Ok(if ids.is_empty() {
        Err(ActionError::NoLetters)
    } else {
        Ok(ids)
    })
}

async fn consumer_of(conn: &mut PgConnection, ids: &[i64]) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT consumer FROM dead_letter WHERE id = $1")
        .bind(ids.first().copied())
        .fetch_optional(conn)
        .await
}

macro_rules! runs {
    ($rest:literal) => {
        concat!(
            "SELECT id, consumer, state, rate, accept_outside_window, first, created_by, created_at, good_until, \
             started_by, started_at, reason, stop_cause, ended_at, items.* \
             FROM replay_run, LATERAL ( \
               SELECT count(*), \
                 count(*) FILTER (WHERE i.state = 'unchecked'), count(*) FILTER (WHERE i.state = 'ready'), \
                 count(*) FILTER (WHERE i.state = 'duplicate'), count(*) FILTER (WHERE i.state = 'undecodable'), \
                 count(*) FILTER (WHERE i.state = 'out_of_window'), count(*) FILTER (WHERE i.state = 'gone'), \
                 count(*) FILTER (WHERE i.state = 'handled'), count(*) FILTER (WHERE i.state = 'was_duplicate'), \
                 count(*) FILTER (WHERE i.state = 'failed') \
               FROM replay_item i WHERE i.run_id = replay_run.id) AS items ",
            $rest
        )
    };
}

fn read_run(row: &PgRow) -> Result<Run, sqlx::Error> {
    Ok(Run {
        id: row.try_get(0)?,
        consumer: row.try_get(1)?,
        state: row.try_get(2)?,
        rate: row.try_get(3)?,
        accept_outside_window: row.try_get(4)?,
        first: row.try_get(5)?,
        created_by: row.try_get(6)?,
        created_at: row.try_get(7)?,
        good_until: row.try_get(8)?,
        started_by: row.try_get(9)?,
        started_at: row.try_get(10)?,
        reason: row.try_get(11)?,
        stop_cause: row.try_get(12)?,
        ended_at: row.try_get(13)?,
        items: Items {
            total: row.try_get(14)?,
            unchecked: row.try_get(15)?,
            ready: row.try_get(16)?,
            duplicate: row.try_get(17)?,
            undecodable: row.try_get(18)?,
            out_of_window: row.try_get(19)?,
            gone: row.try_get(20)?,
            handled: row.try_get(21)?,
            was_duplicate: row.try_get(22)?,
            failed: row.try_get(23)?,
        },
    })
}

/// A plan or a run; `None` when there is none of this id.
///
/// # Errors
/// No connection, a statement failed, or it took longer than two seconds.
pub async fn run(db: &Database, id: i64) -> Result<Option<Run>, DatabaseError> {
    bounded::read(db, "read a replay", async |conn| {
        let row = sqlx::query(runs!("WHERE id = $1")).bind(id);
        row.fetch_optional(conn)
            .await?
            .as_ref()
            .map(read_run)
            .transpose()
    })
    .await
}

/// Plans and runs, the newest first, at most 20.
///
/// # Errors
/// No connection, a statement failed, or it took longer than two seconds.
pub async fn runs(db: &Database, consumer: Option<&str>) -> Result<Vec<Run>, DatabaseError> {
    bounded::read(db, "read replays", async |conn| {
        let rows = sqlx::query(runs!(
            "WHERE $1::text IS NULL OR consumer = $1 ORDER BY id DESC LIMIT 20"
        ))
        .bind(consumer);
        rows.fetch_all(conn).await?.iter().map(read_run).collect()
    })
    .await
}

/// What a person wants to know of a plan beside its counts.
///
/// # Errors
/// No connection, a statement failed, or it took longer than two seconds.
pub async fn facts(db: &Database, plan: &Run) -> Result<PlanFacts, DatabaseError> {
    bounded::read(db, "read a plan", async |conn| {
        let parked_keys: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM parked_key p WHERE p.consumer = $2 AND EXISTS ( \
               SELECT FROM replay_item i WHERE i.run_id = $1 AND i.topic = p.topic AND i.key = p.key)",
        )
        .bind(plan.id)
        .bind(&plan.consumer)
        .fetch_one(&mut *conn)
        .await?;
        let rows = sqlx::query(
            "SELECT coalesce(i.detail, d.reason), count(*) \
             FROM replay_item i LEFT JOIN dead_letter d ON d.id = i.dead_letter_id \
             WHERE i.run_id = $1 AND i.state = 'undecodable' AND coalesce(i.detail, d.reason) IS NOT NULL \
             GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3",
        )
        .bind(plan.id)
        .fetch_all(&mut *conn)
        .await?;
        let undecodable = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect::<Result<_, sqlx::Error>>()?;
        Ok(PlanFacts {
            parked_keys,
            undecodable,
            running: dead_letter_list::running(conn, &plan.consumer).await?,
        })
    })
    .await
}

/// The items of a run that failed, by their ids; at most `limit`.
///
/// # Errors
/// No connection, a statement failed, or it took longer than two seconds.
pub async fn failures(
    db: &Database,
    run: i64,
    limit: usize,
) -> Result<Vec<FailedItem>, DatabaseError> {
    bounded::read(db, "read a replay's failures", async |conn| {
        let rows = sqlx::query(
            "SELECT dead_letter_id, coalesce(detail, '') FROM replay_item \
             WHERE run_id = $1 AND state = 'failed' ORDER BY dead_letter_id LIMIT $2",
        )
        .bind(run)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(FailedItem {
                    letter: row.try_get(0)?,
                    detail: row.try_get(1)?,
                })
            })
            .collect()
    })
    .await
}

/// A run's row, locked: consumer, state, until when it is good, and whether that is over.
struct LockedRun {
    consumer: String,
    state: String,
    good_until: OffsetDateTime,
    expired: bool,
    ahead: i64,
}

async fn lock(conn: &mut PgConnection, id: i64) -> Result<Option<LockedRun>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT consumer, state, good_until, good_until < clock_timestamp(), \
                (SELECT count(*) FROM replay_item i WHERE i.run_id = r.id AND \
                 (i.state IN ('ready', 'duplicate') OR (r.accept_outside_window AND i.state = 'out_of_window'))) \
         FROM replay_run r WHERE id = $1 FOR UPDATE OF r",
    )
    .bind(id)
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(LockedRun {
            consumer: row.try_get(0)?,
            state: row.try_get(1)?,
            good_until: row.try_get(2)?,
            expired: row.try_get(3)?,
            ahead: row.try_get(4)?,
        })
    })
    .transpose()
}

/// Lets the service carry out a plan, or go on with a run that is paused; with `first` it pauses once so many more
/// items are done. Gives the number of items that are ahead.
///
/// # Errors
/// See [`ActionError`]; then nothing is changed, and the refusal stands in the audit.
pub async fn start(
    db: &Database,
    id: i64,
    first: Option<i32>,
    actor: Actor<'_>,
) -> Result<i64, ActionError> {
    let subject = format!("r-{}", digits(id));
    let started = bounded::act(db, "start a replay", async |conn| {
        let Some(run) = lock(conn, id).await? else {
            return Ok(Err(Some(ActionError::NoRun)));
        };
        if let Some(refusal) = refusal(conn, id, &run).await? {
            return Ok(Err(Some(refusal)));
        }
        let started = sqlx::query(
            "UPDATE replay_run SET state = 'running', started_by = $2, reason = $3, \
                    started_at = coalesce(started_at, clock_timestamp()), failures_in_a_row = 0, \
                    first = $4 \
             WHERE id = $1",
        )
        .bind(id)
        .bind(actor.name)
        .bind(actor.reason)
        .bind(first)
        .execute(&mut *conn)
        .await;
        match started {
            // Two commands started a run of the consumer at the same moment: the index let one of them.
            Err(err) if error::code(&err) == UNIQUE_VIOLATION => return Ok(Err(None)),
            Err(err) => return Err(err),
            Ok(_) => {}
        }
        let events = first.map_or(run.ahead, |first| run.ahead.min(i64::from(first)));
        let deed = Deed {
            action: "replay",
            consumer: &run.consumer,
            subject: &subject,
            events,
        };
        audit::write(conn, actor, deed).await?;
        Ok(Ok(run.ahead))
    })
    .await;
    let refusal = match started? {
        Ok(ahead) => return Ok(ahead),
        Err(Some(refusal)) => refusal,
        Err(None) => the_other(db, id).await?.unwrap_or(ActionError::NoRun),
    };
    let deed = Deed {
        action: "replay_refused",
        consumer: "",
        subject: &subject,
        events: 0,
    };
    // The refusal is what the caller must hear of.
    let _ = bounded::act(db, "write the audit row", async |conn| {
        audit::write(conn, actor, deed)
            .await
            .map(Ok::<(), std::convert::Infallible>)
    })
    .await;
    Err(refusal)
}

async fn refusal(
    conn: &mut PgConnection,
    id: i64,
    run: &LockedRun,
) -> Result<Option<ActionError>, sqlx::Error> {
    match run.state.as_str() {
        "checking" => return Ok(Some(ActionError::NotChecked)),
        "planned" if run.expired => {
            return Ok(Some(ActionError::Expired {
                good_until: run.good_until,
            }));
        }
        "planned" | "paused" => {}
        state => {
            return Ok(Some(ActionError::RunIs {
                state: state.to_owned(),
            }));
        }
    }
    if let Some(other) = another_alive(conn, id, &run.consumer).await? {
        return Ok(Some(other));
    }
    if dead_letter_list::running(conn, &run.consumer)
        .await?
        .is_none()
    {
        return Ok(Some(ActionError::NoInstance {
            consumer: run.consumer.clone(),
        }));
    }
    Ok(None)
}

async fn another_alive(
    conn: &mut PgConnection,
    id: i64,
    consumer: &str,
) -> Result<Option<ActionError>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT id, state FROM replay_run \
         WHERE consumer = $1 AND state IN ('running', 'paused') AND id <> $2",
    )
    .bind(consumer)
    .bind(id)
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        Ok(ActionError::AnotherRun {
            id: row.try_get(0)?,
            state: row.try_get(1)?,
            consumer: consumer.to_owned(),
        })
    })
    .transpose()
}

async fn the_other(db: &Database, id: i64) -> Result<Option<ActionError>, DatabaseError> {
    bounded::read(db, "read a replay", async |conn| {
        let consumer: Option<String> =
            sqlx::query_scalar("SELECT consumer FROM replay_run WHERE id = $1")
                .bind(id)
                .fetch_optional(&mut *conn)
                .await?;
        match consumer {
            Some(consumer) => another_alive(conn, id, &consumer).await,
            None => Ok(None),
        }
    })
    .await
}

/// Lets a running run rest: the item at hand is finished, and the next one waits for [`start`].
///
/// # Errors
/// [`ActionError::NoRun`], or [`ActionError::RunIs`] when it isn't running.
pub async fn pause(db: &Database, id: i64, actor: Actor<'_>) -> Result<(), ActionError> {
    halt(db, id, Halt::Pause, actor).await
}

/// Ends a run, or a plan, for good: the item at hand is finished, the others stay open.
///
/// # Errors
/// [`ActionError::NoRun`], or [`ActionError::RunIs`] when it is at its end already.
pub async fn stop(db: &Database, id: i64, actor: Actor<'_>) -> Result<(), ActionError> {
    halt(db, id, Halt::Stop, actor).await
}

#[derive(Clone, Copy)]
enum Halt {
    Pause,
    Stop,
}

async fn halt(db: &Database, id: i64, halt: Halt, actor: Actor<'_>) -> Result<(), ActionError> {
    let subject = format!("r-{}", digits(id));
    bounded::act(db, "halt a replay", async |conn| {
        let Some(run) = lock(conn, id).await? else {
            return Ok(Err(ActionError::NoRun));
        };
        let (action, update) = match (halt, run.state.as_str()) {
            (Halt::Pause, "running") => (
                "replay_pause",
                sqlx::query("UPDATE replay_run SET state = 'paused' WHERE id = $1").bind(id),
            ),
            (Halt::Stop, "checking" | "planned" | "running" | "paused") => (
                "replay_stop",
                sqlx::query(
                    "UPDATE replay_run SET state = 'stopped', stop_cause = 'stopped by ' || $2, \
                     ended_at = clock_timestamp() WHERE id = $1",
                )
                .bind(id)
                .bind(actor.name),
            ),
            _ => return Ok(Err(ActionError::RunIs { state: run.state })),
        };
        update.execute(&mut *conn).await?;
        let deed = Deed {
            action,
            consumer: &run.consumer,
            subject: &subject,
            events: run.ahead,
        };
        audit::write(conn, actor, deed).await?;
        Ok(Ok(()))
    })
    .await?
}

/// Letters that are to be discarded, or taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FixedList {
    /// Their consumer.
    pub consumer: String,
    /// Their ids.
    pub ids: Vec<i64>,
}

/// The letters of a selection as they stand now, for a person to confirm: open ones, or with `undo` discarded ones.
///
/// # Errors
/// `NoLetters`, `ManyConsumers` and `WrongState` when the selection is no such list.
pub async fn fixed_list(
    db: &Database,
    selection: Selection<'_>,
    undo: bool,
) -> Result<FixedList, ActionError> {
    bounded::act(db, "read dead letters", async |conn| {
        let ids = match select(conn, selection, before_and_after(undo).0).await? {
            Ok(ids) => ids,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let consumer = consumer_of(conn, &ids).await?;
        Ok(consumer
            .map(|consumer| FixedList { consumer, ids })
            .ok_or(ActionError::NoLetters))
    })
    .await?
}

fn before_and_after(undo: bool) -> (&'static str, &'static str) {
    if undo {
        ("discarded", "open")
    } else {
        ("open", "discarded")
    }
}

/// Discards the letters of a list, all or none; with `undo` they are open again. They stay in the table.
///
/// # Errors
/// [`ActionError::Changed`] when one of them is no longer what it was: make the list anew.
pub async fn discard(
    db: &Database,
    list: &FixedList,
    undo: bool,
    actor: Actor<'_>,
) -> Result<(), ActionError> {
    let (before, after) = before_and_after(undo);
    let expected = i64::try_from(list.ids.len()).unwrap_or(i64::MAX);
    let subject = match list.ids.as_slice() {
        [one] => format!("letter {one}"),
        [first, .., last] => format!("letters {first} to {last}"),
        [] => return Err(ActionError::NoLetters),
    };
    bounded::act(db, "discard dead letters", async |conn| {
        // Locked in one order, so that two lists that share letters don't deadlock.
        sqlx::query("SELECT FROM dead_letter WHERE id = ANY($1) ORDER BY id FOR UPDATE")
            .bind(&list.ids)
            .execute(&mut *conn)
            .await?;
        let found: i64 = sqlx::query_scalar(
            "WITH changed AS ( \
               UPDATE dead_letter SET state = $3, state_at = clock_timestamp() \
                WHERE id = ANY($1) AND state = $2 AND consumer = $4 RETURNING 1) \
             SELECT count(*) FROM changed",
        )
        .bind(&list.ids)
        .bind(before)
        .bind(after)
        .bind(&list.consumer)
        .fetch_one(&mut *conn)
        .await?;
        if found != expected {
            return Ok(Err(ActionError::Changed {
                expected,
                found,
                wanted: before,
            }));
        }
        let deed = Deed {
            action: if undo { "discard_undo" } else { "discard" },
            consumer: &list.consumer,
            subject: &subject,
            events: found,
        };
        audit::write(conn, actor, deed).await?;
        Ok(Ok(()))
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::Items;

    #[test]
    fn what_is_ahead_counts_the_letters_outside_the_window_only_when_they_are_accepted() {
        let items = Items {
            ready: 3,
            duplicate: 2,
            out_of_window: 4,
            handled: 1,
            failed: 1,
            ..Items::default()
        };
        assert_eq!((items.ahead(false), items.ahead(true)), (5, 9));
        assert_eq!(items.finished(), 2);
    }
}
