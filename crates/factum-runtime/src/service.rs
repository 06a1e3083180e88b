//! A service: its parts, the checks before it starts, and its end.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use factum_event::{Event, Registry};
use factum_postgres::{Database, InstanceId};
use tokio::task::JoinSet;

use crate::answer::Calls;
use crate::caller::{Caller, CallerError};
use crate::config::Config;
use crate::consumer::{Consumer, ConsumerContext, ConsumerError};
use crate::health::{Health, MetricsText, Vitals};
use crate::instance::Heartbeat;
use crate::maintenance;
use crate::outbox_meter;
use crate::parts::{Part, Parts};
use crate::problem::{Problem, write_list};
use crate::relay::{Relay, RelayContext, RelayError};
use crate::signals::ShutdownSignals;
use crate::start_check::Ready;
use crate::wake::{RelayWake, Wake};

/// What is left of the shutdown deadline for the relay and the goodbyes once the lanes had theirs.
const DRAIN_SHARE: f64 = 0.8;
/// How long the connections to the database may take to close, at the very end.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A service: a relay, consumers, calls, or all of them, with maintenance beside them.
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
/// **Health.** With `FACTUM_HEALTH_LISTEN` the process tells over HTTP whether it lives and is ready, and what it
/// has counted, to those who say `FACTUM_HEALTH_TOKEN` (docs/operate/relay.md).
///
/// **Connections.** A lane, which is one partition of one consumer, keeps one connection to the
/// database. Unless `FACTUM_DATABASE_MAX_CONNECTIONS` says otherwise, the
/// pool may grow to as many as the service needs when it runs alone. With fewer, lanes take turns, one transaction
/// each, in the order of asking; relay and maintenance have connections of their own and don't wait behind handlers.
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
            relay: None,
            maintenance: true,
            consumers: Vec::new(),
            calls: None,
            own_topics: BTreeSet::new(),
            new_topic_partitions: None,
            metrics_text: None,
        }
    }
}

/// The parts of a [`Service`], and what runs them.
#[must_use = "a service does nothing until it runs"]
#[derive(Debug)]
pub struct ServiceBuilder {
    pub(crate) config: Config,
    pub(crate) relay: Option<Relay>,
    pub(crate) maintenance: bool,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) calls: Option<Calls>,
    pub(crate) own_topics: BTreeSet<&'static str>,
    pub(crate) new_topic_partitions: Option<u32>,
    pub(crate) metrics_text: Option<MetricsText>,
}

impl ServiceBuilder {
    /// Sends the outbox's rows to Kafka from this process. Relays of other processes share the
    /// work: each sends the keys of its slots.
    pub fn relay(self) -> ServiceBuilder {
        self.relay_with(Relay::new())
    }

    /// As [`relay`](ServiceBuilder::relay), with limits of your own.
    pub fn relay_with(mut self, relay: Relay) -> ServiceBuilder {
        self.relay = Some(relay);
        self
    }

    /// Adds a consumer. Its name begins with the service's: `billing-order-confirmed` (CONS-1).
    pub fn consumer(mut self, consumer: Consumer) -> ServiceBuilder {
        self.consumers.push(consumer);
        self
    }

    /// Names the build, such as `env!("CARGO_PKG_VERSION")`, in place of `FACTUM_BUILD`: dead letters say which build
    /// failed, and the command which one runs. At most 100 characters, none of them a control character.
    pub fn build(mut self, build: impl Into<String>) -> ServiceBuilder {
        self.config.build = build.into();
        self
    }

    /// Declares the endpoints that handlers call through [`tx.call`](crate::Tx::call), and sends the calls from this
    /// process. Several processes share the work.
    pub fn calls(mut self, calls: Calls) -> ServiceBuilder {
        self.calls = Some(calls);
        self
    }

