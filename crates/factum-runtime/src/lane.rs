//! One partition's records: decoded, deduplicated, handled, committed, in order.
//!
//! A lane owns one database session. For each batch it runs one transaction
//! (see [`worker`](crate::worker)), and only then moves the offset (CONS-2). What fails is
//! narrowed down to the event that fails; everything else of the batch commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use factum_event::{DeadLetterReason, Failure, Outcome, decide};
use factum_fault::Point;
use factum_kafka::{LaneFeed, Record};
use factum_postgres::{DatabaseError, Parking, Session};

use crate::stats::add;
use crate::work_list::{Part, WorkList};
use crate::worker::{
    AttemptError, Entry, Halt, HandlingContext, Letter, Streamed, Waiting, Worker,
};

/// Values of one batch in memory, about.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

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
        let result = loop {
            factum_fault::at(Point::PollBefore);
            let Some(records) = self.feed.next_batch(limit, BATCH_BYTES).await else {
                break Ok(());
            };
            factum_fault::at(Point::PollAfter);
            add(&self.worker.context.stats.received, records.len());
            match self.process(&records).await {
                Ok(()) => {}
                Err(Halt::Draining) => break Ok(()),
                Err(Halt::Failed(error)) => break Err(error),
            }
        };
        self.worker.close().await;
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
                    let records = &records[part.clone()];
                    match self
                        .worker
                        .attempt_through_outages(records, &mut Streamed)
                        .await
                    {
                        Ok(_) => part.end,
                        Err(AttemptError::Records { range, failure }) => {
                            let failed = part.start + range.start..part.start + range.end;
                            work.split(&part, failed, failure);
                            continue;
                        }
                        Err(AttemptError::Halt(halt)) => return Err(halt),
                        Err(
                            AttemptError::Conflict { .. }
                            | AttemptError::Outage(_)
                            | AttemptError::Full,
                        ) => unreachable!("attempt_through_outages answers none of them"),
                    }
                }
            };
            factum_fault::at(Point::OffsetStoreBefore);
            self.feed.handled_below(records[done - 1].offset + 1);
            factum_fault::at(Point::OffsetStoreAfter);
        }
        Ok(())
    }

    /// Takes one failing record to its outcome: parked, retried while its partition waits, or set aside.
    async fn settle(&mut self, record: &Record, mut failure: Failure) -> Result<(), Halt> {
        let first_failed_at = time::OffsetDateTime::now_utc();
        // A record that holds no event has no key to wait under: it fails by the database's conflicts alone.
        let waiting = self.worker.context.waiting(record);
        let mut attempt: u32 = 1;
        loop {
            let outcome = decide(&failure, attempt, &self.worker.context.retry);
            tracing::warn!(consumer = %self.worker.context.consumer, topic = self.feed.topic(),
                partition = self.feed.partition(), offset = record.offset, attempt, %failure, ?outcome,
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
                        max_attempts: self.worker.context.retry.max_attempts(),
                        // Full jitter: what failed together doesn't come back together.
                        wait: up_to.map(|up_to: Duration| up_to.mul_f64(fastrand::f64())),
                        error: &error,
                    },
                    first_failed_at,
                    consumer: &self.worker.context.clone().consumer,
                    added: AtomicBool::new(false),
                };
                self.worker.wait_for_room().await?;
                self.worker.write(&parked).await?;
                let added = usize::from(parked.added.load(Ordering::Relaxed));
                self.worker.context.note_parked(added);
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
                    // Half of the delay is fixed, half is jitter: lanes that failed together
                    // don't come back together.
                    self.worker
                        .pause(after.mul_f64(0.5 + fastrand::f64() / 2.0))
                        .await?;
                    add(&self.worker.context.stats.retries, 1);
                    match self
                        .worker
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
                Outcome::DeadLetter { reason } => {
                    let mut letter = self.worker.context.letter(record, reason);
                    letter.error = failure.to_string();
                    letter.attempts = attempt;
                    letter.first_failed_at = Some(first_failed_at);
                    self.worker
                        .write(&SetAside {
                            record,
                            letter,
                            consumer: &self.worker.context.clone().consumer,
                        })
                        .await?;
                    add(&self.worker.context.stats.dead_lettered, 1);
                    return Ok(());
                }
                // decide() is asked about failures only.
                other => unreachable!("a failure's outcome is {other:?}"),
            }
        }
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
    consumer: &'a str,
}

impl Entry for SetAside<'_> {
    async fn write(&self, session: &mut Session) -> Result<(), DatabaseError> {
        factum_fault::at(Point::DeadLetterBefore);
        let written = session
            .dead_letter(&self.letter.row(self.consumer, self.record))
            .await;
        factum_fault::at(Point::DeadLetterAfter);
        written
    }
}
