//! The relay: the one component that produces to Kafka (architecture, invariant 3).
//!
//! It takes unpublished outbox rows in order, sends them, and sets `published_at` from delivery reports
//! alone (OBX-5). Correctness rests on three things, none of them in this process's memory:
//!
//! - *Which rows* are next is the table's state, asked anew for every batch. A row that commits late is found
//!   (public case 14), a crash between acknowledgement and mark sends the row again with the same event id
//!   (public case 19), and a producer that died is replaced without asking it anything.
//! - *Who sends* is decided by a lease with a fencing token. A relay that was stopped and wakes up may
//!   still send what it had claimed: the same rows in the same order, so that even then the first
//!   occurrence of each event stands in order, and the consumers' dedup stops the rest.
//! - *The order of a key* is kept by the producer, which sends nothing after a record of the same key that
//!   failed; a failed row stays unpublished and so is the first of its key in the next batch.
//!
//! Held keys, pauses and counters only save work. They are gone after a restart, and nothing is lost.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use factum_fault::Point;
use factum_kafka::{KafkaError, KafkaSettings, OutgoingRecord, Producer, SendError, SendErrorKind};
use factum_postgres::{Database, DatabaseError, Lease, OutboxRow, RelayStore};
use tokio_util::sync::CancellationToken;

use crate::cloud_events::{self, CloudEventsSource, CloudEventsSourceError};
use crate::health::Vitals;
use crate::wake::Wake;

/// The share of the lease that one batch may take to be acknowledged. The rest is for the withdrawal of
/// what was not, a fifth of that time, and for the statements before and after.
const SENDING_SHARE: f64 = 0.5;
/// A batch is begun only while the lease lasts this share longer than its sending.
const SENDING_MARGIN: f64 = 1.3;
/// Keys held at the same time. Beyond, the relay pauses as a whole.
const HELD_KEYS_MAX: usize = 2_000;
/// How long a key that nobody asked for again is remembered after its pause.
const HELD_KEY_FORGOTTEN: Duration = Duration::from_secs(600);
/// A held key's first pause; it doubles up to the last.
const HOLD_FIRST: Duration = Duration::from_millis(100);
const HOLD_LAST: Duration = Duration::from_secs(30);
/// The first pause of the whole relay when a server is away; it doubles up to the last.
const TROUBLE_FIRST: Duration = Duration::from_millis(50);
const TROUBLE_LAST: Duration = Duration::from_secs(1);
/// How often a trouble that lasts is logged again.
const TROUBLE_LOGGED_EVERY: Duration = Duration::from_secs(30);
/// How often the lease of another relay is asked for, at most.
const LEASE_ASKED_EVERY: Duration = Duration::from_secs(1);
/// How long a stopping relay tries to mark what was acknowledged.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// How a relay works. The defaults suit a service; all limits are here.
///
/// | setting | default | |
/// |---|---|---|
/// | `claim_limit` | 1,000 | rows of a batch |
/// | `lease` | 10 s | how long a relay that died keeps the others waiting |
/// | `idle_poll` | 10 ms | how soon a new row is seen |
/// | `attempts` | 10 | refusals after which a row is set aside |
#[derive(Debug, Clone)]
pub struct Relay {
    claim_limit: u32,
    lease: Duration,
    idle_poll: Duration,
    attempts: u32,
    cloud_events: Option<CloudEventsSource>,
    stats: Arc<RelayStats>,
}

impl Default for Relay {
    fn default() -> Relay {
        Relay::new()
    }
}

impl Relay {
    /// A relay with the defaults.
    #[must_use]
    pub fn new() -> Relay {
        Relay {
            claim_limit: 1_000,
            lease: Duration::from_secs(10),
            idle_poll: Duration::from_millis(10),
            attempts: 10,
            cloud_events: None,
            stats: Arc::default(),
        }
    }

