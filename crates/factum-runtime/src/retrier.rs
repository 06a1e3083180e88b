//! Takes parked keys whose time has come and handles their events, in order (RTRY-1).
//!
//! Each of a consumer's processes runs a retrier with some workers. They share the keys through the database alone:
//! see `factum_postgres`'s `parking` for the locks and why no event overtakes another.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use factum_event::{Failure, Outcome, Retry, RetryStrategy, decide};
use factum_fault::Point;
use factum_kafka::Record;
use factum_postgres::{
    DatabaseError, DueKey, ParkedEvent, ParkedHead, Parking, Session, due_keys, parked_counts,
};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lane::LaneError;
use crate::metric;
use crate::pace::Pace;
use crate::stats::add;
use crate::worker::{
    AttemptError, Attempted, Entry, Halt, HandlingContext, Ledger, Letter, NotOpened, Worker,
};

/// How often a retrier with nothing to do looks for keys.
const POLL: Duration = Duration::from_millis(200);
/// How long a worker waits when another has what it wanted.
const STEP_ASIDE: Duration = Duration::from_millis(50);
/// Keys that are looked up at once: more than all processes' workers together have in hand.
const KEYS_AT_ONCE: u32 = 64;
/// Events of one key in one transaction at most, reached while they succeed.
const BATCH_LIMIT: u32 = 16;
/// An idle worker gives its connection up after so long.
const REST_AFTER: Duration = Duration::from_secs(5);
/// How often what is parked is counted; seldom enough to rest ten times as long as it took.
const COUNT_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Retrier {
    context: Arc<HandlingContext>,
    policy: Retry,
    /// Keys that are due, and when the next may be woken.
    queue: tokio::sync::Mutex<(Vec<DueKey>, Instant)>,
    /// Keys that this process's workers have in hand.
    busy: Mutex<HashSet<DueKey>>,
    pace: Mutex<Pace>,
    drain: CancellationToken,
    abort: CancellationToken,
}

/// Where a worker left a key.
enum Left {
    /// It has an outcome, or its time comes later.
    Settled,
    /// Another has it.
    Elsewhere,
}

impl Retrier {
    pub(crate) fn new(
        context: Arc<HandlingContext>,
        drain: CancellationToken,
        abort: CancellationToken,
    ) -> Retrier {
        // Keys that were parked under another strategy flow on as parked ones.
        let policy = match context.retry.strategy() {
            RetryStrategy::Park => context.retry,
            _ => Retry::park().attempts(context.retry.max_attempts()),
        };
        Retrier {
            context,
            policy,
            queue: tokio::sync::Mutex::new((Vec::new(), Instant::now())),
            busy: Mutex::default(),
            pace: Mutex::new(Pace::new()),
            drain,
            abort,
        }
    }

    /// Runs until it is drained, or a handler makes it impossible to go on. Must run in a task that nobody cancels:
    /// a transaction is never dropped half-way (case 63).
    pub(crate) async fn run(self, workers: u32) -> Result<(), LaneError> {
        let retrier = Arc::new(self);
        let mut tasks = JoinSet::new();
        tasks.spawn(retrier.clone().count());
        for _ in 0..workers {
            tasks.spawn(retrier.clone().work());
        }
        let mut ended = Ok(());
        while let Some(task) = tasks.join_next().await {
            let task = task.unwrap_or_else(|_panic| {
                Err(LaneError::Panicked {
                    consumer: retrier.context.consumer.clone(),
                })
            });
            if task.is_err() {
                retrier.drain.cancel();
                ended = ended.and(task);
            }
        }
        ended
    }

