//! One partition's records: decoded, deduplicated, handled, committed, in order.
//!
//! A lane owns one database session. For each batch it runs one transaction
//! `BEGIN, dedup, handlers, guard + COMMIT`, and only then moves the offset (CONS-2). What fails is
//! narrowed down to the event that fails; everything else of the batch commits.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::handler::{CallError, CallLimits, Delivery, ErasedHandler, RunError, Tx};
use crate::work_list::{Part, WorkList};
use factum_event::{
    AnyEnvelope, DeadLetterReason, Decoded, EventId, Failure, Outcome, Poison, Registry, Retry,
    TakenType, TraceContext, decide,
};
use factum_fault::Point;
use factum_kafka::{GroupStats, LaneFeed, Record};
use factum_postgres::{
    CommitError, Database, DatabaseError, DeadLetter, DedupVerdict, ErrorKind, RollbackError,
    Session, TransactionId, classify, describe,
};

/// Values of one batch in memory, about.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Immediate re-runs of a transaction that PostgreSQL broke off (40001, 40P01) before the conflict
/// counts as a failure of the handler.
const CONFLICT_RETRIES: u32 = 10;
const OUTAGE_FIRST_DELAY: Duration = Duration::from_millis(100);
const OUTAGE_MAX_DELAY: Duration = Duration::from_secs(5);

/// What to do with a record that has no value (a tombstone of a compacted topic).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TombstonePolicy {
    /// Skip it and count it. The default.
    #[default]
    Skip,
    /// Set it aside as a dead letter.
    DeadLetter,
}

/// What to do with an event whose type this consumer has no handler for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownPolicy {
    /// Skip it and count it: a new version on the topic breaks nobody (EVT-3). The default.
    #[default]
    Skip,
    /// Set it aside as a dead letter.
    DeadLetter,
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a consumer has done since it started. Read at any time; every number only grows.
        #[derive(Debug, Default)]
        pub struct ConsumerStats {
            $($name: AtomicU64,)*
            pub(crate) types: OnceLock<Vec<TypeCounter>>,
            pub(crate) group: OnceLock<Arc<GroupStats>>,
        }

        impl ConsumerStats {
            $($(#[$doc])* pub fn $name(&self) -> u64 { self.$name.load(Ordering::Relaxed) })*

            /// Times that the group dropped this consumer because it did not poll in time. It joins
            /// again by itself; the records in flight come again as duplicates.
            pub fn evictions(&self) -> u64 {
                self.group.get().map_or(0, |group| group.evictions())
            }

            /// The same by type of records, sorted by it: which versions of its events the consumer takes, and
            /// as what. Empty before the consumer runs.
            pub fn by_type(&self) -> Vec<TypeStats> {
                let counters = self.types.get().map_or(&[][..], Vec::as_slice);
                counters.iter().map(TypeCounter::read).collect()
            }
        }
    };
}

stats! {
    /// Records taken from Kafka, repeats included.
    received,
    /// Events whose handler's effect was committed.
    processed,
    /// Events that this consumer had processed before: no effect.
    duplicates,
    /// Records set aside in `dead_letter`.
    dead_lettered,
    /// Events of a type without a handler.
    unknown,
    /// Records without a value.
    tombstones,
    /// Attempts after a transient failure.
    retries,
    /// Transactions that were run again because of a conflict or an outage of the database.
    reruns,
    /// Transactions committed.
    transactions,
}

/// What a consumer has done with the records of one type since it started, see [`ConsumerStats::by_type`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeStats {
    /// The type of the records.
    pub event_type: &'static str,
    /// The type that the handler got: the same, or a newer one that the records were made into.
    pub taken_as: &'static str,
    /// Events that took effect from such records.
    pub taken: u64,
    /// Such records whose event had been handled before: a repeat, or another version of the same fact.
    pub duplicates: u64,
    /// When an event last took effect from such a record.
    pub last_taken_at: Option<time::OffsetDateTime>,
}

impl TypeStats {
    /// Whether the records are of an older version than the handler's.
    pub fn is_upcast(&self) -> bool {
        self.event_type != self.taken_as
    }
}

/// Counts the records of one type.
#[derive(Debug)]
pub(crate) struct TypeCounter {
    event_type: &'static str,
    taken_as: &'static str,
    taken: AtomicU64,
    duplicates: AtomicU64,
    /// Milliseconds since 1970; 0 for never.
    last_taken_at: AtomicI64,
}

impl TypeCounter {
    pub(crate) fn new(taken: &TakenType) -> TypeCounter {
        TypeCounter {
            event_type: taken.event_type,
            taken_as: taken.taken_as,
            taken: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            last_taken_at: AtomicI64::new(0),
        }
    }

