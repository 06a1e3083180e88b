//! A stage for tests across crates: a fresh database, a broker, a topic of the test's own, and a
//! handler whose behaviour the event itself asks for.
//!
//! Each test that involves a broker runs on librdkafka's in-process broker and on real Apache Kafka;
//! [`on_both_brokers!`] makes the pair.

pub mod trouble;
pub mod workload;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use factum::sqlx::{self, Connection as _};
use factum::{
    BatchHandler, Config, Consumer, Envelope, Event, EventId, Handler, HandlerError, Service,
    ServiceError, Tx,
};
use factum_testing::{TestBroker, TestDatabase, eventually};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub mod provider;

pub use factum;
pub use factum_testing;
pub use time;
pub use uuid;

/// The longest any condition is waited for: far beyond what a busy two-core machine needs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Which broker a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// librdkafka's mock cluster, inside the test's process.
    Embedded,
    /// Apache Kafka.
    Kafka,
}

/// An event of these tests: an account's entry, which says what its handler shall do.
pub trait Entry: Event + Clone {
    /// Makes one.
    fn entry(account: &str, seq: u64, note: &str) -> Self;
    /// The aggregate.
    fn account(&self) -> &str;
    /// Its place within the account.
    fn seq(&self) -> u64;
    /// What the handler shall do; see [`Recorder`].
    fn note(&self) -> &str;
}

/// Declares a module with an event type on a topic of its own: `Posted`, unless another name is given.
#[macro_export]
macro_rules! entry_on_topic {
    ($module:ident, $topic:tt) => {
        $crate::entry_on_topic!($module, $topic, "account.posted.v1");
    };
    ($module:ident, $topic:tt, $kind:tt) => {
        $crate::entry_on_topic!($module, $topic, $kind, Posted);
    };
    ($module:ident, $topic:tt, $kind:tt, $event:ident) => {
        mod $module {
            use $crate::factum;

            #[derive(Debug, Clone, PartialEq, factum::Event)]
            #[event(kind = $kind, aggregate = "Account", topic = $topic, unlocked)]
            pub(crate) struct $event {
                #[event(aggregate_id)]
                pub(crate) account: String,
                #[event(range(min = 0, max = 9_007_199_254_740_991))]
                pub(crate) seq: u64,
                pub(crate) note: String,
            }

            impl $crate::Entry for $event {
                fn entry(account: &str, seq: u64, note: &str) -> Self {
                    $event {
                        account: account.to_owned(),
                        seq,
                        note: note.to_owned(),
                    }
                }
                fn account(&self) -> &str {
                    &self.account
                }
                fn seq(&self) -> u64 {
                    self.seq
                }
                fn note(&self) -> &str {
                    &self.note
                }
            }
        }
    };
}

