//! The one producer: idempotent, acknowledged by all in-sync replicas, in order for each key.
//!
//! # How the order of a key survives a failure
//!
//! A record that failed must not be overtaken by a later record of its key: the relay sends the failed
//! one again, and then the two stand in the wrong order for good. An idempotent producer alone does not
//! rule that out; each of these was seen on a broker or in librdkafka's source:
//!
//! - When a broker refuses a batch for good, librdkafka numbers the rest anew and sends it. So
//!   `enable.gapless.guarantee` is on: the producer stops instead, whole.
//! - librdkafka gives up record by record when time runs out, so the second of a key could still leave
//!   after the first was given up. So there is no time limit inside the client; it is kept here, and at its end
//!   *everything* not yet acknowledged is withdrawn at once and the producer is spent.
//! - A broker that holds no state for a producer id takes any sequence number as the first. With several
//!   requests on their way to a new partition it may refuse the first and take the second; and if the
//!   refusal was a passing one, librdkafka even reports the first as written, because it takes the
//!   acknowledgement of the second for one of both: a loss without a word. So the first record of a
//!   producer for a partition goes alone, and the rest follows its acknowledgement; after ten minutes
//!   of silence once more. From then on the broker refuses every gap. For this the producer must know
//!   the partition of a record, so it takes the hash itself: murmur2, as Java and kafkajs do. Batches that are sent side by
//!   side wait for each other's first record, partition by partition: one whose leader is away holds up no other.
//!
//! So a producer that failed is thrown away ([`Producer::is_fatal`]) and the next one starts from the
//! outbox table. Records that were on their way at that moment may be on the broker already: they are sent
//! again with the same event id, and the consumers' dedup stops them (public case 26).

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use factum_fault::Point;
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError as RdError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};

use crate::client_log::ClientLog;
use crate::error::KafkaError;
use crate::settings::KafkaSettings;
use crate::topology;

/// The most headers of one record.
pub const HEADERS_MAX: usize = 64;

/// The most bytes of all header names and values of one record together.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;

/// How long a topic's existence is believed before it is asked again.
const TOPIC_BELIEVED: Duration = Duration::from_secs(300);

/// How long a missing topic is believed missing, so that a row for it does not cost a request each time.
const MISSING_BELIEVED: Duration = Duration::from_millis(500);

/// How long a partition's last acknowledgement proves that its broker holds this producer's state. Brokers
/// forget a silent producer after `producer.id.expiration.ms`, a day by default.
const STATE_BELIEVED: Duration = Duration::from_secs(600);

/// How long withdrawn records may take to report back; at most a fifth of the delivery's time.
const WITHDRAWAL_LIMIT: Duration = Duration::from_secs(2);

/// How long to wait for room in the full queue before trying the same record again.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);

/// One record to send.
#[derive(Clone)]
pub struct OutgoingRecord<'a> {
    /// The topic, which must exist: nothing is created in passing (CFG-4).
    pub topic: &'a str,
    /// The key. Records of one key go to one partition and keep their order.
    pub key: Option<&'a [u8]>,
    /// The value; nothing is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Names and values, at most [`HEADERS_MAX`] and [`HEADER_BYTES_MAX`]. A value may be missing.
    pub headers: Vec<(&'a str, Option<&'a [u8]>)>,
    /// A partition by number, for tests and mirrors; nothing lets the key decide.
    pub partition: Option<i32>,
}

impl std::fmt::Debug for OutgoingRecord<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutgoingRecord")
            .field("topic", &self.topic)
            .field("key_bytes", &self.key.map(<[u8]>::len))
            .field("value_bytes", &self.value.map(<[u8]>::len))
            .field("headers", &self.headers.len())
            .field("partition", &self.partition)
            .finish()
    }
}

/// Why a record was not acknowledged.
///
/// `Display` names the topic and the reason, never the key, a header or the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendError {
    kind: SendErrorKind,
    text: String,
}

