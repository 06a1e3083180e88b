//! One cell, from its fresh database to the checker's verdict.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use factum::sqlx::{self, PgConnection};
use factum::{Database, DatabaseSettings, migration};
use factum_testing::kafka::KafkaServer;
use factum_testing::{TestBroker, TestDatabase};

use crate::cell::{Cell, Harm, Part};
use crate::checker;
use crate::feed::History;
use crate::ledger::{CONSUMER, FAILING, MENDED, STAGE, Stage, TABLES, UNMENDED};
use crate::process::Process;
use crate::provider::Provider;

/// How long a service may take to do everything that is there to do.
const FINISH_LIMIT: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a service may take to commit its offsets, which it does every second.
const COMMIT_LIMIT: Duration = Duration::from_secs(4);
/// How long a cut-off service may take to notice that its broker is away. If it has nothing to ask for it
/// needn't notice.
const NOTICE_LIMIT: Duration = Duration::from_secs(2);

/// The programs, and where their files go.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The service.
    pub service: PathBuf,
    /// The checker.
    pub checker: PathBuf,
    /// Logs and histories.
    pub dir: PathBuf,
    /// The process group that the services join.
    pub group: i32,
}

/// Where a cell runs: a broker, and topics that no other cell uses at this time.
#[derive(Debug)]
pub struct Arena {
    /// The broker.
    pub broker: TestBroker,
    /// The topics.
    pub stage: Stage,
    /// The broker's process, if it is Kafka and the cell may stop it.
    pub kafka: Option<KafkaServer>,
    /// How soon the group notices that a member is gone.
    pub session_timeout_ms: u32,
}

/// What a cell came to.
#[derive(Debug)]
pub struct Outcome {
    /// Which one.
    pub cell: Cell,
    /// What the checker found, `kind: text`.
    pub anomalies: Vec<String>,
    /// Why the cell couldn't be carried out: the point was never reached, a service didn't end well.
    pub failure: Option<String>,
    /// How long it took.
    pub seconds: f64,
    /// Its database. Dropping it blocks the thread, for long where a frozen client is logging in.
    pub database: Option<TestDatabase>,
}

/// Carries a cell out.
pub async fn run(cell: Cell, programs: &Programs, arena: &mut Arena) -> Outcome {
    let start = Instant::now();
    let mut anomalies = Vec::new();
    let mut database = None;
    let failure = match Scenario::prepare(cell, programs, arena).await {
        Ok(mut scenario) => {
            let carried_out = scenario.carry_out().await;
            anomalies = std::mem::take(&mut scenario.anomalies);
            database = Some(scenario.database);
            // An anomaly says it all.
            carried_out.err().filter(|_| anomalies.is_empty())
        }
        Err(failure) => Some(failure),
    };
    Outcome {
        cell,
        anomalies,
        failure: failure.map(|failure| format!("{failure:#}")),
        seconds: start.elapsed().as_secs_f64(),
        database,
    }
}

struct Scenario<'a> {
    cell: Cell,
    programs: &'a Programs,
    arena: &'a mut Arena,
    history: History,
    anomalies: Vec<String>,
    processes: u32,
    /// The other system, where the service makes calls.
    provider: Option<Provider>,
    /// Whether the handler takes what it refused at first.
    is_mended: bool,
    conn: PgConnection,
    database: TestDatabase,
}

impl<'a> Scenario<'a> {
    async fn prepare(
        cell: Cell,
        programs: &'a Programs,
        arena: &'a mut Arena,
    ) -> Result<Scenario<'a>> {
        let database = factum_testing::database();
        let db = Database::connect(&DatabaseSettings::new(database.url().into())).await?;
        migration::up(&db).await?;
        db.close().await;
        let mut conn = database.connect().await;
        sqlx::raw_sql(TABLES).execute(&mut conn).await?;

