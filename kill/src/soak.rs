//! The soak: orders flow from a business table through the outbox, Kafka and a consumer to their effects, while every
//! process, every broker and the database die again and again. The checker judges the end, and each recovery is timed.

pub mod account;
pub mod order;
pub mod outage;
pub mod progress;
pub mod publisher;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use factum::sqlx::{self, Connection as _, PgConnection};
use factum::{Database, DatabaseSettings, Event as _, migration};
use factum_kafka::{NewTopic, create_topics};
use factum_testing::TestBroker;
use factum_testing::cluster::KafkaCluster;
use factum_testing::guard::Guard;
use factum_testing::postgres::{PostgresBinaries, PostgresServer};
use fastrand::Rng;
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::{JoinHandle, block_in_place};

use crate::checker;
use crate::process::Process;

use account::Accounts;
use order::{CONSUMER, Ordered, ROLE, SEED, TABLES, Trouble};
use outage::{OF_EACH, Times, Victim, plan};
use progress::Progress;
use publisher::{Input, Publishers};

/// The most that a recovery may take.
pub const RECOVERY_MAX: Duration = Duration::from_secs(10);

const PARTITIONS: u32 = 12;
const REPLICATION: u16 = 3;
/// So many orders more are placed, so often, where a recovery takes longer than its share of them.
const MORE_ORDERS: u64 = 200;
const MORE_EVERY: Duration = Duration::from_millis(250);
/// When a recovery is given up.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);
/// How long a node of Kafka may take until it has caught up.
const IN_SYNC_LIMIT: Duration = Duration::from_secs(60);
/// How long nothing may happen while orders are placed, or while the last of them are waited for.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(90);
/// How long an answer of Kafka may take.
const BROKER_LIMIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often progress is told.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// How soon a member hears that the group is shared anew.
const HEARTBEAT_INTERVAL_MS: &str = "500";

/// What is asked of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many orders are placed at least; more where recoveries take longer than their share of them.
    pub orders: u64,
    /// It decides what dies when, which orders fail, and more; the same seed repeats a run as far as clocks do.
    pub seed: u64,
    /// How often each dies.
    pub times: Times,
    /// Where the programs lie.
    pub programs: PathBuf,
    /// Where the services' logs are kept, and what was published; `None`: they go with the run.
    pub logs: Option<PathBuf>,
}

/// An outage that is over.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// Who died.
    pub victim: Victim,
    /// How many orders were placed then.
    pub placed: u64,
    /// When, from the first order on.
    pub at: Duration,
    /// How long it took until every partition and every slot was served again.
    pub lasted: Duration,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// As planned.
    pub seed: u64,
    /// How many orders were committed.
    pub orders: u64,
    /// From the first order to the last effect.
    pub lasted: Duration,
    /// The outages in their order.
    pub outages: Vec<Recovered>,
    /// What the checker found, `kind: text`.
    pub anomalies: Vec<String>,
    /// What it counted.
    pub counts: Value,
}

impl Outcome {
    /// The longest recovery.
    pub fn worst(&self) -> Duration {
        let lasted = self.outages.iter().map(|outage| outage.lasted);
        lasted.max().unwrap_or_default()
    }

    /// Whether nothing was lost, doubled or reordered, and every recovery was in time.
    pub fn holds(&self) -> bool {
        self.anomalies.is_empty() && self.worst() <= RECOVERY_MAX
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let seconds = |duration: Duration| (duration.as_secs_f64() * 10.0).round() / 10.0;
        let outages: Vec<Value> = self
            .outages
            .iter()
            .map(|outage| {
                json!({
                    "victim": outage.victim.to_string(), "placed": outage.placed,
                    "at_seconds": seconds(outage.at), "recovery_seconds": seconds(outage.lasted),
                })
            })
            .collect();
        json!({
            "holds": self.holds(), "seed": self.seed, "orders": self.orders, "seconds": seconds(self.lasted),
            "orders_per_second": (self.orders as f64 / self.lasted.as_secs_f64()).round(),
            "worst_recovery_seconds": seconds(self.worst()), "outages": outages,
            "anomalies": self.anomalies, "counts": self.counts,
        })
    }

