//! Carries the replays of one consumer out: checks plans, and takes the items of a run through the ordinary dedup
//! transaction, one after the other. See `docs/dead-letters.md`.
//!
//! It reads and writes this consumer's rows alone and produces nothing, so a replay reaches no other consumer (case 45).

use std::sync::Arc;
use std::time::Duration;

use factum_event::{DeadLetterReason, Decoded, EventId, Failure};
use factum_fault::Point;
use factum_kafka::Record;
use factum_postgres::{
    DatabaseError, DueReplay, InstanceId, ReplayFailure, ReplayOutcome, ReplayPlace, ReplayTask,
    Session, StoredLetter, check_replay, drop_replay_item, due_replays, finish_replay,
    next_replay_item, open_dead_letters, stop_replay,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lane::LaneError;
use crate::metric;
use crate::worker::{AttemptError, Attempted, Entry, Halt, HandlingContext, Ledger, Worker};

/// How often it looks for plans and runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failure of the database.
const LOOK_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// After so long it looks for plans again before it goes on with a run: a person waits for their check.
const SLICE: Duration = Duration::from_secs(1);
/// How much of its rate a run that was slow may catch up.
const CATCH_UP: Duration = Duration::from_millis(100);
/// How often the open letters are counted for the gauge.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// The replays of one consumer in this process.
pub(crate) struct Replay {
    worker: Worker,
    runner: InstanceId,
    drain: CancellationToken,
    /// When the next item may begin.
    next_at: Instant,
}

/// Why a turn ended early.
enum Ended {
    Halt(Halt),
    Database(DatabaseError),
}

impl From<Halt> for Ended {
    fn from(halt: Halt) -> Ended {
        Ended::Halt(halt)
    }
}

impl From<DatabaseError> for Ended {
    fn from(error: DatabaseError) -> Ended {
        Ended::Database(error)
    }
}

impl Replay {
    pub(crate) fn new(
        context: Arc<HandlingContext>,
        runner: InstanceId,
        drain: CancellationToken,
        abort: CancellationToken,
    ) -> Replay {
        Replay {
            worker: Worker::new(context, drain.clone(), abort),
            runner,
            drain,
            next_at: Instant::now(),
        }
    }

    /// Runs until it is asked to end, or a handler makes it impossible to go on.
    ///
    /// Like a lane it must run in a task of its own that nobody cancels (case 63).
    pub(crate) async fn run(mut self) -> Result<(), LaneError> {
        let mut counted_at: Option<Instant> = None;
        let result = loop {
            let wait = match self.turn().await {
                Ok(true) => None,
                Ok(false) => Some(LOOK_EVERY),
                Err(Ended::Halt(Halt::Draining)) => break Ok(()),
                Err(Ended::Halt(Halt::Failed(error))) => break Err(error),
                Err(Ended::Database(error)) => {
                    tracing::warn!(consumer = %self.worker.context.consumer, %error,
                        "could not look after replays; they wait");
                    Some(LOOK_AFTER_FAILURE)
                }
            };
            if counted_at.is_none_or(|at| at.elapsed() >= COUNT_EVERY) {
                counted_at = Some(Instant::now());
                self.count_open().await;
            }
            if let Some(wait) = wait {
                // Between runs the connection is the lanes'.
                self.worker.rest().await;
                if self.worker.pause(wait).await.is_err() {
                    break Ok(());
                }
            }
        };
        self.worker.close().await;
        result
    }

    /// Does what is due, for about a second; whether there is more.
    async fn turn(&mut self) -> Result<bool, Ended> {
        let context = self.worker.context.clone();
        // It only reads, and a shutdown doesn't wait for a table that doesn't answer.
        let due = tokio::select! {
            () = self.drain.cancelled() => return Err(Halt::Draining.into()),
            due = due_replays(&context.db, &context.consumer, self.runner) => due?,
        };
        let mut more = false;
        for DueReplay { id, task, .. } in due {
            more |= match task {
                ReplayTask::Check => self.check(id).await?,
                ReplayTask::Run { rate } => self.carry_out(id, rate).await?,
            };
        }
        Ok(more)
    }

    /// Decodes the letters of a plan with the decoders that run now. No handler is called.
    async fn check(&mut self, run: i64) -> Result<bool, Ended> {
        let context = self.worker.context.clone();
        loop {
            if self.drain.is_cancelled() {
                return Err(Halt::Draining.into());
            }
            let more = check_replay(&context.db, &context.consumer, run, |letter| {
                event_id(&context, letter)
            })
            .await?;
            if !more {
                return Ok(false);
            }
        }
    }

    /// Goes on with a run; whether it is this process's to go on with.
    async fn carry_out(&mut self, run: i64, rate: u32) -> Result<bool, Ended> {
        let context = self.worker.context.clone();
        let until = Instant::now() + SLICE;
        while Instant::now() < until {
            self.wait_for_turn(rate).await?;
            factum_fault::at(Point::ReplayClaimBefore);
            let Some(item) = next_replay_item(&context.db, run).await? else {
                finish_replay(&context.db, run).await?;
                return Ok(false);
            };
            let place = ReplayPlace {
                run,
                letter: item.id,
                runner: self.runner,
            };
            let Some(letter) = item.letter else {
                drop_replay_item(&context.db, place).await?;
                continue;
            };
            if !self.handle(place, letter, item.outside_window).await? {
                // The run was paused, another process is at the item, or a command at the letter.
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until the run's rate allows one more item.
    async fn wait_for_turn(&mut self, rate: u32) -> Result<(), Halt> {
        let now = Instant::now();
        if self.next_at > now {
            self.worker.pause(self.next_at - now).await?;
        }
        let earliest = now.checked_sub(CATCH_UP).unwrap_or(now);
        self.next_at = self.next_at.max(earliest) + Duration::from_secs(1) / rate;
        if self.drain.is_cancelled() {
            return Err(Halt::Draining);
        }
        Ok(())
    }

    /// One item, once; `false` if it isn't this process's, or not to be handled now.
    async fn handle(
        &mut self,
        place: ReplayPlace,
        letter: StoredLetter,
        outside_window: bool,
    ) -> Result<bool, Ended> {
        let context = self.worker.context.clone();
        let record = record_of(letter);
        let mut ledger = Item {
            place,
            outside_window,
            outcome: None,
        };
        let attempted = self
            .worker
            .attempt_through_outages(std::slice::from_ref(&record), &mut ledger)
            .await;
        let outcome = match attempted {
            Ok(_) => match ledger.outcome {
                None => return Ok(false),
                Some(ReplayOutcome::Handled) => "handled",
                Some(ReplayOutcome::Duplicate) => "duplicate",
                Some(ReplayOutcome::SetAside) => "failed",
            },
            Err(AttemptError::Records { failure, .. }) => {
                tracing::warn!(consumer = %context.consumer, run = place.run, dead_letter = place.letter, %failure,
                    "a replayed event failed again");
                let failed = Failed {
                    place,
                    failure,
                    context: &context,
                };
                self.worker.write(&failed).await?;
                "failed"
            }
            Err(AttemptError::Halt(Halt::Draining)) => return Err(Halt::Draining.into()),
            Err(AttemptError::Halt(Halt::Failed(error))) => {
                // It would end the consumer at every start.
                stop_replay(&context.db, place.run, &error.to_string()).await?;
                return Err(Halt::Failed(error).into());
            }
            Err(AttemptError::Conflict { .. } | AttemptError::Outage(_) | AttemptError::Full) => {
                unreachable!("attempt_through_outages answers none of them")
            }
        };
        metrics::counter!(metric::REPLAYED_TOTAL, "consumer" => context.consumer.clone(), "outcome" => outcome)
            .increment(1);
        Ok(true)
    }

    /// Best effort: a gauge.
    async fn count_open(&self) {
        let context = &self.worker.context;
        let open = tokio::select! {
            () = self.drain.cancelled() => return,
            open = open_dead_letters(&context.db, &context.consumer) => open,
        };
        match open {
            Ok(open) => {
                for (reason, open) in open {
                    metrics::gauge!(metric::DEAD_LETTERS_OPEN, "consumer" => context.consumer.clone(), "reason" => reason)
                        .set(open as f64);
                }
            }
            Err(error) => tracing::debug!(%error, "the gauge of open dead letters is old"),
        }
    }
}

/// The letter's event as this build decodes it, or the reason why it can't.
fn event_id(context: &HandlingContext, letter: &StoredLetter) -> Result<EventId, &'static str> {
    match context.registry.decode(letter.value.as_deref()) {
        Decoded::Event(envelope) => Ok(envelope.id()),
        Decoded::Poison(poison) => Err(poison.reason().as_str()),
        Decoded::Unknown { .. } => Err(DeadLetterReason::UnknownType.as_str()),
        Decoded::Tombstone => Err(DeadLetterReason::Tombstone.as_str()),
    }
}

/// A replay tries once: there is no further attempt to wait for.
fn reason_of(failure: &Failure) -> DeadLetterReason {
    match failure {
        Failure::Permanent { .. } => DeadLetterReason::Permanent,
        Failure::Poison(poison) => DeadLetterReason::Poison(poison.reason()),
        Failure::OutOfWindow => DeadLetterReason::OutOfWindow,
        _ => DeadLetterReason::AttemptsExhausted,
    }
}

/// The record as it came, but for its time, which nothing asks for.
fn record_of(letter: StoredLetter) -> Record {
    Record {
        topic: letter.topic.into(),
        partition: letter.partition,
        offset: letter.offset,
        key: letter.key,
        headers: letter
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect(),
        value: letter.value,
        timestamp_ms: None,
    }
}

/// An item of a run, whose row says what became of it.
struct Item {
    place: ReplayPlace,
    outside_window: bool,
    outcome: Option<ReplayOutcome>,
}

impl Ledger for Item {
    const STORED: bool = true;

    fn is_guard(&self) -> bool {
        self.outside_window
    }

    async fn claim(&mut self, session: &mut Session) -> Result<bool, DatabaseError> {
        self.outcome = None;
        let claimed = session.claim_replay(self.place).await?;
        factum_fault::at(Point::ReplayClaimAfter);
        Ok(claimed)
    }

    async fn settle(
        &mut self,
        session: &mut Session,
        done: Attempted,
    ) -> Result<(), DatabaseError> {
        let outcome = match done {
            Attempted { processed: 1.., .. } => ReplayOutcome::Handled,
            Attempted {
                duplicates: 1.., ..
            } => ReplayOutcome::Duplicate,
            _ => ReplayOutcome::SetAside,
        };
        factum_fault::at(Point::ReplaySettleBefore);
        session.settle_replay(self.place, outcome).await?;
        factum_fault::at(Point::ReplaySettleAfter);
        self.outcome = Some(outcome);
        Ok(())
    }
}

/// An item whose handler failed.
struct Failed<'a> {
    place: ReplayPlace,
    failure: Failure,
    context: &'a HandlingContext,
}

impl Entry for Failed<'_> {
    async fn write(&self, session: &mut Session) -> Result<(), DatabaseError> {
        factum_fault::at(Point::ReplaySettleBefore);
        let error = self.failure.to_string();
        let failure = ReplayFailure {
            reason: reason_of(&self.failure).as_str(),
            error: &error,
            build: &self.context.build,
        };
        session.fail_replay(self.place, &failure).await?;
        factum_fault::at(Point::ReplaySettleAfter);
        Ok(())
    }
}