/// What the sender does next about a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// Not acknowledged in time, or the brokers can't or won't take it now: send it again later. The
    /// record may be on the broker all the same.
    Retriable,
    /// The record itself can't be written: too large, no such topic, refused by the broker. Sending it
    /// again helps only when something else changes.
    Permanent,
    /// The producer stopped before it had an answer for this record: rebuild it, then send again. The
    /// record may be on the broker all the same.
    Fatal,
    /// Not sent, because an earlier record of the same key failed and must come first.
    Held,
}

impl SendError {
    fn new(kind: SendErrorKind, text: impl Into<String>) -> SendError {
        SendError {
            kind,
            text: text.into(),
        }
    }

    /// What to do next.
    #[must_use]
    pub fn kind(&self) -> SendErrorKind {
        self.kind
    }
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for SendError {}

/// The idempotent producer (PROD-1). Only the relay has one (PROD-4): nothing else in Factum sends.
///
/// It does not weaken, whatever the settings say: `acks=all`, idempotence, at most five requests in flight. A record is at
/// most `message.max.bytes` long (1,000,000 unless set), headers and framing included. The queue is
/// bounded (20,000 records, 64 MiB) and waits when full, in order.
pub struct Producer {
    inner: Option<Arc<ThreadedProducer<Reports>>>,
    settings: KafkaSettings,
    delivery_timeout: Duration,
    topics: Mutex<HashMap<String, Topic>>,
    /// Partitions whose first record is on its way alone.
    opening: Mutex<HashSet<(String, i32)>>,
    /// Tells that one of those was answered.
    opened: Notify,
    /// The partition for the next call's records without a key, before it is cut to the topic's number.
    keyless: AtomicU32,
    spent: AtomicBool,
}

/// What is known of a topic.
#[derive(Clone)]
struct Topic {
    /// Nothing if it does not exist.
    partitions: Option<NonZeroU32>,
    asked_at: Instant,
    /// When each partition acknowledged a record of this producer last.
    acknowledged: HashMap<i32, Instant>,
}

impl Topic {
    fn is_believed(&self) -> bool {
        let limit = match self.partitions {
            Some(_) => TOPIC_BELIEVED,
            None => MISSING_BELIEVED,
        };
        self.asked_at.elapsed() < limit
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer")
            .field("settings", &self.settings)
            .field("delivery_timeout", &self.delivery_timeout)
            .field("fatal", &self.is_fatal())
            .finish_non_exhaustive()
    }
}

impl Producer {
    /// Makes a producer. It connects on its own: that a broker answers shows at the first
    /// [`Producer::send_all`].
    ///
    /// `delivery_timeout` bounds one `send_all`, from the call to the last report. The relay keeps it
    /// well below its lease.
    ///
    /// # Errors
    ///
    /// A setting that the client refuses, [`KafkaErrorKind::Configuration`](crate::KafkaErrorKind).
    pub fn connect(
        settings: &KafkaSettings,
        delivery_timeout: Duration,
    ) -> Result<Producer, KafkaError> {
        let inner = ThreadedProducer::from_config_and_context(
            &settings.producer_config(),
            Reports::default(),
        )
        .map_err(|error| KafkaError::new("making the producer", settings, &error, None))?;
        Ok(Producer {
            inner: Some(Arc::new(inner)),
            settings: settings.clone(),
            delivery_timeout,
            topics: Mutex::default(),
            opening: Mutex::default(),
            opened: Notify::new(),
            keyless: AtomicU32::new(0),
            spent: AtomicBool::new(false),
        })
    }

    /// A new producer in this one's place. It knows what this one knew of the topics, so that it needn't ask brokers of
    /// which one may be away.
    ///
    /// # Errors
    ///
    /// As [`Producer::connect`].
    pub fn successor(&self) -> Result<Producer, KafkaError> {
        let next = Producer::connect(&self.settings, self.delivery_timeout)?;
        let known = lock(&self.topics)
            .iter()
            .map(|(name, topic)| {
                let topic = Topic {
                    partitions: topic.partitions,
                    asked_at: topic.asked_at,
                    // Its brokers have yet to meet it.
                    acknowledged: HashMap::new(),
                };
                (name.clone(), topic)
            })
            .collect();
        *lock(&next.topics) = known;
        Ok(next)
    }

