//! All cells, side by side: most of a cell is waiting for sessions and leases to end.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use factum_testing::TestBroker;
use factum_testing::guard::Guard;
use factum_testing::kafka::KafkaServer;
use factum_testing::tool;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cell::{Cell, Harm};
use crate::ledger::Stage;
use crate::scenario::{self, Arena, Outcome, Programs};

const PARTITIONS: u32 = 2;
/// A killed member's partitions are free after this. The embedded broker lets a new group's first member
/// wait 3 s, and throws it out if its session ends meanwhile.
const SESSION_TIMEOUT_MS: u32 = 2_000;
const SESSION_TIMEOUT_EMBEDDED_MS: u32 = 4_000;
/// Without a terminal, progress is a line for so many cells.
const PLAIN_EVERY: usize = 10;

/// Which broker the cells run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Broker {
    /// Apache Kafka.
    Kafka,
    /// librdkafka's in-process broker, one for each cell: no Java, and sooner done.
    Embedded,
}

/// Runs the cells, `jobs` at a time (at most [`Stage::COUNT`] on Kafka). `programs_dir` holds the
/// service and the checker.
///
/// # Errors
///
/// A server can't be started, or a program is missing.
pub async fn run(
    cells: &[Cell],
    broker: Broker,
    jobs: u32,
    programs_dir: &Path,
) -> Result<Vec<Outcome>> {
    let dir = tempfile::Builder::new().prefix("factum-kill-").tempdir()?;
    let guard = Guard::start()?;
    let programs = Programs {
        service: programs_dir.join("kill-service"),
        checker: programs_dir.join("factum-checker"),
        dir: dir.path().to_owned(),
        group: guard.group(),
    };
    for program in [&programs.service, &programs.checker] {
        anyhow::ensure!(
            program.exists(),
            "{} is missing; run `cargo xtask kill`, which builds it",
            program.display()
        );
    }
    // A cell that stops its broker has one of its own.
    let (stopping, sharing): (Vec<Cell>, Vec<Cell>) = cells
        .iter()
        .partition(|cell| broker == Broker::Kafka && cell.harm == Harm::Broker);
    let progress = Progress::new(cells.len());
    let mut workers = JoinSet::new();
    let spawn = |workers: &mut JoinSet<Result<Vec<Outcome>>>, queue: &Queue, arena: ArenaOf| {
        let (queue, programs, progress) = (queue.clone(), programs.clone(), progress.clone());
        workers.spawn(async move { work(&queue, arena, &programs, &progress).await });
    };
    if !stopping.is_empty() {
        spawn(&mut workers, &Queue::new(stopping), ArenaOf::OwnKafka);
    }
    let queue = Queue::new(sharing);
    for number in 1..=jobs.min(Stage::COUNT) {
        let stage = Stage::new(number).context("there is a stage for each job")?;
        let arena = match broker {
            Broker::Kafka => ArenaOf::SharedKafka(stage),
            Broker::Embedded => ArenaOf::Embedded(stage),
        };
        spawn(&mut workers, &queue, arena);
    }
    let mut outcomes = Vec::new();
    while let Some(worker) = workers.join_next().await {
        outcomes.extend(worker.context("a worker panicked")??);
    }
    let place = |outcome: &Outcome| cells.iter().position(|cell| *cell == outcome.cell);
    outcomes.sort_by_key(place);
    progress.finish();
    drop(guard);
    Ok(outcomes)
}

/// The cells that are still to do.
#[derive(Clone)]
struct Queue(Arc<Mutex<VecDeque<Cell>>>);

impl Queue {
    fn new(cells: Vec<Cell>) -> Queue {
        Queue(Arc::new(Mutex::new(cells.into())))
    }

    fn next(&self) -> Option<Cell> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cells.pop_front()
    }
}

/// What a worker's cells run on.
#[derive(Clone, Copy)]
enum ArenaOf {
    SharedKafka(Stage),
    OwnKafka,
    Embedded(Stage),
}

