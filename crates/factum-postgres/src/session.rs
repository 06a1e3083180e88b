use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use factum_event::EventId;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use uuid::Uuid;

use crate::connection::{Held, Turn};
use crate::database::Database;
use crate::dead_letter::{self, DeadLetter};
use crate::error::{self, DatabaseError, ErrorKind};
use crate::event_id::now_unix_millis;
use crate::outbound_call::{self, AnsweredCall};
use crate::partition::{self, Place};
use crate::raw_record::{self, RawRecord};
use crate::replay::{self, ReplayFailure, ReplayOutcome, ReplayPlace};

/// The consumer's transactions, one after the other, on one connection that stays its own.
///
/// The order of calls for a batch: [`begin`](Self::begin), [`dedup`](Self::dedup) (or
/// [`transaction_id`](Self::transaction_id)), the handlers with [`conn`](Self::conn),
/// [`dead_letter`](Self::dead_letter) where needed, [`commit`](Self::commit). After a failure:
/// [`rollback_after_failure`](Self::rollback_after_failure).
///
/// Inside, sqlx always believes that a transaction is open, so a handler's `conn.begin()` makes a
/// savepoint; see `docs/decisions/0003-session-holds-one-connection.md`.
///
/// Every method may be dropped half-way: the connection is then closed, never used again, and the
/// server rolls back. So may the session.
///
/// ```no_run
/// # async fn example(db: factum_postgres::Database, ids: Vec<factum_event::EventId>)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// use factum_postgres::{DedupVerdict, Session};
///
/// let mut session = Session::open(&db).await?;
/// session.begin().await?;
/// let dedup = session.dedup("billing-order-confirmed", &ids).await?;
/// for (id, verdict) in ids.iter().zip(&dedup.verdicts) {
///     if *verdict == DedupVerdict::Fresh {
///         sqlx::query("INSERT INTO invoice (id) VALUES ($1)")
///             .bind(id.as_uuid())
///             .execute(session.conn())
///             .await?;
///     }
/// }
/// session.commit(dedup.xid).await?;
/// session.close().await;
/// # Ok(()) }
/// ```
pub struct Session {
    db: Database,
    /// `None` once the connection was lost. Taken out for the length of every statement, so that
    /// a future dropped half-way takes the connection with it.
    held: Option<Held>,
    open: bool,
    /// Whether a handler may have written already.
    touched: bool,
    batch: Option<Batch>,
    /// For how many days foreign ids are remembered; `None`: none may come.
    foreign_days: Option<u32>,
}

/// What the open transaction has written to `processed_event`.
struct Batch {
    consumer: String,
    fresh: Vec<Uuid>,
}

/// PostgreSQL's id of one transaction (`xid8`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionId(u64);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What [`Session::dedup`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Dedup {
    /// One verdict per given id, in the given order.
    pub verdicts: Vec<DedupVerdict>,
    /// The transaction that holds the new rows: what [`Session::commit`] asks for.
    pub xid: TransactionId,
}

/// Whether an event is to be handled (IDEM-1 to IDEM-3; listing fault 1: decided by the rows that
/// the database returns).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DedupVerdict {
    /// Never handled by this consumer: handle it in this transaction.
    Fresh,
    /// Handled before, or given a second time in this batch: nothing to do.
    Duplicate,
    /// Older than the dedup window, or more than a day in the future with no partition: nobody
    /// knows whether it was handled (listing fault 12). It goes to the dead letters.
    OutOfWindow,
    /// Its key is parked: it waits behind it, unless it was handled before
    /// ([`Session::dedup_unless_parked`] alone).
    Parked,
}

/// Why [`Session::commit`] didn't commit as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A handler swallowed an SQL error, so PostgreSQL would have turned COMMIT into ROLLBACK.
    /// Rolled back: nothing stands, the events are to be handled again.
    #[error(
        "a handler swallowed an SQL error, after which PostgreSQL keeps nothing of a transaction; \
         return the error from the handler, or run the statement in a savepoint (`conn.begin()`)"
    )]
    SwallowedError,
    /// A handler ended the transaction: it ran COMMIT, ROLLBACK or the like. Stop the consumer.
    #[error("{}", transaction_ended(*committed))]
    TransactionEnded {
        /// The dedup rows stand. Where a second transaction was open, it was committed too (all
        /// handlers had finished); if that failed, the dedup rows were taken back.
        committed: bool,
    },
    /// Another transaction was in the way (40001, 40P01). Rolled back: run the batch again.
    #[error("another transaction was in the way (serialization failure or deadlock)")]
    Conflict,
    /// The connection was lost: nobody knows whether the transaction was committed. Run the batch
    /// again with the same ids: the dedup rows decide. The session is closed.
    #[error("the outcome of COMMIT is unknown: {0}")]
    Unknown(DatabaseError),
    /// PostgreSQL refused, a deferred constraint for example. Rolled back.
    #[error(transparent)]
    Database(DatabaseError),
}

