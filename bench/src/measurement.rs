//! The measurements: rounds in which Factum and the raw loop take turns, each checked for exactness.

use std::collections::{HashMap, HashSet};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;
use factum::{Envelope, Event as _, Outbox, new_event_id};
use factum_testing::{TestDatabase, tool};
use sqlx::{Connection as _, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::broker::{self, Record};
use crate::contender::{DATABASE_URL, Side, Work};
use crate::display::Display;
use crate::exactness::{Deviation, first_out_of_order};
use crate::meter::Measured;
use crate::order::{OrderConfirmed, OrderPlaced, RawOrder};
use crate::parking::Load;
use crate::product;
use crate::report::{Entry, rounded, thousands};
use crate::stage::Stage;
use crate::statistic::{median, percentile};

/// Of so many events one is in the topic twice: 1 %.
const EVENTS_PER_DUPLICATE: usize = 100;
/// Events that are published with one statement while an outbox is filled.
const PUBLISHED_AT_ONCE: usize = 1_000;
/// Events before the measured part of the way from publish to effect: connections are open then, and every
/// partition has had its first record.
const WARM_UP: usize = 200;
/// Sessions that publish side by side.
const PUBLISHERS: usize = 8;
/// Events per second that are published.
const RATE: u64 = 1_000;
/// Of the topic whose events several handlers have at once.
const KEYED_PARTITIONS: i32 = 3;
/// How long the last effect may take after the last publish.
const LAST_EFFECT_LIMIT: Duration = Duration::from_secs(30);

/// How long relays may take to share the slots, and to send everything.
const SHARED_RELAYS_LIMIT: Duration = Duration::from_secs(180);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) name: &'static str,
    work: Work,
    events: usize,
    goal: Option<f64>,
    p99_goal_ms: Option<f64>,
    /// Relays that share the outbox.
    relays: usize,
}

/// Relays beside half of a raw loop.
const fn shared(name: &'static str, work: Work, relays: usize) -> Measurement {
    Measurement {
        name,
        work,
        events: 200_000,
        goal: None,
        p99_goal_ms: None,
        relays,
    }
}

/// What is measured, in this order. A round takes some seconds.
pub(crate) const MEASUREMENTS: [Measurement; 12] = [
    Measurement {
        name: "per-event",
        work: Work::PerEvent,
        events: 60_000,
        goal: Some(0.85),
        p99_goal_ms: None,
        relays: 1,
    },
    Measurement {
        name: "batch",
        work: Work::Batch,
        events: 400_000,
        goal: Some(0.85),
        p99_goal_ms: None,
        relays: 1,
    },
    Measurement {
        name: "relay",
        work: Work::Relay,
        events: 100_000,
        goal: Some(0.75),
        p99_goal_ms: None,
        relays: 1,
    },
    Measurement {
        name: "beside-parked",
        work: Work::Parked,
        events: 200_000,
        goal: Some(0.9),
        p99_goal_ms: None,
        relays: 1,
    },
    Measurement {
        name: "publish-to-effect",
        work: Work::Service,
        events: 20_000,
        goal: None,
        p99_goal_ms: Some(50.0),
        relays: 1,
    },
    Measurement {
        name: "keyed",
        work: Work::Keyed,
        events: 12_800,
        relays: 1,
        goal: Some(0.85),
        p99_goal_ms: None,
    },
    shared("relay-of-sql", Work::RelaySql, 1),
    shared("two-relays-of-sql", Work::RelaySql, 2),
    shared("four-relays-of-sql", Work::RelaySql, 4),
    shared("relay-of-producer", Work::RelayProducer, 1),
    shared("two-relays-of-producer", Work::RelayProducer, 2),
    shared("four-relays-of-producer", Work::RelayProducer, 4),
];

impl Measurement {
    /// How many runs of contenders it takes.
    pub(crate) fn runs(&self, rounds: u32) -> u64 {
        match self.work {
            Work::Service | Work::Keyed => u64::from(rounds),
            _ => u64::from(rounds) * 2 + 1,
        }
    }