impl ArenaOf {
    async fn make(self) -> Result<Arena> {
        let (broker, kafka, stage) = match self {
            ArenaOf::Embedded(stage) => (factum_testing::embedded(), None, stage),
            // Starting one blocks its thread for seconds.
            ArenaOf::SharedKafka(stage) => {
                let broker = tokio::task::spawn_blocking(factum_testing::kafka).await?;
                (broker, None, stage)
            }
            ArenaOf::OwnKafka => {
                let kafka = tokio::task::spawn_blocking(KafkaServer::start).await??;
                let broker = TestBroker::at(kafka.bootstrap());
                let stage = Stage::new(1).context("there is a first stage")?;
                (broker, Some(kafka), stage)
            }
        };
        for topic in stage.topics() {
            broker.create_topic(topic, PARTITIONS).await;
        }
        Ok(Arena {
            session_timeout_ms: match self {
                ArenaOf::Embedded(_) => SESSION_TIMEOUT_EMBEDDED_MS,
                _ => SESSION_TIMEOUT_MS,
            },
            broker,
            stage,
            kafka,
        })
    }
}

async fn work(
    queue: &Queue,
    arena_of: ArenaOf,
    programs: &Programs,
    progress: &Progress,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let mut arena = None;
    let mut dropping = JoinSet::new();
    while let Some(cell) = queue.next() {
        let here = match &mut arena {
            Some(arena) => arena,
            None => arena.insert(arena_of.make().await?),
        };
        let mut outcome = scenario::run(cell, programs, here).await;
        progress.done(&outcome);
        let database = outcome.database.take();
        dropping.spawn_blocking(move || drop(database));
        // A cell on Kafka begins at the topics' end. The embedded broker costs nothing, and a broker that
        // may not have started again is of no use.
        let is_spent = match arena_of {
            ArenaOf::Embedded(_) => true,
            ArenaOf::OwnKafka => outcome.failure.is_some(),
            ArenaOf::SharedKafka(_) => false,
        };
        if is_spent {
            arena = None;
        }
        outcomes.push(outcome);
    }
    // A given server must not keep them.
    dropping.join_all().await;
    Ok(outcomes)
}

/// A bar on a terminal, else a line now and then; and a line for every cell that isn't clean.
#[derive(Clone)]
struct Progress {
    bar: ProgressBar,
    of: usize,
}

impl Progress {
    fn new(of: usize) -> Progress {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(of as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} cells")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { bar, of }
    }

    fn done(&self, outcome: &Outcome) {
        self.bar.inc(1);
        let done = self.bar.position() as usize;
        if !outcome.is_clean() {
            self.line(&format!("{}: FAILED", outcome.cell));
        }
        if self.bar.is_hidden() && (done.is_multiple_of(PLAIN_EVERY) || done == self.of) {
            self.line(&format!("{done} of {} cells", self.of));
        }
    }

    fn line(&self, text: &str) {
        if tool::is_interrupted() {
            return;
        }
        self.bar.suspend(|| {
            // Nobody may be listening any more: that is no reason to stop.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{text}\n"));
        });
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Outcome {
    /// Carried out, and nothing was found.
    pub fn is_clean(&self) -> bool {
        self.anomalies.is_empty() && self.failure.is_none()
    }

    /// What is wrong, for a person.
    pub fn describe(&self) -> String {
        let mut lines = vec![format!("{} ({:.1} s)", self.cell, self.seconds)];
        lines.extend(self.anomalies.iter().map(|anomaly| format!("  {anomaly}")));
        lines.extend(
            self.failure
                .iter()
                .map(|failure| format!("  not carried out: {failure}")),
        );
        lines.join("\n")
    }

    fn json(&self) -> Value {
        json!({
            "cell": self.cell.to_string(),
            "anomalies": self.anomalies,
            "failure": self.failure,
            "seconds": (self.seconds * 10.0).round() / 10.0,
        })
    }
}

/// The sums, and each cell.
pub fn json(outcomes: &[Outcome]) -> Value {
    json!({
        "cells": outcomes.len(),
        "anomalies": outcomes.iter().map(|outcome| outcome.anomalies.len()).sum::<usize>(),
        "failed": outcomes.iter().filter(|outcome| !outcome.is_clean()).count(),
        "results": outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
    })
}
