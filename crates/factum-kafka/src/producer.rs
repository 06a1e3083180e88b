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
//!   the partition of a record, so it takes the hash itself: murmur2, as Java and kafkajs do.
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
use tokio::sync::mpsc;

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
            keyless: AtomicU32::new(0),
            spent: AtomicBool::new(false),
        })
    }

    /// The longest that one [`Producer::send_all`] waits for acknowledgements. Withdrawing what is left may take
    /// a fifth of that time more, and 2 s at most.
    #[must_use]
    pub fn delivery_timeout(&self) -> Duration {
        self.delivery_timeout
    }

    /// Sends a batch and waits for every delivery report (OBX-5). The answers stand in the order of the
    /// batch; `Ok` means that all in-sync replicas have the record.
    ///
    /// Records of one key are sent in the order of the batch, and none is sent after one of its key that
    /// failed: see the module's text. Records without a key are independent of each other.
    ///
    /// One call at a time gives that order; calls side by side share the queue, and the failure of one
    /// fails the others.
    ///
    /// # Errors
    ///
    /// For each record its own [`SendError`]; what to do about it is its [`SendErrorKind`]. A failure
    /// that the broker or the clock caused spends the producer, so ask [`Producer::is_fatal`] afterwards.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped before its end, the outcome is unknown, what is left is withdrawn, and
    /// the producer is spent.
    pub async fn send_all(&self, batch: &[OutgoingRecord<'_>]) -> Vec<Result<(), SendError>> {
        let deadline = Instant::now() + self.delivery_timeout;
        let targets = if self.is_fatal() {
            Vec::new()
        } else {
            self.targets_of(batch, deadline).await
        };
        Attempt::new(self, batch, targets, deadline).run().await
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

    /// Where each record of the batch goes, or why it can't go anywhere.
    async fn targets_of(
        &self,
        batch: &[OutgoingRecord<'_>],
        deadline: Instant,
    ) -> Vec<Result<Target, SendError>> {
        let mut topics: HashMap<&str, Result<NonZeroU32, SendError>> = HashMap::new();
        for record in batch {
            if !topics.contains_key(record.topic) {
                let partitions = self.partitions_of(record.topic, deadline).await;
                topics.insert(record.topic, partitions);
            }
        }
        let keyless = self.keyless.fetch_add(1, Ordering::Relaxed);
        let known = lock(&self.topics);
        batch
            .iter()
            .map(|record| {
                check_headers(record)?;
                let partitions = topics[record.topic].clone()?;
                let partition = match (record.partition, record.key) {
                    (Some(partition), _) => partition,
                    (None, Some(key)) => partition_of(key, partitions),
                    (None, None) => partition_number(keyless, partitions),
                };
                let has_state = known
                    .get(record.topic)
                    .and_then(|topic| topic.acknowledged.get(&partition))
                    .is_some_and(|at| at.elapsed() < STATE_BELIEVED);
                Ok(Target {
                    partition,
                    has_state,
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

/// Where a record goes.
#[derive(Clone, Copy)]
struct Target {
    partition: i32,
    /// Whether the partition's broker knows this producer, and so refuses every gap.
    has_state: bool,
}

/// One call of [`Producer::send_all`] on its way.
struct Attempt<'a, 'b> {
    producer: &'a Producer,
    batch: &'a [OutgoingRecord<'b>],
    targets: Vec<Result<Target, SendError>>,
    outcomes: Vec<Option<Result<(), SendError>>>,
    deadline: Instant,
    sender: mpsc::UnboundedSender<Report>,
    reports: mpsc::UnboundedReceiver<Report>,
    enqueued: Vec<bool>,
    outstanding: usize,
    timed_out: bool,
}

impl Drop for Attempt<'_, '_> {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.producer.withdraw();
        }
    }
}

impl<'a, 'b> Attempt<'a, 'b> {
    fn new(
        producer: &'a Producer,
        batch: &'a [OutgoingRecord<'b>],
        targets: Vec<Result<Target, SendError>>,
        deadline: Instant,
    ) -> Self {
        // Unbounded in type only: a record reports once.
        let (sender, reports) = mpsc::unbounded_channel();
        Attempt {
            producer,
            batch,
            targets,
            outcomes: vec![None; batch.len()],
            deadline,
            sender,
            reports,
            enqueued: vec![false; batch.len()],
            outstanding: 0,
            timed_out: false,
        }
    }

    async fn run(mut self) -> Vec<Result<(), SendError>> {
        let mut waiting: Vec<usize> = (0..self.targets.len()).collect();
        let mut stopped_keys = HashSet::new();
        // Two waves at most times: the first of each new partition, then everything else.
        while !waiting.is_empty() && !self.producer.is_fatal() {
            factum_fault::at(Point::ProduceBefore);
            waiting = self.enqueue_wave(waiting, &mut stopped_keys).await;
            factum_fault::at(Point::ProduceAfter);
            self.collect().await;
            factum_fault::at(Point::AcknowledgeAfter);
        }
        let outcomes = std::mem::take(&mut self.outcomes);
        outcomes
            .into_iter()
            .zip(self.batch)
            .map(|(outcome, record)| {
                outcome.unwrap_or_else(|| Err(self.not_acknowledged(record.topic, false)))
            })
            .collect()
    }

    /// Puts into the client's queue, in order, what may go now; gives back what must wait for it.
    async fn enqueue_wave(
        &mut self,
        waiting: Vec<usize>,
        stopped_keys: &mut HashSet<&'b [u8]>,
    ) -> Vec<usize> {
        let mut later = Vec::new();
        let mut waiting_keys: HashSet<&[u8]> = HashSet::new();
        let mut first_of: HashSet<(&str, i32)> = HashSet::new();
        for index in waiting {
            let record = &self.batch[index];
            if record.key.is_some_and(|key| stopped_keys.contains(key)) {
                self.outcomes[index] = Some(Err(SendError::new(
                    SendErrorKind::Held,
                    format!(
                        "a record for `{}` was not sent: an earlier record of its key failed",
                        record.topic
                    ),
                )));
                continue;
            }
            let sent = match self.targets[index].clone() {
                Err(error) => Err(error),
                Ok(target) => {
                    let waits = record.key.is_some_and(|key| waiting_keys.contains(key))
                        || (!target.has_state
                            && !first_of.insert((record.topic, target.partition)));
                    // A key that has a record waiting, or one on its way alone, waits with all the rest.
                    if waits || !target.has_state {
                        waiting_keys.extend(record.key);
                    }
                    if waits {
                        later.push(index);
                        continue;
                    }
                    self.enqueue_one(index, record, target.partition).await
                }
            };
            match sent {
                Ok(()) => {
                    self.enqueued[index] = true;
                    self.outstanding += 1;
                }
                Err(error) => {
                    stopped_keys.extend(record.key);
                    self.outcomes[index] = Some(Err(error));
                    if self.producer.is_fatal() {
                        return Vec::new();
                    }
                    // The partition's first record is yet to come.
                    if let Ok(target) = self.targets[index] {
                        first_of.remove(&(record.topic, target.partition));
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
                    self.producer.withdraw();
                    return Err(self.not_acknowledged(record.topic, false));
                }
                Some(Code::Fatal) => {
                    self.producer.withdraw();
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

    /// Waits for the reports of a wave, until the deadline; then withdraws, and waits a little for the rest.
    async fn collect(&mut self) {
        let mut withdrawn = self.producer.is_fatal();
        let mut limit = if withdrawn {
            self.producer.withdraw();
            Instant::now() + self.producer.withdrawal_limit()
        } else {
            self.deadline
        };
        let mut acknowledged: HashSet<(&str, i32)> = HashSet::new();
        while self.outstanding > 0 {
            let failed = match tokio::time::timeout_at(limit.into(), self.reports.recv()).await {
                Ok(Some(Report { index, error })) => {
                    self.outstanding -= 1;
                    let topic = self.batch[index].topic;
                    let outcome = match error {
                        None => {
                            if let Ok(target) = &self.targets[index] {
                                acknowledged.insert((topic, target.partition));
                            }
                            Ok(())
                        }
                        Some(Code::PurgeQueue) => Err(self.not_acknowledged(topic, false)),
                        Some(Code::PurgeInflight) => Err(self.not_acknowledged(topic, true)),
                        Some(code) => Err(refusal(code, topic)),
                    };
                    let failed = outcome.is_err();
                    self.outcomes[index] = Some(outcome);
                    failed
                }
                Err(_) if !withdrawn => {
                    self.timed_out = true;
                    true
                }
                // Reports that never come: the client is gone, or stuck. The outcome is unknown.
                Ok(None) | Err(_) => break,
            };
            // A failed record must not be overtaken by a later one of its key.
            if failed && !withdrawn {
                withdrawn = true;
                self.producer.withdraw();
                limit = Instant::now() + self.producer.withdrawal_limit();
            }
        }
        if self.outstanding > 0 {
            self.outstanding = 0;
            for index in 0..self.batch.len() {
                let record = &self.batch[index];
                let outcome = &mut self.outcomes[index];
                if outcome.is_none() && self.enqueued[index] {
                    *outcome = Some(Err(SendError::new(
                        SendErrorKind::Retriable,
                        format!(
                            "a record for `{}` was neither acknowledged nor given up by the client; \
                             it may be on the broker all the same",
                            record.topic
                        ),
                    )));
                }
            }
        }
        for (target, record) in self.targets.iter_mut().zip(self.batch) {
            if let Ok(target) = target {
                target.has_state |= acknowledged.contains(&(record.topic, target.partition));
            }
        }
        self.producer.note_acknowledged(acknowledged);
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
