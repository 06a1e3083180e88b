//! The database and the broker of a run: private ones, or those that were given.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use factum::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection};
use factum::{Config, Database, Event as _, migration};
use factum_kafka::{
    EmbeddedBroker, KafkaSettings, NewTopic, create_topics, describe_topics, watermarks,
};
use factum_testing::postgres::{PostgresBinaries, PostgresServer};

use super::options::Options;
use crate::events::{InvoiceIssued, OrderConfirmed};

/// The topics of the example, with the consumer of each.
pub const TOPICS: [(&str, &str); 2] = [
    (OrderConfirmed::TOPIC, "billing-order-confirmed"),
    (InvoiceIssued::TOPIC, "mailer-invoice-issued"),
];

/// How long a request to the broker may take.
pub const BROKER_LIMIT: Duration = Duration::from_secs(30);

/// More than a record of the example takes, with its headers and its part of the batch's frame.
const BYTES_PER_RECORD: u64 = 1_000;

/// What one partition of the embedded broker is trusted with: it drops silently beyond 5 MiB, and
/// keys don't spread evenly.
const BYTES_PER_PARTITION: u64 = 3_000_000;

const FEWEST_PARTITIONS: u64 = 4;

/// How soon a group notices that a member was killed. A real broker takes by default nothing below
/// 6 s. The embedded one takes any value, but lets a new group's first member wait 3 s for others, and
/// throws it out without an answer if its session ends meanwhile.
const SESSION_TIMEOUT_EMBEDDED_MS: u32 = 4_000;
const SESSION_TIMEOUT_MS: u32 = 6_000;

/// A database and a broker, ready for the services.
#[derive(Debug)]
pub struct Servers {
    /// The run's own database, with its password.
    database_url: String,
    /// A given server, on which the database must be dropped at the end.
    given_server: Option<(String, String)>,
    kafka: KafkaSettings,
    embedded: Option<EmbeddedBroker>,
    // Last: whoever uses it goes first.
    _postgres: Option<PostgresServer>,
}

impl Servers {
    /// Starts what wasn't given. Nothing is made on a given server yet.
    ///
    /// # Errors
    ///
    /// A server can't be started; the text says what to install.
    pub async fn start(options: &Options) -> Result<Servers> {
        let embedded = match options.brokers {
            Some(_) => None,
            None => Some(EmbeddedBroker::start(1)?),
        };
        let brokers = match (&options.brokers, &embedded) {
            (Some(brokers), _) => brokers.clone(),
            (None, Some(broker)) => broker.bootstrap_servers().to_owned(),
            (None, None) => bail!("there is no broker"),
        };
        let (postgres, database_url, given_server) = match &options.database_url {
            Some(server) => {
                let name = format!("factum_demo_{:016x}", fastrand::u64(..));
                (
                    None,
                    with_database(server, &name)?,
                    Some((server.clone(), name)),
                )
            }
            None => {
                let started = tokio::task::spawn_blocking(|| {
                    PostgresServer::start(&PostgresBinaries::find()?)
                });
                let server = started
                    .await
                    .map_err(|_| anyhow!("starting PostgreSQL panicked"))??;
                let url = server.url();
                (Some(server), url, None)
            }
        };
        let mut servers = Servers {
            database_url,
            given_server,
            kafka: KafkaSettings::new(brokers, "orders-demo"),
            embedded,
            _postgres: postgres,
        };
        // A given broker may need TLS and a login: read as the services read them.
        servers.kafka = Config::from_vars(servers.environment("orders-demo"))?.kafka;
        Ok(servers)
    }

    /// Makes the run's database on a given server, all tables, and the topics.
    ///
    /// # Errors
    ///
    /// A server refuses, or a topic already holds records.
    pub async fn prepare(&self, orders: u64) -> Result<()> {
        if let Some((server, name)) = &self.given_server {
            let mut conn = PgConnection::connect(server).await.context(
                "FACTUM_DEMO_DATABASE_URL: the server does not answer, or refuses this user",
            )?;
            // The name is ours: letters, digits and underscores.
            sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")))
                .execute(&mut conn)
                .await
                .context("FACTUM_DEMO_DATABASE_URL: its user may not create a database")?;
        }
        let config = Config::from_vars(self.environment("orders-demo"))?;
        let database = Database::connect(&config.database).await?;
        migration::up(&database).await?;
        database.close().await;
        let mut conn = self.connect().await?;
        sqlx::raw_sql(crate::TABLES).execute(&mut conn).await?;
        self.prepare_topics(orders).await
    }

