//! One suite on two brokers: the embedded one and Apache Kafka.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use factum_kafka::{EmbeddedBroker, KafkaSettings, NewTopic, create_topics, watermarks};
use factum_testing::kafka::KafkaServer;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// How long anything may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Broker {
    pub(crate) settings: KafkaSettings,
    pub(crate) embedded: Option<EmbeddedBroker>,
}

impl Broker {
    pub(crate) fn embedded() -> Broker {
        let broker = EmbeddedBroker::start(1).unwrap();
        Broker {
            settings: KafkaSettings::new(broker.bootstrap_servers(), "factum-kafka-tests"),
            embedded: Some(broker),
        }
    }

    /// One server for the whole test binary, or the one that is given.
    pub(crate) fn kafka() -> Broker {
        static SERVER: OnceLock<KafkaServer> = OnceLock::new();
        let brokers = std::env::var("FACTUM_TEST_BROKERS").unwrap_or_else(|_| {
            SERVER
                .get_or_init(|| KafkaServer::start().unwrap())
                .bootstrap()
        });
        Broker {
            settings: KafkaSettings::new(brokers, "factum-kafka-tests"),
            embedded: None,
        }
    }

    /// A fresh topic.
    pub(crate) async fn topic(&self, partitions: u32) -> String {
        let name = fresh_topic();
        match &self.embedded {
            Some(broker) => broker
                .create_topic(&name, i32::try_from(partitions).unwrap())
                .unwrap(),
            None => create_topics(
                &self.settings,
                &[NewTopic {
                    name: name.clone(),
                    partitions,
                    replication: 1,
                }],
                LIMIT,
            )
            .await
            .unwrap(),
        }
        name
    }

    /// Everything in a topic, partition by partition, in order.
    pub(crate) async fn read_all(&self, topic: &str) -> BTreeMap<i32, Vec<Read>> {
        let ranges = watermarks(&self.settings, &[topic], LIMIT).await.unwrap();
        let settings = self.settings.clone();
        let topic = topic.to_owned();
        tokio::task::spawn_blocking(move || {
            let consumer: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", &settings.brokers)
                .set("group.id", "nobody")
                .set("enable.auto.commit", "false")
                .create()
                .unwrap();
            let mut assignment = TopicPartitionList::new();
            for range in &ranges {
                assignment
                    .add_partition_offset(&topic, range.partition, Offset::Beginning)
                    .unwrap();
            }
            consumer.assign(&assignment).unwrap();
            let expected: i64 = ranges.iter().map(|range| range.high - range.low).sum();
            let mut read: BTreeMap<i32, Vec<Read>> = BTreeMap::new();
            let start = Instant::now();
            let mut count = 0;
            while count < expected {
                assert!(
                    start.elapsed() < LIMIT,
                    "read {count} of {expected} records in {LIMIT:?}"
                );
                let Some(message) = consumer.poll(Duration::from_millis(50)) else {
                    continue;
                };
                let message = message.unwrap();
                count += 1;
                read.entry(message.partition()).or_default().push(Read {
                    key: message.key().map(<[u8]>::to_vec),
                    value: message.payload().map(<[u8]>::to_vec),
                    headers: message
                        .headers()
                        .map(|headers| {
                            headers
                                .iter()
                                .map(|h| (h.key.to_owned(), h.value.unwrap_or_default().to_vec()))
                                .collect()
                        })
                        .unwrap_or_default(),
                });
            }
            read
        })
        .await
        .unwrap()
    }

    /// The values of each key in order, as text.
    pub(crate) async fn values_by_key(&self, topic: &str) -> BTreeMap<String, Vec<String>> {
        let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for read in self.read_all(topic).await.into_values().flatten() {
            by_key
                .entry(text(read.key))
                .or_default()
                .push(text(read.value));
        }
        by_key
    }
}

/// A record as the broker has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

pub(crate) fn text(bytes: Option<Vec<u8>>) -> String {
    String::from_utf8(bytes.unwrap_or_default()).unwrap()
}

/// A topic name that no other test and no other run has.
pub(crate) fn fresh_topic() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    format!("test.{now:x}.{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Makes each test run once on each broker.
#[macro_export]
macro_rules! on_both_brokers {
    ($($name:ident),* $(,)?) => {
        mod on_the_embedded_broker {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::broker::Broker::embedded()).await;
                }
            )*
        }
        mod on_kafka {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::broker::Broker::kafka()).await;
                }
            )*
        }
    };
}
