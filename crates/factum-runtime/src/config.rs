//! Configuration from the environment: typed, checked as a whole, secrets kept out of sight.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use factum_kafka::{GroupProtocol, KafkaSettings, SaslMechanism, Security, SettingProblem};
use factum_postgres::{DatabaseSettings, Retention, Window};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use crate::cloud_events::CloudEventsSource;
use crate::endpoint::{Endpoint, EndpointSettings};
use crate::health::{HealthSettings, TOKEN_MIN_CHARS};
use crate::problem::{Problem, write_list};
use crate::wake::RelayWake;

/// Longest service name, in bytes: PostgreSQL cuts `application_name` off after 63.
const SERVICE_NAME_MAX_BYTES: usize = 63;
/// Connections in the pool when neither the operator nor the service's lanes say how many.
const MAX_CONNECTIONS_DEFAULT: u32 = 16;
/// How long a process may drain after the first signal. Orchestrators kill after 30 s by default.
const SHUTDOWN_DEADLINE_DEFAULT_SECONDS: u32 = 25;
/// How many days an event id stays known to dedup.
const DEDUP_WINDOW_DEFAULT_DAYS: u32 = 30;
/// How many days ahead partitions are made, so that a week without maintenance stops nobody.
const DEDUP_AHEAD_DAYS: u32 = 7;
/// How long after it happened an event may be replayed, or come again for any other reason than the topic and the
/// retries.
const REPLAY_HORIZON_DEFAULT_DAYS: u32 = 7;
/// How long a lane waits for a free connection.
const ACQUIRE_TIMEOUT_DEFAULT_SECONDS: u32 = 10;
/// How long a statement waits for a lock (a concurrent duplicate waits for the winner's commit).
const LOCK_TIMEOUT_DEFAULT_SECONDS: u32 = 5;
/// A handler's time limit until the service takes the longest of its consumers' own limits.
const HANDLER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

const DATABASE_URL: &str = "DATABASE_URL";
const KAFKA_BROKERS: &str = "KAFKA_BROKERS";
const SERVICE: &str = "FACTUM_SERVICE";
const PROFILE: &str = "FACTUM_PROFILE";
const SECURITY_PROTOCOL: &str = "KAFKA_SECURITY_PROTOCOL";
const SASL_MECHANISM: &str = "KAFKA_SASL_MECHANISM";
const SASL_USERNAME: &str = "KAFKA_SASL_USERNAME";
const SASL_PASSWORD: &str = "KAFKA_SASL_PASSWORD";
const SSL_CA_LOCATION: &str = "KAFKA_SSL_CA_LOCATION";
const MAX_CONNECTIONS: &str = "FACTUM_DATABASE_MAX_CONNECTIONS";
const ACQUIRE_TIMEOUT: &str = "FACTUM_DATABASE_ACQUIRE_TIMEOUT_SECONDS";
const LOCK_TIMEOUT: &str = "FACTUM_DATABASE_LOCK_TIMEOUT_SECONDS";
const SHUTDOWN_DEADLINE: &str = "FACTUM_SHUTDOWN_DEADLINE_SECONDS";
const DEDUP_WINDOW: &str = "FACTUM_DEDUP_WINDOW_DAYS";
const REPLAY_HORIZON: &str = "FACTUM_REPLAY_HORIZON_DAYS";
const SHORT_WINDOW: &str = "FACTUM_ALLOW_SHORT_DEDUP_WINDOW";
const OUTBOX_KEEP: &str = "FACTUM_OUTBOX_KEEP_HOURS";
const DEAD_LETTERS_KEEP: &str = "FACTUM_DEAD_LETTERS_KEEP_DAYS";
const OPEN_DEAD_LETTERS_KEEP: &str = "FACTUM_OPEN_DEAD_LETTERS_KEEP_DAYS";
const CALLS_KEEP: &str = "FACTUM_CALLS_KEEP_DAYS";
const REPLAYS_KEEP: &str = "FACTUM_REPLAYS_KEEP_DAYS";
const AUDIT_KEEP: &str = "FACTUM_AUDIT_KEEP_DAYS";
const BUILD: &str = "FACTUM_BUILD";
const CREATE_TOPICS: &str = "FACTUM_CREATE_TOPICS";
const CLOUD_EVENTS_SOURCE: &str = "FACTUM_CLOUD_EVENTS_SOURCE";
const INSTANCE: &str = "FACTUM_INSTANCE";
const GROUP_PROTOCOL: &str = "FACTUM_GROUP_PROTOCOL";
const RELAY_WAKE: &str = "FACTUM_RELAY_WAKE";
const HEALTH_LISTEN: &str = "FACTUM_HEALTH_LISTEN";
const HEALTH_TOKEN: &str = "FACTUM_HEALTH_TOKEN";

/// Every setting that has a name of its own, for the typo guard and the documentation's test.
const SETTINGS: [&str; 30] = [
    DATABASE_URL,
    KAFKA_BROKERS,
    SERVICE,
    BUILD,
    PROFILE,
    SECURITY_PROTOCOL,
    SASL_MECHANISM,
    SASL_USERNAME,
    SASL_PASSWORD,
    SSL_CA_LOCATION,
    MAX_CONNECTIONS,
    ACQUIRE_TIMEOUT,
    LOCK_TIMEOUT,
    SHUTDOWN_DEADLINE,
    DEDUP_WINDOW,
    REPLAY_HORIZON,
    SHORT_WINDOW,
    OUTBOX_KEEP,
    DEAD_LETTERS_KEEP,
    OPEN_DEAD_LETTERS_KEEP,
    CALLS_KEEP,
    REPLAYS_KEEP,
    AUDIT_KEEP,
    CREATE_TOPICS,
    CLOUD_EVENTS_SOURCE,
    INSTANCE,
    GROUP_PROTOCOL,
    RELAY_WAKE,
    HEALTH_LISTEN,
    HEALTH_TOKEN,
];
/// Long enough for a version with a hash.
const BUILD_CHARS: usize = 100;
/// `FACTUM_CALL_<NAME>_URL` and its kin: an endpoint of calls each.
const CALL_PREFIX: &str = "FACTUM_CALL_";
/// What may follow an endpoint's name. Longer ones come before those that they end with.
const CALL_SETTINGS: [&str; 6] = [
    "URL",
    "AUTHORIZATION",
    "CONNECT_TIMEOUT_MS",
    "TIMEOUT_MS",
    "CONCURRENCY",
    "KEY_LIFETIME_SECONDS",
];
const PRODUCER_PREFIX: &str = "KAFKA_PRODUCER_";
const CONSUMER_PREFIX: &str = "KAFKA_CONSUMER_";
/// Read by Factum's own test suites, never by a service.
const TEST_PREFIX: &str = "FACTUM_TEST_";

/// What the driver understands in the query part of `DATABASE_URL`. Anything else it would
/// write to the log together with its value, which may be a secret (public case 57).
const URL_PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

const SSL_MODE_KEYS: [&str; 2] = ["sslmode", "ssl-mode"];
const SSL_MODES: [&str; 6] = [
    "disable",
    "allow",
    "prefer",
    "require",
    "verify-ca",
    "verify-full",
];

