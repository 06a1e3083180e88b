//! Topics, records and offsets of a broker, as a test needs them.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use factum_kafka::{
    KafkaSettings, NewTopic, OutgoingRecord, Producer, Record, add_partitions, create_topics,
    delete_records, delete_topic, describe_topics, inspect, watermarks,
};

use crate::cluster::KafkaCluster;
use crate::eventually;
use crate::kafka::KafkaServer;

/// Names the brokers that tests use instead of a private Kafka: `host:port`, separated by commas.
pub const BROKERS: &str = "FACTUM_TEST_BROKERS";

/// How long any request to a broker may take in a test; a busy machine needs most of it.
const LIMIT: Duration = Duration::from_secs(30);

/// A broker for a test: Apache Kafka, or librdkafka's in-process broker. The methods panic when the
/// broker doesn't do what was asked: a test can't go on then.
#[derive(Debug)]
pub struct TestBroker {
    settings: KafkaSettings,
    kind: Kind,
    /// Copies of each partition of a new topic.
    replication: u16,
}

#[derive(Debug)]
enum Kind {
    Kafka,
    #[cfg(feature = "embedded")]
    Embedded(factum_kafka::EmbeddedBroker),
}

/// Apache Kafka: the one that `FACTUM_TEST_BROKERS` names, else a private one that all tests of this
/// test binary share and that ends with it. It blocks its thread while that one starts, some seven
/// seconds.
///
/// # Panics
///
/// When there is none; the text says what to install or to set.
pub fn kafka() -> TestBroker {
    static SERVER: OnceLock<KafkaServer> = OnceLock::new();
    let brokers = std::env::var(BROKERS).unwrap_or_else(|_| {
        let server = SERVER.get_or_init(|| match KafkaServer::start() {
            Ok(server) => server,
            Err(failure) => panic!(
                "no private Kafka for this test: {failure:#}\n\
                 Or set {BROKERS} to a Kafka without topics of earlier tests."
            ),
        });
        server.bootstrap()
    });
    TestBroker::at(brokers)
}

/// librdkafka's in-process broker, one of its own for each call; gone with the value. Mind its limits:
/// [`factum_kafka::EmbeddedBroker`] lists them, and [`TestBroker::assert_nothing_dropped`] checks them.
///
/// # Panics
///
/// When it can't start.
#[cfg(feature = "embedded")]
pub fn embedded() -> TestBroker {
    let broker = match factum_kafka::EmbeddedBroker::start(1) {
        Ok(broker) => broker,
        Err(failure) => panic!("no broker for this test: {failure}"),
    };
    TestBroker {
        settings: KafkaSettings::new(broker.bootstrap_servers(), "factum-testing"),
        kind: Kind::Embedded(broker),
        replication: 1,
    }
}

impl TestBroker {
    /// A Kafka that somebody else started, at `host:port`, separated by commas.
    pub fn at(brokers: String) -> TestBroker {
        TestBroker {
            settings: KafkaSettings::new(brokers, "factum-testing"),
            kind: Kind::Kafka,
            replication: 1,
        }
    }

    /// A cluster of several nodes: its topics have three copies.
    pub fn of(cluster: &KafkaCluster) -> TestBroker {
        TestBroker {
            replication: 3,
            ..TestBroker::at(cluster.bootstrap())
        }
    }

    /// The brokers' `host:port`, separated by commas.
    pub fn bootstrap(&self) -> String {
        self.settings.brokers.clone()
    }

    /// How to reach the broker, for code that takes settings.
    pub fn settings(&self) -> &KafkaSettings {
        &self.settings
    }

    /// The in-process broker, to make it fail; `None` on Kafka.
    #[cfg(feature = "embedded")]
    pub fn as_embedded(&self) -> Option<&factum_kafka::EmbeddedBroker> {
        match &self.kind {
            Kind::Embedded(broker) => Some(broker),
            Kind::Kafka => None,
        }
    }

    /// Creates a topic.
    ///
    /// # Panics
    ///
    /// Also when the topic exists: on a shared Kafka, records of another test would be in it.
    pub async fn create_topic(&self, name: &str, partitions: u32) {
        let there = self.must("describing a topic", async {
            describe_topics(&self.settings, &[name], LIMIT).await
        });
        assert!(
            there.await.get(name).copied().flatten().is_none(),
            "the topic `{name}` exists already: give each test a topic of its own, \
             and start the Kafka of {BROKERS} anew for each run"
        );
        match &self.kind {
            Kind::Kafka => {
                let topic = NewTopic {
                    name: name.to_owned(),
                    partitions,
                    replication: self.replication,
                };
                self.must(
                    "creating a topic",
                    create_topics(&self.settings, &[topic], LIMIT),
                )
                .await;
            }
            #[cfg(feature = "embedded")]
            Kind::Embedded(broker) => {
                let partitions = i32::try_from(partitions).unwrap_or(i32::MAX);
                self.must("creating a topic", async {
                    broker.create_topic(name, partitions)
                })
                .await;
            }
        }
    }