    /// Measures on fresh servers.
    pub(crate) fn run(
        &self,
        stage: &Stage,
        rounds: u32,
        events: Option<usize>,
        display: &Display,
    ) -> Result<Entry> {
        let events = events.unwrap_or(self.events);
        match self.work {
            Work::PerEvent | Work::Batch => self.consumers(stage, rounds, events, display),
            Work::Relay => self.relays(stage, rounds, events, display),
            Work::RelaySql | Work::RelayProducer => {
                self.shared_relays(stage, rounds, events, display)
            }
            Work::Service => self.service(stage, rounds, events, display),
            Work::Parked => self.beside_parked(stage, rounds, events, display),
            Work::Keyed => self.keyed(stage, rounds, events, display),
        }
        .with_context(|| format!("measuring {}", self.name))
    }

    fn consumers(
        &self,
        stage: &Stage,
        rounds: u32,
        events: usize,
        display: &Display,
    ) -> Result<Entry> {
        display.now(&format!("{}: filling the topic", self.name));
        let topic = OrderConfirmed::TOPIC;
        stage.block_on(broker::create_topic(&stage.brokers(), topic))?;
        let (expected, records) = with_duplicates(events)?;
        broker::fill(&stage.brokers(), topic, &records)?;
        let total = records.len() as u64;
        drop(records);
        self.take_turns(rounds, events, display, |side, round| {
            let consumer = format!("bench-{}-{round}", self.name);
            let database = stage.database()?;
            stage.settle(&database)?;
            let contender =
                Contender::start(stage, &database, self.work, side, total, &consumer, 0)?;
            let measured = contender.end()?;
            stage.check_effects(&database, &consumer, &expected)?;
            Ok(measured)
        })
    }

    /// The rate of the events whose keys never fail: while the other keys are parked, and where none is.
    fn beside_parked(
        &self,
        stage: &Stage,
        rounds: u32,
        events: usize,
        display: &Display,
    ) -> Result<Entry> {
        display.now(&format!("{}: filling the topic", self.name));
        let topic = OrderConfirmed::TOPIC;
        stage.block_on(broker::create_topic(&stage.brokers(), topic))?;
        let (all, records) = with_duplicates(events)?;
        let load = Load::of(all, records)?;
        broker::fill(&stage.brokers(), topic, &load.records)?;
        self.take_turns(rounds, events, display, |side, round| {
            let consumer = format!("bench-{}-{round}-{side:?}", self.name).to_lowercase();
            let database = stage.database()?;
            stage.settle(&database)?;
            let total = match side {
                // What is parked is never done.
                Side::Factum => load.healthy_records,
                Side::Raw => load.records.len(),
            };
            let contender = Contender::start(
                stage,
                &database,
                self.work,
                side,
                total as u64,
                &consumer,
                load.failing_keys,
            )?;
            let mut measured = contender.end()?;
            let parked = stage.ask(&database, "SELECT count(*) FROM parked_key")?;
            match side {
                Side::Factum => {
                    ensure!(
                        parked == load.failing_keys as i64,
                        "not exact: {parked} keys are parked, and {} fail",
                        load.failing_keys
                    );
                    stage.check_effects(&database, &consumer, &load.healthy)?;
                }
                Side::Raw => {
                    ensure!(parked == 0, "not exact: {parked} keys are parked");
                    stage.check_effects(&database, &consumer, &load.all)?;
                    measured.events = (measured.events as f64 * load.healthy_part()).round() as u64;
                }
            }
            Ok(measured)
        })
    }

    /// Handlers that wait, beside what as many of them could do at best.
    fn keyed(&self, stage: &Stage, rounds: u32, events: usize, display: &Display) -> Result<Entry> {
        display.now(&format!("{}: filling the topic", self.name));
        let topic = OrderConfirmed::TOPIC;
        let brokers = stage.brokers();
        stage.block_on(broker::create_topic_of(&brokers, topic, KEYED_PARTITIONS))?;
        let (expected, records) = with_duplicates(events)?;
        broker::fill(&brokers, topic, &records)?;
        let total = records.len() as u64;
        let mut ours = Vec::new();
        for round in 1..=rounds {
            let what = format!("{}, round {round} of {rounds}", self.name);
            display.now(&what);
            let consumer = format!("bench-{}-{round}", self.name);
            let database = stage.database()?;
            stage.settle(&database)?;
            let side = Side::Factum;
            let contender =
                Contender::start(stage, &database, self.work, side, total, &consumer, 0)?;
            let mut measured = contender.end().with_context(|| what.clone())?;
            stage.check_effects(&database, &consumer, &expected)?;
            // A duplicate reaches no handler.
            measured.events = measured.events.min(events as u64);
            display.ended(format_args!("{what}: {}", told(&measured)));
            ours.push(measured);
        }
        let mut entry = self.entry(events, &ours, &[])?;
        let ideal = f64::from(product::WORKERS) / product::SLOW.as_secs_f64();
        entry.beside = Some(ideal);
        entry.ratio = Some(rounded(entry.events_per_second / ideal, 3));
        Ok(entry)
    }