    /// How many rows one batch takes at most, 1 to 2,000. The rows of a batch are in
    /// memory.
    #[must_use]
    pub fn claim_limit(mut self, rows: u32) -> Relay {
        self.claim_limit = rows.clamp(1, 2_000);
        self
    }

    /// How long the lease lasts, at least 2 s. A batch has half of it to be acknowledged. After a crash
    /// another relay begins within the lease and a second.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Relay {
        self.lease = lease.max(Duration::from_secs(2));
        self
    }

    /// How long to wait after an empty claim, at least 1 ms. After a batch the next claim follows at once.
    #[must_use]
    pub fn idle_poll(mut self, pause: Duration) -> Relay {
        self.idle_poll = pause.max(Duration::from_millis(1));
        self
    }

    /// After how many refusals a row is set aside, at least 1: rows that are too large, that name a
    /// topic that does not exist, or that the broker refuses for what they are. A broker that is away, or that does not
    /// let this service write, never counts.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Relay {
        self.attempts = attempts.max(1);
        self
    }

    /// Adds the attributes of CloudEvents 1.0 to each record, as the headers `ce_…` and `content-type` of Kafka's
    /// binary mode, with this source. A header of that name that the row has itself wins. Without this, and without
    /// `FACTUM_CLOUD_EVENTS_SOURCE`, no record has them.
    ///
    /// ```
    /// let relay = factum_runtime::Relay::new().cloud_events("/orders")?;
    /// # Ok::<(), factum_runtime::CloudEventsSourceError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The source is no URI reference, see [`CloudEventsSource`].
    pub fn cloud_events(mut self, source: &str) -> Result<Relay, CloudEventsSourceError> {
        self.cloud_events = Some(source.parse()?);
        Ok(self)
    }

    /// The counters, which stay readable while the relay runs.
    #[must_use]
    pub fn stats(&self) -> Arc<RelayStats> {
        Arc::clone(&self.stats)
    }

    /// Sends until `shutdown`: then the batch in flight is finished and the lease released.
    pub(crate) async fn run(
        self,
        context: RelayContext,
        shutdown: CancellationToken,
    ) -> Result<(), RelayError> {
        let mut store = RelayStore::new(context.db, context.owner, self.lease);
        let cloud_events = self.cloud_events.clone().or(context.cloud_events);
        if cloud_events.is_some() {
            store = store.with_occasions();
        }
        let mut running = Running {
            store,
            cloud_events,
            kafka: context.kafka,
            producer: None,
            held: HeldKeys::default(),
            database: Trouble::new("the database"),
            broker: Trouble::new("Kafka"),
            wake: context.wake,
            vitals: context.vitals,
            relay: self,
            shutdown,
        };
        // A setting that the client refuses shows at the start, not at the first row.
        running.producer = Some(running.connect()?);
        while let Some(lease) = running.take_lease().await {
            running.work(lease).await?;
        }
        if let Some(producer) = running.producer.take() {
            producer.close(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// The longest that a batch may take to be acknowledged.
    fn sending_limit(&self) -> Duration {
        self.lease.mul_f64(SENDING_SHARE)
    }
}

/// What a relay works on.
pub(crate) struct RelayContext {
    pub(crate) db: Database,
    pub(crate) kafka: KafkaSettings,
    /// Names this process among the relays; shown to people.
    pub(crate) owner: String,
    /// What the configuration says; the relay's own setting wins.
    pub(crate) cloud_events: Option<CloudEventsSource>,
    /// What ends a rest.
    pub(crate) wake: Wake,
    /// Where it says that it lives.
    pub(crate) vitals: Arc<Vitals>,
}

/// Why a relay ended by itself. Servers that are away don't end it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The Kafka client refuses its settings: mend them.
    #[error(transparent)]
    Kafka(KafkaError),
}

/// What a relay has done since it was made.
#[derive(Debug, Default)]
pub struct RelayStats {
    published: AtomicU64,
    failed: AtomicU64,
    set_aside: AtomicU64,
    producer_rebuilds: AtomicU64,
}

impl RelayStats {
    /// Rows acknowledged by the broker and marked.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Sends of a row that were not acknowledged, each attempt counted; rows that only waited for an earlier
    /// row of their key are not.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Rows set aside as hopeless. Anything above 0 needs a person.
    pub fn set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::Relaxed)
    }

    /// Producers thrown away: after a refusal by the broker, a lost numbering, or a batch that ran out of time.
    pub fn producer_rebuilds(&self) -> u64 {
        self.producer_rebuilds.load(Ordering::Relaxed)
    }
}

