//! The lanes under every order of steps: assign, fetch, poll, finish, commit, revoke, time-out.
//!
//! `lanes.rs` is compiled here a second time, with shuttle's primitives in place of the real ones
//! (`schedule/sync.rs`). Around it stands a small model of librdkafka and of a broker, and at
//! every step it is checked that
//!
//! - an offset handed to commit is never beyond a record that the lane of this epoch hasn't finished;
//! - a late result of a revoked lane moves no offset, also when its partition was assigned again;
//! - a closed feed takes no record, its successor's least of all;
//! - a revocation ends when the lanes finish, and at the deadline when they don't, and no wake-up is lost
//!   (shuttle reports a deadlock when nobody can go on);
//! - no record is skipped: each is below the committed offset because it was finished, or comes again.
//!
//! Small models are searched exhaustively, the large one at random. A failure prints its schedule;
//! `shuttle::replay` runs that one again.

#[path = "lanes.rs"]
// A second copy is the point. The crate's own is the public one, and the one that uses everything.
#[allow(clippy::duplicate_mod, dead_code, unreachable_pub)]
mod lanes;
mod sync;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError};

use shuttle::Runner;
use shuttle::future::block_on;
use shuttle::rand::Rng;
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::{self, JoinHandle};

use self::lanes::{LaneFeed, LaneTable, PartitionKey, RecordSource, Revoked, Wake};
use self::sync::{Deadline, Mutex, lock};
use crate::Record;

/// Records of a partition in the large model.
const RECORDS: i64 = 4;
/// Schedules of a small model at the most. Reaching it is a failure: the search wasn't exhaustive.
const SCHEDULES_MAX: usize = 200_000;
const BYTES_MAX: usize = 1_000;

/// One partition: librdkafka's queue of it, and what the test knows.
struct World {
    key: PartitionKey,
    /// All sources of a partition read one queue, whatever their epoch. That is librdkafka's way, and
    /// the reason why a feed must be closed.
    queue: Mutex<FetchQueue>,
    seen: std::sync::Mutex<Seen>,
    progressed: tokio::sync::Notify,
}

#[derive(Default)]
struct FetchQueue {
    offsets: VecDeque<i64>,
    /// Called when the queue was empty and no longer is.
    nonempty: Option<Arc<Wake>>,
}

/// Observations. Making one is no step: no other thread comes between.
#[derive(Default)]
struct Seen {
    /// What the broker has for the group.
    committed: i64,
    /// The assignment that holds, from before its first record to the end of its revocation.
    current: Option<u64>,
    /// Where it began.
    start: i64,
    /// The offset that its lane gets next.
    next: i64,
    /// For each record, the epochs whose lane finished it.
    finished: Vec<BTreeSet<u64>>,
}

/// What a partition's source is in the real consumer: a handle on the partition's one queue.
struct Source {
    world: Arc<World>,
    epoch: u64,
}

impl RecordSource for Source {
    fn next_record(&mut self) -> Option<Record> {
        let offset = lock(&self.world.queue).offsets.pop_front()?;
        assert_eq!(
            self.world.seen().current,
            Some(self.epoch),
            "a closed feed took record {offset}"
        );
        Some(self.world.record(offset))
    }
}

/// As rdkafka's: the queue's callback is unset, whoever set it.
impl Drop for Source {
    fn drop(&mut self) {
        lock(&self.world.queue).nonempty = None;
    }
}

impl World {
    fn new(partition: i32, records: i64) -> Arc<World> {
        let finished = (0..records).map(|_| BTreeSet::new()).collect();
        Arc::new(World {
            key: (Arc::from("t"), partition),
            queue: Mutex::new(FetchQueue::default()),
            seen: std::sync::Mutex::new(Seen {
                finished,
                ..Seen::default()
            }),
            progressed: tokio::sync::Notify::new(),
        })
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, offset: i64) -> Record {
        Record {
            topic: self.key.0.clone(),
            partition: self.key.1,
            offset,
            key: None,
            value: None,
            headers: crate::Headers::default(),
            timestamp_ms: None,
        }
    }

