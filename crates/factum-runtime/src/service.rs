//! A service: its parts, the checks before it starts, and its end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use factum_event::Event;
use factum_kafka::{KafkaError, KafkaErrorKind, NewTopic, create_topics, describe_topics};
use factum_postgres::{Database, DatabaseSettings, SchemaProblem, check_schema};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Profile, is_kebab};
use crate::consumer::{Consumer, ConsumerContext, ConsumerError};
use crate::maintenance;
use crate::problem::{Problem, counted, write_list};
use crate::relay::{Relay, RelayContext, RelayError};
use crate::signals::ShutdownSignals;

/// How long the brokers may take to describe the topics, and again to create them.
const TOPICS_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest consumer name in bytes: it is Kafka's group id and a column of every dedup row.
const CONSUMER_NAME_MAX_BYTES: usize = 128;
/// librdkafka's own, where `KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS` says nothing else.
const MAX_POLL_INTERVAL_DEFAULT: Duration = Duration::from_secs(300);
/// What is left of the shutdown deadline for the relay and the goodbyes once the lanes had theirs.
const DRAIN_SHARE: f64 = 0.8;
/// Connections beside the lanes': relay, its lease, maintenance, start checks.
const CONNECTIONS_BESIDE_LANES: u32 = 4;
/// Copies of a topic that is created in production; one elsewhere.
const REPLICATION_IN_PRODUCTION: u16 = 3;
/// Asked for when a service has no topic of its own to ask for: every Kafka has or may have it.
const PROBE_TOPIC: &str = "__consumer_offsets";

/// A service: a relay, consumers, or both, with maintenance beside them.
///
/// [`run`](ServiceBuilder::run) checks first and starts only if everything is in order, listing every
/// problem at once if not. Then it runs until a signal, or until one of its parts fails.
///
/// **Start.** The configuration, names and limits (CONS-1, CONS-6, PROD-1, SEC-1), the database
/// and its tables (IDEM-2, OBX-X3), the brokers, every topic (CFG-4). Then the dedup window's
/// partitions are made, and the relay and the consumers begin.
///
/// **End.** On SIGTERM or SIGINT the consumers take no more records and finish what they have;
/// then the relay sends what it has claimed. After `FACTUM_SHUTDOWN_DEADLINE_SECONDS` whatever
/// still runs is cut off, which loses nothing: the database rolls back, the offset has not moved.
/// A second signal ends the process at once with exit code 143 (SIGTERM) or 130 (SIGINT), even if
/// a handler blocks every thread.
///
/// **Failure.** If one part fails, the others stop as after a signal and `run` gives its error, so
/// that the process ends with an exit code and its orchestrator starts it anew.
///
/// **Connections.** A lane, which is one partition of one consumer, holds one connection to the
/// database while it is assigned. Unless `FACTUM_DATABASE_MAX_CONNECTIONS` says otherwise, the
/// pool may grow to as many as the service needs when it runs alone.
///
/// ```no_run
/// # use factum_runtime::{Config, Consumer, Handler, Service, Tx};
/// # use factum_event::{Envelope, Event, HandlerError};
/// # struct Billing;
/// # impl<E: Event> Handler<E> for Billing {
/// #     async fn handle(&self, _: &Envelope<E>, _: &mut Tx<'_>) -> Result<(), HandlerError> { Ok(()) }
/// # }
/// # async fn main_of<OrderConfirmed: Event>() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::from_env()?;
/// Service::builder(config)
///     .relay()
///     .consumer(Consumer::named("billing-order-confirmed").handler::<OrderConfirmed>(Billing))
///     .run()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub enum Service {}

impl Service {
    /// A service without parts; add [`relay`](ServiceBuilder::relay) and
    /// [`consumer`](ServiceBuilder::consumer)s.
    pub fn builder(config: Config) -> ServiceBuilder {
        ServiceBuilder {
            config,
            relay: false,
            maintenance: true,
            consumers: Vec::new(),
            own_topics: BTreeSet::new(),
            new_topic_partitions: None,
        }
    }
}

