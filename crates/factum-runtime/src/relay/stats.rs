//! What a relay counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metric;

/// What a relay has done since it was made.
#[derive(Debug, Default)]
pub struct RelayStats {
    published: AtomicU64,
    failed: AtomicU64,
    set_aside: AtomicU64,
    producer_rebuilds: AtomicU64,
    slots: AtomicU64,
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

    /// Slots that this relay holds now, of 64. Together the relays of one table hold all of them, but for moments when
    /// one takes over from another.
    pub fn slots(&self) -> u64 {
        self.slots.load(Ordering::Relaxed)
    }
}

/// The stats and the metrics of one relay at work.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    stats: std::sync::Arc<RelayStats>,
    service: String,
}

impl Counted {
    pub(super) fn new(stats: std::sync::Arc<RelayStats>, service: String) -> Counted {
        let counted = Counted { stats, service };
        // So that it is there before anything happens.
        counted.slots(0);
        counted
    }

    pub(super) fn published(&self, rows: u64) {
        self.stats.published.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, rows: u64) {
        self.stats.failed.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn set_aside(&self, rows: u64) {
        self.stats.set_aside.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn producer_rebuilt(&self) {
        self.stats.producer_rebuilds.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn slots(&self, held: usize) {
        self.stats.slots.store(held as u64, Ordering::Relaxed);
        metrics::gauge!(metric::RELAY_SLOTS, "service" => self.service.clone()).set(held as f64);
    }
}