    /// Assigns the partition; its lane begins at the committed offset. That many records reach the
    /// main queue instead of the partition's own.
    fn assign(self: &Arc<World>, table: &LaneTable, epoch: u64, strays: i64) {
        let start = {
            let mut seen = self.seen();
            seen.current = Some(epoch);
            seen.start = seen.committed;
            seen.next = seen.committed;
            seen.start
        };
        let assigned = table.assign(&self.key.0, self.key.1, |wake| {
            lock(&self.queue).nonempty = Some(Arc::new(wake));
            Some(Box::new(Source {
                world: self.clone(),
                epoch,
            }))
        });
        assert_eq!(assigned, Some(epoch));
        for offset in start..self.records().min(start + strays) {
            table.stray(&self.key, || self.record(offset));
        }
    }

    fn records(&self) -> i64 {
        self.seen().finished.len() as i64
    }

    /// What librdkafka's thread does: fetches on and on from `from`, while the assignment holds.
    fn fetch(&self, epoch: u64, from: i64) {
        for offset in from..self.records() {
            let mut queue = lock(&self.queue);
            if self.seen().current != Some(epoch) {
                return;
            }
            queue.offsets.push_back(offset);
            let wake = (queue.offsets.len() == 1).then(|| queue.nonempty.clone());
            drop(queue);
            if let Some(wake) = wake.flatten() {
                wake.wake();
            }
        }
    }

    /// The partition is given back: what was fetched is thrown away.
    fn unassign(&self) {
        let mut queue = lock(&self.queue);
        self.seen().current = None;
        queue.offsets.clear();
    }

    /// A lane got these. In the current epoch they are the next ones, with none left out.
    fn received(&self, epoch: u64, batch: &[Record]) {
        let mut seen = self.seen();
        for record in batch {
            if seen.current == Some(epoch) {
                assert_eq!(record.offset, seen.next, "a record was skipped");
                seen.next += 1;
            }
        }
    }

    /// A lane's transaction over this record is committed.
    fn finish(&self, epoch: u64, offset: i64) {
        self.seen().finished[usize::try_from(offset).expect("offsets count from 0")].insert(epoch);
        self.progressed.notify_one();
    }

    fn finished_by(&self, epoch: u64, offsets: std::ops::Range<i64>) -> bool {
        let seen = self.seen();
        let mut records = seen.finished.iter().zip(0..);
        records.all(|(by, offset)| !offsets.contains(&offset) || by.contains(&epoch))
    }

    /// The broker accepts an offset.
    fn commit(&self, epoch: u64, next: i64) {
        let start = self.seen().start;
        assert_eq!(self.seen().current, Some(epoch));
        assert!(
            self.finished_by(epoch, start..next),
            "an offset moved to {next} past a record that epoch {epoch} didn't finish"
        );
        let mut seen = self.seen();
        assert!(next > seen.committed, "an offset went back to {next}");
        assert!(next <= seen.finished.len() as i64);
        seen.committed = next;
    }

    /// The end of a revocation.
    fn revoked(&self, epoch: u64, lane: &Revoked, commit: bool) {
        let (start, next) = {
            let seen = self.seen();
            (seen.start, seen.next)
        };
        if commit {
            if let Some(next) = lane.unsaved {
                self.commit(epoch, next);
            }
            if lane.drained && self.finished_by(epoch, start..next) {
                assert_eq!(
                    self.seen().committed,
                    next,
                    "a lane that drained lost its work"
                );
            }
        }
        self.unassign();
    }
}

/// How a lane deals with its records.
#[derive(Debug, Clone, Copy)]
enum Temper {
    /// Handles them.
    Diligent,
    /// Hangs until it is aborted, and gives up.
    Stuck,
    /// Hangs until it is aborted, and finishes all the same: a zombie.
    Late,
}

/// What a lane's task does, in little.
fn lane(world: &World, mut feed: LaneFeed, temper: Temper) {
    let epoch = feed.epoch();
    block_on(async {
        while let Some(batch) = feed.next_batch(2, BYTES_MAX).await {
            world.received(epoch, &batch);
            if !matches!(temper, Temper::Diligent) {
                feed.abort().cancelled().await;
            }
            if matches!(temper, Temper::Stuck) {
                return;
            }
            for record in batch {
                world.finish(epoch, record.offset);
                feed.handled_below(record.offset + 1);
            }
        }
    });
    if world.seen().current != Some(epoch) {
        let late = feed.take(9, BYTES_MAX);
        assert!(late.is_empty(), "a closed feed took {late:?}");
    }
}