/// A relay at work.
struct Running {
    relay: Relay,
    store: RelayStore,
    cloud_events: Option<CloudEventsSource>,
    kafka: KafkaSettings,
    producer: Option<Producer>,
    held: HeldKeys,
    database: Trouble,
    broker: Trouble,
    wake: Wake,
    vitals: Arc<Vitals>,
    shutdown: CancellationToken,
}

/// Why a round ended early.
enum Halt {
    /// Another relay has the lease.
    LeaseLost,
    /// The database does not answer.
    Database(DatabaseError),
    /// The producer can't be made.
    Fatal(RelayError),
}

impl From<DatabaseError> for Halt {
    fn from(error: DatabaseError) -> Halt {
        Halt::Database(error)
    }
}

/// What a round did.
enum Round {
    /// Rows were sent or counted: there may be more.
    Busy,
    /// Nothing was there.
    Idle,
    /// Nothing moves for now: the broker is away, or more keys failed than can be held.
    Stuck,
}

impl Running {
    /// Waits for the lease; nothing when it is time to stop.
    async fn take_lease(&mut self) -> Option<Lease> {
        loop {
            if self.shutdown.is_cancelled() {
                return None;
            }
            factum_fault::at(Point::LeaseBefore);
            let pause = match self.store.acquire().await {
                Ok(Some(lease)) => {
                    factum_fault::at(Point::LeaseAfter);
                    self.database.over();
                    tracing::info!(token = lease.token(), "the relay has the lease and sends");
                    return Some(lease);
                }
                Ok(None) => {
                    self.database.over();
                    self.vitals.relay_waits();
                    jittered(LEASE_ASKED_EVERY.min(self.relay.lease / 4))
                }
                Err(error) => self.database.pause(&error),
            };
            self.rest(pause).await;
        }
    }

    /// Sends as long as the lease is ours.
    async fn work(&mut self, mut lease: Lease) -> Result<(), RelayError> {
        while !self.shutdown.is_cancelled() {
            let asked_at = tokio::time::Instant::now();
            match self.round(&mut lease).await {
                Ok(round) => {
                    self.database.over();
                    self.vitals.relay_sends();
                    match round {
                        Round::Busy => self.wake.busy(),
                        Round::Idle => self.rest_until_woken(asked_at).await,
                        Round::Stuck => {
                            let pause = self.broker.next_pause();
                            self.rest(pause).await;
                        }
                    }
                }
                Err(Halt::Database(error)) => {
                    let pause = self.database.pause(&error);
                    self.rest(pause).await;
                }
                Err(Halt::LeaseLost) => {
                    tracing::warn!("another relay has taken the lease; this one waits");
                    self.wake.busy();
                    return Ok(());
                }
                Err(Halt::Fatal(error)) => return Err(error),
            }
        }
        if let Err(error) = self.store.release(lease).await {
            tracing::warn!(%error, "the relay's lease was not released; it ends by itself");
        }
        Ok(())
    }

    /// Waits for new rows, but not beyond the order to stop.
    async fn rest_until_woken(&self, asked_at: tokio::time::Instant) {
        tokio::select! {
            _ = self.wake.rest(asked_at, self.relay.idle_poll) => {}
            () = self.shutdown.cancelled() => {}
        }
    }