    /// The longest that one [`Producer::send_all`] waits for acknowledgements. Withdrawing what is left may take
    /// a fifth of that time more, and 2 s at most.
    #[must_use]
    pub fn delivery_timeout(&self) -> Duration {
        self.delivery_timeout
    }

    /// Sends a batch and waits for every delivery report (OBX-5). The answers stand in the order of the
    /// batch; `Ok` means that all in-sync replicas have the record. See [`send_each`](Producer::send_each).
    ///
    /// # Errors
    ///
    /// For each record its own [`SendError`]; what to do about it is its [`SendErrorKind`]. A failure
    /// that the broker or the clock caused spends the producer, so ask [`Producer::is_fatal`] afterwards.
    pub async fn send_all(&self, batch: &[OutgoingRecord<'_>]) -> Vec<Result<(), SendError>> {
        let mut outcomes = vec![None; batch.len()];
        self.send_each(batch, |index, outcome| outcomes[index] = Some(outcome))
            .await;
        outcomes
            .into_iter()
            .map(|outcome| outcome.expect("each record is told of, once"))
            .collect()
    }

    /// Sends a batch, and tells of each record as soon as its outcome is known, once, with its place in the batch: a slow
    /// partition doesn't keep the answers of the others. It ends when all are told.
    ///
    /// Records of one key are sent in the order of the batch, and none is sent after one of its key that
    /// failed: see the module's text. Records without a key are independent of each other.
    ///
    /// Calls may run side by side, as long as no key is in two of them: they share the queue, and the failure of one that
    /// spends the producer fails the others.
    ///
    /// # Errors
    ///
    /// As [`send_all`](Producer::send_all). When an error is told that the broker or the clock caused, the producer is
    /// spent already.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped before its end, the outcome is unknown, what is left is withdrawn, and
    /// the producer is spent.
    pub async fn send_each(
        &self,
        batch: &[OutgoingRecord<'_>],
        tell: impl FnMut(usize, Result<(), SendError>) + Send,
    ) {
        let deadline = Instant::now() + self.delivery_timeout;
        let targets = if self.is_fatal() {
            Vec::new()
        } else {
            self.targets_of(batch, deadline).await
        };
        Attempt::new(self, batch, targets, deadline, tell)
            .run()
            .await;
    }

    /// Whether this producer is spent: it lost its idempotence, the broker refused a batch, or time ran
    /// out and the rest was withdrawn. Drop it, make a new one, and send from the table again.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.spent.load(Ordering::Acquire) || self.client().client().context().log.is_fatal()
    }

    /// Ends the producer: waits until nothing is in flight, at most `limit`, and withdraws what is left.
    pub async fn close(mut self, limit: Duration) {
        if let Some(inner) = self.inner.take() {
            // Leaving the join handle alone is fine: the thread ends by itself within the limit.
            let _ = tokio::time::timeout(
                limit + Duration::from_secs(1),
                tokio::task::spawn_blocking(move || {
                    if let Err(error) = inner.flush(limit) {
                        tracing::debug!(%error, "records were withdrawn at the producer's end");
                    }
                    drop(inner);
                }),
            )
            .await;
        }
    }

    fn withdrawal_limit(&self) -> Duration {
        WITHDRAWAL_LIMIT.min(self.delivery_timeout / 5)
    }

    fn client(&self) -> &Arc<ThreadedProducer<Reports>> {
        self.inner
            .as_ref()
            .expect("only `close` and `drop` take the client, and both own the producer")
    }

    /// Takes back everything that is not acknowledged. The producer is of no use afterwards.
    fn withdraw(&self) {
        if !self.spent.swap(true, Ordering::AcqRel) {
            self.client()
                .purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// The partition of each record of the batch, or why it can't go anywhere.
    async fn targets_of(
        &self,
        batch: &[OutgoingRecord<'_>],
        deadline: Instant,
    ) -> Vec<Result<i32, SendError>> {
        let mut topics: HashMap<&str, Result<NonZeroU32, SendError>> = HashMap::new();
        for record in batch {
            if !topics.contains_key(record.topic) {
                let partitions = self.partitions_of(record.topic, deadline).await;
                topics.insert(record.topic, partitions);
            }
        }
        let keyless = self.keyless.fetch_add(1, Ordering::Relaxed);
        batch
            .iter()
            .map(|record| {
                check_headers(record)?;
                let partitions = topics[record.topic].clone()?;
                Ok(match (record.partition, record.key) {
                    (Some(partition), _) => partition,
                    (None, Some(key)) => partition_of(key, partitions),
                    (None, None) => partition_number(keyless, partitions),
                })
            })
            .collect()
    }

    /// How many partitions a topic has, asked at most every five minutes.
    async fn partitions_of(&self, topic: &str, deadline: Instant) -> Result<NonZeroU32, SendError> {
        if !topology::is_legal_topic(topic) {
            return Err(SendError::new(
                SendErrorKind::Permanent,
                "the topic's name is not legal: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
            ));
        }
        let believed = lock(&self.topics)
            .get(topic)
            .filter(|topic| topic.is_believed())
            .map(|topic| topic.partitions);
        let partitions = match believed {
            Some(partitions) => partitions,
            None => {
                let partitions = self.ask_for_partitions(topic, deadline).await?;
                let now = Instant::now();
                lock(&self.topics)
                    .entry(topic.to_owned())
                    .and_modify(|topic| {
                        topic.partitions = partitions;
                        topic.asked_at = now;
                    })
                    .or_insert_with(|| Topic {
                        partitions,
                        asked_at: now,
                        acknowledged: HashMap::new(),
                    });
                partitions
            }
        };
        partitions.ok_or_else(|| {
            SendError::new(
                SendErrorKind::Permanent,
                format!("the topic `{topic}` does not exist (CFG-4). Create it on the cluster."),
            )
        })
    }

    async fn ask_for_partitions(
        &self,
        topic: &str,
        deadline: Instant,
    ) -> Result<Option<NonZeroU32>, SendError> {
        let client = Arc::clone(self.client());
        let settings = self.settings.clone();
        let topic = topic.to_owned();
        let limit = deadline.saturating_duration_since(Instant::now());
        let answer = tokio::task::spawn_blocking(move || {
            topology::partitions_of(client.client(), &topic, limit).map_err(|error| {
                let what = format!("describing the topic `{topic}`");
                let sign = client.client().context().log.last_sign();
                KafkaError::new(what, &settings, &error, sign.as_deref())
            })
        })
        .await;
        match answer {
            Ok(Ok(partitions)) => Ok(partitions.and_then(NonZeroU32::new)),
            Ok(Err(error)) => Err(SendError::new(SendErrorKind::Retriable, error.to_string())),
            Err(_) => Err(SendError::new(
                SendErrorKind::Retriable,
                "the runtime is shutting down",
            )),
        }
    }

    /// Whether the partition's broker knows this producer, and so refuses every gap.
    fn has_state(&self, topic: &str, partition: i32) -> bool {
        lock(&self.topics)
            .get(topic)
            .and_then(|topic| topic.acknowledged.get(&partition))
            .is_some_and(|at| at.elapsed() < STATE_BELIEVED)
    }

    /// Takes the right to send a partition's first record; `false` while another call has it.
    fn open(&self, topic: &str, partition: i32) -> bool {
        lock(&self.opening).insert((topic.to_owned(), partition))
    }

    /// The partition's first record was answered, one way or the other.
    fn end_opening(&self, topic: &str, partition: i32) {
        lock(&self.opening).remove(&(topic.to_owned(), partition));
        self.opened.notify_waiters();
    }

    /// Notes that the brokers of these partitions hold this producer's state.
    fn note_acknowledged<'t>(&self, partitions: impl IntoIterator<Item = (&'t str, i32)>) {
        let mut topics = lock(&self.topics);
        let now = Instant::now();
        for (topic, partition) in partitions {
            if let Some(topic) = topics.get_mut(topic) {
                topic.acknowledged.insert(partition, now);
            }
        }
    }
}

impl Drop for Producer {
    /// Withdraws what is not acknowledged and returns at once; the client's threads end on their own.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.purge(PurgeConfig::default().queue().inflight());
            // librdkafka's destructor waits for its threads, which an async task must not do. If no
            // thread can be had, the closure is dropped here, and the wait is bounded all the same.
            let _ = std::thread::Builder::new()
                .name("factum-kafka-close".to_owned())
                .spawn(move || drop(inner));
        }
    }
}

/// One call of [`Producer::send_each`] on its way.
struct Attempt<'a, 'b, T> {
    producer: &'a Producer,
    batch: &'a [OutgoingRecord<'b>],
    /// The partition of each.
    targets: Vec<Result<i32, SendError>>,
    tell: T,
    states: Vec<State>,
    /// Those of the batch that opened their partition and are on their way.
    openers: HashSet<usize>,
    deadline: Instant,
    sender: mpsc::UnboundedSender<Report>,
    reports: mpsc::UnboundedReceiver<Report>,
    outstanding: usize,
    withdrawn: bool,
    timed_out: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Enqueued,
    Told,
}