/// The parts of a [`Service`], and what runs them.
#[must_use = "a service does nothing until it runs"]
#[derive(Debug)]
pub struct ServiceBuilder {
    config: Config,
    relay: bool,
    maintenance: bool,
    consumers: Vec<Consumer>,
    own_topics: BTreeSet<&'static str>,
    new_topic_partitions: Option<u32>,
}

impl ServiceBuilder {
    /// Sends the outbox's rows to Kafka from this process. Relays of other processes share the
    /// work; one that stands by costs next to nothing.
    pub fn relay(mut self) -> ServiceBuilder {
        self.relay = true;
        self
    }

    /// Adds a consumer. Its name begins with the service's: `billing-order-confirmed` (CONS-1).
    pub fn consumer(mut self, consumer: Consumer) -> ServiceBuilder {
        self.consumers.push(consumer);
        self
    }

    /// Whether this process moves the dedup window. On by default; with it off, another process
    /// must do it, or consumers stop a week later for want of a partition.
    pub fn maintenance(mut self, on: bool) -> ServiceBuilder {
        self.maintenance = on;
        self
    }

    /// Declares that this service publishes `E` and owns its topic: the start check then asks for
    /// that topic too (CFG-4), and [`create_topics`](ServiceBuilder::create_topics) may create it.
    pub fn publishes<E: Event>(mut self) -> ServiceBuilder {
        self.own_topics.insert(E::TOPIC);
        self
    }

    /// Creates the topics of [`publishes`](ServiceBuilder::publishes) that are missing, with so many
    /// partitions, if `FACTUM_CREATE_TOPICS` is on: by default in development only (CFG-5). Each
    /// partition has one copy in development, three in production. A topic that exists stays as
    /// it is; topics that are only consumed are never created.
    pub fn create_topics(mut self, partitions: u32) -> ServiceBuilder {
        self.new_topic_partitions = Some(partitions);
        self
    }

    /// Checks, starts, and runs until SIGTERM or SIGINT, or until a part fails.
    ///
    /// It belongs into `main`: from now on the process's SIGTERM and SIGINT are this service's, and
    /// once it has ended the next one ends the process. For tests, and inside a larger program, see
    /// [`run_until`](ServiceBuilder::run_until).
    ///
    /// # Errors
    ///
    /// [`ServiceError::Start`] with every problem that the checks found; else what the first failed
    /// part said; [`ServiceError::Deadline`] if the parts did not stop in time.
    pub async fn run(self) -> Result<(), ServiceError> {
        let mut signals = ShutdownSignals::watch().map_err(ServiceError::Signals)?;
        self.run_until(signals.first()).await
    }