    fn relays(
        &self,
        stage: &Stage,
        rounds: u32,
        events: usize,
        display: &Display,
    ) -> Result<Entry> {
        let topic = OrderConfirmed::TOPIC;
        self.take_turns(rounds, events, display, |side, round| {
            let database = stage.database()?;
            let expected = stage.block_on(fill_outbox(database.url(), events))?;
            // A topic of its own for each run, so that what stands in it is this run's.
            let own_topic = format!("{topic}.{round}.{side:?}");
            stage.block_on(async {
                broker::create_topic(&stage.brokers(), &own_topic).await?;
                let mut conn = PgConnection::connect(database.url()).await?;
                sqlx::query("UPDATE outbox SET topic = $1")
                    .bind(&own_topic)
                    .execute(&mut conn)
                    .await?;
                anyhow::Ok(())
            })?;
            stage.settle(&database)?;
            let contender =
                Contender::start(stage, &database, self.work, side, events as u64, "none", 0)?;
            let measured = contender.end()?;
            let unmarked = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
            let unmarked = stage.ask(&database, unmarked)?;
            ensure!(unmarked == 0, "not exact: {unmarked} rows are not marked");
            check_topic(&stage.brokers(), &own_topic, &expected)?;
            Ok(measured)
        })
    }

    /// Relays that share an outbox, beside the database alone or the producer alone.
    fn shared_relays(
        &self,
        stage: &Stage,
        rounds: u32,
        events: usize,
        display: &Display,
    ) -> Result<Entry> {
        let topic = OrderConfirmed::TOPIC;
        self.take_turns(rounds, events, display, |side, round| {
            let database = stage.database()?;
            let expected = stage.block_on(fill_outbox(database.url(), events))?;
            let own_topic = format!("{topic}.{}.{round}.{side:?}", self.name);
            stage.block_on(broker::create_topic(&stage.brokers(), &own_topic))?;
            stage.block_on(async {
                let mut conn = PgConnection::connect(database.url()).await?;
                sqlx::query("UPDATE outbox SET topic = $1")
                    .bind(&own_topic)
                    .execute(&mut conn)
                    .await?;
                anyhow::Ok(())
            })?;
            let measured = match side {
                Side::Factum => self.together(stage, &database, events)?,
                Side::Raw => {
                    stage.settle(&database)?;
                    let total = events as u64;
                    Contender::start(stage, &database, self.work, side, total, "none", 0)?.end()?
                }
            };
            if side == Side::Factum || self.work == Work::RelaySql {
                let unmarked = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
                let unmarked = stage.ask(&database, unmarked)?;
                ensure!(unmarked == 0, "not exact: {unmarked} rows are not marked");
            }
            if side == Side::Factum || self.work == Work::RelayProducer {
                check_topic(&stage.brokers(), &own_topic, &expected)?;
            }
            Ok(measured)
        })
    }

