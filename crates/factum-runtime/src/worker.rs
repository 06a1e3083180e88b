//! A database session that takes records through the dedup transaction, for whoever has records: a lane, the
//! retrier, a replay.
//!
//! One transaction is `BEGIN, dedup, handlers, guard + COMMIT`. What a [`Ledger`] adds to it (whose records these
//! are, and what becomes of the place where they were kept) commits with the effect or not at all.

use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use factum_event::{
    AnyEnvelope, DeadLetterReason, Decoded, EventId, Failure, Poison, Registry, Retry, TraceContext,
};
use factum_fault::Point;
use factum_kafka::Record;
use factum_postgres::{
    CommitError, Database, DatabaseError, DeadLetter, DedupVerdict, ErrorKind, ParkedRecord,
    RollbackError, Session, TransactionId,
};
use tokio_util::sync::CancellationToken;

use crate::answer::Calls;
use crate::call::CallWriter;
use crate::handler::{CallError, CallLimits, Delivery, ErasedHandler, RunError, Tx, Verdict};
use crate::lane::{LaneError, TombstonePolicy, UnknownPolicy};
use crate::metric;
use crate::mirror;
use crate::retry_topic::{Addressee, Origin, RetryTopics};
use crate::stats::{ConsumerStats, Tally, add};

/// Immediate re-runs of a transaction that PostgreSQL broke off (40001, 40P01) before the conflict
/// counts as a failure of the handler.
const CONFLICT_RETRIES: u32 = 10;
const OUTAGE_FIRST_DELAY: Duration = Duration::from_millis(100);
/// Short, so that work goes on soon after the database does.
const OUTAGE_MAX_DELAY: Duration = Duration::from_secs(1);
/// How often a partition looks whether there is room to park another event.
const ROOM_DELAY: Duration = Duration::from_millis(500);

/// What everything that handles a consumer's events shares.
pub(crate) struct HandlingContext {
    pub(crate) consumer: String,
    pub(crate) registry: Registry,
    /// For how many days foreign ids are remembered; `None`: the registry takes none.
    pub(crate) foreign_days: Option<u32>,
    pub(crate) handlers: HashMap<&'static str, Arc<dyn ErasedHandler>>,
    pub(crate) retry: Retry,
    pub(crate) handler_timeout: Duration,
    pub(crate) batch_limit: usize,
    pub(crate) tombstones: TombstonePolicy,
    pub(crate) unknown_types: UnknownPolicy,
    pub(crate) retry_topics: RetryTopics,
    pub(crate) mirror: bool,
    /// What its handlers may call.
    pub(crate) calls: Option<Arc<Calls>>,
    pub(crate) db: Database,
    pub(crate) stats: Arc<ConsumerStats>,
    /// The service's build, for dead letters.
    pub(crate) build: String,
    pub(crate) parked: ParkedCount,
}

/// How many of the consumer's events are parked, about: what its retrier counted last, and what this process has
/// parked since.
#[derive(Debug, Default)]
pub(crate) struct ParkedCount {
    events: AtomicU64,
    /// Whether the retrier has counted yet.
    counted: AtomicBool,
}

impl ParkedCount {
    pub(crate) fn set(&self, events: u64) {
        self.events.store(events, Ordering::Relaxed);
        self.counted.store(true, Ordering::Release);
    }

    fn leaves_room(&self, limit: u32) -> bool {
        self.events.load(Ordering::Relaxed) < u64::from(limit)
    }

    /// Whether a single key may come to have more than `limit` events with these. Not while all keys have fewer:
    /// counting one key's events in each batch would cost the other keys their speed.
    fn nears(&self, limit: u32, more: usize) -> bool {
        !self.counted.load(Ordering::Acquire)
            || self.events.load(Ordering::Relaxed) + more as u64 > u64::from(limit)
    }
}

/// Why an attempt, or whoever asked for it, didn't go on.
pub(crate) enum Halt {
    /// Revoked or stopping: what isn't committed comes again elsewhere.
    Draining,
    Failed(LaneError),
}

/// Why there is no session.
pub(crate) enum NotOpened {
    Halt(Halt),
    Database(DatabaseError),
}

/// How one transaction ended badly. Nothing of it is committed.
pub(crate) enum AttemptError {
    /// Of the attempted records, these failed together.
    Records {
        range: Range<usize>,
        failure: Failure,
    },
    /// PostgreSQL broke the transaction off so that another could go on.
    Conflict {
        range: Range<usize>,
    },
    /// Not an event's fault: the database is away, or a COMMIT's outcome is unknown.
    Outage(String),
    /// As many events are parked as may be: more have to wait on their topic.
    Full,
    Halt(Halt),
}

