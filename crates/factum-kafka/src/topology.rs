//! Which topics there are, how many partitions they have, and where their records begin and end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::admin::{
    AdminClient, AdminOptions, NewPartitions, NewTopic as RdNewTopic, TopicReplication, TopicResult,
};
use rdkafka::client::Client;
use rdkafka::error::KafkaError as RdError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use crate::client_log::ClientLog;
use crate::error::{KafkaError, KafkaErrorKind};
use crate::settings::KafkaSettings;

/// How long to read a client's complaints after a failed question.
const COMPLAINTS_READ: Duration = Duration::from_millis(20);

/// A topic to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic {
    /// The name: 1 to 249 of letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// How many partitions, at least 1.
    pub partitions: u32,
    /// How many brokers keep each partition, at least 1 and at most the cluster's brokers.
    pub replication: u16,
}

/// Where a partition's records begin and end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRange {
    /// The topic.
    pub topic: String,
    /// The partition, from 0.
    pub partition: i32,
    /// The offset of the oldest record still there. 0 as long as nothing was dropped.
    pub low: i64,
    /// The offset after the newest record.
    pub high: i64,
}

/// How many partitions each topic has; nothing for a topic that does not exist (CFG-4).
///
/// Asking never creates a topic, not even on a broker with `auto.create.topics.enable=true`: the
/// request says so.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refuse to tell.
///
/// ```no_run
/// # async fn example() -> Result<(), factum_kafka::KafkaError> {
/// use std::time::Duration;
/// use factum_kafka::{KafkaSettings, describe_topics};
///
/// let settings = KafkaSettings::new("127.0.0.1:9092", "billing");
/// let topics = describe_topics(&settings, &["orders.confirmed"], Duration::from_secs(5)).await?;
/// if topics["orders.confirmed"].is_none() {
///     eprintln!("create the topic orders.confirmed");
/// }
/// # Ok(())
/// # }
/// ```
pub async fn describe_topics(
    settings: &KafkaSettings,
    topics: &[&str],
    timeout: Duration,
) -> Result<BTreeMap<String, Option<u32>>, KafkaError> {
    let names: Vec<String> = topics.iter().map(|&name| name.to_owned()).collect();
    blocking(settings, "describing the topics", move |settings| {
        let asking = Asking::new(settings, timeout)?;
        names
            .into_iter()
            .map(|name| {
                let partitions = asking.partitions_of(&name)?;
                Ok((name, partitions))
            })
            .collect()
    })
    .await
}

