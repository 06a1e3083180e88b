//! The relay: the one component that produces to Kafka (architecture, invariant 3).
//!
//! It takes unpublished outbox rows in order, sends them, and sets `published_at` from delivery reports
//! alone (OBX-5). Correctness rests on three things, none of them in this process's memory:
//!
//! - *Which rows* are next is the table's state, asked anew for every batch. A row that commits late is found
//!   (public case 14), a crash between acknowledgement and mark sends the row again with the same event id
//!   (public case 19), and a producer that died is replaced without asking it anything.
//! - *Who sends* a slot is decided by its lease with a fencing token. Relays share the slots. A relay that was stopped and
//!   wakes up may still send what it had claimed: the same rows in the same order, so that even then the first
//!   occurrence of each event stands in order, and the consumers' dedup stops the rest.
//! - *The order of a key* is kept by the producer, which sends nothing after a record of the same key that
//!   failed; a failed row stays unpublished and so is the first of its key in the next batch. Several batches are on their
//!   way at a time, never two with the same key: see [`dispatch`].
//!
//! Held keys, pauses and counters only save work. They are gone after a restart, and nothing is lost.

mod dispatch;
mod flight;
mod held_keys;
mod record;
mod stats;
mod trouble;

use std::sync::Arc;
use std::time::{Duration, Instant};

use factum_kafka::{KafkaError, KafkaSettings};
use factum_postgres::Database;
use tokio_util::sync::CancellationToken;

use crate::cloud_events::{CloudEventsSource, CloudEventsSourceError};
use crate::health::Vitals;
use crate::wake::Wake;
use dispatch::Dispatch;
pub use stats::RelayStats;

/// How long one batch may take to be acknowledged: long enough for a partition's next leader, so that the client goes on
/// by itself when a broker dies. Meanwhile the lease is renewed. If it ends all the same, the rows may be sent by two
/// relays: by each in their order, so that first occurrences stay in order.
const SENDING_LIMIT: Duration = Duration::from_secs(10);
/// A batch is begun only while this share of the lease is left.
const LEASE_SHARE: f64 = 0.65;

/// How a relay works. The defaults suit a service; all limits are here.
///
/// Relays of one table share its 64 slots, as many each as can be: one more relay takes over a part within seconds, one that
/// stops gives its part back, and one that died loses it with its lease.
///
/// | setting | default | |
/// |---|---|---|
/// | `claim_limit` | 1,000 | rows of a batch |
/// | `claim_bytes` | 8 MiB | payload of a batch |
/// | `batches_in_flight` | 4 | batches claimed and sent while others are acknowledged |
/// | `lease` | 10 s | how long the slots of a relay that died wait |
/// | `idle_poll` | 10 ms | how soon a new row is seen |
/// | `attempts` | 10 | refusals after which a row is set aside |
#[derive(Debug, Clone)]
pub struct Relay {
    claim_limit: u32,
    claim_bytes: u64,
    batches_in_flight: usize,
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
            claim_bytes: 8 * 1024 * 1024,
            batches_in_flight: 4,
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

    /// How many bytes of payload one batch takes at most, 1 to 16 MiB; the row that reaches the limit is taken, too. A batch
    /// is in memory until it is marked.
    #[must_use]
    pub fn claim_bytes(mut self, bytes: u64) -> Relay {
        self.claim_bytes = bytes.clamp(1, 16 * 1024 * 1024);
        self
    }

    /// How many batches are on their way at a time, 1 to 8: while some are acknowledged and marked, the next is claimed and
    /// sent. Together they hold at most so many times [`claim_bytes`](Relay::claim_bytes), and one batch more. A batch
    /// that takes its time, because a broker does, does not count; of those there are up to three times as many.
    #[must_use]
    pub fn batches_in_flight(mut self, batches: u32) -> Relay {
        self.batches_in_flight = batches.clamp(1, 8) as usize;
        self
    }

    /// How long the lease lasts, at least 2 s. After a crash
    /// other relays begin with its slots within the lease and two seconds.
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

    /// Sends until `shutdown`: then the batches in flight are finished and the slots given back.
    pub(crate) async fn run(
        self,
        context: RelayContext,
        shutdown: CancellationToken,
    ) -> Result<(), RelayError> {
        Dispatch::new(self, context, shutdown)?.run().await
    }

    /// What must be left of the lease when a batch is begun.
    fn lease_left(&self) -> Duration {
        self.lease.mul_f64(LEASE_SHARE)
    }
}

/// What a relay works on.
pub(crate) struct RelayContext {
    pub(crate) db: Database,
    pub(crate) kafka: KafkaSettings,
    /// The service's name, for the metrics.
    pub(crate) service: String,
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

/// Whether enough of the lease is left to begin a batch. Asked right before each send.
fn covers_a_batch(lease_end: Instant, lease_left: Duration) -> bool {
    Instant::now() + lease_left < lease_end
}

#[cfg(test)]
mod tests;
