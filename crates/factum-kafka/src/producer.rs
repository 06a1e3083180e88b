//! The one producer: idempotent, acknowledged by all in-sync replicas, in order for each key.
//!
//! # How the order of a key survives a failure
//!
//! A record that failed must not be overtaken by a later record of its key: the relay sends the failed
//! one again, and then the two stand in the wrong order for good. Three things together rule that out,
//! and none of them is librdkafka's default:
//!
//! - **One request in flight for each broker.** With more, the broker refuses request 1 and may accept
//!   request 2: a broker that holds no state for a producer id (a new producer, or one idle for a day)
//!   takes any sequence number as the first. librdkafka then even reports request 1 as written, because
//!   it takes the acknowledgement of 2 for one of 1. PROD-1 allows five; throughput comes from batches.
//! - **`enable.gapless.guarantee`.** When a broker refuses a batch for good, librdkafka's default is to
//!   number the rest anew and send it. With this setting the producer stops instead, whole.
//! - **No time limit inside the client.** librdkafka would give up record by record, so the second of a
//!   key could still leave after the first was given up. The limit is kept here: at its end *everything*
//!   not yet acknowledged is withdrawn at once and the producer is spent.
//!
//! So a producer that failed is thrown away ([`Producer::is_fatal`]) and the next one starts from the
//! outbox table. Records that were on their way at that moment may be on the broker already: they are sent
//! again with the same event id, and the consumers' dedup stops them (public case 26).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// How long withdrawn records may take to report back.
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
    /// Names and values, at most [`HEADERS_MAX`] and [`HEADER_BYTES_MAX`].
    pub headers: Vec<(&'a str, &'a [u8])>,
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
/// It does not weaken, whatever the settings say: `acks=all`, idempotence, one request in flight for each broker. A record is at
/// most `message.max.bytes` long (1,000,000 unless set), headers and framing included. The queue is
/// bounded (20,000 records, 64 MiB) and waits when full, in order.
pub struct Producer {
    inner: Option<Arc<ThreadedProducer<Reports>>>,
    settings: KafkaSettings,
    delivery_timeout: Duration,
    topics: Mutex<HashMap<String, Topic>>,
    spent: AtomicBool,
}

#[derive(Clone, Copy)]
struct Topic {
    exists: bool,
    asked_at: Instant,
}