/// A consumer with some partitions. The test's own thread is its poll thread.
struct Consumer {
    worlds: Vec<Arc<World>>,
    table: LaneTable,
    temper: Arc<std::sync::Mutex<Temper>>,
    lanes: Arc<std::sync::Mutex<Vec<JoinHandle<()>>>>,
    threads: Vec<JoinHandle<()>>,
    epochs: u64,
}

/// How a partition is taken away.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The lanes have all the time that they need.
    Drain,
    /// The deadline may pass at any time.
    Deadline,
    /// It has another owner already: no waiting, no commit.
    Lost,
}

impl Consumer {
    fn new(partitions: i32, records: i64) -> Consumer {
        let worlds: Vec<_> = (0..partitions).map(|p| World::new(p, records)).collect();
        let temper = Arc::new(std::sync::Mutex::new(Temper::Diligent));
        let lanes = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (worlds_, temper_, lanes_) = (worlds.clone(), temper.clone(), lanes.clone());
        let table = LaneTable::new(move |feed| {
            let world = worlds_[feed.partition() as usize].clone();
            let temper = *temper_.lock().unwrap();
            let lane = thread::spawn(move || lane(&world, feed, temper));
            lanes_.lock().unwrap().push(lane);
        });
        Consumer {
            worlds,
            table,
            temper,
            lanes,
            threads: Vec::new(),
            epochs: 0,
        }
    }

    /// Gives the epoch of the first of the partitions; the others follow.
    fn assign(&mut self, temper: Temper, strays: i64) -> u64 {
        let first = self.epochs + 1;
        *self.temper.lock().unwrap() = temper;
        for world in &self.worlds {
            self.epochs += 1;
            let (world, epoch) = (world.clone(), self.epochs);
            world.assign(&self.table, epoch, strays);
            let from = world.records().min(world.seen().start + strays);
            self.threads
                .push(thread::spawn(move || world.fetch(epoch, from)));
        }
        first
    }

    /// `accepts` is the broker's answer.
    fn commit_progress(&self, first_epoch: u64, accepts: bool) {
        let sent = self.table.progress();
        if !accepts {
            return;
        }
        for progress in &sent {
            let partition = progress.key.1 as usize;
            self.worlds[partition].commit(first_epoch + partition as u64, progress.next);
        }
        self.table.committed(&sent);
    }

    fn revoke(&mut self, first_epoch: u64, end: End) {
        let until = match end {
            End::Lost => Deadline::passed(),
            End::Drain | End::Deadline => Deadline::default(),
        };
        if matches!(end, End::Deadline) {
            let until = until.clone();
            self.threads.push(thread::spawn(move || until.pass()));
        }
        let keys = self.table.keys();
        let revoked = self.table.revoke(&keys, &until);
        assert_eq!(revoked.len(), self.worlds.len());
        for lane in &revoked {
            assert!(lane.drained || !matches!(end, End::Drain));
            let partition = lane.key.1 as usize;
            let epoch = first_epoch + partition as u64;
            self.worlds[partition].revoked(epoch, lane, !matches!(end, End::Lost));
        }
    }

    /// Assigns once more, until everything has been handled, and looks at what is left.
    fn finish(mut self, strays: i64) {
        let first = self.assign(Temper::Diligent, strays);
        for (world, epoch) in self.worlds.iter().zip(first..) {
            let start = world.seen().start;
            block_on(async {
                while !world.finished_by(epoch, start..world.records()) {
                    world.progressed.notified().await;
                }
            });
        }
        self.revoke(first, End::Drain);
        for world in &self.worlds {
            let seen = world.seen();
            assert_eq!(seen.committed, seen.finished.len() as i64);
            assert!(seen.finished.iter().all(|by| !by.is_empty()));
        }
        let lanes = std::mem::take(&mut *self.lanes.lock().unwrap());
        for thread in lanes.into_iter().chain(self.threads) {
            thread.join().unwrap();
        }
    }
}