impl<T> Drop for Attempt<'_, '_, T> {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.producer.withdraw();
        }
        for index in self.openers.drain() {
            if let Ok(partition) = self.targets[index] {
                self.producer
                    .end_opening(self.batch[index].topic, partition);
            }
        }
    }
}

impl<'a, 'b, T: FnMut(usize, Result<(), SendError>)> Attempt<'a, 'b, T> {
    fn new(
        producer: &'a Producer,
        batch: &'a [OutgoingRecord<'b>],
        targets: Vec<Result<i32, SendError>>,
        deadline: Instant,
        tell: T,
    ) -> Self {
        // Unbounded in type only: a record reports once.
        let (sender, reports) = mpsc::unbounded_channel();
        Attempt {
            producer,
            batch,
            targets,
            tell,
            states: vec![State::Waiting; batch.len()],
            openers: HashSet::new(),
            deadline,
            sender,
            reports,
            outstanding: 0,
            withdrawn: false,
            timed_out: false,
        }
    }

    async fn run(mut self) {
        let producer = self.producer;
        let mut waiting: Vec<usize> = (0..self.targets.len()).collect();
        let mut stopped_keys = HashSet::new();
        loop {
            // Made before the look at what others open, so that no answer is missed.
            let opened = producer.opened.notified();
            if !waiting.is_empty() && !producer.is_fatal() {
                factum_fault::at(Point::ProduceBefore);
                waiting = self.enqueue(waiting, &mut stopped_keys).await;
                factum_fault::at(Point::ProduceAfter);
            }
            let others_open = !waiting.is_empty() && !producer.is_fatal();
            if self.outstanding == 0 && !others_open {
                break;
            }
            if !self.collect(others_open.then_some(opened)).await {
                break;
            }
            if self.outstanding == 0 {
                factum_fault::at(Point::AcknowledgeAfter);
            }
        }
        self.give_up_the_rest();
    }

    fn tell(&mut self, index: usize, outcome: Result<(), SendError>) {
        self.states[index] = State::Told;
        (self.tell)(index, outcome);
    }

    /// Puts into the client's queue, in order, what may go now; gives back what must wait: for the first record of its
    /// partition, or behind a record of its key that does.
    async fn enqueue(
        &mut self,
        waiting: Vec<usize>,
        stopped_keys: &mut HashSet<&'b [u8]>,
    ) -> Vec<usize> {
        let mut later = Vec::new();
        let openers = self.openers.iter();
        let mut waiting_keys: HashSet<&[u8]> =
            openers.filter_map(|index| self.batch[*index].key).collect();
        for index in waiting {
            let record = &self.batch[index];
            if record.key.is_some_and(|key| stopped_keys.contains(key)) {
                let error = SendError::new(
                    SendErrorKind::Held,
                    format!(
                        "a record for `{}` was not sent: an earlier record of its key failed",
                        record.topic
                    ),
                );
                self.tell(index, Err(error));
                continue;
            }
            let sent = match self.targets[index].clone() {
                Err(error) => Err(error),
                Ok(partition) => {
                    let has_state = self.producer.has_state(record.topic, partition);
                    // A key that has a record waiting, or one on its way alone, waits with all the rest.
                    let waits = record.key.is_some_and(|key| waiting_keys.contains(key))
                        || (!has_state && !self.producer.open(record.topic, partition));
                    if waits || !has_state {
                        waiting_keys.extend(record.key);
                    }
                    if waits {
                        later.push(index);
                        continue;
                    }
                    let sent = self.enqueue_one(index, record, partition).await;
                    if !has_state {
                        if sent.is_ok() {
                            self.openers.insert(index);
                        } else {
                            // The partition's first record is yet to come.
                            self.producer.end_opening(record.topic, partition);
                        }
                    }
                    sent
                }
            };
            match sent {
                Ok(()) => {
                    self.states[index] = State::Enqueued;
                    self.outstanding += 1;
                }
                Err(error) => {
                    stopped_keys.extend(record.key);
                    self.tell(index, Err(error));
                    if self.producer.is_fatal() {
                        return Vec::new();
                    }
                }
            }
        }
        later
    }

    async fn enqueue_one(
        &mut self,
        index: usize,
        record: &OutgoingRecord<'_>,
        partition: i32,
    ) -> Result<(), SendError> {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (name, value) in &record.headers {
            headers = headers.insert(Header {
                key: name,
                value: *value,
            });
        }
        let mut base: BaseRecord<'_, [u8], [u8], _> = BaseRecord::with_opaque_to(
            record.topic,
            Box::new(ReportTo {
                index,
                sender: self.sender.clone(),
            }),
        )
        .partition(partition)
        .headers(headers);
        base.key = record.key;
        base.payload = record.value;
        loop {
            let Err((error, back)) = self.producer.client().send(base) else {
                return Ok(());
            };
            match error.rdkafka_error_code() {
                Some(Code::QueueFull) if Instant::now() < self.deadline => {
                    base = back;
                    tokio::time::sleep(QUEUE_FULL_PAUSE).await;
                }
                Some(Code::QueueFull) => {
                    self.timed_out = true;
                    self.withdraw();
                    return Err(self.not_acknowledged(record.topic, false));
                }
                Some(Code::Fatal) => {
                    self.withdraw();
                    return Err(self.not_acknowledged(record.topic, false));
                }
                Some(Code::MessageSizeTooLarge) => {
                    return Err(SendError::new(
                        SendErrorKind::Permanent,
                        format!(
                            "a record for `{}` is too large: {} bytes of key, value and headers do not fit into \
                             message.max.bytes. Send less, or raise the limit here and on the topic.",
                            record.topic,
                            record.bytes()
                        ),
                    ));
                }
                Some(code) => {
                    // The topic may have been made anew with fewer partitions.
                    lock(&self.producer.topics).remove(record.topic);
                    return Err(refusal(code, record.topic));
                }
                None => {
                    return Err(SendError::new(
                        SendErrorKind::Permanent,
                        format!("a record for `{}` can't be sent: {error}", record.topic),
                    ));
                }
            }
        }
    }

    /// Waits for reports, or until another call has opened a partition if `opened` is given, or for the deadline: then
    /// everything is withdrawn, and a little later `false` says that no more will come.
    async fn collect(&mut self, opened: Option<Notified<'_>>) -> bool {
        if self.producer.is_fatal() {
            self.withdraw();
        }
        let limit = self.deadline;
        let opened = async {
            match opened {
                Some(opened) => opened.await,
                None => std::future::pending().await,
            }
        };
        let first = tokio::select! {
            // Nobody hangs up: we hold a sender ourselves.
            report = self.reports.recv() => report,
            () = opened => return true,
            () = tokio::time::sleep_until(limit.into()) => {
                if self.withdrawn {
                    return false;
                }
                self.timed_out = true;
                self.withdraw();
                return self.outstanding > 0;
            }
        };
        let mut acknowledged: HashSet<(&str, i32)> = HashSet::new();
        let mut next = first;
        while let Some(Report { index, error }) = next {
            self.outstanding -= 1;
            let topic = self.batch[index].topic;
            let outcome = match error {
                None => Ok(()),
                Some(Code::PurgeQueue) => Err(self.not_acknowledged(topic, false)),
                Some(Code::PurgeInflight) => Err(self.not_acknowledged(topic, true)),
                Some(code) => Err(refusal(code, topic)),
            };
            if let Ok(partition) = self.targets[index] {
                if outcome.is_ok() {
                    acknowledged.insert((topic, partition));
                }
                if self.openers.remove(&index) {
                    self.producer.note_acknowledged(acknowledged.drain());
                    self.producer.end_opening(topic, partition);
                }
            }
            // A failed record must not be overtaken by a later one of its key.
            if outcome.is_err() {
                self.withdraw();
            }
            self.tell(index, outcome);
            next = self.reports.try_recv().ok();
        }
        self.producer.note_acknowledged(acknowledged);
        true
    }

    /// Takes back everything, and gives the reports a little time.
    fn withdraw(&mut self) {
        if !self.withdrawn {
            self.withdrawn = true;
            self.producer.withdraw();
            self.deadline = Instant::now() + self.producer.withdrawal_limit();
        }
    }

    /// What was not told of: it was not sent, or its report never came, because the client is gone or stuck.
    fn give_up_the_rest(mut self) {
        self.outstanding = 0;
        for index in 0..self.batch.len() {
            let topic = self.batch[index].topic;
            let error = match self.states[index] {
                State::Told => continue,
                State::Waiting => self.not_acknowledged(topic, false),
                State::Enqueued => SendError::new(
                    SendErrorKind::Retriable,
                    format!(
                        "a record for `{topic}` was neither acknowledged nor given up by the client; \
                         it may be on the broker all the same"
                    ),
                ),
            };
            self.tell(index, Err(error));
        }
    }

    fn not_acknowledged(&self, topic: &str, may_be_written: bool) -> SendError {
        let written = if may_be_written {
            "it may be on the broker all the same"
        } else {
            "it was not sent"
        };
        if self.timed_out {
            let sign = self
                .producer
                .client()
                .client()
                .context()
                .log
                .last_sign()
                .map(|sign| format!(" (last sign: {sign})"))
                .unwrap_or_default();
            SendError::new(
                SendErrorKind::Retriable,
                format!(
                    "a record for `{topic}` was not acknowledged within {} ms; {written}{sign}",
                    self.producer.delivery_timeout.as_millis()
                ),
            )
        } else {
            SendError::new(
                SendErrorKind::Fatal,
                format!(
                    "a record for `{topic}` was not acknowledged before the producer stopped; {written}"
                ),
            )
        }
    }
}