/// Where the service runs. It decides what is refused, never how the service works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// A developer's machine: plaintext connections and creating topics are allowed.
    Development,
    /// Everywhere else, and the default: connections are encrypted (SEC-1), topics exist
    /// before the service starts (CFG-5).
    Production,
}

impl Profile {
    /// `development` or `production`, as `FACTUM_PROFILE` has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Profile::Development => "development",
            Profile::Production => "production",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A service's configuration, read from the environment and checked as a whole (CFG-1, CFG-2).
///
/// | variable | default | meaning |
/// |---|---|---|
/// | `DATABASE_URL` | none | `postgres://user:password@host:5432/database?sslmode=verify-full`. Outside the development profile a database on another machine needs `sslmode=require` or stricter (SEC-1) |
/// | `KAFKA_BROKERS` | none | `host:9092,host:9092`: the brokers that are asked first |
/// | `FACTUM_SERVICE` | none | the service's name, lower-case kebab, at most 63 characters: Kafka's client id, the database's `application_name`, the beginning of every consumer's name (CONS-1, SEC-2) |
/// | `FACTUM_BUILD` | none | the build of the service, at most 100 characters, such as `1.5.0`: dead letters say which build failed, and the command which one runs |
/// | `FACTUM_PROFILE` | `production` | `development` or `production` |
/// | `KAFKA_SECURITY_PROTOCOL` | `PLAINTEXT` in development | `PLAINTEXT`, `SSL`, `SASL_SSL`, `SASL_PLAINTEXT`; required in production, where only the encrypted ones are taken (SEC-1) |
/// | `KAFKA_SASL_MECHANISM` | none | `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; required with `SASL_…` |
/// | `KAFKA_SASL_USERNAME` | none | required with `SASL_…`; one per service (SEC-2) |
/// | `KAFKA_SASL_PASSWORD` | none | required with `SASL_…` |
/// | `KAFKA_SSL_CA_LOCATION` | the system's | a PEM file with the authorities that sign the brokers' certificates |
/// | `FACTUM_DATABASE_MAX_CONNECTIONS` | what the lanes need | 2 to 1000, and at least 7 for a service with consumers, 9 with calls too. With fewer than all want, lanes, workers and retries take turns, and the relay and the like keep 5 (7) for themselves |
/// | `FACTUM_DATABASE_ACQUIRE_TIMEOUT_SECONDS` | `10` | 1 to 300: the wait for a connection |
/// | `FACTUM_DATABASE_LOCK_TIMEOUT_SECONDS` | `5` | 1 to 300: the wait for a lock |
/// | `FACTUM_SHUTDOWN_DEADLINE_SECONDS` | `25` | 1 to 3600: how long the service may drain after a signal |
/// | `FACTUM_DEDUP_WINDOW_DAYS` | `30` | 1 to 3650: how long an event id is remembered; an older event is refused, never handled twice |
/// | `FACTUM_REPLAY_HORIZON_DAYS` | `7` | 0 to 3650: for how long after its time an event may be replayed; the dedup window is to be longer than a topic's retention, the retries and this together |
/// | `FACTUM_ALLOW_SHORT_DEDUP_WINDOW` | `true` in development, else `false` | whether the service starts though its dedup window is too short for a topic |
/// | `FACTUM_OUTBOX_KEEP_HOURS` | `72` | 1 to 87600: how long published rows of the outbox stay |
/// | `FACTUM_DEAD_LETTERS_KEEP_DAYS` | `30` | 1 to 3650: how long dead letters stay that were replayed or discarded |
/// | `FACTUM_OPEN_DEAD_LETTERS_KEEP_DAYS` | for ever | 1 to 3650: how long open dead letters stay |
/// | `FACTUM_CALLS_KEEP_DAYS` | `90` | 1 to 3650: how long calls stay that are done or were resolved |
/// | `FACTUM_REPLAYS_KEEP_DAYS` | `90` | 1 to 3650: how long replays and plans stay that have ended |
/// | `FACTUM_AUDIT_KEEP_DAYS` | for ever | 1 to 3650: how long rows of the audit stay |
/// | `FACTUM_CREATE_TOPICS` | `true` in development, else `false` | whether the topics that the service declares as its own are created at start (CFG-5) |
/// | `FACTUM_CLOUD_EVENTS_SOURCE` | none | a URI reference such as `/orders`: the relay adds the attributes of CloudEvents to each record, with this source |
/// | `FACTUM_INSTANCE` | none | the name of this replica, its own and the same after each restart, such as the pod's name in a StatefulSet: its partitions wait for it while it restarts (static membership). Two replicas with one name throw each other out of their groups |
/// | `FACTUM_GROUP_PROTOCOL` | `classic` | `consumer`: the brokers decide who reads what (KIP-848), from Kafka 4.0 on |
/// | `FACTUM_RELAY_WAKE` | `poll` | `poll`: a relay with nothing to send looks again after its `idle_poll`; `listen`: it sleeps and is notified, which `factum migrate up --relay-wake listen` makes possible |
/// | `FACTUM_HEALTH_LISTEN` | none | a port, of this machine alone (`9400`), or an address and a port (`0.0.0.0:9400`): where `/live`, `/ready` and `/metrics` are served; port 0 takes a free one, which the log names |
/// | `FACTUM_HEALTH_TOKEN` | none | required with `FACTUM_HEALTH_LISTEN`: what requests say in `Authorization: Bearer …`, at least 16 plain ASCII characters |
/// | `FACTUM_CALL_<NAME>_URL` | none | an endpoint of calls, such as `https://api.example.com/base`; `http` only on this machine or in development. `CARD_PAYMENTS` is the endpoint `card-payments` |
/// | `FACTUM_CALL_<NAME>_AUTHORIZATION` | none | the value of the header `Authorization` of its calls |
/// | `FACTUM_CALL_<NAME>_CONNECT_TIMEOUT_MS` | `2000` | 10 to 60000: the time for a connection |
/// | `FACTUM_CALL_<NAME>_TIMEOUT_MS` | `10000` | 10 to 300000: the time for a call in all |
/// | `FACTUM_CALL_<NAME>_CONCURRENCY` | `16` | 1 to 1000: calls at a time, of each process |
/// | `FACTUM_CALL_<NAME>_KEY_LIFETIME_SECONDS` | `86400` | 60 to 31536000: how long the endpoint remembers an `Idempotency-Key`; a call is never sent after that, less a margin |
/// | `KAFKA_PRODUCER_<PROPERTY>` | | passed to the relay's producer: `KAFKA_PRODUCER_LINGER_MS` is `linger.ms` |
/// | `KAFKA_CONSUMER_<PROPERTY>` | | passed to every consumer: `KAFKA_CONSUMER_FETCH_MAX_BYTES` is `fetch.max.bytes` |
///
/// An empty value counts as none. A `FACTUM_` variable that is not in the table is a problem,
/// because it is a setting that would silently do nothing; so is a `KAFKA_` variable that looks
/// like a slip of the pen. Other `KAFKA_` variables belong to other programs and are left alone.
///
/// [`Debug`] shows no password, no user name in a URL and no value of a passed-through property.
///
/// ```
/// use factum_runtime::{Config, Profile};
///
/// let config = Config::from_vars([
///     ("DATABASE_URL", "postgres://app:secret@localhost:5432/orders"),
///     ("KAFKA_BROKERS", "localhost:9092"),
///     ("FACTUM_SERVICE", "billing"),
///     ("FACTUM_PROFILE", "development"),
/// ].map(|(name, value)| (name.to_owned(), value.to_owned())))?;
/// assert_eq!(config.service, "billing");
/// assert_eq!(config.profile, Profile::Development);
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), factum_runtime::ConfigError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The service's name, `FACTUM_SERVICE`.
    pub service: String,
    /// The service's build, `FACTUM_BUILD`; empty if nobody said.
    pub build: String,
    /// Where the service runs, `FACTUM_PROFILE`.
    pub profile: Profile,
    /// How to reach the database. `max_connections` and `handler_timeout` are starting values:
    /// the service raises them to what its lanes and handlers need.
    pub database: DatabaseSettings,
    /// The pool's size as the operator gave it, `FACTUM_DATABASE_MAX_CONNECTIONS`.
    /// `None`: as many as the service's lanes need.
    pub max_connections: Option<u32>,
    /// How to reach Kafka.
    pub kafka: KafkaSettings,
    /// How long the service may drain after a signal, `FACTUM_SHUTDOWN_DEADLINE_SECONDS`.
    pub shutdown_deadline: Duration,
    /// The dedup window, `FACTUM_DEDUP_WINDOW_DAYS`.
    pub window: Window,
    /// How long after its time an event may be replayed, `FACTUM_REPLAY_HORIZON_DAYS`.
    pub replay_horizon: Duration,
    /// Whether the service starts though the dedup window is too short for a topic, `FACTUM_ALLOW_SHORT_DEDUP_WINDOW`.
    pub allow_short_window: bool,
    /// How long rows stay that nobody needs any more, `FACTUM_OUTBOX_KEEP_HOURS` and its kin.
    pub retention: Retention,
    /// Whether topics that the service owns may be created at start, `FACTUM_CREATE_TOPICS`.
    pub create_topics: bool,
    /// The source of the CloudEvents attributes that a relay adds, `FACTUM_CLOUD_EVENTS_SOURCE`. `None`: it adds
    /// none.
    pub cloud_events: Option<CloudEventsSource>,
    /// How a relay that has nothing to send learns of new rows, `FACTUM_RELAY_WAKE`.
    pub relay_wake: RelayWake,
    /// The health endpoint, `FACTUM_HEALTH_LISTEN` and `FACTUM_HEALTH_TOKEN`. `None`: there is none.
    pub health: Option<HealthSettings>,
    /// The endpoints of calls by name, `FACTUM_CALL_<NAME>_URL` and its kin.
    pub calls: BTreeMap<String, EndpointSettings>,
    unused_variables: Vec<String>,
}

