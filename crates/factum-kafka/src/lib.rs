//! Factum's only door to Kafka: consumer, producer, topology, security.
//!
//! No other crate names the client library. What is here keeps the promises that the brokers' clients
//! leave to their users: the producer can't be weakened (PROD-1), a record's order within its key
//! survives every failure ([`Producer`]), no topic is created in passing (CFG-4, CFG-5), and no
//! password, key or payload gets into an error or a log line.

mod client_log;
mod consumer;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod gap;
pub mod inspect;
mod lanes;
mod probe;
mod producer;
mod record;
#[cfg(test)]
mod schedule;
mod settings;
mod sync;
mod topic_settings;
mod topology;

pub use consumer::{GroupConsumer, GroupSettings, GroupStats, StartAt};
#[cfg(feature = "embedded")]
pub use embedded::{BrokerFault, BrokerRequest, EmbeddedBroker, EmbeddedBrokerError};
pub use error::{KafkaError, KafkaErrorKind};
pub use gap::{Gap, GapPolicy};
pub use lanes::LaneFeed;
pub use probe::BrokerProbe;
pub use producer::{
    HEADER_BYTES_MAX, HEADERS_MAX, OutgoingRecord, Producer, SendError, SendErrorKind,
};
pub use record::{Headers, Record};
pub use settings::{
    GroupProtocol, KafkaSettings, SaslMechanism, Security, SettingProblem, UnknownSaslMechanism,
};
pub use topic_settings::{TopicSettings, topic_settings};
pub use topology::{
    NewTopic, PartitionRange, add_partitions, create_topics, delete_records, delete_topic,
    describe_topics, watermarks,
};
