//! One side of one measurement, in a process of its own, so that its CPU and memory are its own.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use tokio::sync::mpsc;

use crate::meter::{Measured, Meter};
use crate::{product, raw_consumer, raw_relay};

/// Records in one transaction, and rows in one claim.
pub(crate) const BATCH: usize = 500;
/// Rows that a relay claims at once.
pub(crate) const CLAIM: usize = 1_000;
/// Partitions of every topic, and so lanes of every consumer.
pub(crate) const LANES: i32 = 4;

/// How often the counters are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A contender that has not done its work by then has failed.
const LIMIT: Duration = Duration::from_secs(180);

/// Where the contender finds the database; by environment, since arguments are for everyone to see.
pub(crate) const DATABASE_URL: &str = "BENCH_DATABASE_URL";

/// The work that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// One call and one statement for each event.
    PerEvent,
    /// One call and one statement for each batch.
    Batch,
    /// From the outbox to Kafka.
    Relay,
    /// The same with relays that share it, each until told to end. The raw side claims and marks, and sends nothing.
    RelaySql,
    /// The same. The raw side sends, and has read everything before.
    RelayProducer,
    /// Relay and consumer in one service, until told to end.
    Service,
    /// One call and one statement for each event, while some keys are parked. The raw side is the same service, and
    /// nothing fails.
    Parked,
    /// A handler that waits, several at once; there is no raw side.
    Keyed,
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// Factum.
    Factum,
    /// A loop that a careful person would write by hand.
    Raw,
}

/// What the bench tells a contender.
#[derive(Debug, Clone, Args)]
pub(crate) struct Contend {
    pub(crate) work: Work,
    pub(crate) side: Side,
    /// How many records or rows there are.
    #[arg(long)]
    pub(crate) total: u64,
    /// The consumer's name, new for each round.
    #[arg(long)]
    pub(crate) consumer: String,
    /// How many keys fail, or would.
    #[arg(long, default_value_t = 0)]
    pub(crate) failing_keys: usize,
    #[arg(long)]
    pub(crate) brokers: String,
    /// The first process of the database server.
    #[arg(long)]
    pub(crate) postmaster: u32,
}

impl Contend {
    /// Does the work and prints what it has cost as one line of JSON.
    pub(crate) fn run(&self) -> Result<()> {
        tracing_subscriber::fmt()
            .with_env_filter(match self.work {
                // Each failure is a line, and here they are meant to be.
                Work::Parked => "error",
                // What a client says while its broker is still starting is no news here.
                _ => "warn,librdkafka=error",
            })
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .init();
        let runtime = tokio::runtime::Runtime::new().context("starting a runtime")?;
        let measured = runtime.block_on(async {
            match (self.work, self.side) {
                (Work::PerEvent | Work::Batch, Side::Factum) => product::consume(self).await,
                (Work::PerEvent | Work::Batch, Side::Raw) => raw_consumer::consume(self).await,
                (Work::Relay, Side::Factum) => product::relay(self).await,
                (Work::Relay, Side::Raw) => raw_relay::relay(self).await,
                (Work::RelaySql | Work::RelayProducer, Side::Factum) => {
                    product::share_relay(self).await
                }
                (Work::RelaySql, Side::Raw) => raw_relay::claim_and_mark(self).await,
                (Work::RelayProducer, Side::Raw) => raw_relay::send(self).await,
                (Work::Service, _) => product::serve(self).await,
                (Work::Parked, _) => product::consume_beside_parked(self).await,
                (Work::Keyed, _) => product::consume_keyed(self).await,
            }
        })?;
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&measured)?)
            .context("the bench has gone")?;
        // What a raw loop leaves running ends with the process.
        std::process::exit(0);
    }

    pub(crate) fn database_url(&self) -> Result<String> {
        std::env::var(DATABASE_URL).with_context(|| format!("{DATABASE_URL} is not set"))
    }

    pub(crate) fn meter(&self) -> Meter {
        Meter::new(self.postmaster)
    }
}

/// What a contender has taken and done so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    taken: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
}

impl Counters {
    pub(crate) fn take(&self, records: usize) {
        self.taken.fetch_add(records as u64, Ordering::Relaxed);
    }

    /// Call it once the effects are committed, or the rows are marked.
    pub(crate) fn finish(&self, records: usize) {
        self.done.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

/// Measures from the moment when something was taken (the group is joined and connections are open by then)
/// to the moment when all is done. What was done by the first moment does not count.
pub(crate) async fn watch(
    contend: &Contend,
    taken: impl Fn() -> u64,
    done: impl Fn() -> u64,
) -> Result<Measured> {
    let meter = contend.meter();
    let limit = Instant::now() + LIMIT;
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while taken() == 0 {
        look.tick().await;
        ensure!(Instant::now() < limit, "nothing was taken within {LIMIT:?}");
    }
    let before = done();
    let start = meter.read()?;
    while done() < contend.total {
        look.tick().await;
        ensure!(
            Instant::now() < limit,
            "only {} of {} were done within {LIMIT:?}",
            done(),
            contend.total
        );
    }
    meter.since(start, contend.total - before)
}

/// What comes over the standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The measured part begins.
    Begin,
    /// It has ended, or the bench has died.
    End,
}

/// The bench's orders. Without anybody listening, a contender whose bench has died ends at once.
pub(crate) fn orders() -> mpsc::UnboundedReceiver<Order> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || sender.send(Order::Begin).is_err() {
                break;
            }
        }
        if sender.send(Order::End).is_err() {
            std::process::exit(1);
        }
    });
    receiver
}
