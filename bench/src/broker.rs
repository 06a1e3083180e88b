//! Topics: made, filled and read back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use factum_testing::tool;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

use crate::contender::LANES;

/// How long any request may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long to wait for room in the producer's queue.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);
/// How long one poll for records may wait.
const POLL_WAIT: Duration = Duration::from_millis(500);

/// A record as a relay would send it.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// A record as it stands in a topic.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "bench-stage");
    config
}

/// Makes a topic of [`LANES`] partitions.
pub(crate) async fn create_topic(brokers: &str, name: &str) -> Result<()> {
    create_topic_of(brokers, name, LANES).await
}

/// Makes a topic of so many partitions.
pub(crate) async fn create_topic_of(brokers: &str, name: &str, partitions: i32) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create()?;
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(LIMIT));
    for made in admin.create_topics([&topic], &options).await? {
        made.map_err(|(name, code)| anyhow!("creating the topic {name}: {code}"))?;
    }
    Ok(())
}

/// Appends the records, those of a key in their order, and waits until the broker has them all.
pub(crate) fn fill(brokers: &str, topic: &str, records: &[Record]) -> Result<()> {
    let producer: ThreadedProducer<DefaultProducerContext> = client(brokers)
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("compression.codec", "lz4")
        .set("linger.ms", "20")
        .create()?;
    for record in records {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (key, value) in &record.headers {
            headers = headers.insert(Header {
                key,
                value: Some(value),
            });
        }
        let mut message = BaseRecord::to(topic)
            .key(&record.key)
            .payload(&record.value)
            .headers(headers);
        while let Err((error, back)) = producer.send(message) {
            ensure!(
                error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull)
                    && !tool::is_interrupted(),
                "filling {topic}: {error}"
            );
            message = back;
            std::thread::sleep(QUEUE_FULL_PAUSE);
        }
    }
    producer
        .flush(LIMIT)
        .with_context(|| format!("filling {topic}"))?;
    let there = ends(&client(brokers).create()?, topic)?.iter().sum::<i64>();
    ensure!(
        there == records.len() as i64,
        "{topic} has {there} records instead of {}",
        records.len()
    );
    Ok(())
}

/// The offset after the last record of each partition.
fn ends(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i64>> {
    let metadata = consumer.fetch_metadata(Some(topic), LIMIT)?;
    let partitions = metadata
        .topics()
        .iter()
        .flat_map(|topic| topic.partitions());
    partitions
        .map(|partition| {
            let partition = partition.id();
            consumer
                .fetch_watermarks(topic, partition, LIMIT)
                .map(|(_, high)| high)
                .with_context(|| format!("asking for the end of {topic}/{partition}"))
        })
        .collect()
}

/// All records of a topic; those of a partition in its order.
pub(crate) fn read_back(brokers: &str, topic: &str) -> Result<Vec<Stored>> {
    let consumer: BaseConsumer = client(brokers)
        .set("group.id", "bench-stage")
        .set("enable.auto.commit", "false")
        .create()?;
    let mut left: i64 = ends(&consumer, topic)?.iter().sum();
    let mut assignment = TopicPartitionList::new();
    for partition in 0..LANES {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    let mut records = Vec::with_capacity(usize::try_from(left).unwrap_or_default());
    let limit = Instant::now() + LIMIT;
    while left > 0 {
        ensure!(
            Instant::now() < limit && !tool::is_interrupted(),
            "reading {topic} back: {left} records did not come"
        );
        if let Some(message) = consumer.poll(POLL_WAIT) {
            let message = message.with_context(|| format!("reading {topic} back"))?;
            records.push(Stored {
                key: message.key().unwrap_or_default().to_vec(),
                value: message.payload().unwrap_or_default().to_vec(),
            });
            left -= 1;
        }
    }
    Ok(records)
}
