//! `factum relay`: the relay on its own, for outboxes that services in other languages write.

use std::io::IsTerminal as _;

use clap::Args;
use factum_runtime::{CloudEventsSource, Config, Service};
use tracing_subscriber::EnvFilter;

use crate::outcome::{self, Exit, Failure, Report};

const SCHEMA: &str = "factum.relay/1";

/// Configured by the environment, as every service: DATABASE_URL, KAFKA_BROKERS, FACTUM_SERVICE, …
/// It logs to stderr; RUST_LOG chooses how much. It runs until SIGTERM or SIGINT; the second signal
/// ends it at once.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 it was told to end, and did; 1 it failed, also when the database or Kafka can't be reached; \
                  2 wrong usage, or the configuration is incomplete.\n\n\
                  Example:\n  DATABASE_URL=postgres://… KAFKA_BROKERS=kafka-1:9092 KAFKA_SECURITY_PROTOCOL=SSL \\\n  \
                  FACTUM_SERVICE=orders-relay factum relay"
)]
pub(crate) struct Options {
    /// Add the attributes of CloudEvents to each record, with this source: a URI reference such as /orders
    /// [default: FACTUM_CLOUD_EVENTS_SOURCE, else none]
    #[arg(long, value_name = "URI")]
    cloud_events_source: Option<CloudEventsSource>,
    /// End stdout with one JSON object on one line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let failure = |what: String, exit| Failure {
        what,
        // The configuration and the start checks say of each problem where and what to do.
        hint: None,
        exit,
        schema: options.json.then_some(SCHEMA),
        refusal: None,
    };
    let mut config = Config::from_env().map_err(|error| failure(error.to_string(), Exit::Usage))?;
    if let Some(source) = &options.cloud_events_source {
        config.cloud_events = Some(source.clone());
    }
    let runtime =
        tokio::runtime::Runtime::new().map_err(|error| failure(error.to_string(), Exit::Failed))?;
    runtime
        .block_on(Service::builder(config).relay().run())
        .map_err(|error| failure(error.to_string(), Exit::Failed))?;
    Ok(Report {
        text: String::new(),
        exit: Exit::Done,
        json: options.json.then(|| outcome::json(SCHEMA, Exit::Done)),
    })
}
