//! One suite on two brokers: the embedded one and Apache Kafka.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use factum_kafka::{EmbeddedBroker, KafkaSettings, Record};
use factum_testing::TestBroker;

/// How long anything may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Broker {
    pub(crate) settings: KafkaSettings,
    broker: TestBroker,
}

impl Broker {
    pub(crate) fn embedded() -> Broker {
        Broker::new(factum_testing::embedded())
    }

    pub(crate) fn kafka() -> Broker {
        Broker::new(factum_testing::kafka())
    }

    fn new(broker: TestBroker) -> Broker {
        Broker {
            settings: broker.settings().clone(),
            broker,
        }
    }

    /// The embedded broker, to make it fail.
    pub(crate) fn faults(&self) -> &EmbeddedBroker {
        self.broker.as_embedded().unwrap()
    }

    /// A fresh topic.
    pub(crate) async fn topic(&self, partitions: u32) -> String {
        let name = fresh_topic();
        self.broker.create_topic(&name, partitions).await;
        name
    }

    pub(crate) async fn records(&self, topic: &str) -> Vec<Record> {
        self.broker.records(topic).await
    }

    /// The values of each key in order, as text.
    pub(crate) async fn values_by_key(&self, topic: &str) -> BTreeMap<String, Vec<String>> {
        let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for record in self.records(topic).await {
            by_key
                .entry(text(record.key))
                .or_default()
                .push(text(record.value));
        }
        by_key
    }
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
