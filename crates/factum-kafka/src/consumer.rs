//! The consuming side of a group: one poll thread, one feed per assigned partition.
//!
//! The thread does nothing but serve librdkafka: it polls (so that `max.poll.interval.ms` is never
//! at the mercy of a handler, CONS-6), answers rebalances and moves offsets. Each partition's
//! records wait in librdkafka's own bounded queue until the lane asks for them: when it is full,
//! librdkafka pauses fetching that partition, and the others flow.
//! What the lanes share with the thread, and what an epoch is, stands in `lanes.rs`, which knows
//! nothing of librdkafka.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use factum_fault::Point;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::client_log::log_line;
use crate::lanes::{LaneFeed, LaneTable, PartitionKey, RecordSource};
use crate::producer::HEADERS_MAX;
use crate::sync::{Deadline, lock};
use crate::{Headers, KafkaError, KafkaErrorKind, KafkaSettings, Record};

/// Stands for a header whose name can't be read.
const UNREADABLE_HEADER: &str = "\u{fffd}";
/// How long one poll may wait. Also the longest time until a stop request is seen.
const POLL_WAIT: Duration = Duration::from_millis(100);

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

/// One partition's own queue in librdkafka, as the source of its lane.
struct PartitionSource {
    topic: Arc<str>,
    queue: PartitionQueue<Context>,
}

impl RecordSource for PartitionSource {
    fn next_record(&mut self) -> Option<Record> {
        loop {
            // Partition-level errors (e.g. end of partition) repeat on the main queue when
            // they matter; the next poll goes on.
            if let Ok(message) = self.queue.poll(Duration::ZERO)? {
                return Some(to_record(&message, &self.topic));
            }
        }
    }
}

