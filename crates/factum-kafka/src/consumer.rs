//! The consuming side of a group: one poll thread, one feed per assigned partition.
//!
//! The thread does nothing but serve librdkafka: it polls (so that `max.poll.interval.ms` is never
//! at the mercy of a handler, CONS-6), answers rebalances and moves offsets. Each partition's
//! records wait in librdkafka's own bounded queue until the lane asks for them: when it is full,
//! librdkafka pauses fetching that partition, and the others flow.
//!
//! **Epochs.** Every assignment of a partition makes a new [`LaneFeed`] with its own progress. After
//! a revocation nobody reads that progress any more, so a result that comes late moves no offset;
//! and the closed feed can never take a record that belongs to its successor.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::client_log::log_line;
use crate::producer::HEADERS_MAX;
use crate::{Headers, KafkaError, KafkaErrorKind, KafkaSettings, Record};

/// Stands for a header whose name can't be read.
const UNREADABLE_HEADER: &str = "\u{fffd}";
/// How long one poll may wait. Also the longest time until a stop request is seen.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// A feed looks at its queue at least this often, whatever the wake-ups do.
const FEED_RECHECK: Duration = Duration::from_secs(1);

/// Where a group that has no committed offset begins (CONS-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// At the earliest record that the topic still holds: nothing is missed. The default.
    #[default]
    Earliest,
    /// At the end: everything published before the first start is skipped for good.
    Latest,
}

/// The group side of a consumer.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// Kafka's group id.
    pub group_id: String,
    /// The topics to read; they must exist.
    pub topics: Vec<String>,
    /// Where to begin without a committed offset.
    pub start_at: StartAt,
    /// How often finished offsets are committed. Correctness doesn't depend on it.
    pub commit_interval: Duration,
    /// How long a revoked or stopping lane may take to finish its transaction.
    pub drain_deadline: Duration,
}

/// Counters of one group consumer, read at any time.
#[derive(Debug, Default)]
pub struct GroupStats {
    evictions: AtomicU64,
    assigned: AtomicU64,
    revoked: AtomicU64,
    commit_errors: AtomicU64,
}

impl GroupStats {
    /// Times that the group dropped this member because it did not poll in time.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Partitions assigned since the start.
    pub fn assigned(&self) -> u64 {
        self.assigned.load(Ordering::Relaxed)
    }

