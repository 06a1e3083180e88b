//! A run from its start to its report.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use factum::sqlx::PgConnection;
use factum_kafka::{OutgoingRecord, Producer, Record, inspect};
use fastrand::Rng;

use super::check::{Anomaly, AnomalyKind, check};
use super::facts::{Content, Injected};
use super::injection::{Injection, MARK, POISON, TOMBSTONE, UNKNOWN_TYPE, injections};
use super::observe::{self, Progress};
use super::options::Options;
use super::plan::{Action, Gauge, Plan, Round, Step, Victim, is_billed};
use super::progress::Display;
use super::report::Report;
use super::servers::{BROKER_LIMIT, Servers, TOPICS};
use super::services::{Ended, ServiceName, Services};
use crate::orders;

/// How often progress is read.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often offsets are read, once all effects are there.
const OFFSETS_EVERY: Duration = Duration::from_millis(200);

/// A run that makes no progress for so long has failed. Longer than any lease, session or back-off.
const STALL_LIMIT: Duration = Duration::from_secs(90);

/// So many events to send keep a relay busy for the moment that a kill takes.
const BACKLOG: u64 = 100;

/// A kill comes within this time of the moment when it is decided: about as long as a batch takes.
const MOMENT_MICROS: u64 = 30_000;

/// Orders placed with one statement.
const PLACED_AT_ONCE: usize = 5_000;

/// Runs the plan of `seed` on `servers` and reports.
///
/// # Errors
///
/// The demo itself can't go on: a server is away, a program is missing. What the services do wrong is
/// in the report.
pub async fn run(options: &Options, seed: u64, servers: &Servers) -> Result<Report> {
    let plan = Plan::new(seed, options.orders);
    let mut display = Display::new(2 * plan.billed());
    display.line(&format!(
        "{} orders, seed {seed}: {} kills, {} on {}",
        options.orders,
        plan.kills(),
        if servers.is_embedded() {
            "the embedded broker"
        } else {
            "Kafka"
        },
        servers.kafka().brokers,
    ));
    servers.prepare(options.orders).await?;
    let mut conn = servers.connect().await?;
    for orders in plan.orders.chunks(PLACED_AT_ONCE) {
        orders::place(&mut conn, orders)
            .await
            .map_err(|error| anyhow::anyhow!("placing orders: {error}"))?;
    }
    let mut run = Run {
        servers,
        conn,
        rng: Rng::with_seed(seed.wrapping_add(1)),
        placed: options.orders,
        billed: plan.billed(),
        steps: plan.steps,
        injected: BTreeMap::new(),
        kills: 0,
        services: Services::start(servers)?,
        started: Instant::now(),
        last_effect: Instant::now(),
    };
    display.line("orders, billing and mailer run");
    let failure = run.drive(&mut display).await?;
    display.waiting_for("the services to stop");
    let Run {
        services,
        mut conn,
        injected,
        kills,
        started,
        last_effect,
        ..
    } = run;
    let badly = services.stop().await?;

    display.line("checking tables and topics");
    let facts = observe::facts(&mut conn, servers.kafka(), &injected).await?;
    let mut anomalies = check(&facts, is_billed);
    let service = |text| Anomaly {
        kind: AnomalyKind::Service,
        text,
    };
    anomalies.extend(failure.map(service));
    anomalies.extend(badly.iter().map(Ended::to_string).map(service));
    Ok(Report::new(&facts, kills, last_effect - started, anomalies))
}

struct Run<'s> {
    servers: &'s Servers,
    conn: PgConnection,
    rng: Rng,
    placed: u64,
    billed: u64,
    steps: Vec<Step>,
    injected: BTreeMap<&'static str, Injected>,
    kills: usize,
    services: Services,
    started: Instant,
    last_effect: Instant,
}

