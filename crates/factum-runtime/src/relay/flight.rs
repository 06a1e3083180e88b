//! A batch on its way: sent, and marked as its rows are acknowledged.
//!
//! A flight tells of its rows in portions. A slow partition so keeps neither the marks of the others nor their slots.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use factum_fault::Point;
use factum_kafka::{OutgoingRecord, Producer, SendError, SendErrorKind};
use factum_postgres::{DatabaseError, Lease, OutboxRow, RelayStore};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::record::outgoing;
use super::stats::Counted;
use super::trouble::Trouble;
use super::{RelayError, covers_a_batch};
use crate::cloud_events::CloudEventsSource;

/// After so much time a flight tells what was acknowledged, and its slots are free for others; then every so often again.
const PORTION_AFTER: Duration = Duration::from_millis(250);
/// How long a stopping relay tries to mark what was acknowledged.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// What all flights of a relay share.
pub(super) struct Airport {
    pub(super) store: RelayStore,
    pub(super) cloud_events: Option<CloudEventsSource>,
    pub(super) counted: Counted,
    /// Until when the lease lasts, as the last renewal said.
    pub(super) lease_end: Mutex<Instant>,
    /// What must be left of it when a batch is begun.
    pub(super) lease_left: Duration,
    /// Refusals after which a row is set aside.
    pub(super) attempts: u32,
    /// Permits to mark: a mark holds a connection to the database.
    pub(super) marks: Semaphore,
    pub(super) database: Mutex<Trouble>,
    pub(super) shutdown: CancellationToken,
}

impl Airport {
    pub(super) fn lease_end(&self) -> Instant {
        *lock(&self.lease_end)
    }
}

/// A batch of rows to send. No key is in two flights at a time.
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) rows: Arc<[OutboxRow]>,
    /// The lease as it was with the claim, for the slots of these rows.
    pub(super) lease: Lease,
    pub(super) producer: Arc<Producer>,
    pub(super) route: Route,
    pub(super) airport: Arc<Airport>,
    pub(super) landings: mpsc::UnboundedSender<Landing>,
}

/// How a flight sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// All at once through the producer that the flights share.
    Shared,
    /// All at once through a producer of its own: rows for topics that have kept others waiting.
    Detour,
    /// One by one through a producer of its own: rows of which one was refused, to tell which.
    Trial,
}

/// What became of some rows of a flight.
#[derive(Debug)]
pub(super) struct Landing {
    /// The flight's number.
    pub(super) number: u64,
    /// Places in the flight.
    pub(super) rows: Vec<(usize, Fate)>,
    /// Why a server seems to be away.
    pub(super) trouble: Option<SendError>,
    /// Whether a slot was lost.
    pub(super) lease_lost: bool,
    /// How it ended, if it has: nothing of it is on its way any more.
    pub(super) end: Option<Result<(), RelayError>>,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Acknowledged, and marked if the database and the lease allowed.
    Published,
    /// Refused for what it is, and counted: its key waits and goes alone.
    Refused,
    /// Refused, but with others: its key waits and goes alone.
    RefusedTogether,
    /// Refused for the last time.
    SetAside,
    /// The first row of its key that was not acknowledged in time, or that the brokers can't take now.
    Late,
    /// Not answered, behind an earlier row of its key, or not tried: it comes again.
    Again,
}

impl Flight {
    /// Sends all rows and tells of each, once.
    pub(super) async fn fly(self) {
        let end = match self.route {
            Route::Shared => {
                self.send_together(&self.producer).await;
                Ok(())
            }
            Route::Detour => match self.producer.successor() {
                Ok(own) => {
                    self.send_together(&own).await;
                    self.put_away(own).await;
                    Ok(())
                }
                Err(error) => Err(RelayError::Kafka(error)),
            },
            Route::Trial => self.send_one_by_one().await,
        };
        let mut last = self.landing();
        last.end = Some(end);
        self.tell(last);
    }

    fn landing(&self) -> Landing {
        Landing {
            number: self.number,
            rows: Vec::new(),
            trouble: None,
            lease_lost: false,
            end: None,
        }
    }

    fn tell(&self, landing: Landing) {
        // Nobody listens when the relay was cut off.
        let _ = self.landings.send(landing);
    }