    /// Partitions revoked since the start.
    pub fn revoked(&self) -> u64 {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Offset commits that the broker refused; they are sent again.
    pub fn commit_errors(&self) -> u64 {
        self.commit_errors.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in this module panics while it holds a lock; the data stays sound either way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The source of records; `source` is `None` once the partition is revoked.
struct Queue {
    source: Option<PartitionQueue<Context>>,
    /// Records that reached the main queue before the partition's own queue was split off.
    strays: VecDeque<Record>,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            queue: Mutex::new(Queue {
                source: None,
                strays: VecDeque::new(),
            }),
            nonempty: Notify::new(),
            drain: CancellationToken::new(),
            abort: CancellationToken::new(),
            next_offset: AtomicI64::new(-1),
            finished: Mutex::new(false),
            finished_signal: Condvar::new(),
        }
    }

    fn wait_finished(&self, until: Instant) -> bool {
        let mut finished = lock(&self.finished);
        while !*finished {
            let Some(left) = until
                .checked_duration_since(Instant::now())
                .filter(|d| !d.is_zero())
            else {
                return false;
            };
            finished = self
                .finished_signal
                .wait_timeout(finished, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
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
            tokio::select! {
                () = self.shared.drain.cancelled() => return None,
                // The permit of a wake-up between `take` and here is kept by Notify.
                () = self.shared.nonempty.notified() => {}
                () = tokio::time::sleep(FEED_RECHECK) => {}
            }
        }
    }

    fn take(&self, max_records: usize, max_bytes: usize) -> Vec<Record> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut queue = lock(&self.shared.queue);
        while batch.len() < max_records && bytes < max_bytes {
            let record = match queue.strays.pop_front() {
                Some(stray) => stray,
                None => match queue.source.as_ref().and_then(|s| s.poll(Duration::ZERO)) {
                    Some(Ok(message)) => to_record(&message, &self.topic),
                    // Partition-level errors (e.g. end of partition) repeat on the main queue when
                    // they matter; the next poll goes on.
                    Some(Err(_)) => continue,
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

pub(crate) fn to_record(message: &BorrowedMessage<'_>, topic: &Arc<str>) -> Record {
    let mut headers = Headers::default();
    if let Some(from) = message.headers() {
        let count = from.count().min(HEADERS_MAX);
        headers = Headers::with_capacity(count);
        for index in 0..count {
            let (name, value) = readable(|| from.try_get(index));
            headers.push(name, value);
        }
    }
    Record {
        topic: topic.clone(),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
        timestamp_ms: message.timestamp().to_millis(),
    }
}

/// A header's name and value. The client library panics on a name that isn't UTF-8; such a record
/// must not end its lane (listing fault 5), so that header alone is replaced.
fn readable<'a>(
    read: impl FnOnce() -> Option<Header<'a, &'a [u8]>>,
) -> (&'a str, Option<&'a [u8]>) {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)) {
        Ok(Some(header)) => (header.key, header.value),
        Ok(None) | Err(_) => (UNREADABLE_HEADER, None),
    }
}

/// An assigned partition as the poll thread sees it.
struct Lane {
    shared: Arc<Shared>,
    /// The offset that the broker last accepted, or -1.
    committed: i64,
}

type PartitionKey = (Arc<str>, i32);

struct Lanes {
    live: HashMap<PartitionKey, Lane>,
    epoch: u64,
    spawn: Box<dyn FnMut(LaneFeed) + Send>,
}

/// librdkafka's callbacks. All of them run on the poll thread, inside `poll`.
struct Context {
    consumer: OnceLock<Weak<BaseConsumer<Context>>>,
    lanes: Mutex<Lanes>,
    stats: Arc<GroupStats>,
    drain_deadline: Duration,
    group_id: String,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    // Errors come through `poll`, where `Poller` says what they mean.
    fn error(&self, _error: ClientError, _reason: &str) {}
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            // Before the assignment takes effect, so that no record of the partition reaches the
            // main queue first.
            Rebalance::Assign(list) => self.assign(list),
            Rebalance::Revoke(list) => {
                let keys = list
                    .elements()
                    .iter()
                    .map(|e| (Arc::from(e.topic()), e.partition()))
                    .collect::<Vec<PartitionKey>>();
                self.revoke(consumer, &keys, consumer.assignment_lost());
            }
            Rebalance::Error(error) => {
                tracing::error!(group = %self.group_id, %error, "the rebalance failed; librdkafka joins again");
            }
        }
    }
}

impl Context {
    fn assign(&self, list: &TopicPartitionList) {
        // During the consumer's destruction there is nobody left to feed.
        let Some(consumer) = self.consumer.get().and_then(Weak::upgrade) else {
            return;
        };
        let mut lanes = lock(&self.lanes);
        for element in list.elements() {
            let topic: Arc<str> = Arc::from(element.topic());
            let partition = element.partition();
            let Some(mut source) = consumer.split_partition_queue(&topic, partition) else {
                tracing::error!(group = %self.group_id, %topic, partition, "librdkafka has no queue for an assigned partition");
                continue;
            };
            let shared = Arc::new(Shared::new());
            let waker = Arc::downgrade(&shared);
            source.set_nonempty_callback(move || {
                if let Some(shared) = waker.upgrade() {
                    shared.nonempty.notify_one();
                }
            });
            lock(&shared.queue).source = Some(source);
            lanes.epoch += 1;
            let feed = LaneFeed {
                topic: topic.clone(),
                partition,
                epoch: lanes.epoch,
                shared: shared.clone(),
            };
            tracing::info!(group = %self.group_id, %topic, partition, epoch = feed.epoch, "partition assigned");
            lanes.live.insert(
                (topic, partition),
                Lane {
                    shared,
                    committed: -1,
                },
            );
            self.stats.assigned.fetch_add(1, Ordering::Relaxed);
            (lanes.spawn)(feed);
        }
    }