    /// Relays that share the slots evenly before there is anything to send; then everything is there at once.
    fn together(&self, stage: &Stage, database: &TestDatabase, events: usize) -> Result<Measured> {
        let columns = "event_id, event_type, aggregate_type, aggregate_id, topic, key, payload, headers, occurred_at";
        let run = |sql: String| {
            stage.block_on(async {
                let mut conn = PgConnection::connect(database.url()).await?;
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
                    .execute(&mut conn)
                    .await?;
                anyhow::Ok(())
            })
        };
        run(format!(
            "CREATE TABLE staged AS SELECT id AS place, {columns} FROM outbox; TRUNCATE outbox"
        ))?;
        stage.settle(database)?;
        let start = || {
            let total = events as u64;
            Contender::start(stage, database, self.work, Side::Factum, total, "none", 0)
        };
        let mut relays = (0..self.relays)
            .map(|_| start())
            .collect::<Result<Vec<_>>>()?;
        let holders = "SELECT CASE WHEN sum(slots) = 64 AND max(slots) - min(slots) <= 1 THEN count(*) ELSE 0 END \
                       FROM (SELECT count(*) AS slots FROM relay_lease WHERE expires_at > clock_timestamp() GROUP BY owner) AS of_owner";
        until(stage, database, holders, self.relays as i64)?;
        for relay in &mut relays {
            relay.begin()?;
        }
        run(format!(
            "INSERT INTO outbox ({columns}) SELECT {columns} FROM staged ORDER BY place"
        ))?;
        let micros = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let begin = stage.ask(database, micros)?;
        let left =
            "SELECT count(*) FROM (SELECT FROM outbox WHERE published_at IS NULL LIMIT 1) AS one";
        until(stage, database, left, 0)?;
        let last = "SELECT (extract(epoch FROM max(published_at)) * 1000000)::bigint FROM outbox";
        let end = stage.ask(database, last)?;
        let mut all = Measured {
            events: events as u64,
            seconds: (end - begin) as f64 / 1e6,
            own_cpu_seconds: 0.0,
            database_cpu_seconds: 0.0,
            peak_rss_mib: 0.0,
        };
        for mut relay in relays {
            relay.stop();
            let measured = relay.end()?;
            all.own_cpu_seconds += measured.own_cpu_seconds;
            // Each has measured all of the database's.
            all.database_cpu_seconds = all.database_cpu_seconds.max(measured.database_cpu_seconds);
            all.peak_rss_mib += measured.peak_rss_mib;
        }
        Ok(all)
    }

    /// A run that does not count, then Factum, raw, Factum, raw …
    fn take_turns(
        &self,
        rounds: u32,
        events: usize,
        display: &Display,
        mut run: impl FnMut(Side, u32) -> Result<Measured>,
    ) -> Result<Entry> {
        // Servers that have just started are slow at first, and the first contender would pay for it.
        let what = format!("{}, warm-up", self.name);
        display.now(&what);
        run(Side::Raw, 0).with_context(|| what.clone())?;
        display.ended(format_args!("{what}: done"));
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for round in 1..=rounds {
            for (side, results) in [(Side::Factum, &mut ours), (Side::Raw, &mut theirs)] {
                let what = format!("{}, round {round} of {rounds}, {side:?}", self.name);
                display.now(&what);
                let measured = run(side, round).with_context(|| what.clone())?;
                display.ended(format_args!("{what}: {}", told(&measured)));
                results.push(measured);
            }
        }
        if let Some((least, most)) = ratios(&ours, &theirs) {
            let name = self.name;
            display.ended(format_args!(
                "{name}: round by round the ratio is {least:.3} to {most:.3}"
            ));
        }
        self.entry(events, &ours, &theirs)
    }

    fn service(
        &self,
        stage: &Stage,
        rounds: u32,
        events: usize,
        display: &Display,
    ) -> Result<Entry> {
        stage.block_on(broker::create_topic(&stage.brokers(), OrderPlaced::TOPIC))?;
        let mut costs = Vec::new();
        let (mut p50s, mut p99s) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            let what = format!("{}, round {round} of {rounds}", self.name);
            display.now(&what);
            let (measured, p50, p99) =
                service_round(stage, events).with_context(|| what.clone())?;
            display.ended(format_args!(
                "{what}: p50 {p50:.1} ms, p99 {p99:.1} ms, {}",
                told(&measured)
            ));
            costs.push(measured);
            p50s.push(p50);
            p99s.push(p99);
        }
        let mut entry = self.entry(events, &costs, &[])?;
        entry.p50_ms = median(&p50s).map(|value| rounded(value, 1));
        entry.p99_ms = median(&p99s).map(|value| rounded(value, 1));
        Ok(entry)
    }

    fn entry(&self, events: usize, ours: &[Measured], theirs: &[Measured]) -> Result<Entry> {
        let of = |all: &[Measured], what: fn(&Measured) -> f64, places| {
            median(&all.iter().map(what).collect::<Vec<f64>>()).map(|value| rounded(value, places))
        };
        let each = |all: &[Measured]| -> Vec<f64> {
            all.iter()
                .map(|measured| measured.events_per_second().round())
                .collect()
        };
        let none = "there was no round";
        let rss = |measured: &Measured| measured.peak_rss_mib;
        let events_per_second = of(ours, Measured::events_per_second, 0).context(none)?;
        let beside = of(theirs, Measured::events_per_second, 0);
        Ok(Entry {
            name: self.name.to_owned(),
            events_per_second,
            beside,
            ratio: beside.map(|beside| rounded(events_per_second / beside, 3)),
            goal: self.goal,
            cpu_us: of(ours, Measured::own_cpu_micros, 1).context(none)?,
            beside_cpu_us: of(theirs, Measured::own_cpu_micros, 1),
            database_cpu_us: of(ours, Measured::database_cpu_micros, 1).context(none)?,
            beside_database_cpu_us: of(theirs, Measured::database_cpu_micros, 1),
            rss_mib: of(ours, rss, 1).context(none)?,
            beside_rss_mib: of(theirs, rss, 1),
            p50_ms: None,
            p99_ms: None,
            p99_goal_ms: self.p99_goal_ms,
            events: events as u64,
            rounds: each(ours),
            beside_rounds: each(theirs),
        })
    }
}