impl OutgoingRecord<'_> {
    /// Bytes of key, value and headers, without framing.
    fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + self.header_bytes()
    }

    fn header_bytes(&self) -> usize {
        self.headers
            .iter()
            .map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len))
            .sum()
    }
}

fn check_headers(record: &OutgoingRecord<'_>) -> Result<(), SendError> {
    if record.headers.len() <= HEADERS_MAX && record.header_bytes() <= HEADER_BYTES_MAX {
        return Ok(());
    }
    Err(SendError::new(
        SendErrorKind::Permanent,
        format!(
            "a record for `{}` has {} headers of {} bytes; at most {HEADERS_MAX} of {HEADER_BYTES_MAX} bytes are sent",
            record.topic,
            record.headers.len(),
            record.header_bytes()
        ),
    ))
}

/// What a broker's or client's error code means for the record.
fn refusal(code: Code, topic: &str) -> SendError {
    let kind = match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTopic
        | Code::InvalidTimestamp
        | Code::InvalidArgument
        | Code::PolicyViolation
        | Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType => SendErrorKind::Permanent,
        Code::Fatal
        | Code::GaplessGuarantee
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::UnknownProducerId
        | Code::ProducerFenced
        | Code::Fenced
        | Code::Inconsistent
        | Code::BrokerDestroy => SendErrorKind::Fatal,
        // Missing rights included: that is the cluster's state, not the record's fault.
        _ => SendErrorKind::Retriable,
    };
    SendError::new(kind, format!("a record for `{topic}` was refused: {code}"))
}