    fn read(&self) -> TypeStats {
        let millis = self.last_taken_at.load(Ordering::Relaxed);
        let at = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000);
        TypeStats {
            event_type: self.event_type,
            taken_as: self.taken_as,
            taken: self.taken.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            last_taken_at: at.ok().filter(|_| millis != 0),
        }
    }
}

/// What became of a batch's events, by the type of their records.
#[derive(Default)]
struct Tally(Vec<(&'static str, usize, usize)>);

impl Tally {
    fn add(&mut self, event_type: &'static str, taken: usize, duplicates: usize) {
        // A consumer takes few types, and neighbours are mostly of one.
        match self
            .0
            .iter_mut()
            .rev()
            .find(|(known, ..)| *known == event_type)
        {
            Some(entry) => {
                entry.1 += taken;
                entry.2 += duplicates;
            }
            None => self.0.push((event_type, taken, duplicates)),
        }
    }

    fn record(&self, stats: &ConsumerStats) {
        let now = time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let counters = stats.types.get().map_or(&[][..], Vec::as_slice);
        for (event_type, taken, duplicates) in &self.0 {
            let Some(counter) = counters.iter().find(|c| c.event_type == *event_type) else {
                continue;
            };
            add(&counter.taken, *taken);
            add(&counter.duplicates, *duplicates);
            if *taken > 0 {
                counter.last_taken_at.fetch_max(now, Ordering::Relaxed);
            }
        }
    }
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// What all lanes of a consumer share.
pub(crate) struct LaneContext {
    pub(crate) consumer: String,
    pub(crate) registry: Registry,
    pub(crate) handlers: HashMap<&'static str, Arc<dyn ErasedHandler>>,
    pub(crate) retry: Retry,
    pub(crate) handler_timeout: Duration,
    pub(crate) batch_limit: usize,
    pub(crate) tombstones: TombstonePolicy,
    pub(crate) unknown_types: UnknownPolicy,
    pub(crate) db: Database,
    pub(crate) stats: Arc<ConsumerStats>,
}

/// Why a lane ended before its partition was revoked. It stops the whole consumer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LaneError {
    /// A handler ended the framework's transaction by SQL of its own.
    #[error(
        "consumer {consumer}: a handler typed {typed} in the transaction it was lent, in a batch of {event_types} \
         from {topic}/{partition}. The events that had not been handled are not marked as processed and come again. \
         Take the statement out of the handler (a SAVEPOINT is fine), then start the consumer again"
    )]
    TransactionEnded {
        /// The consumer.
        consumer: String,
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The event types of the batch: one of their handlers did it.
        event_types: String,
        /// `COMMIT` or `ROLLBACK`.
        typed: &'static str,
    },
    /// A handler typed COMMIT, and what followed couldn't be mended automatically.
    #[error("consumer {consumer}: {what}")]
    NotTakenBack {
        /// The consumer.
        consumer: String,
        /// What stands, and what to do.
        what: String,
    },
    /// The lane's task panicked: a fault in Factum, not in a handler (whose panics are caught).
    #[error(
        "consumer {consumer}: a lane ended by a panic. Nothing was marked as processed; please report it"
    )]
    Panicked {
        /// The consumer.
        consumer: String,
    },
}

pub(crate) struct Lane {
    context: Arc<LaneContext>,
    feed: LaneFeed,
    session: Option<Session>,
}

/// Why an attempt, or the lane, didn't go on.
enum Halt {
    /// Revoked or stopping: what isn't committed comes again elsewhere.
    Draining,
    Failed(LaneError),
}

/// How one transaction ended badly. Nothing of it is committed.
enum AttemptError {
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
    Halt(Halt),
}

/// A record, decoded, on its way through one attempt.
enum Item {
    Event {
        envelope: AnyEnvelope,
        trace: Option<TraceContext>,
    },
    Duplicate,
    DeadLetter {
        reason: DeadLetterReason,
        poison: Option<Poison>,
    },
    Unknown,
    Tombstone,
}

impl Lane {
    pub(crate) fn new(context: Arc<LaneContext>, feed: LaneFeed) -> Self {
        Lane {
            context,
            feed,
            session: None,
        }
    }