    /// Checks, starts, and runs until `shutdown` is ready, or until a part fails. It looks at no
    /// signal. Dropping the future cuts the parts off without draining.
    ///
    /// # Errors
    ///
    /// As [`run`](ServiceBuilder::run).
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), ServiceError> {
        let mut shutdown = pin!(shutdown);
        let started = tokio::select! {
            started = self.start() => started?,
            () = &mut shutdown => return Ok(()),
        };
        started.run_until(shutdown).await
    }

    async fn start(self) -> Result<Started, ServiceError> {
        for variable in self.config.unused_variables() {
            tracing::warn!(variable, "not a setting of Factum; it is left alone");
        }
        let ready = self.check().await?;
        if self.maintenance {
            maintenance::run_once(&ready.db, &self.config.window)
                .await
                .map_err(|error| {
                    ServiceError::Start(vec![Problem::new(
                        "IDEM-2",
                        self.config.database_place(),
                        format!("the dedup window's partitions could not be made: {error}"),
                        "let the service's role create tables and drop its own, or make the partitions \
                         with `factum migrate up` as another role and switch maintenance off here",
                    )])
                })?;
        }
        Ok(self.start_parts(ready))
    }

    fn start_parts(self, ready: Ready) -> Started {
        let ServiceBuilder {
            config,
            relay,
            maintenance,
            consumers,
            ..
        } = self;
        let mut started = Started {
            parts: JoinSet::new(),
            names: HashMap::new(),
            consuming: CancellationToken::new(),
            serving: CancellationToken::new(),
            deadline: config.shutdown_deadline,
            db: ready.db,
        };
        tracing::info!(
            service = config.service,
            profile = config.profile.as_str(),
            consumers = consumers.len(),
            relay,
            maintenance,
            partitions = ready.lanes,
            max_connections = ready.max_connections,
            "started"
        );
        if maintenance {
            let pass = maintenance::run(started.db.clone(), config.window, started.serving.clone());
            started.spawn(Part::Maintenance, async {
                pass.await;
                Ok(())
            });
        }
        if relay {
            let context = RelayContext {
                db: started.db.clone(),
                kafka: config.kafka.clone(),
                owner: relay_owner(&config.service),
            };
            let shutdown = started.serving.clone();
            started.spawn(Part::Relay, async {
                Relay::default()
                    .run(context, shutdown)
                    .await
                    .map_err(ServiceError::Relay)
            });
        }
        for consumer in consumers {
            let name = consumer.name().to_owned();
            let context = ConsumerContext {
                db: started.db.clone(),
                kafka: config.kafka.clone(),
                drain_deadline: config.shutdown_deadline.mul_f64(DRAIN_SHARE),
            };
            let shutdown = started.consuming.clone();
            started.spawn(Part::Consumer(name.clone()), async {
                consumer
                    .run(context, shutdown)
                    .await
                    .map_err(|source| ServiceError::Consumer { name, source })
            });
        }
        started
    }

    /// Everything that must hold before the first record is read; all problems at once.
    async fn check(&self) -> Result<Ready, ServiceError> {
        let mut problems = self.config.problems();
        problems.extend(self.part_problems());
        let topics = self.check_topics(&mut problems).await;
        let lanes = self.lanes(&topics);
        let settings = self.database_settings(lanes, &mut problems);
        let db = self.check_database(&settings, &mut problems).await;
        match db {
            Some(db) if problems.is_empty() => Ok(Ready {
                db,
                lanes,
                max_connections: settings.max_connections,
            }),
            db => {
                if let Some(db) = db {
                    db.close().await;
                }
                Err(ServiceError::Start(problems))
            }
        }
    }

    /// What the code alone decides: names, handlers, limits.
    fn part_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let service = &self.config.service;
        if !self.relay && self.consumers.is_empty() {
            problems.push(Problem::new(
                "CFG-1",
                format!("service `{service}`"),
                "the service has neither a relay nor a consumer, so there is nothing to run",
                "add .relay() or .consumer(…) to the builder",
            ));
        }
        if self.new_topic_partitions == Some(0) {
            problems.push(Problem::new(
                "CFG-5",
                format!("service `{service}`"),
                "topics cannot be created with 0 partitions",
                "write at least .create_topics(1)",
            ));
        }
        let mut names = BTreeMap::<&str, usize>::new();
        for consumer in &self.consumers {
            *names.entry(consumer.name()).or_default() += 1;
        }
        for (name, count) in &names {
            if *count > 1 {
                problems.push(Problem::new(
                    "CONS-1",
                    format!("consumer `{name}`"),
                    format!("{count} consumers of this service have the same name, so each would see the others' events as duplicates"),
                    "give each purpose its own name, or give one consumer both handlers",
                ));
            }
            problems.extend(self.consumer_name_problem(name));
        }
        let max_poll_interval = self.max_poll_interval();
        for consumer in &self.consumers {
            let place = format!("consumer `{}`", consumer.name());
            problems.extend(consumer.problems());
            if consumer.time_limit() >= max_poll_interval {
                problems.push(Problem::new(
                    "CONS-6",
                    place,
                    format!(
                        "a handler may take {} s, but Kafka takes the partition away after {} s \
                         without a poll (max.poll.interval.ms)",
                        consumer.time_limit().as_secs_f64(),
                        max_poll_interval.as_secs_f64()
                    ),
                    "lower the consumer's .handler_timeout(…), or raise \
                     KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS",
                ));
            }
        }
        problems
    }

    fn consumer_name_problem(&self, name: &str) -> Option<Problem> {
        let service = &self.config.service;
        let purpose = name
            .strip_prefix(service.as_str())
            .and_then(|rest| rest.strip_prefix('-'))
            .filter(|purpose| !purpose.is_empty());
        let what = if !is_kebab(name) {
            "the name is not lower-case kebab".to_owned()
        } else if name.len() > CONSUMER_NAME_MAX_BYTES {
            format!("the name is longer than {CONSUMER_NAME_MAX_BYTES} characters")
        } else if purpose.is_none() {
            format!("the name does not begin with its service's, `{service}-`")
        } else {
            return None;
        };
        Some(Problem::new(
            "CONS-1",
            format!("consumer `{name}`"),
            what,
            format!(
                "name it after the service and the purpose, in lower-case words joined by dashes: \
                 {service}-order-confirmed. A consumer that is renamed handles everything again"
            ),
        ))
    }

    fn max_poll_interval(&self) -> Duration {
        self.config
            .kafka
            .consumer
            .get("max.poll.interval.ms")
            .and_then(|text| text.parse().ok())
            .map_or(MAX_POLL_INTERVAL_DEFAULT, Duration::from_millis)
    }

    /// Who needs each topic, for the message that says it is missing.
    fn needed_topics(&self) -> BTreeMap<&'static str, Vec<String>> {
        let mut needed = BTreeMap::<&str, Vec<String>>::new();
        for topic in &self.own_topics {
            needed
                .entry(topic)
                .or_default()
                .push(format!("service `{}` publishes to it", self.config.service));
        }
        for consumer in &self.consumers {
            for topic in consumer.topics() {
                needed
                    .entry(topic)
                    .or_default()
                    .push(format!("consumer `{}` reads it", consumer.name()));
            }
        }
        needed
    }

    /// The partitions of every topic that could be asked for.
    async fn check_topics(&self, problems: &mut Vec<Problem>) -> BTreeMap<String, Option<u32>> {
        let needed = self.needed_topics();
        let mut asked: Vec<&str> = needed.keys().copied().collect();
        if asked.is_empty() {
            asked.push(PROBE_TOPIC);
        }
        let mut topics = match describe_topics(&self.config.kafka, &asked, TOPICS_TIMEOUT).await {
            Ok(topics) => topics,
            Err(error) if needed.is_empty() && error.kind() == KafkaErrorKind::Authorization => {
                return BTreeMap::new(); // The brokers answered; that was the question.
            }
            Err(error) => {
                problems.push(self.kafka_problem(&error));
                return BTreeMap::new();
            }
        };
        topics.remove(PROBE_TOPIC);
        if let Err(error) = self.create_own_topics(&mut topics).await {
            problems.push(self.kafka_problem(&error));
        }
        for (topic, needed_by) in needed {
            if topics.get(topic).copied().flatten().unwrap_or(0) > 0 {
                continue;
            }
            let owned = self.own_topics.contains(topic);
            problems.push(Problem::new(
                "CFG-4",
                format!(
                    "Kafka at {}; {}",
                    self.config.kafka.brokers,
                    needed_by.join(", ")
                ),
                format!("the topic `{topic}` does not exist"),
                format!(
                    "create it: kafka-topics.sh --bootstrap-server {} --create --topic {topic} \
                     --partitions 4. {}",
                    first_broker(&self.config.kafka.brokers),
                    if owned {
                        "This service owns it: in development .create_topics(4) creates it at start"
                    } else {
                        "The service that publishes it owns it (CFG-5); if it is there under another \
                         name, correct `topic = \"…\"` of the event"
                    }
                ),
            ));
        }
        topics
    }

    async fn create_own_topics(
        &self,
        topics: &mut BTreeMap<String, Option<u32>>,
    ) -> Result<(), KafkaError> {
        let Some(partitions) = self.new_topic_partitions.filter(|count| *count > 0) else {
            return Ok(());
        };
        if !self.config.create_topics {
            return Ok(());
        }
        let replication = match self.config.profile {
            Profile::Development => 1,
            Profile::Production => REPLICATION_IN_PRODUCTION,
        };
        let missing: Vec<NewTopic> = self
            .own_topics
            .iter()
            .filter(|topic| topics.get(**topic).copied().flatten().is_none())
            .map(|topic| NewTopic {
                name: (*topic).to_owned(),
                partitions,
                replication,
            })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        create_topics(&self.config.kafka, &missing, TOPICS_TIMEOUT).await?;
        for topic in missing {
            tracing::info!(
                topic = topic.name,
                partitions,
                replication,
                "created a topic"
            );
            topics.insert(topic.name, Some(partitions));
        }
        Ok(())
    }

    fn kafka_problem(&self, error: &KafkaError) -> Problem {
        let (rule, mend) = match error.kind() {
            KafkaErrorKind::Unreachable => (
                "CFG-2",
                "start Kafka there, or correct KAFKA_BROKERS; if the brokers speak TLS, \
                 KAFKA_SECURITY_PROTOCOL must say so",
            ),
            KafkaErrorKind::Authentication => (
                "SEC-2",
                "correct the login or the certificate: KAFKA_SECURITY_PROTOCOL, KAFKA_SASL_MECHANISM, \
                 KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD, KAFKA_SSL_CA_LOCATION",
            ),
            KafkaErrorKind::Authorization => {
                ("SEC-2", "give this service's user the right on the cluster")
            }
            _ => ("CFG-2", "do what the text before says"),
        };
        Problem::new(
            rule,
            format!("Kafka at {}", self.config.kafka.brokers),
            error.to_string(),
            mend,
        )
    }

    /// The lanes of this process when it runs alone.
    fn lanes(&self, topics: &BTreeMap<String, Option<u32>>) -> u32 {
        self.consumers
            .iter()
            .flat_map(Consumer::topics)
            .filter_map(|topic| topics.get(topic).copied().flatten())
            .fold(0, u32::saturating_add)
    }

    fn database_settings(&self, lanes: u32, problems: &mut Vec<Problem>) -> DatabaseSettings {
        let wanted = lanes.saturating_add(CONNECTIONS_BESIDE_LANES);
        let consumers = u32::try_from(self.consumers.len()).unwrap_or(u32::MAX);
        let least = consumers.saturating_add(CONNECTIONS_BESIDE_LANES);
        let max_connections = self.config.max_connections.unwrap_or(wanted);
        if max_connections < least {
            problems.push(Problem::new(
                "CFG-1",
                "the environment variable FACTUM_DATABASE_MAX_CONNECTIONS",
                format!(
                    "{} are too few: {} need at least {least}",
                    counted(max_connections as usize, "connection"),
                    counted(self.consumers.len(), "consumer"),
                ),
                format!(
                    "write {wanted}, or unset it: then the service takes as many as its lanes need"
                ),
            ));
        } else if max_connections < wanted {
            tracing::warn!(
                max_connections,
                wanted,
                "with all partitions in this process some lanes would wait for a connection"
            );
        }
        let handler_timeout = self
            .consumers
            .iter()
            .map(Consumer::time_limit)
            .fold(self.config.database.handler_timeout, Duration::max);
        DatabaseSettings {
            max_connections: max_connections.max(least),
            handler_timeout,
            ..self.config.database.clone()
        }
    }

    async fn check_database(
        &self,
        settings: &DatabaseSettings,
        problems: &mut Vec<Problem>,
    ) -> Option<Database> {
        let place = self.config.database_place();
        let db = match Database::connect(settings).await {
            Ok(db) => db,
            Err(error) => {
                problems.push(Problem::new(
                    "CFG-1",
                    place,
                    format!("the database cannot be used: {error}"),
                    "start PostgreSQL there, or correct host, port, database, user and password in \
                     DATABASE_URL",
                ));
                return None;
            }
        };
        match check_schema(&db).await {
            Ok(found) => problems.extend(
                found
                    .iter()
                    // The pass before the start makes it.
                    .filter(|problem| {
                        !self.maintenance || **problem != SchemaProblem::NoPartitionForToday
                    })
                    .map(|problem| schema_problem(&place, problem)),
            ),
            Err(error) => problems.push(Problem::new(
                "CFG-1",
                place,
                format!("the tables could not be checked: {error}"),
                "let the service's role read the catalog and its own tables",
            )),
        }
        Some(db)
    }
}