    /// The outages as a table, and the sums, for a person.
    pub fn describe(&self) -> String {
        let mut lines = vec!["OUTAGE\tAT_S\tORDERS\tRECOVERY_S".to_owned()];
        lines.extend(self.outages.iter().map(|outage| {
            let late = if outage.lasted > RECOVERY_MAX {
                "\tTOO LONG"
            } else {
                ""
            };
            format!(
                "{}\t{:.1}\t{}\t{:.1}{late}",
                outage.victim,
                outage.at.as_secs_f64(),
                outage.placed,
                outage.lasted.as_secs_f64()
            )
        }));
        lines.extend(self.anomalies.iter().cloned());
        lines.push(format!(
            "{} orders in {:.0} s, {} outages, worst recovery {:.1} s, {} anomalies, seed {}",
            self.orders,
            self.lasted.as_secs_f64(),
            self.outages.len(),
            self.worst().as_secs_f64(),
            self.anomalies.len(),
            self.seed
        ));
        lines.join("\n")
    }
}

/// Carries the plan out. `tell` is given a line for a person now and then.
///
/// # Errors
///
/// A server can't be started, something ended that nobody killed, or the work stands still.
pub async fn run(plan: Plan, tell: impl Fn(&str)) -> Result<Outcome> {
    tell(&format!(
        "seed {}: starting PostgreSQL and three nodes of Kafka",
        plan.seed
    ));
    let mut soak = Soak::prepare(plan, &tell).await?;
    soak.carry_out().await?;
    soak.check().await
}

struct Soak<'a, T> {
    plan: Plan,
    tell: &'a T,
    rng: Rng,
    url: String,
    accounts: Arc<Accounts>,
    publishers: Publishers,
    progress: Progress,
    watch: JoinHandle<()>,
    /// Consumers, then relays.
    processes: Vec<Process>,
    started: usize,
    begin: Instant,
    told: Instant,
    outages: Vec<Recovered>,
    lasted: Duration,
    broker: TestBroker,
    cluster: Arc<KafkaCluster>,
    /// A node that is starting again.
    returning: Option<JoinHandle<Result<()>>>,
    postgres: Arc<Mutex<PostgresServer>>,
    dir: PathBuf,
    _temporary: TempDir,
    // The last: it ends the processes.
    guard: Guard,
}