    async fn prepare_topics(&self, orders: u64) -> Result<()> {
        let partitions = partitions_for(orders);
        if let Some(broker) = &self.embedded {
            for (topic, _) in TOPICS {
                broker.create_topic(topic, i32::try_from(partitions)?)?;
            }
            return Ok(());
        }
        let names = TOPICS.map(|(topic, _)| topic);
        let there = describe_topics(&self.kafka, &names, BROKER_LIMIT).await?;
        let used: Vec<String> = watermarks(&self.kafka, &names, BROKER_LIMIT)
            .await?
            .into_iter()
            .filter(|range| range.high > 0)
            .map(|range| range.topic)
            .collect();
        if let Some(topic) = used.first() {
            bail!(
                "topic {topic} at {} has held records before, and the demo must know every record in \
                 it. Delete it, then start again:\n  \
                 kafka-topics.sh --bootstrap-server {} --delete --topic {topic}",
                self.kafka.brokers,
                self.kafka.brokers
            );
        }
        let missing: Vec<NewTopic> = names
            .into_iter()
            .filter(|name| there.get(*name).copied().flatten().is_none())
            .map(|name| NewTopic {
                name: name.to_owned(),
                partitions,
                replication: 1,
            })
            .collect();
        create_topics(&self.kafka, &missing, BROKER_LIMIT).await?;
        Ok(())
    }

    /// A connection to the run's database.
    ///
    /// # Errors
    ///
    /// The server doesn't answer.
    pub async fn connect(&self) -> Result<PgConnection> {
        PgConnection::connect(&self.database_url)
            .await
            .context("the demo's database does not answer")
    }

    /// How to reach the broker.
    pub fn kafka(&self) -> &KafkaSettings {
        &self.kafka
    }

    /// Whether the broker is the embedded one.
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// A service's environment: what this process has, but for what belongs to the demo or to other
    /// servers.
    pub fn environment(&self, service: &str) -> BTreeMap<String, String> {
        let is_private = self.embedded.is_some();
        let mut environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| {
                let is_ours = ["FACTUM_", "DATABASE_URL", "PG"]
                    .iter()
                    .any(|p| name.starts_with(p));
                let is_of_another_broker = is_private && name.starts_with("KAFKA_");
                !is_ours && !is_of_another_broker
            })
            .collect();
        let session_timeout = if is_private {
            SESSION_TIMEOUT_EMBEDDED_MS
        } else {
            SESSION_TIMEOUT_MS
        };
        for (name, value) in [
            ("DATABASE_URL", self.database_url.clone()),
            ("KAFKA_BROKERS", self.kafka.brokers.clone()),
            ("FACTUM_SERVICE", service.to_owned()),
            ("FACTUM_PROFILE", "development".to_owned()),
            (
                "KAFKA_CONSUMER_SESSION_TIMEOUT_MS",
                session_timeout.to_string(),
            ),
            (
                "KAFKA_CONSUMER_HEARTBEAT_INTERVAL_MS",
                (session_timeout / 6).to_string(),
            ),
        ] {
            environment.insert(name.to_owned(), value);
        }
        environment
    }

    /// Drops the run's database from a given server, unless it is to be kept. Says what was left.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn clean_up(self, keep: bool) -> Result<Option<String>> {
        let Some((server, name)) = &self.given_server else {
            return Ok(None);
        };
        if keep {
            return Ok(Some(format!("the database {name} is kept")));
        }
        let mut conn = PgConnection::connect(server).await?;
        sqlx::raw_sql(AssertSqlSafe(format!(
            "DROP DATABASE IF EXISTS {name} WITH (FORCE)"
        )))
        .execute(&mut conn)
        .await
        .with_context(|| format!("the database {name} could not be dropped"))?;
        Ok(None)
    }
}

/// So many that a partition of the embedded broker stays well below its limit.
fn partitions_for(orders: u64) -> u32 {
    let partitions = (orders * BYTES_PER_RECORD)
        .div_ceil(BYTES_PER_PARTITION)
        .max(FEWEST_PARTITIONS);
    u32::try_from(partitions.min(32)).unwrap_or(32)
}

/// `url` with another database's name.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (base, query) = match url.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (url, String::new()),
    };
    let host_at = base.find("://").map(|at| at + 3).context(
        "FACTUM_DEMO_DATABASE_URL is not of the form postgres://user:password@host:5432/database",
    )?;
    let end = base[host_at..]
        .find('/')
        .map_or(base.len(), |at| host_at + at);
    Ok(format!("{}/{name}{query}", &base[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::options::MOST_ORDERS_EMBEDDED;

    #[test]
    fn no_partition_comes_near_the_embedded_brokers_limit() {
        assert_eq!(partitions_for(1), 4);
        for orders in [1, 10_000, 50_000, MOST_ORDERS_EMBEDDED] {
            let bytes = orders * BYTES_PER_RECORD / u64::from(partitions_for(orders));
            assert!(
                bytes < 4_000_000,
                "{orders} orders put {bytes} bytes into a partition"
            );
        }
    }

    #[test]
    fn only_the_database_changes_in_a_url() {
        let changed = with_database("postgres://u:p@h:1/a?sslmode=require", "x").unwrap();
        assert_eq!(changed, "postgres://u:p@h:1/x?sslmode=require");
        assert_eq!(
            with_database("postgres://u@h", "x").unwrap(),
            "postgres://u@h/x"
        );
        assert!(with_database("h:5432", "x").is_err());
    }
}