/// The text of a schema problem is `rule: what; mend`.
fn schema_problem(place: &str, problem: &SchemaProblem) -> Problem {
    let text = problem.to_string();
    let text = text
        .strip_prefix(problem.rule())
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or(&text);
    let (what, mend) = text
        .split_once("; ")
        .unwrap_or((text, "compare the tables with `factum migrate sql`"));
    Problem::new(problem.rule(), place, what, mend)
}

/// Where the checks ended well.
struct Ready {
    db: Database,
    lanes: u32,
    max_connections: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Relay,
    Maintenance,
    Consumer(String),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Relay => f.write_str("the relay"),
            Part::Maintenance => f.write_str("the maintenance"),
            Part::Consumer(name) => write!(f, "consumer `{name}`"),
        }
    }
}

/// A service whose parts run.
struct Started {
    parts: JoinSet<Result<(), ServiceError>>,
    names: HashMap<tokio::task::Id, Part>,
    /// Ends the consumers.
    consuming: CancellationToken,
    /// Ends what serves them; later, so that their last events still leave.
    serving: CancellationToken,
    deadline: Duration,
    db: Database,
}

impl Started {
    fn spawn(
        &mut self,
        part: Part,
        work: impl Future<Output = Result<(), ServiceError>> + Send + 'static,
    ) {
        let id = self.parts.spawn(work).id();
        self.names.insert(id, part);
    }