        // Names that were never used: a given broker may remember earlier runs.
        let consumer = format!("kill-{:012x}", fastrand::u64(..1 << 48));
        let [source, derived] = arena.stage.topics();
        let begin = [
            arena.broker.end_offsets(source).await,
            arena.broker.end_offsets(derived).await,
        ];
        if begin[0].values().any(|offset| *offset > 0) {
            arena
                .broker
                .commit_offsets(&consumer, source, &begin[0])
                .await;
        }
        Ok(Scenario {
            cell,
            programs,
            history: History::new(consumer, arena.stage, begin),
            arena,
            anomalies: Vec::new(),
            processes: 0,
            provider: match cell.part() {
                Part::Caller => Some(Provider::start().await?),
                _ => None,
            },
            is_mended: false,
            conn,
            database,
        })
    }

    async fn carry_out(&mut self) -> Result<()> {
        self.feed().await?;
        if self.cell.part() == Part::Replay {
            self.plan_a_replay().await?;
        }
        match self.cell.harm {
            Harm::Kill => self.killed(1).await?,
            Harm::KillTwice => self.killed(2).await?,
            Harm::Handover => self.handed_over().await?,
            Harm::Zombie => self.frozen_for_long().await?,
            Harm::Backend => self.cut_off_from_the_database().await?,
            Harm::Broker => self.cut_off_from_the_broker().await?,
        }
        self.check("ended").await
    }

    /// Lets the service refuse events, mends it, and has a replay of them begin: the rows that a command writes.
    async fn plan_a_replay(&mut self) -> Result<()> {
        self.history
            .feed_faulty(self.arena.stage, &mut self.conn)
            .await?;
        let mut service = self.start(None)?;
        let start = Instant::now();
        loop {
            let refused: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM dead_letter WHERE starts_with(convert_from(key, 'UTF8'), $1)",
            )
            .bind(UNMENDED)
            .fetch_one(&mut self.conn)
            .await?;
            if refused == self.history.faulty() as i64 {
                break;
            }
            ensure!(
                start.elapsed() < FINISH_LIMIT && service.ended()?.is_none(),
                "only {refused} events were refused\n{}",
                service.tail()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
        service.stop().await?;
        self.is_mended = true;
        sqlx::query(
            "WITH run AS (
                 INSERT INTO replay_run (consumer, state, created_by, good_until, started_by, started_at, reason)
                 VALUES ($1, 'running', 'kill', now() + interval '15 minutes', 'kill', now(), 'mended')
                 RETURNING id)
             INSERT INTO replay_item (run_id, dead_letter_id, key, topic, partition, record_offset, state)
             SELECT run.id, letter.id, letter.key, letter.topic, letter.partition, letter.record_offset, 'ready'
               FROM run, dead_letter AS letter
              WHERE letter.consumer = $1 AND starts_with(convert_from(letter.key, 'UTF8'), $2)",
        )
        .bind(self.history.consumer())
        .bind(UNMENDED)
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }

    async fn killed(&mut self, times: u32) -> Result<()> {
        for _ in 0..times {
            let mut service = self.start(Some("kill"))?;
            service.killed().await?;
            self.check("running").await?;
            self.feed().await?;
        }
        let mut service = self.start(None)?;
        self.finished(&mut [&mut service]).await?;
        service.stop().await
    }

    async fn handed_over(&mut self) -> Result<()> {
        let mut first = self.start(Some("pause"))?;
        let file = self.pause_file();
        first.paused(&file).await?;
        let before = self.committed().await;
        self.feed().await?;
        // The other lane goes on. When its progress is committed, so is what the held one has reported: too
        // early, if that is broken. Where the relay or the committing thread is held, none may come.
        let committed = async {
            while self.committed().await == before {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(COMMIT_LIMIT, committed).await;
        let mut second = self.start(None)?;
        second
            .says(if self.cell.part() == Part::Relay {
                "the relay has the lease"
            } else {
                "partition assigned"
            })
            .await?;
        self.check("running").await?;
        std::fs::remove_file(&file).context("ending the pause")?;
        self.finished(&mut [&mut first, &mut second]).await?;
        first.kill()?;
        self.feed().await?;
        self.finished(&mut [&mut second]).await?;
        second.stop().await
    }

    async fn frozen_for_long(&mut self) -> Result<()> {
        let mut zombie = self.start(Some("stop"))?;
        zombie.frozen().await?;
        self.feed().await?;
        let mut second = self.start(None)?;
        // The second one has everything only when the zombie's session, transaction and lease have ended.
        self.finished(&mut [&mut second]).await?;
        self.check("running").await?;
        zombie.thaw()?;
        self.feed().await?;
        self.finished(&mut [&mut zombie, &mut second]).await?;
        zombie.stop().await?;
        second.stop().await
    }

    async fn cut_off_from_the_database(&mut self) -> Result<()> {
        let mut service = self.start(Some("stop"))?;
        service.frozen().await?;
        let ended: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()) AS ended",
        )
        .fetch_one(&mut self.conn)
        .await?;
        ensure!(ended > 0, "the service had no session");
        service.thaw()?;
        self.feed().await?;
        self.finished(&mut [&mut service]).await?;
        service.stop().await
    }

    async fn cut_off_from_the_broker(&mut self) -> Result<()> {
        let mut service = self.start(Some("stop"))?;
        service.frozen().await?;
        match (&mut self.arena.kafka, self.arena.broker.as_embedded()) {
            (Some(kafka), _) => {
                // It takes seconds, and other cells run on this thread too.
                tokio::task::block_in_place(|| {
                    kafka.stop()?;
                    service.thaw()?;
                    kafka.start_again()
                })?;
            }
            (None, Some(embedded)) => {
                embedded.broker_down(-1)?;
                service.thaw()?;
                let noticed =
                    tokio::time::timeout(NOTICE_LIMIT, service.says("trouble with Kafka"));
                // It may have had nothing to ask the broker.
                let _ = noticed.await;
                embedded.broker_up(-1)?;
            }
            (None, None) => bail!("this cell needs a broker of its own"),
        }
        self.feed().await?;
        self.finished(&mut [&mut service]).await?;
        service.stop().await
    }

    async fn feed(&mut self) -> Result<()> {
        self.history
            .feed(self.arena.stage, &self.arena.broker, &mut self.conn)
            .await
    }

    fn start(&mut self, fault: Option<&str>) -> Result<Process> {
        let session_timeout_ms = self.arena.session_timeout_ms;
        let mut command = Command::new(&self.programs.service);
        command
            .env("DATABASE_URL", self.database.url())
            .env("KAFKA_BROKERS", self.arena.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "kill")
            .env("FACTUM_PROFILE", "development")
            .env("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "5")
            .env("FACTUM_DATABASE_LOCK_TIMEOUT_SECONDS", "2")
            .env(
                "KAFKA_CONSUMER_SESSION_TIMEOUT_MS",
                session_timeout_ms.to_string(),
            )
            .env("KAFKA_CONSUMER_HEARTBEAT_INTERVAL_MS", "300")
            .env("KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS", "6000")
            // All partitions move at each rebalance, so that none stays where it is held up.
            .env("KAFKA_CONSUMER_PARTITION_ASSIGNMENT_STRATEGY", "range")
            .env(STAGE, self.arena.stage.number().to_string())
            .env(CONSUMER, self.history.consumer())
            .env("RUST_LOG", "info")
            .env("RUST_BACKTRACE", "0")
            .env_remove("FAULT_POINT");
        if matches!(self.cell.part(), Part::Parker | Part::Retrier) {
            command.env(FAILING, "yes");
        }
        if self.is_mended {
            command.env(MENDED, "yes");
        }
        if let Some(provider) = &self.provider {
            command
                .env("FACTUM_CALL_PAYMENTS_URL", provider.url())
                // A dead caller's call is sent again some seconds after this.
                .env("FACTUM_CALL_PAYMENTS_CONNECT_TIMEOUT_MS", "500")
                .env("FACTUM_CALL_PAYMENTS_TIMEOUT_MS", "1000");
        }
        if let Some(action) = fault {
            let (point, passing) = (self.cell.point, self.cell.passing());
            command
                .env("FAULT_POINT", format!("{point} {action} {passing}"))
                .env("FAULT_PAUSE_FILE", self.pause_file());
        }
        self.processes += 1;
        let log = self.file(&format!("{}.log", self.processes));
        Process::start(command, self.programs.group, log)
    }

    fn pause_file(&self) -> PathBuf {
        self.file("pause")
    }

    fn file(&self, end: &str) -> PathBuf {
        let name = format!("{}.{end}", self.history.consumer());
        self.programs.dir.join(name)
    }

    /// Waits until everything that went in is where it belongs, and its offset committed. Who must do it is
    /// given: should it end meanwhile, nobody will.
    async fn finished(&mut self, services: &mut [&mut Process]) -> Result<()> {
        let start = Instant::now();
        let (effects, letters) = self.history.expected();
        let expected = (effects as i64, effects as i64, letters as i64, 0);
        let [source, _] = self.arena.stage.topics();
        let mut was_read = false;
        loop {
            // What is on its way comes last.
            let found: (i64, i64, i64, i64) = sqlx::query_as(
                "SELECT (SELECT count(*) FROM debit), (SELECT count(*) FROM credit),
                        (SELECT count(*) FROM dead_letter),
                        (SELECT count(*) FROM outbox WHERE published_at IS NULL)
                        + (SELECT count(*) FROM parked_key) + (SELECT count(*) FROM parked_event)
                        + (SELECT count(*) FROM replay_run WHERE state = 'running')
                        + (SELECT count(*) FROM outbound_call WHERE state IN ('pending', 'answered'))",
            )
            .fetch_one(&mut self.conn)
            .await?;
            if found.3 == 0 {
                let committed = self.committed().await;
                let ends = self.arena.broker.end_offsets(source).await;
                let is_read = |(partition, end): (&i32, &i64)| {
                    let begin = self.history.begin(*partition);
                    committed.get(partition).copied().unwrap_or(begin) == *end
                };
                let all_read = ends.iter().all(is_read);
                // What is missing at the second look, when everything was sent and read, never comes.
                if all_read && (found == expected || was_read) {
                    return Ok(());
                }
                was_read = all_read;
            }
            for service in &mut *services {
                if let Some(status) = service.ended()? {
                    bail!("a service ended with {status}\n{}", service.tail());
                }
            }
            if start.elapsed() > FINISH_LIMIT || found.0 > expected.0 {
                // The checker says what is missing, or too much.
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn committed(&self) -> BTreeMap<i32, i64> {
        let [source, _] = self.arena.stage.topics();
        let broker = &self.arena.broker;
        broker.committed(self.history.consumer(), source).await
    }

    /// An answer's handler and the mark that the call is done commit together: at no time one stands without the
    /// other, or the one twice.
    async fn check_answers(&mut self) -> Result<()> {
        let (again, without): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) - count(DISTINCT event_id) FROM charge),
                    (SELECT count(*) FROM charge FULL JOIN (
                         SELECT event_id FROM outbound_call WHERE state = 'done') AS done USING (event_id)
                      WHERE charge.event_id IS NULL OR done.event_id IS NULL)",
        )
        .fetch_one(&mut self.conn)
        .await?;
        if again > 0 {
            let text = format!("duplicate: {again} answers took effect twice");
            self.anomalies.push(text);
        }
        if without > 0 {
            let text = format!(
                "half-effect: {without} calls are done without their answer's effect, or not done with it"
            );
            self.anomalies.push(text);
        }
        Ok(())
    }

    /// Asks the checker.
    async fn check(&mut self, phase: &str) -> Result<()> {
        if let Some(provider) = &self.provider {
            self.history.calls_were(&provider.book());
        }
        let history = self.file("history.json");
        std::fs::write(&history, serde_json::to_vec(&self.history)?)?;
        let verdict = checker::ask(
            &self.programs.checker,
            &history,
            phase,
            self.database.url(),
            &self.arena.broker.bootstrap(),
        )
        .await?;
        self.anomalies.extend(verdict.anomalies);
        if self.provider.is_some() {
            self.check_answers().await?;
        }
        ensure!(self.anomalies.is_empty(), "it ends at the first anomaly");
        Ok(())
    }
}