/// A record, decoded, on its way through one attempt.
enum Item {
    Event {
        envelope: AnyEnvelope,
        trace: Option<TraceContext>,
    },
    Duplicate,
    /// It waits behind an event of its key.
    Parked,
    DeadLetter {
        reason: DeadLetterReason,
        poison: Option<Poison>,
    },
    Unknown,
    Tombstone,
    /// In a retry topic, and another consumer's.
    OfAnother,
}

/// What one committed transaction did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Attempted {
    /// Events whose effect was committed.
    pub(crate) processed: usize,
    /// Events that had been processed before.
    pub(crate) duplicates: usize,
    /// Records that were set aside in the same transaction.
    pub(crate) dead_lettered: usize,
}

/// What else belongs to the transaction: where the records were kept, and whose they are.
///
/// A lane's records are kept by Kafka, so that there is nothing to do: [`Streamed`].
pub(crate) trait Ledger: Send {
    /// Whether the records come from a table. What no handler is registered for is then a dead letter whatever the
    /// policy: it was set aside once and is not dropped now (RTRY-X2).
    const STORED: bool;

    /// Whether what [`claim`](Ledger::claim) locks is itself the guard against a second effect. No dedup row is then
    /// asked for or written: there is no partition for it any more.
    fn is_guard(&self) -> bool {
        false
    }

    /// Right after BEGIN: makes the records this transaction's own. `false` if they are no longer there to be
    /// handled; the transaction then ends with nothing done.
    fn claim(
        &mut self,
        session: &mut Session,
    ) -> impl Future<Output = Result<bool, DatabaseError>> + Send;

    /// Right before COMMIT, the handlers having succeeded.
    fn settle(
        &mut self,
        session: &mut Session,
        done: Attempted,
    ) -> impl Future<Output = Result<(), DatabaseError>> + Send;
}

/// Records of a topic: the offset is their ledger, and it moves after the COMMIT.
pub(crate) struct Streamed;

impl Ledger for Streamed {
    const STORED: bool = false;

    async fn claim(&mut self, _: &mut Session) -> Result<bool, DatabaseError> {
        Ok(true)
    }

    async fn settle(&mut self, _: &mut Session, _: Attempted) -> Result<(), DatabaseError> {
        Ok(())
    }
}

/// What is written about a record in a transaction of its own, no handler being called.
pub(crate) trait Entry: Sync {
    /// Writes it.
    fn write(
        &self,
        session: &mut Session,
    ) -> impl Future<Output = Result<(), DatabaseError>> + Send;
}

/// How many workers of one partition are waiting to try a failed event again. Meanwhile its lane begins nothing new.
pub(crate) type PartitionWaits = Arc<AtomicUsize>;

/// One session and what it is used for; see the module.
///
/// It opens the session in its [turn](Database::turn), and between two transactions it lets whoever waits have it.
pub(crate) struct Worker {
    pub(crate) context: Arc<HandlingContext>,
    session: Option<Session>,
    waits: PartitionWaits,
    /// Ends the work between two transactions.
    drain: CancellationToken,
    /// Gives the open transaction up.
    abort: CancellationToken,
}

impl Worker {
    pub(crate) fn new(
        context: Arc<HandlingContext>,
        drain: CancellationToken,
        abort: CancellationToken,
    ) -> Worker {
        Worker {
            context,
            session: None,
            waits: PartitionWaits::default(),
            drain,
            abort,
        }
    }

    /// One of several of a partition.
    pub(crate) fn with_waits(mut self, waits: PartitionWaits) -> Worker {
        self.waits = waits;
        self
    }

    pub(crate) fn waits(&self) -> PartitionWaits {
        self.waits.clone()
    }

    /// Says goodbye to the database.
    pub(crate) async fn close(mut self) {
        self.rest().await;
    }

    /// Waits, unless the work is to end meanwhile.
    pub(crate) async fn pause(&mut self, delay: Duration) -> Result<(), Halt> {
        let end = tokio::time::Instant::now() + delay;
        loop {
            tokio::select! {
                biased;
                () = self.drain.cancelled() => return Err(Halt::Draining),
                () = tokio::time::sleep_until(end) => return Ok(()),
                () = self.context.db.turn_wanted(), if !self.is_resting() => self.give_back(),
            }
        }
    }

    /// Has a session when it returns. Whoever waits for a turn has it first, and this worker is next behind them.
    async fn open(&mut self) -> Result<(), NotOpened> {
        let db = &self.context.db;
        if db.is_turn_wanted() && !self.drain.is_cancelled() {
            self.give_back();
        }
        if self.session.is_some() {
            return Ok(());
        }
        let db = &self.context.db;
        let turn = tokio::select! {
            biased;
            turn = db.turn() => turn,
            () = self.drain.cancelled() => return Err(NotOpened::Halt(Halt::Draining)),
        };
        let opened = Session::open_in(db, turn).await;
        let mut session = opened.map_err(NotOpened::Database)?;
        session.keep_foreign_ids(self.context.foreign_days);
        self.session = Some(session);
        Ok(())
    }

