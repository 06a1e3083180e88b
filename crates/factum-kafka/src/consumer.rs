//! The consuming side of a group: one poll thread, one feed per assigned partition.
//!
//! The thread does nothing but serve librdkafka: it polls (so that `max.poll.interval.ms` is never
//! at the mercy of a handler, CONS-6), answers rebalances and moves offsets. Each partition's
//! records wait in librdkafka's own bounded queue until the lane asks for them: when it is full,
//! librdkafka pauses fetching that partition, and the others flow.
//! What the lanes share with the thread, and what an epoch is, stands in `lanes.rs`, which knows
//! nothing of librdkafka.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use factum_fault::Point;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, RebalanceProtocol,
};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::client_log::log_line;
use crate::gap::{Gap, GapPolicy, Position, begin};
use crate::lanes::{LaneFeed, LaneTable, PartitionKey, RecordSource};
use crate::producer::HEADERS_MAX;
use crate::sync::{Deadline, lock};
use crate::topology::partitions_of;
use crate::{GroupProtocol, Headers, KafkaError, KafkaErrorKind, KafkaSettings, Record};

/// Stands for a header whose name can't be read.
const UNREADABLE_HEADER: &str = "\u{fffd}";
/// How long one poll may wait. Also the longest time until a stop request is seen.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// How long the poll thread waits for one answer about offsets: with many partitions it asks often, and
/// what was not answered is asked for again.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// The pause after a question that was not answered.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// For so long every answer must say that a topic or a record is gone: a broker that has just started,
/// or that leads since a moment, may not know it yet.
const GONE_FOR: Duration = Duration::from_secs(3);

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
    /// Where a group begins that has no committed offset in a topic.
    pub start_at: StartAt,
    /// What to do when records are gone that the group has not read.
    pub on_gap: GapPolicy,
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
    gaps: AtomicU64,
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

    /// Gaps behind which this member went on, see [`GapPolicy::Earliest`].
    pub fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Relaxed)
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
    partition: i32,
    assignment: u64,
    queue: PartitionQueue<Context>,
    /// The offset after the last record.
    next: Option<i64>,
    stalled: Arc<Mutex<Vec<Stalled>>>,
}

/// A partition that librdkafka stopped reading: what was to be read next is not there.
struct Stalled {
    key: PartitionKey,
    /// The assignment that stalled: a later one knows better.
    assignment: u64,
    next: Option<i64>,
}

impl RecordSource for PartitionSource {
    fn next_record(&mut self) -> Option<Record> {
        loop {
            match self.queue.poll(Duration::ZERO)? {
                Ok(message) => {
                    self.next = Some(message.offset() + 1);
                    return Some(to_record(&message, &self.topic));
                }
                Err(error)
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset) =>
                {
                    lock(&self.stalled).push(Stalled {
                        key: (self.topic.clone(), self.partition),
                        assignment: self.assignment,
                        next: self.next,
                    });
                }
                // Partition-level errors (e.g. end of partition) repeat on the main queue when
                // they matter; the next poll goes on.
                Err(_) => {}
            }
        }
    }
}

/// What the poll thread knows of the offsets of the partitions that it has.
#[derive(Default)]
struct Offsets {
    /// The number of the last assignment.
    assignments: u64,
    /// The assignment of each partition.
    assignment: HashMap<PartitionKey, u64>,
    /// The offset that the brokers had last of each partition that this member has or had: it goes
    /// back only when its topic was made anew.
    accepted: HashMap<PartitionKey, i64>,
    /// Where the group begins, not yet written down.
    starts: BTreeMap<PartitionKey, i64>,
    /// Partitions whose offset at the brokers went back, with the one that they had.
    replaced: HashMap<PartitionKey, i64>,
}

