//! One partition's records: decoded, deduplicated, handled, committed, in order.
//!
//! A lane has one database session, which it lends to others when there are too few. For each batch it runs one transaction
//! (see [`worker`](crate::worker)), and only then moves the offset (CONS-2). What fails is
//! narrowed down to the event that fails; everything else of the batch commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use factum_event::{DeadLetterReason, Failure, Outcome, decide};
use factum_fault::Point;
use factum_kafka::{LaneFeed, Record};
use factum_postgres::{DatabaseError, Parking, Session};
use time::OffsetDateTime;

use crate::metric;
use crate::retry_topic::Failed;
use crate::stats::add;
use crate::work_list::{Part, WorkList};
use crate::worker::{
    AttemptError, Attempted, Entry, Halt, HandlingContext, Letter, PartitionWaits, Streamed,
    Waiting, Worker,
};

/// Values of one batch in memory, about.
pub(crate) const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Before a longer wait the lane gives its connection to the database back.
const SESSION_KEPT: time::Duration = time::Duration::seconds(1);
/// How long a wait goes on before the clock is asked again: it may have been set.
pub(crate) const CLOCK_TRUSTED: Duration = Duration::from_secs(30);
/// Why an event that may succeed later is a dead letter all the same.
const NO_ROOM: &str = "with the headers of a retry the record is too large for a retry topic";

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
    worker: Worker,
    feed: LaneFeed,
}

impl Lane {
    pub(crate) fn new(context: Arc<HandlingContext>, feed: LaneFeed) -> Self {
        let worker = Worker::new(context, feed.drain().clone(), feed.abort().clone());
        Lane { worker, feed }
    }

    /// Runs until the partition is revoked, or for good reason stops the consumer.
    ///
    /// Must run in a task of its own that nobody cancels: a transaction is never dropped half-way
    /// (case 63).
    pub(crate) async fn run(mut self) -> Result<(), LaneError> {
        let limit = self.worker.context.batch_limit;
        let _counted = self.worker.context.stats.count_lane();
        let result = loop {
            factum_fault::at(Point::PollBefore);
            let records = tokio::select! {
                biased;
                records = self.feed.next_batch(limit, BATCH_BYTES) => records,
                // It holds a session that others wait for, and has nothing to do with it.
                () = self.worker.context.db.turn_wanted(), if !self.worker.is_resting() => {
                    self.worker.give_back();
                    continue;
                }
            };
            let Some(records) = records else {
                break Ok(());
            };
            factum_fault::at(Point::PollAfter);
            add(&self.worker.context.stats.received, records.len());
            match self.take(&records).await {
                Ok(()) => {}
                Err(Halt::Draining) => break Ok(()),
                Err(Halt::Failed(error)) => break Err(error),
            }
        };
        self.worker.close().await;
        result
    }

    /// Handles a batch; of a retry topic as it comes due. Meanwhile the partition's queue fills, and its fetching
    /// pauses; the poll thread goes on, so that the group doesn't miss this member however long the delay.
    async fn take(&mut self, mut records: &[Record]) -> Result<(), Halt> {
        let context = self.worker.context.clone();
        let Some(topic) = context.retry_topics.find(self.feed.topic()) else {
            return self.handle(records).await;
        };
        let received = OffsetDateTime::now_utc();
        while let Some(first) = records.first() {
            let now = OffsetDateTime::now_utc();
            let wait = topic.due(first, received) - now;
            if wait.is_positive() {
                if wait > SESSION_KEPT {
                    self.worker.rest().await;
                }
                self.worker
                    .pause(wait.unsigned_abs().min(CLOCK_TRUSTED))
                    .await?;
                continue;
            }
            let due = records
                .iter()
                .take_while(|record| topic.due(record, received) <= now)
                .count();
            let (ready, later) = records.split_at(due);
            self.handle(ready).await?;
            records = later;
        }
        Ok(())
    }

    /// Handles `records` in order, and moves the offset behind what is done.
    async fn handle(&mut self, records: &[Record]) -> Result<(), Halt> {
        let feed = &self.feed;
        let done = |done: usize| move_offset(feed, records[done - 1].offset + 1);
        self.worker.handle(records, done).await
    }
}

/// Every record below `next` is done.
pub(crate) fn move_offset(feed: &LaneFeed, next: i64) {
    factum_fault::at(Point::OffsetStoreBefore);
    feed.handled_below(next);
    factum_fault::at(Point::OffsetStoreAfter);
}