    /// Drains the lanes to the deadline, closes their feeds for good, commits what they finished.
    fn revoke(&self, consumer: &BaseConsumer<Self>, keys: &[PartitionKey], lost: bool) {
        let revoked: Vec<(PartitionKey, Lane)> = {
            let mut lanes = lock(&self.lanes);
            keys.iter()
                .filter_map(|key| lanes.live.remove_entry(key))
                .collect()
        };
        if revoked.is_empty() {
            return;
        }
        for (_, lane) in &revoked {
            lane.shared.drain.cancel();
        }
        // A lost partition may already have another owner: waiting would only delay the rejoin.
        let drain = if lost {
            Duration::ZERO
        } else {
            self.drain_deadline
        };
        let until = Instant::now() + drain;
        for ((topic, partition), lane) in &revoked {
            if !lane.shared.wait_finished(until) {
                tracing::warn!(group = %self.group_id, %topic, partition, lost,
                    "the lane did not finish before the drain deadline; its transaction is given up and its records come again");
                lane.shared.abort.cancel();
            }
            // From here on this lane can take no record and, having left `live`, move no offset.
            lock(&lane.shared.queue).source = None;
            tracing::info!(group = %self.group_id, %topic, partition, lost, "partition revoked");
        }
        self.stats
            .revoked
            .fetch_add(revoked.len() as u64, Ordering::Relaxed);
        if lost {
            return;
        }
        let mut list = TopicPartitionList::new();
        for ((topic, partition), lane) in &revoked {
            let next = lane.shared.next_offset.load(Ordering::Acquire);
            if next > lane.committed {
                add_offset(&mut list, topic, *partition, next);
            }
        }
        if list.count() > 0 {
            self.commit(consumer, &list);
        }
    }

    /// Commits what the lanes have finished since the last time. Waits for the broker's answer: a
    /// refusal (a rebalance is going on) reaches nobody otherwise, and the lanes don't wait.
    fn commit_progress(&self, consumer: &BaseConsumer<Self>) {
        let mut list = TopicPartitionList::new();
        let mut sent = Vec::new();
        for (key, lane) in &lock(&self.lanes).live {
            let next = lane.shared.next_offset.load(Ordering::Acquire);
            if next > lane.committed {
                add_offset(&mut list, &key.0, key.1, next);
                sent.push((key.clone(), next));
            }
        }
        if sent.is_empty() || !self.commit(consumer, &list) {
            return;
        }
        let mut lanes = lock(&self.lanes);
        for (key, next) in sent {
            if let Some(lane) = lanes.live.get_mut(&key) {
                lane.committed = next;
            }
        }
    }

    fn commit(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) -> bool {
        match consumer.commit(list, CommitMode::Sync) {
            Ok(()) => true,
            Err(error) => {
                self.stats.commit_errors.fetch_add(1, Ordering::Relaxed);
                tracing::info!(group = %self.group_id, %error,
                    "offsets were not committed; they are sent again, or their records come again as duplicates");
                false
            }
        }
    }