/// The least and the greatest ratio of two runs of one round: how far the ratio of the medians can be trusted.
fn ratios(ours: &[Measured], theirs: &[Measured]) -> Option<(f64, f64)> {
    let ratios = ours
        .iter()
        .zip(theirs)
        .map(|(ours, theirs)| ours.events_per_second() / theirs.events_per_second());
    ratios.fold(None, |range, ratio| {
        let (least, most) = range.unwrap_or((ratio, ratio));
        Some((ratio.min(least), ratio.max(most)))
    })
}

fn told(measured: &Measured) -> String {
    format!(
        "{} events/s, CPU per event {:.1} µs, the database's {:.1} µs, {:.0} MiB",
        thousands(measured.events_per_second()),
        measured.own_cpu_micros(),
        measured.database_cpu_micros(),
        measured.peak_rss_mib
    )
}

/// A contender that runs.
struct Contender {
    tool: tool::Tool,
}

impl Contender {
    fn start(
        stage: &Stage,
        database: &TestDatabase,
        work: Work,
        side: Side,
        total: u64,
        consumer: &str,
        failing_keys: usize,
    ) -> Result<Contender> {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned())
        };
        let mut command = Command::new(std::env::current_exe().context("finding ourselves")?);
        command
            .arg("contend")
            .args(name(work.to_possible_value()))
            .args(name(side.to_possible_value()))
            .args(["--total", &total.to_string(), "--consumer", consumer])
            .args(["--failing-keys", &failing_keys.to_string()])
            .args(["--brokers", &stage.brokers()])
            .args(["--postmaster", &stage.postmaster().to_string()])
            .env(DATABASE_URL, database.url())
            // Open as long as we live: its end is the contender's.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let tool = tool::Tool::spawn(&mut command).context("starting a contender")?;
        Ok(Contender { tool })
    }

    fn begin(&mut self) -> Result<()> {
        let input = self.tool.child().stdin.as_mut();
        writeln!(input.context("a contender has no input")?, "begin").context("a contender ended")
    }

    /// Closes its input: a service ends then.
    fn stop(&mut self) {
        drop(self.tool.child().stdin.take());
    }

    /// Waits until it has ended, and reads what it measured.
    fn end(mut self) -> Result<Measured> {
        let mut text = String::new();
        let output = self.tool.child().stdout.as_mut();
        output
            .context("a contender has no output")?
            .read_to_string(&mut text)
            .context("reading a contender's output")?;
        let status = self.tool.wait().context("waiting for a contender")?;
        if !status.success() {
            bail!("a contender ended with {status}");
        }
        serde_json::from_str(text.trim()).context("a contender did not say what it measured")
    }
}