impl Worker {
    /// Handles `records` in order: whole if it goes well, in ever smaller parts where it doesn't. `done` is told how
    /// many of them have their outcome, each time that there are more.
    pub(crate) async fn handle(
        &mut self,
        records: &[Record],
        done: impl Fn(usize) + Send,
    ) -> Result<(), Halt> {
        let mut work = WorkList::new(records.len());
        while let Some(part) = work.next() {
            match part {
                Part::Failed(index, failure) => {
                    self.settle(&records[index], failure).await?;
                    done(index + 1);
                }
                Part::Attempt(part) => {
                    let records = &records[part.clone()];
                    match self.attempt_through_outages(records, &mut Streamed).await {
                        Ok(attempted) => {
                            self.count_retried(&records[0], attempted);
                            done(part.end);
                        }
                        Err(AttemptError::Records { range, failure }) => {
                            let failed = part.start + range.start..part.start + range.end;
                            work.split(&part, failed, failure);
                        }
                        Err(AttemptError::Halt(halt)) => return Err(halt),
                        Err(
                            AttemptError::Conflict { .. }
                            | AttemptError::Outage(_)
                            | AttemptError::Full,
                        ) => unreachable!("attempt_through_outages answers none of them"),
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes one failing record to its outcome: parked, retried while its partition waits, or set aside.
    async fn settle(&mut self, record: &Record, mut failure: Failure) -> Result<(), Halt> {
        let context = self.context.clone();
        let journey = context.retry_topics.journey(record);
        let first_failed_at = journey
            .as_ref()
            .and_then(|journey| journey.first_failure)
            .unwrap_or_else(OffsetDateTime::now_utc);
        if journey.is_some() {
            add(&context.stats.retries, 1);
        }
        // A record that holds no event has no key to wait under: it fails by the database's conflicts alone.
        let waiting = context.waiting(record);
        let mut partition_waits = None;
        let mut attempt = journey.map_or(1, |journey| journey.attempts.saturating_add(1));
        loop {
            let outcome = decide(&failure, attempt, &self.context.retry);
            tracing::warn!(consumer = %self.context.consumer, topic = %record.topic,
                partition = record.partition, offset = record.offset, attempt, %failure, ?outcome,
                "an event failed");
            let parking = match (outcome, &waiting) {
                (Outcome::Park { up_to }, Some(waiting)) => Some((waiting, Some(up_to))),
                (Outcome::Hold, Some(waiting)) => Some((waiting, None)),
                _ => None,
            };
            if let Some((waiting, up_to)) = parking {
                let error = failure.to_string();
                let parked = Park {
                    record,
                    waiting,
                    parking: Parking {
                        attempts: attempt,
                        max_attempts: self.context.retry.max_attempts(),
                        // Full jitter: what failed together doesn't come back together.
                        wait: up_to.map(|up_to: Duration| up_to.mul_f64(fastrand::f64())),
                        error: &error,
                    },
                    first_failed_at,
                    consumer: &self.context.clone().consumer,
                    added: AtomicBool::new(false),
                };
                self.wait_for_room().await?;
                self.write(&parked).await?;
                let added = usize::from(parked.added.load(Ordering::Relaxed));
                self.context.note_parked(added);
                return Ok(());
            }
            // Without a key the partition waits instead.
            let outcome = match outcome {
                Outcome::Park { up_to: after } => Outcome::Retry {
                    after,
                    counted: true,
                },
                Outcome::Hold => Outcome::DeadLetter {
                    reason: DeadLetterReason::AttemptsExhausted,
                },
                other => other,
            };
            match outcome {
                Outcome::Retry { after, counted } => {
                    partition_waits.get_or_insert_with(|| PartitionWait::begin(self.waits()));
                    // Half of the delay is fixed, half is jitter: lanes that failed together
                    // don't come back together.
                    self.pause(after.mul_f64(0.5 + fastrand::f64() / 2.0))
                        .await?;
                    add(&self.context.stats.retries, 1);
                    match self
                        .attempt_through_outages(std::slice::from_ref(record), &mut Streamed)
                        .await
                    {
                        Ok(_) => return Ok(()),
                        Err(AttemptError::Records { failure: again, .. }) => failure = again,
                        Err(AttemptError::Halt(halt)) => return Err(halt),
                        Err(
                            AttemptError::Conflict { .. }
                            | AttemptError::Outage(_)
                            | AttemptError::Full,
                        ) => unreachable!("attempt_through_outages answers none of them"),
                    }
                    if counted {
                        attempt += 1;
                    }
                }
                Outcome::RetryTopic { step } => {
                    let error = failure.to_string();
                    let mut letter = context.letter(record, DeadLetterReason::AttemptsExhausted);
                    let hop = context.retry_topics.hop(
                        &Failed {
                            record,
                            consumer: &context.consumer,
                            attempts: attempt,
                            origin: letter.coordinates(record),
                            first_failure: first_failed_at,
                            at: OffsetDateTime::now_utc(),
                            error: &error,
                        },
                        step,
                    );
                    if let Some(hop) = hop {
                        self.write(&hop).await?;
                        add(&context.stats.sent_to_retry, 1);
                        self.count_retry("retry_topic", 1);
                        return Ok(());
                    }
                    letter.error = format!("{NO_ROOM}; it failed with: {error}");
                    return self
                        .set_aside(record, letter, attempt, first_failed_at)
                        .await;
                }
                Outcome::DeadLetter { reason } => {
                    let mut letter = context.letter(record, reason);
                    letter.error = failure.to_string();
                    return self
                        .set_aside(record, letter, attempt, first_failed_at)
                        .await;
                }
                // decide() is asked about failures only.
                other => unreachable!("a failure's outcome is {other:?}"),
            }
        }
    }

    async fn set_aside(
        &mut self,
        record: &Record,
        mut letter: Letter,
        attempts: u32,
        first_failed_at: OffsetDateTime,
    ) -> Result<(), Halt> {
        let reason = letter.reason;
        letter.attempts = attempts;
        letter.first_failed_at = Some(first_failed_at);
        let context = self.context.clone();
        self.write(&SetAside {
            record,
            letter,
            context: &context,
        })
        .await?;
        add(&context.stats.dead_lettered, 1);
        context.count_letter(reason);
        if self.is_of_a_retry_topic(record) {
            self.count_retry("dead_letter", 1);
        }
        Ok(())
    }

    fn is_of_a_retry_topic(&self, record: &Record) -> bool {
        self.context.retry_topics.find(&record.topic).is_some()
    }

    /// Counts what a transaction of a retry topic did.
    fn count_retried(&self, record: &Record, done: Attempted) {
        if !self.is_of_a_retry_topic(record) {
            return;
        }
        add(&self.context.stats.retries, done.processed);
        self.count_retry("handled", done.processed);
        self.count_retry("duplicate", done.duplicates);
        self.count_retry("dead_letter", done.dead_lettered);
    }

    fn count_retry(&self, outcome: &'static str, events: usize) {
        if events > 0 {
            let consumer = self.context.consumer.clone();
            metrics::counter!(metric::RETRIES_TOTAL, "consumer" => consumer, "outcome" => outcome)
                .increment(events as u64);
        }
    }
}

/// A failed event that is to be tried again before anything new of its partition begins.
struct PartitionWait(PartitionWaits);

impl PartitionWait {
    fn begin(waits: PartitionWaits) -> PartitionWait {
        waits.fetch_add(1, Ordering::Relaxed);
        PartitionWait(waits)
    }
}

impl Drop for PartitionWait {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A key that is to be parked, with the event that failed.
struct Park<'a> {
    record: &'a Record,
    waiting: &'a Waiting,
    parking: Parking<'a>,
    first_failed_at: time::OffsetDateTime,
    consumer: &'a str,
    added: AtomicBool,
}

impl Entry for Park<'_> {
    async fn write(&self, session: &mut Session) -> Result<(), DatabaseError> {
        factum_fault::at(Point::ParkBefore);
        let row = self.waiting.row(self.record);
        let added = session
            .park_key(self.consumer, &row, &self.parking, self.first_failed_at)
            .await?;
        factum_fault::at(Point::ParkAfter);
        self.added.store(added, Ordering::Relaxed);
        Ok(())
    }
}

/// A dead letter in the making, and its record.
struct SetAside<'a> {
    record: &'a Record,
    letter: Letter,
    context: &'a HandlingContext,
}

impl Entry for SetAside<'_> {
    async fn write(&self, session: &mut Session) -> Result<(), DatabaseError> {
        self.letter.write(self.context, self.record, session).await
    }
}