    /// A record on the main queue: it was fetched before its partition's queue was split off.
    fn stray(&self, message: &BorrowedMessage<'_>) {
        let lanes = lock(&self.lanes);
        let key = (Arc::from(message.topic()), message.partition());
        if let Some(lane) = lanes.live.get(&key) {
            lock(&lane.shared.queue)
                .strays
                .push_back(to_record(message, &key.0));
            lane.shared.nonempty.notify_one();
        }
        // Without a lane the partition isn't ours any more: its next owner gets the record.
    }
}

fn add_offset(list: &mut TopicPartitionList, topic: &str, partition: i32, next: i64) {
    // Fails for offsets that no broker can have made (negative ones).
    if let Err(error) = list.add_partition_offset(topic, partition, Offset::Offset(next)) {
        tracing::error!(topic, partition, %error, "an offset could not be written down");
    }
}

/// A member of a consumer group, with its poll thread.
///
/// It is stopped by [`stop`](Self::stop). Dropping it asks the thread to stop and doesn't wait.
pub struct GroupConsumer {
    stop: Arc<AtomicBool>,
    failed: CancellationToken,
    failure: Arc<Mutex<Option<KafkaError>>>,
    stats: Arc<GroupStats>,
    closed: oneshot::Receiver<()>,
}

impl std::fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupConsumer")
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl GroupConsumer {
    /// Joins the group. `spawn` is called on the poll thread for every assigned partition; it must
    /// hand the feed to a task and return at once.
    ///
    /// # Errors
    /// The settings don't make a consumer (a property librdkafka doesn't know, a bad value).
    pub fn start(
        settings: &KafkaSettings,
        group: &GroupSettings,
        spawn: impl FnMut(LaneFeed) + Send + 'static,
    ) -> Result<GroupConsumer, KafkaError> {
        let stats = Arc::new(GroupStats::default());
        let context = Context {
            consumer: OnceLock::new(),
            lanes: Mutex::new(Lanes {
                live: HashMap::new(),
                epoch: 0,
                spawn: Box::new(spawn),
            }),
            stats: stats.clone(),
            drain_deadline: group.drain_deadline,
            group_id: group.group_id.clone(),
        };
        let mut config = rdkafka::ClientConfig::new();
        for (key, value) in [
            ("session.timeout.ms", "10000"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            // Per partition: what one slow lane may hold in memory.
            ("queued.min.messages", "20000"),
            ("queued.max.messages.kbytes", "16384"),
            // The default of a second would leave a lane empty after every full queue.
            ("fetch.queue.backoff.ms", "5"),
            ("fetch.wait.max.ms", "500"),
        ] {
            config.set(key, value);
        }
        for (key, value) in settings.consumer_config().config_map() {
            config.set(key, value);
        }
        for (key, value) in [
            ("group.id", group.group_id.as_str()),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("allow.auto.create.topics", "false"),
            (
                "auto.offset.reset",
                match group.start_at {
                    StartAt::Earliest => "earliest",
                    StartAt::Latest => "latest",
                },
            ),
        ] {
            config.set(key, value);
        }
        let consumer: BaseConsumer<Context> = config
            .create_with_context(context)
            .map_err(|error| KafkaError::new("starting the consumer", settings, &error, None))?;
        let consumer = Arc::new(consumer);
        // Set once, right here: `set` can't fail.
        let _ = consumer.context().consumer.set(Arc::downgrade(&consumer));
        let topics: Vec<&str> = group.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| {
            KafkaError::new("subscribing to the topics", settings, &error, None)
        })?;

        let stop = Arc::new(AtomicBool::new(false));
        let failed = CancellationToken::new();
        let failure = Arc::new(Mutex::new(None));
        let poller = Poller {
            consumer,
            settings: settings.clone(),
            commit_interval: group.commit_interval,
            stop: stop.clone(),
            failed: failed.clone(),
            failure: failure.clone(),
        };
        let (closing, closed) = oneshot::channel();
        std::thread::Builder::new()
            .name(format!("factum-poll-{}", group.group_id))
            .spawn(move || {
                poller.run();
                // Nobody listens after a drop without stop.
                let _ = closing.send(());
            })
            .map_err(|error| {
                let cause = format!("the operating system gave no thread: {error}");
                KafkaError::told(
                    KafkaErrorKind::Other,
                    "starting the consumer",
                    settings,
                    cause,
                )
            })?;
        Ok(GroupConsumer {
            stop,
            failed,
            failure,
            stats,
            closed,
        })
    }

    /// The counters.
    pub fn stats(&self) -> Arc<GroupStats> {
        self.stats.clone()
    }

    /// Waits until the client fails for good; everything short of that is mended by librdkafka.
    pub async fn failed(&self) -> Option<KafkaError> {
        self.failed.cancelled().await;
        lock(&self.failure).take()
    }

    /// Drains the lanes to their deadline, commits their offsets, leaves the group.
    ///
    /// Returns `false` when the thread was still busy after `limit`: it is left behind, so that a
    /// hanging client library can't hang the service's shutdown.
    pub async fn stop(mut self, limit: Duration) -> bool {
        self.stop.store(true, Ordering::Release);
        tokio::time::timeout(limit, &mut self.closed).await.is_ok()
    }
}

impl Drop for GroupConsumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

struct Poller {
    consumer: Arc<BaseConsumer<Context>>,
    settings: KafkaSettings,
    commit_interval: Duration,
    stop: Arc<AtomicBool>,
    failed: CancellationToken,
    failure: Arc<Mutex<Option<KafkaError>>>,
}

impl Poller {
    fn run(self) {
        let context = self.consumer.context();
        let mut last_commit = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            match self.consumer.poll(POLL_WAIT) {
                None => {}
                Some(Ok(message)) => context.stray(&message),
                Some(Err(error)) if self.is_fatal(&error) => break,
                Some(Err(_)) => {}
            }
            if last_commit.elapsed() >= self.commit_interval {
                last_commit = Instant::now();
                context.commit_progress(&self.consumer);
            }
        }
        let keys: Vec<PartitionKey> = lock(&context.lanes).live.keys().cloned().collect();
        context.revoke(&self.consumer, &keys, self.failed.is_cancelled());
        // Dropping the last reference closes the consumer: it leaves the group.
    }