/// The partition of a key, as Java's clients and kafkajs compute it.
fn partition_of(key: &[u8], partitions: NonZeroU32) -> i32 {
    partition_number(murmur2(key), partitions)
}

fn partition_number(hash: u32, partitions: NonZeroU32) -> i32 {
    // Both casts hold: the number is below 2^31 whatever the hash.
    i32::try_from((hash & 0x7fff_ffff) % partitions).expect("31 bits fit into an i32")
}

/// MurmurHash2 with Kafka's seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u32::from_le_bytes(word)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// One delivery report.
struct Report {
    index: usize,
    error: Option<Code>,
}

/// Where a record's report goes.
struct ReportTo {
    index: usize,
    sender: mpsc::UnboundedSender<Report>,
}

/// The producer's context: hands the delivery reports back.
#[derive(Default)]
struct Reports {
    log: ClientLog,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.log(level, facility, line);
    }

    fn error(&self, error: RdError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<ReportTo>;

    fn delivery(&self, result: &DeliveryResult<'_>, to: Box<ReportTo>) {
        let error = match result {
            Ok(_) => None,
            Err((error, _)) => Some(error.rdkafka_error_code().unwrap_or(Code::Fail)),
        };
        // Nobody listens any more if `send_all` was dropped; the producer is spent then.
        let _ = to.sender.send(Report {
            index: to.index,
            error,
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of Kafka's own test, `UtilsTest.testMurmur2`.
    #[test]
    fn keys_hash_as_in_java() {
        for (key, hash) in [
            (&b"21"[..], -973_932_308_i32),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key), hash.cast_unsigned());
        }
    }

    #[test]
    fn a_partition_is_never_out_of_range() {
        for partitions in [1, 2, 7, u32::MAX] {
            let partitions = NonZeroU32::new(partitions).unwrap();
            for hash in [0, 1, i32::MAX as u32, 0x8000_0000, u32::MAX] {
                let number = partition_number(hash, partitions);
                assert!(number >= 0 && number.unsigned_abs() < partitions.get());
            }
        }
    }

    /// What a broker says decides what the relay does: wrong here, and a row is set aside for the
    /// cluster's fault, or sent for ever for its own.
    #[test]
    fn a_missing_right_is_the_clusters_state_and_a_refused_record_its_own_fault() {
        for (code, kind) in [
            (Code::TopicAuthorizationFailed, SendErrorKind::Retriable),
            (Code::ClusterAuthorizationFailed, SendErrorKind::Retriable),
            (Code::NotEnoughReplicas, SendErrorKind::Retriable),
            (Code::BrokerTransportFailure, SendErrorKind::Retriable),
            (Code::MessageSizeTooLarge, SendErrorKind::Permanent),
            (Code::InvalidRecord, SendErrorKind::Permanent),
            (Code::UnknownTopicOrPartition, SendErrorKind::Permanent),
            (Code::Fatal, SendErrorKind::Fatal),
            (Code::OutOfOrderSequenceNumber, SendErrorKind::Fatal),
        ] {
            assert_eq!(refusal(code, "t").kind(), kind, "{code:?}");
        }
    }
}