/// Declares a module with two versions of an event on one topic: `OrderConfirmedV1`, which has cents, and
/// `OrderConfirmed`, v2, which has an amount and a currency. `supersedes` links them. A second topic is v1's.
///
/// A note `strange` makes an order whose v1 can't be made into v2.
#[macro_export]
macro_rules! orders_on_topic {
    ($module:ident, $topic:tt) => {
        $crate::orders_on_topic!($module, $topic, $topic);
    };
    ($module:ident, $topic:tt, $old_topic:tt) => {
        mod $module {
            use $crate::factum;

            #[derive(Debug, Clone, PartialEq, factum::Event)]
            #[event(kind = "order.confirmed.v1", aggregate = "Order", topic = $old_topic, unlocked)]
            pub(crate) struct OrderConfirmedV1 {
                #[event(aggregate_id)]
                pub(crate) order: String,
                #[event(range(max = 9_007_199_254_740_991))]
                pub(crate) seq: u64,
                pub(crate) note: String,
                pub(crate) cents: u32,
            }

            #[derive(Debug, Clone, PartialEq, factum::Event)]
            #[event(
                                                                kind = "order.confirmed.v2",
                                                                aggregate = "Order",
                                                                topic = $topic,
                                                                unlocked,
                                                                supersedes = OrderConfirmedV1
                                                            )]
            pub(crate) struct OrderConfirmed {
                #[event(aggregate_id)]
                pub(crate) order: String,
                #[event(range(max = 9_007_199_254_740_991))]
                pub(crate) seq: u64,
                pub(crate) note: String,
                #[event(range(max = 9_007_199_254_740_991))]
                pub(crate) amount: u64,
                pub(crate) currency: String,
            }

            impl TryFrom<OrderConfirmedV1> for OrderConfirmed {
                type Error = factum::ConversionError;

                fn try_from(v1: OrderConfirmedV1) -> Result<Self, factum::ConversionError> {
                    if v1.note == "strange" {
                        return Err(factum::ConversionError::new("note", "no strange one"));
                    }
                    Ok(OrderConfirmed {
                        order: v1.order,
                        seq: v1.seq,
                        note: v1.note,
                        amount: v1.cents.into(),
                        currency: "EUR".to_owned(),
                    })
                }
            }

            impl TryFrom<&OrderConfirmed> for OrderConfirmedV1 {
                type Error = factum::ConversionError;

                fn try_from(v2: &OrderConfirmed) -> Result<Self, factum::ConversionError> {
                    let cents = v2.amount.try_into();
                    Ok(OrderConfirmedV1 {
                        order: v2.order.clone(),
                        seq: v2.seq,
                        note: v2.note.clone(),
                        cents: cents.map_err(|_| {
                            factum::ConversionError::new("amount", "at most 4294967295")
                        })?,
                    })
                }
            }

            impl $crate::Entry for OrderConfirmedV1 {
                fn entry(order: &str, seq: u64, note: &str) -> Self {
                    OrderConfirmedV1 {
                        order: order.to_owned(),
                        seq,
                        note: note.to_owned(),
                        cents: 1050,
                    }
                }
                fn account(&self) -> &str {
                    &self.order
                }
                fn seq(&self) -> u64 {
                    self.seq
                }
                fn note(&self) -> &str {
                    &self.note
                }
            }

            impl $crate::Entry for OrderConfirmed {
                fn entry(order: &str, seq: u64, note: &str) -> Self {
                    OrderConfirmed {
                        order: order.to_owned(),
                        seq,
                        note: note.to_owned(),
                        amount: 1050,
                        currency: "EUR".to_owned(),
                    }
                }
                fn account(&self) -> &str {
                    &self.order
                }
                fn seq(&self) -> u64 {
                    self.seq
                }
                fn note(&self) -> &str {
                    &self.note
                }
            }
        }
    };
}

/// Makes two tests of one body: `embedded::name` and `kafka::name`. The body is an
/// `async fn name(on: On)`.
#[macro_export]
macro_rules! on_both_brokers {
    ($($name:ident),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name($crate::On::Embedded).await;
                }
            )*
        }
        mod kafka {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name($crate::On::Kafka).await;
                }
            )*
        }
    };
}

/// A database with Factum's tables and an `effect` table, a broker, and one topic.
pub struct Scene {
    /// The database.
    pub database: TestDatabase,
    /// The broker.
    pub broker: TestBroker,
}