    /// Waits, but not beyond the order to stop.
    async fn rest(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.shutdown.cancelled() => {}
        }
    }

    /// One claim and what becomes of it.
    async fn round(&mut self, lease: &mut Lease) -> Result<Round, Halt> {
        if !self.covers_a_batch(lease) && !self.store.renew(lease).await? {
            return Err(Halt::LeaseLost);
        }
        let held = self.held.waiting(Instant::now());
        factum_fault::at(Point::ClaimBefore);
        let rows = self
            .store
            .claim(lease, self.relay.claim_limit, &held)
            .await?;
        if rows.is_empty() {
            return Ok(Round::Idle);
        }
        factum_fault::at(Point::ClaimAfter);
        let (alone, together) = self.held.split(rows);
        let mut round = Round::Busy;
        if !together.is_empty() && self.covers_a_batch(lease) {
            round = self.send(lease, &together).await?;
        }
        for row in &alone {
            if self.shutdown.is_cancelled()
                || matches!(round, Round::Stuck)
                || !self.covers_a_batch(lease)
            {
                // They are unpublished still, and come with the next claim.
                break;
            }
            round = self.send(lease, std::slice::from_ref(row)).await?;
        }
        Ok(round)
    }

    /// Whether the lease lasts until a batch that is begun now has ended for sure. Asked right before each send.
    fn covers_a_batch(&self, lease: &Lease) -> bool {
        let end = Instant::now() + self.relay.sending_limit().mul_f64(SENDING_MARGIN);
        end < lease.expires_at()
    }

    /// Sends rows, marks the acknowledged ones, counts the others.
    async fn send(&mut self, lease: &Lease, rows: &[OutboxRow]) -> Result<Round, Halt> {
        let producer = match self.producer.take() {
            Some(producer) => producer,
            None => self.connect().map_err(Halt::Fatal)?,
        };
        let outcomes = {
            let event_ids: Vec<String> = rows.iter().map(|row| row.event_id.to_string()).collect();
            let batch: Vec<OutgoingRecord<'_>> = rows
                .iter()
                .zip(&event_ids)
                .map(|(row, event_id)| outgoing(row, event_id, self.cloud_events.as_ref()))
                .collect();
            producer.send_all(&batch).await
        };
        let spent = producer.is_fatal();
        if spent {
            // Dropped, and the next send makes a new one: what it knew is in the table.
            self.count(&self.relay.stats.producer_rebuilds, 1);
        } else {
            self.producer = Some(producer);
        }
        // The broker refuses a batch as a whole: that proves nothing about a single row of it.
        let told_apart = !spent || rows.len() == 1;
        let published: Vec<i64> = rows
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| outcome.is_ok())
            .map(|(row, _)| row.id)
            .collect();
        if !published.is_empty() {
            self.mark(lease, &published).await?;
        }
        let mut answered = !published.is_empty();
        let mut all_held = true;
        let mut trouble = false;
        let mut refused_together = 0_u32;
        let mut failed_keys: HashSet<&str> = HashSet::new();
        for (row, outcome) in rows.iter().zip(outcomes) {
            let Err(error) = outcome else {
                self.held.let_go(&row.key);
                continue;
            };
            let first_of_key = failed_keys.insert(&row.key);
            match error.kind() {
                SendErrorKind::Held => {}
                SendErrorKind::Permanent if !first_of_key => {
                    self.count(&self.relay.stats.failed, 1);
                }
                SendErrorKind::Permanent => {
                    answered = true;
                    self.count(&self.relay.stats.failed, 1);
                    all_held &= if told_apart {
                        self.refused(lease, row, &error).await?
                    } else {
                        refused_together += 1;
                        self.held.hold(&row.key, true)
                    };
                }
                _ => {
                    trouble = true;
                    self.count(&self.relay.stats.failed, 1);
                    self.broker.note(&error);
                    // With others flowing, something is wrong with this topic or partition only, so its
                    // keys wait, each for itself. Else the whole relay does.
                    if error.kind() == SendErrorKind::Retriable
                        && first_of_key
                        && !published.is_empty()
                    {
                        all_held &= self.held.hold(&row.key, false);
                    }
                }
            }
        }
        if refused_together > 0 {
            tracing::warn!(
                rows = refused_together,
                "the broker refused rows of one batch together; each is tried alone"
            );
        }
        if !trouble {
            self.broker.over();
        }
        if answered && all_held {
            Ok(Round::Busy)
        } else {
            Ok(Round::Stuck)
        }
    }

    /// Sets `published_at`, and does not give up while the lease is ours: without it the rows are sent again.
    async fn mark(&mut self, lease: &Lease, ids: &[i64]) -> Result<(), Halt> {
        let mut stop_at = None;
        loop {
            factum_fault::at(Point::MarkBefore);
            let marked = self.store.mark_published(lease, ids).await;
            factum_fault::at(Point::MarkAfter);
            match marked {
                Ok(marked) => {
                    self.database.over();
                    self.count(&self.relay.stats.published, marked);
                    if marked == 0 {
                        return Err(Halt::LeaseLost);
                    }
                    return Ok(());
                }
                Err(error) => {
                    let pause = self.database.pause(&error);
                    if self.shutdown.is_cancelled() {
                        let stop_at = *stop_at.get_or_insert(Instant::now() + STOP_LIMIT);
                        if Instant::now() + pause > stop_at {
                            return Err(Halt::Database(error));
                        }
                        tokio::time::sleep(pause).await;
                    } else if Instant::now() > lease.expires_at() {
                        // Another relay may have begun; it sends these rows again, if nobody marks them.
                        return Err(Halt::Database(error));
                    } else {
                        self.rest(pause).await;
                    }
                }
            }
        }
    }

    /// A row that can't be written as it is: its key is held, and it is set aside after its attempts.
    /// `false` if there was no room to hold the key.
    async fn refused(
        &mut self,
        lease: &Lease,
        row: &OutboxRow,
        error: &SendError,
    ) -> Result<bool, Halt> {
        let text = error.to_string();
        let attempts = self.store.record_failure(lease, row.id, &text).await?;
        if attempts == 0 {
            return Err(Halt::LeaseLost);
        }
        if attempts < self.relay.attempts {
            tracing::warn!(
                outbox_id = row.id, event_id = %row.event_id, event_type = row.event_type,
                topic = row.topic, attempts, error = text,
                "an outbox row was refused; its key waits"
            );
            return Ok(self.held.hold(&row.key, true));
        }
        self.store.set_aside(lease, row.id, &text).await?;
        self.count(&self.relay.stats.set_aside, 1);
        self.held.let_go(&row.key);
        tracing::error!(
            outbox_id = row.id, event_id = %row.event_id, event_type = row.event_type,
            topic = row.topic, attempts, error = text,
            "an outbox row was set aside: nobody receives this event until a person mends it \
             (outbox.set_aside_at); the later rows of its key go on"
        );
        Ok(true)
    }

    fn connect(&self) -> Result<Producer, RelayError> {
        Producer::connect(&self.kafka, self.relay.sending_limit()).map_err(RelayError::Kafka)
    }

    fn count(&self, counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// The record of a row: a raw one as it is. Rows of other languages may lack the headers that consumers look at.
fn outgoing<'a>(
    row: &'a OutboxRow,
    event_id: &'a str,
    cloud_events: Option<&'a CloudEventsSource>,
) -> OutgoingRecord<'a> {
    if let Some(record) = &row.record {
        return OutgoingRecord {
            topic: &row.topic,
            key: record.key.as_deref(),
            value: (!record.tombstone).then_some(&row.payload),
            headers: record
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_deref()))
                .collect(),
            partition: None,
        };
    }
    let mut headers: Vec<(&str, Option<&[u8]>)> = row
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), Some(value.as_bytes())))
        .collect();
    for (name, value) in [("event-id", event_id), ("event-type", &row.event_type)] {
        if !row.headers.iter().any(|(there, _)| there == name) {
            headers.push((name, Some(value.as_bytes())));
        }
    }
    if let Some(source) = cloud_events {
        let attributes = cloud_events::headers(source, row, event_id);
        headers.extend(attributes.map(|(name, value)| (name, Some(value.as_bytes()))));
    }
    OutgoingRecord {
        topic: &row.topic,
        key: Some(row.key.as_bytes()),
        value: Some(&row.payload),
        headers,
        partition: None,
    }
}