/// librdkafka's callbacks. All of them run on the poll thread, inside `poll`.
struct Context {
    consumer: OnceLock<Weak<BaseConsumer<Context>>>,
    lanes: LaneTable,
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
        for element in list.elements() {
            let topic: Arc<str> = Arc::from(element.topic());
            let partition = element.partition();
            let epoch = self.lanes.assign(&topic, partition, |wake| {
                let mut queue = consumer.split_partition_queue(&topic, partition)?;
                queue.set_nonempty_callback(move || wake.wake());
                Some(Box::new(PartitionSource {
                    topic: topic.clone(),
                    queue,
                }))
            });
            match epoch {
                Some(epoch) => {
                    tracing::info!(group = %self.group_id, %topic, partition, epoch, "partition assigned");
                    self.stats.assigned.fetch_add(1, Ordering::Relaxed);
                }
                None => {
                    tracing::error!(group = %self.group_id, %topic, partition, "librdkafka has no queue for an assigned partition");
                }
            }
        }
    }

    /// Drains the lanes to the deadline, closes their feeds for good, commits what they finished.
    fn revoke(&self, consumer: &BaseConsumer<Self>, keys: &[PartitionKey], lost: bool) {
        // A lost partition may already have another owner: waiting would only delay the rejoin.
        let drain = if lost {
            Duration::ZERO
        } else {
            self.drain_deadline
        };
        let revoked = self.lanes.revoke(keys, &Deadline::after(drain));
        if revoked.is_empty() {
            return;
        }
        for lane in &revoked {
            let (topic, partition) = (&lane.key.0, lane.key.1);
            if !lane.drained {
                tracing::warn!(group = %self.group_id, %topic, partition, lost,
                    "the lane did not finish before the drain deadline; its transaction is given up and its records come again");
            }
            tracing::info!(group = %self.group_id, %topic, partition, lost, "partition revoked");
        }
        self.stats
            .revoked
            .fetch_add(revoked.len() as u64, Ordering::Relaxed);
        if lost {
            return;
        }
        let mut list = TopicPartitionList::new();
        for lane in &revoked {
            if let Some(next) = lane.unsaved {
                add_offset(&mut list, &lane.key.0, lane.key.1, next);
            }
        }
        if list.count() > 0 {
            self.commit(consumer, &list);
        }
    }

    /// Commits what the lanes have finished since the last time. Waits for the broker's answer: a
    /// refusal (a rebalance is going on) reaches nobody otherwise, and the lanes don't wait.
    fn commit_progress(&self, consumer: &BaseConsumer<Self>) {
        let sent = self.lanes.progress();
        let mut list = TopicPartitionList::new();
        for progress in &sent {
            add_offset(&mut list, &progress.key.0, progress.key.1, progress.next);
        }
        if sent.is_empty() || !self.commit(consumer, &list) {
            return;
        }
        self.lanes.committed(&sent);
    }

    fn commit(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) -> bool {
        factum_fault::at(Point::OffsetCommitBefore);
        let answer = consumer.commit(list, CommitMode::Sync);
        factum_fault::at(Point::OffsetCommitAfter);
        match answer {
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
        let key = (Arc::from(message.topic()), message.partition());
        self.lanes.stray(&key, || to_record(message, &key.0));
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
            lanes: LaneTable::new(spawn),
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
        context.revoke(
            &self.consumer,
            &context.lanes.keys(),
            self.failed.is_cancelled(),
        );
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

    struct Empty;

    impl RecordSource for Empty {
        fn next_record(&mut self) -> Option<Record> {
            None
        }
    }

    fn key() -> PartitionKey {
        (Arc::from("t"), 0)
    }

    /// A table with one lane, and its feed.
    fn lane() -> (LaneTable, LaneFeed) {
        let (spawn, spawned) = std::sync::mpsc::channel();
        let table = LaneTable::new(move |feed| spawn.send(feed).expect("the test waits for it"));
        let (topic, partition) = key();
        table.assign(&topic, partition, |_| Some(Box::new(Empty)));
        (table, spawned.recv().expect("a lane for the partition"))
    }

    fn next_offset(table: &LaneTable) -> Option<i64> {
        table.progress().first().map(|progress| progress.next)
    }

    fn now() -> Deadline {
        Deadline::after(Duration::ZERO)
    }

    /// 2^53 + 1: as a float it is 2^53, and the consumer would go back one record for ever.
    const BEYOND_DOUBLE: i64 = 9_007_199_254_740_993;

    #[test]
    fn listing_fault_11_offsets_beyond_2_to_the_53_are_exact() {
        let (table, feed) = lane();
        feed.handled_below(BEYOND_DOUBLE);
        let next = next_offset(&table).expect("it was finished just now");
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

    proptest::proptest! {
        #[test]
        fn an_offset_never_goes_back(
            calls in proptest::collection::vec((0_i64..1_000, proptest::bool::ANY), 1..50),
        ) {
            let (table, feed) = lane();
            let mut highest = -1;
            let mut accepted = -1;
            for (offset, commit) in calls {
                feed.handled_below(offset);
                highest = highest.max(offset);
                let progress = table.progress();
                proptest::prop_assert_eq!(
                    progress.first().map(|progress| progress.next),
                    (highest > accepted).then_some(highest)
                );
                if commit {
                    table.committed(&progress);
                    accepted = highest;
                }
            }
        }
    }

    #[test]
    fn a_dropped_feed_ends_the_wait_for_its_lane() {
        let (table, feed) = lane();
        let revoked = table.revoke(&[key()], &now());
        assert!(!revoked[0].drained, "the lane is still at work");
        assert!(feed.abort().is_cancelled());

        let (table, feed) = lane();
        drop(feed);
        let minute = Deadline::after(Duration::from_secs(60));
        assert!(table.revoke(&[key()], &minute)[0].drained);
        assert!(table.revoke(&[key()], &minute).is_empty(), "once");
    }

    #[tokio::test]
    async fn a_draining_feed_gives_no_more_records() {
        let (table, mut feed) = lane();
        let record = || Record {
            topic: key().0,
            partition: 0,
            offset: 1,
            key: None,
            value: None,
            headers: Headers::default(),
            timestamp_ms: None,
        };
        table.stray(&key(), record);
        assert_eq!(feed.next_batch(10, 1000).await, Some(vec![record()]));
        table.stray(&key(), record);
        table.revoke(&[key()], &now());
        assert_eq!(feed.next_batch(10, 1000).await, None);
    }
}