impl Topic {
    fn believed(&self) -> bool {
        let limit = if self.exists {
            TOPIC_BELIEVED
        } else {
            MISSING_BELIEVED
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
            spent: AtomicBool::new(false),
        })
    }

    /// The longest that one [`Producer::send_all`] takes, but for [withdrawing](Producer::is_fatal) what is left (2 s at most).
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
        let mut outcomes: Vec<Option<Result<(), SendError>>> = vec![None; batch.len()];
        if !self.is_fatal() {
            let missing = self.look_up_topics(batch, deadline).await;
            let mut attempt = Attempt::new(self, batch, &mut outcomes, deadline);
            attempt.enqueue(&missing).await;
            attempt.collect().await;
        }
        outcomes
            .into_iter()
            .zip(batch)
            .map(|(outcome, record)| {
                outcome.unwrap_or_else(|| {
                    Err(SendError::new(
                        SendErrorKind::Fatal,
                        format!(
                            "a record for `{}` was not sent: the producer has stopped and must be rebuilt",
                            record.topic
                        ),
                    ))
                })
            })
            .collect()
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

    /// The topics of the batch that can't be sent to, with the reason.
    async fn look_up_topics<'b>(
        &self,
        batch: &[OutgoingRecord<'b>],
        deadline: Instant,
    ) -> HashMap<&'b str, SendError> {
        let mut unusable = HashMap::new();
        let named: HashSet<&'b str> = batch.iter().map(|record| record.topic).collect();
        for topic in named {
            if !topology::is_legal_topic(topic) {
                unusable.insert(
                    topic,
                    SendError::new(
                        SendErrorKind::Permanent,
                        "the topic's name is not legal: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
                    ),
                );
                continue;
            }
            if let Err(error) = self.look_up_topic(topic, deadline).await {
                unusable.insert(topic, error);
            }
        }
        unusable
    }

    async fn look_up_topic(&self, topic: &str, deadline: Instant) -> Result<(), SendError> {
        let believed = lock(&self.topics)
            .get(topic)
            .copied()
            .filter(Topic::believed);
        let exists = match believed {
            Some(topic) => topic.exists,
            None => {
                let client = Arc::clone(self.client());
                let settings = self.settings.clone();
                let name = topic.to_owned();
                let limit = deadline.saturating_duration_since(Instant::now());
                let partitions = tokio::task::spawn_blocking(move || {
                    let log = &client.client().context().log;
                    topology::partitions_of(client.client(), log, &settings, &name, limit)
                })
                .await
                .map_err(|_| {
                    SendError::new(SendErrorKind::Retriable, "the process is shutting down")
                })?
                .map_err(|error| SendError::new(SendErrorKind::Retriable, error.to_string()))?;
                let exists = partitions.is_some();
                lock(&self.topics).insert(
                    topic.to_owned(),
                    Topic {
                        exists,
                        asked_at: Instant::now(),
                    },
                );
                exists
            }
        };
        if exists {
            Ok(())
        } else {
            Err(SendError::new(
                SendErrorKind::Permanent,
                format!("the topic `{topic}` does not exist (CFG-4). Create it on the cluster."),
            ))
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

/// One call of [`Producer::send_all`] on its way.
struct Attempt<'a, 'b> {
    producer: &'a Producer,
    batch: &'a [OutgoingRecord<'b>],
    outcomes: &'a mut [Option<Result<(), SendError>>],
    deadline: Instant,
    reports: mpsc::UnboundedReceiver<Report>,
    sender: Option<mpsc::UnboundedSender<Report>>,
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
        outcomes: &'a mut [Option<Result<(), SendError>>],
        deadline: Instant,
    ) -> Self {
        // Unbounded in type only: a record reports once.
        let (sender, reports) = mpsc::unbounded_channel();
        Attempt {
            producer,
            batch,
            outcomes,
            deadline,
            reports,
            sender: Some(sender),
            outstanding: 0,
            timed_out: false,
        }
    }

    /// Puts the records into the client's queue, in order.
    async fn enqueue(&mut self, unusable: &HashMap<&'b str, SendError>) {
        let sender = self.sender.take().expect("`enqueue` is called once");
        let mut stopped_keys: HashSet<&[u8]> = HashSet::new();
        for (index, record) in self.batch.iter().enumerate() {
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
            let checked = match unusable.get(record.topic) {
                Some(error) => Err(error.clone()),
                None => check_headers(record),
            };
            let enqueued = match checked {
                Ok(()) => self.enqueue_one(index, record, &sender).await,
                refused => refused,
            };
            match enqueued {
                Ok(()) => self.outstanding += 1,
                Err(error) => {
                    let go_on = !self.producer.is_fatal();
                    stopped_keys.extend(record.key);
                    self.outcomes[index] = Some(Err(error));
                    if !go_on {
                        return;
                    }
                }
            }
        }
    }

    async fn enqueue_one(
        &mut self,
        index: usize,
        record: &OutgoingRecord<'_>,
        sender: &mpsc::UnboundedSender<Report>,
    ) -> Result<(), SendError> {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (name, value) in &record.headers {
            headers = headers.insert(Header {
                key: name,
                value: Some(*value),
            });
        }
        let mut base: BaseRecord<'_, [u8], [u8], _> = BaseRecord::with_opaque_to(
            record.topic,
            Box::new(ReportTo {
                index,
                sender: sender.clone(),
            }),
        )
        .headers(headers);
        base.key = record.key;
        base.payload = record.value;
        base.partition = record.partition;
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
                    self.producer.spent.store(true, Ordering::Release);
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
                Some(code) => return Err(refusal(code, record.topic)),
                None => {
                    return Err(SendError::new(
                        SendErrorKind::Permanent,
                        format!("a record for `{}` can't be sent: {error}", record.topic),
                    ));
                }
            }
        }
    }

    /// Waits for the reports, until the deadline; then withdraws and waits a little for the rest.
    async fn collect(&mut self) {
        let mut limit = self.deadline;
        let mut withdrawn = self.producer.is_fatal();
        if withdrawn {
            limit = Instant::now() + WITHDRAWAL_LIMIT;
        }
        while self.outstanding > 0 {
            match tokio::time::timeout_at(limit.into(), self.reports.recv()).await {
                Ok(Some(report)) => {
                    self.outstanding -= 1;
                    let topic = self.batch[report.index].topic;
                    let outcome = match report.error {
                        None => Ok(()),
                        Some(Code::PurgeQueue) => Err(self.not_acknowledged(topic, false)),
                        Some(Code::PurgeInflight) => Err(self.not_acknowledged(topic, true)),
                        Some(code) => Err(refusal(code, topic)),
                    };
                    // A failed record must not be overtaken by a later one of its key.
                    if outcome.is_err() && !withdrawn {
                        withdrawn = true;
                        self.producer.withdraw();
                        limit = Instant::now() + WITHDRAWAL_LIMIT;
                    }
                    self.outcomes[report.index] = Some(outcome);
                }
                Err(_) if !withdrawn => {
                    withdrawn = true;
                    self.timed_out = true;
                    self.producer.withdraw();
                    limit = Instant::now() + WITHDRAWAL_LIMIT;
                }
                // Reports that never come: the client is gone, or stuck. The outcome is unknown.
                Ok(None) | Err(_) => break,
            }
        }
        if self.outstanding > 0 {
            for index in 0..self.batch.len() {
                if self.outcomes[index].is_none() {
                    self.outcomes[index] =
                        Some(Err(self.not_acknowledged(self.batch[index].topic, true)));
                }
            }
            self.outstanding = 0;
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
            .map(|(name, value)| name.len() + value.len())
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