/// Creates the topics that are missing and waits until the brokers know them. A topic that exists is
/// left as it is, whatever its number of partitions.
///
/// A service creates only topics that it owns (CFG-5). The embedded broker does not speak this
/// request: use `EmbeddedBroker::create_topic` there.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refused one of the topics.
pub async fn create_topics(
    settings: &KafkaSettings,
    topics: &[NewTopic],
    timeout: Duration,
) -> Result<(), KafkaError> {
    let deadline = Instant::now() + timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    let names: Vec<&str> = topics.iter().map(|topic| topic.name.as_str()).collect();
    // Asked first: an unreachable broker is told better by this request than by the next.
    let there = describe_topics(settings, &names, left()).await?;
    let missing: Vec<RdNewTopic<'_>> = topics
        .iter()
        .filter(|topic| there.get(&topic.name).copied().flatten().is_none())
        .map(|topic| {
            RdNewTopic::new(
                &topic.name,
                i32::try_from(topic.partitions).unwrap_or(i32::MAX),
                TopicReplication::Fixed(i32::from(topic.replication)),
            )
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let failed = |error: &RdError| KafkaError::new("creating topics", settings, error, None);
    let admin = admin(settings, "creating topics")?;
    let answer = admin.create_topics(&missing, &limited(left())).await;
    retire(admin);
    let results = answer.map_err(|error| failed(&error))?;
    for result in results {
        match result {
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            Err((topic, code)) => {
                return Err(KafkaError::new(
                    format!("creating the topic `{topic}`"),
                    settings,
                    &RdError::AdminOp(code),
                    None,
                ));
            }
        }
    }
    loop {
        let there =
            describe_topics(settings, &names, left().max(Duration::from_millis(100))).await?;
        match there.iter().find(|(_, partitions)| partitions.is_none()) {
            None => return Ok(()),
            Some((name, _)) if left().is_zero() => {
                return Err(KafkaError::told(
                    KafkaErrorKind::UnknownTopic,
                    format!("waiting for the new topic `{name}`"),
                    settings,
                    "the brokers accepted it and do not show it yet",
                ));
            }
            Some(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Deletes a topic with all its records, and the offsets that groups have committed in it.
///
/// For tests: no service deletes a topic. The brokers need some moments after the answer.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refused.
pub async fn delete_topic(
    settings: &KafkaSettings,
    topic: &str,
    timeout: Duration,
) -> Result<(), KafkaError> {
    let what = format!("deleting the topic `{topic}`");
    let admin = admin(settings, &what)?;
    let answer = admin.delete_topics(&[topic], &limited(timeout)).await;
    retire(admin);
    settle(settings, what, answer)
}

/// Gives a topic more partitions: `partitions` in all. Keys then go to other partitions than before, so the
/// order of a key holds only within what was sent before and what is sent after.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refused.
pub async fn add_partitions(
    settings: &KafkaSettings,
    topic: &str,
    partitions: u32,
    timeout: Duration,
) -> Result<(), KafkaError> {
    let what = format!("adding partitions to the topic `{topic}`");
    let admin = admin(settings, &what)?;
    let count = usize::try_from(partitions).unwrap_or(usize::MAX);
    let wanted = NewPartitions::new(topic, count);
    let answer = admin.create_partitions(&[wanted], &limited(timeout)).await;
    retire(admin);
    settle(settings, what, answer)
}

/// Drops the records of a partition below an offset, as retention would.
///
/// For tests: no service deletes records.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refused.
pub async fn delete_records(
    settings: &KafkaSettings,
    topic: &str,
    partition: i32,
    below: i64,
    timeout: Duration,
) -> Result<(), KafkaError> {
    let what = format!("deleting records of `{topic}`/{partition}");
    let failed = |error: &RdError| KafkaError::new(what.clone(), settings, error, None);
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition_offset(topic, partition, Offset::Offset(below))
        .map_err(|error| failed(&error))?;
    let admin = admin(settings, &what)?;
    let answer = admin.delete_records(&list, &limited(timeout)).await;
    retire(admin);
    answer
        .and_then(|list| {
            list.elements()
                .iter()
                .try_for_each(|element| element.error())
        })
        .map_err(|error| failed(&error))
}

fn admin(settings: &KafkaSettings, what: &str) -> Result<AdminClient<ClientLog>, KafkaError> {
    settings
        .admin_config()
        .create_with_context(ClientLog::default())
        .map_err(|error| KafkaError::new(what, settings, &error, None))
}

fn limited(timeout: Duration) -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(timeout))
        .operation_timeout(Some(timeout))
}

/// Its destructor joins a thread.
fn retire(admin: AdminClient<ClientLog>) {
    drop(tokio::task::spawn_blocking(move || drop(admin)));
}

fn settle(
    settings: &KafkaSettings,
    what: String,
    answer: Result<Vec<TopicResult>, RdError>,
) -> Result<(), KafkaError> {
    let refused = match answer {
        Ok(results) => results.into_iter().find_map(Result::err),
        Err(error) => return Err(KafkaError::new(what, settings, &error, None)),
    };
    match refused {
        Some((_, code)) => Err(KafkaError::new(
            what,
            settings,
            &RdError::AdminOp(code),
            None,
        )),
        None => Ok(()),
    }
}

/// Where the records of every partition of these topics begin and end. A topic that does not exist
/// gives nothing.
///
/// The embedded broker drops records without a word beyond 5 MiB or 100,000 batches for each
/// partition: a `low` above 0 there means that records are gone.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refuse to tell.
pub async fn watermarks(
    settings: &KafkaSettings,
    topics: &[&str],
    timeout: Duration,
) -> Result<Vec<PartitionRange>, KafkaError> {
    let names: Vec<String> = topics.iter().map(|&name| name.to_owned()).collect();
    blocking(settings, "reading the watermarks", move |settings| {
        let asking = Asking::new(settings, timeout)?;
        let mut ranges = Vec::new();
        for topic in names {
            for partition in 0..asking.partitions_of(&topic)?.unwrap_or(0) {
                let partition = i32::try_from(partition).unwrap_or(i32::MAX);
                ranges.push(asking.range_of(&topic, partition)?);
            }
        }
        Ok(ranges)
    })
    .await
}

/// How many brokers keep each partition of these topics: the fewest of any partition.
pub(crate) async fn copies(
    settings: &KafkaSettings,
    topics: Vec<String>,
    timeout: Duration,
) -> Result<BTreeMap<String, u32>, KafkaError> {
    blocking(settings, "counting the copies of topics", move |settings| {
        let asking = Asking::new(settings, timeout)?;
        topics
            .into_iter()
            .map(|topic| {
                let metadata = asking
                    .client
                    .client()
                    .fetch_metadata(Some(&topic), asking.left())
                    .map_err(|error| {
                        asking.failed(format!("describing the topic `{topic}`"), &error)
                    })?;
                let partitions = metadata.topics().iter().flat_map(|told| told.partitions());
                let fewest = partitions.map(|one| one.replicas().len()).min();
                Ok((
                    topic,
                    u32::try_from(fewest.unwrap_or(0)).unwrap_or(u32::MAX),
                ))
            })
            .collect()
    })
    .await
}

/// Kafka's rule for a topic's name.
pub(crate) fn is_legal_topic(name: &str) -> bool {
    (1..=249).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// The number of partitions, nothing for a missing topic. Blocks.
pub(crate) fn partitions_of<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    limit: Duration,
) -> Result<Option<u32>, RdError> {
    let metadata = client.fetch_metadata(Some(topic), limit)?;
    let Some(found) = metadata.topics().iter().find(|t| t.name() == topic) else {
        return Ok(None);
    };
    match found.error().map(Code::from) {
        None | Some(Code::LeaderNotAvailable) if !found.partitions().is_empty() => Ok(Some(
            u32::try_from(found.partitions().len()).unwrap_or(u32::MAX),
        )),
        None | Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(None),
        Some(code) => Err(RdError::MetadataFetch(code)),
    }
}

/// A client for questions, and what it has to say when one fails.
struct Asking<'a> {
    settings: &'a KafkaSettings,
    client: BaseProducer<ClientLog>,
    deadline: Instant,
}

impl<'a> Asking<'a> {
    fn new(settings: &'a KafkaSettings, timeout: Duration) -> Result<Asking<'a>, KafkaError> {
        let client = settings
            .admin_config()
            .create_with_context(ClientLog::default())
            .map_err(|error| KafkaError::new("making a client", settings, &error, None))?;
        Ok(Asking {
            settings,
            client,
            deadline: Instant::now() + timeout,
        })
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn partitions_of(&self, topic: &str) -> Result<Option<u32>, KafkaError> {
        if !is_legal_topic(topic) {
            return Ok(None);
        }
        partitions_of(self.client.client(), topic, self.left())
            .map_err(|error| self.failed(format!("describing the topic `{topic}`"), &error))
    }

    fn range_of(&self, topic: &str, partition: i32) -> Result<PartitionRange, KafkaError> {
        let (low, high) = self
            .client
            .client()
            .fetch_watermarks(topic, partition, self.left())
            .map_err(|error| self.failed(format!("reading the watermarks of `{topic}`"), &error))?;
        Ok(PartitionRange {
            topic: topic.to_owned(),
            partition,
            low,
            high,
        })
    }

    fn failed(&self, what: String, error: &RdError) -> KafkaError {
        // Nobody polls this client, so its complaints wait to be read.
        self.client.poll(COMPLAINTS_READ);
        let sign = self.client.client().context().last_sign();
        KafkaError::new(what, self.settings, error, sign.as_deref())
    }
}

/// Runs a request of the blocking client aside.
pub(crate) async fn blocking<T: Send + 'static>(
    settings: &KafkaSettings,
    what: &'static str,
    request: impl FnOnce(&KafkaSettings) -> Result<T, KafkaError> + Send + 'static,
) -> Result<T, KafkaError> {
    let own = settings.clone();
    tokio::task::spawn_blocking(move || request(&own))
        .await
        .unwrap_or_else(|_| {
            Err(KafkaError::told(
                KafkaErrorKind::Other,
                what,
                settings,
                "the runtime is shutting down",
            ))
        })
}

impl ProducerContext for ClientLog {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