    /// Says what a client error means. Only a fatal one ends the consumer.
    fn is_fatal(&self, error: &ClientError) -> bool {
        let context = self.consumer.context();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::PollExceeded) => {
                context.stats.evictions.fetch_add(1, Ordering::Relaxed);
                tracing::error!(group = %context.group_id,
                    "the group dropped this member: it did not poll within max.poll.interval.ms; its lanes stop and it joins again");
                false
            }
            _ if self.consumer.client().fatal_error().is_some()
                || matches!(error, ClientError::MessageConsumptionFatal(_)) =>
            {
                *lock(&self.failure) =
                    Some(KafkaError::new("consuming", &self.settings, error, None));
                self.failed.cancel();
                true
            }
            _ => {
                tracing::warn!(group = %context.group_id, %error, "the Kafka client reported a problem; it goes on");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new())
    }

    fn feed(shared: &Arc<Shared>) -> LaneFeed {
        LaneFeed {
            topic: Arc::from("t"),
            partition: 0,
            epoch: 1,
            shared: shared.clone(),
        }
    }

    /// 2^53 + 1: as a float it is 2^53, and the consumer would go back one record for ever.
    const BEYOND_DOUBLE: i64 = 9_007_199_254_740_993;

    #[test]
    fn listing_fault_11_offsets_beyond_2_to_the_53_are_exact() {
        let shared = shared();
        feed(&shared).handled_below(BEYOND_DOUBLE);
        let next = shared.next_offset.load(Ordering::Acquire);
        let mut list = TopicPartitionList::new();
        add_offset(&mut list, "t", 0, next);
        let element = list.find_partition("t", 0).expect("it was added just now");
        assert_eq!(element.offset(), Offset::Offset(BEYOND_DOUBLE));
    }

    #[test]
    fn listing_fault_05_a_header_name_that_panics_the_client_is_replaced() {
        let good = Header {
            key: "event-id",
            value: Some(&b"1"[..]),
        };
        assert_eq!(readable(|| Some(good)), ("event-id", Some(&b"1"[..])));
        let bad = readable(|| panic!("a name that isn't UTF-8"));
        assert_eq!(bad, (UNREADABLE_HEADER, None));
    }

    #[test]
    fn an_offset_never_goes_back() {
        let shared = shared();
        let feed = feed(&shared);
        feed.handled_below(10);
        feed.handled_below(7);
        assert_eq!(shared.next_offset.load(Ordering::Acquire), 10);
    }

    #[test]
    fn a_dropped_feed_ends_the_wait_for_its_lane() {
        let shared = shared();
        assert!(
            !shared.wait_finished(Instant::now()),
            "the lane is still at work"
        );
        drop(feed(&shared));
        assert!(shared.wait_finished(Instant::now() + Duration::from_secs(60)));
    }

    #[tokio::test]
    async fn a_draining_feed_gives_no_more_records() {
        let shared = shared();
        lock(&shared.queue).strays.push_back(Record {
            topic: Arc::from("t"),
            partition: 0,
            offset: 1,
            key: None,
            value: None,
            headers: Headers::default(),
            timestamp_ms: None,
        });
        shared.drain.cancel();
        assert_eq!(feed(&shared).next_batch(10, 1000).await, None);
    }
}