    async fn put_away(&self, own: Producer) {
        if own.is_fatal() {
            self.airport.counted.producer_rebuilt();
        } else {
            own.close(Duration::from_secs(1)).await;
        }
    }

    async fn send_together(&self, producer: &Producer) {
        let (told, mut outcomes) = mpsc::unbounded_channel();
        let sending = async {
            let event_ids = event_ids(&self.rows);
            let batch = self.batch(&self.rows, &event_ids);
            producer
                .send_each(&batch, move |index, outcome| {
                    // The other end of this function listens.
                    let _ = told.send((index, outcome));
                })
                .await;
        };
        // Side by side: while a mark waits for the database, the sending keeps its time.
        tokio::join!(sending, self.land(producer, &mut outcomes));
    }

    /// Tells what becomes of the rows, portion by portion.
    async fn land(
        &self,
        producer: &Producer,
        outcomes: &mut mpsc::UnboundedReceiver<(usize, Result<(), SendError>)>,
    ) {
        let mut failed_keys = HashSet::new();
        let mut is_over = false;
        while !is_over {
            let mut portion = Vec::new();
            let until = tokio::time::Instant::now() + PORTION_AFTER;
            loop {
                match tokio::time::timeout_at(until, outcomes.recv()).await {
                    Ok(Some(outcome)) => portion.push(outcome),
                    Ok(None) => {
                        is_over = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            // With nothing in it, it says that the flight takes its time.
            let told_apart =
                |fatal: bool| !fatal || (self.route == Route::Detour && self.rows.len() == 1);
            self.settle(portion, &mut failed_keys, || {
                told_apart(producer.is_fatal())
            })
            .await;
        }
    }

    async fn send_one_by_one(&self) -> Result<(), RelayError> {
        let mut own: Option<Producer> = None;
        let mut goes_on = true;
        for index in 0..self.rows.len() {
            let airport = &self.airport;
            goes_on &= !airport.shutdown.is_cancelled()
                && covers_a_batch(airport.lease_end(), airport.lease_left);
            if !goes_on {
                let mut landing = self.landing();
                landing.rows.push((index, Fate::Again));
                self.tell(landing);
                continue;
            }
            let producer = match own.take() {
                Some(producer) => producer,
                None => self.producer.successor().map_err(RelayError::Kafka)?,
            };
            let row = &self.rows[index..=index];
            let event_ids = event_ids(row);
            let mut outcomes = producer.send_all(&self.batch(row, &event_ids)).await;
            let outcome = outcomes.pop().unwrap_or(Ok(()));
            // When the broker is away, it is so for the others, too.
            goes_on = !matches!(&outcome, Err(error) if error.kind() != SendErrorKind::Permanent);
            self.settle(vec![(index, outcome)], &mut HashSet::new(), || true)
                .await;
            if producer.is_fatal() {
                self.airport.counted.producer_rebuilt();
            } else {
                own = Some(producer);
            }
        }
        if let Some(own) = own {
            self.put_away(own).await;
        }
        Ok(())
    }

    fn batch<'a>(
        &'a self,
        rows: &'a [OutboxRow],
        event_ids: &'a [String],
    ) -> Vec<OutgoingRecord<'a>> {
        let source = self.airport.cloud_events.as_ref();
        rows.iter()
            .zip(event_ids)
            .map(|(row, event_id)| outgoing(row, event_id, source))
            .collect()
    }

    /// Marks the acknowledged rows, counts the refused ones, and tells of all. `told_apart` says whether a refusal is the
    /// row's own: the broker refuses a batch as a whole, and that proves nothing about a single row of it.
    async fn settle<'a>(
        &'a self,
        portion: Vec<(usize, Result<(), SendError>)>,
        failed_keys: &mut HashSet<&'a str>,
        told_apart: impl Fn() -> bool,
    ) {
        let mut landing = self.landing();
        let acknowledged: Vec<i64> = portion
            .iter()
            .filter(|(_, outcome)| outcome.is_ok())
            .map(|(index, _)| self.rows[*index].id)
            .collect();
        if !acknowledged.is_empty() {
            landing.lease_lost |= !self.mark(&acknowledged).await;
        }
        let mut refused_together = 0_u32;
        for (index, outcome) in portion {
            let row = &self.rows[index];
            let Err(error) = outcome else {
                landing.rows.push((index, Fate::Published));
                continue;
            };
            let first_of_key = failed_keys.insert(&row.key);
            let kind = error.kind();
            if kind != SendErrorKind::Held {
                self.airport.counted.failed(1);
            }
            let fate = match kind {
                SendErrorKind::Permanent if first_of_key && told_apart() => {
                    self.refused(row, &error, &mut landing.lease_lost).await
                }
                SendErrorKind::Permanent if first_of_key => {
                    refused_together += 1;
                    Fate::RefusedTogether
                }
                SendErrorKind::Permanent | SendErrorKind::Held => Fate::Again,
                kind => {
                    landing.trouble.get_or_insert(error);
                    if kind == SendErrorKind::Retriable && first_of_key {
                        Fate::Late
                    } else {
                        Fate::Again
                    }
                }
            };
            landing.rows.push((index, fate));
        }
        if refused_together > 0 {
            tracing::warn!(
                rows = refused_together,
                "the broker refused rows of one batch together; each is tried alone"
            );
        }
        self.tell(landing);
    }