/// The events of a run and their ids, one in a hundred a second time, somewhere behind the first.
fn with_duplicates(events: usize) -> Result<(HashSet<Uuid>, Vec<Record>)> {
    let mut expected = HashSet::with_capacity(events);
    let mut records = Vec::with_capacity(events + events / EVENTS_PER_DUPLICATE);
    let mut random = fastrand::Rng::with_seed(events as u64);
    let at = OffsetDateTime::now_utc();
    for number in 0..events {
        let id = new_event_id();
        expected.insert(id.as_uuid());
        let order = Envelope::new(id, OrderConfirmed::numbered(number)?, at);
        records.push(Record {
            key: order.order_id.to_string(),
            value: order.encode()?,
            headers: vec![
                ("event-id", id.to_string()),
                ("event-type", OrderConfirmed::EVENT_TYPE.to_owned()),
                (
                    "traceparent",
                    format!("00-{:032x}-{:016x}-00", random.u128(1..), random.u64(1..)),
                ),
            ],
        });
        if number % EVENTS_PER_DUPLICATE == EVENTS_PER_DUPLICATE - 1 {
            let again = records[random.usize(..records.len())].clone();
            records.push(again);
        }
    }
    Ok((expected, records))
}

/// Publishes events, and gives for each id its place in the order.
async fn fill_outbox(url: &str, events: usize) -> Result<HashMap<Uuid, i64>> {
    let mut conn = PgConnection::connect(url).await?;
    let outbox = Outbox::new();
    let at = OffsetDateTime::now_utc();
    let mut places = HashMap::with_capacity(events);
    for first in (0..events).step_by(PUBLISHED_AT_ONCE) {
        ensure!(!tool::is_interrupted(), "interrupted");
        let orders = (first..events.min(first + PUBLISHED_AT_ONCE))
            .map(|number| anyhow::Ok(OrderConfirmed::numbered(number)?.occurred_at(at)))
            .collect::<Result<Vec<_>>>()?;
        for id in outbox.publish_all(&mut conn, orders).await? {
            places.insert(id.as_uuid(), places.len() as i64);
        }
    }
    conn.close().await?;
    Ok(places)
}

/// Whether each expected event is in the topic once, and those of a key in their order.
fn check_topic(brokers: &str, topic: &str, expected: &HashMap<Uuid, i64>) -> Result<()> {
    let records = broker::read_back(brokers, topic)?
        .into_iter()
        .map(|record| Ok((record.key, RawOrder::read(Some(&record.value))?.event_id)))
        .collect::<Result<Vec<(Vec<u8>, Uuid)>>>()?;
    let ids: HashSet<Uuid> = expected.keys().copied().collect();
    let deviation = Deviation::of(&ids, records.iter().map(|(_, id)| *id));
    ensure!(
        deviation.is_exact(),
        "not exact: of the records {deviation}"
    );
    let disorder = first_out_of_order(records.into_iter().map(|(key, id)| (key, expected[&id])));
    ensure!(
        disorder.is_none(),
        "not exact: a key's records are out of order"
    );
    Ok(())
}

/// One round of publish to effect: what it cost, p50 and p99 in milliseconds.
fn service_round(stage: &Stage, events: usize) -> Result<(Measured, f64, f64)> {
    // The same group in all rounds: it begins where the last round ended.
    let consumer = "bench-order-placed";
    let database = stage.database()?;
    stage.settle(&database)?;
    let total = events as u64;
    let mut contender = Contender::start(
        stage,
        &database,
        Work::Service,
        Side::Factum,
        total,
        consumer,
        0,
    )?;
    let mut expected = stage.block_on(publish(database.url(), WARM_UP))?;
    wait_for_effects(stage, &database, WARM_UP)?;
    contender.begin()?;
    let ids = stage.block_on(publish(database.url(), events))?;
    wait_for_effects(stage, &database, WARM_UP + events)?;
    contender.stop();
    let measured = contender.end()?;
    let latencies: Vec<f64> = stage.block_on(async {
        let mut conn = PgConnection::connect(database.url()).await?;
        let ids: Vec<Uuid> = ids.iter().copied().collect();
        // `occurred_at` holds the time at which the event was to be published. `xmin` is the transaction that
        // wrote the effect, and its timestamp is taken when it commits.
        let latencies = sqlx::query_scalar(
            "SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin) - occurred_at) * 1000)::float8 \
             FROM effect WHERE event_id = ANY($1)",
        )
        .bind(ids)
        .fetch_all(&mut conn)
        .await?;
        anyhow::Ok(latencies)
    })?;
    ensure!(latencies.len() == events, "effects are missing");
    expected.extend(ids);
    stage.check_effects(&database, consumer, &expected)?;
    let of = |percent| percentile(&latencies, percent).context("there was no event");
    Ok((measured, of(50.0)?, of(99.0)?))
}