    /// Whether this process moves the dedup window, deletes what is older than its retention and folds the counts of dead
    /// letters. On by default; with it off, another process must do it, or consumers stop a week later for want of a
    /// partition.
    pub fn maintenance(mut self, on: bool) -> ServiceBuilder {
        self.maintenance = on;
        self
    }

    /// Declares that this service publishes `E` and owns its topic: the start check then asks for
    /// that topic too (CFG-4), and [`create_topics`](ServiceBuilder::create_topics) may create it.
    ///
    /// The topics of the versions that `E` supersedes count as its own, since they are published, too.
    pub fn publishes<E: Event>(mut self) -> ServiceBuilder {
        self.own_topics.insert(E::TOPIC);
        // A malformed type has no versions; publishing it says so.
        if let Ok(registry) = Registry::new().try_with::<E>() {
            let versions = registry.taken_types();
            self.own_topics
                .extend(versions.iter().map(|version| version.topic));
        }
        self
    }

    /// Creates the topics of [`publishes`](ServiceBuilder::publishes) that are missing, and those of its consumers'
    /// retries and mirrored dead letters, with so many partitions, if `FACTUM_CREATE_TOPICS` is on: by default in development only (CFG-5). Each
    /// partition has one copy in development, three in production. A topic that exists stays as
    /// it is; topics that are only consumed are never created.
    pub fn create_topics(mut self, partitions: u32) -> ServiceBuilder {
        self.new_topic_partitions = Some(partitions);
        self
    }

    /// What the health endpoint (`FACTUM_HEALTH_LISTEN`) serves as `/metrics`: the text that the program's own
    /// recorder renders for Prometheus. Factum installs no recorder in a program, since there can be one only; without
    /// this, `/metrics` is not found.
    ///
    /// ```no_run
    /// # use factum_runtime::{Config, Service};
    /// # struct Handle;
    /// # impl Handle { fn render(&self) -> String { String::new() } }
    /// # fn example(config: Config, handle: Handle) {
    /// // let handle = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    /// let service = Service::builder(config).relay().metrics_text(move || handle.render());
    /// # }
    /// ```
    pub fn metrics_text(
        mut self,
        render: impl Fn() -> String + Send + Sync + 'static,
    ) -> ServiceBuilder {
        self.metrics_text = Some(MetricsText(Arc::new(render)));
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
        let Started {
            parts,
            db,
            mut beside,
        } = tokio::select! {
            started = self.start() => started?,
            () = &mut shutdown => return Ok(()),
        };
        let ended = parts.run_until(shutdown).await;
        beside.abort_all();
        if tokio::time::timeout(CLOSE_LIMIT, db.close()).await.is_err() {
            tracing::warn!("connections to the database were still lent at the end");
        }
        if ended.is_ok() {
            tracing::info!("stopped in good order");
        }
        ended
    }