    /// Sets `published_at`, and does not give up while the lease is ours: without it the rows are sent again. `false` when
    /// another relay has taken some of the slots.
    async fn mark(&self, ids: &[i64]) -> bool {
        let airport = &self.airport;
        let mut stop_at = None;
        loop {
            let marked = {
                let _permit = airport.marks.acquire().await;
                factum_fault::at(Point::MarkBefore);
                let marked = airport.store.mark_published(&self.lease, ids).await;
                factum_fault::at(Point::MarkAfter);
                marked
            };
            let error = match marked {
                Ok(marked) => {
                    lock(&airport.database).over();
                    airport.counted.published(marked);
                    return marked == ids.len() as u64;
                }
                Err(error) => error,
            };
            let pause = lock(&airport.database).pause(&error);
            if airport.shutdown.is_cancelled() {
                let stop_at = *stop_at.get_or_insert(Instant::now() + STOP_LIMIT);
                if Instant::now() + pause > stop_at {
                    return true;
                }
                tokio::time::sleep(pause).await;
            } else if Instant::now() > airport.lease_end() {
                // Another relay may have begun; it sends these rows again, if nobody marks them.
                return true;
            } else {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = airport.shutdown.cancelled() => {}
                }
            }
        }
    }

    /// A row that can't be written as it is: it is set aside after its attempts.
    async fn refused(&self, row: &OutboxRow, error: &SendError, lease_lost: &mut bool) -> Fate {
        let text = error.to_string();
        match self.count_refusal(row, &text).await {
            Ok(0) => {
                *lease_lost = true;
                Fate::Again
            }
            Ok(attempts) if attempts < self.airport.attempts => {
                tracing::warn!(
                    outbox_id = row.id, event_id = %row.event_id, event_type = row.event_type,
                    topic = row.topic, attempts, error = text,
                    "an outbox row was refused; its key waits"
                );
                Fate::Refused
            }
            Ok(attempts) => {
                self.airport.counted.set_aside(1);
                tracing::error!(
                    outbox_id = row.id, event_id = %row.event_id, event_type = row.event_type,
                    topic = row.topic, attempts, error = text,
                    "an outbox row was set aside: nobody receives this event until a person mends it \
                     (outbox.set_aside_at); the later rows of its key go on"
                );
                Fate::SetAside
            }
            Err(error) => {
                lock(&self.airport.database).note(&error);
                // It is tried once more, after a while.
                Fate::RefusedTogether
            }
        }
    }

    /// The attempts so far; with the last of them the row is set aside.
    async fn count_refusal(&self, row: &OutboxRow, text: &str) -> Result<u32, DatabaseError> {
        let store = &self.airport.store;
        let attempts = store.record_failure(&self.lease, row.id, text).await?;
        if attempts >= self.airport.attempts {
            store.set_aside(&self.lease, row.id, text).await?;
        }
        Ok(attempts)
    }
}

fn event_ids(rows: &[OutboxRow]) -> Vec<String> {
    rows.iter().map(|row| row.event_id.to_string()).collect()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
