//! The running side of Factum: service, consumer lanes, relay, configuration, shutdown.

mod cloud_events;
mod config;
mod consumer;
mod handler;
mod lane;
mod maintenance;
mod metric;
mod pace;
mod parts;
mod problem;
mod readers;
mod relay;
mod retrier;
mod service;
mod signals;
mod start_check;
mod stats;
mod work_list;
mod worker;

pub use cloud_events::{CloudEventsSource, CloudEventsSourceError};
pub use config::{Config, ConfigError, Profile};
pub use consumer::{Consumer, ConsumerError};
pub use factum_kafka::StartAt;
pub use handler::{BatchHandler, Handler, Tx};
pub use lane::{LaneError, TombstonePolicy, UnknownPolicy};
pub use problem::Problem;
pub use relay::{Relay, RelayError, RelayStats};
pub use service::{Service, ServiceBuilder, ServiceError};
pub use stats::{ConsumerStats, TypeStats};

// What the command and the facade take from below, so that each depends on this crate alone.
pub use factum_kafka::{KafkaSettings, SaslMechanism, Security};
pub use factum_postgres::{
    Database, DatabaseError, DatabaseSettings, DueKey, ErrorKind, EventReader, MaintenanceReport,
    Outbox, ParkedKey, Publication, PublishError, SetAside, Window, audit, event_readers, maintain,
    migration, new_event_id, parked_keys, release_parked, set_aside_parked,
};