/// Some assignments, each with its own lot, then a last one that ends well.
fn rebalances(partitions: i32) {
    let mut random = shuttle::rand::thread_rng();
    let mut consumer = Consumer::new(partitions, RECORDS);
    for _ in 0..random.gen_range(1..=2) {
        let (temper, end) = match random.gen_range(0..7) {
            0 => (Temper::Diligent, End::Drain),
            1 => (Temper::Diligent, End::Deadline),
            2 => (Temper::Diligent, End::Lost),
            3 => (Temper::Stuck, End::Deadline),
            4 => (Temper::Stuck, End::Lost),
            5 => (Temper::Late, End::Deadline),
            _ => (Temper::Late, End::Lost),
        };
        let epoch = consumer.assign(temper, random.gen_range(0..=2));
        for _ in 0..random.gen_range(0..=2) {
            thread::yield_now();
            consumer.commit_progress(epoch, random.gen_bool(0.7));
        }
        consumer.revoke(epoch, end);
        let sent = consumer.table.progress();
        assert!(sent.is_empty(), "a revoked lane moved an offset: {sent:?}");
    }
    consumer.finish(random.gen_range(0..=1));
}

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = shuttle::Config::new();
    // Said once per use of an atomic otherwise: shuttle makes them all sequentially consistent.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model)
}

/// Every schedule there is.
fn exhaustively(model: impl Fn() + Send + Sync + 'static) {
    let schedules = run(DfsScheduler::new(Some(SCHEDULES_MAX), false), model);
    assert!(
        (2..SCHEDULES_MAX).contains(&schedules),
        "{schedules} schedules"
    );
}

#[test]
fn rebalances_in_random_order_lose_no_record_and_move_no_offset_too_far() {
    run(RandomScheduler::new(15_000), || rebalances(1));
    run(RandomScheduler::new(5_000), || rebalances(2));
}

/// Few changes of threads, at the worst places: what a random order hardly ever meets.
#[test]
fn rebalances_with_few_and_late_switches_lose_no_record_either() {
    for depth in [2, 3, 4] {
        run(PctScheduler::new(depth, 4_000), || rebalances(1));
    }
}

/// A table with one partition, whose feeds are handed to the test.
fn bare() -> (Arc<World>, LaneTable, Feeds) {
    let feeds = Feeds::default();
    let kept = feeds.0.clone();
    let table = LaneTable::new(move |feed| kept.lock().unwrap().push_back(feed));
    (World::new(0, 2), table, feeds)
}

#[derive(Default)]
struct Feeds(Arc<std::sync::Mutex<VecDeque<LaneFeed>>>);

impl Feeds {
    fn next(&self) -> LaneFeed {
        self.0.lock().unwrap().pop_front().expect("one per epoch")
    }
}

/// A partition without records, and its feed.
fn idle() -> (PartitionKey, LaneTable, LaneFeed) {
    struct Empty;

    impl RecordSource for Empty {
        fn next_record(&mut self) -> Option<Record> {
            None
        }
    }

    let (world, table, feeds) = bare();
    table.assign(&world.key.0, 0, |_| Some(Box::new(Empty)));
    (world.key.clone(), table, feeds.next())
}

#[test]
fn a_revocation_ends_when_the_lane_finishes_in_every_order() {
    exhaustively(|| {
        let (key, table, feed) = idle();
        let lane = thread::spawn(move || drop(feed));
        let revoked = table.revoke(&[key], &Deadline::default());
        assert!(revoked[0].drained);
        lane.join().unwrap();
    });
}

#[test]
fn a_revocation_ends_at_the_deadline_when_the_lane_does_not_in_every_order() {
    exhaustively(|| {
        let (key, table, feed) = idle();
        let until = Deadline::default();
        let clock = until.clone();
        let clock = thread::spawn(move || clock.pass());
        let revoked = table.revoke(&[key], &until);
        assert!(!revoked[0].drained);
        // Told to give up: it doesn't wait for ever either.
        block_on(feed.abort().cancelled());
        clock.join().unwrap();
    });
}

#[test]
fn a_lane_that_finishes_at_the_deadline_is_drained_or_aborted_in_every_order() {
    exhaustively(|| {
        let (key, table, feed) = idle();
        let abort = feed.abort().clone();
        let lane = thread::spawn(move || drop(feed));
        let until = Deadline::default();
        let clock = until.clone();
        let clock = thread::spawn(move || clock.pass());
        let revoked = table.revoke(&[key], &until);
        assert_ne!(revoked[0].drained, abort.is_cancelled());
        lane.join().unwrap();
        clock.join().unwrap();
    });
}

