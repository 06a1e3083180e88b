//! The lanes of the assigned partitions: what the poll thread and the lanes' tasks share.
//!
//! **Epochs.** Every assignment of a partition makes a new [`LaneFeed`] with its own progress. After
//! a revocation nobody reads that progress any more, so a result that comes late moves no offset;
//! and the closed feed can never take a record that belongs to its successor.
//!
//! Nothing here knows librdkafka, so that every order of steps can be tried (`schedule.rs`).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::sync::{
    AtomicI64, CancellationToken, Condvar, Deadline, Mutex, Notify, Ordering, lock, sleep,
};
use crate::Record;

/// A feed looks at its queue at least this often, whatever the wake-ups do.
const FEED_RECHECK: Duration = Duration::from_secs(1);

/// A partition, by topic and number.
pub(crate) type PartitionKey = (Arc<str>, i32);

/// Where a partition's records come from while it is assigned.
pub(crate) trait RecordSource: Send {
    /// The next record if it is there. Never waits.
    fn next_record(&mut self) -> Option<Record>;
}

/// What the poll thread and a lane share about one assignment of one partition.
struct Shared {
    queue: Mutex<Queue>,
    nonempty: Notify,
    drain: CancellationToken,
    abort: CancellationToken,
    /// The offset of the next record to handle, or -1: nothing finished yet.
    next_offset: AtomicI64,
    finished: Mutex<bool>,
    finished_signal: Condvar,
}

/// The source of records; empty, with `source` `None`, once the partition is revoked.
#[derive(Default)]
struct Queue {
    source: Option<Box<dyn RecordSource>>,
    /// Records that reached the main queue before the partition's own queue was split off.
    strays: VecDeque<Record>,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            queue: Mutex::default(),
            nonempty: Notify::new(),
            drain: CancellationToken::new(),
            abort: CancellationToken::new(),
            next_offset: AtomicI64::new(-1),
            finished: Mutex::new(false),
            finished_signal: Condvar::new(),
        }
    }

    fn wait_finished(&self, until: &Deadline) -> bool {
        let mut finished = lock(&self.finished);
        while !*finished {
            match until.wait(&self.finished_signal, finished) {
                Some(woken) => finished = woken,
                None => return false,
            }
        }
        true
    }
}

/// The records of one partition, for as long as this assignment lasts.
///
/// Dropping the feed tells the poll thread that the lane has finished.
pub struct LaneFeed {
    topic: Arc<str>,
    partition: i32,
    epoch: u64,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for LaneFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneFeed")
            .field("topic", &self.topic)
            .field("partition", &self.partition)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl LaneFeed {
    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// The number of this assignment; it grows with every assignment in this process.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Cancelled when the partition is revoked or the consumer stops: finish what has begun.
    pub fn drain(&self) -> &CancellationToken {
        &self.shared.drain
    }

    /// Cancelled when the drain deadline has passed: give up what has begun.
    pub fn abort(&self) -> &CancellationToken {
        &self.shared.abort
    }

    /// Waits for records and takes what is there, in order: one when idle, up to `max_records`
    /// (and about `max_bytes` of values) under backlog. `None` once the partition is revoked.
    pub async fn next_batch(
        &mut self,
        max_records: usize,
        max_bytes: usize,
    ) -> Option<Vec<Record>> {
        loop {
            if self.shared.drain.is_cancelled() {
                return None;
            }
            let batch = self.take(max_records, max_bytes);
            if !batch.is_empty() {
                return Some(batch);
            }
            // In this order, so that a schedule that failed can be run again.
            tokio::select! {
                biased;
                () = self.shared.drain.cancelled() => return None,
                // The permit of a wake-up between `take` and here is kept by Notify.
                () = self.shared.nonempty.notified() => {}
                () = sleep(FEED_RECHECK) => {}
            }
        }
    }

    pub(crate) fn take(&self, max_records: usize, max_bytes: usize) -> Vec<Record> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut queue = lock(&self.shared.queue);
        while batch.len() < max_records && bytes < max_bytes {
            let record = match queue.strays.pop_front() {
                Some(stray) => stray,
                None => match queue.source.as_mut().and_then(|s| s.next_record()) {
                    Some(record) => record,
                    None => break,
                },
            };
            bytes += record.value.as_ref().map_or(0, Vec::len);
            batch.push(record);
        }
        batch
    }

    /// Says that every record below `next_offset` has been handled and committed to the database.
    /// The only way an offset moves (CONS-2). It never goes back.
    pub fn handled_below(&self, next_offset: i64) {
        self.shared
            .next_offset
            .fetch_max(next_offset, Ordering::AcqRel);
    }
}

impl Drop for LaneFeed {
    fn drop(&mut self) {
        *lock(&self.shared.finished) = true;
        self.shared.finished_signal.notify_all();
    }
}

/// Tells a lane that its source has records again.
pub(crate) struct Wake(Weak<Shared>);

