//! The running side of Factum: service, consumer lanes, relay, configuration, shutdown.

mod cloud_events;
mod config;
mod consumer;
mod handler;
mod instance;
mod lane;
mod maintenance;
mod metric;
mod mirror;
mod pace;
mod parts;
mod problem;
mod readers;
mod relay;
mod replay;
mod retrier;
mod retry_topic;
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
    Database, DatabaseError, DatabaseSettings, DeadLetterGroup, ErrorKind, EventReader,
    MaintenanceReport, Outbox, Publication, PublishError, Window, audit, dead_letter_groups,
    dead_letter_list, event_readers, maintain, migration, new_event_id, replay_plan, status,
};