impl Config {
    /// Reads the process's environment.
    ///
    /// # Errors
    ///
    /// Every problem of every setting at once, each with the variable, what is wrong, what to
    /// write and the rule. No value is quoted.
    pub fn from_env() -> Result<Config, ConfigError> {
        let mut unreadable = Vec::new();
        let mut vars = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else {
                continue;
            };
            match value.into_string() {
                Ok(value) => {
                    vars.insert(name, value);
                }
                Err(_) if is_ours(&name) => unreadable.push(Problem::new(
                    "CFG-1",
                    variable(&name),
                    "the value is not valid UTF-8",
                    "write it in UTF-8",
                )),
                Err(_) => {}
            }
        }
        match Config::read(vars) {
            Ok(config) if unreadable.is_empty() => Ok(config),
            Ok(_) => Err(ConfigError {
                problems: unreadable,
            }),
            Err(error) => {
                unreadable.extend(error.problems);
                Err(ConfigError {
                    problems: unreadable,
                })
            }
        }
    }

    /// Reads the given variables as [`Config::from_env`] reads the environment.
    ///
    /// # Errors
    ///
    /// As [`Config::from_env`].
    pub fn from_vars(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        Config::read(vars.into_iter().collect())
    }

    /// The variables that begin with `KAFKA_`, are no settings of Factum, and were not read.
    /// The service logs them once when it starts.
    #[must_use]
    pub fn unused_variables(&self) -> &[String] {
        &self.unused_variables
    }

    /// What the rules forbid in this configuration; empty if it came from the environment
    /// and was not changed since. The service asks again when it starts.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Some(problem) = service_name_problem(&self.service) {
            problems.push(problem);
        }
        problems.extend(build_problem(&self.build));
        if self.profile == Profile::Production {
            problems.extend(kafka_plaintext_problem(&self.kafka.security));
            problems.extend(database_plaintext_problem(
                self.database.url.expose_secret(),
            ));
        }
        for (name, endpoint) in &self.calls {
            problems.extend(endpoint_problems(self.profile, name, endpoint));
        }
        problems.extend(self.health.iter().filter_map(health_token_problem));
        problems.extend(kafka_field_problems(&self.kafka));
        problems.extend(kafka_property_problems(&self.kafka));
        problems
    }

    /// An endpoint of calls, ready to be called.
    pub(crate) fn endpoint(&self, name: &str) -> Result<Endpoint, Problem> {
        let Some(settings) = self.calls.get(name) else {
            let url = call_variable(name, "URL");
            return Err(Problem::new(
                "CONS-X4",
                "the environment",
                format!("the endpoint `{name}` has no URL"),
                format!("set {url}, for example {url}=https://api.example.com"),
            ));
        };
        Endpoint::new(name, settings.clone()).map_err(|error| {
            Problem::new(
                "SEC-1",
                format!("the endpoint `{name}`"),
                error.to_string(),
                "install the system's certificate authorities (the package ca-certificates)",
            )
        })
    }

    /// What is kept for how long, by the settings' names: for those who look at the database.
    pub(crate) fn kept(&self) -> Vec<(&'static str, String)> {
        let days = |kept: Duration| (kept.as_secs() / (24 * 60 * 60)).to_string();
        let or_ever = |kept: Option<Duration>| kept.map_or_else(|| "for ever".to_owned(), days);
        let Retention {
            outbox,
            dead_letters,
            open_dead_letters,
            calls,
            replays,
            audit,
        } = self.retention;
        vec![
            (DEDUP_WINDOW, self.window.keep_days.to_string()),
            (REPLAY_HORIZON, days(self.replay_horizon)),
            (OUTBOX_KEEP, (outbox.as_secs() / (60 * 60)).to_string()),
            (DEAD_LETTERS_KEEP, days(dead_letters)),
            (OPEN_DEAD_LETTERS_KEEP, or_ever(open_dead_letters)),
            (CALLS_KEEP, days(calls)),
            (REPLAYS_KEEP, days(replays)),
            (AUDIT_KEEP, or_ever(audit)),
        ]
    }

    /// Host, port and database, without user or password: for messages.
    pub(crate) fn database_place(&self) -> String {
        database_place(self.database.url.expose_secret())
    }

    fn read(vars: BTreeMap<String, String>) -> Result<Config, ConfigError> {
        let mut reader = Reader {
            vars,
            problems: Vec::new(),
        };
        let unused_variables = reader.guard_against_typos();
        let profile = reader.profile();
        let service = reader.required(SERVICE, "billing");
        if let Some(problem) = service.as_deref().and_then(service_name_problem) {
            reader.problems.push(problem);
        }
        let url = reader.database_url(profile);
        let brokers = reader.brokers();
        let security = reader.security(profile);
        let max_connections = reader.number(MAX_CONNECTIONS, "connections", 2..=1000);
        let acquire_timeout = reader
            .number(ACQUIRE_TIMEOUT, "seconds", 1..=300)
            .unwrap_or(ACQUIRE_TIMEOUT_DEFAULT_SECONDS);
        let lock_timeout = reader
            .number(LOCK_TIMEOUT, "seconds", 1..=300)
            .unwrap_or(LOCK_TIMEOUT_DEFAULT_SECONDS);
        let shutdown_deadline = reader
            .number(SHUTDOWN_DEADLINE, "seconds", 1..=3600)
            .unwrap_or(SHUTDOWN_DEADLINE_DEFAULT_SECONDS);
        let keep_days = reader
            .number(DEDUP_WINDOW, "days", 1..=3650)
            .unwrap_or(DEDUP_WINDOW_DEFAULT_DAYS);
        let replay_horizon = reader
            .number(REPLAY_HORIZON, "days", 0..=3650)
            .unwrap_or(REPLAY_HORIZON_DEFAULT_DAYS);
        let allow_short_window = reader
            .boolean(SHORT_WINDOW)
            .unwrap_or(profile == Some(Profile::Development));
        let retention = reader.retention();
        let create_topics = reader
            .boolean(CREATE_TOPICS)
            .unwrap_or(profile == Some(Profile::Development));
        let cloud_events = reader.cloud_events();
        let build = reader.optional(BUILD).unwrap_or_default();
        reader.problems.extend(build_problem(&build));
        let relay_wake = reader.relay_wake();
        let health = reader.health();
        let calls = reader.calls(profile);
        let group_protocol = reader.group_protocol();
        let kafka = KafkaSettings {
            brokers: brokers.clone().unwrap_or_default(),
            client_id: service.clone().unwrap_or_default(),
            security: security.clone().unwrap_or(Security::Plaintext),
            group_protocol: group_protocol.unwrap_or_default(),
            instance: reader.optional(INSTANCE),
            producer: reader.properties(PRODUCER_PREFIX),
            consumer: reader.properties(CONSUMER_PREFIX),
        };
        reader.problems.extend(kafka_property_problems(&kafka));
        reader.problems.extend(instance_problem(&kafka));

        let (Some(service), Some(profile), Some(url), Some(_), Some(_), true) = (
            service,
            profile,
            url,
            brokers,
            security,
            reader.problems.is_empty(),
        ) else {
            return Err(ConfigError {
                problems: reader.problems,
            });
        };
        Ok(Config {
            database: DatabaseSettings {
                url,
                max_connections: max_connections.unwrap_or(MAX_CONNECTIONS_DEFAULT),
                max_turns: max_connections.unwrap_or(MAX_CONNECTIONS_DEFAULT),
                acquire_timeout: seconds(acquire_timeout),
                lock_timeout: seconds(lock_timeout),
                handler_timeout: HANDLER_TIMEOUT_DEFAULT,
                application_name: service.clone(),
            },
            service,
            build,
            profile,
            max_connections,
            kafka,
            shutdown_deadline: seconds(shutdown_deadline),
            window: Window {
                keep_days,
                ahead_days: DEDUP_AHEAD_DAYS,
            },
            replay_horizon: days(replay_horizon),
            allow_short_window,
            retention,
            create_topics,
            cloud_events,
            relay_wake,
            health,
            calls,
            unused_variables,
        })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: a new setting is shown only once somebody has decided that it may be.
        f.debug_struct("Config")
            .field("service", &self.service)
            .field("build", &self.build)
            .field("profile", &self.profile)
            .field("database", &self.database_place())
            .field("max_connections", &self.max_connections)
            .field("brokers", &self.kafka.brokers)
            .field("security", &security_name(&self.kafka.security))
            .field("producer_properties", &names(&self.kafka.producer))
            .field("consumer_properties", &names(&self.kafka.consumer))
            .field("acquire_timeout", &self.database.acquire_timeout)
            .field("lock_timeout", &self.database.lock_timeout)
            .field("shutdown_deadline", &self.shutdown_deadline)
            .field("window_days", &self.window.keep_days)
            .field("replay_horizon", &self.replay_horizon)
            .field("allow_short_window", &self.allow_short_window)
            .field("retention", &self.retention)
            .field("create_topics", &self.create_topics)
            .field("cloud_events", &self.cloud_events)
            .field("relay_wake", &self.relay_wake)
            .field("health", &self.health)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

/// Everything that is wrong with a configuration.
///
/// [`Display`](fmt::Display) lists all of it, one problem after the other:
///
/// ```text
/// the configuration cannot be used: 2 problems
///
/// error[CFG-1]: KAFKA_BROKERS is not set
///   where: the environment
///   mend:  set it, for example KAFKA_BROKERS=localhost:9092
///
/// error[SEC-1]: …
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    /// Every problem, at least one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, "the configuration cannot be used", &self.problems)
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `fn main() -> Result<(), ConfigError>` prints this, and a person reads it.
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

/// Takes settings out of the variables and collects what is wrong with them.
struct Reader {
    vars: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl Reader {
    fn problem(
        &mut self,
        rule: &'static str,
        name: &str,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.problems
            .push(Problem::new(rule, variable(name), what, mend));
    }

    /// The trimmed value; empty counts as absent.
    fn optional(&self, name: &str) -> Option<String> {
        self.vars
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
    }

    fn required(&mut self, name: &str, example: &str) -> Option<String> {
        let value = self.optional(name);
        if value.is_none() {
            self.problems.push(Problem::new(
                "CFG-1",
                "the environment",
                format!("{name} is not set"),
                format!("set it, for example {name}={example}"),
            ));
        }
        value
    }

    fn number(&mut self, name: &str, unit: &str, allowed: RangeInclusive<u32>) -> Option<u32> {
        let text = self.optional(name)?;
        match text.parse::<u32>() {
            Ok(number) if allowed.contains(&number) => Some(number),
            _ => {
                self.problem(
                    "CFG-1",
                    name,
                    format!("{name} is not a whole number of {unit} in the allowed range"),
                    format!(
                        "write a whole number of {unit} from {} to {}",
                        allowed.start(),
                        allowed.end()
                    ),
                );
                None
            }
        }
    }

    fn boolean(&mut self, name: &str) -> Option<bool> {
        match self.optional(name)?.as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => {
                self.problem(
                    "CFG-1",
                    name,
                    format!("{name} is neither true nor false"),
                    format!("write {name}=true or {name}=false"),
                );
                None
            }
        }
    }

    fn retention(&mut self) -> Retention {
        let defaults = Retention::default();
        let mut kept = |name| self.number(name, "days", 1..=3650).map(days);
        let retention = Retention {
            outbox: defaults.outbox,
            dead_letters: kept(DEAD_LETTERS_KEEP).unwrap_or(defaults.dead_letters),
            open_dead_letters: kept(OPEN_DEAD_LETTERS_KEEP),
            calls: kept(CALLS_KEEP).unwrap_or(defaults.calls),
            replays: kept(REPLAYS_KEEP).unwrap_or(defaults.replays),
            audit: kept(AUDIT_KEEP),
        };
        let outbox = self.number(OUTBOX_KEEP, "hours", 1..=87_600);
        Retention {
            outbox: outbox.map_or(defaults.outbox, |hours| days(hours) / 24),
            ..retention
        }
    }

    fn group_protocol(&mut self) -> Option<GroupProtocol> {
        let text = self.optional(GROUP_PROTOCOL)?;
        let found = [GroupProtocol::Classic, GroupProtocol::Consumer]
            .into_iter()
            .find(|protocol| protocol.as_str() == text);
        if found.is_none() {
            self.problem(
                "CFG-1",
                GROUP_PROTOCOL,
                format!("{GROUP_PROTOCOL} is neither classic nor consumer"),
                format!("write {GROUP_PROTOCOL}=classic or {GROUP_PROTOCOL}=consumer, or unset it"),
            );
        }
        found
    }

    fn cloud_events(&mut self) -> Option<CloudEventsSource> {
        let source = self.optional(CLOUD_EVENTS_SOURCE)?.parse();
        if source.is_err() {
            self.problem(
                "CFG-1",
                CLOUD_EVENTS_SOURCE,
                format!("{CLOUD_EVENTS_SOURCE} is not a URI reference of at most 1024 bytes"),
                format!("write {CLOUD_EVENTS_SOURCE}=/orders, or a URI such as https://orders.example.com"),
            );
        }
        source.ok()
    }

    fn relay_wake(&mut self) -> RelayWake {
        match self.optional(RELAY_WAKE).as_deref() {
            None | Some("poll") => RelayWake::Poll,
            Some("listen") => RelayWake::Listen,
            Some(_) => {
                self.problem(
                    "CFG-1",
                    RELAY_WAKE,
                    format!("{RELAY_WAKE} is neither poll nor listen"),
                    format!("write {RELAY_WAKE}=poll, or {RELAY_WAKE}=listen after `factum migrate up --relay-wake listen`"),
                );
                RelayWake::Poll
            }
        }
    }

    /// The endpoint, if both settings are there and right.
    fn health(&mut self) -> Option<HealthSettings> {
        let token = self.optional(HEALTH_TOKEN).map(SecretString::from);
        let Some(text) = self.optional(HEALTH_LISTEN) else {
            if token.is_some() {
                self.problem(
                    "CFG-1",
                    HEALTH_TOKEN,
                    format!("{HEALTH_TOKEN} is set, but nothing listens"),
                    format!("write {HEALTH_LISTEN}=9400, or unset {HEALTH_TOKEN}"),
                );
            }
            return None;
        };
        // A port alone is this machine's: what shall be reached from elsewhere says so.
        let port = text.parse().ok();
        let listen = port
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            .or_else(|| text.parse().ok());
        if listen.is_none() {
            self.problem(
                "CFG-1",
                HEALTH_LISTEN,
                format!("{HEALTH_LISTEN} is neither a port nor an IP address and a port"),
                format!("write {HEALTH_LISTEN}=9400 for this machine alone, else {HEALTH_LISTEN}=0.0.0.0:9400"),
            );
        }
        let Some(token) = token else {
            self.problem(
                "SEC-2",
                HEALTH_LISTEN,
                format!("{HEALTH_LISTEN} is set without {HEALTH_TOKEN}, and nothing listens without asking for a credential"),
                format!("write {HEALTH_TOKEN}=… with a random text of at least {TOKEN_MIN_CHARS} characters, such as `openssl rand -hex 24` prints"),
            );
            return None;
        };
        let settings = HealthSettings::new(listen?, token);
        match health_token_problem(&settings) {
            Some(problem) => {
                self.problems.push(problem);
                None
            }
            None => Some(settings),
        }
    }

    /// The endpoints of `FACTUM_CALL_<NAME>_…`.
    fn calls(&mut self, profile: Option<Profile>) -> BTreeMap<String, EndpointSettings> {
        let names: BTreeSet<String> = self
            .vars
            .keys()
            .filter_map(|variable| call_endpoint(variable))
            .map(|(name, _)| name)
            .filter(|name| {
                let set = |setting: &str| self.optional(&call_variable(name, setting)).is_some();
                CALL_SETTINGS.iter().any(|setting| set(setting))
            })
            .collect();
        let mut endpoints = BTreeMap::new();
        for name in names {
            let url_name = call_variable(&name, "URL");
            let url = self.required(&url_name, "https://api.example.com");
            let parsed = url.as_deref().and_then(|text| Url::parse(text).ok());
            if url.is_some() && parsed.is_none() {
                self.problem(
                    "CFG-1",
                    &url_name,
                    format!("{url_name} is not a URL"),
                    format!(
                        "write {url_name}=https://api.example.com, a path behind it if need be"
                    ),
                );
            }
            let mut number =
                |setting, unit, allowed| self.number(&call_variable(&name, setting), unit, allowed);
            let connect_timeout = number("CONNECT_TIMEOUT_MS", "milliseconds", 10..=60_000);
            let timeout = number("TIMEOUT_MS", "milliseconds", 10..=300_000);
            let concurrency = number("CONCURRENCY", "calls", 1..=1000);
            let key_lifetime = number("KEY_LIFETIME_SECONDS", "seconds", 60..=31_536_000);
            let authorization = self.optional(&call_variable(&name, "AUTHORIZATION"));
            let Some(url) = parsed else { continue };
            let millis = |count: u32| Duration::from_millis(u64::from(count));
            let mut endpoint = EndpointSettings::new(url);
            endpoint.authorization = authorization.map(SecretString::from);
            endpoint.connect_timeout = connect_timeout.map_or(endpoint.connect_timeout, millis);
            endpoint.timeout = timeout.map_or(endpoint.timeout, millis);
            endpoint.concurrency = concurrency.unwrap_or(endpoint.concurrency);
            endpoint.key_lifetime = key_lifetime.map_or(endpoint.key_lifetime, seconds);
            if let Some(profile) = profile {
                self.problems
                    .extend(endpoint_problems(profile, &name, &endpoint));
            }
            endpoints.insert(name, endpoint);
        }
        endpoints
    }

    /// `None` when the profile can't be read: what depends on it is then not judged.
    fn profile(&mut self) -> Option<Profile> {
        match self.optional(PROFILE).as_deref() {
            None | Some("production") => Some(Profile::Production),
            Some("development") => Some(Profile::Development),
            Some(_) => {
                self.problem(
                    "CFG-1",
                    PROFILE,
                    format!("{PROFILE} is neither development nor production"),
                    format!(
                        "write {PROFILE}=development on your own machine, else \
                         {PROFILE}=production or nothing"
                    ),
                );
                None
            }
        }
    }

    fn database_url(&mut self, profile: Option<Profile>) -> Option<SecretString> {
        let example = "postgres://user:password@host:5432/database?sslmode=verify-full";
        let text = self.required(DATABASE_URL, example)?;
        // The parser's own message could quote a part of the URL, hence of the password.
        let url = Url::parse(&text)
            .ok()
            .filter(|url| matches!(url.scheme(), "postgres" | "postgresql"))
            // A password with a bare / or # ends the host early; its rest would pass for the
            // database's name, which messages show.
            .filter(|url| url.fragment().is_none())
            .filter(|url| !url.path().trim_start_matches('/').contains(['@', '/']));
        let Some(mut url) = url else {
            self.problem(
                "CFG-1",
                DATABASE_URL,
                format!("{DATABASE_URL} is not a PostgreSQL URL"),
                format!(
                    "write {example}; in user and password, percent-encode / ? # @ : and % \
                     (a password p/w is p%2Fw)"
                ),
            );
            return None;
        };
        if url.path().trim_start_matches('/').is_empty() && query(&url, &["dbname"]).is_none() {
            self.problem(
                "CFG-1",
                DATABASE_URL,
                format!("{DATABASE_URL} names no database"),
                format!("write the database's name after the host: {example}"),
            );
        }
        let unknown: Vec<String> = url
            .query_pairs()
            .map(|(key, _)| key.into_owned())
            .filter(|key| !URL_PARAMETERS.contains(&key.as_str()) && !key.starts_with("options["))
            .collect();
        for key in unknown {
            // A key comes from the same text as the password, so only a plain one is shown.
            let shown =
                if key.len() <= 32 && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
                    format!("the parameter `{key}`")
                } else {
                    "a parameter".to_owned()
                };
            self.problem(
                "CFG-1",
                DATABASE_URL,
                format!("{DATABASE_URL} has {shown}, which the database driver does not know"),
                "remove it from the part after the `?`; TLS is set with sslmode and sslrootcert",
            );
        }
        if database_host(&url).is_none() {
            self.problem(
                "CFG-1",
                DATABASE_URL,
                format!("{DATABASE_URL} names no host"),
                format!(
                    "write the host: {example}; for a socket in /run/postgresql write \
                     postgres://user:password@%2Frun%2Fpostgresql/database"
                ),
            );
            return None;
        }
        // The driver falls back to this variable. Taken into the URL, it is judged with it.
        if let (None, Some(mode)) = (query(&url, &SSL_MODE_KEYS), self.optional("PGSSLMODE")) {
            url.query_pairs_mut().append_pair("sslmode", &mode);
        }
        if query(&url, &SSL_MODE_KEYS)
            .is_some_and(|mode| !SSL_MODES.contains(&mode.to_ascii_lowercase().as_str()))
        {
            self.problem(
                "CFG-1",
                DATABASE_URL,
                "the sslmode of the database is none that PostgreSQL has",
                format!("write one of {}", SSL_MODES.join(", ")),
            );
        } else if profile == Some(Profile::Production) {
            self.problems
                .extend(database_plaintext_problem(url.as_str()));
        }
        Some(SecretString::from(String::from(url)))
    }

    fn brokers(&mut self) -> Option<String> {
        let text = self.required(KAFKA_BROKERS, "localhost:9092")?;
        let entries: Vec<&str> = text.split(',').map(str::trim).collect();
        let count = entries.len();
        let mut right = true;
        for (index, entry) in entries.iter().enumerate() {
            if !is_host_and_port(entry) {
                right = false;
                let which = if count == 1 {
                    String::new()
                } else {
                    format!("entry {} of {count} in ", index + 1)
                };
                self.problem(
                    "CFG-1",
                    KAFKA_BROKERS,
                    format!("{which}{KAFKA_BROKERS} is not host:port"),
                    "write host:port for each broker, separated by commas, without scheme, user \
                     or password: kafka-1:9092,kafka-2:9092",
                );
            }
        }
        right.then(|| entries.join(","))
    }

    fn security(&mut self, profile: Option<Profile>) -> Option<Security> {
        let protocol = self.optional(SECURITY_PROTOCOL);
        let security = match (protocol.as_deref(), profile) {
            (None, Some(Profile::Production)) => {
                self.problem(
                    "SEC-1",
                    SECURITY_PROTOCOL,
                    format!("{SECURITY_PROTOCOL} is not set, and only encrypted connections to Kafka are allowed outside development"),
                    format!(
                        "write {SECURITY_PROTOCOL}=SASL_SSL (or SSL); for a plaintext broker on your own \
                         machine write {PROFILE}=development"
                    ),
                );
                return None;
            }
            (None | Some("PLAINTEXT"), _) => Security::Plaintext,
            (Some("SSL"), _) => Security::Tls {
                ca_location: self.ca_location(),
            },
            (Some("SASL_SSL"), _) => self.sasl(true)?,
            (Some("SASL_PLAINTEXT"), _) => self.sasl(false)?,
            (Some(_), _) => {
                self.problem(
                    "CFG-1",
                    SECURITY_PROTOCOL,
                    format!("{SECURITY_PROTOCOL} is none of the protocols that Kafka has"),
                    "write SASL_SSL, SSL, or in development SASL_PLAINTEXT or PLAINTEXT",
                );
                return None;
            }
        };
        let refused = match profile {
            Some(Profile::Production) => kafka_plaintext_problem(&security),
            _ => None,
        };
        match refused {
            Some(problem) => {
                self.problems.push(problem);
                None
            }
            None => {
                self.refuse_idle_security_settings(&security);
                Some(security)
            }
        }
    }

    /// A user name or an authority that has no effect is a service less protected than believed.
    fn refuse_idle_security_settings(&mut self, security: &Security) {
        let (sasl, tls) = match security {
            Security::Plaintext => (false, false),
            Security::Tls { .. } => (false, true),
            Security::Sasl { tls, .. } => (true, *tls),
        };
        let name = security_name(security);
        if !sasl {
            for setting in [SASL_MECHANISM, SASL_USERNAME, SASL_PASSWORD] {
                if self.optional(setting).is_some() {
                    self.problem(
                        "SEC-2",
                        setting,
                        format!("{setting} is set, but the protocol {name} has no login"),
                        format!("write {SECURITY_PROTOCOL}=SASL_SSL, or unset {setting}"),
                    );
                }
            }
        }
        if !tls && self.optional(SSL_CA_LOCATION).is_some() {
            self.problem(
                "SEC-1",
                SSL_CA_LOCATION,
                format!("{SSL_CA_LOCATION} is set, but the protocol {name} does not encrypt"),
                format!("write {SECURITY_PROTOCOL}=SASL_SSL or SSL, or unset {SSL_CA_LOCATION}"),
            );
        }
    }

    fn sasl(&mut self, tls: bool) -> Option<Security> {
        let mechanism = self
            .required(SASL_MECHANISM, "SCRAM-SHA-512")
            .and_then(|text| match text.parse::<SaslMechanism>() {
                Ok(mechanism) => Some(mechanism),
                Err(_) => {
                    self.problem(
                        "CFG-1",
                        SASL_MECHANISM,
                        format!("{SASL_MECHANISM} is none of the known mechanisms"),
                        "write SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN",
                    );
                    None
                }
            });
        let username = self.required(SASL_USERNAME, "billing");
        let password = self.password();
        let ca_location = if tls { self.ca_location() } else { None };
        Some(Security::Sasl {
            tls,
            mechanism: mechanism?,
            username: username?,
            password: password?,
            ca_location,
        })
    }

    /// Not trimmed: a password may begin or end with a space. A line break at its end comes
    /// from a file that was read whole, and would fail as a wrong password.
    fn password(&mut self) -> Option<SecretString> {
        match self.vars.get(SASL_PASSWORD).cloned() {
            Some(text) if text.ends_with(['\n', '\r']) => {
                self.problem(
                    "CFG-1",
                    SASL_PASSWORD,
                    format!("{SASL_PASSWORD} ends with a line break"),
                    "leave the line break out of the value (a file with one was read whole?)",
                );
                None
            }
            Some(text) if !text.is_empty() => Some(SecretString::from(text)),
            _ => {
                self.required(SASL_PASSWORD, "…");
                None
            }
        }
    }

    fn ca_location(&self) -> Option<PathBuf> {
        self.optional(SSL_CA_LOCATION).map(PathBuf::from)
    }

    /// `KAFKA_PRODUCER_LINGER_MS=5` is `linger.ms` = `5`.
    fn properties(&self, prefix: &str) -> BTreeMap<String, String> {
        self.vars
            .iter()
            .filter(|(name, _)| !is_service_link(name))
            .filter_map(|(name, value)| {
                let property = name.strip_prefix(prefix).filter(|rest| !rest.is_empty())?;
                let value = value.trim();
                (!value.is_empty())
                    .then(|| (property.to_lowercase().replace('_', "."), value.to_owned()))
            })
            .collect()
    }

    /// Refuses what looks like a misspelt setting; gives the foreign `KAFKA_` variables.
    fn guard_against_typos(&mut self) -> Vec<String> {
        let mut foreign = Vec::new();
        let unknown: Vec<String> = self
            .vars
            .keys()
            .filter(|name| is_ours(name) && !SETTINGS.contains(&name.as_str()))
            .filter(|name| !passes_through(name) && !is_service_link(name))
            .filter(|name| call_endpoint(name).is_none())
            .cloned()
            .collect();
        for name in unknown {
            let nearest = nearest_setting(&name);
            if name.starts_with("KAFKA_") && nearest.is_none() {
                foreign.push(name);
                continue;
            }
            let mend = match nearest {
                _ if name.starts_with(CALL_PREFIX) => format!(
                    "write {CALL_PREFIX}<NAME>_ and one of {}, the name in A-Z 0-9 and single _",
                    CALL_SETTINGS.join(", ")
                ),
                Some(setting) => format!("did you mean {setting}? Else unset it"),
                None => format!(
                    "unset it; the settings are {}",
                    SETTINGS
                        .iter()
                        .filter(|setting| setting.starts_with("FACTUM_"))
                        .copied()
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            };
            self.problems.push(Problem::new(
                "CFG-1",
                "the environment",
                format!("{name} is not a setting"),
                mend,
            ));
        }
        foreign
    }
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(u64::from(count))
}

fn days(count: u32) -> Duration {
    seconds(count) * (24 * 60 * 60)
}

fn variable(name: &str) -> String {
    format!("the environment variable {name}")
}

fn names(properties: &BTreeMap<String, String>) -> Vec<&str> {
    properties.keys().map(String::as_str).collect()
}

fn is_ours(name: &str) -> bool {
    (name.starts_with("FACTUM_") && !name.starts_with(TEST_PREFIX))
        || name.starts_with("KAFKA_")
        || name == DATABASE_URL
}

fn passes_through(name: &str) -> bool {
    [PRODUCER_PREFIX, CONSUMER_PREFIX].iter().any(|prefix| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty())
    })
}