/// What [`Session::rollback_after_failure`] found besides a failed handler.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RollbackError {
    /// A handler ended the transaction: it ran COMMIT, ROLLBACK or the like. Stop the consumer.
    #[error("{}", transaction_ended(*committed))]
    TransactionEnded {
        /// The batch's dedup rows had become durable. Those of the unfinished events were taken
        /// back.
        committed: bool,
    },
    /// A handler ended the transaction, and the dedup rows of the unfinished events couldn't be
    /// taken back: without help those events count as handled. Stop the consumer and delete
    /// those rows of `processed_event`.
    #[error(
        "{}; the dedup rows of {events} unfinished events of consumer {consumer} couldn't be \
         taken back and must be deleted by hand (DELETE FROM processed_event WHERE xmin = \
         '{xid32}', and the same from processed_foreign_event): {error}",
        transaction_ended(true)
    )]
    NotTakenBack {
        /// The consumer whose rows stand.
        consumer: String,
        /// How many rows stand.
        events: usize,
        /// `xmin` of those rows.
        xid32: u32,
        /// Why.
        error: DatabaseError,
    },
    /// The rollback itself failed. Nothing of the transaction stands. The session is closed if
    /// the connection was lost.
    #[error(transparent)]
    Database(DatabaseError),
}

fn transaction_ended(committed: bool) -> &'static str {
    if committed {
        "a handler committed the consumer's transaction; remove COMMIT (or END, or PREPARE \
         TRANSACTION) from the handler: the consumer commits after it"
    } else {
        "a handler rolled the consumer's transaction back; remove ROLLBACK (or ABORT) from the \
         handler: return an error instead, or use a savepoint (`conn.begin()`)"
    }
}

/// What a connection says about its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transaction {
    None,
    Failed,
    Open(Option<TransactionId>),
}

impl Session {
    /// Takes a connection for as long as the session lives, without waiting for a turn: for who isn't one of many.
    ///
    /// # Errors
    /// No connection within `acquire_timeout`.
    pub async fn open(db: &Database) -> Result<Self, DatabaseError> {
        Self::open_with(db, None).await
    }

