//! Private PostgreSQL servers and brokers for Factum's tests and its demo.
//!
//! The bare crate starts servers ([`postgres`], [`mod@kafka`], [`cluster`]) and nothing else, with few dependencies.
//!
//! | feature | adds |
//! |---|---|
//! | `database` | `database()`: a fresh database per test |
//! | `broker` | `kafka()`: topics, records and offsets of Apache Kafka |
//! | `embedded` | `embedded()`: the same on librdkafka's in-process broker |
//!
//! Tests start private servers unless `FACTUM_TEST_DATABASE_URL` and `FACTUM_TEST_BROKERS` name some.

#[cfg(feature = "broker")]
mod broker;
pub mod cluster;
#[cfg(feature = "database")]
mod database;
mod download;
pub mod guard;
pub mod kafka;
mod kafka_node;
mod kafka_wire;
mod keeper;
pub mod postgres;
pub mod tool;
#[cfg(any(feature = "database", feature = "broker"))]
mod wait;

#[cfg(feature = "embedded")]
pub use broker::embedded;
#[cfg(feature = "broker")]
pub use broker::{BROKERS, TestBroker, kafka};
#[cfg(feature = "database")]
pub use database::{DATABASE_URL, TestDatabase, database};
/// What [`TestBroker`] sends and reads.
#[cfg(feature = "broker")]
pub use factum_kafka::{OutgoingRecord, Record};
#[cfg(any(feature = "database", feature = "broker"))]
pub use wait::eventually;