/// Kubernetes puts `<NAME>_SERVICE_HOST`, `<NAME>_PORT` and their kin for every Service of the
/// namespace into each container's environment: a Service called `kafka` gives `KAFKA_PORT`.
fn is_service_link(name: &str) -> bool {
    if name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT")
    {
        return true;
    }
    let stem = ["_PROTO", "_ADDR"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| {
        stem.strip_suffix(protocol)
            .and_then(|rest| rest.rsplit_once("_PORT_"))
            .is_some_and(|(_, port)| {
                !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
            })
    })
}

/// The setting that `name` is most likely meant to be: at most a quarter of it is different.
fn nearest_setting(name: &str) -> Option<&'static str> {
    SETTINGS
        .iter()
        .chain([&PRODUCER_PREFIX, &CONSUMER_PREFIX])
        .map(|setting| (strsim::damerau_levenshtein(name, setting), *setting))
        .filter(|(distance, setting)| distance * 4 <= setting.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, setting)| setting)
}

/// The endpoint and the setting that a variable is about.
fn call_endpoint(variable: &str) -> Option<(String, &'static str)> {
    let rest = variable.strip_prefix(CALL_PREFIX)?;
    CALL_SETTINGS.iter().find_map(|setting| {
        let name = rest.strip_suffix(setting)?.strip_suffix('_')?;
        let kebab = name.to_lowercase().replace('_', "-");
        (name == name.to_uppercase() && is_kebab(&kebab)).then_some((kebab, *setting))
    })
}

