//! One partition's records, several at a time: one of each key, each in a transaction of its own.
//!
//! The lane alone decides what begins and where the offset stands (see [`in_flight`](crate::in_flight)); a worker gets
//! one record, takes it through the ordinary transaction to its outcome, and tells. Lanes share their consumer's
//! workers in the order of asking. See `docs/concurrency.md`.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use factum_fault::Point;
use factum_kafka::{LaneFeed, Record};
use time::OffsetDateTime;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::in_flight::{InFlight, Ticket};
use crate::lane::{BATCH_BYTES, CLOCK_TRUSTED, LaneError, move_offset};
use crate::stats::add;
use crate::worker::{Halt, HandlingContext, PartitionWaits, Worker};

pub(crate) struct KeyedLane {
    context: Arc<HandlingContext>,
    feed: LaneFeed,
    /// The consumer's workers, of all its lanes.
    workers: Arc<Semaphore>,
    /// Records in flight at the most: see [`Consumer::concurrency`](crate::Consumer::concurrency).
    limit: usize,
    in_flight: InFlight,
    /// Records of a retry topic whose time hasn't come, each with when it will, in the order of the partition.
    later: VecDeque<(OffsetDateTime, Record)>,
    running: JoinSet<Ended>,
    waits: PartitionWaits,
    /// Nothing new begins: the partition was revoked, or a worker can't go on.
    stop: CancellationToken,
    /// Whether and how the lane is ending; it waits for what runs.
    ending: Option<Result<(), LaneError>>,
}

/// How a record ended in a worker's hands.
struct Ended {
    ticket: Ticket,
    outcome: Result<(), Halt>,
}

/// The place in the line for one of the consumer's workers.
type Line = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

impl KeyedLane {
    pub(crate) fn new(
        context: Arc<HandlingContext>,
        feed: LaneFeed,
        workers: Arc<Semaphore>,
        limit: usize,
    ) -> Self {
        KeyedLane {
            stop: feed.drain().child_token(),
            context,
            feed,
            workers,
            limit,
            in_flight: InFlight::default(),
            later: VecDeque::new(),
            running: JoinSet::new(),
            waits: PartitionWaits::default(),
            ending: None,
        }
    }

    /// Runs until the partition is revoked, or for good reason stops the consumer. What has begun is finished first;
    /// at the drain deadline its workers give it up by themselves.
    ///
    /// Must run in a task of its own that nobody cancels: a transaction is never dropped half-way
    /// (case 63).
    pub(crate) async fn run(mut self) -> Result<(), LaneError> {
        let _counted = self.context.stats.count_lane();
        let mut line: Option<Line> = None;
        loop {
            if let Some(ending) = &self.ending
                && self.running.is_empty()
            {
                return ending.clone();
            }
            let goes_on = self.ending.is_none();
            let wait = if goes_on { self.admit() } else { None };
            // A failed event that holds up its partition is tried again first.
            let begins =
                goes_on && self.in_flight.is_ready() && self.waits.load(Ordering::Relaxed) == 0;
            if !begins {
                line = None;
            } else if line.is_none() {
                line = Some(Box::pin(self.workers.clone().acquire_owned()));
            }
            let room = self
                .limit
                .saturating_sub(self.in_flight.len() + self.later.len());
            let bytes = BATCH_BYTES.saturating_sub(self.in_flight.bytes());
            let takes = goes_on && room > 0 && bytes > 0;
            tokio::select! {
                biased;
                Some(ended) = self.running.join_next(), if !self.running.is_empty() => {
                    match ended {
                        Ok(ended) => self.ended(ended),
                        Err(_panic) => self.fail(LaneError::Panicked {
                            consumer: self.context.consumer.clone(),
                        }),
                    }
                }
                () = self.stop.cancelled(), if goes_on => self.ending = Some(Ok(())),
                Ok(worker) = first_in(&mut line) => {
                    line = None;
                    self.begin(worker);
                }
                records = self.feed.next_batch(room, bytes), if takes => {
                    match records {
                        Some(records) => self.take_in(records),
                        None => self.ending = Some(Ok(())),
                    }
                }
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            }
        }
    }

    fn take_in(&mut self, records: Vec<Record>) {
        factum_fault::at(Point::PollAfter);
        add(&self.context.stats.received, records.len());
        let context = self.context.clone();
        match context.retry_topics.find(self.feed.topic()) {
            None => {
                for record in records {
                    self.add(record);
                }
            }
            Some(topic) => {
                let received = OffsetDateTime::now_utc();
                self.later
                    .extend(records.into_iter().map(|r| (topic.due(&r, received), r)));
            }
        }
    }

    /// Takes in what is due of a retry topic; gives how long it is until the next is.
    fn admit(&mut self) -> Option<Duration> {
        while let Some((due, record)) = self.later.pop_front() {
            let wait = due - OffsetDateTime::now_utc();
            if wait.is_positive() {
                self.later.push_front((due, record));
                return Some(wait.unsigned_abs().min(CLOCK_TRUSTED));
            }
            self.add(record);
        }
        None
    }

    fn add(&mut self, record: Record) {
        let key = self.context.order_key(&record);
        self.in_flight.add(record, key);
    }

    /// Gives the next record to a worker.
    fn begin(&mut self, worker: OwnedSemaphorePermit) {
        let Some((ticket, record)) = self.in_flight.take() else {
            return;
        };
        let mut handling = Worker::new(
            self.context.clone(),
            self.stop.clone(),
            self.feed.abort().clone(),
        )
        .with_waits(self.waits.clone());
        self.running.spawn(async move {
            let outcome = handling.handle(std::slice::from_ref(&record), |_| {}).await;
            handling.give_back();
            drop(worker);
            Ended { ticket, outcome }
        });
    }

    fn ended(&mut self, ended: Ended) {
        match ended.outcome {
            Ok(()) => {
                if let Some(next) = self.in_flight.finish(ended.ticket) {
                    move_offset(&self.feed, next);
                }
            }
            // Its ticket doesn't come back: neither its key nor the offset goes on.
            Err(Halt::Draining) => {
                self.ending.get_or_insert(Ok(()));
            }
            Err(Halt::Failed(error)) => self.fail(error),
        }
    }

    fn fail(&mut self, error: LaneError) {
        self.stop.cancel();
        match &self.ending {
            Some(Err(_)) => {}
            _ => self.ending = Some(Err(error)),
        }
    }
}

/// Waits in the line, if there is one to wait in.
async fn first_in(line: &mut Option<Line>) -> Result<OwnedSemaphorePermit, AcquireError> {
    match line {
        Some(line) => line.await,
        None => std::future::pending().await,
    }
}