impl<T> Drop for Soak<'_, T> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl<'a, T: Fn(&str)> Soak<'a, T> {
    async fn prepare(plan: Plan, tell: &'a T) -> Result<Soak<'a, T>> {
        let temporary = tempfile::Builder::new().prefix("factum-soak-").tempdir()?;
        let dir = plan
            .logs
            .clone()
            .unwrap_or_else(|| temporary.path().to_owned());
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let guard = Guard::start()?;
        // Starting them blocks for seconds.
        let cluster = tokio::task::spawn_blocking(KafkaCluster::start);
        let postgres = block_in_place(|| PostgresServer::start(&PostgresBinaries::find()?))?;
        let cluster = cluster.await??;
        let url = postgres.url();

        let db = Database::connect(&DatabaseSettings::new(url.clone().into())).await?;
        migration::up(&db).await?;
        db.close().await;
        let mut conn = PgConnection::connect(&url).await?;
        sqlx::raw_sql(TABLES).execute(&mut conn).await?;
        let trouble = Trouble { seed: plan.seed };
        let accounts = Arc::new(Accounts::find(&mut conn, PARTITIONS, trouble).await?);

        let broker = TestBroker::at(cluster.bootstrap());
        let topic = NewTopic {
            name: Ordered::TOPIC.to_owned(),
            partitions: PARTITIONS,
            replication: REPLICATION,
        };
        create_topics(broker.settings(), &[topic], BROKER_LIMIT).await?;

        let (progress, watch) = Progress::watch(url.clone(), accounts.clone());
        let mut soak = Soak {
            rng: Rng::with_seed(plan.seed),
            plan,
            tell,
            url,
            publishers: Publishers::new(accounts.clone()),
            accounts,
            progress,
            watch,
            processes: Vec::new(),
            started: 0,
            begin: Instant::now(),
            told: Instant::now(),
            outages: Vec::new(),
            lasted: Duration::ZERO,
            broker,
            cluster: Arc::new(cluster),
            returning: None,
            postgres: Arc::new(Mutex::new(postgres)),
            dir,
            _temporary: temporary,
            guard,
        };
        for number in 0..2 * OF_EACH {
            let process = soak.start(number)?;
            soak.processes.push(process);
        }
        Ok(soak)
    }

    /// Starts a consumer (0 to 2) or a relay (3 to 5).
    fn start(&mut self, number: usize) -> Result<Process> {
        let role = if number < OF_EACH {
            "consumer"
        } else {
            "relay"
        };
        let mut command = Command::new(self.plan.programs.join("soak-service"));
        command
            .env("DATABASE_URL", &self.url)
            .env("KAFKA_BROKERS", self.cluster.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "soak")
            .env("FACTUM_PROFILE", "development")
            .env("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "10")
            // Its partitions wait for it while it starts anew, and a session is long enough for a new coordinator.
            .env(
                "FACTUM_INSTANCE",
                format!("{role}-{}", number % OF_EACH + 1),
            )
            .env(
                "KAFKA_CONSUMER_HEARTBEAT_INTERVAL_MS",
                HEARTBEAT_INTERVAL_MS,
            )
            .env(ROLE, role)
            .env(SEED, self.plan.seed.to_string())
            .env("RUST_LOG", "info")
            .env("RUST_BACKTRACE", "0")
            .env_remove("FAULT_POINT");
        self.started += 1;
        let log = format!("{role}-{}-{}.log", number % OF_EACH + 1, self.started);
        Process::start(command, self.guard.group(), self.dir.join(log))
    }

    async fn carry_out(&mut self) -> Result<()> {
        let outages = plan(self.plan.seed, self.plan.times);
        self.begin = Instant::now();
        let mut tasks = self
            .publishers
            .start(&self.url, &self.progress, &mut self.rng);
        for (place, outage) in outages.iter().enumerate() {
            let placed = self.publishers.placed();
            // What is left is shared by the outages to come and the time after them.
            let shares = (outages.len() - place) as u64 + 1;
            let share = self.plan.orders.saturating_sub(placed) / shares;
            self.publishers.allow(placed + share);
            let orders = placed + share * outage.at_thousandth / 1_000;
            // The first one finds everything at work.
            self.reach(orders, place == 0, &mut tasks).await?;
            self.befall(outage.victim).await?;
        }
        self.publishers.allow(self.plan.orders);
        self.reach(self.plan.orders, true, &mut tasks).await?;
        self.publishers.finish();
        for task in tasks {
            task.await.context("a publisher panicked")??;
        }
        self.nodes_are_back().await?;
        self.inject().await?;
        self.finish().await
    }

    /// Waits until so many orders are placed, and some have their effect if so wanted.
    async fn reach(
        &mut self,
        orders: u64,
        with_effects: bool,
        tasks: &mut [JoinHandle<Result<()>>],
    ) -> Result<()> {
        let (mut last, mut moved) = (0, Instant::now());
        while self.publishers.placed() < orders || with_effects && self.progress.effects() == 0 {
            self.look()?;
            let placed = self.publishers.placed();
            if placed > last {
                (last, moved) = (placed, Instant::now());
            }
            if let Some(ended) = tasks.iter_mut().find(|task| task.is_finished()) {
                ended.await.context("a publisher panicked")??;
                bail!("a publisher ended too early");
            }
            if moved.elapsed() > STANDSTILL_LIMIT {
                bail!("no order was placed for {} s", STANDSTILL_LIMIT.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// One outage, from the calm before to the recovery.
    async fn befall(&mut self, victim: Victim) -> Result<()> {
        self.nodes_are_back().await?;
        self.inject().await?;
        let placed = self.publishers.placed();
        let mut more = Instant::now();
        let (begin, last) = (Instant::now(), self.publishers.last());
        match victim {
            Victim::Consumer(number) => self.replace(number)?,
            Victim::Relay(number) => self.replace(OF_EACH + number)?,
            Victim::Broker(node) => block_in_place(|| self.cluster.kill(node))?,
            Victim::Postgres => {
                let postgres = self.postgres.clone();
                block_in_place(|| {
                    let mut postgres = postgres.lock().unwrap_or_else(PoisonError::into_inner);
                    postgres.stop()?;
                    postgres.start_again()
                })?;
            }
        }
        // How long it took to bring the victim down, and PostgreSQL up again.
        let away = begin.elapsed();
        self.progress.recover(begin, &self.accounts, last);
        let lasted = loop {
            if let Some(lasted) = self.progress.recovered() {
                break lasted;
            }
            self.look()?;
            // Without new orders a slot has nothing to show.
            if self.publishers.placed() >= self.publishers.limit() && more.elapsed() > MORE_EVERY {
                more = Instant::now();
                self.publishers
                    .allow(self.publishers.placed() + MORE_ORDERS);
            }
            if begin.elapsed() > RECOVERY_LIMIT {
                bail!(
                    "{victim} died when {placed} orders were placed (seed {}), and {} s later there stand still: {}\n{}",
                    self.plan.seed,
                    RECOVERY_LIMIT.as_secs(),
                    self.progress.standing(),
                    self.tails()
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let at = begin.duration_since(self.begin);
        (self.tell)(&format!(
            "{:.1} s, {placed} orders placed: {victim} died, recovered after {:.1} s ({:.1} s to kill it{})",
            at.as_secs_f64(),
            lasted.as_secs_f64(),
            away.as_secs_f64(),
            if victim == Victim::Postgres {
                " and start it again"
            } else {
                ""
            }
        ));
        self.outages.push(Recovered {
            victim,
            placed,
            at,
            lasted,
        });
        if let Victim::Broker(node) = victim {
            let cluster = self.cluster.clone();
            let starting = move || cluster.start_again(node);
            self.returning = Some(tokio::task::spawn_blocking(starting));
        }
        Ok(())
    }

    /// SIGKILL, and another process in its place.
    fn replace(&mut self, number: usize) -> Result<()> {
        let started = self.start(number)?;
        let killed = std::mem::replace(&mut self.processes[number], started);
        killed.kill()
    }

    /// Puts in what no relay sends.
    async fn inject(&mut self) -> Result<()> {
        let mut conn = PgConnection::connect(&self.url).await?;
        self.publishers
            .inject(&self.broker, &mut conn, &mut self.rng)
            .await?;
        conn.close().await?;
        Ok(())
    }

    /// Waits until every node runs and has all records: only then may the next one go.
    async fn nodes_are_back(&mut self) -> Result<()> {
        let Some(returning) = self.returning.take() else {
            return Ok(());
        };
        returning.await.context("a node's start panicked")??;
        let start = Instant::now();
        loop {
            let cluster = &self.cluster;
            let is_in_sync = block_in_place(|| {
                [Ordered::TOPIC, "__consumer_offsets"]
                    .into_iter()
                    .all(|topic| cluster.is_in_sync(topic).unwrap_or(false))
            });
            if is_in_sync {
                return Ok(());
            }
            self.look()?;
            ensure!(
                start.elapsed() < IN_SYNC_LIMIT,
                "a node of Kafka did not catch up within {} s",
                IN_SYNC_LIMIT.as_secs()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Tells how far it is, and sees that nothing ended by itself.
    fn look(&mut self) -> Result<()> {
        for process in &mut self.processes {
            if let Some(status) = process.ended()? {
                bail!(
                    "a service ended by itself with {status}\n{}",
                    process.tail()
                );
            }
        }
        if self.told.elapsed() > TOLD_EVERY {
            self.told = Instant::now();
            (self.tell)(&format!(
                "{:.0} s: {} of {} orders placed, {} took effect",
                self.begin.elapsed().as_secs_f64(),
                self.publishers.placed(),
                self.plan.orders,
                self.progress.effects()
            ));
        }
        Ok(())
    }

    fn tails(&self) -> String {
        let tails: Vec<String> = self.processes.iter().map(Process::tail).collect();
        tails.join("\n--\n")
    }

    /// Waits until everything that went in is where it belongs, and stops the services.
    async fn finish(&mut self) -> Result<()> {
        let mut conn = PgConnection::connect(&self.url).await?;
        let (mut last, mut moved) = (None, Instant::now());
        loop {
            self.look()?;
            let left: (i64, i64, i64) = sqlx::query_as(
                "SELECT (SELECT count(*) FROM placed_order) - (SELECT count(*) FROM invoice),
                        (SELECT count(*) FROM outbox WHERE published_at IS NULL),
                        (SELECT count(*) FROM parked_key) + (SELECT count(*) FROM parked_event)",
            )
            .fetch_one(&mut conn)
            .await?;
            if left.0 <= 0 && self.lasted.is_zero() {
                self.lasted = self.begin.elapsed();
            }
            if left.0 <= 0 && left.1 == 0 && left.2 == 0 && self.is_read().await {
                break;
            }
            if last != Some(left) {
                (last, moved) = (Some(left), Instant::now());
            } else if moved.elapsed() > STANDSTILL_LIMIT {
                // The checker says what is missing.
                (self.tell)(&format!(
                    "nothing moved for {} s: {} orders without effect, {} unsent, {} parked\n{}",
                    STANDSTILL_LIMIT.as_secs(),
                    left.0,
                    left.1,
                    left.2,
                    self.tails()
                ));
                break;
            }
            tokio::time::sleep(LOOK_EVERY * 4).await;
        }
        if self.lasted.is_zero() {
            self.lasted = self.begin.elapsed();
        }
        conn.close().await?;
        for process in self.processes.drain(..) {
            process.stop().await?;
        }
        Ok(())
    }

    /// Whether the group's offsets are at the end.
    async fn is_read(&self) -> bool {
        let ends = self.broker.end_offsets(Ordered::TOPIC).await;
        let committed = self.broker.committed(CONSUMER, Ordered::TOPIC).await;
        ends.iter()
            .all(|(partition, end)| *end == 0 || committed.get(partition) == Some(end))
    }

    async fn check(self) -> Result<Outcome> {
        #[derive(Serialize)]
        struct History<'a> {
            consumer: &'a str,
            source: Value,
            effects: [&'a str; 2],
            business: &'a str,
            input: &'a [Input],
        }
        (self.tell)("judging what came out of it");
        let file = self.dir.join("history.json");
        {
            let input = self.publishers.input();
            let history = History {
                consumer: CONSUMER,
                source: json!({ "topic": Ordered::TOPIC }),
                effects: ["invoice", "shipment"],
                business: "placed_order",
                input: &input,
            };
            let writer = std::io::BufWriter::new(std::fs::File::create(&file)?);
            serde_json::to_writer(writer, &history)?;
        }
        let verdict = checker::ask(
            &self.plan.programs.join("factum-checker"),
            &file,
            "ended",
            &self.url,
            &self.cluster.bootstrap(),
        )
        .await?;
        Ok(Outcome {
            seed: self.plan.seed,
            orders: verdict.counts["business"].as_u64().unwrap_or_default(),
            lasted: self.lasted,
            outages: self.outages.clone(),
            anomalies: verdict.anomalies,
            counts: verdict.counts,
        })
    }
}