/// `FACTUM_CALL_CARD_PAYMENTS_URL` for the setting `URL` of `card-payments`.
pub(crate) fn call_variable(endpoint: &str, setting: &str) -> String {
    format!(
        "{CALL_PREFIX}{}_{setting}",
        endpoint.to_uppercase().replace('-', "_")
    )
}

/// What the rules forbid of an endpoint's settings.
fn endpoint_problems(profile: Profile, name: &str, endpoint: &EndpointSettings) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut problem = |rule, setting, what: String, mend: String| {
        problems.push(Problem::new(
            rule,
            variable(&call_variable(name, setting)),
            what,
            mend,
        ));
    };
    let url = &endpoint.url;
    let example = call_variable(name, "URL");
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none() {
        problem(
            "CFG-1",
            "URL",
            "the endpoint's URL is neither https nor http".to_owned(),
            format!("write {example}=https://api.example.com"),
        );
    } else if url.scheme() == "http" && profile == Profile::Production && !is_on_this_machine(url) {
        problem(
            "SEC-1",
            "URL",
            "the endpoint is called in the clear, which only the development profile allows on another machine".to_owned(),
            format!("write {example}=https://…"),
        );
    }
    let plain = url.username().is_empty() && url.password().is_none();
    if !plain || url.query().is_some() || url.fragment().is_some() {
        problem(
            "CFG-1",
            "URL",
            "the endpoint's URL holds a user, a password, a query or a fragment".to_owned(),
            format!(
                "write scheme, host, port and path alone; a secret belongs into {}",
                call_variable(name, "AUTHORIZATION")
            ),
        );
    }
    let secret = endpoint.authorization.as_ref();
    if secret.is_some_and(|secret| {
        !secret
            .expose_secret()
            .bytes()
            .all(|b| b == b' ' || b.is_ascii_graphic())
    }) {
        problem(
            "CFG-1",
            "AUTHORIZATION",
            "the endpoint's authorization is not the value of a header".to_owned(),
            "write plain ASCII on one line, such as `Bearer …` or `Basic …`".to_owned(),
        );
    }
    if endpoint.connect_timeout > endpoint.timeout {
        problem(
            "CONS-X4",
            "CONNECT_TIMEOUT_MS",
            "the connection may take longer than the whole call".to_owned(),
            format!(
                "write at most what {} says",
                call_variable(name, "TIMEOUT_MS")
            ),
        );
    }
    if endpoint.usable_lifetime() < endpoint.key_lifetime / 2 {
        problem(
            "IDEM-4",
            "KEY_LIFETIME_SECONDS",
            "the call's time limit takes up more than half of the key's lifetime".to_owned(),
            format!("lower {}", call_variable(name, "TIMEOUT_MS")),
        );
    }
    problems
}

