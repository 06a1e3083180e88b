//! `cargo xtask services`, and the servers that tests share.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use factum_testing::kafka::KafkaServer;
use factum_testing::postgres::{PostgresBinaries, PostgresServer};
use factum_testing::tool;
use serde_json::json;

use crate::prerequisites::{self, FOR_KAFKA, FOR_POSTGRES};
use crate::screen::Screen;
use crate::{Usage, Verdict};

/// Names a PostgreSQL that tests use instead of a private one.
pub(crate) const DATABASE_URL: &str = "FACTUM_TEST_DATABASE_URL";

/// Names a Kafka that tests use instead of a private one.
pub(crate) const BROKERS: &str = "FACTUM_TEST_BROKERS";

/// The pause between two looks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Start a private PostgreSQL and Kafka, print how to reach them, and keep them until Ctrl-C
///
/// With the printed lines in another shell, single tests don't start servers of their own. Both
/// servers and their data are gone in the end. Tests need topics that don't exist yet: start anew
/// for each run of tests on Kafka.
#[derive(Args)]
#[command(after_help = "\
Exit codes: 1 a server did not start, 2 usage, 130 interrupted.

Example: cargo xtask services --only postgres")]
pub(crate) struct Services {
    /// Start only one of them
    #[arg(long, value_name = "SERVER", value_parser = ["postgres", "kafka"])]
    only: Option<String>,
    /// The release of PostgreSQL, 14 to 18, as a package of binaries [default: what is installed]
    #[arg(long, value_name = "MAJOR")]
    postgres: Option<u32>,
}

impl Services {
    pub(crate) fn run(&self, screen: &Screen) -> Result<Verdict> {
        let wants = |server: &str| self.only.as_deref().is_none_or(|only| only == server);
        if self.postgres.is_some() && !wants("postgres") {
            return Err(Usage("--postgres and --only kafka exclude each other".to_owned()).into());
        }
        let mut running = Running::default();
        if wants("postgres") {
            prerequisites::ensure(screen, &[FOR_POSTGRES])?;
            running.start_postgres(screen, self.postgres)?;
        }
        if wants("kafka") {
            prerequisites::ensure(screen, &[FOR_KAFKA])?;
            running.start_kafka(screen)?;
        }
        if let Some(server) = &running.postgres {
            screen.data(format_args!("export {DATABASE_URL}='{}'", server.url()));
        }
        if let Some(server) = &running.kafka {
            screen.data(format_args!("export {BROKERS}='{}'", server.bootstrap()));
        }
        screen.end(&json!({
            "database_url": running.postgres.as_ref().map(PostgresServer::url),
            "brokers": running.kafka.as_ref().map(KafkaServer::bootstrap),
        }));
        screen.note("running until Ctrl-C");
        while !tool::is_interrupted() {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(Verdict::Holds)
    }
}

/// Servers that run now; dropped, they stop.
#[derive(Debug, Default)]
pub(crate) struct Running {
    postgres: Option<PostgresServer>,
    kafka: Option<KafkaServer>,
}

impl Running {
    /// The URL of a PostgreSQL for tests: the given one, else a private one, started at the first
    /// call.
    pub(crate) fn database_url(&mut self, screen: &Screen) -> Result<String> {
        if let Ok(given) = std::env::var(DATABASE_URL) {
            return Ok(given);
        }
        if self.postgres.is_none() {
            self.start_postgres(screen, None)?;
        }
        self.postgres
            .as_ref()
            .map(PostgresServer::url)
            .context("PostgreSQL was just started")
    }

    /// The release of the private PostgreSQL, if one runs.
    pub(crate) fn private_postgres(&self) -> Option<u32> {
        self.postgres.as_ref().map(PostgresServer::major)
    }

    /// The brokers for tests, likewise.
    pub(crate) fn brokers(&mut self, screen: &Screen) -> Result<String> {
        if let Ok(given) = std::env::var(BROKERS) {
            return Ok(given);
        }
        if self.kafka.is_none() {
            self.start_kafka(screen)?;
        }
        self.kafka
            .as_ref()
            .map(KafkaServer::bootstrap)
            .context("Kafka was just started")
    }

    fn start_postgres(&mut self, screen: &Screen, major: Option<u32>) -> Result<()> {
        screen.begin("starting PostgreSQL");
        let started = postgres(major);
        screen.clear();
        let server = started?;
        screen.note(format_args!(
            "PostgreSQL {} on port {}",
            server.major(),
            server.port()
        ));
        self.postgres = Some(server);
        Ok(())
    }

    fn start_kafka(&mut self, screen: &Screen) -> Result<()> {
        screen.begin("starting Kafka (the first time its jars are fetched)");
        let started = KafkaServer::start();
        screen.clear();
        let server = started?;
        screen.note(format_args!(
            "Apache Kafka {} on {}",
            factum_testing::kafka::VERSION,
            server.bootstrap()
        ));
        self.kafka = Some(server);
        Ok(())
    }
}

/// Starts what is not yet there and not given, all at once: a Kafka takes some seconds.
pub(crate) fn start_all(screen: &Screen, servers: &mut [Running]) -> Result<()> {
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let starting: Vec<_> = servers
            .iter_mut()
            .map(|set| {
                scope.spawn(|| {
                    set.database_url(screen)?;
                    set.brokers(screen)?;
                    Ok(())
                })
            })
            .collect();
        starting
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            })
            .collect()
    });
    results.into_iter().collect()
}

/// A private PostgreSQL of a release, or of what the machine has.
pub(crate) fn postgres(major: Option<u32>) -> Result<PostgresServer> {
    let binaries = match major {
        Some(major) => PostgresBinaries::version(major)?,
        None => PostgresBinaries::find()?,
    };
    PostgresServer::start(&binaries)
}
