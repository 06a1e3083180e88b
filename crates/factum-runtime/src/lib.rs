//! The running side of Factum: service, consumer lanes, relay, configuration, shutdown.

mod config;
mod consumer;
mod handler;
mod lane;
mod maintenance;
mod problem;
mod service;
mod signals;

pub use config::{Config, ConfigError, Profile};
pub use consumer::{Consumer, ConsumerError};
pub use factum_kafka::StartAt;
pub use handler::{BatchHandler, Handler, Tx};
pub use lane::{ConsumerStats, LaneError, TombstonePolicy, UnknownPolicy};
pub use problem::Problem;