#[test]
fn an_idle_lane_ends_by_its_revocation_in_every_order() {
    exhaustively(|| {
        let (key, table, mut feed) = idle();
        let lane = thread::spawn(move || {
            assert_eq!(block_on(feed.next_batch(1, BYTES_MAX)), None);
        });
        assert!(table.revoke(&[key], &Deadline::default())[0].drained);
        lane.join().unwrap();
    });
}

#[test]
fn a_fetched_record_wakes_its_lane_in_every_order() {
    exhaustively(|| {
        let (world, table, feeds) = bare();
        world.assign(&table, 1, 0);
        let mut feed = feeds.next();
        let fetching = world.clone();
        let fetcher = thread::spawn(move || fetching.fetch(1, 1));
        let batch = block_on(feed.next_batch(9, BYTES_MAX)).expect("it isn't revoked");
        assert_eq!(batch, [world.record(1)]);
        fetcher.join().unwrap();
    });
}

#[test]
fn a_stray_record_wakes_its_lane_in_every_order() {
    exhaustively(|| {
        let (world, table, feeds) = bare();
        world.assign(&table, 1, 0);
        let mut feed = feeds.next();
        let lane = thread::spawn(move || block_on(feed.next_batch(1, BYTES_MAX)));
        table.stray(&world.key, || world.record(0));
        assert_eq!(lane.join().unwrap(), Some(vec![world.record(0)]));
    });
}

#[test]
fn a_late_result_moves_no_offset_in_any_order() {
    exhaustively(|| {
        let (world, table, feeds) = bare();
        world.assign(&table, 1, 0);
        let old = feeds.next();
        // What the old lane claims, nobody has finished in the new epoch.
        let zombie = thread::spawn(move || {
            old.handled_below(2);
            old
        });
        table.revoke(&table.keys(), &Deadline::passed());
        assert!(table.progress().is_empty());
        world.unassign();
        world.assign(&table, 2, 0);
        assert!(table.progress().is_empty());
        drop(zombie.join().unwrap());
        assert!(table.progress().is_empty());
        let revoked = table.revoke(&table.keys(), &Deadline::passed());
        assert_eq!(revoked[0].unsaved, None);
    });
}

#[test]
fn a_closed_feed_takes_no_record_of_its_successor_in_any_order() {
    exhaustively(|| {
        let (world, table, feeds) = bare();
        world.assign(&table, 1, 1);
        let old = feeds.next();
        let seen = world.clone();
        let zombie = thread::spawn(move || {
            let closed = seen.seen().current != Some(1);
            let took = old.take(1, BYTES_MAX);
            assert!(!closed || took.is_empty(), "a closed feed took {took:?}");
            old
        });
        table.revoke(&table.keys(), &Deadline::passed());
        world.unassign();
        world.assign(&table, 2, 0);
        world.fetch(2, 0);
        let new = feeds.next();
        let took = new.take(9, BYTES_MAX);
        assert_eq!(took, [world.record(0), world.record(1)]);
        assert_eq!(zombie.join().unwrap().take(9, BYTES_MAX), []);
    });
}

#[test]
fn an_offset_is_never_beyond_what_its_lane_finished_in_any_order() {
    exhaustively(|| {
        let (world, table, feeds) = bare();
        world.assign(&table, 1, 0);
        world.fetch(1, 0);
        let old = feeds.next();
        let batch = old.take(9, BYTES_MAX);
        world.received(1, &batch);
        let finishing = world.clone();
        let lane = thread::spawn(move || {
            for record in batch {
                finishing.finish(1, record.offset);
                old.handled_below(record.offset + 1);
            }
            old
        });
        let sent = table.progress();
        for progress in &sent {
            world.commit(1, progress.next);
        }
        table.committed(&sent);
        let revoked = table.revoke(std::slice::from_ref(&world.key), &Deadline::passed());
        world.revoked(1, &revoked[0], true);
        // What isn't committed comes again, and what comes late changes nothing.
        world.assign(&table, 2, 0);
        let committed = world.seen().start;
        world.fetch(2, committed);
        world.received(2, &feeds.next().take(9, BYTES_MAX));
        assert_eq!(world.seen().next, 2);
        drop(lane.join().unwrap());
        assert!(table.progress().is_empty());
    });
}