/// librdkafka's callbacks. All of them run on the poll thread, inside `poll`.
struct Context {
    consumer: OnceLock<Weak<BaseConsumer<Context>>>,
    lanes: LaneTable,
    stats: Arc<GroupStats>,
    drain_deadline: Duration,
    group_id: String,
    start_at: StartAt,
    offsets: Mutex<Offsets>,
    stalled: Arc<Mutex<Vec<Stalled>>>,
    /// Whether some topic may be gone.
    in_doubt: AtomicBool,
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
            Rebalance::Assign(list) => {
                self.choose_beginnings(consumer, list);
                self.assign(list);
            }
            Rebalance::Revoke(list) => {
                let keys = list
                    .elements()
                    .iter()
                    .map(|e| (Arc::from(e.topic()), e.partition()))
                    .collect::<Vec<PartitionKey>>();
                self.revoke(consumer, &keys, consumer.assignment_lost());
                // Perhaps because their topic is gone: the brokers don't always say so.
                self.in_doubt.store(true, Ordering::Relaxed);
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
            let assignment = {
                let mut offsets = lock(&self.offsets);
                offsets.assignments += 1;
                let assignment = offsets.assignments;
                offsets
                    .assignment
                    .insert((topic.clone(), partition), assignment);
                assignment
            };
            let epoch = self.lanes.assign(&topic, partition, |wake| {
                let mut queue = consumer.split_partition_queue(&topic, partition)?;
                queue.set_nonempty_callback(move || wake.wake());
                Some(Box::new(PartitionSource {
                    topic: topic.clone(),
                    partition,
                    assignment,
                    queue,
                    next: None,
                    stalled: self.stalled.clone(),
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
        if !lost {
            let unsaved: Vec<(PartitionKey, i64)> = revoked
                .iter()
                .filter_map(|lane| Some((lane.key.clone(), lane.unsaved?)))
                .collect();
            self.commit(consumer, &unsaved);
        }
        let mut offsets = lock(&self.offsets);
        for lane in &revoked {
            offsets.assignment.remove(&lane.key);
        }
    }

    /// Commits what the lanes have finished since the last time. Waits for the broker's answer: a
    /// refusal (a rebalance is going on) reaches nobody otherwise, and the lanes don't wait.
    fn commit_progress(&self, consumer: &BaseConsumer<Self>) {
        self.commit_starts(consumer);
        let sent = self.lanes.progress();
        let list: Vec<(PartitionKey, i64)> = sent
            .iter()
            .map(|progress| (progress.key.clone(), progress.next))
            .collect();
        if self.commit(consumer, &list) {
            self.lanes.committed(&sent);
        }
    }

    /// Whether there was something to commit, and the brokers took all of it.
    ///
    /// A topic that is deleted takes its groups' offsets along. So the brokers are asked first whether
    /// they still have what they took: if the topic was made anew behind our back, a commit would hide
    /// that its first records were never read.
    fn commit(&self, consumer: &BaseConsumer<Self>, offsets: &[(PartitionKey, i64)]) -> bool {
        if offsets.is_empty() {
            return false;
        }
        let mut list = TopicPartitionList::new();
        for ((topic, partition), _) in offsets {
            list.add_partition(topic, *partition);
        }
        let there = match consumer.committed_offsets(list, ASK_LIMIT) {
            Ok(there) => offsets_of(&there),
            Err(error) => {
                self.not_committed(&error);
                return false;
            }
        };
        let mut list = TopicPartitionList::new();
        let mut known = lock(&self.offsets);
        for (key, next) in offsets {
            let accepted = known.accepted.get(key).copied();
            if let Some(accepted) = accepted.filter(|accepted| there.get(key) < Some(accepted)) {
                known.replaced.insert(key.clone(), accepted);
            } else {
                add_offset(&mut list, &key.0, key.1, *next);
            }
        }
        drop(known);
        if list.count() == 0 {
            return false;
        }
        factum_fault::at(Point::OffsetCommitBefore);
        let is_written = self.send_commit(consumer, &list);
        factum_fault::at(Point::OffsetCommitAfter);
        if !is_written {
            return false;
        }
        let mut known = lock(&self.offsets);
        for (key, offset) in offsets_of(&list) {
            known.starts.remove(&key);
            known.accepted.insert(key, offset);
        }
        list.count() == offsets.len()
    }

    fn send_commit(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) -> bool {
        match consumer.commit(list, CommitMode::Sync) {
            Ok(()) => true,
            Err(error) => {
                self.not_committed(&error);
                false
            }
        }
    }

    fn not_committed(&self, error: &ClientError) {
        self.stats.commit_errors.fetch_add(1, Ordering::Relaxed);
        tracing::info!(group = %self.group_id, %error,
            "offsets were not committed; they are sent again, or their records come again as duplicates");
    }

    /// Sets the offsets at which a group begins that has none, in a list that is about to be
    /// assigned. What can't be found out in time is left to [`Poller::mend`].
    fn choose_beginnings(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let keys: Vec<PartitionKey> = list
            .elements()
            .iter()
            .map(|e| (Arc::from(e.topic()), e.partition()))
            .collect();
        if keys.is_empty() {
            return;
        }
        let found = match self.look_up(consumer, &keys) {
            Ok(found) => found,
            Err(error) => {
                tracing::info!(group = %self.group_id, %error,
                    "the group's offsets could not be read yet; they are asked for again");
                return;
            }
        };
        for (mut element, key) in list.elements().into_iter().zip(&keys) {
            // The client library reads those that the brokers have by itself, and stalls at a gap, which
            // the poller mends.
            let Some(found) = found
                .get(key)
                .filter(|found| !found.is_written && !found.is_gap)
            else {
                continue;
            };
            if let Err(error) = element.set_offset(Offset::Offset(found.begin)) {
                tracing::error!(topic = %key.0, partition = key.1, %error, "an offset could not be written down");
            }
        }
        self.commit_starts(consumer);
    }

    /// Asks the brokers where these partitions would be read from. Where the group is new, the
    /// beginnings of all partitions of the topic are noted, to be committed: a restart must not find
    /// another end of the topic, and a partition that is added later must be told from them.
    fn look_up(
        &self,
        consumer: &BaseConsumer<Self>,
        keys: &[PartitionKey],
    ) -> Result<HashMap<PartitionKey, Found>, ClientError> {
        let topics: BTreeSet<&Arc<str>> = keys.iter().map(|(topic, _)| topic).collect();
        let mut list = TopicPartitionList::new();
        for topic in &topics {
            let partitions = partitions_of(consumer.client(), topic, ASK_LIMIT)?.unwrap_or(0);
            for partition in 0..i32::try_from(partitions).unwrap_or(i32::MAX) {
                list.add_partition(topic, partition);
            }
        }
        let all: Vec<PartitionKey> = list
            .elements()
            .iter()
            .map(|e| (Arc::from(e.topic()), e.partition()))
            .collect();
        let written = offsets_of(&consumer.committed_offsets(list, ASK_LIMIT)?);
        let mut offsets = lock(&self.offsets);
        // What is about to be written counts.
        let mut committed = offsets.starts.clone();
        committed.extend(written.iter().map(|(key, offset)| (key.clone(), *offset)));
        let known: BTreeSet<Arc<str>> = committed.keys().map(|(topic, _)| topic.clone()).collect();
        let mut found = HashMap::new();
        for key in all {
            let is_new = !known.contains(&key.0);
            let is_mine = keys.contains(&key);
            // The beginning of another member's partition matters only when all are fixed at once.
            if !is_mine && !is_new {
                continue;
            }
            let (low, high) = consumer.fetch_watermarks(&key.0, key.1, ASK_LIMIT)?;
            let position = Position {
                expected: committed.get(&key).copied(),
                is_new,
                low,
                high,
            };
            let (begin, is_gap) = begin(position, self.start_at);
            let is_written = written.contains_key(&key);
            found.insert(
                key,
                Found {
                    position,
                    is_written,
                    begin,
                    is_gap,
                },
            );
        }
        for (key, found) in &found {
            let accepted = offsets.accepted.get(key).copied();
            let went_back = accepted.filter(|accepted| written.get(key) < Some(accepted));
            match (went_back, found.position.expected) {
                (Some(accepted), _) if keys.contains(key) => {
                    offsets.replaced.insert(key.clone(), accepted);
                }
                (_, Some(offset)) if found.is_written => {
                    offsets.accepted.insert(key.clone(), offset);
                }
                // Nothing is before offset 0: a group that has finished nothing has no offset then.
                (_, None)
                    if !found.is_gap && (found.begin > 0 || self.start_at == StartAt::Latest) =>
                {
                    offsets.starts.insert(key.clone(), found.begin);
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Writes down where the group begins, where nobody else has.
    fn commit_starts(&self, consumer: &BaseConsumer<Self>) {
        let starts = lock(&self.offsets).starts.clone();
        if starts.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::new();
        for (topic, partition) in starts.keys() {
            list.add_partition(topic, *partition);
        }
        let mut written = match consumer.committed_offsets(list, ASK_LIMIT) {
            Ok(there) => offsets_of(&there),
            Err(error) => return self.not_committed(&error),
        };
        let mut list = TopicPartitionList::new();
        for (key, start) in starts {
            if let Entry::Vacant(unwritten) = written.entry(key) {
                let (topic, partition) = unwritten.key();
                add_offset(&mut list, topic, *partition, start);
                unwritten.insert(start);
            }
        }
        if list.count() > 0 && !self.send_commit(consumer, &list) {
            return;
        }
        let mut offsets = lock(&self.offsets);
        offsets.starts.clear();
        for (key, offset) in written {
            if offsets.assignment.contains_key(&key) {
                offsets.accepted.entry(key).or_insert(offset);
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

/// Where a partition would be read from.
#[derive(Debug, Clone, Copy)]
struct Found {
    position: Position,
    /// Whether the brokers have the expected offset.
    is_written: bool,
    begin: i64,
    is_gap: bool,
}

/// The offsets of a list; those that are none left out.
fn offsets_of(list: &TopicPartitionList) -> HashMap<PartitionKey, i64> {
    list.elements()
        .iter()
        .filter_map(|element| match element.offset() {
            Offset::Offset(offset) => {
                Some(((Arc::from(element.topic()), element.partition()), offset))
            }
            _ => None,
        })
        .collect()
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
    /// hand the feed to a task and return at once. `tell` is called there for every gap behind which
    /// the consumer goes on.
    ///
    /// # Errors
    /// The settings don't make a consumer (a property librdkafka doesn't know, a bad value).
    pub fn start(
        settings: &KafkaSettings,
        group: &GroupSettings,
        spawn: impl FnMut(LaneFeed) + Send + 'static,
        tell: impl FnMut(&Gap) + Send + 'static,
    ) -> Result<GroupConsumer, KafkaError> {
        let stats = Arc::new(GroupStats::default());
        let context = Context {
            consumer: OnceLock::new(),
            lanes: LaneTable::new(spawn),
            stats: stats.clone(),
            drain_deadline: group.drain_deadline,
            group_id: group.group_id.clone(),
            start_at: group.start_at,
            offsets: Mutex::default(),
            stalled: Arc::default(),
            in_doubt: AtomicBool::new(false),
        };
        let mut config = rdkafka::ClientConfig::new();
        match settings.group_protocol {
            GroupProtocol::Classic => {
                config.set("session.timeout.ms", "10000");
                config.set("partition.assignment.strategy", "cooperative-sticky");
            }
            // The brokers set what the classic protocol leaves to each member.
            GroupProtocol::Consumer => {}
        }
        for (key, value) in [
            // Partitions that are added are found so soon; the default is five minutes.
            ("topic.metadata.refresh.interval.ms", "30000"),
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
            // Never by itself: see `gap.rs`.
            ("auto.offset.reset", "error"),
            ("group.protocol", settings.group_protocol.as_str()),
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
            topics: group.topics.clone(),
            on_gap: group.on_gap,
            tell: Box::new(tell),
            stop: stop.clone(),
            failed: failed.clone(),
            failure: failure.clone(),
            unread: BTreeMap::new(),
            unread_pace: Pace::new(),
            doubt: None,
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
    topics: Vec<String>,
    on_gap: GapPolicy,
    tell: Box<dyn FnMut(&Gap) + Send>,
    stop: Arc<AtomicBool>,
    failed: CancellationToken,
    failure: Arc<Mutex<Option<KafkaError>>>,
    /// Partitions that nobody reads until it is known where from.
    unread: BTreeMap<PartitionKey, Unread>,
    /// When those may be asked for.
    unread_pace: Pace,
    /// Since when some topic may be gone.
    doubt: Option<Doubt>,
}

/// Some topic may be gone.
struct Doubt {
    /// When it began.
    began: Instant,
    /// Since when every answer has said that one is gone.
    gone_since: Option<Instant>,
    is_told: bool,
    pace: Pace,
}

/// Keeps a question from being asked too often.
struct Pace {
    next: Instant,
}

impl Pace {
    fn new() -> Pace {
        Pace {
            next: Instant::now(),
        }
    }

    fn may_ask(&mut self) -> bool {
        let now = Instant::now();
        let may_ask = now >= self.next;
        if may_ask {
            self.next = now + ASK_AGAIN;
        }
        may_ask
    }
}

/// Why a partition has to be read from elsewhere.
struct Unread {
    since: Instant,
    /// The record that was to be read next, if it is known.
    expected: Option<i64>,
    /// Whether the topic was made anew.
    is_replaced: bool,
}

/// Why the poll thread ends without being asked to.
enum Failed {
    /// The client can do nothing more, nor can it commit.
    Client,
    /// The consumer must not go on by itself.
    Stopped(KafkaError),
}

impl Poller {
    fn run(mut self) {
        let consumer = self.consumer.clone();
        let context = consumer.context();
        let mut is_lost = false;
        let mut last_commit = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            let polled = match consumer.poll(POLL_WAIT) {
                None => Ok(()),
                Some(Ok(message)) => {
                    context.stray(&message);
                    Ok(())
                }
                Some(Err(error)) => self.on_error(&error),
            };
            if last_commit.elapsed() >= self.commit_interval {
                last_commit = Instant::now();
                context.commit_progress(&consumer);
            }
            match polled
                .and_then(|()| self.mend())
                .and_then(|()| self.look_for_topics())
            {
                Ok(()) => {}
                Err(Failed::Client) => {
                    is_lost = true;
                    break;
                }
                Err(Failed::Stopped(error)) => {
                    tracing::error!(group = %context.group_id, %error, "the consumer stops");
                    self.fail(error);
                    break;
                }
            }
        }
        context.revoke(&consumer, &context.lanes.keys(), is_lost);
        // Dropping the last reference closes the consumer: it leaves the group.
    }

    fn fail(&self, error: KafkaError) {
        *lock(&self.failure) = Some(error);
        self.failed.cancel();
    }

    /// Says what a client error means. Only a fatal one ends the consumer.
    fn on_error(&mut self, error: &ClientError) -> Result<(), Failed> {
        let context = self.consumer.context();
        let fatal = self.consumer.client().fatal_error();
        if fatal.is_some() || matches!(error, ClientError::MessageConsumptionFatal(_)) {
            // The error on the queue may only say that there is one.
            let error = match fatal {
                Some((code, _)) => ClientError::MessageConsumptionFatal(code),
                None => error.clone(),
            };
            let what = format!("consuming as group `{}`", context.group_id);
            self.fail(KafkaError::new(what, &self.settings, &error, None));
            return Err(Failed::Client);
        }
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::PollExceeded) => {
                context.stats.evictions.fetch_add(1, Ordering::Relaxed);
                tracing::error!(group = %context.group_id,
                    "the group dropped this member: it did not poll within max.poll.interval.ms; its lanes stop and it joins again");
                return Ok(());
            }
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::UnknownTopicId,
            ) => {
                context.in_doubt.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        tracing::warn!(group = %context.group_id, %error, "the Kafka client reported a problem; it goes on");
        Ok(())
    }

    /// Finds out where the partitions are to be read from that the client library stopped reading, and
    /// what is missing there.
    fn mend(&mut self) -> Result<(), Failed> {
        let consumer = self.consumer.clone();
        let context = consumer.context();
        {
            let mut offsets = lock(&context.offsets);
            for stalled in std::mem::take(&mut *lock(&context.stalled)) {
                if offsets.assignment.get(&stalled.key) == Some(&stalled.assignment) {
                    let unread = Unread {
                        since: Instant::now(),
                        expected: stalled.next,
                        is_replaced: false,
                    };
                    self.unread.insert(stalled.key, unread);
                }
            }
            for (key, accepted) in std::mem::take(&mut offsets.replaced) {
                let unread = Unread {
                    since: Instant::now(),
                    expected: Some(accepted),
                    is_replaced: true,
                };
                self.unread.insert(key, unread);
            }
            // Whoever has such a partition now finds out for himself.
            self.unread
                .retain(|key, _| offsets.assignment.contains_key(key));
        }
        if self.unread.is_empty() || !self.unread_pace.may_ask() {
            return Ok(());
        }
        let keys: Vec<PartitionKey> = self.unread.keys().cloned().collect();
        let found = match context.look_up(&consumer, &keys) {
            Ok(found) => found,
            Err(error) => {
                tracing::info!(group = %context.group_id, %error,
                    "the brokers did not say where to go on reading; they are asked again");
                return Ok(());
            }
        };
        let mut gaps = Vec::new();
        let mut begins = BTreeMap::new();
        for key in keys {
            // A topic that is gone has no partitions; `look_for_topics` sees to it.
            let (Some(found), Some(unread)) = (found.get(&key), self.unread.get(&key)) else {
                continue;
            };
            let Position { low, high, .. } = found.position;
            let (begin, is_gap) = if unread.is_replaced {
                let restart = if found.is_written { found.begin } else { low };
                (restart, true)
            } else {
                let expected = unread.expected.or(found.position.expected);
                // A leader that is new may not know the end yet.
                if expected > Some(high) && unread.since.elapsed() < GONE_FOR {
                    continue;
                }
                begin(
                    Position {
                        expected,
                        ..found.position
                    },
                    context.start_at,
                )
            };
            if is_gap {
                gaps.push(Gap {
                    topic: key.0.to_string(),
                    partition: key.1,
                    expected: unread.expected.or(found.position.expected).unwrap_or(0),
                    low,
                    high,
                });
            }
            begins.insert(key, begin);
        }
        if !gaps.is_empty() && self.on_gap == GapPolicy::Stop {
            return Err(Failed::Stopped(self.gap_error(&gaps)));
        }
        for gap in &gaps {
            tracing::error!(group = %context.group_id, topic = gap.topic, partition = gap.partition,
                expected = gap.expected, low = gap.low, high = gap.high, "{gap}; the consumer goes on there");
            context.stats.gaps.fetch_add(1, Ordering::Relaxed);
            (self.tell)(gap);
        }
        self.read_from(&begins)
    }

    fn gap_error(&self, gaps: &[Gap]) -> KafkaError {
        const SHOWN: usize = 3;
        let mut texts: Vec<String> = gaps.iter().take(SHOWN).map(Gap::to_string).collect();
        if let Some(more @ 1..) = gaps.len().checked_sub(SHOWN) {
            texts.push(format!("and so are records of {more} more partitions"));
        }
        let group = &self.consumer.context().group_id;
        KafkaError::told(
            KafkaErrorKind::RecordsGone,
            format!("consuming as group `{group}`"),
            &self.settings,
            texts.join("; "),
        )
    }

    /// Ends the lanes of these partitions and begins new ones at these offsets.
    fn read_from(&mut self, begins: &BTreeMap<PartitionKey, i64>) -> Result<(), Failed> {
        if begins.is_empty() {
            return Ok(());
        }
        let context = self.consumer.context();
        let is_eager = matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Eager);
        // An eager assignment is made as a whole.
        let keys: Vec<PartitionKey> = if is_eager {
            context.lanes.keys()
        } else {
            begins.keys().cloned().collect()
        };
        context.revoke(&self.consumer, &keys, false);
        let mut old = TopicPartitionList::new();
        let mut new = TopicPartitionList::new();
        let mut starts = TopicPartitionList::new();
        for key in &keys {
            old.add_partition(&key.0, key.1);
            match begins.get(key) {
                Some(begin) => {
                    add_offset(&mut new, &key.0, key.1, *begin);
                    add_offset(&mut starts, &key.0, key.1, *begin);
                }
                None => {
                    new.add_partition(&key.0, key.1);
                }
            }
        }
        // So that a restart doesn't meet the same gap again.
        let is_written = context.send_commit(&self.consumer, &starts);
        let assigned = if is_eager {
            context.assign(&new);
            self.consumer.assign(&new)
        } else {
            let unassigned = self.consumer.incremental_unassign(&old);
            context.assign(&new);
            unassigned.and_then(|()| self.consumer.incremental_assign(&new))
        };
        let mut offsets = lock(&context.offsets);
        for (key, begin) in begins {
            self.unread.remove(key);
            offsets.replaced.remove(key);
            offsets.starts.remove(key);
            if is_written {
                offsets.accepted.insert(key.clone(), *begin);
            } else {
                offsets.accepted.remove(key);
            }
        }
        drop(offsets);
        assigned.map_err(|error| {
            let what = format!("reading on as group `{}`", context.group_id);
            Failed::Stopped(KafkaError::new(what, &self.settings, &error, None))
        })
    }

    /// Whether a topic is gone for good, once something hints at it.
    fn look_for_topics(&mut self) -> Result<(), Failed> {
        let context = self.consumer.context();
        if context.in_doubt.swap(false, Ordering::Relaxed) {
            let is_told = self.doubt.as_ref().is_some_and(|doubt| doubt.is_told);
            let gone_since = self.doubt.take().and_then(|doubt| doubt.gone_since);
            self.doubt = Some(Doubt {
                began: Instant::now(),
                gone_since,
                is_told,
                pace: Pace::new(),
            });
        }
        let Some(doubt) = &mut self.doubt else {
            return Ok(());
        };
        if !doubt.pace.may_ask() {
            return Ok(());
        }
        let mut gone = Vec::new();
        for topic in &self.topics {
            match partitions_of(self.consumer.client(), topic, ASK_LIMIT) {
                Ok(Some(_)) => {}
                Ok(None) => gone.push(format!("`{topic}`")),
                // Nothing is known: it can't be said to have been gone all the time.
                Err(_) => {
                    doubt.gone_since = None;
                    return Ok(());
                }
            }
        }
        if gone.is_empty() {
            doubt.gone_since = None;
            // A broker may still know a topic that was deleted just now.
            if doubt.began.elapsed() >= GONE_FOR {
                self.doubt = None;
            }
            return Ok(());
        }
        let gone_since = *doubt.gone_since.get_or_insert_with(Instant::now);
        if gone_since.elapsed() < GONE_FOR || doubt.is_told {
            return Ok(());
        }
        doubt.is_told = true;
        let group = &self.consumer.context().group_id;
        let gone = gone.join(", ");
        match self.on_gap {
            GapPolicy::Stop => Err(Failed::Stopped(KafkaError::told(
                KafkaErrorKind::UnknownTopic,
                format!("consuming as group `{group}`"),
                &self.settings,
                format!("{gone} was deleted while it was read; what was not read of it is gone"),
            ))),
            GapPolicy::Earliest => {
                tracing::error!(%group, topics = gone,
                    "a topic was deleted while it was read; what was not read of it is gone. The consumer waits until it is made anew");
                Ok(())
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