    /// Writes an entry in a transaction of its own; an outage of the database is waited out.
    pub(crate) async fn write(&mut self, entry: &impl Entry) -> Result<(), Halt> {
        let mut delay = OUTAGE_FIRST_DELAY;
        loop {
            let written = match self.open().await {
                Ok(()) => self.try_write(entry).await,
                Err(NotOpened::Database(error)) => Err(error.to_string()),
                Err(NotOpened::Halt(halt)) => return Err(halt),
            };
            match written {
                Ok(()) => return Ok(()),
                Err(reason) => self.wait_out(&reason, &mut delay).await?,
            }
        }
    }

    async fn try_write(&mut self, entry: &impl Entry) -> Result<(), String> {
        let session = self.session.as_mut();
        let result = async {
            let session = session.expect("it was opened just now");
            factum_fault::at(Point::BeginBefore);
            session.begin().await?;
            factum_fault::at(Point::BeginAfter);
            let xid = session.transaction_id().await?;
            entry.write(session).await?;
            Ok::<_, DatabaseError>((session, xid))
        }
        .await;
        let ended = match result {
            Ok((session, xid)) => {
                factum_fault::at(Point::CommitBefore);
                let committed = session.commit(xid).await;
                factum_fault::at(Point::CommitAfter);
                committed.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if ended.is_err() {
            self.discard_session();
        }
        ended
    }

    /// Runs one transaction until it has an outcome that is the records' own: outages of the
    /// database are waited out and conflicts are run again, and neither counts as an attempt.
    pub(crate) async fn attempt_through_outages(
        &mut self,
        records: &[Record],
        ledger: &mut impl Ledger,
    ) -> Result<Attempted, AttemptError> {
        let mut delay = OUTAGE_FIRST_DELAY;
        let mut conflicts = 0;
        loop {
            if self.drain.is_cancelled() {
                return Err(AttemptError::Halt(Halt::Draining));
            }
            match self.attempt(records, ledger).await {
                Err(AttemptError::Outage(reason)) => {
                    add(&self.context.stats.reruns, 1);
                    self.wait_out(&reason, &mut delay)
                        .await
                        .map_err(AttemptError::Halt)?;
                }
                Err(AttemptError::Full) => {
                    self.log_full();
                    self.pause(ROOM_DELAY).await.map_err(AttemptError::Halt)?;
                }
                Err(AttemptError::Conflict { range }) => {
                    add(&self.context.stats.reruns, 1);
                    conflicts += 1;
                    if conflicts > CONFLICT_RETRIES {
                        let failure = Failure::Transient {
                            description: "conflicts with other transactions (40001 or 40P01)"
                                .into(),
                        };
                        return Err(AttemptError::Records { range, failure });
                    }
                    let wait = Duration::from_millis(fastrand::u64(1..=10 * u64::from(conflicts)));
                    self.pause(wait).await.map_err(AttemptError::Halt)?;
                }
                other => return other,
            }
        }
    }

    async fn wait_out(&mut self, reason: &str, delay: &mut Duration) -> Result<(), Halt> {
        tracing::warn!(consumer = %self.context.consumer, reason, delay_ms = delay.as_millis() as u64,
            "waits for the database; nothing is set aside");
        self.pause(*delay).await?;
        *delay = (*delay * 2).min(OUTAGE_MAX_DELAY);
        Ok(())
    }

    /// Waits until the consumer may park another event.
    pub(crate) async fn wait_for_room(&mut self) -> Result<(), Halt> {
        let limit = self.context.retry.limit_in_all();
        while !self.context.parked.leaves_room(limit) {
            self.log_full();
            self.pause(ROOM_DELAY).await?;
        }
        Ok(())
    }

    fn log_full(&self) {
        let retry = &self.context.retry;
        tracing::warn!(consumer = %self.context.consumer, per_key = retry.limit_per_key(), in_all = retry.limit_in_all(),
            "as many events are parked as may be: this partition waits until there is room, nothing is lost. Mend \
             what the parked events fail on; `factum parked list` shows it");
    }

    /// The session, opened if there is none: for look-ups between two transactions.
    pub(crate) async fn session(&mut self) -> Result<&mut Session, NotOpened> {
        self.open().await?;
        Ok(self.session.as_mut().expect("it was opened just now"))
    }

    /// Lets another have the connection, as it is.
    pub(crate) fn give_back(&mut self) {
        if let Some(session) = self.session.take() {
            session.give_back();
        }
    }

    /// Closes the connection until one is needed again.
    pub(crate) async fn rest(&mut self) {
        if let Some(session) = self.session.take() {
            session.close().await;
        }
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.session.is_none()
    }

    pub(crate) fn discard_session(&mut self) {
        if let Some(session) = self.session.take() {
            session.discard();
        }
    }

    /// One transaction over `records`.
    async fn attempt<L: Ledger>(
        &mut self,
        records: &[Record],
        ledger: &mut L,
    ) -> Result<Attempted, AttemptError> {
        let context = self.context.clone();
        factum_fault::at(Point::DecodeBefore);
        let mut items: Vec<Item> = records
            .iter()
            .map(|r| context.decode(r, L::STORED))
            .collect();
        factum_fault::at(Point::DecodeAfter);
        let ids: Vec<(EventId, &[u8])> = records
            .iter()
            .zip(&items)
            .filter_map(|(record, item)| match item {
                Item::Event { envelope, .. } => Some((envelope.id(), key_of(record, envelope))),
                _ => None,
            })
            .collect();
        let skipped = Skipped::count(&items);
        if skipped.all() == records.len() {
            skipped.record(&context.stats);
            return Ok(Attempted::default());
        }

        match self.open().await {
            Ok(()) => {}
            Err(NotOpened::Halt(halt)) => return Err(AttemptError::Halt(halt)),
            Err(NotOpened::Database(error)) => return Err(AttemptError::Outage(error.to_string())),
        }
        // BEGIN and dedup.
        let session = self.session.as_mut();
        let begun = async {
            let session = session.expect("it was opened just now");
            factum_fault::at(Point::BeginBefore);
            session.begin().await?;
            factum_fault::at(Point::BeginAfter);
            if !ledger.claim(session).await? {
                session.rollback().await?;
                return Ok(None);
            }
            if ids.is_empty() || ledger.is_guard() {
                let xid = session.transaction_id().await?;
                return Ok(Some((session, xid, vec![DedupVerdict::Fresh; ids.len()])));
            }
            factum_fault::at(Point::DedupBefore);
            let dedup = if L::STORED {
                let ids: Vec<EventId> = ids.iter().map(|(id, _)| *id).collect();
                session.dedup(&context.consumer, &ids).await?
            } else {
                // A lane's records are of one topic.
                let topic = &records[0].topic;
                session
                    .dedup_unless_parked(&context.consumer, topic, &ids)
                    .await?
            };
            factum_fault::at(Point::DedupAfter);
            // Dedup has begun anew for ids outside of the window: what was claimed is to be claimed again.
            let anew = dedup.verdicts.contains(&DedupVerdict::OutOfWindow);
            if anew && !ledger.claim(session).await? {
                session.rollback().await?;
                return Ok(None);
            }
            Ok::<_, DatabaseError>(Some((session, dedup.xid, dedup.verdicts)))
        }
        .await;
        let (session, xid, verdicts) = match begun {
            Ok(Some(begun)) => begun,
            Ok(None) => return Ok(Attempted::default()),
            Err(error) => {
                let failed = self.begin_failed(&error, records.len());
                self.discard_session();
                return Err(failed);
            }
        };

        // What dedup says, and the letters that need no handler.
        let mut duplicates = 0;
        let mut verdict = verdicts.into_iter();
        let mut fresh: Vec<(usize, EventId)> = Vec::with_capacity(ids.len());
        let mut tally = Tally::default();
        let mut waiting: Vec<(usize, Waiting)> = Vec::new();
        for (index, item) in items.iter_mut().enumerate() {
            let Item::Event { envelope, .. } = &*item else {
                continue;
            };
            let (id, sent_as) = (envelope.id(), envelope.sent_as());
            match verdict.next() {
                Some(DedupVerdict::Fresh) => {
                    tally.add(sent_as, 1, 0);
                    fresh.push((index, id));
                }
                Some(DedupVerdict::Duplicate) => {
                    tally.add(sent_as, 0, 1);
                    duplicates += 1;
                    *item = Item::Duplicate;
                }
                Some(DedupVerdict::Parked) => {
                    waiting.push((index, Waiting::new(&records[index], envelope)));
                    *item = Item::Parked;
                }
                Some(DedupVerdict::OutOfWindow) | None => {
                    *item = Item::DeadLetter {
                        reason: DeadLetterReason::OutOfWindow,
                        poison: None,
                    };
                }
            }
        }
        let mut parked = 0;
        if !waiting.is_empty() {
            let rows: Vec<ParkedRecord<'_>> = waiting
                .iter()
                .map(|(index, waiting)| waiting.row(&records[*index]))
                .collect();
            let topic = &records[0].topic;
            let limit = context.retry.limit_per_key();
            let limit = context.parked.nears(limit, rows.len()).then_some(limit);
            factum_fault::at(Point::ParkBefore);
            let behind = session
                .park_behind(&context.consumer, topic, &rows, limit)
                .await;
            factum_fault::at(Point::ParkAfter);
            let behind = match behind {
                Ok(behind) => behind,
                Err(error) => {
                    let failed = self.begin_failed(&error, records.len());
                    self.discard_session();
                    return Err(failed);
                }
            };
            let room = context.parked.leaves_room(context.retry.limit_in_all());
            if behind.full || (behind.added > 0 && !room) {
                if let Err(error) = session.rollback().await {
                    return Err(AttemptError::Outage(error.to_string()));
                }
                return Err(AttemptError::Full);
            }
            for (_, waiting) in waiting
                .iter()
                .zip(&behind.processed)
                .filter_map(|(waiting, processed)| processed.then_some(waiting))
            {
                tally.add(waiting.sent_as, 0, 1);
                duplicates += 1;
            }
            parked = behind.added;
        }
        let mut letters = 0;
        let mut reasons = Vec::new();
        for (record, item) in records.iter().zip(&items) {
            let Item::DeadLetter { reason, poison } = item else {
                continue;
            };
            let mut letter = context.letter(record, *reason);
            if let Some(poison) = poison {
                letter.path = Some(poison.path().to_owned());
                letter.error = poison.to_string();
            }
            let written = letter.write(&context, record, session).await;
            if let Err(error) = written {
                let failed = self.begin_failed(&error, records.len());
                self.discard_session();
                return Err(failed);
            }
            letters += 1;
            reasons.push(*reason);
        }

        // The handlers.
        let limits = CallLimits {
            timeout: context.handler_timeout,
            abort: self.abort.clone(),
        };
        let place = Place {
            topic: records[0].topic.to_string(),
            partition: records[0].partition,
            event_types: context.types_of(&items),
        };
        let processed = fresh.len();
        factum_fault::at(Point::HandleBefore);
        let handled = run_handlers(&context, session, items, &limits).await;
        factum_fault::at(Point::HandleAfter);
        if let Err((range, error)) = handled {
            let unfinished: Vec<EventId> = fresh
                .iter()
                .filter(|(index, _)| *index >= range.start)
                .map(|f| f.1)
                .collect();
            return Err(self
                .handler_failed(xid, range, error, &unfinished, &place)
                .await);
        }
        let done = Attempted {
            processed,
            duplicates,
            dead_lettered: letters,
        };
        if let Err(error) = ledger.settle(session, done).await {
            let failed = self.begin_failed(&error, records.len());
            self.discard_session();
            return Err(failed);
        }

        factum_fault::at(Point::CommitBefore);
        let committed = session.commit(xid).await;
        factum_fault::at(Point::CommitAfter);
        match committed {
            Ok(()) => {
                add(&context.stats.transactions, 1);
                add(&context.stats.processed, processed);
                add(&context.stats.duplicates, duplicates);
                add(&context.stats.dead_lettered, letters);
                for reason in reasons {
                    context.count_letter(reason);
                }
                skipped.record(&context.stats);
                tally.record(&context.stats);
                context.note_parked(parked);
                Ok(done)
            }
            Err(error) => {
                // Only records with a fresh event can be to blame.
                let blamed = match (fresh.first(), fresh.last()) {
                    (Some(first), Some(last)) => first.0..last.0 + 1,
                    _ => 0..records.len(),
                };
                Err(self.commit_failed(error, blamed, &place))
            }
        }
    }

    fn begin_failed(&self, error: &DatabaseError, records: usize) -> AttemptError {
        match error.kind() {
            ErrorKind::Conflict => AttemptError::Conflict { range: 0..records },
            // A lock that another owner of this partition still holds, or a database that can't
            // answer as it should: neither is an event's fault.
            _ => AttemptError::Outage(error.to_string()),
        }
    }

    /// A handler didn't succeed: rolls back, and says whose fault it is.
    async fn handler_failed(
        &mut self,
        xid: TransactionId,
        range: Range<usize>,
        error: CallError,
        unfinished: &[EventId],
        place: &Place,
    ) -> AttemptError {
        let context = self.context.clone();
        let interrupted = !matches!(error, CallError::Failed(_));
        let Some(session) = self.session.as_mut() else {
            return AttemptError::Outage("the session is gone".into());
        };
        if interrupted {
            // The call was dropped in the middle of a statement: that connection is lost, and its
            // transaction dies with it. A COMMIT that the handler typed before doesn't.
            session.sever();
        }
        match session
            .rollback_after_failure(&context.consumer, xid, unfinished)
            .await
        {
            Ok(()) => {}
            Err(RollbackError::TransactionEnded { committed }) => {
                self.discard_session();
                return self.transaction_ended(committed, place);
            }
            Err(error @ RollbackError::NotTakenBack { .. }) => {
                self.discard_session();
                return AttemptError::Halt(Halt::Failed(LaneError::NotTakenBack {
                    consumer: context.consumer.clone(),
                    what: error.to_string(),
                }));
            }
            Err(RollbackError::Database(error)) => {
                self.discard_session();
                if !interrupted {
                    return AttemptError::Outage(error.to_string());
                }
                // As expected after `sever`: nothing of the transaction stands.
            }
            Err(error) => {
                self.discard_session();
                return AttemptError::Outage(error.to_string());
            }
        }
        let failure = match error {
            CallError::Aborted => return AttemptError::Halt(Halt::Draining),
            CallError::TimedOut => Failure::TimedOut,
            CallError::Panicked => Failure::Panicked,
            CallError::Failed(error) => match Verdict::of(&error) {
                Verdict::Conflict => return AttemptError::Conflict { range },
                Verdict::Failed {
                    permanent: true,
                    description,
                } => Failure::Permanent { description },
                Verdict::Failed { description, .. } => Failure::Transient { description },
            },
        };
        AttemptError::Records { range, failure }
    }

    fn commit_failed(
        &mut self,
        error: CommitError,
        blamed: Range<usize>,
        place: &Place,
    ) -> AttemptError {
        match error {
            CommitError::SwallowedError => AttemptError::Records {
                range: blamed,
                failure: Failure::SwallowedSqlError,
            },
            CommitError::TransactionEnded { committed } => {
                self.discard_session();
                self.transaction_ended(committed, place)
            }
            CommitError::Conflict => AttemptError::Conflict { range: blamed },
            // Unknown: it may have been committed. The same ids go through dedup again.
            CommitError::Unknown(error) => {
                self.discard_session();
                AttemptError::Outage(format!("the outcome of a COMMIT is unknown: {error}"))
            }
            // The database answered COMMIT with an error: a deferred constraint of a handler's rows.
            CommitError::Database(error) => {
                self.discard_session();
                match error.kind() {
                    ErrorKind::Unavailable => AttemptError::Outage(error.to_string()),
                    _ => AttemptError::Records {
                        range: blamed,
                        failure: Failure::Transient {
                            description: error.to_string(),
                        },
                    },
                }
            }
            other => {
                self.discard_session();
                AttemptError::Outage(other.to_string())
            }
        }
    }

    fn transaction_ended(&self, committed: bool, place: &Place) -> AttemptError {
        AttemptError::Halt(Halt::Failed(LaneError::TransactionEnded {
            consumer: self.context.consumer.clone(),
            topic: place.topic.clone(),
            partition: place.partition,
            event_types: place.event_types.clone(),
            typed: if committed { "COMMIT" } else { "ROLLBACK" },
        }))
    }
}

/// Where a batch came from, for an error that stops its consumer.
struct Place {
    topic: String,
    partition: i32,
    event_types: String,
}

/// Gives each run of consecutive events of one type to its handler.
///
/// On failure: the indices (into `items`) that were not handled, and why.
async fn run_handlers(
    context: &HandlingContext,
    session: &mut Session,
    items: Vec<Item>,
    limits: &CallLimits,
) -> Result<(), (Range<usize>, CallError)> {
    let calls = CallWriter::new(context.consumer.clone(), context.calls.clone());
    let mut tx = Tx::new(session.conn(), calls);
    let mut run: Vec<Delivery> = Vec::new();
    let mut places: Vec<usize> = Vec::new();
    let mut current: Option<&'static str> = None;
    let mut events = items
        .into_iter()
        .enumerate()
        .filter_map(|(index, item)| match item {
            Item::Event { envelope, trace } => Some((index, Delivery { envelope, trace })),
            _ => None,
        });
    loop {
        let next = events.next();
        let next_type = next.as_ref().map(|(_, d)| d.envelope.event_type());
        if next_type != current && !run.is_empty() {
            let event_type = current.expect("a run has a type");
            // The registry holds exactly the types that have a handler.
            let handler = &context.handlers[event_type];
            let result = handler.run(std::mem::take(&mut run), &mut tx, limits).await;
            let places = std::mem::take(&mut places);
            if let Err(RunError { from, to, error }) = result {
                return Err((places[from]..places[to - 1] + 1, error));
            }
        }
        current = next_type;
        let Some((index, delivery)) = next else {
            return Ok(());
        };
        places.push(index);
        run.push(delivery);
    }
}

/// What an event waits behind: its record's key, or its aggregate's id if it has none.
fn key_of<'a>(record: &'a Record, envelope: &'a AnyEnvelope) -> &'a [u8] {
    match &record.key {
        Some(key) => key,
        None => envelope.aggregate_id().as_bytes(),
    }
}

/// A record that is to be parked, beside the record itself.
pub(crate) struct Waiting {
    key: Vec<u8>,
    event_id: EventId,
    sent_as: &'static str,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Waiting {
    fn new(record: &Record, envelope: &AnyEnvelope) -> Waiting {
        Waiting {
            key: key_of(record, envelope).to_vec(),
            event_id: envelope.id(),
            sent_as: envelope.sent_as(),
            headers: owned_headers(record),
        }
    }

    pub(crate) fn row<'a>(&'a self, record: &'a Record) -> ParkedRecord<'a> {
        ParkedRecord {
            topic: &record.topic,
            partition: record.partition,
            offset: record.offset,
            key: &self.key,
            keyless: record.key.is_none(),
            // An event has a value.
            value: record.value.as_deref().unwrap_or_default(),
            headers: &self.headers,
            event_id: self.event_id,
            event_type: self.sent_as,
        }
    }
}

fn owned_headers(record: &Record) -> Vec<(String, Option<Vec<u8>>)> {
    let headers = record.headers.iter();
    headers
        .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
        .collect()
}

/// Records that need no transaction.
struct Skipped {
    unknown: usize,
    tombstones: usize,
    of_others: usize,
}

impl Skipped {
    fn count(items: &[Item]) -> Skipped {
        Skipped {
            unknown: items.iter().filter(|i| matches!(i, Item::Unknown)).count(),
            tombstones: items
                .iter()
                .filter(|i| matches!(i, Item::Tombstone))
                .count(),
            of_others: items
                .iter()
                .filter(|i| matches!(i, Item::OfAnother))
                .count(),
        }
    }

    fn all(&self) -> usize {
        self.unknown + self.tombstones + self.of_others
    }

    fn record(&self, stats: &ConsumerStats) {
        add(&stats.unknown, self.unknown);
        add(&stats.tombstones, self.tombstones);
        add(&stats.of_others, self.of_others);
    }
}

impl HandlingContext {
    fn decode(&self, record: &Record, stored: bool) -> Item {
        // What this consumer sent to a retry topic was set aside once, as what lies in a table.
        let stored = match self.retry_topics.addressee(record, &self.consumer) {
            Addressee::AnotherConsumer => return Item::OfAnother,
            Addressee::ThisConsumer => true,
            Addressee::Anyone => stored,
        };
        match self.registry.decode(record.value.as_deref()) {
            Decoded::Event(envelope) => Item::Event {
                envelope,
                trace: header(record, "traceparent"),
            },
            Decoded::Poison(poison) => Item::DeadLetter {
                reason: DeadLetterReason::Poison(poison.reason()),
                poison: Some(poison),
            },
            Decoded::Unknown { .. } => match self.unknown_types {
                UnknownPolicy::Skip if !stored => Item::Unknown,
                UnknownPolicy::Skip | UnknownPolicy::DeadLetter => Item::DeadLetter {
                    reason: DeadLetterReason::UnknownType,
                    poison: None,
                },
            },
            Decoded::Tombstone => match self.tombstones {
                TombstonePolicy::Skip if !stored => Item::Tombstone,
                TombstonePolicy::Skip | TombstonePolicy::DeadLetter => Item::DeadLetter {
                    reason: DeadLetterReason::Tombstone,
                    poison: None,
                },
            },
        }
    }

    /// A dead letter for `record`. Its id and type come from the body if that can be read, else
    /// from the headers. From a retry topic it is one of the record that was published.
    pub(crate) fn letter(&self, record: &Record, reason: DeadLetterReason) -> Letter {
        let (event_id, event_type) = match self.registry.decode(record.value.as_deref()) {
            Decoded::Event(envelope) => (Some(envelope.id()), Some(envelope.sent_as().to_owned())),
            Decoded::Unknown { event_type } => (header(record, "event-id"), Some(event_type)),
            Decoded::Poison(_) => {
                let written = record.value.as_deref();
                let event_type = written.and_then(|value| self.registry.event_type_of(value));
                (
                    header(record, "event-id"),
                    event_type.or_else(|| header(record, "event-type")),
                )
            }
            Decoded::Tombstone => (header(record, "event-id"), header(record, "event-type")),
        };
        let journey = self.retry_topics.journey(record);
        Letter {
            reason,
            path: None,
            error: reason.to_string(),
            attempts: journey.as_ref().map_or(1, |j| j.attempts.saturating_add(1)),
            first_failed_at: journey.as_ref().and_then(|j| j.first_failure),
            event_id,
            event_type,
            headers: self.retry_topics.own_headers(record),
            origin: journey.and_then(|j| j.origin),
        }
    }

    /// What keeps `record` in order: its key, or its event's aggregate's id. Nothing if it has neither.
    pub(crate) fn order_key(&self, record: &Record) -> Option<Vec<u8>> {
        if let Some(key) = &record.key {
            return Some(key.clone());
        }
        match self.registry.decode(record.value.as_deref()) {
            Decoded::Event(envelope) => Some(key_of(record, &envelope).to_vec()),
            Decoded::Unknown { .. } | Decoded::Poison(_) | Decoded::Tombstone => None,
        }
    }

    /// What is to be parked of `record`; nothing if it holds no event that can be read.
    pub(crate) fn waiting(&self, record: &Record) -> Option<Waiting> {
        match self.registry.decode(record.value.as_deref()) {
            Decoded::Event(envelope) => Some(Waiting::new(record, &envelope)),
            Decoded::Unknown { .. } | Decoded::Poison(_) | Decoded::Tombstone => None,
        }
    }

    /// Counts events that are parked now and weren't before.
    pub(crate) fn note_parked(&self, events: usize) {
        if events > 0 {
            add(&self.stats.parked, events);
            add(&self.parked.events, events);
            metrics::counter!(metric::PARKED_TOTAL, "consumer" => self.consumer.clone())
                .increment(events as u64);
        }
    }

    /// Counts a dead letter that was committed.
    pub(crate) fn count_letter(&self, reason: DeadLetterReason) {
        metrics::counter!(metric::DEAD_LETTERS_TOTAL, "consumer" => self.consumer.clone(), "reason" => reason.as_str())
            .increment(1);
    }

    fn types_of(&self, items: &[Item]) -> String {
        let mut types: Vec<&str> = items
            .iter()
            .filter_map(|item| match item {
                Item::Event { envelope, .. } => Some(envelope.event_type()),
                _ => None,
            })
            .collect();
        types.sort_unstable();
        types.dedup();
        types.join(", ")
    }
}

/// A header that holds text of that form.
fn header<T: std::str::FromStr>(record: &Record, name: &str) -> Option<T> {
    std::str::from_utf8(record.header(name)?).ok()?.parse().ok()
}

/// A dead letter in the making.
pub(crate) struct Letter {
    pub(crate) reason: DeadLetterReason,
    pub(crate) path: Option<String>,
    pub(crate) error: String,
    pub(crate) attempts: u32,
    pub(crate) first_failed_at: Option<time::OffsetDateTime>,
    pub(crate) event_id: Option<EventId>,
    pub(crate) event_type: Option<String>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
    /// Where the record was published, if it was taken from a retry topic.
    pub(crate) origin: Option<Origin>,
}

impl Letter {
    /// Sets the record aside in the open transaction, and mirrors it if the consumer wants that.
    pub(crate) async fn write(
        &self,
        context: &HandlingContext,
        record: &Record,
        session: &mut Session,
    ) -> Result<(), DatabaseError> {
        factum_fault::at(Point::DeadLetterBefore);
        session.dead_letter(&self.row(context, record)).await?;
        factum_fault::at(Point::DeadLetterAfter);
        if context.mirror {
            let published_to = context.retry_topics.published_to(&record.topic);
            let coordinates = self.coordinates(record);
            let consumer = &context.consumer;
            mirror::send(session, consumer, published_to, coordinates, record, self).await?;
        }
        Ok(())
    }

    /// Topic, partition and offset of the record as it was published.
    pub(crate) fn coordinates<'a>(&'a self, record: &'a Record) -> (&'a str, i32, i64) {
        match &self.origin {
            Some(origin) => (&origin.topic, origin.partition, origin.offset),
            None => (&record.topic, record.partition, record.offset),
        }
    }

    pub(crate) fn row<'a>(
        &'a self,
        context: &'a HandlingContext,
        record: &'a Record,
    ) -> DeadLetter<'a> {
        let (topic, partition, offset) = self.coordinates(record);
        DeadLetter {
            consumer: &context.consumer,
            topic,
            partition,
            offset,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &self.headers,
            event_id: self.event_id,
            event_type: self.event_type.as_deref(),
            reason: self.reason.as_str(),
            path: self.path.as_deref(),
            error: Some(&self.error),
            attempts: self.attempts,
            first_failed_at: self.first_failed_at,
            build: &context.build,
        }
    }
}
