//! What a consumer counts.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use factum_event::TakenType;
use factum_kafka::GroupStats;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a consumer has done since it started. Read at any time; every number only grows, but for
        /// [`lanes`](ConsumerStats::lanes).
        #[derive(Debug, Default)]
        pub struct ConsumerStats {
            $(pub(crate) $name: AtomicU64,)*
            lanes: AtomicU64,
            pub(crate) types: OnceLock<Vec<TypeCounter>>,
            pub(crate) group: OnceLock<Arc<GroupStats>>,
        }

        impl ConsumerStats {
            $($(#[$doc])* pub fn $name(&self) -> u64 { self.$name.load(Ordering::Relaxed) })*

            /// Partitions that it reads now.
            pub fn lanes(&self) -> u64 {
                self.lanes.load(Ordering::Relaxed)
            }

            /// Counts a lane for as long as what this gives lives.
            pub(crate) fn count_lane(self: &Arc<Self>) -> CountedLane {
                add(&self.lanes, 1);
                CountedLane(self.clone())
            }

            /// Times that the group dropped this consumer because it did not poll in time. It joins
            /// again by itself; the records in flight come again as duplicates.
            pub fn evictions(&self) -> u64 {
                self.group.get().map_or(0, |group| group.evictions())
            }

            /// Partitions that were assigned to it since the start, each time counted.
            pub fn assigned(&self) -> u64 {
                self.group.get().map_or(0, |group| group.assigned())
            }

            /// Gaps behind which it went on, see [`GapPolicy::Earliest`](crate::GapPolicy::Earliest).
            pub fn gaps(&self) -> u64 {
                self.group.get().map_or(0, |group| group.gaps())
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
    /// Events that were parked, whether they failed or wait behind one that did.
    parked,
    /// Events of a type without a handler.
    unknown,
    /// Records without a value.
    tombstones,
    /// Attempts after a transient failure.
    retries,
    /// Events sent to a retry topic, once for each time.
    sent_to_retry,
    /// Records of a retry topic that another consumer sent there: skipped.
    of_others,
    /// Transactions that were run again because of a conflict or an outage of the database.
    reruns,
    /// Transactions committed.
    transactions,
}

/// A lane that runs.
pub(crate) struct CountedLane(Arc<ConsumerStats>);

impl Drop for CountedLane {
    fn drop(&mut self) {
        self.0.lanes.fetch_sub(1, Ordering::Relaxed);
    }
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
pub(crate) struct Tally(Vec<(&'static str, usize, usize)>);

impl Tally {
    pub(crate) fn add(&mut self, event_type: &'static str, taken: usize, duplicates: usize) {
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

    pub(crate) fn record(&self, stats: &ConsumerStats) {
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

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