impl Wake {
    pub(crate) fn wake(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.nonempty.notify_one();
        }
    }
}

/// An assigned partition as the poll thread sees it.
struct Lane {
    shared: Arc<Shared>,
    epoch: u64,
    /// The offset that the broker last accepted, or -1.
    committed: i64,
}

impl Lane {
    /// The offset to commit, if it is beyond the one that the broker has.
    fn unsaved(&self) -> Option<i64> {
        let next = self.shared.next_offset.load(Ordering::Acquire);
        (next > self.committed).then_some(next)
    }
}

/// What a live lane has finished and the broker doesn't know.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) key: PartitionKey,
    epoch: u64,
    pub(crate) next: i64,
}

/// How a lane ended.
#[derive(Debug)]
pub(crate) struct Revoked {
    pub(crate) key: PartitionKey,
    /// Whether it finished before the deadline.
    pub(crate) drained: bool,
    /// The offset to commit, if it finished anything that the broker doesn't know.
    pub(crate) unsaved: Option<i64>,
}

/// The lanes of the partitions that are assigned now. Only the poll thread uses it.
pub(crate) struct LaneTable(Mutex<Lanes>);

struct Lanes {
    live: HashMap<PartitionKey, Lane>,
    epoch: u64,
    spawn: Box<dyn FnMut(LaneFeed) + Send>,
}

impl LaneTable {
    /// `spawn` gets the feed of every assigned partition.
    pub(crate) fn new(spawn: impl FnMut(LaneFeed) + Send + 'static) -> LaneTable {
        LaneTable(Mutex::new(Lanes {
            live: HashMap::new(),
            epoch: 0,
            spawn: Box::new(spawn),
        }))
    }

    /// The partitions that have a lane.
    pub(crate) fn keys(&self) -> Vec<PartitionKey> {
        lock(&self.0).live.keys().cloned().collect()
    }

    /// Begins a lane with what `connect` gives, in an epoch of its own. Nothing without a source.
    pub(crate) fn assign(
        &self,
        topic: &Arc<str>,
        partition: i32,
        connect: impl FnOnce(Wake) -> Option<Box<dyn RecordSource>>,
    ) -> Option<u64> {
        let mut lanes = lock(&self.0);
        let shared = Arc::new(Shared::new());
        let source = connect(Wake(Arc::downgrade(&shared)))?;
        lock(&shared.queue).source = Some(source);
        lanes.epoch += 1;
        let epoch = lanes.epoch;
        let feed = LaneFeed {
            topic: topic.clone(),
            partition,
            epoch,
            shared: shared.clone(),
        };
        lanes.live.insert(
            (topic.clone(), partition),
            Lane {
                shared,
                epoch,
                committed: -1,
            },
        );
        (lanes.spawn)(feed);
        Some(epoch)
    }

    /// Drains the lanes to the deadline, closes their feeds for good, says what they finished.
    pub(crate) fn revoke(&self, keys: &[PartitionKey], until: &Deadline) -> Vec<Revoked> {
        let revoked: Vec<(PartitionKey, Lane)> = {
            let mut lanes = lock(&self.0);
            keys.iter()
                .filter_map(|key| lanes.live.remove_entry(key))
                .collect()
        };
        for (_, lane) in &revoked {
            lane.shared.drain.cancel();
        }
        let mut drained = Vec::with_capacity(revoked.len());
        for (_, lane) in &revoked {
            let in_time = lane.shared.wait_finished(until);
            if !in_time {
                lane.shared.abort.cancel();
            }
            // From here on this lane can take no record and, having left `live`, move no offset.
            *lock(&lane.shared.queue) = Queue::default();
            drained.push(in_time);
        }
        revoked
            .into_iter()
            .zip(drained)
            .map(|((key, lane), drained)| Revoked {
                key,
                drained,
                unsaved: lane.unsaved(),
            })
            .collect()
    }

    /// What the lanes have finished since the last time that the broker accepted.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        lock(&self.0)
            .live
            .iter()
            .filter_map(|(key, lane)| {
                lane.unsaved().map(|next| Progress {
                    key: key.clone(),
                    epoch: lane.epoch,
                    next,
                })
            })
            .collect()
    }

    /// The broker accepted these.
    pub(crate) fn committed(&self, sent: &[Progress]) {
        let mut lanes = lock(&self.0);
        for progress in sent {
            if let Some(lane) = lanes.live.get_mut(&progress.key)
                && lane.epoch == progress.epoch
            {
                lane.committed = progress.next;
            }
        }
    }

    /// A record that reached the main queue: its partition's lane gets it, if there is one.
    pub(crate) fn stray(&self, key: &PartitionKey, read: impl FnOnce() -> Record) {
        let lanes = lock(&self.0);
        if let Some(lane) = lanes.live.get(key) {
            lock(&lane.shared.queue).strays.push_back(read());
            lane.shared.nonempty.notify_one();
        }
    }
}