    /// Runs until the partition is revoked, or for good reason stops the consumer.
    ///
    /// Must run in a task of its own that nobody cancels: a transaction is never dropped half-way
    /// (case 63).
    pub(crate) async fn run(mut self) -> Result<(), LaneError> {
        let limit = self.context.batch_limit;
        let result = loop {
            factum_fault::at(Point::PollBefore);
            let Some(records) = self.feed.next_batch(limit, BATCH_BYTES).await else {
                break Ok(());
            };
            factum_fault::at(Point::PollAfter);
            add(&self.context.stats.received, records.len());
            match self.process(&records).await {
                Ok(()) => {}
                Err(Halt::Draining) => break Ok(()),
                Err(Halt::Failed(error)) => break Err(error),
            }
        };
        if let Some(session) = self.session.take() {
            session.close().await;
        }
        result
    }

    /// Handles `records` in order: whole if it goes well, in ever smaller parts where it doesn't.
    async fn process(&mut self, records: &[Record]) -> Result<(), Halt> {
        let mut work = WorkList::new(records.len());
        while let Some(part) = work.next() {
            let done = match part {
                Part::Failed(index, failure) => {
                    self.settle(&records[index], failure).await?;
                    index + 1
                }
                Part::Attempt(part) => {
                    match self.attempt_through_outages(&records[part.clone()]).await {
                        Ok(()) => part.end,
                        Err(AttemptError::Records { range, failure }) => {
                            let failed = part.start + range.start..part.start + range.end;
                            work.split(&part, failed, failure);
                            continue;
                        }
                        Err(AttemptError::Halt(halt)) => return Err(halt),
                        Err(AttemptError::Conflict { .. } | AttemptError::Outage(_)) => {
                            unreachable!("attempt_through_outages answers neither")
                        }
                    }
                }
            };
            factum_fault::at(Point::OffsetStoreBefore);
            self.feed.handled_below(records[done - 1].offset + 1);
            factum_fault::at(Point::OffsetStoreAfter);
        }
        Ok(())
    }

    /// Takes one failing record to its outcome: retried while its partition waits, or set aside.
    async fn settle(&mut self, record: &Record, mut failure: Failure) -> Result<(), Halt> {
        let first_failed_at = time::OffsetDateTime::now_utc();
        let mut attempt: u32 = 1;
        loop {
            let outcome = decide(&failure, attempt, &self.context.retry);
            tracing::warn!(consumer = %self.context.consumer, topic = self.feed.topic(),
                partition = self.feed.partition(), offset = record.offset, attempt, %failure, ?outcome,
                "an event failed");
            match outcome {
                Outcome::Retry { after, counted } => {
                    // Half of the delay is fixed, half is jitter: lanes that failed together
                    // don't come back together.
                    self.pause(after.mul_f64(0.5 + fastrand::f64() / 2.0))
                        .await?;
                    add(&self.context.stats.retries, 1);
                    match self
                        .attempt_through_outages(std::slice::from_ref(record))
                        .await
                    {
                        Ok(()) => return Ok(()),
                        Err(AttemptError::Records { failure: again, .. }) => failure = again,
                        Err(AttemptError::Halt(halt)) => return Err(halt),
                        Err(AttemptError::Conflict { .. } | AttemptError::Outage(_)) => {
                            unreachable!("attempt_through_outages answers neither")
                        }
                    }
                    if counted {
                        attempt += 1;
                    }
                }
                Outcome::DeadLetter { reason } => {
                    let mut letter = self.context.letter(record, reason);
                    letter.error = failure.to_string();
                    letter.attempts = attempt;
                    letter.first_failed_at = Some(first_failed_at);
                    return self.set_aside(record, &letter).await;
                }
                // decide() is asked about failures only.
                other => unreachable!("a failure's outcome is {other:?}"),
            }
        }
    }

    /// Waits, unless the partition is taken away meanwhile.
    async fn pause(&self, delay: Duration) -> Result<(), Halt> {
        tokio::select! {
            () = self.feed.drain().cancelled() => Err(Halt::Draining),
            () = tokio::time::sleep(delay) => Ok(()),
        }
    }

    /// Writes one dead letter in a transaction of its own.
    async fn set_aside(&mut self, record: &Record, letter: &Letter) -> Result<(), Halt> {
        let mut delay = OUTAGE_FIRST_DELAY;
        loop {
            match self.try_set_aside(record, letter).await {
                Ok(()) => {
                    add(&self.context.stats.dead_lettered, 1);
                    return Ok(());
                }
                Err(reason) => self.wait_out(&reason, &mut delay).await?,
            }
        }
    }