impl Scene {
    /// Sets the stage, with a topic of that many partitions for events of type `E`.
    pub async fn new<E: Event>(on: On, partitions: u32) -> Scene {
        // RUST_LOG=factum=debug shows what the services say; a second test finds it set up.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let broker = match on {
            On::Embedded => factum_testing::embedded(),
            On::Kafka => factum_testing::kafka(),
        };
        broker.create_topic(E::TOPIC, partitions).await;
        Scene {
            database: migrated_database().await,
            broker,
        }
    }

    /// A configuration for a service on this stage; `extra` adds or replaces variables.
    pub fn config(&self, extra: &[(&str, &str)]) -> Config {
        let mut vars = HashMap::from([
            ("DATABASE_URL", self.database.url().to_owned()),
            ("KAFKA_BROKERS", self.broker.bootstrap()),
            ("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT".to_owned()),
            ("FACTUM_SERVICE", "test".to_owned()),
            ("FACTUM_PROFILE", "development".to_owned()),
            ("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "10".to_owned()),
            ("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", "6000".to_owned()),
        ]);
        vars.extend(
            extra
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        Config::from_vars(vars.into_iter().map(|(k, v)| (k.to_owned(), v)))
            .expect("the stage's configuration is right")
    }

    /// Runs a service with these consumers until it is stopped.
    pub fn start(&self, consumers: impl IntoIterator<Item = Consumer>) -> Running {
        self.start_with(&[], consumers)
    }

    /// The same with changed variables.
    pub fn start_with(
        &self,
        extra: &[(&str, &str)],
        consumers: impl IntoIterator<Item = Consumer>,
    ) -> Running {
        let mut builder = Service::builder(self.config(extra));
        for consumer in consumers {
            builder = builder.consumer(consumer);
        }
        Running::start(builder)
    }

    /// Runs a relay until it is stopped.
    pub fn start_relay(&self) -> Running {
        Running::start(Service::builder(self.config(&[])).relay())
    }

    /// Puts events into a partition of their topic, in order, and gives their ids.
    pub async fn produce<E: Entry>(&self, partition: i32, events: &[E]) -> Vec<EventId> {
        let envelopes: Vec<Envelope<E>> = events.iter().cloned().map(envelope).collect();
        let values: Vec<Vec<u8>> = envelopes
            .iter()
            .map(|e| e.encode().expect("a test's event can be written"))
            .collect();
        let records: Vec<(&str, Option<&[u8]>)> = envelopes
            .iter()
            .zip(&values)
            .map(|(e, value)| (e.account(), Some(value.as_slice())))
            .collect();
        self.broker.produce(E::TOPIC, partition, &records).await;
        envelopes.iter().map(Envelope::id).collect()
    }

    /// Puts raw values into a partition.
    pub async fn produce_raw<E: Event>(&self, partition: i32, values: &[Option<&[u8]>]) {
        let records: Vec<(&str, Option<&[u8]>)> = values.iter().map(|v| ("raw", *v)).collect();
        self.broker.produce(E::TOPIC, partition, &records).await;
    }

    /// All effects of a consumer as `account:seq`, in the order in which they were committed.
    pub async fn effects(&self, consumer: &str) -> Vec<String> {
        let mut connection = self.database.connect().await;
        let rows = sqlx::query_scalar(
            "SELECT account || ':' || seq FROM effect WHERE consumer = $1 ORDER BY id",
        )
        .bind(consumer)
        .fetch_all(&mut connection)
        .await
        .expect("effects can be read");
        // A server has few connections, and many tests.
        connection
            .close()
            .await
            .expect("a connection can be closed");
        rows
    }

    /// One number from the database.
    pub async fn count(&self, sql: &'static str) -> i64 {
        let mut connection = self.database.connect().await;
        let count = sqlx::query_scalar(sql)
            .fetch_one(&mut connection)
            .await
            .expect("a count");
        connection
            .close()
            .await
            .expect("a connection can be closed");
        count
    }

    /// The reasons of a consumer's dead letters in the order of their offsets.
    pub async fn dead_letters(&self, consumer: &str) -> Vec<String> {
        let mut connection = self.database.connect().await;
        let rows = sqlx::query_scalar(
            "SELECT reason FROM dead_letter WHERE consumer = $1 ORDER BY partition, record_offset",
        )
        .bind(consumer)
        .fetch_all(&mut connection)
        .await
        .expect("dead letters can be read");
        connection
            .close()
            .await
            .expect("a connection can be closed");
        rows
    }

    /// Runs SQL of a test.
    pub async fn execute(&self, sql: &'static str) {
        let mut connection = self.database.connect().await;
        sqlx::raw_sql(sql)
            .execute(&mut connection)
            .await
            .expect("a test's SQL runs");
        connection
            .close()
            .await
            .expect("a connection can be closed");
    }

    /// Waits until a consumer has exactly these effects (in any order across accounts).
    pub async fn await_effects(&self, consumer: &str, expected: &[String]) {
        let mut wanted = expected.to_vec();
        wanted.sort();
        let what = format!("{} effects of {consumer}", wanted.len());
        eventually(LIMIT, &what, async || {
            self.effects(consumer).await.len() >= wanted.len()
        })
        .await;
        let mut found = self.effects(consumer).await;
        found.sort();
        assert_eq!(found, wanted);
    }

    /// Waits until the group's committed offset of a partition is `offset`.
    pub async fn await_committed(&self, group: &str, topic: &str, partition: i32, offset: i64) {
        let what = format!("offset {offset} of {topic}/{partition} committed by {group}");
        eventually(LIMIT, &what, async || {
            self.broker.committed(group, topic).await.get(&partition) == Some(&offset)
        })
        .await;
    }
}

/// A fresh database with Factum's tables, the dedup window of today, and an `effect` table.
pub async fn migrated_database() -> TestDatabase {
    migrated(factum_testing::database()).await
}

/// Makes those tables in a database that is empty.
pub async fn migrated(database: TestDatabase) -> TestDatabase {
    let mut connection = database.connect().await;
    factum::migration::up(&database_handle(database.url()).await)
        .await
        .expect("migrations run");
    sqlx::raw_sql(
        "CREATE TABLE effect (
             id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
             consumer text NOT NULL, event_id uuid NOT NULL, account text NOT NULL, seq bigint NOT NULL);
         CREATE TABLE uniq (id int PRIMARY KEY);
         INSERT INTO uniq VALUES (1);",
    )
    .execute(&mut connection)
    .await
    .expect("the effect table can be made");
    connection
        .close()
        .await
        .expect("a connection can be closed");
    database
}