fn is_host_and_port(entry: &str) -> bool {
    let Some((host, port)) = entry.rsplit_once(':') else {
        return false;
    };
    let port_is_right = port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|number| number > 0);
    let host_is_right = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
        }
    };
    port_is_right && host_is_right
}

/// Lower-case words of letters and digits, joined by single dashes, beginning with a letter.
pub(crate) fn is_kebab(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.split('-').all(|word| {
            !word.is_empty()
                && word
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
}

fn service_name_problem(name: &str) -> Option<Problem> {
    if is_kebab(name) && name.len() <= SERVICE_NAME_MAX_BYTES {
        return None;
    }
    Some(Problem::new(
        "CONS-1",
        variable(SERVICE),
        format!("{SERVICE} is not a service name"),
        format!(
            "write lower-case letters and digits in words joined by dashes, beginning with a \
             letter, at most {SERVICE_NAME_MAX_BYTES} characters: billing, order-intake"
        ),
    ))
}

fn build_problem(build: &str) -> Option<Problem> {
    let fits = build.chars().count() <= BUILD_CHARS && !build.chars().any(char::is_control);
    if fits {
        return None;
    }
    Some(Problem::new(
        "CFG-1",
        variable(BUILD),
        format!("{BUILD} is longer than {BUILD_CHARS} characters or has control characters"),
        format!("write a version or the short hash of a commit: {BUILD}=1.5.0"),
    ))
}

fn health_token_problem(settings: &HealthSettings) -> Option<Problem> {
    if HealthSettings::token_is_usable(settings.token.expose_secret()) {
        return None;
    }
    Some(Problem::new(
        "SEC-2",
        variable(HEALTH_TOKEN),
        format!(
            "{HEALTH_TOKEN} is shorter than {TOKEN_MIN_CHARS} characters, or has others than plain ASCII without blanks"
        ),
        "write a random text, such as `openssl rand -hex 24` prints",
    ))
}

fn security_name(security: &Security) -> &'static str {
    match security {
        Security::Plaintext => "PLAINTEXT",
        Security::Tls { .. } => "SSL",
        Security::Sasl { tls: true, .. } => "SASL_SSL",
        Security::Sasl { tls: false, .. } => "SASL_PLAINTEXT",
    }
}

fn kafka_plaintext_problem(security: &Security) -> Option<Problem> {
    let encrypted = match security {
        Security::Plaintext => "SSL (or SASL_SSL)",
        Security::Sasl { tls: false, .. } => "SASL_SSL",
        Security::Tls { .. } | Security::Sasl { tls: true, .. } => return None,
    };
    Some(Problem::new(
        "SEC-1",
        variable(SECURITY_PROTOCOL),
        format!(
            "{} sends events and passwords to Kafka in the clear, which only the development \
             profile allows",
            security_name(security)
        ),
        format!(
            "write {SECURITY_PROTOCOL}={encrypted}; for a broker on your own machine write \
             {PROFILE}=development"
        ),
    ))
}

fn database_plaintext_problem(text: &str) -> Option<Problem> {
    let url = Url::parse(text).ok()?;
    let mode = query(&url, &SSL_MODE_KEYS)
        .unwrap_or_default()
        .to_ascii_lowercase();
    if matches!(mode.as_str(), "require" | "verify-ca" | "verify-full") || is_on_this_machine(&url)
    {
        return None;
    }
    Some(Problem::new(
        "SEC-1",
        variable(DATABASE_URL),
        format!(
            "{DATABASE_URL} leads to another machine and does not insist on TLS, which only the \
             development profile allows"
        ),
        format!(
            "add ?sslmode=verify-full (at least ?sslmode=require) to {DATABASE_URL}; in \
             development write {PROFILE}=development"
        ),
    ))
}

fn is_on_this_machine(url: &Url) -> bool {
    let host = database_host(url).unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.starts_with('/')
        || host.to_ascii_lowercase().starts_with("%2f")
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Where the URL names a host twice, the driver takes the one of the query part.
fn database_host(url: &Url) -> Option<String> {
    query(url, &["host", "hostaddr"])
        .or_else(|| url.host_str().map(str::to_owned))
        .filter(|host| !host.is_empty())
}

/// The last of the given parameters, as the driver takes it.
fn query(url: &Url, keys: &[&str]) -> Option<String> {
    url.query_pairs()
        .filter(|(key, _)| keys.contains(&key.as_ref()))
        .last()
        .map(|(_, value)| value.into_owned())
}

/// Host, port and database of a URL, never the user or the password.
fn database_place(text: &str) -> String {
    let Ok(url) = Url::parse(text) else {
        return "PostgreSQL (the URL cannot be read)".to_owned();
    };
    let host = database_host(&url).unwrap_or_else(|| "localhost".to_owned());
    let port = query(&url, &["port"])
        .and_then(|port| port.parse().ok())
        .or_else(|| url.port())
        .unwrap_or(5432);
    let database =
        query(&url, &["dbname"]).unwrap_or_else(|| url.path().trim_start_matches('/').to_owned());
    format!("PostgreSQL at {host}:{port}/{database}")
}

/// What weakens a promise among the passed-through properties, by the variable that set it.
fn kafka_property_problems(kafka: &KafkaSettings) -> Vec<Problem> {
    let producer = KafkaSettings {
        consumer: BTreeMap::new(),
        ..kafka.clone()
    };
    let consumer = KafkaSettings {
        producer: BTreeMap::new(),
        ..kafka.clone()
    };
    let mut problems = Vec::new();
    for (prefix, settings, properties) in [
        (PRODUCER_PREFIX, &producer, &producer.producer),
        (CONSUMER_PREFIX, &consumer, &consumer.consumer),
    ] {
        for problem in settings.check() {
            if properties.contains_key(problem.property()) {
                let name = format!(
                    "{prefix}{}",
                    problem.property().to_uppercase().replace('.', "_")
                );
                problems.push(Problem::new(
                    problem.rule(),
                    variable(&name),
                    without_rule(&problem),
                    format!("unset {name}"),
                ));
            }
        }
    }
    problems
}

fn instance_problem(kafka: &KafkaSettings) -> Option<Problem> {
    let problems = kafka.check();
    let problem = problems
        .iter()
        .find(|problem| problem.property() == "instance")?;
    Some(Problem::new(
        problem.rule(),
        variable(INSTANCE),
        without_rule(problem),
        format!("write {INSTANCE}=billing-0, or unset it"),
    ))
}

/// The brokers, the client id and the login, which the environment's reader names by variable.
fn kafka_field_problems(kafka: &KafkaSettings) -> Vec<Problem> {
    let fields_alone = KafkaSettings {
        producer: BTreeMap::new(),
        consumer: BTreeMap::new(),
        ..kafka.clone()
    };
    fields_alone
        .check()
        .iter()
        .map(|problem| {
            Problem::new(
                problem.rule(),
                "the settings for Kafka",
                without_rule(problem),
                format!("set `{}` of Config::kafka", problem.property()),
            )
        })
        .collect()
}

/// A problem of the Kafka settings without its rule, which is shown before it already.
fn without_rule(problem: &SettingProblem) -> String {
    let text = problem.to_string();
    match text.strip_prefix(&format!("{}: ", problem.rule())) {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests;