/// Keys that wait because a row of theirs failed.
#[derive(Debug, Default)]
struct HeldKeys {
    keys: HashMap<String, HeldKey>,
}

#[derive(Debug)]
struct HeldKey {
    until: Instant,
    pause: Duration,
    /// Whether the next row goes alone. A broker refuses a batch as a whole, so the rows that stood beside
    /// the culprit are told apart by sending each by itself.
    alone: bool,
}

impl HeldKeys {
    /// The keys that no claim may return now.
    fn waiting(&mut self, now: Instant) -> Vec<String> {
        self.keys.retain(|_, held| {
            now < held.until || (held.alone && now < held.until + HELD_KEY_FORGOTTEN)
        });
        self.keys
            .iter()
            .filter(|(_, held)| now < held.until)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// The rows that go alone, one for each of their keys, and those that go together.
    fn split(&self, rows: Vec<OutboxRow>) -> (Vec<OutboxRow>, Vec<OutboxRow>) {
        let (mut alone, together): (Vec<_>, Vec<_>) = rows
            .into_iter()
            .partition(|row| self.keys.get(&row.key).is_some_and(|held| held.alone));
        let mut seen = HashSet::new();
        alone.retain(|row| seen.insert(row.key.clone()));
        (alone, together)
    }

    /// Holds a key for a while: twice as long each time it comes here before it is let go. `false` when too
    /// many are held already: its rows come back with the next claim.
    fn hold(&mut self, key: &str, alone: bool) -> bool {
        let (pause, alone) = match self.keys.get(key) {
            Some(held) => ((held.pause * 2).min(HOLD_LAST), alone || held.alone),
            None if self.keys.len() >= HELD_KEYS_MAX => return false,
            None => (HOLD_FIRST, alone),
        };
        self.keys.insert(
            key.to_owned(),
            HeldKey {
                until: Instant::now() + jittered(pause),
                pause,
                alone,
            },
        );
        true
    }

    fn let_go(&mut self, key: &str) {
        self.keys.remove(key);
    }
}

/// A server that is away: how long to pause, and what to say how often.
#[derive(Debug)]
struct Trouble {
    with: &'static str,
    since: Option<Instant>,
    logged_at: Option<Instant>,
    pause: Duration,
}

impl Trouble {
    fn new(with: &'static str) -> Trouble {
        Trouble {
            with,
            since: None,
            logged_at: None,
            pause: TROUBLE_FIRST,
        }
    }

    /// Logs the trouble, at first and from time to time.
    fn note(&mut self, error: &dyn fmt::Display) {
        let now = Instant::now();
        self.since.get_or_insert(now);
        if self
            .logged_at
            .is_none_or(|at| now - at >= TROUBLE_LOGGED_EVERY)
        {
            self.logged_at = Some(now);
            tracing::warn!(error = %error, "the relay has trouble with {} and tries again", self.with);
        }
    }

    /// How long to wait before the next try.
    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(TROUBLE_LAST);
        jittered(pause)
    }

    fn pause(&mut self, error: &dyn fmt::Display) -> Duration {
        self.note(error);
        self.next_pause()
    }

    fn over(&mut self) {
        if let Some(since) = self.since {
            tracing::info!(
                seconds = since.elapsed().as_secs_f64(),
                "the relay's trouble with {} is over",
                self.with
            );
        }
        *self = Trouble::new(self.with);
    }
}

/// Between a half and the whole, so that relays and keys don't come back all at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests;