    async fn try_set_aside(&mut self, record: &Record, letter: &Letter) -> Result<(), String> {
        let context = self.context.clone();
        let result = async {
            let session = open(&mut self.session, &context.db).await?;
            factum_fault::at(Point::BeginBefore);
            session.begin().await?;
            factum_fault::at(Point::BeginAfter);
            let xid = session.transaction_id().await?;
            factum_fault::at(Point::DeadLetterBefore);
            session
                .dead_letter(&letter.row(&context.consumer, record))
                .await?;
            factum_fault::at(Point::DeadLetterAfter);
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
    async fn attempt_through_outages(&mut self, records: &[Record]) -> Result<(), AttemptError> {
        let mut delay = OUTAGE_FIRST_DELAY;
        let mut conflicts = 0;
        loop {
            if self.feed.drain().is_cancelled() {
                return Err(AttemptError::Halt(Halt::Draining));
            }
            match self.attempt(records).await {
                Err(AttemptError::Outage(reason)) => {
                    add(&self.context.stats.reruns, 1);
                    self.wait_out(&reason, &mut delay)
                        .await
                        .map_err(AttemptError::Halt)?;
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
        tracing::warn!(consumer = %self.context.consumer, topic = self.feed.topic(),
            partition = self.feed.partition(), reason, delay_ms = delay.as_millis() as u64,
            "the lane waits for the database; nothing is set aside");
        self.pause(*delay).await?;
        *delay = (*delay * 2).min(OUTAGE_MAX_DELAY);
        Ok(())
    }

    fn discard_session(&mut self) {
        if let Some(session) = self.session.take() {
            session.discard();
        }
    }

    /// One transaction over `records`.
    async fn attempt(&mut self, records: &[Record]) -> Result<(), AttemptError> {
        let context = self.context.clone();
        factum_fault::at(Point::DecodeBefore);
        let mut items: Vec<Item> = records.iter().map(|r| context.decode(r)).collect();
        factum_fault::at(Point::DecodeAfter);
        let ids: Vec<EventId> = items.iter().filter_map(Item::event_id).collect();
        let skipped = Skipped::count(&items);
        if skipped.unknown + skipped.tombstones == records.len() {
            skipped.record(&context.stats);
            return Ok(());
        }

        // BEGIN and dedup.
        let begun = async {
            let session = open(&mut self.session, &context.db).await?;
            factum_fault::at(Point::BeginBefore);
            session.begin().await?;
            factum_fault::at(Point::BeginAfter);
            if ids.is_empty() {
                let xid = session.transaction_id().await?;
                return Ok((session, xid, Vec::new()));
            }
            factum_fault::at(Point::DedupBefore);
            let dedup = session.dedup(&context.consumer, &ids).await?;
            factum_fault::at(Point::DedupAfter);
            Ok::<_, DatabaseError>((session, dedup.xid, dedup.verdicts))
        }
        .await;
        let (session, xid, verdicts) = match begun {
            Ok(begun) => begun,
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
                Some(DedupVerdict::OutOfWindow) | None => {
                    *item = Item::DeadLetter {
                        reason: DeadLetterReason::OutOfWindow,
                        poison: None,
                    };
                }
            }
        }
        let mut letters = 0;
        for (record, item) in records.iter().zip(&items) {
            let Item::DeadLetter { reason, poison } = item else {
                continue;
            };
            let mut letter = context.letter(record, *reason);
            if let Some(poison) = poison {
                letter.path = Some(poison.path().to_owned());
                letter.error = poison.to_string();
            }
            factum_fault::at(Point::DeadLetterBefore);
            let written = session
                .dead_letter(&letter.row(&context.consumer, record))
                .await;
            factum_fault::at(Point::DeadLetterAfter);
            if let Err(error) = written {
                let failed = self.begin_failed(&error, records.len());
                self.discard_session();
                return Err(failed);
            }
            letters += 1;
        }

        // The handlers.
        let limits = CallLimits {
            timeout: context.handler_timeout,
            abort: self.feed.abort().clone(),
        };
        let event_types = context.types_of(&items);
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
                .handler_failed(xid, range, error, &unfinished, &event_types)
                .await);
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
                skipped.record(&context.stats);
                tally.record(&context.stats);
                Ok(())
            }
            Err(error) => {
                // Only records with a fresh event can be to blame.
                let blamed = match (fresh.first(), fresh.last()) {
                    (Some(first), Some(last)) => first.0..last.0 + 1,
                    _ => 0..records.len(),
                };
                Err(self.commit_failed(error, blamed, &event_types))
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
        event_types: &str,
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
                return self.transaction_ended(committed, event_types);
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
            CallError::Failed(error) => {
                let source = error.source();
                if source.and_then(|s| classify(s)) == Some(ErrorKind::Conflict) {
                    return AttemptError::Conflict { range };
                }
                let description = source
                    .and_then(|s| describe(s))
                    .unwrap_or_else(|| error.describe());
                if error.is_permanent() {
                    Failure::Permanent { description }
                } else {
                    Failure::Transient { description }
                }
            }
        };
        AttemptError::Records { range, failure }
    }

    fn commit_failed(
        &mut self,
        error: CommitError,
        blamed: Range<usize>,
        event_types: &str,
    ) -> AttemptError {
        match error {
            CommitError::SwallowedError => AttemptError::Records {
                range: blamed,
                failure: Failure::SwallowedSqlError,
            },
            CommitError::TransactionEnded { committed } => {
                self.discard_session();
                self.transaction_ended(committed, event_types)
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

    fn transaction_ended(&self, committed: bool, event_types: &str) -> AttemptError {
        AttemptError::Halt(Halt::Failed(LaneError::TransactionEnded {
            consumer: self.context.consumer.clone(),
            topic: self.feed.topic().to_owned(),
            partition: self.feed.partition(),
            event_types: event_types.to_owned(),
            typed: if committed { "COMMIT" } else { "ROLLBACK" },
        }))
    }
}

/// The lane's session, opened if there is none.
async fn open<'s>(
    slot: &'s mut Option<Session>,
    db: &Database,
) -> Result<&'s mut Session, DatabaseError> {
    if slot.is_none() {
        *slot = Some(Session::open(db).await?);
    }
    Ok(slot.as_mut().expect("it was filled just now"))
}

/// Gives each run of consecutive events of one type to its handler.
///
/// On failure: the indices (into `items`) that were not handled, and why.
async fn run_handlers(
    context: &LaneContext,
    session: &mut Session,
    items: Vec<Item>,
    limits: &CallLimits,
) -> Result<(), (Range<usize>, CallError)> {
    let mut tx = Tx::new(session.conn());
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

impl Item {
    fn event_id(&self) -> Option<EventId> {
        match self {
            Item::Event { envelope, .. } => Some(envelope.id()),
            _ => None,
        }
    }
}

/// Records that need no transaction.
struct Skipped {
    unknown: usize,
    tombstones: usize,
}

impl Skipped {
    fn count(items: &[Item]) -> Skipped {
        Skipped {
            unknown: items.iter().filter(|i| matches!(i, Item::Unknown)).count(),
            tombstones: items
                .iter()
                .filter(|i| matches!(i, Item::Tombstone))
                .count(),
        }
    }

    fn record(&self, stats: &ConsumerStats) {
        add(&stats.unknown, self.unknown);
        add(&stats.tombstones, self.tombstones);
    }
}

impl LaneContext {
    fn decode(&self, record: &Record) -> Item {
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
                UnknownPolicy::Skip => Item::Unknown,
                UnknownPolicy::DeadLetter => Item::DeadLetter {
                    reason: DeadLetterReason::UnknownType,
                    poison: None,
                },
            },
            Decoded::Tombstone => match self.tombstones {
                TombstonePolicy::Skip => Item::Tombstone,
                TombstonePolicy::DeadLetter => Item::DeadLetter {
                    reason: DeadLetterReason::Tombstone,
                    poison: None,
                },
            },
        }
    }

    /// A dead letter for `record`. Its id and type come from the body if that can be read, else
    /// from the headers.
    fn letter(&self, record: &Record, reason: DeadLetterReason) -> Letter {
        let (event_id, event_type) = match self.registry.decode(record.value.as_deref()) {
            Decoded::Event(envelope) => (Some(envelope.id()), Some(envelope.sent_as().to_owned())),
            Decoded::Unknown { event_type } => (header(record, "event-id"), Some(event_type)),
            Decoded::Poison(_) | Decoded::Tombstone => {
                (header(record, "event-id"), header(record, "event-type"))
            }
        };
        Letter {
            reason,
            path: None,
            error: reason.to_string(),
            attempts: 1,
            first_failed_at: None,
            event_id,
            event_type,
            headers: record
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
                .collect(),
        }
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
struct Letter {
    reason: DeadLetterReason,
    path: Option<String>,
    error: String,
    attempts: u32,
    first_failed_at: Option<time::OffsetDateTime>,
    event_id: Option<EventId>,
    event_type: Option<String>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Letter {
    fn row<'a>(&'a self, consumer: &'a str, record: &'a Record) -> DeadLetter<'a> {
        DeadLetter {
            consumer,
            topic: &record.topic,
            partition: record.partition,
            offset: record.offset,
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
        }
    }
}