    /// Keeps the counts that lanes and gauges go by.
    async fn count(self: Arc<Self>) -> Result<(), LaneError> {
        let context = &self.context;
        let gauge = |name| metrics::gauge!(name, "consumer" => context.consumer.clone());
        loop {
            let asked_at = Instant::now();
            let limit = context.retry.limit_in_all();
            match parked_counts(&context.db, &context.consumer, limit).await {
                Ok(counts) => {
                    context.parked.set(counts.events);
                    gauge(metric::PARKED_EVENTS).set(counts.events as f64);
                    gauge(metric::PARKED_KEYS).set(counts.keys as f64);
                    gauge(metric::HELD_KEYS).set(counts.held as f64);
                    gauge(metric::PARKED_OLDEST_SECONDS).set(counts.oldest.as_secs_f64());
                }
                Err(error) => {
                    tracing::warn!(consumer = %context.consumer, %error, "parked events can't be counted");
                }
            }
            let rest = COUNT_EVERY.max(asked_at.elapsed() * 10);
            tokio::select! {
                () = self.drain.cancelled() => return Ok(()),
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    async fn work(self: Arc<Self>) -> Result<(), LaneError> {
        let mut worker = Worker::new(self.context.clone(), self.drain.clone(), self.abort.clone());
        let ended = loop {
            let due = tokio::select! {
                due = self.next_key() => due,
                () = tokio::time::sleep(REST_AFTER), if !worker.is_resting() => {
                    worker.rest().await;
                    continue;
                }
                () = self.context.db.turn_wanted(), if !worker.is_resting() => {
                    worker.give_back();
                    continue;
                }
            };
            let Some(due) = due else {
                break Ok(());
            };
            let left = self.take(&mut worker, &due).await;
            lock(&self.busy).remove(&due);
            let paused = match left {
                Ok(Left::Settled) => Ok(()),
                Ok(Left::Elsewhere) => worker.pause(STEP_ASIDE).await,
                Err(halt) => Err(halt),
            };
            match paused {
                Ok(()) => {}
                Err(Halt::Draining) => break Ok(()),
                Err(Halt::Failed(error)) => break Err(error),
            }
        };
        worker.close().await;
        ended
    }

    /// The next key whose time has come, not faster than the pace allows; nothing when it is time to end. May be
    /// dropped at any moment.
    async fn next_key(&self) -> Option<DueKey> {
        let next = async {
            let mut queue = self.queue.lock().await;
            loop {
                if queue.0.is_empty() {
                    match due_keys(&self.context.db, &self.context.consumer, KEYS_AT_ONCE).await {
                        Ok(keys) => {
                            let busy = lock(&self.busy);
                            queue.0 = keys.into_iter().filter(|key| !busy.contains(key)).collect();
                        }
                        Err(error) => {
                            tracing::warn!(consumer = %self.context.consumer, %error, "waits for the database");
                        }
                    }
                    // Several processes see the same keys: they shouldn't want them in the same order.
                    fastrand::shuffle(&mut queue.0);
                }
                if queue.0.is_empty() {
                    tokio::time::sleep(POLL).await;
                    continue;
                }
                tokio::time::sleep_until(queue.1).await;
                let Some(due) = queue.0.pop() else { continue };
                if lock(&self.busy).insert(due.clone()) {
                    queue.1 = Instant::now() + lock(&self.pace).gap();
                    return due;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.drain.cancelled() => None,
            due = next => Some(due),
        }
    }

    /// Handles a key's events, one after the other while they succeed.
    async fn take(&self, worker: &mut Worker, due: &DueKey) -> Result<Left, Halt> {
        let context = &self.context;
        let mut batch = 1;
        loop {
            factum_fault::at(Point::RetryClaimBefore);
            let read = match worker.session().await {
                Ok(session) => session.parked_events(&context.consumer, due, batch).await,
                Err(NotOpened::Database(error)) => Err(error),
                Err(NotOpened::Halt(halt)) => return Err(halt),
            };
            let head = match read {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(Left::Settled),
                Err(error) => {
                    tracing::warn!(consumer = %context.consumer, %error, "waits for the database");
                    worker.discard_session();
                    worker.pause(POLL).await?;
                    return Ok(Left::Settled);
                }
            };
            if head.events.is_empty() {
                return self.free(worker, due).await;
            }
            let records: Vec<Record> = head.events.iter().map(|e| record(due, e)).collect();
            let mut ledger = Parked {
                consumer: &context.consumer,
                due,
                head: &head,
                claimed: false,
            };
            match worker.attempt_through_outages(&records, &mut ledger).await {
                Ok(_) if !ledger.claimed => return Ok(Left::Elsewhere),
                Ok(done) => {
                    self.succeeded(&head, done);
                    batch = (batch * 2).min(BATCH_LIMIT);
                }
                // Which of them it was, and what becomes of it, an attempt of its own says.
                Err(AttemptError::Records { .. }) if records.len() > 1 => batch = 1,
                Err(AttemptError::Records { failure, .. }) => {
                    match self
                        .settle(worker, due, &head, &records[0], failure)
                        .await?
                    {
                        Some(left) => return Ok(left),
                        None => batch = 1,
                    }
                }
                Err(AttemptError::Halt(halt)) => return Err(halt),
                Err(
                    AttemptError::Conflict { .. } | AttemptError::Outage(_) | AttemptError::Full,
                ) => unreachable!("attempt_through_outages answers none of them"),
            }
        }
    }

    fn succeeded(&self, head: &ParkedHead, done: Attempted) {
        if head.attempts > 0 {
            add(&self.context.stats.retries, 1);
            lock(&self.pace).succeeded();
        }
        for (outcome, events) in [
            ("handled", done.processed),
            ("duplicate", done.duplicates),
            ("dead_letter", done.dead_lettered),
        ] {
            self.tell(outcome, events);
        }
    }

    fn tell(&self, outcome: &'static str, events: usize) {
        if events > 0 {
            metrics::counter!(metric::RETRIES_TOTAL,
                "consumer" => self.context.consumer.clone(), "outcome" => outcome)
            .increment(events as u64);
        }
    }

    /// Takes a failed first event to its outcome. Nothing if the key goes on with the next.
    async fn settle(
        &self,
        worker: &mut Worker,
        due: &DueKey,
        head: &ParkedHead,
        record: &Record,
        failure: Failure,
    ) -> Result<Option<Left>, Halt> {
        let context = &self.context;
        let attempt = head.attempts.saturating_add(1);
        let outcome = decide(&failure, attempt, &self.policy);
        tracing::warn!(consumer = %context.consumer, topic = %record.topic, partition = record.partition,
            offset = record.offset, attempt, %failure, ?outcome, "a parked event failed");
        lock(&self.pace).failed();
        if head.attempts > 0 {
            add(&context.stats.retries, 1);
        }
        let error = failure.to_string();
        let (what, told) = match outcome {
            Outcome::DeadLetter { reason } => {
                let mut letter = context.letter(record, reason);
                letter.error = error;
                letter.attempts = attempt;
                letter.first_failed_at = head.events.first().and_then(|e| e.first_failed_at);
                (Fate::Letter(letter), "dead_letter")
            }
            Outcome::Hold => (Fate::Again { wait: None, error }, "held"),
            // Full jitter: what failed together doesn't come back together.
            Outcome::Park { up_to } | Outcome::Retry { after: up_to, .. } => {
                let wait = Some(up_to.mul_f64(fastrand::f64()));
                (Fate::Again { wait, error }, "failed")
            }
            other => unreachable!("a parked event's failure has the outcome {other:?}"),
        };
        let failed = Failed {
            context,
            due,
            head,
            record,
            attempt,
            max_attempts: self.policy.max_attempts(),
            what,
            claimed: AtomicBool::new(false),
        };
        worker.write(&failed).await?;
        if !failed.claimed.load(Ordering::Relaxed) {
            return Ok(Some(Left::Elsewhere));
        }
        self.tell(told, 1);
        if let Fate::Letter(letter) = &failed.what {
            add(&context.stats.dead_lettered, 1);
            context.count_letter(letter.reason);
            return Ok(None);
        }
        Ok(Some(Left::Settled))
    }

    /// Frees a key behind which nothing waits.
    async fn free(&self, worker: &mut Worker, due: &DueKey) -> Result<Left, Halt> {
        let free = Free {
            consumer: &self.context.consumer,
            due,
            freed: AtomicBool::new(false),
        };
        worker.write(&free).await?;
        Ok(match free.freed.load(Ordering::Relaxed) {
            true => Left::Settled,
            false => Left::Elsewhere,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The record as it came from the topic.
fn record(due: &DueKey, event: &ParkedEvent) -> Record {
    let headers = event.headers.iter();
    Record {
        topic: due.topic.as_str().into(),
        partition: event.partition,
        offset: event.offset,
        key: (!event.keyless).then(|| due.key.clone()),
        value: Some(event.value.clone()),
        headers: headers
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect(),
        timestamp_ms: None,
    }
}

/// The first events of a parked key: they are taken out of their queue with their effect.
struct Parked<'a> {
    consumer: &'a str,
    due: &'a DueKey,
    head: &'a ParkedHead,
    claimed: bool,
}

impl Ledger for Parked<'_> {
    const STORED: bool = true;

    async fn claim(&mut self, session: &mut Session) -> Result<bool, DatabaseError> {
        self.claimed = session
            .claim_parked(self.consumer, self.due, self.head)
            .await?;
        if self.claimed {
            factum_fault::at(Point::RetryClaimAfter);
        }
        Ok(self.claimed)
    }

    async fn settle(&mut self, session: &mut Session, _: Attempted) -> Result<(), DatabaseError> {
        factum_fault::at(Point::RetrySettleBefore);
        session
            .settle_parked(self.consumer, self.due, self.head)
            .await?;
        factum_fault::at(Point::RetrySettleAfter);
        Ok(())
    }
}

/// What becomes of a parked event that failed.
enum Fate {
    Again {
        wait: Option<Duration>,
        error: String,
    },
    Letter(Letter),
}

/// That outcome, written if nobody else was faster.
struct Failed<'a> {
    context: &'a HandlingContext,
    due: &'a DueKey,
    head: &'a ParkedHead,
    record: &'a Record,
    attempt: u32,
    max_attempts: u32,
    what: Fate,
    claimed: AtomicBool,
}

impl Entry for Failed<'_> {
    async fn write(&self, session: &mut Session) -> Result<(), DatabaseError> {
        let claimed = session
            .claim_parked(&self.context.consumer, self.due, self.head)
            .await?;
        self.claimed.store(claimed, Ordering::Relaxed);
        if !claimed {
            return Ok(());
        }
        match &self.what {
            Fate::Again { wait, error } => {
                let parking = Parking {
                    attempts: self.attempt,
                    max_attempts: self.max_attempts,
                    wait: *wait,
                    error,
                };
                factum_fault::at(Point::RetrySettleBefore);
                session
                    .park_again(&self.context.consumer, self.due, self.head, &parking)
                    .await?;
            }
            Fate::Letter(letter) => {
                letter.write(self.context, self.record, session).await?;
                factum_fault::at(Point::RetrySettleBefore);
                session
                    .settle_parked(&self.context.consumer, self.due, self.head)
                    .await?;
            }
        }
        factum_fault::at(Point::RetrySettleAfter);
        Ok(())
    }
}

/// A key that is free again, if nothing waits behind it.
struct Free<'a> {
    consumer: &'a str,
    due: &'a DueKey,
    freed: AtomicBool,
}

impl Entry for Free<'_> {
    async fn write(&self, session: &mut Session) -> Result<(), DatabaseError> {
        factum_fault::at(Point::UnparkBefore);
        let freed = session.lock_parked_key(self.consumer, self.due).await?
            && session.free_parked_key(self.consumer, self.due).await?;
        factum_fault::at(Point::UnparkAfter);
        self.freed.store(freed, Ordering::Relaxed);
        Ok(())
    }
}