impl Run<'_> {
    /// Takes the plan's steps as their time comes, until all is done. Returns why it gave up, if it
    /// did.
    async fn drive(&mut self, display: &mut Display) -> Result<Option<String>> {
        let mut seen = (Progress::default(), 0);
        let mut changed = Instant::now();
        let mut offsets_read = Instant::now();
        let mut lag = u64::MAX;
        loop {
            let asked = Instant::now();
            let progress = Progress::read(&mut self.conn).await?;
            let cost = asked.elapsed();
            if progress.invoices + progress.mails != seen.0.invoices + seen.0.mails {
                self.last_effect = Instant::now();
            }
            display.at(progress.invoices + progress.mails);
            self.take_due_steps(progress, display).await?;
            if let Some(ended) = self.services.ended()? {
                return Ok(Some(ended.to_string()));
            }

            let waits_for = self.waits_for(progress);
            if waits_for.is_none() && offsets_read.elapsed() > OFFSETS_EVERY {
                lag = self.lag().await?;
                offsets_read = Instant::now();
                // What the consumers have read may have been published meanwhile.
                let now = Progress::read(&mut self.conn).await?;
                if lag == 0 && now == progress {
                    return Ok(None);
                }
            }
            let waits_for = waits_for.unwrap_or("the consumers to read on to the end");
            display.waiting_for(waits_for);
            if (progress, lag) != seen {
                seen = (progress, lag);
                changed = Instant::now();
            } else if changed.elapsed() > STALL_LIMIT {
                let limit = STALL_LIMIT.as_secs();
                let logs = self.services.logs();
                return Ok(Some(format!(
                    "nothing has moved for {limit} s; waited for {waits_for}\n{logs}"
                )));
            }
            // Looking must not slow down what is looked at.
            tokio::time::sleep(LOOK_EVERY.max(cost * 5)).await;
        }
    }

    /// What is still to come, before it is worth asking for offsets.
    fn waits_for(&self, progress: Progress) -> Option<&'static str> {
        if progress.confirmed < self.placed {
            Some("orders to be confirmed")
        } else if progress.invoices < self.billed {
            Some("invoices")
        } else if progress.mails < self.billed {
            Some("mails")
        } else if progress.waiting > 0 {
            Some("the relay")
        } else if !self.steps.is_empty() {
            Some("the plan")
        } else {
            None
        }
    }

    async fn lag(&self) -> Result<u64> {
        let mut sum = 0;
        for (topic, consumer) in TOPICS {
            sum += observe::lag(self.servers.kafka(), topic, consumer).await?;
        }
        Ok(sum)
    }

    async fn take_due_steps(&mut self, progress: Progress, display: &Display) -> Result<()> {
        let due: Vec<Step> = self
            .steps
            .extract_if(.., |step| is_due(step, progress))
            .collect();
        for step in due {
            match step.action {
                Action::Kill(victim) => {
                    let Some(service) = self.who_is(victim).await? else {
                        // No relay is at work: between a kill and the end of the dead one's lease.
                        self.steps.push(step);
                        continue;
                    };
                    // Progress is read at the same moments of every batch; death comes at any.
                    let moment = Duration::from_micros(self.rng.u64(..MOMENT_MICROS));
                    tokio::time::sleep(moment).await;
                    if self.services.kill(service).await? {
                        self.kills += 1;
                        let Progress {
                            waiting,
                            invoices,
                            mails,
                            ..
                        } = progress;
                        let relay = if victim == Victim::Relay {
                            ", the relay,"
                        } else {
                            ""
                        };
                        display.line(&format!(
                            "killed {service}{relay} at {waiting} events to send, {invoices} invoices, {mails} mails"
                        ));
                    }
                }
                Action::Inject(round) => {
                    let sent = self.inject(round).await?;
                    display.line(&format!("sent {sent} duplicates, poisons and strangers"));
                }
            }
        }
        Ok(())
    }

    async fn who_is(&mut self, victim: Victim) -> Result<Option<ServiceName>> {
        match victim {
            Victim::Service(service) => Ok(Some(service)),
            Victim::Relay => {
                let pid = observe::relay_pid(&mut self.conn).await?;
                Ok(pid.and_then(|pid| self.services.with_pid(pid)))
            }
        }
    }

    /// Sends records a second time, and what nobody can read. Returns how many records.
    async fn inject(&mut self, round: Round) -> Result<usize> {
        let mut sent = 0;
        let share = round.duplicates.div_ceil(TOPICS.len() as u64) as usize;
        for (topic, _) in TOPICS {
            let kafka = self.servers.kafka();
            let mut records = inspect::read_topic(kafka, topic, BROKER_LIMIT).await?;
            records.retain(|record| matches!(observe::content(record), Content::Event { .. }));
            let sound: Vec<(&[u8], &[u8])> = records
                .iter()
                .filter_map(|record| Some((record.key.as_deref()?, record.value.as_deref()?)))
                .collect();
            let marked = injections(&mut self.rng, round.number, &sound);
            let repeated = self.rng.choose_multiple(records.iter(), share);
            let mut batch: Vec<OutgoingRecord<'_>> =
                repeated.iter().map(|record| again(topic, record)).collect();
            batch.extend(
                marked
                    .iter()
                    .map(|injection| marked_record(topic, injection)),
            );
            self.rng.shuffle(&mut batch);
            send(kafka, &batch).await?;
            sent += batch.len();

            let injected = self.injected.entry(topic).or_default();
            injected.duplicates += repeated.len();
            let count = |of: &str| marked.iter().filter(|i| i.mark.starts_with(of)).count();
            injected.poison += count(POISON);
            injected.unknown_types += count(UNKNOWN_TYPE);
            injected.tombstones += count(TOMBSTONE);
        }
        Ok(sent)
    }
}

/// Whether a step's time has come. A relay is best killed while it has much to send.
fn is_due(step: &Step, progress: Progress) -> bool {
    let at = match step.gauge {
        Gauge::Confirmed => progress.confirmed,
        Gauge::Published => progress.published,
        Gauge::Invoices => progress.invoices,
        Gauge::Mails => progress.mails,
    };
    let waits_for_backlog = step.action == Action::Kill(Victim::Relay);
    let is_good = !waits_for_backlog || progress.waiting >= BACKLOG;
    at >= step.until || at >= step.from && is_good
}

/// The same record once more: key, value and headers, byte for byte.
fn again<'r>(topic: &'r str, record: &'r Record) -> OutgoingRecord<'r> {
    OutgoingRecord {
        topic,
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        headers: record.headers.iter().collect(),
        partition: None,
    }
}

fn marked_record<'r>(topic: &'r str, injection: &'r Injection) -> OutgoingRecord<'r> {
    OutgoingRecord {
        topic,
        key: Some(&injection.key),
        value: injection.value.as_deref(),
        headers: vec![(MARK, Some(injection.mark.as_bytes()))],
        partition: None,
    }
}

async fn send(kafka: &factum_kafka::KafkaSettings, batch: &[OutgoingRecord<'_>]) -> Result<()> {
    let producer = Producer::connect(kafka, BROKER_LIMIT)?;
    for result in producer.send_all(batch).await {
        // A record that may or may not be there would spoil the count.
        result.context("the demo could not inject its records")?;
    }
    producer.close(BROKER_LIMIT).await;
    Ok(())
}
