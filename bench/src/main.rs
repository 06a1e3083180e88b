//! What Factum costs beside raw loops of the same work, on a real PostgreSQL (fsync on) and a real Kafka.
//!
//! `cargo xtask bench` builds and runs this. Each contender is a process of its own: this program again, as
//! `contend`. The file that a run writes is the only source of the table and the picture in the documentation.

mod broker;
mod contender;
mod display;
mod effect;
mod exactness;
mod machine;
mod measurement;
mod meter;
mod order;
mod page;
mod parking;
mod picture;
mod product;
mod raw_consumer;
mod raw_relay;
mod report;
mod signals;
mod stage;
mod statistic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use factum_testing::tool;
use time::OffsetDateTime;

use crate::contender::Contend;
use crate::display::{Display, data, note, table};
use crate::measurement::{MEASUREMENTS, Measurement};
use crate::report::{Entry, Report, thousands};
use crate::stage::Stage;

/// Measure Factum beside raw loops of the same work
#[derive(Parser)]
#[command(
    name = "factum-bench",
    after_help = "Run it as `cargo xtask bench`, whose --help says more."
)]
struct Arguments {
    /// Only this measurement
    #[arg(long, value_name = "NAME", value_parser = MEASUREMENTS.map(|one| one.name))]
    only: Option<String>,
    /// Rounds of each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Events of a round
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    events: Option<u64>,
    /// End stdout with the results as a JSON array on one line
    #[arg(long)]
    json: bool,
    /// Write the report there
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Fail below the goals
    #[arg(long)]
    check: bool,
    /// Measure nothing: make table and picture of the documentation from the file of the last run
    #[arg(long, conflicts_with_all = ["only", "rounds", "events", "check"])]
    render: bool,
    /// The directory of the documentation
    #[arg(long, value_name = "DIR", default_value = "docs")]
    docs: PathBuf,
    #[command(subcommand)]
    command: Option<Internal>,
}

#[derive(Subcommand)]
enum Internal {
    /// One side of one measurement; the bench starts it
    #[command(hide = true)]
    Contend(Contend),
}

/// Rounds, unless told otherwise.
const ROUNDS: u32 = 5;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.command {
        Some(Internal::Contend(contend)) => contend.run().map(|()| true),
        None => signals::watch().and_then(|()| arguments.run()),
    };
    // The servers have ended here: what holds them is dropped.
    if tool::is_interrupted() {
        note("interrupted: everything that was started has ended");
        return ExitCode::from(130);
    }
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            note(format_args!("error: {failure:#}"));
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    /// Whether all goals are reached, if that is asked.
    fn run(&self) -> Result<bool> {
        let report = if self.render {
            Report::read(&self.out.clone().unwrap_or_else(|| self.file()))?
        } else {
            self.measure()?
        };
        if self.render {
            self.write_documentation(&report)?;
        } else if let Some(out) = &self.out {
            report.write(out)?;
        } else if self.is_complete() {
            report.write(&self.file())?;
            self.write_documentation(&report)?;
        } else {
            note("the documentation stays as it is: it shows complete runs alone");
        }
        data(told(&report));
        if self.json {
            data(serde_json::to_string(&report.results)?);
        }
        let below: Vec<&Entry> = report
            .results
            .iter()
            .filter(|entry| !entry.reaches_its_goal())
            .collect();
        for entry in &below {
            note(format_args!(
                "{} is below its goal ({})",
                entry.name,
                entry.goal_text()
            ));
        }
        Ok(below.is_empty() || !self.check)
    }

    fn measure(&self) -> Result<Report> {
        let rounds = self.rounds.unwrap_or(ROUNDS);
        let chosen: Vec<&Measurement> = MEASUREMENTS
            .iter()
            .filter(|one| self.only.as_deref().is_none_or(|only| only == one.name))
            .collect();
        let display = Display::new(chosen.iter().map(|one| one.runs(rounds)).sum());
        let mut machine = None;
        let mut results = Vec::new();
        for measurement in chosen {
            display.now("starting PostgreSQL and Kafka (the first time its jars are fetched)");
            // Fresh servers each time: no measurement pays for what the one before has left.
            let stage = Stage::start()?;
            machine.get_or_insert_with(|| machine::read(&stage));
            let events = self.events.map(|events| events as usize);
            results.push(measurement.run(&stage, rounds, events, &display)?);
        }
        Ok(Report {
            measured_on: OffsetDateTime::now_utc().date().to_string(),
            machine: machine.context("nothing was measured")?,
            results,
        })
    }

    /// Whether the run is one that the documentation may show.
    fn is_complete(&self) -> bool {
        self.only.is_none()
            && self.rounds.is_none_or(|rounds| rounds >= ROUNDS)
            && self.events.is_none()
    }

    fn file(&self) -> PathBuf {
        self.docs.join("bench.json")
    }

    fn write_documentation(&self, report: &Report) -> Result<()> {
        let page = self.docs.join("performance.md");
        let text =
            fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
        write(&page, &page::renewed(&text, report)?)?;
        write(&self.docs.join("bench.svg"), &picture::svg(report))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The table for a terminal.
fn told(report: &Report) -> String {
    let head = [
        "", "events/s", "raw", "ratio", "goal", "cpu µs", "raw", "db µs", "raw", "rss MiB", "raw",
        "p50 ms", "p99 ms",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for entry in &report.results {
        let optional = |value: Option<f64>, places: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
        };
        rows.push(vec![
            entry.name.clone(),
            thousands(entry.events_per_second),
            entry.beside.map_or_else(|| "-".to_owned(), thousands),
            optional(entry.ratio, 3),
            entry.goal_text(),
            format!("{:.1}", entry.cpu_us),
            optional(entry.beside_cpu_us, 1),
            format!("{:.1}", entry.database_cpu_us),
            optional(entry.beside_database_cpu_us, 1),
            format!("{:.0}", entry.rss_mib),
            optional(entry.beside_rss_mib, 0),
            optional(entry.p50_ms, 1),
            optional(entry.p99_ms, 1),
        ]);
    }
    table(&rows)
}