/// Factum's own handle of a database.
pub async fn database_handle(url: &str) -> factum::Database {
    factum::Database::connect(&factum::DatabaseSettings::new(url.into()))
        .await
        .expect("the test's database answers")
}

/// An envelope with a fresh id, now.
pub fn envelope<E: Event>(event: E) -> Envelope<E> {
    event
        .occurred_at(time::OffsetDateTime::now_utc())
        .with_id(factum::new_event_id())
}

/// `n` entries of one account, from 1.
pub fn entries<E: Entry>(account: &str, n: u64) -> Vec<E> {
    (1..=n).map(|seq| E::entry(account, seq, "")).collect()
}

/// What `entries` leave behind.
pub fn effects_of(account: &str, n: u64) -> Vec<String> {
    (1..=n).map(|seq| format!("{account}:{seq}")).collect()
}

/// A service in a task.
pub struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), ServiceError>>,
}

impl Running {
    /// Starts what the builder describes.
    pub fn start(builder: factum::ServiceBuilder) -> Running {
        let stop = CancellationToken::new();
        let signal = stop.clone();
        let task = tokio::spawn(builder.run_until(async move { signal.cancelled().await }));
        Running { stop, task }
    }

    /// Stops it and expects a clean end.
    pub async fn stop(self) {
        self.stop.cancel();
        self.ended()
            .await
            .expect("the service ends without an error");
    }

    /// Asks it to stop and doesn't wait.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Waits until one of two services ends by itself; gives its end, and the other.
    pub async fn first_ended(mut self, mut other: Running) -> (Result<(), ServiceError>, Running) {
        let first = async {
            tokio::select! {
                ended = &mut self.task => (ended, true),
                ended = &mut other.task => (ended, false),
            }
        };
        let (ended, is_self) = tokio::time::timeout(LIMIT, first)
            .await
            .expect("one of them ends in time");
        let ended = ended.expect("the service doesn't panic");
        (ended, if is_self { other } else { self })
    }

    /// Waits for its end.
    pub async fn ended(self) -> Result<(), ServiceError> {
        tokio::time::timeout(LIMIT, self.task)
            .await
            .expect("the service ends in time")
            .expect("the service doesn't panic")
    }
}

/// Writes a row per event into `effect`, and does what the event's note asks for:
///
/// | note | what the handler does |
/// |---|---|
/// | `permanent` | writes, then answers a permanent error |
/// | `transient N` | writes, then fails; succeeds at the N-th call of this event |
/// | `always` | writes, then fails, always |
/// | `panic` | writes, then panics, always |
/// | `hang` | writes, then never ends |
/// | `slow` | takes a second |
/// | `swallow` | writes, runs a statement that fails, ignores the error |
/// | `sql-error` | runs a statement that fails and returns its error |
/// | `commit`, `rollback`, `commit-begin` | writes, then types that |
/// | `savepoint` | writes, then rolls an inner savepoint with an SQL error back |
/// | `gate` | writes, then waits for a permit of the gate |
/// | `conflict` | answers a serialisation failure the first time |
#[derive(Clone)]
pub struct Recorder {
    consumer: &'static str,
    calls: Arc<Mutex<HashMap<EventId, u32>>>,
    gate: Arc<Semaphore>,
    reached: Arc<watch::Sender<u32>>,
}