    /// The same in its turn, which ends with the session.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_in(db: &Database, turn: Turn) -> Result<Self, DatabaseError> {
        Self::open_with(db, Some(turn)).await
    }

    async fn open_with(db: &Database, turn: Option<Turn>) -> Result<Self, DatabaseError> {
        let mut held = db.hold_for_session().await?;
        if !held.is_prepared() {
            // sqlx counts depth: at 1 a handler's `begin()` is a savepoint. The count stays at 1 for
            // the connection's life, while the server's transactions come and go; forgetting the
            // guard object leaks nothing, it holds a reference alone.
            let prepared = held
                .answered(async |conn| {
                    std::mem::forget(conn.begin().await?);
                    sqlx::raw_sql("COMMIT").execute(conn).await
                })
                .await;
            prepared.map_err(|err| DatabaseError::new("open a session", &err))?;
        }
        held.keep_for_sessions(turn);
        Ok(Self {
            db: db.clone(),
            held: Some(held),
            open: false,
            touched: false,
            batch: None,
            foreign_days: None,
        })
    }

    /// Says for how many days [`dedup`](Self::dedup) remembers [foreign ids](EventId::is_foreign), which no partition
    /// holds: they have a table of their own, `processed_foreign_event`. Without days such an id is an error.
    pub fn keep_foreign_ids(&mut self, days: Option<u32>) {
        self.foreign_days = days;
    }

    /// Begins a transaction, READ COMMITTED whatever the database's default (public case 8).
    ///
    /// # Errors
    /// The session was closed, or a transaction is open already.
    pub async fn begin(&mut self) -> Result<(), DatabaseError> {
        const WHAT: &str = "begin a transaction";
        if self.open {
            return Err(misuse(WHAT, "one is open already"));
        }
        self.simple(WHAT, BEGIN).await?;
        self.open = true;
        self.touched = false;
        self.batch = None;
        Ok(())
    }

    /// The connection, inside the open transaction, for a handler.
    ///
    /// # Panics
    /// If no transaction is open: a write would be committed on its own.
    pub fn conn(&mut self) -> &mut PgConnection {
        self.touched = true;
        match &mut self.held {
            Some(held) if self.open => held.conn(),
            _ => panic!("Session::conn is for handlers: call Session::begin first"),
        }
    }

    /// Whether the connection is gone. A closed session serves no more; open another.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.held.is_none()
    }

    /// Records the ids as handled by this consumer and tells which of them are new. One statement
    /// for the batch; ids are sorted, so that two batches never deadlock. A concurrent duplicate
    /// waits for the other transaction's end, at most `lock_timeout`, and then sees its outcome
    /// (public case 7).
    ///
    /// Ids outside the window are typed verdicts; the rest of the batch isn't touched by them.
    /// That costs two more round trips and a new transaction, which is why this must be the
    /// first thing after [`begin`](Self::begin).
    ///
    /// # Errors
    /// A statement failed: call [`rollback`](Self::rollback). `Unavailable` when the partition
    /// for today is missing, because then maintenance is at fault and not the event.
    pub async fn dedup(&mut self, consumer: &str, ids: &[EventId]) -> Result<Dedup, DatabaseError> {
        let queue: Vec<(EventId, &[u8])> = ids.iter().map(|id| (*id, &[][..])).collect();
        self.dedup_queue(consumer, None, &queue).await
    }

    /// The same for a lane's batch of one topic, each event with its key, in the same one statement: an event whose
    /// key is parked gets no dedup row and the verdict [`Parked`](DedupVerdict::Parked), whether it was handled
    /// before or not; [`park_behind`](Self::park_behind) tells. Until the transaction ends no parked key that was
    /// found can be freed.
    ///
    /// # Errors
    /// As [`dedup`](Self::dedup).
    pub async fn dedup_unless_parked(
        &mut self,
        consumer: &str,
        topic: &str,
        events: &[(EventId, &[u8])],
    ) -> Result<Dedup, DatabaseError> {
        self.dedup_queue(consumer, Some(topic), events).await
    }

    async fn dedup_queue(
        &mut self,
        consumer: &str,
        topic: Option<&str>,
        events: &[(EventId, &[u8])],
    ) -> Result<Dedup, DatabaseError> {
        const WHAT: &str = "deduplicate events";
        if !self.open || self.touched || self.batch.is_some() {
            return Err(misuse(WHAT, "it must come once, right after begin"));
        }
        let mut given: Vec<(Uuid, &[u8])> = events
            .iter()
            .map(|(id, key)| (id.as_uuid(), *key))
            .collect();
        given.sort_unstable();
        given.dedup_by_key(|event| event.0);
        let mut outside = BTreeSet::new();
        let is_foreign = |id: &Uuid| EventId::try_from(*id).is_err();
        let (foreign, mut given): (Vec<_>, Vec<_>) =
            given.into_iter().partition(|(id, _)| is_foreign(id));
        let foreign: (Vec<Uuid>, Vec<&[u8]>) = foreign.into_iter().unzip();
        let foreign_days = match self.foreign_days {
            Some(days) => i32::try_from(days).unwrap_or(i32::MAX),
            None if foreign.0.is_empty() => 0,
            None => {
                return Err(misuse(
                    WHAT,
                    "it has foreign ids, and nobody said how long they are kept",
                ));
            }
        };
        for _ in 0..DEDUP_TRIES {
            let (ids, keys): (Vec<Uuid>, Vec<&[u8]>) = given.iter().copied().unzip();
            type Found = (String, Vec<Uuid>, Vec<Vec<u8>>);
            let inserted = self
                .statement::<Found>(async |conn| match topic {
                    _ if !foreign.0.is_empty() => {
                        let query = sqlx::query(DEDUP_WITH_FOREIGN).bind(consumer).bind(&ids);
                        let query = query.bind(topic).bind(&keys);
                        let query = query.bind(&foreign.0).bind(&foreign.1).bind(foreign_days);
                        let row = query.fetch_one(conn).await?;
                        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
                    }
                    None => {
                        let query = sqlx::query(DEDUP).bind(consumer).bind(&ids);
                        let row = query.fetch_one(conn).await?;
                        Ok((row.try_get(0)?, row.try_get(1)?, Vec::new()))
                    }
                    Some(topic) => {
                        let query = sqlx::query(DEDUP_UNLESS_PARKED).bind(consumer).bind(&ids);
                        let row = query.bind(topic).bind(&keys).fetch_one(conn).await?;
                        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
                    }
                })
                .await;
            match inserted {
                Ok((xid, fresh, parked)) => {
                    let xid = parse_xid(WHAT, &xid)?;
                    let verdicts = verdicts(events, &outside, &fresh, &parked);
                    self.batch = Some(Batch {
                        consumer: consumer.to_owned(),
                        fresh,
                    });
                    return Ok(Dedup { verdicts, xid });
                }
                Err(Failed::Answer(err)) if error::code(&err) == NO_PARTITION => {}
                Err(failed) => return Err(failed.into_error(WHAT)),
            }
            outside.extend(self.find_outside(WHAT, &ids).await?);
            given.retain(|event| !outside.contains(&event.0));
        }
        Err(DatabaseError::plain(
            ErrorKind::Other,
            WHAT,
            "processed_event refuses rows though a partition holds them",
            "run the schema check (`factum doctor`)",
        ))
    }

    /// Begins anew and looks which ids no partition holds.
    async fn find_outside(
        &mut self,
        what: &'static str,
        given: &[Uuid],
    ) -> Result<Vec<Uuid>, DatabaseError> {
        self.simple(what, "ROLLBACK").await?;
        self.open = false;
        self.simple(what, BEGIN).await?;
        self.open = true;
        let partitions = self
            .statement(partition::list)
            .await
            .map_err(|failed| failed.into_error(what))?;
        let now = now_unix_millis();
        let mut outside = Vec::new();
        for uuid in given {
            // They came as event ids.
            let Ok(id) = EventId::try_from(*uuid) else {
                continue;
            };
            match partition::place(&partitions, id, now) {
                Place::Inside => {}
                Place::OutOfWindow => outside.push(*uuid),
                Place::Missing => {
                    return Err(DatabaseError::plain(
                        ErrorKind::Unavailable,
                        what,
                        "processed_event has no partition for today (IDEM-2)",
                        "maintenance must run: start it in one service, or call \
                         factum_postgres::maintain",
                    ));
                }
            }
        }
        Ok(outside)
    }

    /// The open transaction's id; for a transaction without [`dedup`](Self::dedup), one that
    /// holds dead letters alone.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn transaction_id(&mut self) -> Result<TransactionId, DatabaseError> {
        const WHAT: &str = "read the transaction's id";
        self.needs_open(WHAT)?;
        let xid = self
            .statement(async |conn| {
                sqlx::query_scalar::<_, String>("SELECT pg_current_xact_id()::text")
                    .fetch_one(conn)
                    .await
            })
            .await
            .map_err(|failed| failed.into_error(WHAT))?;
        parse_xid(WHAT, &xid)
    }

    /// Writes a dead letter into the open transaction (RTRY-5).
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn dead_letter(&mut self, letter: &DeadLetter<'_>) -> Result<(), DatabaseError> {
        const WHAT: &str = "write a dead letter";
        self.needs_open(WHAT)?;
        self.statement(async |conn| dead_letter::write(conn, letter).await)
            .await
            .map_err(|failed| failed.into_error(WHAT))
    }

    /// Writes a record for the relay to send byte for byte into the open transaction.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn send_record(&mut self, record: &RawRecord<'_>) -> Result<(), DatabaseError> {
        const WHAT: &str = "write a record to the outbox";
        self.needs_open(WHAT)?;
        self.statement(async |conn| raw_record::write(conn, record).await)
            .await
            .map_err(|failed| failed.into_error(WHAT))
    }

    /// Makes a replay's item this transaction's own: `false` if it is no longer there to be handled, or another
    /// process is at it.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn claim_replay(&mut self, place: ReplayPlace) -> Result<bool, DatabaseError> {
        const WHAT: &str = "claim an item of a replay";
        self.needs_open(WHAT)?;
        self.statement(async |conn| replay::claim(conn, place).await)
            .await
            .map_err(|failed| failed.into_error(WHAT))
    }

    /// Writes what became of a claimed item, and of its letter, into the open transaction.
    ///
    /// # Errors
    /// A statement failed, or no transaction is open.
    pub async fn settle_replay(
        &mut self,
        place: ReplayPlace,
        outcome: ReplayOutcome,
    ) -> Result<(), DatabaseError> {
        const WHAT: &str = "settle an item of a replay";
        self.needs_open(WHAT)?;
        self.statement(async |conn| replay::settle(conn, place, outcome).await)
            .await
            .map_err(|failed| failed.into_error(WHAT))
    }

    /// Writes into the open transaction that an item failed: its letter stays open and says so. Nothing is written if
    /// another process has finished the item meanwhile.
    ///
    /// # Errors
    /// A statement failed, or no transaction is open.
    pub async fn fail_replay(
        &mut self,
        place: ReplayPlace,
        failure: &ReplayFailure<'_>,
    ) -> Result<(), DatabaseError> {
        const WHAT: &str = "write that an item of a replay failed";
        self.needs_open(WHAT)?;
        self.statement(async |conn| replay::fail(conn, place, failure).await)
            .await
            .map_err(|failed| failed.into_error(WHAT))
    }

    /// Locks up to `limit` calls whose response is due for its handler, in the open transaction. Other sessions pass
    /// them over.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn lock_answered_calls(
        &mut self,
        service: &str,
        endpoints: &[String],
        limit: u32,
    ) -> Result<Vec<AnsweredCall>, DatabaseError> {
        const WHAT: &str = "take calls' responses";
        self.needs_open(WHAT)?;
        self.statement(async |conn| {
            outbound_call::lock_answered(conn, service, endpoints, limit).await
        })
        .await
        .map_err(|failed| failed.into_error(WHAT))
    }

    /// Marks calls as done in the open transaction, their responses' handlers having succeeded, and gives how many
    /// were still to be done.
    ///
    /// # Errors
    /// The statement failed, or no transaction is open.
    pub async fn finish_answered_calls(&mut self, ids: &[i64]) -> Result<u64, DatabaseError> {
        const WHAT: &str = "mark calls as done";
        self.needs_open(WHAT)?;
        self.statement(async |conn| outbound_call::finish_answered(conn, ids).await)
            .await
            .map_err(|failed| failed.into_error(WHAT))
    }

    /// Commits, if the transaction is still the one of `xid` and still sound: guard and COMMIT in
    /// one round trip.
    ///
    /// PostgreSQL answers COMMIT of a failed transaction with success, so a handler that swallows
    /// an SQL error would lose its event; a handler that runs COMMIT or ROLLBACK would leave the
    /// rest of the batch outside. The guard finds both. Savepoints of the handler's own pass.
    ///
    /// # Errors
    /// See [`CommitError`]; in every case no transaction is open afterwards.
    pub async fn commit(&mut self, xid: TransactionId) -> Result<(), CommitError> {
        const WHAT: &str = "commit";
        self.needs_open(WHAT).map_err(CommitError::Database)?;
        self.open = false;
        // The savepoint keeps a second transaction, one that a handler began after a COMMIT of
        // its own, from being spoilt by the guard's "no". Without any transaction SAVEPOINT fails.
        let sql = format!(
            "SAVEPOINT factum_guard; \
             SELECT 1 / (CASE WHEN pg_current_xact_id_if_assigned()::text = '{xid}' \
                         THEN 1 ELSE 0 END); \
             COMMIT"
        );
        match self.raw(sql).await {
            Ok(()) => Ok(()),
            Err(Failed::Lost(err)) => Err(CommitError::Unknown(err.because(WHAT))),
            Err(Failed::Answer(err)) => self.after_refused_commit(xid, err).await,
        }
    }

    /// COMMIT wasn't carried out. Finds out why, and leaves no transaction open.
    async fn after_refused_commit(
        &mut self,
        xid: TransactionId,
        err: sqlx::Error,
    ) -> Result<(), CommitError> {
        const WHAT: &str = "commit";
        let unknown = |failed: Failed| CommitError::Unknown(failed.into_error(WHAT));
        let ours = DatabaseError::new(WHAT, &err);
        let refused = || match ours.kind() {
            ErrorKind::Conflict => CommitError::Conflict,
            _ => CommitError::Database(ours.clone()),
        };
        match (self.probe().await.map_err(unknown)?, error::code(&err)) {
            // SAVEPOINT found no transaction: a handler ended it, and began no other.
            (Transaction::None, "25P01") => {
                let committed = self.has_committed(xid).await.map_err(unknown)?;
                Err(CommitError::TransactionEnded { committed })
            }
            // COMMIT itself failed: a deferred constraint, a serialization failure.
            (Transaction::None, _) => Err(refused()),
            // The guard said no, so this is a second transaction, and a sound one.
            (Transaction::Failed, "22012") => {
                self.raw("ROLLBACK TO SAVEPOINT factum_guard")
                    .await
                    .map_err(unknown)?;
                let committed = self.has_committed(xid).await.map_err(unknown)?;
                if !committed {
                    self.raw("ROLLBACK").await.map_err(unknown)?;
                } else if self.raw("COMMIT").await.is_err() {
                    self.take_back_all(xid).await;
                }
                Err(CommitError::TransactionEnded { committed })
            }
            // It had failed before the guard came.
            (Transaction::Failed, code) => {
                self.raw("ROLLBACK").await.map_err(unknown)?;
                if self.has_committed(xid).await.map_err(unknown)? {
                    // What was written after the handler's own COMMIT is gone with the second
                    // transaction, and nobody knows whose it was: every event runs again.
                    self.take_back_all(xid).await;
                    Err(CommitError::TransactionEnded { committed: true })
                } else if matches!(code, "25P02" | "3B001") {
                    Err(CommitError::SwallowedError)
                } else {
                    Err(refused())
                }
            }
            // An error leaves no transaction sound, unless it came from before the guard.
            (Transaction::Open(_), _) => {
                self.raw("ROLLBACK").await.map_err(unknown)?;
                Err(refused())
            }
        }
    }

    /// Rolls back after a handler failed, and finds out whether a handler had ended the
    /// transaction before. If its COMMIT made this batch's dedup rows durable, those of
    /// `unfinished` (the events whose handler hadn't finished, the failed one among them) are
    /// taken back, so that no event is lost; a second transaction that it left open is committed
    /// (the finished events' writes are in it). The events must be fresh ones of
    /// [`dedup`](Self::dedup).
    ///
    /// # Errors
    /// See [`RollbackError`]; in every case no transaction is open afterwards.
    pub async fn rollback_after_failure(
        &mut self,
        consumer: &str,
        xid: TransactionId,
        unfinished: &[EventId],
    ) -> Result<(), RollbackError> {
        const WHAT: &str = "roll back";
        self.open = false;
        let batch = self
            .batch
            .take()
            .map(|batch| batch.fresh)
            .unwrap_or_default();
        let unfinished: Vec<Uuid> = unfinished.iter().map(|id| id.as_uuid()).collect();
        let settled = match self.settle(xid).await {
            Ok(settled) => settled,
            Err(failed) => {
                // The connection is lost, and with it the open transaction; but a COMMIT that a
                // handler ran before that stands, and another connection can tell.
                let lost = failed.into_error(WHAT);
                if !self.has_committed_elsewhere(xid).await.unwrap_or(false) {
                    return Err(RollbackError::Database(lost));
                }
                Settled::CommittedThenLost
            }
        };
        let take_back = match settled {
            Settled::RolledBack => return Ok(()),
            Settled::EndedByRollback => {
                return Err(RollbackError::TransactionEnded { committed: false });
            }
            Settled::Committed => unfinished,
            // What the finished events wrote after the handler's COMMIT is gone, and nobody knows
            // which: every event of the batch runs again.
            Settled::CommittedThenLost if batch.is_empty() => unfinished,
            Settled::CommittedThenLost => batch,
        };
        self.take_back(consumer, xid, &take_back).await?;
        Err(RollbackError::TransactionEnded { committed: true })
    }

    /// Ends whatever transaction is open and says what became of the one of `xid`.
    async fn settle(&mut self, xid: TransactionId) -> Result<Settled, Failed> {
        match self.probe().await? {
            Transaction::Open(found) if found == Some(xid) => {
                self.raw("ROLLBACK").await?;
                Ok(Settled::RolledBack)
            }
            Transaction::Open(_) => {
                if self.has_committed(xid).await? {
                    return match self.raw("COMMIT").await {
                        Ok(()) => Ok(Settled::Committed),
                        Err(_) => Ok(Settled::CommittedThenLost),
                    };
                }
                self.raw("ROLLBACK").await?;
                Ok(Settled::EndedByRollback)
            }
            Transaction::Failed => {
                self.raw("ROLLBACK").await?;
                if self.has_committed(xid).await? {
                    Ok(Settled::CommittedThenLost)
                } else {
                    Ok(Settled::RolledBack)
                }
            }
            Transaction::None => {
                if self.has_committed(xid).await? {
                    Ok(Settled::Committed)
                } else {
                    Ok(Settled::EndedByRollback)
                }
            }
        }
    }

    /// Ends the open transaction before any handler ran in it; nothing to do when none is open.
    ///
    /// # Errors
    /// The connection was lost (the session is then closed): the server rolls back by itself.
    pub async fn rollback(&mut self) -> Result<(), DatabaseError> {
        if !std::mem::take(&mut self.open) || self.held.is_none() {
            return Ok(());
        }
        self.batch = None;
        self.simple("roll back", "ROLLBACK").await
    }

    /// Leaves the connection to the next session, as it is: what a handler has SET without LOCAL stays. Between two
    /// transactions alone: with one open the connection is closed.
    pub fn give_back(mut self) {
        if let Some(held) = self.held.take()
            && !self.open
        {
            held.give_back();
        }
    }

    /// Says goodbye to the server; an open transaction is rolled back.
    pub async fn close(mut self) {
        if let Some(held) = self.held.take() {
            held.close().await;
        }
    }

    /// Drops the socket at once. For a session whose handler was dropped in the middle of a
    /// statement: nobody knows what its connection still sends. Dropping the session does the
    /// same.
    pub fn discard(self) {
        drop(self);
    }

    /// Drops the socket at once and keeps the session, so that
    /// [`rollback_after_failure`](Self::rollback_after_failure) can find out through another
    /// connection what stands. For a handler that was dropped in the middle of a statement.
    pub fn sever(&mut self) {
        self.held = None;
        self.open = false;
    }

    pub(crate) fn needs_open(&self, what: &'static str) -> Result<(), DatabaseError> {
        if self.open && self.held.is_some() {
            Ok(())
        } else {
            Err(misuse(what, "no transaction is open"))
        }
    }

    /// Takes back every dedup row of this batch. What can't be taken back stops the consumer all
    /// the same, by [`CommitError::TransactionEnded`]; the log then says what to do by hand.
    async fn take_back_all(&mut self, xid: TransactionId) {
        if let Some(Batch { consumer, fresh }) = self.batch.take()
            && let Err(error) = self.take_back(&consumer, xid, &fresh).await
        {
            tracing::error!(%error, consumer, "dedup rows couldn't be taken back");
        }
    }

    /// Deletes dedup rows that the transaction of `xid` made durable. Tries again on another
    /// connection: a row left behind is an event lost.
    async fn take_back(
        &mut self,
        consumer: &str,
        xid: TransactionId,
        ids: &[Uuid],
    ) -> Result<(), RollbackError> {
        const WHAT: &str = "take back dedup rows";
        const TRIES: u32 = 3;
        // xmin holds the low half of the id. No savepoint was open when the rows were written,
        // so it is the transaction's own.
        let xid32 = u32::try_from(xid.0 & u64::from(u32::MAX)).unwrap_or_default();
        let delete = async |conn: &mut PgConnection| {
            for sql in [
                "DELETE FROM processed_event \
                 WHERE consumer_group = $1 AND event_id = ANY($2) AND xmin = $3::text::xid",
                "DELETE FROM processed_foreign_event \
                 WHERE consumer_group = $1 AND event_id = ANY($2) AND xmin = $3::text::xid",
            ] {
                sqlx::query(sql)
                    .bind(consumer)
                    .bind(ids)
                    .bind(xid32.to_string())
                    .execute(&mut *conn)
                    .await?;
            }
            Ok(())
        };
        let mut last = match self.statement(delete).await {
            Ok(_) => return Ok(()),
            Err(failed) => failed.into_error(WHAT),
        };
        for _ in 1..TRIES {
            last = match self.db.hold().await {
                Ok(mut held) => match held.answered(delete).await {
                    Ok(_) => {
                        held.give_back();
                        return Ok(());
                    }
                    Err(err) => DatabaseError::new(WHAT, &err),
                },
                Err(err) => err,
            };
        }
        Err(RollbackError::NotTakenBack {
            consumer: consumer.to_owned(),
            events: ids.len(),
            xid32,
            error: last,
        })
    }

    /// Asks the connection for the state of its transaction. A savepoint is the question: unlike
    /// a ROLLBACK sent on suspicion it leaves no warning in the server's log.
    async fn probe(&mut self) -> Result<Transaction, Failed> {
        // A handler that dropped a savepoint object has left sqlx a ROLLBACK TO SAVEPOINT to send
        // first. If it fails, its error comes as ours, once.
        const TRIES: u32 = 2;
        let mut tries = 0;
        loop {
            tries += 1;
            let asked = self
                .statement(async |conn| {
                    let rows = sqlx::raw_sql(
                        "SAVEPOINT factum_probe; SELECT pg_current_xact_id_if_assigned()::text",
                    )
                    .fetch_all(conn)
                    .await?;
                    match rows.last() {
                        Some(row) => row.try_get::<Option<String>, _>(0),
                        None => Err(sqlx::Error::RowNotFound),
                    }
                })
                .await;
            match asked {
                Ok(xid) => {
                    let xid = xid.and_then(|xid| xid.parse().ok()).map(TransactionId);
                    return Ok(Transaction::Open(xid));
                }
                Err(Failed::Answer(err)) => match error::code(&err) {
                    "25P01" => return Ok(Transaction::None),
                    "25P02" => return Ok(Transaction::Failed),
                    _ if tries < TRIES => {}
                    _ => return Err(Failed::Answer(err)),
                },
                Err(lost) => return Err(lost),
            }
        }
    }

    /// Whether the transaction of `xid` stands, asked where it can't be running any more.
    async fn has_committed(&mut self, xid: TransactionId) -> Result<bool, Failed> {
        let status = self.statement(async |conn| status(conn, xid).await).await?;
        Ok(status == Status::Committed)
    }

    /// Asks on another connection, and waits for the answer: the server may not have noticed yet
    /// that ours is gone, and a COMMIT may still be under way. Whoever runs the batch again waits
    /// for the same locks anyway.
    async fn has_committed_elsewhere(&self, xid: TransactionId) -> Result<bool, DatabaseError> {
        const WHAT: &str = "read a transaction's outcome";
        let asked_at = Instant::now();
        let mut held = self.db.hold().await?;
        loop {
            let status = held
                .answered(async |conn| status(conn, xid).await)
                .await
                .map_err(|err| DatabaseError::new(WHAT, &err))?;
            match status {
                Status::Committed | Status::NotCommitted => {
                    held.give_back();
                    return Ok(status == Status::Committed);
                }
                Status::InProgress if asked_at.elapsed() < OUTCOME_LIMIT => {
                    tokio::time::sleep(OUTCOME_POLL).await;
                }
                Status::InProgress => {
                    return Err(DatabaseError::plain(
                        ErrorKind::Unavailable,
                        WHAT,
                        format!("it is still running after {OUTCOME_LIMIT:?}"),
                        "the server hasn't noticed that the connection is gone",
                    ));
                }
            }
        }
    }

    async fn raw(&mut self, sql: impl Into<String>) -> Result<(), Failed> {
        let sql = AssertSqlSafe(sql.into());
        self.statement(async |conn| sqlx::raw_sql(sql).execute(conn).await.map(drop))
            .await
    }

    async fn simple(&mut self, what: &'static str, sql: &str) -> Result<(), DatabaseError> {
        self.raw(sql)
            .await
            .map_err(|failed| failed.into_error(what))
    }

    /// Runs one statement. While it runs, the connection is out of the session and no transaction
    /// is open in it, so that a statement cut off half-way leaves it so.
    pub(crate) async fn statement<T>(
        &mut self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, Failed> {
        let Some(mut held) = self.held.take() else {
            return Err(Failed::Lost(Lost::Before));
        };
        let open = std::mem::take(&mut self.open);
        match held.answered(statement).await {
            Err(err) if error::ends_connection(&err) => Err(Failed::Lost(Lost::Now(err))),
            answer => {
                (self.held, self.open) = (Some(held), open);
                answer.map_err(Failed::Answer)
            }
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("closed", &self.is_closed())
            .field("transaction_open", &self.open)
            .finish_non_exhaustive()
    }
}

enum Settled {
    /// As it should be.
    RolledBack,
    EndedByRollback,
    /// The dedup rows and everything after them stand.
    Committed,
    /// The dedup rows stand, what came after them doesn't.
    CommittedThenLost,
}

/// Why a statement failed.
pub(crate) enum Failed {
    /// The server answered with an error; the connection is sound.
    Answer(sqlx::Error),
    /// The connection is gone.
    Lost(Lost),
}

pub(crate) enum Lost {
    Before,
    Now(sqlx::Error),
}

impl Lost {
    fn because(&self, what: &'static str) -> DatabaseError {
        match self {
            Self::Now(err) => DatabaseError::new(what, err),
            Self::Before => DatabaseError::plain(
                ErrorKind::Unavailable,
                what,
                "the session's connection was lost before",
                "open another session",
            ),
        }
    }
}

impl Failed {
    pub(crate) fn into_error(self, what: &'static str) -> DatabaseError {
        match self {
            Self::Answer(err) => DatabaseError::new(what, &err),
            Self::Lost(lost) => lost.because(what),
        }
    }
}

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// "no partition of relation found for row", and a partition's own constraint.
const NO_PARTITION: &str = "23514";

/// One row always: the transaction's id (assigned even where nothing is new, so that the guard has
/// something to ask for) and the ids that were inserted.
const DEDUP: &str = "\
    WITH fresh AS ( \
        INSERT INTO processed_event (consumer_group, event_id) \
        SELECT $1, id FROM unnest($2::uuid[]) AS given (id) \
        ON CONFLICT (consumer_group, event_id) DO NOTHING \
        RETURNING event_id \
    ) \
    SELECT pg_current_xact_id()::text, ARRAY(SELECT event_id FROM fresh)";

/// The same, and the keys that are parked, which `FOR KEY SHARE` keeps parked until this transaction ends. It waits
/// for the key's deletion alone, never for a handler of the retrier's. Each key is looked up by itself: with `= ANY`
/// and no statistics yet (keys are parked in a rush) PostgreSQL compares each parked key with each of the batch.
const DEDUP_UNLESS_PARKED: &str = "\
    WITH parked AS MATERIALIZED ( \
        SELECT known.key FROM (SELECT DISTINCT key FROM unnest($4::bytea[]) AS given (key)) given \
        CROSS JOIN LATERAL ( \
            SELECT key FROM parked_key \
            WHERE consumer = $1 AND topic = $3 AND key = given.key \
            FOR KEY SHARE \
        ) known \
    ), fresh AS ( \
        INSERT INTO processed_event (consumer_group, event_id) \
        SELECT $1, id FROM unnest($2::uuid[], $4::bytea[]) AS given (id, key) \
        WHERE given.key NOT IN (SELECT key FROM parked) \
        ON CONFLICT (consumer_group, event_id) DO NOTHING \
        RETURNING event_id \
    ) \
    SELECT pg_current_xact_id()::text, ARRAY(SELECT event_id FROM fresh), ARRAY(SELECT key FROM parked)";

/// The same for a batch with foreign ids, `$5` with their keys `$6`, which are remembered for `$7` days. Without a topic no
/// key is parked.
const DEDUP_WITH_FOREIGN: &str = "\
    WITH parked AS MATERIALIZED ( \
        SELECT known.key \
        FROM (SELECT DISTINCT key FROM unnest($4::bytea[] || $6::bytea[]) AS given (key)) given \
        CROSS JOIN LATERAL ( \
            SELECT key FROM parked_key \
            WHERE consumer = $1 AND topic = $3 AND key = given.key \
            FOR KEY SHARE \
        ) known \
    ), fresh AS ( \
        INSERT INTO processed_event (consumer_group, event_id) \
        SELECT $1, id FROM unnest($2::uuid[], $4::bytea[]) AS given (id, key) \
        WHERE given.key NOT IN (SELECT key FROM parked) \
        ON CONFLICT (consumer_group, event_id) DO NOTHING \
        RETURNING event_id \
    ), foreign_fresh AS ( \
        INSERT INTO processed_foreign_event (consumer_group, event_id, keep_until) \
        SELECT $1, id, now() + make_interval(days => $7) FROM unnest($5::uuid[], $6::bytea[]) AS given (id, key) \
        WHERE given.key NOT IN (SELECT key FROM parked) \
        ON CONFLICT (consumer_group, event_id) DO NOTHING \
        RETURNING event_id \
    ) \
    SELECT pg_current_xact_id()::text, \
           ARRAY(SELECT event_id FROM fresh UNION ALL SELECT event_id FROM foreign_fresh), \
           ARRAY(SELECT key FROM parked)";

/// How long to wait until a lost connection's transaction has an outcome, and how often to ask.
const OUTCOME_LIMIT: Duration = Duration::from_secs(10);
const OUTCOME_POLL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Committed,
    InProgress,
    NotCommitted,
}

