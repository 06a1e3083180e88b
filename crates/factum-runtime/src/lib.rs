//! The running side of Factum: service, consumer lanes, relay, configuration, shutdown.

mod answer;
mod breaker;
mod call;
mod caller;
mod cloud_events;
mod config;
mod consumer;
mod direct_client;
pub mod doctor;
mod endpoint;
mod handler;
mod health;
mod horizon;
mod in_flight;
mod instance;
mod keyed_lane;
mod lane;
mod maintenance;
mod metric;
mod mirror;
mod outbox_meter;
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
mod wake;
mod work_list;
mod worker;

pub use answer::{Answer, CallEndpoint, Calls, ResponseHandler};
pub use call::{Call, OutboundCallError};
pub use caller::CallerError;
pub use cloud_events::{CloudEventsSource, CloudEventsSourceError};
pub use config::{Config, ConfigError, Profile};
pub use consumer::{Consumer, ConsumerError, ForeignIds};
pub use direct_client::{DirectClient, DirectError, DirectResponse};
pub use endpoint::{EndpointSettings, SendError};
pub use factum_kafka::{GapPolicy, GroupProtocol, StartAt};
pub use handler::{BatchHandler, Handler, Tx};
pub use health::HealthSettings;
pub use lane::{LaneError, TombstonePolicy, UnknownPolicy};
pub use problem::Problem;
pub use relay::{Relay, RelayError, RelayStats};
pub use service::{Service, ServiceBuilder, ServiceError};
pub use stats::{ConsumerStats, TypeStats};
pub use wake::RelayWake;

// What the command and the facade take from below, so that each depends on this crate alone.
pub use factum_kafka::{KafkaSettings, SaslMechanism, Security};
pub use factum_postgres::{
    CallRefusal, CallResponse, CallRow, CallState, Database, DatabaseError, DatabaseSettings,
    DeadLetterGroup, DueKey, ErrorKind, EventReader, MaintenanceReport, Outbox, ParkedKey,
    Publication, PublishError, SetAside, Window, audit, dead_letter_groups, dead_letter_list,
    event_readers, find_call, maintain, migration, new_event_id, parked_keys, relay_wake_is_on,
    release_parked, replay_plan, resolve_call, retry_call, reveal_response, set_aside_parked,
    status, switch_relay_wake, unfinished_calls,
};