/// Waits until the query gives that number.
fn until(stage: &Stage, database: &TestDatabase, query: &'static str, number: i64) -> Result<()> {
    let limit = Instant::now() + SHARED_RELAYS_LIMIT;
    while stage.ask(database, query)? != number {
        ensure!(!tool::is_interrupted(), "interrupted");
        ensure!(
            Instant::now() < limit,
            "not within {SHARED_RELAYS_LIMIT:?}: {query} = {number}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn wait_for_effects(stage: &Stage, database: &TestDatabase, count: usize) -> Result<()> {
    let limit = Instant::now() + LAST_EFFECT_LIMIT;
    loop {
        let there = stage.ask(database, "SELECT count(*) FROM effect")?;
        if there >= count as i64 {
            return Ok(());
        }
        ensure!(!tool::is_interrupted(), "interrupted");
        ensure!(
            Instant::now() < limit,
            "only {there} of {count} effects came within {LAST_EFFECT_LIMIT:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Publishes [`RATE`] events a second, each in a transaction of its own and each at its time, however long the
/// ones before take: an event that is late because something stalls counts with its delay.
async fn publish(url: &str, events: usize) -> Result<HashSet<Uuid>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut sessions = Vec::new();
    for _ in 0..PUBLISHERS {
        sessions.push(PgConnection::connect(url).await?);
    }
    let begin = (tokio::time::Instant::now(), OffsetDateTime::now_utc());
    let publishers: Vec<_> = sessions
        .into_iter()
        .map(|mut conn| {
            let next = next.clone();
            tokio::spawn(async move {
                let outbox = Outbox::new();
                let mut ids = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= events || tool::is_interrupted() {
                        return anyhow::Ok(ids);
                    }
                    let after = Duration::from_micros(number as u64 * 1_000_000 / RATE);
                    tokio::time::sleep_until(begin.0 + after).await;
                    let order = OrderPlaced::numbered(number)?.occurred_at(begin.1 + after);
                    ids.push(outbox.publish(&mut conn, order).await?.as_uuid());
                }
            })
        })
        .collect();
    let mut ids = HashSet::with_capacity(events);
    for publisher in publishers {
        ids.extend(publisher.await.context("a publisher panicked")??);
    }
    ensure!(ids.len() == events, "interrupted");
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_hundred_records_is_a_duplicate() {
        let (expected, records) = with_duplicates(1_000).unwrap();
        assert_eq!((expected.len(), records.len()), (1_000, 1_010));
        let mut seen = HashSet::new();
        let repeated = records
            .iter()
            .filter(|record| !seen.insert(record.value.clone()))
            .count();
        assert_eq!(repeated, 10);
        assert!(records.iter().all(|record| !record.key.is_empty()));
    }

    #[test]
    fn an_entry_holds_medians_and_their_ratio() {
        let measured = |seconds| Measured {
            events: 1_000,
            seconds,
            own_cpu_seconds: 0.01,
            database_cpu_seconds: 0.02,
            peak_rss_mib: 50.0,
        };
        let ours = [0.1, 0.2, 0.4].map(measured);
        let theirs = [0.1, 0.16, 0.1].map(measured);
        let entry = MEASUREMENTS[1].entry(1_000, &ours, &theirs).unwrap();
        assert_eq!(entry.events_per_second, 5_000.0);
        assert_eq!(entry.beside, Some(10_000.0));
        assert_eq!(entry.ratio, Some(0.5));
        assert_eq!((entry.cpu_us, entry.database_cpu_us), (10.0, 20.0));
        assert_eq!(entry.rounds, [10_000.0, 5_000.0, 2_500.0]);
        assert_eq!(ratios(&ours, &theirs), Some((0.25, 1.0)));
        assert_eq!(ratios(&ours, &[]), None);
        let alone = MEASUREMENTS[4].entry(1_000, &ours, &[]).unwrap();
        assert_eq!((alone.beside, alone.ratio), (None, None));
        MEASUREMENTS[1].entry(1_000, &[], &[]).unwrap_err();
    }
}