    async fn run_until(
        mut self,
        mut shutdown: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), ServiceError> {
        let mut failure = None;
        let mut stop_at: Option<Instant> = None;
        while !self.names.is_empty() {
            tokio::select! {
                () = &mut shutdown, if stop_at.is_none() => {
                    stop_at = Some(self.stop());
                }
                () = until(stop_at) => {
                    let running: Vec<String> = self.names.values().map(Part::to_string).collect();
                    self.parts.abort_all();
                    tracing::error!(running = running.join(", "), "cut off at the shutdown deadline");
                    failure.get_or_insert(ServiceError::Deadline { running, after: self.deadline });
                    break;
                }
                Some(ended) = self.parts.join_next_with_id() => {
                    let (id, result) = match ended {
                        Ok((id, result)) => (id, Some(result)),
                        Err(error) => (error.id(), None),
                    };
                    let Some(part) = self.names.remove(&id) else { continue };
                    let error = match result {
                        Some(Err(error)) => Some(error),
                        Some(Ok(())) if stop_at.is_none() => {
                            Some(ServiceError::Ended { part: part.to_string() })
                        }
                        Some(Ok(())) => None,
                        None => Some(ServiceError::Panicked { part: part.to_string() }),
                    };
                    match error {
                        Some(error) => {
                            tracing::error!(%part, %error, "failed; the service stops");
                            failure.get_or_insert(error);
                            stop_at.get_or_insert_with(|| self.stop());
                        }
                        None => tracing::info!(%part, "stopped"),
                    }
                    if !self.names.values().any(|part| matches!(part, Part::Consumer(_))) {
                        self.end_serving_if(stop_at.is_some());
                    }
                }
            }
        }
        let rest = stop_at.unwrap_or_else(Instant::now);
        if tokio::time::timeout_at(rest, self.db.close())
            .await
            .is_err()
        {
            tracing::warn!("connections to the database were still lent at the end");
        }
        match failure {
            None => {
                tracing::info!("stopped in good order");
                Ok(())
            }
            Some(error) => Err(error),
        }
    }

