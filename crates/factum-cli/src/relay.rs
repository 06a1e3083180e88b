//! `factum relay`: the relay on its own, for outboxes that services in other languages write.

use std::io::IsTerminal as _;
use std::sync::Arc;

use clap::Args;
use factum_runtime::{CloudEventsSource, Config, Relay, RelayStats, Service, ServiceError};
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::EnvFilter;

use crate::outcome::{self, Exit, Failure, Report};

const SCHEMA: &str = "factum.relay/1";

/// Configured by the environment, as every service: DATABASE_URL, KAFKA_BROKERS, FACTUM_SERVICE, …
/// It logs to stderr; RUST_LOG chooses how much. It runs until SIGTERM or SIGINT, and then sends what it has begun; the
/// second signal ends it at once.
#[derive(Debug, Args)]
#[command(
    after_help = "Settings: DATABASE_URL, KAFKA_BROKERS and FACTUM_SERVICE are required, and KAFKA_SECURITY_PROTOCOL unless \
                  FACTUM_PROFILE is development; KAFKA_SASL_MECHANISM, KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD, \
                  KAFKA_SSL_CA_LOCATION and KAFKA_PRODUCER_… as for every service. FACTUM_HEALTH_LISTEN and \
                  FACTUM_HEALTH_TOKEN serve /live, /ready and /metrics; FACTUM_RELAY_WAKE=listen lets the database tell of new \
                  rows; FACTUM_SHUTDOWN_DEADLINE_SECONDS is the time to end in. docs/operate/relay.md has the rest.\n\n\
                  Exit codes: 0 it was told to end, and did; 1 it failed, also when Kafka can't be reached at the start; \
                  2 wrong usage, or the configuration is incomplete; 3 the database is away at the start; 130 and 143 \
                  the second SIGINT or SIGTERM.\n\n\
                  Example:\n  DATABASE_URL=postgres://… KAFKA_BROKERS=kafka-1:9092 KAFKA_SECURITY_PROTOCOL=SSL \\\n  \
                  FACTUM_SERVICE=orders-relay factum relay"
)]
pub(crate) struct Options {
    /// Add the attributes of CloudEvents to each record, with this source: a URI reference such as /orders
    /// [default: FACTUM_CLOUD_EVENTS_SOURCE, else none]
    #[arg(long, value_name = "URI")]
    cloud_events_source: Option<CloudEventsSource>,
    /// Leave the tables' upkeep to another process: then the role needs only the rights of docs/operate/relay.md
    #[arg(long)]
    no_maintenance: bool,
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
    // Its Debug shows no secret.
    tracing::info!(?config, "the relay's settings");
    let runtime =
        tokio::runtime::Runtime::new().map_err(|error| failure(error.to_string(), Exit::Failed))?;
    let relay = Relay::new();
    let stats = relay.stats();
    let mut service = Service::builder(config.clone())
        .relay_with(relay)
        .maintenance(!options.no_maintenance);
    if config.health.is_some() {
        // This program is the relay's alone, so the recorder is, too.
        let recorder = PrometheusBuilder::new()
            .install_recorder()
            .map_err(|error| failure(error.to_string(), Exit::Failed))?;
        service = service.metrics_text(move || recorder.render());
    }
    runtime
        .block_on(service.run())
        .map_err(|error| failure(error.to_string(), exit_of(&error)))?;
    Ok(Report {
        text: String::new(),
        exit: Exit::Done,
        json: options.json.then(|| closing(&stats)),
    })
}

fn exit_of(error: &ServiceError) -> Exit {
    if error.is_database_away() {
        Exit::Away
    } else {
        Exit::Failed
    }
}

/// The closing object. What counts to 64 bits is text.
fn closing(stats: &Arc<RelayStats>) -> serde_json::Map<String, serde_json::Value> {
    let mut fields = outcome::json(SCHEMA, Exit::Done);
    for (name, count) in [
        ("published", stats.published()),
        ("failed", stats.failed()),
        ("set_aside", stats.set_aside()),
    ] {
        fields.insert(name.to_owned(), count.to_string().into());
    }
    fields
}