impl Recorder {
    /// A recorder for that consumer.
    pub fn of(consumer: &'static str) -> Recorder {
        Recorder {
            consumer,
            calls: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            reached: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Lets `n` waiting handlers go on.
    pub fn open_gate(&self, n: usize) {
        self.gate.add_permits(n);
    }

    /// Waits until handlers have come to the gate `n` times in all.
    pub async fn gate_reached(&self, n: u32) {
        let mut reached = self.reached.subscribe();
        tokio::time::timeout(LIMIT, reached.wait_for(|r| *r >= n))
            .await
            .expect("a handler comes to the gate in time")
            .expect("the recorder lives");
    }

    /// How often the handler was called, over all events.
    pub fn calls(&self) -> u32 {
        self.calls.lock().expect("no poison").values().sum()
    }

    /// How often the handler was called for an event.
    pub fn calls_of(&self, id: EventId) -> u32 {
        self.calls
            .lock()
            .expect("no poison")
            .get(&id)
            .copied()
            .unwrap_or(0)
    }

    async fn record<E: Entry>(
        &self,
        event: &Envelope<E>,
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let call = {
            let mut calls = self.calls.lock().expect("no poison");
            let call = calls.entry(event.id()).or_insert(0);
            *call += 1;
            *call
        };
        sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ($1, $2, $3, $4)",
        )
        .bind(self.consumer)
        .bind(event.id().as_uuid())
        .bind(event.account())
        .bind(event.seq() as i64)
        .execute(tx.conn())
        .await?;
        const FAILING: &str = "INSERT INTO uniq VALUES (1)";
        let mut words = event.note().split(' ');
        match words.next().unwrap_or("") {
            "permanent" => return Err(HandlerError::permanent("this can't be handled")),
            "transient" => {
                let wanted: u32 = words.next().and_then(|w| w.parse().ok()).expect("a number");
                if call < wanted {
                    return Err(HandlerError::transient("not yet"));
                }
            }
            "always" => return Err(HandlerError::transient("never")),
            "panic" => panic!("a handler's panic, as the test wants it"),
            "hang" => std::future::pending().await,
            "slow" => tokio::time::sleep(Duration::from_secs(1)).await,
            "swallow" => {
                sqlx::query(FAILING)
                    .execute(tx.conn())
                    .await
                    .expect_err("a duplicate key");
            }
            "sql-error" => {
                sqlx::query(FAILING).execute(tx.conn()).await?;
            }
            "commit" => {
                sqlx::raw_sql("COMMIT").execute(tx.conn()).await?;
            }
            "rollback" => {
                sqlx::raw_sql("ROLLBACK").execute(tx.conn()).await?;
            }
            "commit-begin" => {
                sqlx::raw_sql("COMMIT; BEGIN").execute(tx.conn()).await?;
            }
            "savepoint" => {
                let mut inner = tx.conn().begin().await?;
                sqlx::query(FAILING)
                    .execute(&mut *inner)
                    .await
                    .expect_err("a duplicate key");
                inner.rollback().await?;
            }
            "gate" => {
                self.reached.send_modify(|r| *r += 1);
                self.gate.acquire().await.expect("the gate stays").forget();
            }
            "conflict" if call == 1 => {
                sqlx::raw_sql("DO $$ BEGIN RAISE EXCEPTION 'busy' USING ERRCODE = '40001'; END $$")
                    .execute(tx.conn())
                    .await?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl<E: Entry> Handler<E> for Recorder {
    async fn handle(&self, event: &Envelope<E>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        self.record(event, tx).await
    }
}

impl<E: Entry> BatchHandler<E> for Recorder {
    async fn handle(&self, events: &[Envelope<E>], tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        for event in events {
            self.record(event, tx).await?;
        }
        Ok(())
    }
}