    /// Deletes a topic, and waits until the brokers know it no more. Not on the in-process broker.
    pub async fn delete_topic(&self, name: &str) {
        self.must(
            "deleting a topic",
            delete_topic(&self.settings, name, LIMIT),
        )
        .await;
        eventually(LIMIT, "the topic's end", async || {
            let topics = describe_topics(&self.settings, &[name], LIMIT).await;
            topics.is_ok_and(|topics| topics[name].is_none())
        })
        .await;
    }

    /// Gives a topic more partitions: so many in all. Not on the in-process broker.
    pub async fn add_partitions(&self, topic: &str, partitions: u32) {
        self.must(
            "adding partitions",
            add_partitions(&self.settings, topic, partitions, LIMIT),
        )
        .await;
        eventually(LIMIT, "the new partitions", async || {
            let topics = describe_topics(&self.settings, &[topic], LIMIT).await;
            topics.is_ok_and(|topics| topics[topic] == Some(partitions))
        })
        .await;
    }

    /// Drops the records of a partition below an offset, as retention would. Not on the in-process broker.
    pub async fn delete_records(&self, topic: &str, partition: i32, below: i64) {
        self.must(
            "deleting records",
            delete_records(&self.settings, topic, partition, below, LIMIT),
        )
        .await;
    }

    /// Appends records, each a key and a value (`None` is a tombstone), to a partition in this order,
    /// and waits until the broker has them.
    pub async fn produce(&self, topic: &str, partition: i32, records: &[(&str, Option<&[u8]>)]) {
        let batch: Vec<OutgoingRecord<'_>> = records
            .iter()
            .map(|(key, value)| OutgoingRecord {
                topic,
                key: Some(key.as_bytes()),
                value: *value,
                headers: Vec::new(),
                partition: Some(partition),
            })
            .collect();
        self.send(&batch).await;
    }

    /// Puts records without a key into a partition, in order.
    pub async fn produce_keyless(&self, topic: &str, partition: i32, values: &[Vec<u8>]) {
        let batch: Vec<OutgoingRecord<'_>> = values
            .iter()
            .map(|value| OutgoingRecord {
                topic,
                key: None,
                value: Some(value),
                headers: Vec::new(),
                partition: Some(partition),
            })
            .collect();
        self.send(&batch).await;
    }

    /// Sends records as they are, and waits until the broker has them.
    pub async fn send(&self, batch: &[OutgoingRecord<'_>]) {
        let producer = self
            .must("making a producer", async {
                Producer::connect(&self.settings, LIMIT)
            })
            .await;
        for (place, sent) in producer.send_all(batch).await.into_iter().enumerate() {
            if let Err(failure) = sent {
                panic!(
                    "sending record {place} of {} failed: {failure}",
                    batch.len()
                );
            }
        }
        producer.close(LIMIT).await;
    }

    /// All records of a topic, by partition and offset.
    pub async fn records(&self, topic: &str) -> Vec<Record> {
        self.must(
            "reading a topic",
            inspect::read_topic(&self.settings, topic, LIMIT),
        )
        .await
    }

    /// The offsets that a group has committed in a topic, by partition; those without one left out.
    pub async fn committed(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        self.must(
            "reading committed offsets",
            inspect::committed_offsets(&self.settings, group, topic, LIMIT),
        )
        .await
    }

    /// Commits offsets for a group without members: it begins there.
    pub async fn commit_offsets(&self, group: &str, topic: &str, offsets: &BTreeMap<i32, i64>) {
        self.must(
            "committing offsets",
            inspect::commit_offsets(&self.settings, group, topic, offsets, LIMIT),
        )
        .await;
    }

    /// The offset after the newest record, by partition.
    pub async fn end_offsets(&self, topic: &str) -> BTreeMap<i32, i64> {
        let ranges = self
            .must(
                "reading watermarks",
                watermarks(&self.settings, &[topic], LIMIT),
            )
            .await;
        ranges
            .into_iter()
            .map(|range| (range.partition, range.high))
            .collect()
    }

    /// Checks that the broker still has every record that was sent to these topics: the in-process
    /// broker drops the oldest without a word beyond 5 MiB in a partition.
    ///
    /// # Panics
    ///
    /// When a partition no longer begins at offset 0.
    pub async fn assert_nothing_dropped(&self, topics: &[&str]) {
        let ranges = self
            .must(
                "reading watermarks",
                watermarks(&self.settings, topics, LIMIT),
            )
            .await;
        for range in ranges {
            assert_eq!(
                range.low, 0,
                "the broker has dropped the first {} records of {}/{}",
                range.low, range.topic, range.partition
            );
        }
    }

    async fn must<T, E: std::fmt::Display>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, E>>,
    ) -> T {
        match request.await {
            Ok(answer) => answer,
            Err(failure) => panic!("{what} at {} failed: {failure}", self.settings.brokers),
        }
    }
}