    async fn start(self) -> Result<Started, ServiceError> {
        for variable in self.config.unused_variables() {
            tracing::warn!(variable, "not a setting of Factum; it is left alone");
        }
        crate::metric::describe();
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
            calls,
            metrics_text,
            ..
        } = self;
        let Ready {
            db,
            database,
            endpoints,
            lanes,
            health,
        } = ready;
        let mut parts = Parts::new(config.shutdown_deadline);
        tracing::info!(
            service = config.service,
            profile = config.profile.as_str(),
            consumers = consumers.len(),
            relay = relay.is_some(),
            maintenance,
            partitions = lanes,
            max_connections = database.max_connections,
            "started"
        );
        if maintenance {
            let db = db.clone();
            let kept = maintenance::Kept {
                service: config.service.clone(),
                window: config.window,
                retention: config.retention,
                settings: config.kept(),
            };
            parts.start(Part::Maintenance, |stop| async move {
                maintenance::run(db, kept, stop).await;
                Ok(())
            });
        }
        let vitals = Arc::new(Vitals::default());
        let mut beside = JoinSet::new();
        if let Some((listener, settings)) = health.zip(config.health.clone()) {
            let health = Health {
                settings,
                vitals: Arc::clone(&vitals),
                has_relay: relay.is_some(),
                ending: parts.ending(),
                metrics: metrics_text,
            };
            beside.spawn(health.run(listener, database, config.kafka.clone()));
        }
        if let Some(relay) = relay {
            let wake = match config.relay_wake {
                RelayWake::Poll => Wake::polling(&config.service),
                RelayWake::Listen => {
                    let (wake, listener) = Wake::listening(&config.service, db.clone());
                    parts.start(Part::RelayListener, |stop| async move {
                        listener.run(stop).await;
                        Ok(())
                    });
                    wake
                }
            };
            let meter = (db.clone(), relay.stats(), config.service.clone());
            parts.start(Part::RelayMetrics, |stop| async move {
                let (db, stats, service) = meter;
                outbox_meter::run(db, stats, service, stop).await;
                Ok(())
            });
            let context = RelayContext {
                db: db.clone(),
                kafka: config.kafka.clone(),
                service: config.service.clone(),
                owner: relay_owner(&config.service),
                cloud_events: config.cloud_events.clone(),
                wake,
                vitals,
            };
            parts.start(Part::Relay, |stop| async move {
                relay.run(context, stop).await.map_err(ServiceError::Relay)
            });
        }
        let instance = InstanceId::new();
        let heartbeat = Heartbeat::new(instance, &config, &consumers, db.clone());
        parts.start(Part::Heartbeat, |stop| async move {
            heartbeat.run(stop).await;
            Ok(())
        });
        let calls = calls.map(|calls| Arc::new(calls.of_service(&config.service)));
        if let Some(calls) = calls.clone() {
            let caller = Caller {
                db: db.clone(),
                calls,
                endpoints,
                owner: relay_owner(&config.service),
            };
            parts.start(Part::Calls, |stop| async move {
                caller.run(stop).await.map_err(ServiceError::Calls)
            });
        }
        for consumer in consumers {
            let name = consumer.name().to_owned();
            let context = ConsumerContext {
                db: db.clone(),
                kafka: config.kafka.clone(),
                calls: calls.clone(),
                drain_deadline: config.shutdown_deadline.mul_f64(DRAIN_SHARE),
                instance,
                build: config.build.clone(),
            };
            parts.start(Part::Consumer(name.clone()), |stop| async move {
                consumer
                    .run(context, stop)
                    .await
                    .map_err(|source| ServiceError::Consumer { name, source })
            });
        }
        Started { parts, db, beside }
    }
}

/// A service that runs.
struct Started {
    parts: Parts,
    db: Database,
    /// The health endpoint, which answers until the parts have ended.
    beside: JoinSet<()>,
}

/// Names a relay or a caller in its lease: by service and process for a person, and at random, because the
/// process ids of containers are alike.
fn relay_owner(service: &str) -> String {
    format!("{service}-{}-{:08x}", std::process::id(), fastrand::u32(..))
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
    /// The calls to other systems stopped for good. The error says what to mend.
    Calls(CallerError),
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

impl ServiceError {
    /// Whether the service did not start because the database can't be reached or lets nobody in: then another try,
    /// later, may do.
    #[must_use]
    pub fn is_database_away(&self) -> bool {
        matches!(self, ServiceError::Start(problems) if problems.iter().any(Problem::is_database_away))
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceError::Start(problems) => write_list(f, "the service does not start", problems),
            ServiceError::Consumer { name, source } => write!(f, "consumer `{name}`: {source}"),
            ServiceError::Calls(source) => write!(f, "the calls: {source}"),
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
                "after {} s of shutting down, {} still ran and {} cut off; nothing is lost. Raise \
                 FACTUM_SHUTDOWN_DEADLINE_SECONDS, or shorten the handlers' time limits",
                after.as_secs_f64(),
                running.join(" and "),
                if running.len() == 1 { "was" } else { "were" }
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