/// With ids outside the window the second try succeeds, unless a partition came or went between
/// the failure and the look at the partitions.
const DEDUP_TRIES: u32 = 4;

async fn status(conn: &mut PgConnection, xid: TransactionId) -> Result<Status, sqlx::Error> {
    let sql = format!("SELECT pg_xact_status('{xid}'::xid8)");
    let status: Option<String> = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(conn)
        .await?
        .try_get(0)?;
    Ok(match status.as_deref() {
        Some("committed") => Status::Committed,
        Some("in progress") => Status::InProgress,
        _ => Status::NotCommitted,
    })
}

fn verdicts(
    events: &[(EventId, &[u8])],
    outside: &BTreeSet<Uuid>,
    fresh: &[Uuid],
    parked: &[Vec<u8>],
) -> Vec<DedupVerdict> {
    let parked: HashSet<&[u8]> = parked.iter().map(Vec::as_slice).collect();
    // They mostly come sorted, as they were sent; nothing says that they must.
    let mut fresh = fresh.to_vec();
    fresh.sort_unstable();
    let mut told = vec![false; fresh.len()];
    events
        .iter()
        .map(|(id, key)| {
            let id = id.as_uuid();
            if outside.contains(&id) {
                return DedupVerdict::OutOfWindow;
            }
            if parked.contains(key) {
                return DedupVerdict::Parked;
            }
            match fresh.binary_search(&id) {
                // A second time in this batch it is a duplicate of the first.
                Ok(place) if !std::mem::replace(&mut told[place], true) => DedupVerdict::Fresh,
                _ => DedupVerdict::Duplicate,
            }
        })
        .collect()
}

fn parse_xid(what: &'static str, text: &str) -> Result<TransactionId, DatabaseError> {
    text.parse().map(TransactionId).map_err(|_| {
        DatabaseError::plain(
            ErrorKind::Other,
            what,
            "the server's transaction id isn't a number",
            "is this PostgreSQL?",
        )
    })
}

fn misuse(what: &'static str, cause: &'static str) -> DatabaseError {
    DatabaseError::plain(
        ErrorKind::Other,
        what,
        cause,
        "this is a mistake in the calling code",
    )
}