    /// Begins the end and gives the moment when it must be reached.
    fn stop(&self) -> Instant {
        self.consuming.cancel();
        let consumers = self
            .names
            .values()
            .any(|part| matches!(part, Part::Consumer(_)));
        self.end_serving_if(!consumers);
        Instant::now() + self.deadline
    }

    fn end_serving_if(&self, condition: bool) {
        if condition {
            self.serving.cancel();
        }
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Names a relay in its lease: by service and process for a person, and at random, because the
/// process ids of containers are alike.
fn relay_owner(service: &str) -> String {
    format!("{service}-{}-{:08x}", std::process::id(), fastrand::u32(..))
}

fn first_broker(brokers: &str) -> &str {
    brokers.split(',').next().unwrap_or(brokers)
}

/// Why a service did not start, or did not run to its end.
///
/// As text it is meant for the person who reads the log: it names the part, and says what to do.
#[non_exhaustive]
pub enum ServiceError {
    /// The start checks found something; nothing was started. Mend all of it, then start again.
    Start(Vec<Problem>),
    /// A consumer stopped for good. Its error says what to mend.
    Consumer {
        /// The consumer's name.
        name: String,
        /// Why it stopped.
        source: ConsumerError,
    },
    /// The relay stopped for good.
    Relay(RelayError),
    /// A part panicked: a fault in Factum, please report it. Handlers' panics do not come here.
    Panicked {
        /// The part.
        part: String,
    },
    /// A part ended although nobody asked it to: a fault in Factum, please report it.
    Ended {
        /// The part.
        part: String,
    },
    /// The shutdown took longer than `FACTUM_SHUTDOWN_DEADLINE_SECONDS`, so these parts were cut
    /// off. Nothing is lost. Raise the deadline, or shorten the consumers' handler timeouts.
    Deadline {
        /// The parts that were still running.
        running: Vec<String>,
        /// The deadline.
        after: Duration,
    },
    /// The process's signals can't be watched.
    Signals(io::Error),
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceError::Start(problems) => write_list(f, "the service does not start", problems),
            ServiceError::Consumer { name, source } => write!(f, "consumer `{name}`: {source}"),
            ServiceError::Relay(source) => write!(f, "the relay: {source}"),
            ServiceError::Panicked { part } => write!(
                f,
                "{part} panicked; the log has the place. This is a fault in Factum: please report it"
            ),
            ServiceError::Ended { part } => write!(
                f,
                "{part} ended although nobody asked it to. This is a fault in Factum: please report it"
            ),
            ServiceError::Deadline { running, after } => write!(
                f,
                "after {} s of shutting down, {} still ran and was cut off; nothing is lost. Raise \
                 FACTUM_SHUTDOWN_DEADLINE_SECONDS, or shorten the handlers' time limits",
                after.as_secs_f64(),
                running.join(" and ")
            ),
            ServiceError::Signals(error) => write!(
                f,
                "SIGTERM and SIGINT cannot be watched ({error}); use run_until if this program has \
                 its own way to stop"
            ),
        }
    }
}

impl fmt::Debug for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `fn main() -> Result<(), ServiceError>` prints this, and a person reads it.
        fmt::Display::fmt(self, f)
    }
}

// The texts hold their causes already, so none is given as a source: it would be shown twice.
impl std::error::Error for ServiceError {}
